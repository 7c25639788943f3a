"""What is remembered of a user beyond conversations: said once, changed by versions, told to whom it may concern."""

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from refusals import refused
from tuned import Tuned
from waiting import heard

from memlayer_core import Chat, Memory, Record, Scope, errors
from memlayer_core.events import RecordStored
from memlayer_core.facts import check, model, writes as records_writes
from memlayer_core.facts.check import narrow_access
from memlayer_core.facts.model import LISTS, SOURCES, TYPES, VISIBILITIES, Access, Relation
from memlayer_core.messages.model import ForgetReport

pytestmark = pytest.mark.each_database

NOW = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
NUTS = "Louis is allergic to nuts."
SCOPE = ("tenant_id", "user_id", "agent_id", "session_id")


@pytest.fixture
def clocked(store: Memory) -> Callable[[datetime], Memory]:
    """Return a function that sets the memory's clock, and returns the memory."""

    def at(moment: datetime) -> Memory:
        object.__setattr__(store.runtime, "now", lambda: moment)
        return store

    return at


def texts(memory: Memory, user_id: str, **more: Any) -> list[str]:
    return [record.text for record in memory.records(user_id=user_id, **more)]


def told(memory: Memory, reach: Scope, *roles: str, words: str = "nuts") -> list[str]:
    """Return what a search for words brings back of records."""
    asking = {name: value for name in SCOPE if (value := getattr(reach, name)) is not None}
    hits = memory.search(words, **asking, roles=roles, limit=100)
    return [hit.text for hit in hits if hit.kind == "record"]


def rows(memory: Memory, table: str) -> list[Any]:
    return memory.runtime.db.read(lambda c: c.exec_driver_sql(f"SELECT * FROM {table}").all())


# --- what a record is


@pytest.mark.requirement("M08", "M12", "M13", "M14", "J04", "J05")
def test_a_record_has_every_field_and_reads_back_equal(store) -> None:
    whose = {"user_id": "louis", "tenant_id": "app_iOS"}
    chat = store.chat(**whose, session_id="s", agent_id="cook")
    first = chat.remember(NUTS)
    assert (first.memory_id, first.type, first.importance) == ("louis_mem_001", "semantic", 0.5)
    assert (first.source, first.scope, first.confidence) == ("explicit_user_input", "private", 1.0)
    assert (first.decay_score, first.expires_at, first.embedding) == (1.0, None, None)
    names = "explicit_user_input implicit_inference system_generated external_data corrected_memory"
    assert set(SOURCES) == set(names.split())
    for number, source in enumerate(SOURCES, 2):
        record = chat.remember(
            f"please talk in a concise tone, says {source}",
            type="preference",
            category="habit",
            key=f"tone_{number}",
            value="concise",
            summary="Louis likes a concise tone.",
            structured={"tone": ["concise", "humorous"], "priority": 1, "\ud800": None},
            key_topics=["style"],
            actions_taken=["asked"],
            outcomes=["agreed"],
            **SURE,
            tags=["style", "style", "口吻"],
            source=source,
            occurred_at=NOW,
            expires_at=datetime(2100, 1, 1, tzinfo=timezone(timedelta(hours=9))),
            decay_score=0.95,
            relations=[Relation("related_to", first.memory_id)],
            visibility="share",
            allowed_users=["eve"],
            allowed_roles=ROLES,
        )
        assert (record.memory_id, record.version, record.mentions) == (f"louis_mem_00{number}", 1, 1)
        assert record.created_at == record.updated_at == record.first_observed
        assert [getattr(record, name) for name in SCOPE] == ["app_iOS", "louis", "cook", "s"]
        assert (record.source, record.tags, record.scope) == (source, ("style", "口吻"), "share")
        assert record.expires_at == datetime(2099, 12, 31, 15, tzinfo=UTC)
        assert store.records(**whose, limit=1) == [record]
    store.flush()
    newest, *_, oldest = store.records(**whose)
    assert oldest.embedding.model == store.admin.status().embedder
    expected = store.runtime.embedder.embed([NUTS])[0]
    assert float(oldest.embedding.vector @ expected) == pytest.approx(1, abs=1e-3)
    form = replace(newest, last_accessed=newest.created_at).to_json()
    assert set(LAYER) <= set(form)
    for part in ("content", "embedding", "metadata", "time", "access_control"):
        assert set(form[part]) == set(LAYER[part])
    assert [set(one) for one in form["relations"]] == [set(one) for one in LAYER["relations"]]


SURE, ROLES = {"importance": 0.92, "confidence": 0.96}, ["admin", "editor"]
LAYER = {
    "memory_id": "louis_mem_002",
    "tenant_id": "app_iOS",
    "user_id": "louis",
    "agent_id": "assistant",
    "type": "preference",
    "scope": "private",
    "content": {
        "raw": "Please talk in a concise, humorous tone.",
        "summary": "The user prefers a concise and humorous tone.",
        "structured": {"tone": ["concise", "humorous"], "communication_style": "casual", "priority": "high"},
    },
    "embedding": {"model": "e5-large", "vector": [0.12, -0.03]},
    "metadata": {**SURE, "tags": ["style"], "source": "explicit_user_input", "version": 1},
    "time": {
        "created_at": "2026-01-05T10:00:00Z",
        "updated_at": "2026-01-06T10:00:00Z",
        "last_accessed": "2026-01-07T10:00:00Z",
        "decay_score": 0.95,
    },
    "relations": [{"type": "related_to", "target_memory_id": "louis_mem_001"}],
    "access_control": {"visibility": "private", "allowed_users": ["louis"], "allowed_roles": ROLES},
}
"""A record as memory layers write it: with the names of M08 and the values of M13, and with nothing else."""


@pytest.mark.requirement("M08", "M09", "M13", "M14", "M15")
def test_a_record_of_another_memory_layer_loads_as_it_stands() -> None:
    record = Record.from_json(json.dumps(LAYER))
    assert (record.memory_id, record.tenant_id, record.agent_id) == ("louis_mem_002", "app_iOS", "assistant")
    assert (record.importance, record.confidence, record.decay_score) == (0.92, 0.96, 0.95)
    assert record.first_observed == record.created_at == datetime(2026, 1, 5, 10, tzinfo=UTC)
    assert record.structured["tone"] == ["concise", "humorous"]
    assert record.relations == (Relation("related_to", "louis_mem_001"),)
    form = record.to_json()
    assert {key: value for key, value in LAYER.items() if key != "embedding"}.items() <= form.items()
    assert Record.from_json(form) == record
    shared = {**LAYER, "scope": "public", "access_control": {}}
    assert Record.from_json(shared).access_control == Access("public")
    for wrong, said in (({"scope": "public"}, "`scope` says"), ({"fact": "none"}, "fact")):
        refused(errors.InvalidRecordError, said, Record.from_json, {**LAYER, **wrong})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"text": " \n"}, "`text` must be a non-empty string"),
    ({"text": "a\0b"}, "NUL"),
    ({"text": "\ud800"}, "lone surrogate"),
    ({"text": "nuts " * 100}, "larger than the limit of 400"),
    ({"type": ["semantic"]}, "unknown `type`"),
    ({"importance": 1.01}, "`importance` must be a number from 0 to 1"),
    ({"confidence": float("nan")}, "`confidence`"),
    ({"expires_at": datetime(2100, 1, 1)}, "time zone"),  # noqa: DTZ001
    ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "in the past"),
    ({"valid_from": NOW, "valid_until": NOW - timedelta(days=1)}, "at or after `valid_from`"),
    ({"expires_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-9)))}, "outside"),
    ({"tags": "food"}, "`tags` must be a list"),
    ({"allowed_users": ["memlayer:session:s"]}, "`allowed_users`"),
    ({"structured": ["a"]}, "`structured` must be a mapping"),
    ({"structured": {"a": float("inf")}}, "which JSON does not have"),
    ({"relations": ["louis_mem_001"]}, "`relations` holds"),
    ({"relations": [Relation("related_to", "nobody")]}, "not an id of a record"),
    ({"mentions": 3}, "no field 'mentions'"),
]


def test_what_cannot_be_stored_is_refused_before_anything_is_written(open_with) -> None:
    chat = open_with(Tuned(message_bytes_limit=400)).chat(user_id="louis", session_id="s")
    kept = chat.remember(NUTS)
    for wrong, said in BAD:
        for write in (chat.remember, lambda **fields: chat.revise(kept.memory_id, **fields)):
            refused(errors.InvalidRecordError, said, write, **{"text": "Another text.", **wrong})
    assert chat.memory.records(user_id="louis", all_versions=True) == [kept]


# --- said once


@pytest.mark.requirement("J24", "J25")
def test_the_same_words_again_are_one_record_with_one_mention_more(store) -> None:
    chat = store.chat(user_id="louis")
    first = chat.remember(NUTS, confidence=0.7)
    again = chat.remember("  louis IS\nallergic to \uff4e\uff55ts. ", confidence=0.6, importance=0.8)
    assert (again.memory_id, again.version, again.mentions) == (first.memory_id, 1, 2)
    assert (again.text, again.confidence, again.importance) == (NUTS, pytest.approx(0.75), 0.8)
    assert store.records(user_id="louis", all_versions=True) == [again]
    for _ in range(10):
        again = chat.remember(NUTS, confidence=0.1)
    assert (again.mentions, again.confidence) == (12, 1.0)
    for user, agent, tenant in (("louis", "cook", "default"), ("louis", None, "b"), ("eve", None, "default")):
        assert store.chat(user_id=user, agent_id=agent, tenant_id=tenant).remember(NUTS).mentions == 1


@pytest.mark.trap("layered", 11)
def test_two_who_remember_the_same_at_once_store_it_once(store) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: store.chat(user_id="louis").remember(f"{n % 4} {NUTS}"), range(40)))
    assert sorted(record.mentions for record in made) == sorted(list(range(1, 11)) * 4)
    assert {record.memory_id for record in made} == {f"louis_mem_00{n}" for n in range(1, 5)}
    assert len(store.records(user_id="louis", all_versions=True)) == 4


@pytest.mark.trap("layered", 5)
def test_what_had_expired_is_in_force_once_it_is_said_again(clocked) -> None:
    chat, louis, day = clocked(NOW).chat(user_id="louis"), Scope("louis"), timedelta(days=1)
    chat.remember(NUTS, expires_at=NOW + day)
    assert texts(clocked(NOW + timedelta(hours=23)), "louis") == [NUTS]
    store = clocked(NOW + day)
    assert texts(store, "louis") == told(store, louis) == []
    assert texts(store, "louis", all_versions=True) == [NUTS]
    assert chat.remember(NUTS, expires_at=NOW + 9 * day).mentions == 2
    assert texts(store, "louis") == told(store, louis) == [NUTS]
    assert chat.remember(NUTS, expires_at=NOW + 4 * day).expires_at == NOW + 9 * day
    assert chat.remember(NUTS).expires_at is None


# --- changed by versions


@pytest.mark.requirement("M18", "M22")
def test_a_change_makes_a_version_and_the_old_one_stays_readable(clocked) -> None:
    store = clocked(NOW)
    events = heard(store, RecordStored)
    chat = store.chat(user_id="louis", session_id="s")
    chat.remember(NUTS, summary="No nuts", tags=["food"])
    assert told(store, Scope("louis")) == ["No nuts"]
    store.flush()
    (first,) = store.records(user_id="louis")
    assert first.last_accessed == NOW
    store = clocked(NOW + timedelta(days=1))
    assert chat.revise(first.memory_id, NUTS, tags=["food"], importance=0.5) == first, "nothing changed"
    second = chat.revise(first.memory_id, "Louis may eat nuts again.", importance=0.9)
    assert (second.memory_id, second.version, second.importance) == (first.memory_id, 2, 0.9)
    assert (second.created_at, second.updated_at) == (NOW, NOW + timedelta(days=1))
    assert (second.summary, second.tags) == (None, ("food",))
    announced = [RecordStored(Scope("louis").namespace, first.memory_id, version, 1) for version in (1, 2)]
    assert events == announced, "each without its words"
    assert "nuts" not in repr(events)
    assert store.records(user_id="louis") == [second]
    old = replace(first, replaced_by=first.memory_id)
    assert store.records(user_id="louis", all_versions=True) == [second, old]
    assert told(store, Scope("louis")) == ["Louis may eat nuts again."]
    assert told(store, Scope("louis"), words="allergic") == []
    assert_one_is_indexed(store)


def assert_one_is_indexed(store: Memory) -> None:
    """Check that one record alone has a vector and words."""
    store.flush()
    assert len(rows(store, "memlayer_texts WHERE vector IS NOT NULL")) == 1
    assert len(rows(store, "(SELECT DISTINCT text FROM memlayer_words) AS filed")) == 1
    assert store.admin.verify() == []


@pytest.mark.requirement("M18")
def test_records_that_say_the_same_are_merged(store) -> None:
    chat = store.chat(user_id="louis")
    kept = chat.remember(NUTS, tags=["food"], importance=0.2, visibility="private")
    more = {"tags": ["health", "food"], "importance": 0.9, "visibility": "public"}
    near = chat.remember("Louis cannot eat nuts.", **more)
    tied = chat.remember("Ask before cooking.", relations=[Relation("follows", near.memory_id)])
    store.flush()
    whole = chat.revise(kept.memory_id, merge=[near.memory_id, tied.memory_id])
    assert (whole.memory_id, whole.version, whole.mentions, whole.importance) == (kept.memory_id, 2, 3, 0.9)
    assert (whole.tags, whole.relations) == (("food", "health"), ())
    assert whole.access_control == Access()  # a merge shows nothing to more people
    assert texts(store, "louis") == told(store, Scope("louis")) == [NUTS]
    assert told(store, Scope("eve")) == []
    every = store.records(user_id="louis", all_versions=True)
    assert [one.text for one in every if one.replaced_by is None] == [NUTS]
    absorbed = {one.text for one in every if one.replaced_by == kept.memory_id}
    assert absorbed == {NUTS, near.text, tied.text}
    assert_one_is_indexed(store)
    assert store.forget(record_id=kept.memory_id) == ForgetReport(0, 0, 1)
    assert rows(store, "memlayer_records") == []


def test_only_what_is_the_users_and_is_not_said_already_can_be_changed_or_forgotten(store) -> None:
    chat = store.chat(user_id="louis")
    kept, tea = chat.remember(NUTS), chat.remember("Louis likes tea.")
    with pytest.raises(errors.InvalidRecordError, match="'louis_mem_001' says the same"):
        chat.revise(tea.memory_id, NUTS.upper())
    store.chat(user_id="eve").remember(NUTS, visibility="public")
    for record_id in ("louis_mem_003", "eve_mem_001", "louis_mem_01", "", 7):
        refused(errors.InvalidRecordError, None, chat.revise, record_id, "Mine now.")
        refused(errors.InvalidRecordError, None, chat.revise, kept.memory_id, merge=[record_id])
        with pytest.raises((errors.InvalidRecordError, errors.InvalidScopeError)):
            store.forget("louis", record_id=record_id)
    for merge, why in (([kept.memory_id], "into itself"), (kept.memory_id, "`merge` must be a list")):
        refused(errors.InvalidRecordError, why, chat.revise, kept.memory_id, merge=merge)
    for whose in ({}, {"tenant_id": "t", "agent_id": "a"}):
        refused(errors.InvalidScopeError, "no user, session or record", store.forget, **whose)
    cooks = store.chat(user_id="louis", agent_id="cook", tenant_id="a").remember(NUTS)
    for agent, tenant in (("pilot", "a"), ("cook", "b")):
        with pytest.raises(errors.UnknownRecordError):
            store.chat(user_id="louis", agent_id=agent, tenant_id=tenant).revise(cooks.memory_id, "x")
        with pytest.raises(errors.UnknownRecordError):
            store.forget(record_id=cooks.memory_id, agent_id=agent, tenant_id=tenant)
    assert store.records(user_id="louis", all_versions=True) == [tea, kept]
    assert told(store, Scope("louis"), words="tea") == [tea.text]
    assert texts(store, "eve", all_versions=True) == texts(store, "louis", tenant_id="a") == [NUTS]
    assert store.chat(user_id="louis", tenant_id="a").revise(cooks.memory_id, "x").version == 2


# --- who may see it


BOTH = {"visibility": "share", "allowed_users": ["eve"], "allowed_roles": ["editor"]}
SHARED: list[tuple[dict[str, Any], str]] = [
    ({}, "louis"),
    ({"visibility": "share"}, "louis"),
    ({"visibility": "private", "allowed_users": ["eve"]}, "louis eve"),
    ({"visibility": "share", "allowed_roles": ["editor"]}, "louis bob-as-editor"),
    (BOTH, "louis eve bob-as-editor"),
    ({"visibility": "public"}, "louis eve bob bob-as-editor bob-as-reader"),
]
READERS = {
    "louis": (Scope("louis"), ()),
    "eve": (Scope("eve"), ()),
    "bob": (Scope("bob"), ()),
    "bob-as-editor": (Scope("bob"), ("reader", "editor")),
    "bob-as-reader": (Scope("bob"), ("reader",)),
    "louis elsewhere": (Scope("louis", tenant_id="other"), ("editor",)),
    "eve elsewhere": (Scope("eve", tenant_id="other"), ("editor",)),
}


@pytest.mark.requirement("M11", "M23")
def test_a_record_is_told_to_those_it_names_and_to_nobody_else(store) -> None:
    said = [f"nuts, number {number}" for number in range(len(SHARED))]
    for text, (access, _) in zip(said, SHARED, strict=True):
        store.chat(user_id="louis").remember(text, **access)
    for name, (reach, roles) in READERS.items():
        seen = [text for text, (_, readers) in zip(said, SHARED, strict=True) if name in readers.split()]
        whose = {"tenant_id": reach.tenant_id, "roles": roles}
        assert sorted(told(store, reach, *roles)) == seen
        assert sorted(texts(store, reach.user_id, shared=True, **whose)) == seen
        own = said if name == "louis" else []
        assert sorted(texts(store, reach.user_id, all_versions=True, **whose)) == own
    cook = store.chat(user_id="bob", roles=["editor"])
    cook.add("user", "Which nuts are left, and what number was that?")
    for chat in (cook, cook.fork()):
        assert said[3] in chat.context().recall


@pytest.mark.requirement("M23")
def test_who_is_told_is_narrowed_by_saying_it_again_and_widened_by_a_revision_alone(open_with) -> None:
    store = open_with(Tuned(index_delay=3600, durability="normal", exact_scan_limit=0))
    chat = store.chat(user_id="louis", session_id="s", agent_id="cook")
    louis, eve = Scope("louis", agent_id="cook"), Scope("eve", agent_id="cook")
    shared = chat.remember(NUTS, visibility="public", tags=["food"], importance=0.9)
    store.flush()
    assert told(store, eve) == [NUTS]
    assert chat.remember(NUTS).scope == "public", "nothing was said of whom to tell"
    again = chat.remember(NUTS, visibility="private")
    assert (again.memory_id, again.version, again.mentions) == (shared.memory_id, 2, 3)
    assert (again.tags, again.importance, again.access_control) == (("food",), 0.9, Access())
    for asked in ("nuts", "food"):
        assert (told(store, louis, words=asked), told(store, eve, words=asked)) == ([NUTS], [])
        store.flush()
    assert chat.remember(NUTS, visibility="public").access_control == Access(), "nobody else is told again"
    chat.revise(again.memory_id, visibility="public")
    store.flush()
    assert told(store, eve) == [NUTS]
    chat.revise(again.memory_id, visibility="private")
    assert told(store, eve) == []
    chat.revise(again.memory_id, "No nuts.", visibility="share", allowed_users=["eve"])
    assert told(store, eve) == texts(store, "eve", shared=True, all_versions=True) == ["No nuts."]
    store.flush()
    counted = {row.user_id: row.vectors for row in rows(store, "memlayer_namespaces")}
    assert counted == {"louis": 0, "": 1}
    home = chat.remember("Louis lives in Leeds.", key="home", value="Leeds", visibility="public")
    assert "Louis lives in Leeds." in told(store, eve, words="Leeds")
    again = chat.remember("His home is Leeds.", key="home", value="Leeds", visibility="private")
    assert (again.memory_id, again.version, again.access_control) == (home.memory_id, 2, Access())
    # Other words of a fact narrow it, too.
    assert "Louis lives in Leeds." not in told(store, eve, words="Leeds")
    assert store.admin.verify() == []


@pytest.mark.requirement("M15", "M16")
def test_with_an_agent_or_without_a_user_only_what_is_of_it_is_told(store) -> None:
    for agent in (None, "cook", "pilot"):
        store.chat(user_id="louis", agent_id=agent).remember(f"nuts for {agent}")
        store.chat(user_id="eve", agent_id=agent).remember(f"nuts of eve for {agent}", visibility="public")
    store.flush()
    assert len(told(store, Scope("louis"))) == 6
    assert sorted(told(store, Scope("louis", agent_id="cook"))) == ["nuts for cook", "nuts of eve for cook"]
    alone, tenant = Scope.alone("by itself", tenant_id="other"), {"tenant_id": "other"}
    record = store.chat_of(alone).remember(NUTS)
    assert told(store, alone) == texts(store, alone.user_id, **tenant) == [NUTS]
    assert told(store, Scope.alone("another", **tenant)) == []
    assert store.forget(record_id=record.memory_id, **tenant).records == 1


@pytest.mark.trap("layered", 13)
@pytest.mark.requirement("J19", "J26")
def test_what_is_of_no_importance_or_uncertain_is_kept_and_not_told(store) -> None:
    chat = store.chat(user_id="louis")
    chat.remember("nuts 0", type="episodic", importance=0.3)
    chat.remember("nuts 1", type="episodic", importance=0.1 + 0.2)  # a little above 0.3, as computers count
    chat.remember("nuts 2", type="episodic", importance=0.31, confidence=0.0)
    chat.remember("nuts 3", confidence=0.59)
    chat.remember("nuts 4", confidence=0.6, importance=0.0)
    chat.remember("nuts 5", type="profile", confidence=0.6 - 1e-12)
    assert sorted(told(store, Scope("louis"))) == ["nuts 2", "nuts 4", "nuts 5"]
    assert len(texts(store, "louis")) == 6


# --- found and told


@pytest.mark.requirement("M20", "M22", "J11")
def test_a_record_is_found_by_the_search_that_finds_messages_and_told_in_a_context(clocked) -> None:
    store = clocked(NOW)
    chat = store.chat(user_id="louis", session_id="in may")
    record = chat.remember(NUTS, occurred_at=NOW - timedelta(days=3))
    chat.add("user", "Nuts are on the table.", created_at=NOW)
    hits = {hit.kind: hit for hit in store.search("nuts", user_id="louis")}
    assert hits.keys() == {"record", "message"}
    hit, line = hits["record"], f"- [2026-05-01 semantic] {NUTS}"
    assert (hit.text, hit.record.memory_id, hit.message_ids) == (NUTS, record.memory_id, ())
    assert (hit.speaker, hit.session_id, hit.created_at) == ("semantic", "in may", NOW - timedelta(days=3))
    assert hit.tokens == store.tokens.text(line)
    context = store.chat(user_id="louis", session_id="today").context("To what is Louis allergic?")
    assert line in context.recall.splitlines()
    assert (record.memory_id,) in [piece.message_ids for piece in context.pieces if piece.kind == "recall"]
    store.flush()
    seen = replace(record, last_accessed=NOW, accesses=1)
    assert store.records(user_id="louis") == [seen]
    (row,) = store.runtime.db.read(records_writes.list_rows, Scope("louis"))
    store.runtime.db.write(records_writes.note_recall, [row.number], NOW - timedelta(days=1))
    assert store.records(user_id="louis") == [seen], "word that comes late changes nothing"


def test_hidden_records_are_not_counted_when_what_is_seen_is_weighed(store) -> None:
    """How rare a word is among records that nobody may see says nothing to those who may not see them."""
    chat = store.chat(user_id="louis")
    for text in (NUTS, "Louis likes tea.", "Tea and nuts, says Louis."):
        chat.add("user", text)
    store.chat(user_id="eve").remember("A first one.", visibility="public")
    before = [(hit.text, hit.score) for hit in store.search("nuts and tea", user_id="louis")]
    for number in range(20):
        store.chat(user_id="eve").remember(f"nuts {number}", visibility="share", allowed_users=["bob"])
    assert [(hit.text, hit.score) for hit in store.search("nuts and tea", user_id="louis")] == before


# --- lists


def test_records_are_listed_by_type_tag_and_page(clocked) -> None:
    for number, kind in enumerate(["semantic", "profile", "semantic", "profile", "semantic"]):
        chat = clocked(NOW + timedelta(minutes=number)).chat(user_id="louis")
        chat.remember(str(number), type=kind, tags=["t", f"t{number % 3}"], allowed_users=["t9"])
    for asked, numbers in (
        ({}, "43210"),
        ({"type": "profile"}, "31"),
        ({"tags": ["t", "t1"]}, "41"),
        ({"tags": ["t0", "t1"]}, ""),
        ({"tags": ["t9"]}, ""),
        ({"limit": 2, "offset": 1}, "32"),
        ({"record_id": "louis_mem_002"}, "1"),
        ({"tenant_id": "other"}, ""),
    ):
        assert texts(chat.memory, "louis", **asked) == list(numbers)
    assert texts(chat.memory, "eve") == []
    for user, seen in (("louis", ["3"]), ("t9", ["3"]), ("t", [])):
        assert told(chat.memory, Scope(user), "t", words="3") == seen, "a tag is not a permission"


WRONG = {"type": "fact", "tags": [1], "limit": 0, "offset": -1, "record_id": "x"}


def test_what_makes_no_sense_is_refused(memory) -> None:
    for name, value in WRONG.items():
        refused(errors.InputError, name.removesuffix("_id"), memory.records, user_id="louis", **{name: value})
    for roles in ("editor", [1], [""], [f"role {number}" for number in range(101)]):
        for ask in (memory.records, memory.chat, lambda **whose: memory.search("nuts", **whose)):
            refused(errors.InvalidRecordError, "roles", ask, user_id="louis", roles=roles)


# --- forgetting


def test_clearing_a_session_leaves_a_record_and_forgetting_it_or_its_user_leaves_nothing(store) -> None:
    chat = store.chat(user_id="louis")
    chat.add("user", "nuts")
    record = chat.remember(NUTS)
    store.flush()
    chat.clear()
    assert texts(store, "louis") == told(store, Scope("louis")) == [NUTS]
    assert store.forget(record_id=record.memory_id) == ForgetReport(0, 0, 1)
    assert chat.remember(NUTS).memory_id == "louis_mem_002"
    assert_one_is_indexed(store)
    refused(errors.UnknownRecordError, None, store.forget, record_id=record.memory_id)
    chat.add("user", "nuts")
    chat.revise(chat.remember("Louis likes nuts.").memory_id, "Louis likes all nuts.", visibility="public")
    store.chat(user_id="eve").remember(NUTS, allowed_users=["louis"])
    store.flush()
    assert store.forget("louis") == ForgetReport(1, 1, 2)
    assert [row.user_id for row in rows(store, "memlayer_records")] == ["eve"]
    assert_one_is_indexed(store)
    assert chat.remember(NUTS).mentions == 1
    assert store.forget("louis") == ForgetReport(0, 0, 1), "who has nothing but records is forgotten, too"


# --- to other stores


def exported(memory: Memory, **whose: Any) -> str:
    text = io.StringIO()
    memory.export(text, **whose)
    return text.getvalue()


@pytest.fixture
def filled(store: Memory) -> Memory:
    """Return a store with records of every kind: changed, merged, shared, of agents, alone."""
    louis = store.chat(user_id="louis", session_id="s", agent_id="cook")
    louis.add("user", "Hi.")
    first = louis.remember(NUTS, structured={"\ud800": [1]}, tags=["食"], importance=0.9, visibility="public")
    louis.revise(first.memory_id, "Louis may eat nuts.", relations=[Relation("after", first.memory_id)])
    second = louis.remember("Nuts are fine.", allowed_roles=["editor"])
    louis.revise(first.memory_id, merge=[second.memory_id])
    louis.remember("Louis likes tea.", expires_at=datetime(2100, 1, 1, tzinfo=UTC))
    store.chat(user_id="eve").remember(NUTS)
    store.chat_of(Scope.alone("by itself")).remember(NUTS)
    return store


def everything(memory: Memory, tenant_id: str = "default") -> list[Record]:
    users = ("louis", "eve", Scope.alone("by itself").user_id)
    every = [memory.records(user_id=user, tenant_id=tenant_id, all_versions=True) for user in users]
    return [replace(one, tenant_id="t") for some in every for one in some]


def test_records_come_into_another_store_equal(filled, memory) -> None:
    text = exported(filled)
    for target, tenant in ((memory, "default"), (filled, "moved")):
        for new in (5, 0):
            done = target.import_from(io.StringIO(text), tenant_id=tenant)
            assert (done.records, done.remembered) == (5, new)
            assert f"5 record(s), {new} of them new" in str(done)
            assert everything(target, tenant) == everything(filled)
        there = exported(target, tenant_id=tenant).replace(f'"tenant_id":"{tenant}"', '"tenant_id":"default"')
        assert sorted(there.splitlines()[1:]) == sorted(exported(filled).splitlines()[1:])
    memory.flush()
    assert told(memory, Scope("bob", agent_id="cook")) == ["Louis may eat nuts."]


def test_an_imported_record_goes_on_where_it_was_with_another_id_if_its_own_is_taken(store, memory) -> None:
    chat, tenant = store.chat(user_id="louis"), {"tenant_id": "other"}
    record = chat.remember(NUTS)
    old = exported(store)
    memory.import_from(io.StringIO(old))
    chat.revise(record.memory_id, "Louis may eat nuts.")
    for text, remembered in ((exported(store), 1), (old, 0)):
        assert memory.import_from(io.StringIO(text)).remembered == remembered
        assert everything(memory) == everything(store)
    assert told(memory, Scope("louis")) == ["Louis may eat nuts."]
    assert memory.chat(user_id="louis").remember("Something else.").memory_id == "louis_mem_002"
    memory.chat(user_id="louis", **tenant).remember("Louis likes tea.")
    for _ in range(2):
        memory.import_from(io.StringIO(old), **tenant)
        found = memory.records(user_id="louis", all_versions=True, **tenant)
        named = {one.memory_id: one.text for one in found}
        assert named == {"louis_mem_001": "Louis likes tea.", "louis_mem_002": NUTS}


def test_a_line_that_is_no_record_stops_the_import(store, memory) -> None:
    store.chat(user_id="louis").remember(NUTS)
    head, user, line, end = exported(store).splitlines()
    form = json.loads(line)
    record = form["record"]
    for wrong in (
        {"record": {**record, "type": None}},
        {"record": {**record, "memory_id": "eve_mem_001"}},
        {"record": {**record, "time": {**record["time"], "created_at": "soon"}}},
        {"before": [record]},
    ):
        lines = [head, user, json.dumps({**form, **wrong}), end]
        refused(errors.ImportStoppedError, "line 3", memory.import_from, lines)
    assert memory.records(user_id="louis", all_versions=True) == []


# --- rules

letters = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
words = st.text(letters, min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
lists = st.lists(words, max_size=3, unique=True).map(tuple)
moments = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ids = st.builds(model.memory_id, st.just("louis"), st.integers(1, 10**12))
values = st.none() | st.integers() | st.text(max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("tenant_id", "raw"), words),
    **dict.fromkeys(("agent_id", "session_id", "category", "key", "value", "summary"), st.none() | words),
    **dict.fromkeys(("created_at", "updated_at", "first_observed"), moments),
    **dict.fromkeys(("occurred_at", "last_accessed", "expires_at"), st.none() | moments),
    **dict.fromkeys(LISTS, lists),
    **dict.fromkeys(("importance", "confidence", "decay_score"), st.floats(0, 1)),
    "memory_id": ids,
    "user_id": st.just("louis"),
    "type": st.sampled_from(TYPES),
    "source": st.sampled_from(SOURCES),
    "structured": st.none() | st.dictionaries(st.text(max_size=3), values, max_size=3),
    "relations": st.lists(st.builds(Relation, words, ids), max_size=2, unique=True).map(tuple),
    "access_control": st.builds(Access, st.sampled_from(VISIBILITIES), lists, lists),
    "replaced_by": st.none() | ids,
}


records = st.builds(Record, **FIELDS)


@given(record=records)
def test_every_record_reads_back_equal_from_json(record) -> None:
    assert Record.from_json(json.dumps(record.to_json())) == record


@given(record=records, again=records, now=moments)
def test_saying_it_again_takes_nothing_away(record, again, now) -> None:
    again = replace(again, source=record.source)  # what is inferred is another matter: tests of it are apart
    most = check.INFERRED if record.is_inferred else 1
    record, again = (replace(one, confidence=min(one.confidence, most)) for one in (record, again))
    more = check.confirm(record, again, now)
    assert more.mentions == record.mentions + 1
    assert record.confidence <= more.confidence <= 1
    assert more.importance == max(record.importance, again.importance)
    if record.expires_at is None or record.expires_at > now:
        assert more.expires_at is None or (record.expires_at and more.expires_at >= record.expires_at)
    same = {name: getattr(record, name) for name in ("raw", "summary", "version", "access_control", "tags")}
    assert {name: getattr(more, name) for name in same} == same


@given(kept=records, others=st.lists(records, min_size=1, max_size=3), now=moments)
def test_a_merge_keeps_the_words_and_who_may_see_them(kept, others, now) -> None:
    whole = check.next_version(kept, others, None, {}, now)
    assert (whole.text, whole.access_control) == (kept.text, kept.access_control)
    assert whole.version == kept.version + 1
    assert whole.mentions == kept.mentions + sum(one.mentions for one in others)
    assert set(whole.tags) == set(kept.tags).union(*(one.tags for one in others))
    assert not {tie.target_memory_id for tie in whole.relations} & {one.memory_id for one in others}


def test_the_index_is_built_again_with_records_and_another_embedder_embeds_them_again(open_at) -> None:
    def lengths(texts: list[str]) -> list[list[float]]:
        return [[1.0, float(len(text))] for text in texts]

    settings = Tuned(index_delay=0, durability="normal", exact_scan_limit=0)
    with open_at("store", settings=settings) as store:
        chat = store.chat(user_id="louis")
        chat.remember("The office has moved to Kyoto.", visibility="public")
        chat.remember(NUTS)
        chat.add("user", "Hello.")
        store.flush()
        assert (store.admin.reindex(), store.admin.verify()) == (3, [])
        assert store.search("Who may eat nuts?", user_id="louis")[0].text == NUTS
    with Memory.reembed(store.path, embedder=lengths) as again:
        again.flush()
        assert [len(one.embedding.vector) for one in again.records(user_id="louis")] == [2, 2]


# --- many at once


@pytest.mark.slow
def test_many_who_write_at_once_neither_wait_in_a_circle_nor_lose_count(open_with) -> None:
    """Remembering, changing, sharing, merging and forgetting meet the worker, which files vectors all the while."""
    store = open_with(Tuned(index_delay=0, durability="normal", exact_scan_limit=0))
    chance = Random(7)
    plans = [[chance.random() for _ in range(12)] for _ in range(6)]

    def change(chat: Chat, record_id: str, step: float) -> None:
        mine = [one.memory_id for one in store.records(user_id=chat.user_id) if one.memory_id != record_id]
        if step < 0.3:
            store.forget(record_id=record_id)
        elif step < 0.6:
            chat.revise(record_id, f"all nuts {step}", visibility="share", allowed_users=["bob"])
        elif step < 0.8 and mine:
            chat.revise(record_id, merge=mine[:1])
        elif step > 0.97:
            store.forget(chat.user_id)

    def live(plan: list[float]) -> None:
        chat = store.chat(user_id="louis" if plan[0] < 0.7 else "eve", session_id=str(plan[0]))
        for step in plan:
            chat.add("user", f"nuts {step}")
            record = chat.remember(f"nuts {step:.1f}", visibility="public" if step < 0.4 else "private")
            with suppress(errors.UnknownRecordError):  # somebody else was faster
                change(chat, record.memory_id, step)

    with ThreadPoolExecutor(len(plans)) as threads:
        list(threads.map(live, plans))
    store.flush()
    assert store.admin.status().backlog.dead == 0
    assert store.admin.verify() == []
    in_force = [row for row in rows(store, "memlayer_records") if row.replaced_by is None]
    told = len(in_force) + len(rows(store, "memlayer_messages"))
    assert len(rows(store, "memlayer_texts WHERE vector IS NOT NULL")) == told
    assert sum(row.vectors for row in rows(store, "memlayer_namespaces")) == told


NAMES = st.lists(st.sampled_from(["eve", "bob", "amy"]), unique=True, max_size=3).map(tuple)
ACCESS = st.builds(Access, st.sampled_from(VISIBILITIES), NAMES, NAMES)


def audience(access: Access) -> set[tuple[str, str]]:
    """Return everybody who may be told, of three users and three roles."""
    named = {("user", one) for one in access.allowed_users} | {("role", one) for one in access.allowed_roles}
    everybody = {(kind, one) for kind in ("user", "role") for one in ("eve", "bob", "amy")}
    return everybody if access.visibility == "public" else named


@given(ACCESS, ACCESS)
def test_what_is_said_again_is_told_to_nobody_whom_not_both_name(known, named) -> None:
    scope = Scope("louis", "s")
    record = replace(check.new_record(scope, NUTS, {}, NOW), access_control=known)
    least = narrow_access(record, named)
    assert audience(least.access_control) == audience(known) & audience(named)
    assert least.version == record.version + (least.access_control != known)
    assert narrow_access(least, named) == least
