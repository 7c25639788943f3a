"""What a turn costs through each door that calls a model, and what happens where its context is too long."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from budget import Meter, memory_with_history, meter
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import SimpleChatEngine
from scripted import answers, speaking
from tuned import Tuned
from waiting import heard

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerMiddleware, MemlayerStore, with_memory
from llamaindex_memlayer import MemlayerMemory, acall_with_retry, call_with_retry
from memlayer_core import Memory
from memlayer_core.events import ContextOverflowed
from tests.conftest import OURS, PROMPT
from tests.langchain.running import VERBS, in_session, in_thread, pieces, texts
from tests.langchain.scripted_model import Scripted

__all__ = ["meter"]

QUESTION = "What did I say first?"
CONFIG = in_session("s", thread_id="s")

# What a turn costs


def history_of(memory: Memory) -> Callable[[str], MemlayerChatMessageHistory]:
    return lambda session_id: MemlayerChatMessageHistory(memory, user_id="ada", session_id=session_id)


def session_of(memory: Memory, **options: Any) -> MemlayerMemory:
    return MemlayerMemory(memory, user_id="ada", session_id="s", **options)


def runs(runnable: Any, asked: Callable[[str], Any] = str) -> Any:
    """Return a turn of a runnable, blocking and awaiting."""
    return (
        lambda question: runnable.invoke(asked(question), CONFIG),
        lambda question: runnable.ainvoke(asked(question), CONFIG),
    )


def agent(memory: Memory) -> Any:
    more = {"store": MemlayerStore(memory), "checkpointer": InMemorySaver()}
    made = create_agent(Scripted(), middleware=[MemlayerMiddleware(memory, user_id="ada")], **more)
    return runs(made, lambda question: {"messages": [HumanMessage(question)]})


def chat_engine(memory: Memory) -> Any:
    made = SimpleChatEngine.from_defaults(llm=answers("You like them."), memory=session_of(memory))
    return made.chat, made.achat


def function_agent(memory: Memory) -> Any:
    made, session = FunctionAgent(llm=answers("You like them."), streaming=False), session_of(memory)
    return None, lambda question: made.run(user_msg=question, memory=session)


def runnable(memory: Memory) -> Any:
    return runs(with_memory(Scripted(), memory, user_id="ada"))


def wrapper(memory: Memory) -> Any:
    return runs(RunnableWithMessageHistory(Scripted(), history_of(memory)))


TURNS = {
    "agent": (agent, 2, 46, 2),
    "with_memory": (runnable, 1, 40, 2),
    # LangChain's own wrapper reads twice and writes once
    "LangChain's own": (wrapper, 1, 16, 3),
    # LlamaIndex puts the question, reads the context and puts the answer; its agent reads once more at the end
    "LlamaIndex's engine": (chat_engine, 2, 39, 3),
    "LlamaIndex's agent": (function_agent, 2, 43, 4),
}
"""A door, and what its turn may cost: writes, statements, and hops of an async one."""


@pytest.fixture
def long_known(meter: Meter, tmp_path: Path) -> Iterator[Memory]:
    with memory_with_history(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(("door", "writes", "statements", "hops"), TURNS.values(), ids=TURNS)
def test_a_turn_writes_as_it_must_and_takes_few_hops(
    meter, long_known, door, writes, statements, hops
) -> None:
    blocking, awaiting = door(long_known)
    with blockbuster_ctx(OURS):
        spent = asyncio.run(meter.aturns(awaiting))
    assert spent.hops == hops
    for costs in (spent, *([meter.turns(blocking)] if blocking else [])):
        assert costs.writes == writes
        assert costs.statements <= statements


async def test_turns_at_the_same_time_use_no_thread_of_the_application(long_known) -> None:
    class Refusing(ThreadPoolExecutor):
        def submit(self, work: Any, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"{work} is handed to the application's threads")

    asyncio.get_running_loop().set_default_executor(Refusing(1))
    history = history_of(long_known)("s")
    await asyncio.gather(*(history.aadd_messages([HumanMessage(f"{n}")]) for n in range(20)))
    assert len(await history.aget_messages()) == 20
    assert await history.acontext("What do I think of pears?")


# Turns at the same time


@pytest.mark.trap("langchain", 2)
@pytest.mark.requirement("L12")
@pytest.mark.parametrize("door", ["agent", "with_memory"])
def test_a_batch_on_one_session_without_checkpoints_loses_nothing(do, door) -> None:
    """LangChain's own wrapper loses the questions of calls that overlap: it counts what is new by lengths."""
    together = threading.Barrier(4)

    def script(messages: list[BaseMessage]) -> str:
        together.wait(30)  # with_memory has stored nothing before everybody has read
        return f"to {messages[-1].text}"

    model, asked = Scripted(script=script), [f"{number}?" for number in range(4)]
    with Memory.in_memory(settings=PROMPT, tokenizer="estimate") as memory:
        if door == "agent":
            runnable = create_agent(model, middleware=[MemlayerMiddleware(memory, user_id="ada")])
            given: list[Any] = [{"messages": [HumanMessage(one)]} for one in asked]
        else:
            runnable, given = with_memory(model, memory, user_id="ada"), asked
        do(runnable, "batch", given, {**CONFIG, "max_concurrency": 4})
        said = texts(history_of(memory)("s").messages)
    assert sorted(said) == sorted([*asked, *(f"to {one}" for one in asked)])
    if door == "with_memory":
        assert said[1::2] == [f"to {one}" for one in said[::2]]


# Where the context is too long


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
    return heard(memory, ContextOverflowed)


class Reader:
    """A model of either framework that refuses more characters than it can read, as OpenAI does."""

    def __init__(self, most: int, problem: Exception | None = None) -> None:
        self.told: list[list[str]] = []
        self._most, self._problem = most, problem
        self.langchain = Scripted(script=lambda messages: self._reply(texts(messages), ContextOverflowError))
        self.llamaindex = speaking(self._speak)

    def _speak(self, messages: Sequence[ChatMessage]) -> ChatMessage:
        return ChatMessage(self._reply([one.content or "" for one in messages], ValueError), role="assistant")

    def _reply(self, said: list[str], kind: type[Exception]) -> str:
        self.told.append(said)
        if sum(map(len, said)) > self._most:
            raise self._problem or kind("This model's maximum context length is exceeded.")
        return "This is it."


def ask_agent(memory: Memory, reader: Reader, verb: str, user: str = "ada", **options: Any) -> str:
    middleware = MemlayerMiddleware(memory, user_id=user, mode="STATIC", token_limit=1000)
    made = create_agent(reader.langchain, middleware=[middleware], checkpointer=InMemorySaver(), **options)
    [end] = pieces(made, verb, {"messages": [("user", QUESTION)]}, in_thread("s" if user == "ada" else user))
    return end["messages"][-1].text


def ask_runnable(memory: Memory, reader: Reader, verb: str) -> str:
    chain = with_memory(reader.langchain, memory, user_id="ada", token_limit=1000)
    return "".join(texts(pieces(chain, verb, QUESTION, CONFIG)))


def ask_engine(memory: Memory, reader: Reader, verb: str) -> str:
    def engine(session: MemlayerMemory) -> SimpleChatEngine:
        return SimpleChatEngine.from_defaults(llm=reader.llamaindex, memory=session)

    session = session_of(memory, token_limit=1000)
    if verb == "chat":
        return str(call_with_retry(session, lambda memory: engine(memory).chat(QUESTION)))
    return str(asyncio.run(acall_with_retry(session, lambda memory: engine(memory).achat(QUESTION))))


def ask_function_agent(memory: Memory, reader: Reader, _: str) -> str:
    async def run(session: MemlayerMemory) -> Any:
        return await FunctionAgent(llm=reader.llamaindex, streaming=False).run(QUESTION, memory=session)

    return str(asyncio.run(acall_with_retry(session_of(memory, token_limit=1000), run)))


WAYS = [
    *((ask_agent, verb) for verb in ("invoke", "ainvoke")),
    *((ask_runnable, verb) for verb in VERBS),
    *((ask_engine, verb) for verb in ("chat", "achat")),
    (ask_function_agent, "run"),
]
each_way = pytest.mark.parametrize(("ask", "verb"), WAYS)


@pytest.mark.requirement("A23")
@each_way
def test_a_model_is_called_once_more_with_less_and_the_turn_is_stored_once(memory, events, ask, verb) -> None:
    reader = Reader(1700)
    assert ask(memory, reader, verb) == "This is it."
    first, second = (sum(map(len, said)) for said in reader.told)
    assert first > 1700 >= second
    assert reader.told[1][-1].endswith(QUESTION)
    [event] = events
    assert event.token_limit == int(0.6 * min(1000, event.tokens))
    history = [one.text for one in memory.chat(user_id="ada", session_id="s").history()]
    assert (history[-2:], history.count(QUESTION)) == ([QUESTION, "This is it."], 1)
    assert len(history) == 62


@pytest.mark.requirement("A23")
@each_way
def test_a_second_refusal_or_another_error_is_raised(memory, events, ask, verb) -> None:
    for problem, says, calls in ((None, "maximum context length", 2), (RuntimeError("away"), "away", 1)):
        events.clear()
        reader = Reader(10, problem)
        with pytest.raises(Exception, match=says):
            ask(memory, reader, verb)
        assert (len(reader.told), len(events)) == (calls, calls - 1)


def test_what_cannot_be_left_out_raises_the_models_own_error(memory) -> None:
    reader = Reader(10)
    with pytest.raises(ContextOverflowError):
        ask_agent(memory, reader, "invoke", "eve", system_prompt="Be terse. " * 150)
    assert len(reader.told) == 1


class Breaks(Scripted):
    """A model whose stream breaks off behind its first word."""

    def _stream(self, *given: Any, **more: Any) -> Iterator[Any]:
        yield next(super()._stream(*given, **more))
        raise ContextOverflowError("This model's maximum context length is exceeded.")


@pytest.mark.parametrize("verb", ["stream", "astream"])
def test_an_answer_that_has_begun_is_not_begun_again(memory, events, verb) -> None:
    reader = Reader(10**6)
    reader.langchain = model = Breaks()
    with pytest.raises(ContextOverflowError):
        ask_runnable(memory, reader, verb)
    assert (len(model.seen), events) == (1, [])
