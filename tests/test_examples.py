"""Every example runs as it is, offline, and prints what it says that it shows."""

import importlib.util
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from offline import Offline

from memlayer_core import Memory, WindowMemory
from memlayer_core.testing import MessageStoreConformance

FOLDER = Path(__file__).parents[1] / "examples"
SHORT = (
    "langchain_agent",
    "llamaindex_chat_engine",
    "other_memory",
    "plain_chat",
    "redis_store",
    "two_processes",
)
LONG = {"deep_agent": 90, "fastapi_server": 90, "langgraph_store": 85, "openai_agents_session": 150}
LINES = {**dict.fromkeys(SHORT, 60), **LONG}
"""Of each example, at the most; one is a whole adapter."""
REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")


def run(name: str, directory: Path) -> str:
    """Run an example in an empty directory, and return what it prints."""
    offline = Offline(directory)
    here = directory / "here"
    here.mkdir()
    options = {"env": offline.environment, "cwd": here, "capture_output": True, "text": True, "timeout": 120}
    ended = subprocess.run([sys.executable, FOLDER / f"{name}.py"], **options)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert offline.tried == []
    assert list(here.iterdir()) == []
    return ended.stdout


def test_each_example_is_short_and_has_a_test() -> None:
    files = {file.stem: len(file.read_text(encoding="utf-8").splitlines()) for file in FOLDER.glob("*.py")}
    assert set(files) == set(LINES)
    assert {name: lines for name, lines in files.items() if lines > LINES[name]} == {}


@pytest.mark.parametrize("name", sorted(LINES))
def test_each_example_says_how_to_run_it_and_where_a_real_model_goes(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert f"Run it: `python examples/{name}.py`" in text
    assert "Your model goes here" in text or name == "two_processes"


def test_a_plain_chat_recalls_the_users_own_words_in_another_session(tmp_path: Path) -> None:
    *_, own, others = run("plain_chat", tmp_path).strip().split("\n\n")
    assert own.startswith("[friday] ada: What am I allergic to?\n")
    assert "recalled: I am allergic to peanuts." in own
    assert own.endswith("assistant: To peanuts.")
    assert others == "[friday] bob: What am I allergic to?\n    assistant: You did not tell me."


@pytest.mark.requirement("A12")
@pytest.mark.slow
def test_another_service_stands_in_for_the_recall_of_its_own_user(tmp_path: Path) -> None:
    ada, bob = run("other_memory", tmp_path).strip().split("bob's model reads:")
    assert "- [long-term memory] My parrot is called Coco." in ada
    assert bob.strip() == "How is my parrot called?"


@pytest.mark.parametrize("name", ["langchain_agent", "llamaindex_chat_engine"])
@pytest.mark.slow
def test_a_framework_remembers_what_was_said_in_another_thread(name: str, tmp_path: Path) -> None:
    framework = "langchain" if name == "langchain_agent" else "llama_index.core"
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    lines = run(name, tmp_path).splitlines()
    assert [re.sub(r"^\[(\S+)\] \w+: ", r"\1: ", line) for line in lines] == [
        "in-may: I moved to Tokyo, and I am allergic to nuts.",
        "in-may: Good to know.",
        "today: What am I allergic to?",
        "today: To nuts.",
        "Stored: ['What am I allergic to?', 'To nuts.']",
    ]


@pytest.mark.slow
def test_a_second_process_finds_what_a_killed_one_stored(tmp_path: Path) -> None:
    shown = run("two_processes", tmp_path)
    stored, killed, given = map(shown.index, ("says: stored", "was killed", "The second process gives"))
    assert stored < killed < given
    assert re.search(r"- \[\d{4}-\d\d-\d\d user\] I am allergic to peanuts\.", shown[given:])
    assert shown.rstrip().endswith("Which food am I allergic to?")


def load(name: str) -> ModuleType:
    """Import an example without running it."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # a dataclass looks for its module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def message_store() -> Iterator[Any]:
    """Return the example's store, with keys of its own in a real Redis."""
    redis = pytest.importorskip("redis", reason="the package redis is not installed")
    client = redis.Redis.from_url(REDIS)
    try:
        client.ping()
    except redis.ConnectionError:
        pytest.skip(f"no Redis at {REDIS}: start one, or set REDIS_URL")
    prefix = f"memlayer-test:{uuid.uuid4().hex}:"
    yield load("redis_store").RedisStore(client, prefix=prefix)
    for key in client.scan_iter(f"{prefix}*"):
        client.delete(key)
    client.close()


@pytest.mark.requirement("F05", "F14", "L06")
class TestRedisStore(MessageStoreConformance):
    """The example is a message store."""


@pytest.mark.requirement("F14", "F16")
def test_writers_in_redis_lose_nothing_and_an_idle_session_ends_after_a_week(message_store) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda at: WindowMemory(message_store, "ada:1").add("user", str(at)), range(40)))
    said = [message.text for message in WindowMemory(message_store, "ada:1").history()]
    assert sorted(said, key=int) == list(map(str, range(40)))
    assert 0 < message_store.client.ttl(f"{message_store.prefix}ada:1") <= 7 * 86_400


@pytest.mark.slow
@pytest.mark.requirement("M02")
def test_a_window_in_redis_has_the_newest_rounds(message_store) -> None:
    ended = subprocess.run([sys.executable, FOLDER / "redis_store.py"], capture_output=True, text=True)
    assert ended.stderr == ""
    answer = "assistant: (an answer to 3 messages)"
    said = ["user: I live in Paris.", answer, "user: Where do I live?", answer]
    assert ended.stdout.splitlines() == said


# An adapter

CALLS = ("c1", "c2")
SAID = {"type": "output_text", "text": "Rain, and sun.", "annotations": []}
SKY = {"type": "input_image", "image_url": "sky.png"}
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "How is the weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    *({"type": "function_call", "id": "fc", "call_id": c, "name": "look", "arguments": "{}"} for c in CALLS),
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
    {"type": "message", "id": "__fake_id__", "role": "assistant", "status": "completed", "content": [SAID]},
    {"role": "user", "content": [{"type": "input_text", "text": "And here?"}, SKY]},
]


@pytest.fixture
def session(memory: Memory) -> Any:
    chat = memory.chat(user_id="ada", session_id="monday")
    return load("openai_agents_session").MemlayerSession(chat, token_limit=3000)


@pytest.mark.slow
def test_the_adapter_recalls_what_was_said_in_another_session(tmp_path: Path) -> None:
    told = run("openai_agents_session", tmp_path).splitlines()
    assert told == ["[monday] I will remember that.", "[friday] To peanuts."]


async def test_every_item_comes_back_equal_and_the_newest_are_popped_first(session) -> None:
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items(ITEMS[:4])
    await session.add_items(ITEMS[4:])
    assert await session.get_items(100) == ITEMS
    assert await session.get_items(2) == ITEMS[-2:]
    assert sorted(map(str, await session.get_items())) == sorted(map(str, ITEMS))
    assert [await session.pop_item() for _ in range(3)] == ITEMS[:-4:-1]
    await session.clear_session()
    assert await session.get_items(100) == []


async def test_a_model_sees_a_context_in_which_each_result_follows_its_call(session) -> None:
    for turn in range(40):
        calls = [{**one, "call_id": f"{one['call_id']}-{turn}"} if "call_id" in one else one for one in ITEMS]
        await session.add_items([*calls[:-1], {"role": "user", "content": "Thanks. " * 20}])
    shown = await session.get_items()
    kinds = [item.get("type", item.get("role")) for item in shown]
    assert 10 < len(shown) < 200
    assert shown[0]["content"].startswith("Be brief.")
    for at, kind in enumerate(kinds):
        if kind == "function_call":
            assert (kinds[at + 1], shown[at + 1]["call_id"]) == ("function_call_output", shown[at]["call_id"])
    assert len(await session.get_items(1000)) == 360


async def test_a_preview_is_shown_in_place_of_a_large_result_and_the_whole_is_kept(session) -> None:
    large = {"type": "function_call_output", "call_id": "c1", "output": "rain " * 6000}
    await session.add_items([ITEMS[1], ITEMS[3], large, {"role": "user", "content": "And now?"}])
    (shown,) = [item for item in await session.get_items() if item.get("type") == large["type"]]
    assert shown["call_id"] == "c1"
    assert "30,000 characters in all" in shown["output"]
    assert "context_reload" not in shown["output"], "this agent has no such tool"
    assert len(shown["output"]) < 25_000
    assert large in await session.get_items(10)
