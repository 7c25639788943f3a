"""Facts go along with an export, with the words that they rest on; and what version 0.1 exported is imported whole."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory, Scope, ToolCall
from memlayer_core.errors import ImportStoppedError
from memlayer_core.items.model import FindItems
from memlayer_core.message import Raw

pytestmark = pytest.mark.each_database

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Return a memory that learns."""
    with Memory.in_memory(settings=Tuned(index_delay=0), extractor=reads()) as opened:
        yield opened


def lines_of(memory: Memory, **more: Any) -> list[str]:
    memory.export(text := io.StringIO(), **more)
    return text.getvalue().splitlines()


@pytest.fixture
def exported(memory: Memory) -> list[str]:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "I live in Graz.", created_at=MAY)
    memory.flush()
    chat.remember("Louis is allergic to nuts", key="allergy", value="nuts")
    return lines_of(memory)


def facts(memory: Memory) -> dict[str | None, tuple[Any, ...]]:
    return {
        record.key: (record.value, record.subject, record.always, record.valid_from, record.mentions)
        for record in memory.records(user_id="louis")
    }


def test_an_import_has_the_same_facts_and_a_second_one_changes_nothing(memory, exported, open_with) -> None:
    other = open_with(Tuned(durability="normal"))
    for _ in range(2):
        report = other.import_from(exported)
        other.flush()
        assert facts(other) == facts(memory)
    assert (report.records, report.archived) == (2, 0)
    (home,) = (one for one in other.records(user_id="louis") if one.key == "home")
    (quote,) = other.why(home.memory_id, user_id="louis").evidence
    assert (quote.quote, quote.start, quote.end, quote.said_at) == ("I live in Graz", 0, 14, MAY)
    chat = other.chat(user_id="louis", session_id="s")
    chat.remember("Louis moved", key="home", value="Rome")
    assert facts(other)["home"][0] == "Rome"
    chat.delete_message(0)
    assert {one.value for one in other.records(user_id="louis", all_versions=True)} == {"Rome", "nuts"}


def test_an_export_revives_nothing_that_was_forgotten(memory: Memory, chat) -> None:
    """Ids stay, also where another one here would take them; nothing is learned again; and an older export changes nothing."""
    said = ("I am allergic to nuts.", "I live in Graz.", "I live in Rome.", "I like tea.")
    for day, text in enumerate(said):
        chat.add("user", text, created_at=MAY + timedelta(days=day))
    memory.flush()
    memory.chat(user_id="ada", session_id="s").add("user", "I live in Oslo.")
    memory.flush()
    older = lines_of(memory)
    for value in ("nuts", "Rome"):
        (one,) = (one for one in memory.records(user_id="louis") if one.value == value)
        memory.forget(record_id=one.memory_id)
    left, newer = memory.records(user_id="louis"), lines_of(memory, user_id="louis")
    assert [one.value for one in left] == ["tea"]
    assert not [line for line in newer if "forgotten" in line and ("nuts" in line or "Rome" in line)]
    for files in ((newer,), (newer, newer), (older, newer), (newer, older)):
        with Memory.in_memory(settings=Tuned(index_delay=0), extractor=reads()) as other:
            for file in files:
                other.import_from(file)
                other.flush()
            assert other.records(user_id="louis", all_versions=True) == left, len(files)
            assert other.chat(user_id="louis").remember("A new one.").memory_id == "louis_mem_005"
            other.chat(user_id="louis", session_id="s").add("user", "I live in Linz.")
            other.flush()  # what is said from now on is learned
            assert other.profile("louis")["home"].value == "Linz"
            other.forget("louis")
            assert "louis" not in str(lines_of(other))
    memory.import_from(older)
    memory.flush()
    assert memory.records(user_id="louis") == left
    memory.forget("louis")
    memory.import_from(older)  # of a forgotten user, an older export has everything
    assert "nuts" in {one.value for one in memory.records(user_id="louis")}


def test_the_messages_of_an_export_without_records_are_learned(memory: Memory, open_at: Any) -> None:
    plain = open_at("plain")
    plain.chat(user_id="louis", session_id="s").add("user", "I live in Graz.")
    memory.import_from(lines_of(plain))
    memory.flush()
    assert memory.profile("louis")["home"].value == "Graz"


WRONG: list[tuple[str, Any]] = [
    ("user", {"records": -1}),
    ("user", {"records": 10**20}),
    ("user", {"forgotten": {"ada_mem_001": 1}}),
    ("user", {"forgotten": {"louis_mem_001": "x"}}),
    ("evidence", "Graz"),
    ("evidence", {"message_id": 1}),
    *(("evidence", {name: "\ud800"}) for name in ("session_id", "quote", "model")),
    *(("evidence", change) for change in ({"end": 10**20}, {"kind": "forgotten"})),
]


def test_wrong_counts_and_evidence_and_others_records_are_refused(exported, open_at) -> None:
    other = open_at()
    for field, change in WRONG:
        lines = [json.loads(line) for line in exported]
        (place,) = (place for place, line in enumerate(lines) if field in line)
        if isinstance(change, dict):
            (lines[place][field] if field == "user" else lines[place][field][0]).update(change)
        else:
            lines[place][field] = change
        refused(ImportStoppedError, f"line {place + 1}", other.import_from, map(json.dumps, lines))
    with pytest.raises(ImportStoppedError, match="nothing was imported"):
        other.import_from(io.StringIO("\n".join(exported)), user_id="ada")


def test_what_is_here_is_not_replaced_nor_taken_for_forgotten(memory, exported, open_with, open_at) -> None:
    other = open_with(Tuned(durability="normal"))
    other.chat(user_id="louis", session_id="t").remember("Louis moved", key="home", value="Rome")
    other.import_from(exported)
    assert facts(other)["home"][0] == "Rome", "it was said later"
    memory.forget(record_id="louis_mem_001")
    third = open_at()
    third.chat(user_id="louis", session_id="t").remember("Louis bakes.")  # it has the same id
    third.import_from(lines_of(memory))
    told = {one.raw for one in third.records(user_id="louis")}
    assert told == {"Louis bakes.", "Louis is allergic to nuts"}


def states(memory: Memory) -> list[tuple[Any, ...]]:
    every = memory.records(user_id="louis", every=True, all_versions=True)
    return sorted(
        (
            one.raw,
            one.version,
            one.mentions,
            one.tags,
            one.scope,
            str(one.valid_until),
            one.replaced_by is None,
        )
        for one in every
    )


@pytest.mark.parametrize("own", [[], ["Louis bakes."]], ids=["same ids", "other ids"])
def test_a_newer_export_brings_each_change_and_an_older_one_takes_none_back(memory, open_with, own) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.remember("The secret plan", visibility="public")
    for day, text in enumerate(("I live in Graz.", "I like tea.", "I like rice.")):
        chat.add("user", text, created_at=MAY + timedelta(days=day))
    memory.flush()
    older, before = lines_of(memory), states(memory)
    kept = {one.raw: one.memory_id for one in memory.records(user_id="louis")}
    chat.revise(kept["The secret plan"], visibility="private", tags=["plans"])
    chat.revise(kept["I live in Graz"], expires_at=MAY + timedelta(days=40000))
    for day, text in enumerate(("I no longer like tea.", "I like rice."), 5):
        chat.add("user", text, created_at=MAY + timedelta(days=day))
    memory.flush()
    newer, after = lines_of(memory), states(memory)
    assert len(set(after) - set(before)) == 6, "two have a new version, one has ended, one is confirmed"
    other = open_with(Tuned(durability="normal"))
    theirs = other.chat(user_id="louis", session_id="t")
    mine = [theirs.remember(text).memory_id for text in own]
    for file, state, found in ((older, before, True), (newer, after, False), (older, after, False)):
        other.import_from(file)
        other.flush()
        assert [one for one in states(other) if one[0] not in own] == state
        assert bool(other.search("The secret plan", user_id="bob")) == found
    assert {one.memory_id for one in other.records(user_id="louis")} >= set(mine)
    (rice,) = (one for one in other.records(user_id="louis") if "rice" in one.raw)
    evidence = other.why(rice.memory_id, user_id="louis").evidence
    assert [one.kind for one in evidence] == ["said", "confirmed"]


def test_of_two_changes_of_one_record_the_later_one_stays(memory: Memory, open_with) -> None:
    """A new version is taken over though the record was only said again here meanwhile."""
    here, there = open_with(Tuned(durability="normal")).chat(user_id="louis"), memory.chat(user_id="louis")
    of_plan, of_boat = (there.remember(text, visibility="public").memory_id for text in ("A plan", "A boat"))
    here.memory.import_from(lines_of(memory))
    there.revise(of_plan, visibility="private")
    there.revise(of_boat, visibility="private")
    here.remember("A boat", visibility="public")
    here.revise(of_plan, "A better plan")
    here.memory.import_from(lines_of(memory))
    left = {one.raw: one.scope for one in here.memory.records(user_id="louis")}
    assert left == {"A better plan": "public", "A boat": "private"}
    there.revise(of_plan, "The best plan")
    here.memory.import_from(lines_of(memory))
    assert {one.raw for one in here.memory.records(user_id="louis")} == {"The best plan", "A boat"}
    mine = here.remember("A red boat").memory_id
    there.revise(of_boat, "A red boat", visibility="public")
    for _ in range(2):
        here.memory.import_from(lines_of(memory))
        left = {one.raw: (one.memory_id, one.scope) for one in here.memory.records(user_id="louis")}
        assert left == {"The best plan": (of_plan, "private"), "A red boat": (mine, "private")}


def test_what_patterns_learned_or_was_in_quarantine_is_kept_and_never_told(exported, open_with) -> None:
    lines = [json.loads(line) for line in exported]
    for line in lines:
        for quote in line.get("evidence", ()):  # as earlier versions wrote them
            for later in ("model", "session_id", "said_at"):
                del quote[later]
        if line.get("record", {}).get("fact", {}).get("key") == "allergy":
            line["record"]["metadata"]["quarantine"] = "it seems to instruct a model"
    other = open_with(Tuned(durability="normal"))
    report = other.import_from(map(json.dumps, lines))
    assert (report.remembered, report.archived) == (2, 2)
    assert other.records(user_id="louis") == []
    every = {one.key: one for one in other.records(user_id="louis", every=True)}
    assert every["allergy"].archived_because == "it seems to instruct a model"
    assert "patterns" in (every["home"].archived_because or "")
    chat = other.chat(user_id="louis", session_id="now")
    context = chat.context("Where do I live, and any allergy to nuts?")
    assert context.profile is None
    assert "allergic" not in context.recall
    revised = chat.revise(every["home"].memory_id, "Louis lives in Graz.")
    assert [one.memory_id for one in other.records(user_id="louis")] == [revised.memory_id]


# `exported_by_0_1.jsonl` was written by the memlayer of that version and stays as it is: it has a line of every kind.


FILE = Path(__file__).with_name("exported_by_0_1.jsonl")
TRIP, PLANTS, FORK = Scope("ada", "trip"), Scope("ada", "plants", "gardener"), Scope("ada", "trip-again")


@pytest.fixture
def imported(open_with) -> Iterator[Memory]:
    # The file's sessions have been idle for long.
    store = open_with(Tuned(index_delay=3600, session_idle_days=None))
    done = store.import_from(FILE)
    assert (done.sessions, done.messages, done.records, done.items) == (7, 19, 6, 2)
    return store


def test_it_is_exported_again_line_by_line(imported: Memory) -> None:
    imported.export(out := io.StringIO())
    (head, *rest), (then, *others) = (
        list(map(json.loads, text.splitlines()))
        for text in (out.getvalue(), FILE.read_text(encoding="utf-8"))
    )
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
    assert (lamp.value, lamp.ttl) == ({"text": "The lamp is green", "size": {"w": 2}}, timedelta(days=30_000))
    [hit] = imported.search("我住在哪里", user_id="ada", limit=1)
    assert hit.text == "I am allergic to nuts. 我住在上海。"
    hits = {hit.text for hit in imported.search("sesame allergy, pack an umbrela", user_id="ada")}
    assert "Ada is allergic to nuts and to sesame" in hits
    assert "Pack an umbrela." not in hits  # it was replaced
