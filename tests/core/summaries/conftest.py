"""What tests of summaries and of episodes share: memories with a model, and words that are taken back."""

from collections.abc import Callable, Iterator

import pytest
import scripted_summarizer

from memlayer_core import Chat, Memory, Message


@pytest.fixture
def opened(dialect: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Memory]]:
    """Return a function that opens memories on the test's database."""
    quiet = getattr(request.module, "QUIET", scripted_summarizer.QUIET)
    yield from scripted_summarizer.memories(request, dialect, quiet)


@pytest.fixture(params=["edit", "delete", "withdraw", "replace", "rewrite", "resync"])
def take_back(request: pytest.FixtureRequest) -> Callable[[Chat, str, str], None]:
    """Return a function that takes back the words of a question and of its answer, in each way that there is."""

    def change(chat: Chat, question: str, answer: str) -> None:
        other = Message("user", "The code is Dana444.", id=question)
        others = {question: other, answer: Message("assistant", "Noted.", id=answer)}
        history = chat.history()
        match request.param:
            case "edit":
                for name, other in others.items():
                    chat.edit(name, other.text)
            case "delete":
                for name in others:
                    chat.delete_message(name)
            case "withdraw":
                chat.withdraw([*others])
            case "replace":
                chat.add_messages(list(others.values()))
            case "rewrite":
                chat.resync([one for one in history if one.id not in others], replace="all", erase=True)
            case "resync":
                chat.resync([others.get(one.id or "", one) for one in history])

    return change
