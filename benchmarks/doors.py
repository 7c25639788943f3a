"""What memory adds to a turn, through every door: memlayer beside each framework's own memory, in one run.

The doors are `create_agent` with `MemlayerMiddleware` and `MemlayerStore`, `with_memory`,
`RunnableWithMessageHistory` with memlayer's history, LlamaIndex's `SimpleChatEngine` and `FunctionAgent`. Each is
measured in sessions of 100 and of 1,000 messages, with a scripted model that answers at once, beside:

- `bare`: the same framework's turn with the question alone and no memory;
- `own`: the framework's own memory with the same session: LangGraph's `InMemorySaver`, `SQLChatMessageHistory` in a
  file of SQLite, LlamaIndex's `ChatMemoryBuffer`, and its `Memory` for `FunctionAgent`.

An agent with memlayer has the `InMemorySaver`, too, since its middleware follows the state of a thread. What is added
is therefore told over `bare`, and for agents over `own`.

memlayer works in a directory (SQLite, durability "full", the hashing embedder). Its session is
indexed first, and the worker then rests until the turns are over. A turn costs:

- `caller`: processor time of the calling thread (`time.thread_time`), in milliseconds, the median of the turns;
- `whole`: processor time of the process (`time.process_time`), in milliseconds, the mean of the turns. The turns are
  indexed inside the measurement: it ends with `flush`;
- `statements`: SQL statements, as SQLite itself reports them (one for each row of an `INSERT` of many), the median of a few
  further turns, since reporting costs time; of memlayer's journal and of `SQLChatMessageHistory`. `writes`: transactions of
  memlayer that take the lock for writing. The worker's own are left out of both;
- `hops`: calls that an async turn (`ainvoke`, `achat`) hands to memlayer's threads, the median of the turns. The
  application's threads get none.

Processor time stands still while a machine is busy with something else, so the goals are judged by it.

Goals, for each door and length: at most 8 ms in the calling thread and 15 ms in all above the framework's turn; at
most two transactions that write; at most three hops a model call.

Usage: python benchmarks/doors.py [--quick] [--json] [--check] [--only NAME …] [--turns N]
"""

import asyncio
import concurrent.futures
import statistics
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import ProgrammingError

from goals import goal, options, tell
from sqlalchemy import event
from sqlalchemy.pool import Pool
from turn_cost import Talk

from memlayer_core import Memory, Settings
from memlayer_core.storage.sqlite import Writer

LENGTHS = 100, 1000
APART = 5  # turns that are not timed: two that prepare, and three whose statements are counted
TOKEN_LIMIT = 1500
GOAL_CALLER = 8.0
GOAL_WHOLE = 15.0
GOAL_WRITES = 2
GOAL_HOPS = 3
USER = "ada"
WORKER = "memlayer-worker"


class Counter:
    """Counts SQL statements, transactions that write, and calls handed to threads; the worker's are left out."""

    def __init__(self):
        self.statements = self.writes = self.hops = 0
        self.connections = []
        self.background = False  # whether the writer's thread works for the worker
        event.listen(Pool, "connect", self.watch)
        write = Writer.run

        def counting(writer, work, *args, **kwargs):
            background = threading.current_thread().name == WORKER
            self.writes += not background

            def marked(connection):
                self.background = background
                try:
                    return work(connection, *args, **kwargs)
                finally:
                    self.background = False

            return write(writer, marked)

        Writer.run = counting
        submit = concurrent.futures.ThreadPoolExecutor.submit

        def counted(executor, *args, **kwargs):
            self.hops += executor._thread_name_prefix.startswith("memlayer-")  # noqa: SLF001
            return submit(executor, *args, **kwargs)

        concurrent.futures.ThreadPoolExecutor.submit = counted

    def watch(self, connection, _):
        if hasattr(connection, "set_trace_callback"):
            self.connections.append(connection)

    @contextmanager
    def reports(self):
        """Let SQLite report its statements: it writes each with its values, which takes as long as a small turn."""
        for connection in self.connections:
            with suppress(ProgrammingError):  # it was closed
                connection.set_trace_callback(self.note)
        yield
        for connection in self.connections:
            with suppress(ProgrammingError):
                connection.set_trace_callback(None)

    def note(self, statement):
        if statement.startswith("--"):  # SQLite's own, inside of another one
            return
        if self.background or threading.current_thread().name == WORKER:
            return
        verb = statement.split(None, 1)[0].upper()
        if verb in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "REPLACE"}:
            self.statements += 1

    def take(self):
        taken = self.statements, self.writes, self.hops
        self.statements = self.writes = self.hops = 0
        return taken


def texts_of(length):
    """Return the texts of a session, the user's and the assistant's in turn."""
    talk = Talk("history")
    return [("user" if place % 2 == 0 else "assistant", talk.text()) for place in range(length)]


class Store:
    """A memory in a directory, with the session of a door. What a door adds is indexed when it is asked for."""

    def __init__(self, folder):
        self.memory = Memory.open(folder, embedder="hashing", tokenizer="estimate", settings=Settings())

    def settle(self):
        self.memory.flush(timeout=600)

    def close(self):
        self.memory.close()


class Nothing:
    """A door with no store of its own."""

    def settle(self):
        pass

    def close(self):
        pass


def langchain_messages(length):
    from langchain_core.messages import AIMessage, HumanMessage

    made = {"user": HumanMessage, "assistant": AIMessage}
    return [made[role](text, id=f"m{place}") for place, (role, text) in enumerate(texts_of(length))]


def langchain_model():
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    talk = Talk("answers")

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **kwargs):
            return self

    return Model(messages=iter(lambda: AIMessage(talk.text()), None))


class Agent:
    """`create_agent`; memlayer's has its middleware and its store."""

    name = "create_agent"
    over = "own"

    def __init__(self, way, folder, length):
        from langchain.agents import create_agent
        from langgraph.checkpoint.memory import InMemorySaver

        self.store, extra = Nothing(), {}
        if way == "memlayer":
            from langchain_memlayer import MemlayerMiddleware, MemlayerStore

            self.store = Store(folder)
            memory = self.store.memory
            middleware = MemlayerMiddleware(memory, user_id=USER, token_limit=TOKEN_LIMIT)
            extra = {"middleware": [middleware], "store": MemlayerStore(memory)}
        if way != "bare":
            extra["checkpointer"] = InMemorySaver()
        self.agent = create_agent(langchain_model(), **extra)
        self.config = {"configurable": {"thread_id": "s"}}
        if way != "bare":
            self.agent.update_state(self.config, {"messages": langchain_messages(length)})

    def turn(self, question):
        self.agent.invoke({"messages": [("user", question)]}, self.config)

    async def aturn(self, question):
        await self.agent.ainvoke({"messages": [("user", question)]}, self.config)


class Wrapped:
    """A model in memlayer's `with_memory`; LangChain's own is `RunnableWithMessageHistory`."""

    name = "with_memory"
    over = "bare"

    def __init__(self, way, folder, length):
        self.store, self.runnable = Nothing(), langchain_model()
        self.config = {"configurable": {"session_id": "s"}}
        if way == "memlayer":
            self.store = Store(folder)
            self.fill(self.history(), length)
            self.runnable = self.remembering(self.runnable)
        elif way == "own":
            self.own(folder, length)

    def history(self):
        from langchain_memlayer import MemlayerChatMessageHistory

        return MemlayerChatMessageHistory(
            self.store.memory, user_id=USER, session_id="s", token_limit=TOKEN_LIMIT
        )

    def fill(self, history, length):
        history.add_messages(langchain_messages(length))

    def remembering(self, model):
        from langchain_memlayer import with_memory

        return with_memory(model, self.store.memory, user_id=USER, token_limit=TOKEN_LIMIT)

    def own(self, folder, length):
        from langchain_community.chat_message_histories import SQLChatMessageHistory
        from langchain_core.runnables.history import RunnableWithMessageHistory
        from sqlalchemy import create_engine
        from sqlalchemy.ext.asyncio import create_async_engine

        file = folder / "history.sqlite3"
        blocking, awaiting = (
            create_engine(f"sqlite:///{file}"),
            create_async_engine(f"sqlite+aiosqlite:///{file}"),
        )
        self.fill(SQLChatMessageHistory("s", connection=blocking), length)
        model = self.runnable
        self.runnable = RunnableWithMessageHistory(
            model, lambda session_id: SQLChatMessageHistory(session_id, connection=blocking)
        )
        self.arunnable = RunnableWithMessageHistory(
            model, lambda session_id: SQLChatMessageHistory(session_id, connection=awaiting, async_mode=True)
        )

    def turn(self, question):
        self.runnable.invoke(self.asked(question), self.config)

    async def aturn(self, question):
        await getattr(self, "arunnable", self.runnable).ainvoke(self.asked(question), self.config)

    @staticmethod
    def asked(question):
        from langchain_core.messages import HumanMessage

        return [HumanMessage(question)]


class History(Wrapped):
    """`RunnableWithMessageHistory`, with memlayer's history."""

    name = "RunnableWithMessageHistory"

    def remembering(self, model):
        from langchain_core.runnables.history import RunnableWithMessageHistory

        return RunnableWithMessageHistory(model, lambda session_id: self.history())


def llama_messages(length):
    from llama_index.core.llms import ChatMessage

    return [ChatMessage(role=role, content=text) for role, text in texts_of(length)]


def llama_model():
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
    from llama_index.core.llms.mock import MockFunctionCallingLLM

    talk = Talk("answers")

    class Model(MockFunctionCallingLLM):
        @property
        def metadata(self):
            return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

        def chat(self, messages, **kwargs):
            return ChatResponse(message=ChatMessage(role="assistant", content=talk.text()))

        async def achat(self, messages, **kwargs):
            return self.chat(messages)

    return Model()


class Engine:
    """LlamaIndex's `SimpleChatEngine`."""

    name = "SimpleChatEngine"
    over = "bare"

    def __init__(self, way, folder, length):
        self.store, self.way, self.model = Nothing(), way, llama_model()
        if way == "memlayer":
            from llamaindex_memlayer import MemlayerMemory

            self.store = Store(folder)
            self.memory = MemlayerMemory(
                self.store.memory, user_id=USER, session_id="s", token_limit=TOKEN_LIMIT
            )
        elif way == "own":
            self.memory = self.own()
        if way != "bare":
            self.memory.set(llama_messages(length))

    def own(self):
        from llama_index.core.memory import ChatMemoryBuffer

        return ChatMemoryBuffer.from_defaults(token_limit=TOKEN_LIMIT, tokenizer_fn=str.split)

    def remembered(self):
        from llama_index.core.memory import ChatMemoryBuffer

        if self.way == "bare":
            return ChatMemoryBuffer.from_defaults(token_limit=TOKEN_LIMIT, tokenizer_fn=str.split)
        return self.memory

    def engine(self):
        from llama_index.core.chat_engine import SimpleChatEngine

        return SimpleChatEngine.from_defaults(llm=self.model, memory=self.remembered())

    def turn(self, question):
        self.engine().chat(question)

    async def aturn(self, question):
        await self.engine().achat(question)


class FunctionAgent(Engine):
    """LlamaIndex's `FunctionAgent`; it is async only."""

    name = "FunctionAgent"
    turn = None

    def own(self):
        from llama_index.core.memory import Memory as LlamaMemory

        return LlamaMemory.from_defaults(session_id="s", token_limit=TOKEN_LIMIT, tokenizer_fn=str.split)

    async def aturn(self, question):
        from llama_index.core.agent.workflow import FunctionAgent

        agent = FunctionAgent(llm=self.model, streaming=False)
        await agent.run(user_msg=question, memory=self.remembered())


DOORS = Agent, Wrapped, History, Engine, FunctionAgent
WAYS = "bare", "own", "memlayer"


def measure(door, way, length, turns, counter):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        subject = door(way, Path(folder), length)
        talk = Talk(f"turns of {length}")
        questions = [talk.text() for _ in range(2 * (turns + APART))]
        try:
            found = {}
            if subject.turn is not None:
                found["sync"] = blocking(subject, questions[: turns + APART], counter)
            found["async"] = asyncio.run(awaiting(subject, questions[turns + APART :], counter))
            return found
        finally:
            subject.store.close()


def blocking(subject, questions, counter):
    costs = Costs(subject, counter)
    first, timed, last = apart(questions)
    for question in first:  # everything is imported
        subject.turn(question)
    costs.begin()
    for question in timed:
        start = time.thread_time()
        subject.turn(question)
        costs.note(start)
    costs.end()
    with counter.reports():
        for question in last:
            subject.turn(question)
            costs.count()
    return costs.told()


async def awaiting(subject, questions, counter):
    costs = Costs(subject, counter)
    first, timed, last = apart(questions)
    for question in first:
        await subject.aturn(question)
    costs.begin()
    for question in timed:
        start = time.thread_time()
        await subject.aturn(question)
        costs.note(start)
    costs.end()
    with counter.reports():
        for question in last:
            await subject.aturn(question)
            costs.count()
    return costs.told()


def apart(questions):
    """Return the questions of turns that prepare, of those that are timed, and of those whose statements are counted."""
    return questions[:2], questions[2 : 2 - APART], questions[2 - APART :]


class Costs:
    """What the turns of a subject cost."""

    def __init__(self, subject, counter):
        self.subject, self.counter = subject, counter
        self.caller, self.counts = [], []

    def begin(self):
        self.subject.store.settle()
        self.start = time.process_time()

    def note(self, start):
        self.caller.append(time.thread_time() - start)

    def end(self):
        self.subject.store.settle()
        self.whole = (time.process_time() - self.start) / len(self.caller)
        self.counter.take()

    def count(self):
        self.counts.append(self.counter.take())

    def told(self):
        statements, writes, hops = (statistics.median(column) for column in zip(*self.counts, strict=True))
        return {
            "caller": round(1000 * statistics.median(self.caller), 2),
            "whole": round(1000 * self.whole, 2),
            "statements": statements,
            "writes": writes,
            "hops": hops,
        }


def judged(found):
    goals = []
    for door, lengths in found.items():
        over = next(one.over for one in DOORS if one.name == door)
        for length, ways in lengths.items():
            for colour, ours in ways["memlayer"].items():
                base, where = ways[over][colour], f"{door}, {length} messages, {colour}"
                limits = {"caller": GOAL_CALLER, "whole": GOAL_WHOLE, "writes": GOAL_WRITES}
                if colour == "async":
                    limits["hops"] = GOAL_HOPS
                for name, limit in limits.items():
                    added = ours[name] - (base[name] if name != "writes" else 0)
                    goals.append(goal(f"{where}: {name}", added, at_most=limit))
    return goals


def show(result):
    print(f"{result['turns']} turns; processor time in milliseconds")
    print(f"{'':28}{'':10}{'':10}{'caller':>9}{'whole':>9}{'stmts':>7}{'writes':>7}{'hops':>6}")
    for door, lengths in result["doors"].items():
        for length, ways in lengths.items():
            for way, colours in ways.items():
                for colour, costs in colours.items():
                    numbers = f"{costs['caller']:>9.2f}{costs['whole']:>9.2f}{costs['statements']:>7g}"
                    numbers += f"{costs['writes']:>7g}{costs['hops']:>6g}"
                    print(f"{door:28}{length:>6} {way:10}{colour:6}{numbers}")


def main():
    parser = options(__doc__, "sessions of 100 messages and few turns")
    parser.add_argument("--only", nargs="+", default=[door.name for door in DOORS], metavar="NAME")
    parser.add_argument("--turns", type=int, help="turns of each measurement (20, or 3 with --quick)")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    counter, turns = Counter(), asked.turns or (3 if asked.quick else 20)
    lengths = LENGTHS[:1] if asked.quick else LENGTHS
    found = {
        door.name: {
            str(length): {way: measure(door, way, length, turns, counter) for way in WAYS}
            for length in lengths
        }
        for door in DOORS
        if door.name in asked.only
    }
    tell({"turns": turns, "doors": found, "goals": judged(found)}, asked, show)


if __name__ == "__main__":
    main()
