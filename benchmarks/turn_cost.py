"""What one turn costs the core when a user has said 100, 1,000, 10,000 and 100,000 messages, in one run.

A turn is a user's message and an answer, stored as a pair with `Chat.add_messages`, and one `Chat.context(question,
token_limit=1500)`. Messages have about 40 tokens (memlayer's estimate, so that the run is the same with any tokenizer
at hand) in words of a Zipf-like distribution, made from a fixed seed, and each ends with the same words. They are in
sessions of 1,000, so that all of them are in the user's reach and most are outside of the window.

Each number has a directory of its own (SQLite, embedded Chroma, durability "full", the hashing embedder). Its history
is stored in bulk and indexed first; the worker rests while turns are measured. Then rounds go over all of them, so that
a slow moment of the machine meets all, and medians are told, in milliseconds of processor time, with one thread for BLAS:

- `add`: of the calling thread, for a pair.
- `rare`, `common`, `message`: of the calling thread, for the context of a question with words of one message, with words
  that every message has, and of a whole message.
- `all`: of all threads, for a pair, a context, and the pair's share of the indexing.

Disk flushes (`fsync`, `fdatasync`) while a turn is answered, and by its indexing afterwards, are counted with `strace` in a
process of its own where it is installed. Where SQLite's log starts over, a turn has one more: so the median is judged, and the
mean is shown beside it.

Goals: a pair at most 1 ms; a context at most 4, 8 and 15 ms with 1,000, 10,000 and 100,000 messages, whatever the
question; at most one disk flush before a turn is answered.

Usage: python benchmarks/turn_cost.py [--pause SECONDS] [--quick] [--json] [--check]
"""

import argparse
import bisect
import contextlib
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy starts its threads

from goals import goal, options, tell

from memlayer_core import Memory, Message, Settings

TOKEN_LIMIT = 1500
SESSION = 1000  # messages
WORDS_A_MESSAGE = 26  # the mean; about 36 tokens with what frames a message
EVERYWHERE = "So says the doctor in Tokyo."  # the end of every message
NEVER = 86_400.0  # seconds: the worker rests until it is asked to hurry
MARK = "1000000"  # a number that no file has
GOAL_ADD = 1.0
GOALS_CONTEXT = {1_000: 4.0, 10_000: 8.0, 100_000: 15.0}
GOAL_FLUSHES = 1.0
QUESTIONS = ("rare", "common", "message")
MEASURED = ("add", *QUESTIONS, "all")

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
    """A memory in a directory of its own, in which one user has said so many messages."""

    def __init__(self, directory, number):
        talk = Talk("history")
        in_bulk = Settings(durability="normal")
        with self.opened(directory, in_bulk) as memory:
            for start in range(0, number, SESSION):
                chat = memory.chat(user_id="ada", session_id=f"s{start // SESSION}")
                messages = talk.messages(min(SESSION, number - start))
                chat.add_messages([Message(one.role, f"{one.text} {EVERYWHERE}") for one in messages])
            memory.flush(timeout=1200)
            self.texts = [message.text for message in chat.history()]
            self.session = chat.scope.session_id
        self.memory = self.opened(directory, Settings())
        self.chat = self.memory.chat(user_id="ada", session_id=self.session)
        self.memory.chat(user_id="warm", session_id="s").add_messages(talk.pair())
        self.memory.flush()  # the worker takes hold of the index

    @staticmethod
    def opened(directory, settings):
        return Memory.open(directory, embedder="hashing", tokenizer="estimate", settings=settings)

    def questions(self, chance, pair):
        """Return one question of each kind; of what the user said, the rarest words are the longest here."""
        words = sorted(
            chance.choice(self.texts).removesuffix(EVERYWHERE).strip(". ").lower().split(), key=len
        )
        return {
            "rare": f"Where is {' '.join(words[-3:])}?",
            "common": "Which doctor in Tokyo?",
            "message": pair[0].text,
        }

    def take(self, number, pairs, samples, pause):
        chance = random.Random(number)
        for question in self.questions(chance, pairs[0]).values():
            self.chat.context(question, token_limit=TOKEN_LIMIT)
        whole, asked = time.process_time(), 0.0
        for pair in pairs:
            samples["add"].append(spent(self.chat.add_messages, pair))
            costs = {
                kind: spent(self.chat.context, question, token_limit=TOKEN_LIMIT)
                for kind, question in self.questions(chance, pair).items()
            }
            asked += sum(costs.values()) - costs["message"]  # a turn has one context
            for kind, cost in costs.items():
                samples[kind].append(cost)
            time.sleep(pause)
        self.memory.flush()
        samples["all"].append((time.process_time() - whole - asked) / len(pairs))


def spent(work, *args, **kwargs):
    """Return the processor time of this thread, in seconds."""
    start = time.thread_time()
    work(*args, **kwargs)
    return time.thread_time() - start


def measure(numbers, rounds, turns, pause):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        subjects = {number: Subject(Path(folder, str(number)), number) for number in numbers}
        samples = {number: {name: [] for name in MEASURED} for number in numbers}
        for place in range(rounds):
            talk = Talk(f"round {place}")  # the same turns for each
            pairs = [talk.pair() for _ in range(turns)]
            for number, subject in subjects.items() if place % 2 else reversed(subjects.items()):
                subject.take(place, pairs, samples[number], pause)
        for subject in subjects.values():
            subject.memory.close()
    return {
        number: {name: 1000 * statistics.median(taken) for name, taken in of_one.items()}
        for number, of_one in samples.items()
    }


def flushes(turns):
    """Count a turn's disk flushes: before it is answered, and by its indexing. None where it cannot be done."""
    tracer = shutil.which("strace")
    if tracer is None:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trace = Path(folder, "trace")
        command = [tracer, "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        child = [sys.executable, __file__, "--traced", str(Path(folder, "memory")), "--turns", str(turns)]
        ended = subprocess.run([*command, *child], capture_output=True, text=True, check=False)
        if ended.returncode:
            return None
        lines = trace.read_text().splitlines()
    calls = [line for line in lines if re.search(r"(fsync|fdatasync)\(\d", line)]
    on_path, behind, inside = [], 0, False
    for call in calls:
        if MARK in call:
            inside = not inside
            on_path += [0] * inside
        elif inside:
            on_path[-1] += 1
        elif on_path:
            behind += 1
    return {
        "path": statistics.median(on_path),
        "path_mean": statistics.mean(on_path),
        "background_mean": behind / turns,
    }


def traced(directory, turns):
    """Do some turns, each between two marks that a tracer sees: flushes of a file that is not open."""

    def mark():
        with contextlib.suppress(OSError):
            os.fsync(int(MARK))

    with Subject.opened(directory, Settings()) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        chat.add_messages(Talk("history").messages(100))
        memory.flush()
        time.sleep(1)  # the worker's checkpoint is not part of a turn
        pairs = [Talk(f"turn {number}").pair() for number in range(turns)]
        for pair in pairs:
            mark()
            chat.add_messages(pair)
            chat.context(token_limit=TOKEN_LIMIT)
            mark()
        memory.flush()


def judged(costs, flushed):
    """Return each goal with what was measured for it."""
    goals = [
        goal(f"add with {number:,} messages, ms", of_one["add"], at_most=GOAL_ADD)
        for number, of_one in costs.items()
    ]
    goals += [
        goal(f"context with {number:,} messages, {kind}, ms", costs[number][kind], at_most=limit)
        for number, limit in GOALS_CONTEXT.items()
        if number in costs
        for kind in QUESTIONS
    ]
    if flushed is not None:
        goals.append(goal("disk flushes before a turn is answered", flushed["path"], at_most=GOAL_FLUSHES))
    return goals


def show(result):
    print(f"Milliseconds of processor time, medians; contexts of {TOKEN_LIMIT} tokens")
    print(f"{'messages':>12}" + "".join(f"{int(number):>10,}" for number in result["messages"]))
    for name in MEASURED:
        print(f"{name:>12}" + "".join(f"{of_one[name]:>10.2f}" for of_one in result["messages"].values()))
    flushed = result["flushes_a_turn"]
    if flushed is None:
        print("Disk flushes a turn: not measured (strace is not installed)")
    else:
        print(
            f"Disk flushes a turn: {flushed['path']:g} before it is answered (mean {flushed['path_mean']:.2f}), "
            f"{flushed['background_mean']:.2f} by its indexing"
        )


def main():
    parser = options(__doc__, "100 and 1,000 messages and few rounds")
    parser.add_argument("--rounds", type=int, help="how often all are measured")
    parser.add_argument("--turns", type=int, default=16, help="turns of a round")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds behind a turn, in which the worker does its part"
    )
    parser.add_argument("--traced", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.traced:
        traced(asked.traced, asked.turns)
        return
    numbers = [100, 1000] if asked.quick else [100, *GOALS_CONTEXT]
    costs = measure(numbers, asked.rounds or (2 if asked.quick else 6), asked.turns, asked.pause)
    flushed = flushes(asked.turns if asked.quick else 20)
    result = {
        "token_limit": TOKEN_LIMIT,
        "messages": {
            str(number): {name: round(value, 4) for name, value in of_one.items()}
            for number, of_one in costs.items()
        },
        "flushes_a_turn": flushed,
        "goals": judged(costs, flushed),
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
