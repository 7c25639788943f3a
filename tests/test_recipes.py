"""The recipes for other frameworks and servers, each with the real thing: only models are played by a script."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from offline import Offline
from test_examples import FOLDER, load, run
from tuned import Tuned

from memlayer_core import Memory


@pytest.mark.slow
def test_a_deep_agents_files_are_its_users_items_and_are_recalled_and_forgotten(tmp_path) -> None:
    pytest.importorskip("deepagents", reason="deepagents is not installed: pip install deepagents")
    lines = run("deep_agent", tmp_path).splitlines()
    assert lines[1:6:2] == ["    agent: Noted.", "    agent: No peanuts.", "    agent: You did not tell me."]
    assert "A search of ada's memory finds: content: The user says: I am allergic to peanuts." in lines
    assert lines[-1] == "Forgotten with ada: 1 item"


async def test_a_deep_agent_edits_lists_and_finds_files_also_without_blocking_the_loop(memory) -> None:
    pytest.importorskip("deepagents", reason="deepagents is not installed: pip install deepagents")
    from deepagents.backends import StoreBackend

    from langchain_memlayer import MemlayerStore

    of = {
        user: StoreBackend(namespace=lambda _, user=user: ("memories", user), store=MemlayerStore(memory))
        for user in ("ada", "bob")
    }
    assert (await of["ada"].awrite("/food.md", "No nuts.\nNo fish.\n")).error is None
    assert (await of["ada"].aedit("/food.md", "fish", "milk")).error is None
    read = await of["ada"].aread("/food.md")
    assert "No milk." in str(read)
    assert "/food.md" in str(await of["ada"].agrep("milk", "/"))
    assert "/food.md" in str(await of["ada"].als("/"))
    assert "/food.md" not in str(await of["bob"].als("/"))
    assert (await of["bob"].aread("/food.md")).error is not None


def exported(path: str) -> Any:
    """What a path such as `./file.py:name` stands for, as the server looks it up."""
    file, name = path.rsplit(":", 1)
    assert (FOLDER / file).is_file()
    return getattr(load(Path(file).stem), name)


@pytest.mark.slow
def test_a_langgraph_servers_configuration_names_a_store_and_a_graph_that_work(tmp_path) -> None:
    monday, friday = run("langgraph_store", tmp_path).splitlines()
    assert monday == "[monday] My parrot is called Coco. -> Noted."
    assert friday == "[friday] What is my parrot called? -> My parrot is called Coco."


async def test_servers_open_and_close_a_store_that_keeps_items(tmp_path, monkeypatch) -> None:
    """LangGraph's own command line checks the example's configuration."""
    config = pytest.importorskip("langgraph_cli.config", reason="langgraph-cli is not installed")
    langgraph_json = config.validate_config_file(FOLDER / "langgraph.json")
    from langgraph.store.base import BaseStore

    monkeypatch.setenv("MEMLAYER_DIRECTORY", str(tmp_path / "memory"))
    assert langgraph_json["env"].keys() == {"MEMLAYER_DIRECTORY"}
    assert exported(langgraph_json["graphs"]["chat"]).get_graph().nodes
    open_store = exported(langgraph_json["store"]["path"])
    async with open_store() as first, open_store() as second:  # the server opens one in each of its threads
        assert isinstance(first, BaseStore)
        await first.aput(("memories", "ada"), "parrot", {"text": "Coco"})
        assert (await second.aget(("memories", "ada"), "parrot")).value == {"text": "Coco"}
    async with open_store() as again:
        assert (await again.aget(("memories", "ada"), "parrot")).value == {"text": "Coco"}


class Server:
    """The FastAPI example as a process of its own."""

    def __init__(self, directory: Path, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url, self.directory = f"http://127.0.0.1:{port}", directory / "memory"
        own = {"PORT": str(port), "MEMLAYER_DIRECTORY": str(self.directory), "SECONDS_FOR_A_WORD": "0.5"}
        own |= environment
        self.offline = Offline(directory)
        self.log = (directory / "log").open("w+")
        command = [sys.executable, FOLDER / "fastapi_server.py"]
        own |= {**self.offline.environment, **own}
        self.process = subprocess.Popen(command, env=own, stdout=self.log, stderr=self.log)
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            try:
                health = httpx.get(f"{self.url}/health").raise_for_status().json()
            except httpx.TransportError:
                time.sleep(0.1)
            else:
                assert health == {"status": "ok", "jobs": 0, "problems": {}}
                return
        raise AssertionError(self.ended())

    def ask(self, session: str, text: str) -> Iterator[str]:
        question = {"user_id": "ada", "session_id": session, "text": text}
        with httpx.stream("POST", f"{self.url}/chat", json=question, timeout=30) as answer:
            assert answer.status_code == 200
            yield from answer.iter_text()

    def ended(self) -> str:
        """Wait for its end, and return what it wrote."""
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
        with self.log:
            self.log.seek(0)
            return self.log.read()

    def history(self, session: str) -> list[str]:
        with Memory.open(self.directory) as memory:
            assert memory.admin.status().backlog.dead == 0
            return [one.text for one in memory.chat(user_id="ada", session_id=session).history()]


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    started = Server(tmp_path)
    yield started
    started.process.kill()
    started.log.close()
    started.process.wait()
    started.log.close()


@pytest.mark.slow
@pytest.mark.postgres
def test_a_server_keeps_its_memory_where_the_environment_says(tmp_path, postgres_url: str) -> None:
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    started = Server(tmp_path, DATABASE_URL=postgres_url)
    assert "".join(started.ask("monday", "My parrot is called Coco.")) == "Your parrot is called Coco."
    started.process.terminate()
    started.ended()
    assert not started.directory.exists()
    with Memory.open(database_url=postgres_url) as memory:
        assert len(memory.chat(user_id="ada", session_id="monday").history()) == 2


@pytest.mark.slow
def test_a_server_streams_an_answer_and_loses_nothing_when_it_is_told_to_end(server) -> None:
    began = time.monotonic()
    parts = [(time.monotonic() - began, part) for part in server.ask("monday", "My parrot is called Coco.")]
    assert [part for _, part in parts] == ["Your parrot ", "is called ", "Coco."]
    assert parts[0][0] < parts[-1][0] - 0.5, "the first word comes before the last one is written"

    answer = server.ask("friday", "What is my parrot called?")
    assert next(answer) == "Your parrot "
    server.process.send_signal(signal.SIGTERM)
    assert list(answer) == ["is called ", "Coco."]
    log = server.ended()
    assert server.process.returncode in {0, -signal.SIGTERM}
    assert "Application shutdown complete" in log
    assert "Traceback" not in log
    assert server.history("friday") == ["What is my parrot called?", "Your parrot is called Coco."]
    assert server.history("monday") == ["My parrot is called Coco.", "Your parrot is called Coco."]


@pytest.mark.slow
def test_a_reader_who_leaves_loses_no_part_of_the_answer_that_was_sent(server) -> None:
    answer = server.ask("monday", "What is my parrot called?")
    assert next(answer) == "Your parrot "
    answer.close()
    time.sleep(1)
    server.process.send_signal(signal.SIGTERM)
    assert "Traceback" not in server.ended()
    question, beginning = server.history("monday")
    assert question == "What is my parrot called?"
    assert beginning.startswith("Your parrot ")


@pytest.mark.slow
async def test_the_sdks_runner_works_with_the_session_and_its_model_sees_what_was_said_before(memory) -> None:
    sdk = pytest.importorskip("agents", reason="openai-agents is not installed")
    from agents.memory import Session
    from agents.testing import ScriptedModel, assistant_message

    example = load("openai_agents_session")
    answers = ["Noted.", "Noted, too.", "To peanuts."]
    model = ScriptedModel([[assistant_message(answer)] for answer in answers])
    agent = sdk.Agent(name="helper", instructions="Be brief.", model=model)

    async def say(session_id: str, text: str) -> str:
        session = example.MemlayerSession(memory.chat(user_id="ada", session_id=session_id), token_limit=3000)
        assert isinstance(session, Session)
        config = sdk.RunConfig(call_model_input_filter=session.add_recall, tracing_disabled=True)
        result = await sdk.Runner.run(agent, text, session=session, run_config=config)
        return result.final_output

    first, second, third = "I am allergic to peanuts.", "And I live in Oslo.", "What am I allergic to?"
    assert await say("monday", first) == "Noted."
    assert await say("monday", second) == "Noted, too."
    assert await say("friday", third) == "To peanuts."
    texts = [[item["content"] for item in call.input if item.get("role") == "user"] for call in model.calls]
    instructions = model.calls[-1].system_instructions
    assert texts == [[first], [first, second], [third]]
    assert instructions.startswith('Be brief.\n\n<recalled_memory key="')
    assert "I am allergic to peanuts." in instructions
    stored = [one.text for one in await memory.chat(user_id="ada", session_id="monday").ahistory()]
    assert stored == ["I am allergic to peanuts.", "Noted.", "And I live in Oslo.", "Noted, too."]


class Ollama(ThreadingHTTPServer):
    """A server that speaks Ollama's HTTP interface and finds one fact in each conversation."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OllamaHandler)
        self.requests: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class OllamaHandler(BaseHTTPRequestHandler):
    server: Ollama

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append({"path": self.path, **body})
        words = {"value": "Elm Street", "quote": "a shop on Elm Street"}
        fact = {"op": "add", "key": "shop", **words, "messages": [1]}
        said = {"role": "assistant", "content": json.dumps({"operations": [fact]})}
        if body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            called = {"name": name, "arguments": {"operations": [fact]}}
            said |= {"content": "", "tool_calls": [{"function": called}]}
        counts = {"done": True, "done_reason": "stop", "prompt_eval_count": 321, "eval_count": 12}
        line = {"model": body["model"], "created_at": "2026-05-04T10:00:00Z", "message": said, **counts}
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.end_headers()
        self.wfile.write(json.dumps(line).encode() + b"\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def ollama() -> Iterator[Ollama]:
    with Ollama() as server:
        yield server
        server.shutdown()


@pytest.mark.slow
def test_an_ollama_model_learns_facts_and_is_held_to_the_schema(ollama) -> None:
    client = pytest.importorskip("langchain_ollama", reason="langchain-ollama is not installed")
    model = client.ChatOllama(model="qwen3:8b", base_url=ollama.url)
    settings = Tuned(extraction_idle_seconds=0, index_delay=0)
    with Memory.in_memory(extractor=model, settings=settings) as memory:
        chat = memory.chat(user_id="ada", session_id="monday")
        chat.add("user", "By the way, last year we opened a shop on Elm Street.")
        memory.flush(30)
        facts = {fact.key: fact for fact in memory.records(user_id="ada")}
        assert facts["shop"].value == "Elm Street"
        why = memory.why(facts["shop"].memory_id, user_id="ada")
        assert why.evidence[0].quote == "a shop on Elm Street"
        costs = {cost.model: cost for cost in memory.admin.costs(user_id="ada")}
        assert (costs["ChatOllama:qwen3:8b"].tokens_in, costs["ChatOllama:qwen3:8b"].tokens_out) == (321, 12)
    (request,) = ollama.requests
    assert (request["path"], request["model"]) == ("/api/chat", "qwen3:8b")
    assert "operations" in json.dumps(request.get("format") or request.get("tools"))
    assert "a shop on Elm Street" in request["messages"][-1]["content"]
