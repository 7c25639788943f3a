"""What choosing the window costs as a session grows: from 100 messages to 100,000, in one run.

A conversation of turns: a question, every third time two parallel tool calls with their results, now and then
a result of 8,000 characters, and an answer; made from a fixed seed. Each length has a memory of its own in a
directory (SQLite), without recall, so that `Chat.context` does nothing but choose the window; a hundred
messages cost more than the limit of 1,500 tokens. Then rounds go over all lengths in turn: one more turn is
stored, and each policy is asked for its window; medians are compared. A session's window is chosen once before,
so that where it begins is known, as in any conversation that has grown.

Peers, on the same messages held in a list, as long as a call stays under two seconds: LangChain's
`trim_messages` with its approximate counter, and LlamaIndex's `ChatMemoryBuffer.get` with the same count.

Goal: each policy's window from the longest session costs at most 1.3 times what it costs from 100 messages.

Usage: python benchmarks/window.py [--quick] [--json] [--check]
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

from goals import goal, installed, options, tell

from memlayer_core import MaxMessages, MaxRounds, MaxTokens, Memory, Message, Settings, ToolCall

TOKEN_LIMIT = 1500
GOAL_GROWTH = 1.3
PATIENCE = 2.0  # seconds
POLICIES = {
    "max_tokens": MaxTokens(TOKEN_LIMIT),
    "max_messages": MaxMessages(10),
    "max_rounds": MaxRounds(10),
    "all three": (MaxTokens(TOKEN_LIMIT), MaxMessages(10), MaxRounds(10)),
}
WORDS = "we then asked for the map of an old town near that river and found out how far it was".split()  # noqa: SIM905


class Talk:
    """Makes turns without end."""

    def __init__(self):
        self.chance = random.Random(7)
        self.turns = 0

    def text(self, words):
        return " ".join(self.chance.choices(WORDS, k=words))

    def turn(self):
        self.turns += 1
        said = [Message("user", self.text(25))]
        if self.turns % 3 == 0:
            calls = tuple(ToolCall(f"call-{self.turns}-{place}", "look", '{"at": "map"}') for place in (1, 2))
            said.append(Message("assistant", tool_calls=calls))
            sizes = 2000 if self.turns % 30 == 0 else 40, 40
            said += [
                Message("tool", self.text(size), tool_call_id=call.id, name="look")
                for call, size in zip(calls, sizes, strict=True)
            ]
        return [*said, Message("assistant", self.text(30))]


class Memlayer:
    """A session of one length in a directory of its own."""

    def __init__(self, folder, length):
        settings = Settings(recall_tokens=0, durability="normal")
        self.memory = Memory.open(folder, embedder="hashing", tokenizer="estimate", settings=settings)
        self.chat = self.memory.chat(user_id="u", session_id="s")
        self.talk = Talk()
        told = 0
        while told < length:
            batch = []
            while len(batch) < 1000 and told + len(batch) < length:
                batch += self.talk.turn()
            told += len(batch)
            self.chat.add_messages(batch)
        for policy in POLICIES.values():
            self.chat.context("now?", policy=policy)
        time.sleep(0.2)  # the worker notes where the windows begin

    def round(self, samples):
        self.chat.add_messages(self.talk.turn())
        for name, policy in POLICIES.items():
            samples[name].append(timed(self.chat.context, "now?", policy=policy))


def timed(work, *args, **kwargs):
    start = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - start


def measure(lengths, rounds):
    samples = {length: {name: [] for name in POLICIES} for length in lengths}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        subjects = {length: Memlayer(Path(folder, str(length)), length) for length in lengths}
        for number in range(rounds):
            for length in lengths if number % 2 else reversed(lengths):
                subjects[length].round(samples[length])
        for subject in subjects.values():
            subject.memory.close()
    return {
        length: {name: statistics.median(taken) for name, taken in of_one.items()}
        for length, of_one in samples.items()
    }


def trim_messages(messages):
    from langchain_core.messages.utils import count_tokens_approximately, trim_messages

    from langchain_memlayer import from_core

    said = [from_core(message) for message in messages]
    return lambda: trim_messages(
        said, max_tokens=TOKEN_LIMIT, token_counter=count_tokens_approximately, start_on="human"
    )


def chat_memory_buffer(messages):
    from llama_index.core.memory import ChatMemoryBuffer

    from llamaindex_memlayer import from_core

    return ChatMemoryBuffer.from_defaults(
        chat_history=[from_core(message) for message in messages],
        token_limit=TOKEN_LIMIT,
        tokenizer_fn=lambda text: range(len(text) // 4),
    ).get


PEERS = {
    "LangChain trim_messages": ("langchain_core", trim_messages),
    "LlamaIndex ChatMemoryBuffer": ("llama_index.core", chat_memory_buffer),
}


def peers(lengths):
    """Return seconds by peer and length, None from the length on at which it takes too long."""
    found = {}
    for name, (module, made) in PEERS.items():
        if not installed(module):
            continue
        found[name], patient = {}, True
        for length in lengths:
            talk, said = Talk(), []
            while len(said) < length and patient:
                said += talk.turn()
            choose = made(said) if patient else None
            taken = [timed(choose) for _ in range(3)] if choose else None
            found[name][length] = statistics.median(taken) if taken else None
            patient = patient and found[name][length] < PATIENCE
    return found


def show(result):
    print(f"Milliseconds to choose a window of {TOKEN_LIMIT} tokens, 10 messages or 10 rounds; medians")
    lengths = list(result["milliseconds"])
    print(f"{'messages':>28}" + "".join(f"{int(length):>11,}" for length in lengths))
    for name in POLICIES:
        print(f"{name:>28}" + "".join(f"{result['milliseconds'][n][name]:>11.2f}" for n in lengths))
    for name, taken in result["peers"].items():
        print(
            f"{name:>28}" + "".join(f"{'-' if v is None else format(v, '.2f'):>11}" for v in taken.values())
        )
    for name in PEERS.keys() - result["peers"].keys():
        print(f"{name}: SKIPPED, it is not installed")


def in_milliseconds(of_one):
    return {str(key): None if taken is None else round(1000 * taken, 3) for key, taken in of_one.items()}


def main():
    parser = options(__doc__, "lengths to 1,000 and few rounds")
    parser.add_argument("--rounds", type=int, help="how often all lengths are measured")
    asked = parser.parse_args()
    lengths = [100, 1000] if asked.quick else [100, 1000, 10_000, 100_000]
    costs = measure(lengths, asked.rounds or (5 if asked.quick else 60))
    last = lengths[-1]
    result = {
        "milliseconds": {str(length): in_milliseconds(of_one) for length, of_one in costs.items()},
        "peers": {name: in_milliseconds(taken) for name, taken in peers(lengths).items()},
        "goals": [
            goal(
                f"{name}: the window from {last:,} messages, times that from {lengths[0]}",
                costs[last][name] / costs[lengths[0]][name],
                at_most=GOAL_GROWTH,
            )
            for name in POLICIES
        ],
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
