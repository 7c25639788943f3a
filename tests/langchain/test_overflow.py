"""A chat model that answers "context length exceeded" is called once more, with less, and never in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from tuned import Tuned

from langchain_memlayer import MemlayerMiddleware, with_memory
from memlayer_core import Memory
from memlayer_core.events import ContextOverflowed
from tests.langchain.scripted_model import VERBS, Scripted, in_session, in_thread, pieces, texts

QUESTION = "What did I say first?"
OVERFLOW = ContextOverflowError("This model's maximum context length is exceeded.")


def reads(most: int, problem: Exception = OVERFLOW) -> Scripted:
    """Return a model that refuses more characters than it can read, as OpenAI does."""

    def script(messages: list[BaseMessage]) -> str:
        if sum(map(len, texts(messages))) > most:
            raise problem
        return "This is it."

    return Scripted(script=script)


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=3600, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        chat = opened.chat(user_id="ada", session_id="s")
        for number in range(30):
            chat.add("user", f"{number}: pears and apples and plums and quinces, pears again, and plums")
            chat.add("assistant", "I see.")
        yield opened


@pytest.fixture
def events(memory: Memory) -> list[ContextOverflowed]:
    seen: list[Any] = []
    memory.listen(lambda event: seen.append(event) if isinstance(event, ContextOverflowed) else None)
    return seen


def ask_agent(memory: Memory, model: Scripted, verb: str) -> str:
    middleware = MemlayerMiddleware(memory, user_id="ada", mode="STATIC", token_limit=1000)
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    [state] = pieces(agent, verb, {"messages": [("user", QUESTION)]}, in_thread("s"))
    return state["messages"][-1].text


def ask_runnable(memory: Memory, model: Any, verb: str) -> str:
    chain = with_memory(model, memory, user_id="ada", token_limit=1000)
    return "".join(texts(pieces(chain, verb, QUESTION, in_session("s"))))


EACH_WAY = pytest.mark.parametrize(
    ("ask", "verb"),
    [(ask_agent, "invoke"), (ask_agent, "ainvoke"), *((ask_runnable, verb) for verb in VERBS)],
)


@pytest.mark.requirement("A23")
@EACH_WAY
def test_a_model_is_called_once_more_with_less_and_the_turn_is_stored_once(memory, events, ask, verb) -> None:
    model = reads(1700)
    assert ask(memory, model, verb) == "This is it."
    first, second = map(texts, model.seen)
    assert sum(map(len, first)) > 1700 >= sum(map(len, second))
    assert second[-1].endswith(QUESTION)
    [event] = events
    assert event.token_limit == int(0.6 * min(1000, event.tokens))
    history = [one.text for one in memory.chat(user_id="ada", session_id="s").history()]
    assert history[-2:] == [QUESTION, "This is it."]
    assert history.count(QUESTION) == 1
    assert len(history) == 62


@pytest.mark.requirement("A23")
@pytest.mark.parametrize(("problem", "calls"), [(OVERFLOW, 2), (RuntimeError("no route"), 1)], ids=repr)
@EACH_WAY
def test_a_second_refusal_or_another_error_is_raised(memory, events, ask, verb, problem, calls) -> None:
    model = reads(10, problem)
    with pytest.raises(type(problem)):
        ask(memory, model, verb)
    assert (len(model.seen), len(events)) == (calls, calls - 1)


class Breaks(Scripted):
    """A model whose stream breaks off behind its first word."""

    def _stream(self, *given: Any, **more: Any) -> Iterator[Any]:
        yield from islice(super()._stream(*given, **more), 1)
        raise OVERFLOW


@pytest.mark.parametrize("verb", ["stream", "astream"])
def test_an_answer_that_has_begun_is_not_begun_again(memory, events, verb) -> None:
    model = Breaks()
    with pytest.raises(ContextOverflowError):
        ask_runnable(memory, model, verb)
    assert (len(model.seen), events) == (1, [])


def test_what_cannot_be_left_out_raises_the_models_own_error(memory) -> None:
    model = reads(10)
    middleware = MemlayerMiddleware(memory, user_id="eve", mode="STATIC", token_limit=1000)
    large = create_agent(model, system_prompt="Be terse. " * 150, middleware=[middleware])
    with pytest.raises(ContextOverflowError):
        large.invoke({"messages": [("user", QUESTION)]}, in_thread("eve"))
    assert len(model.seen) == 1
