"""Two processes share one memory: the first is killed after its message was stored, the second finds the message.

Run it: `python examples/two_processes.py`. No key and no network is needed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from tempfile import TemporaryDirectory

from memlayer_core import Memory


def first(directory: str) -> None:
    """Store a message, say so, and live until somebody ends the process."""
    memory = Memory.open(
        directory, embedder="hashing"
    )  # leave `embedder` out for MiniLM, which is downloaded once
    memory.chat(user_id="ada", session_id="monday").add("user", "I am allergic to peanuts.")
    print("stored", flush=True)  # `add` has returned: the message is on disk
    time.sleep(600)


def second(directory: str) -> None:
    """Ask in another session of the same user."""
    with Memory.open(directory, embedder="hashing") as memory:
        chat = memory.chat(user_id="ada", session_id="friday")
        chat.add("user", "Which food am I allergic to?")
        print("The second process gives its model:\n")
        print(chat.context(token_limit=1000).messages[-1].text)


def main() -> None:
    """Start the first process, kill it, and be the second one."""
    with TemporaryDirectory() as directory:
        command = [sys.executable, __file__, directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            print("The first process says:", process.stdout.readline().strip())
            process.kill()
        print("The first process was killed.")
        second(directory)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        first(sys.argv[1])
    else:
        main()
