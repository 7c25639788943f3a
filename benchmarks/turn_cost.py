"""What one turn costs as its conversation grows: at 10, 100, 1,000 and 10,000 messages, in one run.

A turn is a user's message and an answer, stored as a pair with `Chat.add_messages`, and one
`Chat.context(token_limit=1500)`. Messages have about 36 tokens (memlayer's estimate, so that the run is the
same with any tokenizer at hand) in words of a Zipf-like distribution, made from a fixed seed; every length is
given the same turns. 1,500 tokens are full at 100 messages, so that from 100 on all lengths show a window of
the same size; at 10 the window is the whole history, and nothing is left to recall. The exponents are
therefore fitted from 100 on.

Each length has a directory of its own (SQLite and embedded Chroma, durability "full", the hashing embedder).
Its history is stored in bulk and indexed first. Then rounds go over all lengths in turn, so that a slow moment
of the machine meets all of them, and medians are compared:

- `add`, `context`: wall time of the call while the background worker rests; `add_busy`, `context_busy`: while
  it indexes a backlog of another user, in batches of the default size.
- `embed`: embedding the query, which a context does once. `context_net` is the context without it, and is what
  the goals are about: what an embedder costs is not ours.
- `bare_read`: the same window's rows, read by their range of keys with `sqlite3` from the same file.
- `vector_search`: the one search by vector that the context does (an exact scan for a short history, Chroma
  for a long one), repeated alone.
- `path_cpu`: processor time of the calling thread for a turn; `turn_cpu`: that of the whole process, the
  turn's share of indexing included.
- Disk flushes (`fsync`, `fdatasync`) of a turn, by the caller and in the background: counted with `strace` in
  a process of its own where it is installed. Where SQLite's log starts over, a turn has one more: so the median
  is judged, and the mean is shown beside it.

Goals: add and context at the largest length cost at most 1.3 times what they cost at 100 messages; a turn
flushes the disk at most once on the caller's path; a context costs at most ten bare reads and one vector
search.

Usage: python benchmarks/turn_cost.py [--quick] [--json] [--check]
"""

import argparse
import bisect
import contextlib
import math
import os
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import accumulate
from pathlib import Path

from goals import goal, options, tell

from memlayer_core import Memory, Message, Settings
from memlayer_core.index.neighbours import compare, index_pays, nearest  # the search of a context, alone
from memlayer_core.recall.rules.pack import most_that_fit
from memlayer_core.storage import vectors

TOKEN_LIMIT = 1500
WORDS_A_MESSAGE = 26  # the mean; about 36 tokens with what frames a message
NEVER = 86_400.0  # seconds: the worker rests until it is asked to hurry
MARK = "1000000"  # a number that no file has
BACKLOG = 96  # messages that the worker indexes while the busy samples are taken
GOAL_GROWTH = 1.3
GOAL_FLUSHES = 1.0
GOAL_READS = 10.0

FREQUENT = (  # noqa: SIM905  (words read better as prose)
    "the to and i a of you it in that is for my on was with me have but so be not this are do at we what if "
    "can just as like about they know or had your one out get time would when there think up how then good "
    "really now some him her from all want did who because them see go will work people back day make no yes "
    "more could need been into going than two after very well way also home new thing last week next first"
).split()
STARTS, VOWELS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "br", "st", "tr"), "aeiou"
SYLLABLES = [start + vowel for start in STARTS for vowel in VOWELS]


class Talk:
    """Makes messages: frequent English words first, then made-up ones, the n-th about 1/n as often."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        rare = random.Random(0)
        words = [
            *FREQUENT,
            *("".join(rare.choices(SYLLABLES, k=rare.choice((2, 2, 3)))) for _ in range(6000)),
        ]
        self.words = words
        self.weights = list(accumulate(1 / (place + 2.7) for place in range(len(words))))

    def text(self):
        length = min(120, max(3, round(self.chance.lognormvariate(math.log(WORDS_A_MESSAGE) - 0.18, 0.6))))
        top = self.weights[-1]
        picked = (self.words[bisect.bisect(self.weights, self.chance.random() * top)] for _ in range(length))
        return (" ".join(picked) + ".").capitalize()

    def pair(self):
        return [Message("user", self.text()), Message("assistant", self.text())]

    def messages(self, count):
        return [Message(("user", "assistant")[place % 2], self.text()) for place in range(count)]


class Subject:
    """A memory in a directory of its own, with conversations of one length."""

    def __init__(self, directory, length, rounds):
        self.length = length
        # A short history would be a longer one after a few rounds: each round has one of its own.
        self.users = [f"user-{number}" for number in range(rounds if length < 1000 else 1)]
        in_bulk = Settings(index_batch=500, durability="normal", index_delay=0)
        with self.opened(directory, in_bulk) as memory:
            for user in self.users:
                talk, chat = Talk(f"history of {user}"), memory.chat(user_id=user, session_id="s")
                for start in range(0, length, 1000):
                    chat.add_messages(talk.messages(min(1000, length - start)))
            memory.flush(timeout=600)
        self.memory = self.opened(directory, Settings(index_delay=NEVER))
        self.runtime = self.memory.runtime
        self.raw = sqlite3.connect(directory / "journal.sqlite3", isolation_level=None)
        self.memory.chat(user_id="warm", session_id="s").add_messages(Talk("warm").pair())
        self.memory.flush()  # the worker takes hold of Chroma

    @staticmethod
    def opened(directory, settings):
        return Memory.open(directory, embedder="hashing", tokenizer="estimate", settings=settings)

    def close(self):
        self.raw.close()
        self.memory.close()

    def chat(self, number):
        return self.memory.chat(user_id=self.users[number % len(self.users)], session_id="s")

    def take_quiet(self, number, pairs, samples):
        chat = self.chat(number)
        chat.context(token_limit=TOKEN_LIMIT)
        whole, path = time.process_time(), 0.0
        aside = 0.0  # processor time of what is measured beside the turns
        for pair in pairs:
            start = time.thread_time()
            samples["add"].append(timed(chat.add_messages, pair)[0])
            took, context = timed(chat.context, token_limit=TOKEN_LIMIT)
            path += time.thread_time() - start
            samples["context"].append(took)
            start = time.process_time()
            self.take_parts(chat, pair[0].text, context, samples)
            aside += time.process_time() - start
        self.memory.flush()
        samples["path_cpu"].append(path / len(pairs))
        samples["turn_cpu"].append((time.process_time() - whole - aside) / len(pairs))

    def take_parts(self, chat, query, context, samples):
        shown = len(context.window)
        limit = self.runtime.settings.recall_candidates + most_that_fit(TOKEN_LIMIT // 4)
        reach = chat.scope.reach()
        samples["bare_read"].append(self.bare_read(chat.scope, shown))
        took, vector = timed(self.runtime.embedder.embed_query, query)
        samples["embed"].append(took)
        samples["context_net"].append(samples["context"][-1] - took)
        overview = self.runtime.db.read(vectors.overview, reach)
        if index_pays(self.runtime, overview):
            took, _ = timed(nearest, self.runtime, reach, vector, overview, limit)
        else:
            took, _ = timed(self.runtime.db.read, compare, self.runtime, reach, vector, limit)
        samples["vector_search"].append(took)

    def bare_read(self, scope, shown):
        row = self.raw.execute(
            "SELECT number, next_seq FROM memlayer_sessions WHERE lane = ?", [scope.session_lane]
        ).fetchone()
        last = (row[0] << 32 | row[1]) - 1
        query = "SELECT * FROM memlayer_messages WHERE key BETWEEN ? AND ? ORDER BY key"
        took, rows = timed(lambda: self.raw.execute(query, [last - shown + 1, last]).fetchall())
        assert len(rows) == shown
        return took

    def take_busy(self, number, pairs, samples):
        """Measure while the worker indexes what somebody else said, as long as it does."""
        chat = self.chat(number)
        other = self.memory.chat(user_id="somebody else", session_id=str(number))
        other.add_messages(Talk(f"backlog {number}").messages(BACKLOG))
        flushing = threading.Thread(target=self.memory.flush)
        flushing.start()
        for pair in pairs:
            added = timed(chat.add_messages, pair)[0]
            asked = timed(chat.context, token_limit=TOKEN_LIMIT)[0]
            if not flushing.is_alive():
                break
            samples["add_busy"].append(added)
            samples["context_busy"].append(asked)
        flushing.join()
        self.memory.flush()


def timed(work, *args, **kwargs):
    start = time.perf_counter()
    answer = work(*args, **kwargs)
    return time.perf_counter() - start, answer


MEASURED = (
    *("add", "context", "add_busy", "context_busy", "context_net", "embed", "bare_read", "vector_search"),
    *("path_cpu", "turn_cpu"),
)


def measure(lengths, rounds, turns):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        subjects = [Subject(Path(folder, str(length)), length, rounds) for length in lengths]
        samples = {length: {name: [] for name in MEASURED} for length in lengths}
        for number in range(rounds):
            talk = Talk(f"round {number}")  # the same turns at each length
            quiet, busy = ([talk.pair() for _ in range(turns)] for _ in range(2))
            for subject in subjects if number % 2 else reversed(subjects):
                subject.take_quiet(number, quiet, samples[subject.length])
                subject.take_busy(number, busy, samples[subject.length])
        for subject in subjects:
            subject.close()
    return {
        length: {name: 1000 * statistics.median(taken or [math.nan]) for name, taken in of_one.items()}
        for length, of_one in samples.items()
    }


def flushes(turns):
    """Count a turn's disk flushes: by the caller, and in the background. None where it cannot be done."""
    tracer = shutil.which("strace")
    if tracer is None:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trace = Path(folder, "trace")
        command = [tracer, "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        child = [sys.executable, __file__, "--traced", str(Path(folder, "memory")), "--turns", str(turns)]
        ended = subprocess.run([*command, *child], capture_output=True, text=True, check=False)
        if ended.returncode:
            return None
        lines = trace.read_text().splitlines()
    calls = [line.split(maxsplit=1) for line in lines if re.search(r"(fsync|fdatasync)\(\d", line)]
    caller = next(thread for thread, call in calls if MARK in call)
    on_path, behind, begun = [], 0, False
    for thread, call in calls:
        if thread == caller and MARK in call:
            on_path.append(0)
            begun = True
        elif begun and thread == caller:
            on_path[-1] += 1
        elif begun:
            behind += 1
    on_path = on_path[:turns]  # the last mark stands behind the last turn
    return {
        "path": statistics.median(on_path),
        "path_mean": statistics.mean(on_path),
        "background_mean": behind / turns,
    }


def traced(directory, turns):
    """Do some turns, each behind a mark that a tracer sees: a flush of a file that is not open."""

    def mark():
        with contextlib.suppress(OSError):
            os.fsync(int(MARK))

    settings = Settings()
    with Memory.open(directory, embedder="hashing", tokenizer="estimate", settings=settings) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add_messages(Talk("history").messages(100))
        memory.flush()
        pairs = [Talk(f"turn {number}").pair() for number in range(turns)]
        for pair in pairs:
            mark()
            chat.add_messages(pair)
            chat.context(token_limit=TOKEN_LIMIT)
        mark()
        memory.flush()


def exponent(lengths, costs):
    """Return the slope of log(cost) over log(length): 0 is constant, 1 is in proportion."""
    return statistics.linear_regression([math.log(n) for n in lengths], [math.log(c) for c in costs]).slope


def judged(costs, flushed):
    """Return each goal with what was measured for it."""
    lengths = sorted(costs)
    last, base = lengths[-1], 100
    growth = {name: costs[last][name] / costs[base][name] for name in ("add", "context_net")}
    most = max(
        (costs[n]["context_net"] - costs[n]["vector_search"]) / costs[n]["bare_read"]
        for n in lengths
        if n >= base
    )
    # "At most 10 x the bare indexed read plus one vector search" can be read in two ways: both are judged.
    together = max(
        costs[n]["context_net"] / (costs[n]["bare_read"] + costs[n]["vector_search"])
        for n in lengths
        if n >= base
    )
    goals = [
        goal(f"add at {last:,} messages, times that at {base}", growth["add"], at_most=GOAL_GROWTH),
        goal(
            f"context at {last:,} messages, times that at {base}", growth["context_net"], at_most=GOAL_GROWTH
        ),
        goal("context, times a bare read plus a vector search", together, at_most=GOAL_READS),
        goal("context without its vector search, in bare reads", most, at_most=GOAL_READS),
    ]
    if flushed is not None:
        goals.append(
            goal("disk flushes of a turn, on the caller's path", flushed["path"], at_most=GOAL_FLUSHES)
        )
    return goals


def show(result):
    names = MEASURED
    print(
        f"Milliseconds, medians; context of {TOKEN_LIMIT} tokens; mean message {result['mean_tokens']} tokens"
    )
    print(f"{'messages':>14}" + "".join(f"{int(length):>10,}" for length in result["lengths"]) + "  exponent")
    for name in names:
        row = "".join(f"{result['lengths'][length][name]:>10.3f}" for length in result["lengths"])
        print(f"{name:>14}{row}{result['exponents'][name]:>10.2f}")
    flushed = result["flushes_a_turn"]
    if flushed is None:
        print("Disk flushes a turn: not measured (strace is not installed)")
    else:
        print(
            f"Disk flushes a turn: {flushed['path']:g} by the caller (mean {flushed['path_mean']:.2f}), "
            f"{flushed['background_mean']:.2f} in the background"
        )


def main():
    parser = options(__doc__, "lengths to 1,000 and few rounds")
    parser.add_argument("--rounds", type=int, help="how often all lengths are measured")
    parser.add_argument("--turns", type=int, default=16, help="turns of a round")
    parser.add_argument("--traced", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.traced:
        traced(asked.traced, asked.turns)
        return
    lengths = [10, 100, 1000] if asked.quick else [10, 100, 1000, 10_000]
    costs = measure(lengths, asked.rounds or (2 if asked.quick else 8), asked.turns)
    flushed = flushes(20)
    compared = [length for length in lengths if length >= 100]
    tokens = [message_tokens(message) for message in Talk("sample").messages(2000)]
    result = {
        "token_limit": TOKEN_LIMIT,
        "mean_tokens": round(statistics.mean(tokens), 1),
        "lengths": {
            str(n): {name: round(value, 4) for name, value in of_one.items()} for n, of_one in costs.items()
        },
        "exponents": {
            name: round(exponent(compared, [costs[n][name] for n in compared]), 3) for name in MEASURED
        },
        "flushes_a_turn": flushed,
        "goals": judged(costs, flushed),
    }
    tell(result, asked, show)


def message_tokens(message):
    from memlayer_core.models.tokens import token_counter

    return token_counter("estimate").message(message)


if __name__ == "__main__":
    main()
