"""What tests of summaries and of episodes share: memories with a model, a crash, and words that are taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scripted_summarizer

from memlayer_core import Chat, Memory, Message
from memlayer_core.errors import FlushTimeoutError, StoreUnavailableError
from memlayer_core.storage import jobs


@pytest.fixture
def opened(dialect: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Memory]]:
    """Return a function that opens memories on the test's database."""
    quiet = getattr(request.module, "QUIET", scripted_summarizer.QUIET)
    yield from scripted_summarizer.memories(request, dialect, quiet)


@pytest.fixture
def crash_once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that works off a memory, and crashes where a function is called for the first time."""

    def crash(memory: Memory, owner: object, name: str) -> None:
        real, crashes = getattr(owner, name), list[str]()

        def crashing(*args: Any) -> Any:
            if crashes:
                return real(*args)
            crashes.append(name)
            raise StoreUnavailableError("the power went out", hint="Wait.")

        monkeypatch.setattr(owner, name, crashing)
        monkeypatch.setattr("memlayer_core.worker._IDLE", 0.01)
        with pytest.raises(FlushTimeoutError):
            memory.flush(1)
        assert memory.admin.costs() == []
        worker = memory._resources.worker._owner
        memory.runtime.db.write(
            jobs.release, [worker], memory.runtime.now(), discount=1
        )  # its lease runs out
        memory.flush(30)

    return crash


@pytest.fixture(params=["edit", "delete", "replace", "rewrite", "resync"])
def take_back(request: pytest.FixtureRequest) -> Callable[[Chat, str, str], None]:
    """Return a function that takes back the words of a question and of its answer, in each way that there is."""

    def change(chat: Chat, question: str, answer: str) -> None:
        others = {
            question: Message("user", "The code is Dana444.", id=question),
            answer: Message("assistant", "Noted.", id=answer),
        }
        history = chat.history()
        match request.param:
            case "edit":
                for name, other in others.items():
                    chat.edit(name, other.text)
            case "delete":
                for name in others:
                    chat.delete_message(name)
            case "replace":
                chat.add_messages(list(others.values()))
            case "rewrite":
                chat.resync([one for one in history if one.id not in others], replace="all", erase=True)
            case "resync":
                chat.resync([others.get(one.id or "", one) for one in history])

    return change
