"""A file that version 0.1 exported is imported whole, on each database.

`exported_by_0_1.jsonl` was written by the memlayer of that version and stays as it is: it has a line of every kind.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory, Scope, ToolCall
from memlayer_core.items.model import FindItems
from memlayer_core.message import Raw

pytestmark = pytest.mark.each_database

FILE = Path(__file__).with_name("exported_by_0_1.jsonl")
TRIP, PLANTS, FORK = Scope("ada", "trip"), Scope("ada", "plants", "gardener"), Scope("ada", "trip-again")


@pytest.fixture
def imported(open_with) -> Iterator[Memory]:
    # The file's sessions have been idle for long.
    store = open_with(Tuned(index_delay=3600, session_idle_days=None))
    done = store.import_from(FILE)
    assert (done.sessions, done.messages, done.records, done.items) == (7, 19, 6, 2)
    return store


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_is_exported_again_line_by_line(imported: Memory) -> None:
    imported.export(text := io.StringIO())
    (head, *rest), (then, *others) = lines(text.getvalue()), lines(FILE.read_text(encoding="utf-8"))
    assert head.pop("exported_at") > then.pop("exported_at")
    users = [line.pop("user") for line in rest if "user" in line]  # lines that came later
    assert {user["user_id"]: user["records"] for user in users} == {"ada": 6}
    assert head == then
    # The earlier version kept what was withdrawn in sessions of its own.
    left = {line["session"]: line["created_at"] for line in others if line.get("superseded")}
    numbers = {1: 1, 5: 2, 6: 3, 7: 4} | dict.fromkeys(left, 1)
    expected = [line for line in others if not line.get("superseded")]
    for line in expected:
        if old := line.get("session"):
            line.update({"session": numbers[old]} | ({"withdrawn_at": left[old]} if old in left else {}))
    assert expected[-1]["end"].pop("sessions") - len(left) == rest[-1]["end"].pop("sessions")
    found = list(filter(None, rest))
    assert len(found) == len(expected)
    assert not [line for line in expected if line not in found]


def test_it_reads_as_it_did(imported: Memory) -> None:
    """Messages with their earlier versions, sessions that go on or have ended, records with their access, and items."""
    chat = imported.chat_of(TRIP)
    history, every = chat.history(), chat.history(all_versions=True)
    assert history[2].raw == Raw("langchain", "1", {"type": "ai", "data": {"content": "Noted. 记住了。"}})
    assert history[4].tool_calls == (ToolCall("c1", "weather", '{"city": "Porto"}'),)
    assert every[:7] == history[:7]
    withdrawn = ["Looked up the weather.", "Pack an umbrela.", "Pack an umbrella."]
    assert [message.text for message in every[7:]] == [*withdrawn, "Pack an umbrella and boots."]
    assert [message.withdrawn_at is None for message in every[7:]] == [False, False, False, True]
    assert not every[7].model_visible

    found = {one.scope: (one.ended, one.messages) for one in imported.sessions(user_id="ada")}
    assert found == {TRIP: (False, 8), PLANTS: (False, 3), FORK: (False, 3)}
    window = imported.chat_of(PLANTS).context().window  # the session was ended before this question
    assert [message.text for message in window] == ["And the cactus?"]
    assert [done.ended for done in imported.sessions(user_id="bo")] == [True]

    assert len(imported.records(user_id="ada", all_versions=True)) == 8
    (nuts,) = imported.records(user_id="ada", tags=["food"])
    assert (nuts.importance, nuts.confidence, nuts.tags) == (0.9, 0.8, ("food", "health"))
    (tea,) = imported.records(user_id="ada", type="preference")
    assert (tea.category, tea.key, tea.value) == ("tea", "favourite", "oolong")
    public, shared = {"The office closes at eight"}, {"The code of the door is in the safe"}
    for user, roles, shown in (("bo", [], shared), ("eve", ["staff"], shared), ("eve", [], set())):
        records = imported.records(user_id=user, shared=True, roles=roles)
        assert {one.raw for one in records} == public | shown

    imported.flush()
    listed, scored = imported.items().batch([FindItems(()), FindItems((), query="房间 二楼 green lamp")])
    assert {(item.labels, item.key) for item in listed} == {(("users", "ada"), "lamp"), (("shared",), "房间")}
    [lamp] = [item for item in scored if item.score is not None]  # no query may find the other one
    assert (lamp.value, lamp.ttl) == (
        {"text": "The lamp is green", "size": {"w": 2}},
        timedelta(days=30_000),
    )
    [hit] = imported.search("我住在哪里", user_id="ada", limit=1)
    assert hit.text == "I am allergic to nuts. 我住在上海。"
    hits = {hit.text for hit in imported.search("sesame allergy, pack an umbrela", user_id="ada")}
    assert "Ada is allergic to nuts and to sesame" in hits
    assert "Pack an umbrela." not in hits  # it was replaced
