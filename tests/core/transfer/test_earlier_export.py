"""A file that version 0.1 exported is imported whole, on each database.

`exported_by_0_1.jsonl` was written by the memlayer of that version and stays as it is: it has a line of every kind.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory, Scope, ToolCall
from memlayer_core.items.model import FindItems
from memlayer_core.message import Raw

FILE = Path(__file__).with_name("exported_by_0_1.jsonl")
TRIP, PLANTS, FORK = Scope("ada", "trip"), Scope("ada", "plants", "gardener"), Scope("ada", "trip-again")


@pytest.fixture
def imported(open_with) -> Iterator[Memory]:
    store = open_with(
        Tuned(index_delay=3600, session_idle_days=None)
    )  # the file's sessions have been idle for long
    done = store.import_from(FILE)
    assert (done.sessions, done.messages, done.records, done.items) == (7, 19, 6, 2)
    return store


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_is_exported_again_line_by_line(imported: Memory) -> None:
    text = io.StringIO()
    imported.export(text)
    (head, *rest), (then, *others) = lines(text.getvalue()), lines(FILE.read_text(encoding="utf-8"))
    assert head.pop("exported_at") > then.pop("exported_at")
    users = [line.pop("user") for line in rest if "user" in line]  # lines that came later
    assert {user["user_id"]: user["records"] for user in users} == {"ada": 6}
    assert head == then
    # The earlier version kept what was withdrawn in sessions of its own.
    left = {line["session"]: line["created_at"] for line in others if line.get("superseded")}
    numbers = {old: new for new, old in enumerate(sorted({*range(1, 8)} - {*left}), 1)} | dict.fromkeys(
        left, 1
    )
    expected = [
        {**line, "session": numbers[line["session"]]} | ({"withdrawn_at": left[of]} if of in left else {})
        if (of := line.get("session"))
        else line
        for line in others
        if not line.get("superseded")
    ]
    assert expected[-1]["end"].pop("sessions") - len(left) == rest[-1]["end"].pop("sessions")
    found = list(filter(None, rest))
    assert len(found) == len(expected)
    assert not [line for line in expected if line not in found]


def test_messages_are_what_they_were(imported: Memory) -> None:
    history = imported.chat_of(TRIP).history()
    assert [message.id for message in history] == ["s1", "u1", "a1", "u2", "a2", "t1", "a3", "u3"]
    assert [message.created_at for message in history] == [
        datetime(2026, 5, 4, 9, minute, tzinfo=UTC) for minute in (30, 31, 32, 33, 34, 35, 36, 38)
    ]
    assert (history[1].text, history[1].name) == ("I am allergic to nuts. 我住在上海。", "Ada")
    assert history[1].metadata == {"mood": "good", "n": [1, 2.5, None]}
    assert history[2].raw == Raw("langchain", "1", {"type": "ai", "data": {"content": "Noted. 记住了。"}})
    assert history[4].tool_calls == (ToolCall("c1", "weather", '{"city": "Porto"}'),)
    assert (history[5].text, history[5].tool_call_id) == ("18 degrees, rain", "c1")
    assert history[6].content[1] == {
        "type": "image_url",
        "image_url": {"url": "https://example.org/rain.png"},
    }


def test_earlier_versions_of_messages_are_there(imported: Memory) -> None:
    every = imported.chat_of(TRIP).history(all_versions=True)
    assert every[:7] == imported.chat_of(TRIP).history()[:7]
    assert [(message.text, message.withdrawn_at is not None) for message in every[7:]] == [
        ("Looked up the weather.", True),
        ("Pack an umbrela.", True),
        ("Pack an umbrella.", True),
        ("Pack an umbrella and boots.", False),
    ]
    assert not every[7].model_visible


def test_sessions_have_their_titles_and_ends(imported: Memory) -> None:
    sessions = {one.scope: one for one in imported.sessions(user_id="ada")}
    assert set(sessions) == {TRIP, PLANTS, FORK}
    assert {scope: (one.title, one.ended, one.messages) for scope, one in sessions.items()} == {
        TRIP: ("A trip to Porto 🇵🇹", False, 8),
        PLANTS: ("Plants", False, 3),
        FORK: (None, False, 3),
    }
    assert sessions[FORK].forked_from == "trip"
    window = imported.chat_of(PLANTS).context().window  # the session was ended before this question
    assert [message.text for message in window] == ["And the cactus?"]
    (done,) = imported.sessions(user_id="bo")
    assert done.ended


def test_records_have_their_versions_and_their_access(imported: Memory) -> None:
    found = {
        (one.memory_id, one.version, one.raw, one.mentions)
        for one in imported.records(user_id="ada", all_versions=True)
    }
    assert found == {
        ("ada_mem_001", 2, "Ada is allergic to nuts and to sesame", 1),
        ("ada_mem_001", 1, "Ada is allergic to nuts", 1),
        ("ada_mem_002", 1, "The office closes at eight", 1),
        ("ada_mem_003", 1, "The code of the door is in the safe", 1),
        ("ada_mem_004", 1, "Ada 喜欢乌龙茶", 1),
        ("ada_mem_005", 2, "Ada dislikes rain", 2),
        ("ada_mem_005", 1, "Ada dislikes rain", 1),
        ("ada_mem_006", 1, "Ada does not like it wet", 1),
    }
    (nuts,) = imported.records(user_id="ada", tags=["food"])
    assert (nuts.importance, nuts.confidence, nuts.tags) == (0.9, 0.8, ("food", "health"))
    (tea,) = imported.records(user_id="ada", type="preference")
    assert (tea.category, tea.key, tea.value) == ("tea", "favourite", "oolong")
    assert tea.expires_at == datetime(2099, 1, 1, tzinfo=UTC)
    office, code = "The office closes at eight", "The code of the door is in the safe"
    for user, roles, shown in (
        ("bo", [], {office, code}),
        ("eve", ["staff"], {office, code}),
        ("eve", [], {office}),
    ):
        assert {one.raw for one in imported.records(user_id=user, shared=True, roles=roles)} == shown


def test_items_are_there_and_what_no_query_may_find_is_found_by_none(imported: Memory) -> None:
    every, found = imported.items().batch([FindItems(()), FindItems((), query="房间 二楼 green lamp")])
    assert {(item.labels, item.key) for item in every} == {(("users", "ada"), "lamp"), (("shared",), "房间")}
    (lamp,) = (item for item in every if item.key == "lamp")
    assert lamp.value == {"text": "The lamp is green", "size": {"w": 2}}
    assert lamp.ttl is not None
    assert lamp.ttl.days == 30_000
    assert [item.key for item in found if item.score is not None] == ["lamp"]


def test_it_is_found_again(imported: Memory) -> None:
    assert (
        imported.search("我住在哪里", user_id="ada", limit=1)[0].text == "I am allergic to nuts. 我住在上海。"
    )
    assert "Ada is allergic to nuts and to sesame" in [
        hit.text for hit in imported.search("sesame allergy", user_id="ada")
    ]
