"""Many conversations at once, memlayer beside what its users would use instead, in one run.

64 threads, then 200 coroutines, each with a conversation of its own. A turn stores a user's message and an
answer, and reads back what a model would be shown:

- memlayer: `add_messages` and `context(token_limit=1500)`, in a directory (SQLite, durability
  "full", the hashing embedder), indexing in the background included;
- LangChain `SQLChatMessageHistory`: `add_messages` and `messages`, a file of SQLite;
- LlamaIndex `Memory`: `put_messages` and `get`, a file of SQLite. It has async methods only: each thread runs
  an event loop of its own;
- LangGraph `SqliteSaver` and `AsyncSqliteSaver`: one `invoke` of a graph whose single node answers (the saver
  writes the state), and `get_state`.

Each gets a directory of its own, the same turns, and one turn a conversation for warming up (memlayer's is
indexed before the clock starts). Everything is read back at the
end: a message that is not there was lost. `write`, `read`: milliseconds of the calls, at the 50th and 95th
percentile and the longest; `processor`: milliseconds of processor time of a turn, all threads and memlayer's indexing
included (`time.process_time`); `stall`: how much later than asked a coroutine that sleeps for a millisecond again
and again wakes up, while the 200 coroutines work and, for memlayer, until everything is indexed.

memlayer without recall (`context("")`) stands beside it, since no peer recalls anything.

Goals: memlayer makes no error and loses nothing; it does at least as many turns a second as LangChain's SQL history, and
without recall twice as many; its event loop is stalled for at most 30 ms at the 99th percentile, indexing included; a
turn costs at most 6 ms of processor time, and 4 without recall.

Usage: python benchmarks/concurrency.py [--quick] [--json] [--check] [--only NAME …] [--embedder minilm]
"""

import asyncio
import contextlib
import tempfile
import threading
import time
from pathlib import Path

from goals import goal, installed, options, tell

from memlayer_core import Memory, Message

TOKEN_LIMIT = 1500
TICK = 0.001
GOAL_STALL = 30.0  # milliseconds

ASKED = "Yesterday we talked about the trip to Lisbon, and I said that the hotel near the river is too loud."
ANSWERED = (
    "You did. I would look for one on a hill then: Graça is quiet at night and ten minutes from the tram."
)


def words(session, turn):
    return f"{ASKED} ({session}, {turn})", f"{ANSWERED} ({session}, {turn})"


class Memlayer:
    name = "memlayer"
    needs = ("memlayer_core",)
    embedder = "hashing"
    goal_times = 1.0  # the turns a second of LangChain's SQL history
    goal_processor = 6.0  # milliseconds

    def __init__(self, folder):
        self.memory = Memory.open(folder, embedder=self.embedder)

    def session(self, name):
        return self.memory.chat(user_id=name, session_id="s")

    def write(self, chat, asked, answered):
        chat.add_messages([Message("user", asked), Message("assistant", answered)])

    def read(self, chat):
        return chat.context(token_limit=TOKEN_LIMIT)

    async def awrite(self, chat, asked, answered):
        await chat.aadd_messages([Message("user", asked), Message("assistant", answered)])

    async def aread(self, chat):
        return await chat.acontext(token_limit=TOKEN_LIMIT)

    async def settle(self):
        await self.memory.aflush(timeout=300)

    async def everything(self, name):
        return [message.text for message in await self.session(name).ahistory()]

    async def close(self):
        await self.memory.aclose()


class WithoutRecall(Memlayer):
    name = "memlayer, without recall"
    goal_times = 2.0
    goal_processor = 4.0

    def read(self, chat):
        return chat.context("", token_limit=TOKEN_LIMIT)

    async def aread(self, chat):
        return await chat.acontext("", token_limit=TOKEN_LIMIT)


class LangChain:
    name = "LangChain SQLChatMessageHistory"
    needs = ("langchain_community", "aiosqlite")

    def __init__(self, folder):
        from langchain_community.chat_message_histories import SQLChatMessageHistory
        from langchain_core.messages import AIMessage, HumanMessage
        from sqlalchemy import create_engine
        from sqlalchemy.ext.asyncio import create_async_engine

        self.made, self.human, self.ai = SQLChatMessageHistory, HumanMessage, AIMessage
        self.engine = create_engine(f"sqlite:///{folder / 'history.sqlite3'}")
        self.aengine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'history.sqlite3'}")
        self.session("warm").add_messages([self.human("hello")])  # makes the table

    def session(self, name):
        return self.made(session_id=name, connection=self.engine)

    def asession(self, name):
        return self.made(session_id=name, connection=self.aengine, async_mode=True)

    def write(self, history, asked, answered):
        history.add_messages([self.human(asked), self.ai(answered)])

    def read(self, history):
        return history.messages

    async def awrite(self, history, asked, answered):
        await history.aadd_messages([self.human(asked), self.ai(answered)])

    async def aread(self, history):
        return await history.aget_messages()

    async def settle(self):
        pass

    async def everything(self, name):
        return [message.content for message in self.session(name).messages]

    async def close(self):
        await self.aengine.dispose()
        self.engine.dispose()


class LlamaIndex:
    name = "LlamaIndex Memory"
    needs = ("llama_index.core", "aiosqlite")

    def __init__(self, folder):
        from llama_index.core.llms import ChatMessage
        from llama_index.core.memory import Memory as LlamaMemory

        self.made, self.message = LlamaMemory, ChatMessage
        self.url = f"sqlite+aiosqlite:///{folder / 'memory.sqlite3'}"
        asyncio.run(self.awrite(self.session("warm"), "hello", "hello"))  # makes the table

    def session(self, name):
        return self.made.from_defaults(
            session_id=name, token_limit=TOKEN_LIMIT, tokenizer_fn=str.split, async_database_uri=self.url
        )

    def write(self, memory, asked, answered):
        asyncio.run(self.awrite(memory, asked, answered))

    def read(self, memory):
        return asyncio.run(memory.aget())

    async def awrite(self, memory, asked, answered):
        spoken = [self.message(role="user", content=asked), self.message(role="assistant", content=answered)]
        await memory.aput_messages(spoken)

    async def aread(self, memory):
        return await memory.aget()

    async def settle(self):
        pass

    async def everything(self, name):
        return [message.content for message in await self.session(name).aget_all()]

    async def close(self):
        pass


class LangGraph:
    name = "LangGraph SqliteSaver"
    needs = ("langgraph.checkpoint.sqlite", "aiosqlite")

    def __init__(self, folder):
        import sqlite3

        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import START, MessagesState, StateGraph

        self.human, self.ai, self.path, self.agraph = HumanMessage, AIMessage, folder / "graph.sqlite3", None
        self.plan = StateGraph(MessagesState)
        self.plan.add_node(
            "answer", lambda state: {"messages": [AIMessage(answer_to(state["messages"][-1].content))]}
        )
        self.plan.add_edge(START, "answer")
        self.connection = sqlite3.connect(self.path, check_same_thread=False)
        self.graph = self.plan.compile(checkpointer=SqliteSaver(self.connection))
        self.write(self.session("warm"), *words("warm", 0))

    def session(self, name):
        return {"configurable": {"thread_id": name}}

    def write(self, config, asked, _):
        self.graph.invoke({"messages": [self.human(asked)]}, config)

    def read(self, config):
        return self.graph.get_state(config).values["messages"]

    async def opened(self):
        if self.agraph is None:
            import aiosqlite
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            self.aconnection = await aiosqlite.connect(self.path)
            self.agraph = self.plan.compile(checkpointer=AsyncSqliteSaver(self.aconnection))
        return self.agraph

    async def awrite(self, config, asked, _):
        await self.agraph.ainvoke({"messages": [self.human(asked)]}, config)

    async def aread(self, config):
        return (await self.agraph.aget_state(config)).values["messages"]

    async def settle(self):
        pass

    async def everything(self, name):
        state = await (await self.opened()).aget_state(self.session(name))
        return [message.content for message in state.values.get("messages", ())]

    async def close(self):
        if self.agraph is not None:
            await self.aconnection.close()
        self.connection.close()


def answer_to(asked):
    return asked.replace(ASKED, ANSWERED)


OURS = (Memlayer, WithoutRecall)
PARTICIPANTS = (*OURS, LangChain, LlamaIndex, LangGraph)


class Log:
    """What was measured of one participant, in threads or in coroutines."""

    def __init__(self):
        self.write, self.read, self.errors, self.stalls = [], [], [], []
        self.seconds = self.processor = 0.0

    def summary(self, turns, lost):
        found = {
            "turns_a_second": round(turns / self.seconds, 1),
            "processor_ms": round(1000 * self.processor / turns, 2),
            "write_ms": percentiles(self.write),
            "read_ms": percentiles(self.read),
            "errors": len(self.errors),
            "first_error": self.errors[0] if self.errors else None,
            "lost": lost,
        }
        if self.stalls:
            found["stall_ms"] = percentiles(self.stalls, (50, 95, 99))
        return found


def percentiles(seconds, places=(50, 95)):
    ranked = sorted(seconds) or [float("nan")]
    found = {f"p{place}": ranked[min(len(ranked) - 1, len(ranked) * place // 100)] for place in places}
    return {name: round(1000 * value, 2) for name, value in {**found, "max": ranked[-1]}.items()}


@contextlib.contextmanager
def noted(samples, errors):
    start = time.perf_counter()
    try:
        yield
    except Exception as problem:  # noqa: BLE001  (a peer may raise anything; the first one is shown)
        errors.append(f"{type(problem).__name__}: {problem}"[:200])
    else:
        samples.append(time.perf_counter() - start)


def in_threads(participant, names, turns):
    log = Log()
    sessions = {name: participant.session(name) for name in names}
    ready = threading.Barrier(len(names) + 1)

    def converse(name):
        warm(participant, sessions[name], name, log)
        ready.wait()
        ready.wait()
        for turn in range(1, turns + 1):
            with noted(log.write, log.errors):
                participant.write(sessions[name], *words(name, turn))
            with noted(log.read, log.errors):
                participant.read(sessions[name])

    threads = [threading.Thread(target=converse, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    ready.wait()
    asyncio.run(participant.settle())
    processor = time.process_time()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    log.seconds = time.perf_counter() - start
    asyncio.run(participant.settle())
    log.processor = time.process_time() - processor
    return log


def warm(participant, session, name, log):
    with noted([], log.errors):
        participant.write(session, *words(name, 0))
        participant.read(session)


async def in_coroutines(participant, names, turns):
    log = Log()
    if hasattr(participant, "opened"):
        await participant.opened()
    make = getattr(participant, "asession", participant.session)
    sessions = {name: make(name) for name in names}

    async def begin(name):
        with noted([], log.errors):
            await participant.awrite(sessions[name], *words(name, 0))
            await participant.aread(sessions[name])

    async def converse(name):
        for turn in range(1, turns + 1):
            with noted(log.write, log.errors):
                await participant.awrite(sessions[name], *words(name, turn))
            with noted(log.read, log.errors):
                await participant.aread(sessions[name])

    await asyncio.gather(*map(begin, names))
    await participant.settle()
    ticking = asyncio.create_task(tick(log.stalls))
    start, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(converse, names))
    log.seconds = time.perf_counter() - start
    await participant.settle()
    log.processor = time.process_time() - processor
    ticking.cancel()
    return log


async def tick(stalls):
    while True:
        start = time.perf_counter()
        await asyncio.sleep(TICK)
        stalls.append(max(0.0, time.perf_counter() - start - TICK))


async def lost(participant, names, turns):
    gone = 0
    for name in names:
        kept = await participant.everything(name)
        gone += sum(text not in kept for turn in range(turns + 1) for text in words(name, turn))
    return gone


async def finish(participant, threads, coroutines, turns):
    gone = await lost(participant, threads, turns), await lost(participant, coroutines, turns)
    await participant.close()
    return gone


def measure(made, threads, coroutines, turns):
    in_thread = [f"thread-{number}" for number in range(threads)]
    in_loop = [f"coroutine-{number}" for number in range(coroutines)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        participant = made(Path(folder))
        first = in_threads(participant, in_thread, turns)
        asyncio.run(participant.settle())

        async def second():
            log = await in_coroutines(participant, in_loop, turns)
            return log, await finish(participant, in_thread, in_loop, turns)

        then, gone = asyncio.run(second())
    return {
        "threads": first.summary(threads * turns, gone[0]),
        "coroutines": then.summary(coroutines * turns, gone[1]),
    }


def judged(found):
    goals, peer = [], found.get(LangChain.name)
    for made in OURS:
        ours = found[made.name]
        wrong = sum(ours[way]["errors"] + ours[way]["lost"] for way in ours)
        goals.append(goal(f"{made.name}: errors and lost messages", wrong, at_most=0))
        for way, costs in ours.items():
            if peer is not None:
                times = costs["turns_a_second"] / max(peer[way]["turns_a_second"], 0.001)
                said = f"{made.name}: turns a second in {way}, times {LangChain.name}"
                goals.append(goal(said, times, at_least=made.goal_times))
            said = f"{made.name}: processor time of a turn in {way}, ms"
            goals.append(goal(said, costs["processor_ms"], at_most=made.goal_processor))
        said = f"{made.name}: stall of the event loop, 99th percentile, ms"
        goals.append(goal(said, ours["coroutines"]["stall_ms"]["p99"], at_most=GOAL_STALL))
    return goals


def show(result):
    print(
        f"{result['threads']} threads, then {result['coroutines']} coroutines, {result['turns']} turns each; "
        f"p50 / p95 / longest in milliseconds"
    )
    print(
        f"{'':34}{'turns/s':>9}{'processor':>11}{'write':>24}{'read':>24}{'errors':>8}{'lost':>6}  stall p99 / longest"
    )
    for name, ways in result["participants"].items():
        for way, found in ways.items():
            write, read = (
                " / ".join(f"{v:.0f}" for v in found[key].values()) for key in ("write_ms", "read_ms")
            )
            stall = found.get("stall_ms")
            said = f"{stall['p99']:.1f} / {stall['max']:.1f}" if stall else ""
            print(
                f"{name if way == 'threads' else '  ' + way:34}{found['turns_a_second']:>9.1f}{found['processor_ms']:>11.2f}"
                f"{write:>24}{read:>24}{found['errors']:>8}{found['lost']:>6}  {said}"
            )
            if found["first_error"]:
                print(f"  first error: {found['first_error']}")
    for name in result["skipped"]:
        print(f"{name}: SKIPPED, it is not installed")


def main():
    parser = options(__doc__, "8 threads, 16 coroutines, 2 turns")
    parser.add_argument("--turns", type=int, help="turns of each conversation")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="peers whose name holds one of these words")
    parser.add_argument("--embedder", default="hashing", help='of memlayer: "hashing" or "minilm"')
    asked = parser.parse_args()
    threads, coroutines, turns = (8, 16, 2) if asked.quick else (64, 200, 5)
    turns = asked.turns or turns
    Memlayer.embedder = asked.embedder

    wanted = [
        made
        for made in PARTICIPANTS
        if made in OURS or not asked.only or any(w.lower() in made.name.lower() for w in asked.only)
    ]
    present = [made for made in wanted if all(map(installed, made.needs))]
    found = {made.name: measure(made, threads, coroutines, turns) for made in present}
    result = {
        "threads": threads,
        "coroutines": coroutines,
        "turns": turns,
        "embedder": asked.embedder,
        "participants": found,
        "skipped": [made.name for made in wanted if made not in present],
        "goals": judged(found),
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
