"""What a process pays for its memory: processor time until the first answer, and resident memory, step by step.

A fresh process does one step after the other, and each step tells the processor time that it took (`time.process_time`,
all threads) and by how much the resident memory grew (`VmRSS` in `/proc`, so this runs on Linux). The process is run twice,
and the second run is measured: it finds Python's byte code, as an installed package has it, even where an environment
variable forbids to write that:

- `python`: the interpreter;
- `import`: `from memlayer_core import Memory`, with SQLAlchemy, numpy and pydantic;
- `open`: `Memory.open` of a new directory;
- `warm`: `memory.admin.warm`, which loads the embedding model: MiniLM if it is at hand, else hashing, which has none;
- `first answer`: two messages of two sessions, and the first context with recall. With it, a token counter's tables are
  loaded, if tiktoken has them;
- `indexed`: `flush`: the background worker has indexed the messages, and told Chroma, which is loaded for it;
- `1,000 users`: a message and a context of each;
- `langchain`: the import of `create_agent` and of memlayer's middleware; `llama_index`: of an agent and a memory.

Goals: the first answer of a fresh process within 1.5 s of processor time; 1,000 users add at most 96 MB.

Usage: python benchmarks/footprint.py [--quick] [--json] [--check] [--embedder hashing]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from goals import goal, options, tell

GOAL_SECONDS = 1.5
GOAL_MEGABYTES = 96
USERS = 1000
UNTIL_ANSWER = "python", "import", "open", "warm", "first answer"


def resident():
    """Return the resident memory of this process in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


class Steps:
    """What the steps of this process took."""

    def __init__(self):
        self.taken, self.seconds, self.megabytes = {}, 0.0, 0.0
        self.end("python")

    def end(self, name):
        seconds, megabytes = time.process_time(), resident()
        self.taken[name] = {
            "seconds": round(seconds - self.seconds, 3),
            "megabytes": round(megabytes - self.megabytes, 1),
        }
        self.seconds, self.megabytes = seconds, megabytes


def child(folder, embedder, users):
    """Do all steps in this process, and print what they took."""
    steps = Steps()
    from memlayer_core import Memory

    steps.end("import")
    memory = Memory.open(folder, embedder=embedder)
    steps.end("open")
    memory.admin.warm()
    steps.end("warm")
    memory.chat(user_id="ada", session_id="in-may").add("user", "I like pears more than plums.")
    chat = memory.chat(user_id="ada", session_id="today")
    chat.add("user", "Which fruit do I like?")
    chat.context()
    steps.end("first answer")
    memory.flush()
    steps.end("indexed")
    for number in range(users):
        chat = memory.chat(user_id=f"user-{number}", session_id="s")
        chat.add("user", f"I have {number} pears, and what do I like?")
        chat.context()
    memory.flush()
    steps.end(f"{users:,} users")
    import langchain.agents

    import langchain_memlayer

    assert langchain.agents.create_agent
    assert langchain_memlayer.MemlayerMiddleware
    steps.end("langchain")
    import llama_index.core.agent.workflow

    import llamaindex_memlayer

    assert llama_index.core.agent.workflow.FunctionAgent
    assert llamaindex_memlayer.MemlayerMemory
    steps.end("llama_index")
    identity = memory.admin.status().embedder
    memory.close()
    print(json.dumps({"embedder": identity, "steps": steps.taken}))


def measure(embedder, *users):
    """Run the steps in a process for each number of users, and return what the last one took. The first one compiles."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        compiled = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        compiled.pop("PYTHONDONTWRITEBYTECODE", None)
        for run, count in enumerate(users):
            command = [sys.executable, __file__, "--child", f"{folder}/{run}", embedder, str(count)]
            ended = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
    return json.loads(ended.stdout.splitlines()[-1])


def judged(found):
    steps = found["steps"]
    seconds = sum(steps[name]["seconds"] for name in UNTIL_ANSWER)
    users = next(step for name, step in steps.items() if name.endswith("users"))
    return [
        goal("processor time until the first answer, seconds", seconds, at_most=GOAL_SECONDS),
        goal("what the users add, megabytes", users["megabytes"], at_most=GOAL_MEGABYTES),
    ]


def show(result):
    print(f"embedder {result['embedder']}\n{'':16}{'seconds':>9}{'MB':>8}{'MB in all':>11}")
    whole = 0.0
    for name, step in result["steps"].items():
        whole += step["megabytes"]
        print(f"{name:16}{step['seconds']:>9.2f}{step['megabytes']:>8.1f}{whole:>11.1f}")


def main():
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = options(__doc__, "20 users, and no process before it that compiles")
    parser.add_argument("--embedder", default="auto", help='"minilm", "hashing", or MiniLM if it is at hand')
    asked = parser.parse_args()
    found = measure(asked.embedder, *((20,) if asked.quick else (1, USERS)))
    tell({**found, "goals": judged(found)}, asked, show)


if __name__ == "__main__":
    main()
