"""What a page of `memlayer ui` costs in a memory of 10,000 records, messages and users.

One user has that many records, each with its vector, every fifth with a key, and one session of that many messages. Nothing
is learned from the messages. The memory is then opened to look at, as the command opens it, and a browser's requests are sent
to the application in this process, first and last pages of each list. Each is asked for several times; the smallest
processor time counts, of all threads, with what the sending itself costs.

Goal: no page costs more than 100 ms of processor.

Usage: python benchmarks/pages.py [--quick] [--json] [--check]
"""

import tempfile
import time
from pathlib import Path

from goals import goal, options, tell
from starlette.testclient import TestClient

from memlayer_core import Memory, Message, Settings
from memlayer_core.cli.app import memory_to_look_at
from memlayer_core.ui import ui_app

GOAL_MS = 100
ROUNDS = 5
TYPES = ("semantic", "episodic", "preference")


def fill(place, size):
    settings = Settings(index_delay=3600, durability="normal", episodes=False)
    with Memory.open(place, embedder="hashing", settings=settings) as memory:
        chat = memory.chat(user_id="ada", session_id="long")
        for number in range(size):
            fact = {"key": f"topic {number}", "value": f"value {number}"} if number % 5 == 0 else {}
            chat.remember(
                f"Note {number}: Ada met somebody from town {number * 7919 % 1009}.",
                type=TYPES[number % 3],
                **fact,
            )
        roles = ("user", "assistant")
        chat.add_messages(
            [Message(roles[n % 2], f"Message {n}: I prefer town {n % 97} to others.") for n in range(size)]
        )
        for number in range(size):
            memory.chat(user_id=f"user {number}", session_id="one").add("user", "Hello.")
        memory.flush()


def pages(size):
    """Return the addresses of the pages by their names."""
    ada, end = "/user?user=ada&part=", size - size % 50 - 50
    return {
        "users": "/",
        "users, the last": f"/?offset={end}",
        "users, found": "/?find=user+12",
        "profile": f"{ada}profile",
        "records": f"{ada}records",
        "records, the last": f"{ada}records&offset={end}",
        "records of a type": f"{ada}records&kind=semantic",
        "records, past too": f"{ada}records&state=past+too",
        "episodes": f"{ada}episodes",
        "wishes": f"{ada}wishes",
        "wishes, the last": f"{ada}wishes&offset={end // 2}",
        "ledger": f"{ada}ledger",
        "ledger, the last": f"{ada}ledger&offset={end // 5}",
        "sessions": f"{ada}sessions",
        "record": "/record?user=ada&record=ada_mem_001",
        "session": "/session?user=ada&session=long",
        "session, the last": f"/session?user=ada&session=long&offset={end}",
        "turns": "/session?user=ada&session=long&part=turns",
    }


def measure(place, size):
    with memory_to_look_at(place, None) as memory:
        app = ui_app(memory, token="token", port=80, hosts=["testserver"])
        browser = TestClient(app, base_url="http://testserver")
        browser.get("/?token=token").raise_for_status()
        costs = {}
        for name, address in pages(size).items():
            costs[name] = min(ask(browser, address) for _ in range(ROUNDS))
        return costs


def ask(browser, address):
    began = time.process_time()
    browser.get(address).raise_for_status()
    return 1000 * (time.process_time() - began)


def show(result):
    print(f"Processor time of a page, with {result['size']:,} records, messages and users:")
    for name, cost in result["milliseconds"].items():
        print(f"{cost:8.1f} ms  {name}")


def main():
    asked = options(__doc__, "500 of each").parse_args()
    size = 500 if asked.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "memory", size)
        costs = measure(Path(folder) / "memory", size)
    goals = [goal("the dearest page, in ms of processor", max(costs.values()), at_most=GOAL_MS)]
    tell({"size": size, "milliseconds": costs, "goals": goals}, asked, show)


if __name__ == "__main__":
    main()
