"""What is remembered of a user beyond conversations: said once, changed by versions, told to whom it may concern."""

from __future__ import annotations

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
from projection import in_chroma, in_journal
from tuned import Tuned

from memlayer_core import Chat, Memory, Record, Scope
from memlayer_core.errors import (
    ImportStoppedError,
    InputError,
    InvalidRecordError,
    InvalidScopeError,
    UnknownRecordError,
)
from memlayer_core.events import RecordStored
from memlayer_core.facts import check, model, writes as records_writes
from memlayer_core.facts.check import digest, narrow_access
from memlayer_core.facts.model import SOURCES, TYPES, VISIBILITIES, Access, Relation
from memlayer_core.index.flow import compare
from memlayer_core.messages.model import ForgetReport
from memlayer_core.seams import IndexEntry
from memlayer_core.storage import jobs as storage_jobs, vectors

pytestmark = pytest.mark.each_database

NOW = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
NUTS = "Louis is allergic to nuts."
SCOPE = ("tenant_id", "user_id", "agent_id", "session_id")


@pytest.fixture
def clocked(store: Memory) -> Callable[[datetime], Memory]:
    """Return a function that sets the memory's clock, and returns the memory."""

    clock = [NOW]
    live = store._resources
    live.runtime = replace(live.runtime, now=lambda: clock[0])
    live.worker._rt = live.runtime

    def at(moment: datetime) -> Memory:
        clock[0] = moment
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


@pytest.mark.requirement("M12", "M13", "M14", "J04", "J05")
def test_a_record_has_every_field_and_reads_back_equal(store) -> None:
    chat = store.chat(user_id="louis", session_id="s", tenant_id="app_iOS", agent_id="cook")
    first = chat.remember("No nuts for me.", type="episodic")
    assert first.memory_id == "louis_mem_001"
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
            importance=0.92,
            confidence=0.96,
            tags=["style", "style", "口吻"],
            source=source,
            occurred_at=NOW,
            expires_at=datetime(2100, 1, 1, tzinfo=timezone(timedelta(hours=9))),
            decay_score=0.95,
            relations=[Relation("related_to", first.memory_id)],
            visibility="share",
            allowed_users=["eve"],
            allowed_roles=["admin", "editor"],
        )
        assert (record.memory_id, record.version, record.mentions) == (f"louis_mem_00{number}", 1, 1)
        assert record.created_at == record.updated_at == record.first_observed
        assert [getattr(record, name) for name in SCOPE] == ["app_iOS", "louis", "cook", "s"]
        assert (record.source, record.tags, record.scope) == (source, ("style", "口吻"), "share")
        assert record.expires_at == datetime(2099, 12, 31, 15, tzinfo=UTC)
        assert store.records(user_id="louis", tenant_id="app_iOS", limit=1) == [record]


@pytest.mark.requirement("M08")
def test_a_record_in_json_has_exactly_the_names_of_the_schema(store) -> None:
    chat = store.chat(user_id="louis", session_id="s", agent_id="cook")
    relations = [Relation("related_to", chat.remember("No milk.").memory_id)]
    fields = {"summary": NUTS, "structured": {"food": "nuts"}, "tags": ["food"], "allowed_roles": ["cook"]}
    chat.remember(NUTS, **fields, relations=relations, visibility="share", allowed_users=["eve"])
    store.flush()
    (record,) = [one for one in store.records(user_id="louis") if one.relations]
    form = replace(record, last_accessed=record.created_at).to_json()
    assert set(LAYER) <= set(form)
    for part in ("content", "embedding", "metadata", "time", "access_control"):
        assert set(form[part]) == set(LAYER[part])
    assert [set(one) for one in form["relations"]] == [set(one) for one in LAYER["relations"]]


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
    "metadata": {
        "importance": 0.92,
        "confidence": 0.96,
        "tags": ["style"],
        "source": "explicit_user_input",
        "version": 1,
    },
    "time": {
        "created_at": "2026-01-05T10:00:00Z",
        "updated_at": "2026-01-06T10:00:00Z",
        "last_accessed": "2026-01-07T10:00:00Z",
        "decay_score": 0.95,
    },
    "relations": [{"type": "related_to", "target_memory_id": "louis_mem_001"}],
    "access_control": {
        "visibility": "private",
        "allowed_users": ["louis"],
        "allowed_roles": ["admin", "editor"],
    },
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


def test_its_scope_alone_is_its_visibility() -> None:
    shared = {**LAYER, "scope": "public", "access_control": {}}
    assert Record.from_json(shared).access_control == Access("public")
    with pytest.raises(InvalidRecordError, match="`scope` says"):
        Record.from_json({**LAYER, "scope": "public"})
    with pytest.raises(InvalidRecordError):
        Record.from_json({**LAYER, "fact": "none"})


def test_what_is_not_said_has_a_default(store) -> None:
    record = store.chat(user_id="louis").remember(NUTS)
    assert (record.type, record.importance, record.confidence) == ("semantic", 0.5, 1.0)
    assert (record.source, record.scope, record.expires_at) == ("explicit_user_input", "private", None)
    assert (record.decay_score, record.access_control) == (1.0, Access())


def test_its_vector_is_kept_with_the_name_of_its_model(store) -> None:
    assert store.chat(user_id="louis").remember(NUTS).embedding is None
    store.flush()
    (record,) = store.records(user_id="louis")
    assert record.embedding.model == store.admin.status().embedder == record.to_json()["embedding"]["model"]
    expected = store.runtime.embedder.embed([NUTS])[0]
    assert float(record.embedding.vector @ expected) == pytest.approx(1, abs=1e-3)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"text": " \n"}, "`text` must be text"),
    ({"text": None}, "`text` must be text"),
    ({"text": "a\0b"}, "NUL"),
    ({"text": "\ud800"}, "lone surrogate"),
    ({"type": ["semantic"]}, "unknown `type`"),
    ({"source": "hearsay"}, "unknown `source`"),
    ({"visibility": "secret"}, "unknown `visibility`"),
    ({"importance": 1.01}, "`importance` must be a number from 0 to 1"),
    ({"confidence": float("nan")}, "`confidence`"),
    ({"decay_score": True}, "`decay_score`"),
    ({"expires_at": datetime(2100, 1, 1)}, "time zone"),  # noqa: DTZ001
    ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "in the past"),
    ({"expires_at": "tomorrow"}, "`expires_at` must be a datetime"),
    ({"expires_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-9)))}, "outside"),
    ({"tags": "food"}, "`tags` must be a list"),
    ({"tags": [1]}, "`tags` holds int 1"),
    ({"allowed_users": ["memlayer:session:s"]}, "`allowed_users`"),
    ({"allowed_roles": ["\0"]}, "`allowed_roles`"),
    ({"structured": ["a"]}, "`structured` must be a mapping"),
    ({"structured": {"a": float("inf")}}, "which JSON does not have"),
    ({"relations": ["louis_mem_001"]}, "`relations` holds"),
    ({"relations": [Relation("related_to", "nobody")]}, "no id of a record"),
    ({"mentions": 3}, "no field 'mentions'"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[str(given)[:40] for given, _ in BAD])
def test_what_cannot_be_stored_is_refused_before_anything_is_written(memory, given, said) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    with pytest.raises(InvalidRecordError, match=said):
        chat.remember(**{"text": NUTS, **given})
    kept = chat.remember(NUTS)
    if given != {"text": None}:  # what it says already
        with pytest.raises(InvalidRecordError, match=said):
            chat.revise(kept.memory_id, **{"text": "Another text.", **given})
    assert memory.records(user_id="louis", all_versions=True) == [kept]


def test_a_text_that_is_larger_than_the_limit_is_refused(open_with) -> None:
    with pytest.raises(InvalidRecordError, match="larger than the limit of 10"):
        open_with(Tuned(message_bytes_limit=10)).chat(user_id="louis").remember(NUTS)


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
    assert len(rows(store, "memlayer_lexical")) == 1
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


def test_a_change_may_not_repeat_another_record(store) -> None:
    chat = store.chat(user_id="louis")
    first, second = chat.remember(NUTS), chat.remember("Louis likes tea.")
    with pytest.raises(InvalidRecordError, match="'louis_mem_001' says the same"):
        chat.revise(second.memory_id, NUTS.upper())
    assert store.records(user_id="louis", all_versions=True) == [second, first]
    assert told(store, Scope("louis"), words="tea") == ["Louis likes tea."]


def test_only_a_record_of_the_user_can_be_changed_or_forgotten(store) -> None:
    chat = store.chat(user_id="louis")
    kept = chat.remember(NUTS)
    store.chat(user_id="eve").remember(NUTS, visibility="public")
    for record_id in ("louis_mem_002", "eve_mem_001", "louis_mem_01", "", 7):
        with pytest.raises(InvalidRecordError):
            chat.revise(record_id, "Mine now.")
        with pytest.raises(InvalidRecordError):
            chat.revise(kept.memory_id, merge=[record_id])
        with pytest.raises((InvalidRecordError, InvalidScopeError)):
            store.forget("louis", record_id=record_id)
    for merge, why in (([kept.memory_id], "into itself"), (kept.memory_id, "`merge` must be a list")):
        with pytest.raises(InvalidRecordError, match=why):
            chat.revise(kept.memory_id, merge=merge)
    assert texts(store, "louis", all_versions=True) == texts(store, "eve", all_versions=True) == [NUTS]


def test_a_record_of_another_agent_or_tenant_is_unknown(store) -> None:
    kept = store.chat(user_id="louis", agent_id="cook", tenant_id="a").remember(NUTS)
    for agent, tenant in (("pilot", "a"), ("cook", "b"), (None, "default")):
        with pytest.raises(UnknownRecordError):
            store.chat(user_id="louis", agent_id=agent, tenant_id=tenant).revise(kept.memory_id, "x")
        with pytest.raises(UnknownRecordError):
            store.forget(record_id=kept.memory_id, agent_id=agent, tenant_id=tenant)
    assert store.chat(user_id="louis", tenant_id="a").revise(kept.memory_id, "x").version == 2


# --- who may see it


@pytest.mark.requirement("M11", "M23")
@pytest.mark.parametrize(
    ("access", "seen_by"),
    [
        ({}, "louis"),
        ({"visibility": "share"}, "louis"),
        ({"visibility": "private", "allowed_users": ["eve"]}, "louis eve"),
        ({"visibility": "share", "allowed_roles": ["editor"]}, "louis bob-as-editor"),
        (
            {"visibility": "share", "allowed_users": ["eve"], "allowed_roles": ["editor"]},
            "louis eve bob-as-editor",
        ),
        ({"visibility": "public"}, "louis eve bob bob-as-editor bob-as-reader"),
    ],
    ids=str,
)
def test_a_record_is_told_to_those_it_names_and_to_nobody_else(store, access, seen_by) -> None:
    store.chat(user_id="louis").remember(NUTS, **access)
    asking = {
        "louis": (Scope("louis"), ()),
        "eve": (Scope("eve"), ()),
        "bob": (Scope("bob"), ()),
        "bob-as-editor": (Scope("bob"), ("reader", "editor")),
        "bob-as-reader": (Scope("bob"), ("reader",)),
        "louis elsewhere": (Scope("louis", tenant_id="other"), ("editor",)),
        "eve elsewhere": (Scope("eve", tenant_id="other"), ("editor",)),
    }
    for name, (reach, roles) in asking.items():
        seen = [NUTS] if name in seen_by.split() else []
        whose = {"tenant_id": reach.tenant_id, "roles": roles}
        assert told(store, reach, *roles) == texts(store, reach.user_id, shared=True, **whose) == seen
        own = [NUTS] if name == "louis" else []
        assert texts(store, reach.user_id, all_versions=True, **whose) == own


@pytest.mark.requirement("M23")
def test_what_is_withdrawn_is_seen_no_more_and_leaves_the_index(open_with) -> None:
    store = open_with(Tuned(index_delay=3600, durability="normal", exact_scan_limit=0))
    chat, eve = store.chat(user_id="louis"), Scope("eve")
    record = chat.remember("Louis owes Eve nuts.", visibility="public")
    store.flush()
    assert told(store, eve) == [record.text]
    chat.revise(record.memory_id, visibility="private")
    assert told(store, eve) == []
    store.flush()
    assert told(store, eve) == []
    assert told(store, Scope("louis")) == [record.text]
    chat.revise(record.memory_id, NUTS, visibility="share", allowed_users=["eve"])
    assert told(store, eve) == texts(store, "eve", shared=True, all_versions=True) == [NUTS]
    store.flush()
    counted = {row.user_id: row.vectors for row in rows(store, "memlayer_namespaces")}
    assert counted == {"louis": 0, "": 1}
    assert store.admin.verify() == []


@pytest.mark.requirement("M15", "M16")
def test_with_an_agent_only_its_own_records_are_told(store) -> None:
    for agent in (None, "cook", "pilot"):
        store.chat(user_id="louis", agent_id=agent).remember(f"nuts for {agent}")
        store.chat(user_id="eve", agent_id=agent).remember(f"nuts of eve for {agent}", visibility="public")
    store.flush()
    rt, vector = store.runtime, store.runtime.embedder.embed_query("nuts")
    for reach, count in ((Scope("louis", agent_id="cook"), 2), (Scope("louis"), 6)):
        near = [rt.db.read(compare, rt, scope, vector, 9) for scope in (reach, reach.commons)]
        assert sum(map(len, near)) == len(told(store, reach)) == count
    assert sorted(told(store, Scope("louis", agent_id="cook"))) == ["nuts for cook", "nuts of eve for cook"]


def test_a_session_without_a_user_keeps_its_records_to_itself(store) -> None:
    alone = Scope.alone("by itself")
    record = store.chat_of(alone).remember(NUTS)
    assert told(store, alone) == texts(store, alone.user_id) == [NUTS]
    assert told(store, Scope.alone("another")) == []
    assert store.forget(record_id=record.memory_id).records == 1


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


@pytest.mark.requirement("M20", "J11")
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
    assert store.records(user_id="louis")[0].last_accessed == NOW


def test_a_record_is_told_once_beside_its_message_and_to_who_has_nothing_else(store) -> None:
    store.chat(user_id="louis").remember(NUTS)
    asked = "To what is Louis allergic?"
    assert NUTS in store.chat(user_id="louis").context(asked).recall
    store.chat(user_id="louis").add("user", NUTS)
    assert store.chat(user_id="louis", session_id="later").context(asked).recall.count(NUTS) == 1
    cupboard = "The nuts are in the cupboard."
    store.chat(user_id="eve").remember(cupboard, allowed_roles=["cook"], visibility="share")
    assert store.chat(user_id="bob").context("Where are the nuts?").recall == ""
    cook = store.chat(user_id="bob", roles=["cook"])
    cook.add("user", "Where are the nuts?")
    for chat in (cook, cook.fork()):
        assert cupboard in chat.context().recall


@pytest.mark.parametrize("change", ["withdrawn", "changed", "merged", "forgotten"])
def test_a_record_that_stands_with_a_question_goes_when_it_is_changed(store, change) -> None:
    owner = store.chat(user_id="eve")
    record = owner.remember("The nuts are in the cupboard.", visibility="public")
    other = owner.remember("Eve tidied up.")
    chat = store.chat(user_id="bob")
    chat.add("user", "Where are the nuts?")
    assert "cupboard" in chat.context().recall
    chat.add("assistant", "Let me see.")
    assert "cupboard" in chat.context().recall
    match change:
        case "withdrawn":
            owner.revise(record.memory_id, visibility="private")
        case "changed":
            owner.revise(record.memory_id, "The nuts are gone.")
        case "merged":
            owner.revise(other.memory_id, merge=[record.memory_id])
        case "forgotten":
            store.forget(record_id=record.memory_id)
    assert "cupboard" not in chat.context().recall


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


@pytest.mark.parametrize(
    "roles", ["editor", [1], [f"role {n}" for n in range(101)]], ids=["text", "number", "many"]
)
def test_roles_that_make_no_sense_are_refused(memory, roles) -> None:
    with pytest.raises(InvalidRecordError, match="roles"):
        memory.search("nuts", user_id="louis", roles=roles)
    with pytest.raises(InvalidRecordError, match="roles"):
        memory.chat(user_id="louis", roles=roles)


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
        assert told(chat.memory, Scope(user), "t", words="3") == seen, "a tag is no permission"


@pytest.mark.parametrize(
    "asked",
    [{"type": "fact"}, {"tags": [1]}, {"limit": 0}, {"offset": -1}, {"roles": [""]}, {"record_id": "x"}],
    ids=str,
)
def test_a_listing_that_makes_no_sense_is_refused(memory, asked) -> None:
    with pytest.raises(InputError, match=next(iter(asked)).removesuffix("_id")):
        memory.records(user_id="louis", **asked)


# --- forgetting


def test_forgetting_a_user_takes_the_records_and_all_they_are_found_by(store) -> None:
    louis = store.chat(user_id="louis", session_id="s")
    louis.add("user", "nuts")
    louis.remember(NUTS, allowed_users=["eve"], tags=["food"])
    louis.revise(louis.remember("Louis likes nuts.").memory_id, "Louis likes all nuts.")
    store.chat(user_id="eve").remember("Eve likes nuts.", visibility="public")
    store.flush()
    assert store.forget("louis") == ForgetReport(1, 1, 2)
    assert [row.user_id for row in rows(store, "memlayer_records")] == ["eve"]
    assert_one_is_indexed(store)
    assert {row.user_id: row.vectors for row in rows(store, "memlayer_namespaces")} == {"eve": 0, "": 1}
    assert louis.remember(NUTS).mentions == 1
    assert store.forget("louis") == ForgetReport(0, 0, 1), "who has nothing but records is forgotten, too"


def test_forgetting_a_session_takes_what_comes_from_it(store) -> None:
    one, two, eve = (
        store.chat(user_id=user, session_id=session)
        for user, session in (("louis", "one"), ("louis", "two"), ("eve", "one"))
    )
    for chat in (one, two, eve):
        chat.add("user", "nuts")
        chat.remember(f"Likes nuts {chat.session_id}.")
    assert store.forget("louis", session_id="one") == ForgetReport(1, 1, 1)
    assert texts(store, "louis") == ["Likes nuts two."]
    assert texts(store, "eve") == ["Likes nuts one."]
    assert [len(chat.history()) for chat in (one, two, eve)] == [0, 1, 1]


def test_clearing_a_session_leaves_a_record_and_forgetting_it_gives_its_id_to_nobody(store) -> None:
    chat = store.chat(user_id="louis")
    chat.add("user", "nuts")
    record = chat.remember(NUTS)
    store.flush()
    chat.clear()
    assert texts(store, "louis") == told(store, Scope("louis")) == [NUTS]
    assert store.forget(record_id=record.memory_id) == ForgetReport(0, 0, 1)
    assert chat.remember(NUTS).memory_id == "louis_mem_002"
    assert_one_is_indexed(store)
    with pytest.raises(UnknownRecordError):
        store.forget(record_id=record.memory_id)


def test_forgetting_nobody_is_refused(memory) -> None:
    for whose in ({}, {"tenant_id": "t", "agent_id": "a"}):
        with pytest.raises(InvalidScopeError, match="no user, session or record"):
            memory.forget(**whose)


# --- background work


def test_a_record_is_announced_without_its_words(memory) -> None:
    heard: list[Any] = []
    memory.listen(heard.append)
    chat = memory.chat(user_id="louis")
    chat.revise(chat.remember(NUTS).memory_id, importance=0.9)
    namespace = Scope("louis").namespace
    expected = [RecordStored(namespace, "louis_mem_001", version, 1) for version in (1, 2)]
    assert [event for event in heard if isinstance(event, RecordStored)] == expected
    assert "nuts" not in repr(heard)


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
        assert store.admin.reindex() == 3
        assert store.admin.verify() == []
        assert in_chroma(store) == in_journal(store)
        assert store.search("Who may eat nuts?", user_id="louis")[0].text == NUTS
    with Memory.open(store.path, embedder=lengths, reembed=True) as again:
        again.flush()
        assert [len(one.embedding.vector) for one in again.records(user_id="louis")] == [2, 2]


def test_a_job_that_is_done_twice_does_what_it_does_once(store) -> None:
    chat = store.chat(user_id="louis")
    record = chat.remember(NUTS)
    db, now = store.runtime.db, datetime.now(UTC)
    soon, later = now + timedelta(seconds=1), now + timedelta(seconds=2)
    jobs = db.write(storage_jobs.lease, ("index",), 10, "one that dies", soon, later)
    (waiting,) = db.read(vectors.index_tasks, [job.subject for job in jobs])
    vector = store.runtime.embedder.embed([waiting.text])[0]
    filing = IndexEntry(waiting.key, waiting.buckets, vector, waiting.text_hash)
    for _ in range(2):
        db.write(vectors.store, [filing], store.runtime.now())
    chat.revise(record.memory_id, "Louis may eat nuts.")
    db.write(vectors.store, [filing], store.runtime.now())  # whoever was late
    assert rows(store, "memlayer_texts WHERE vector IS NOT NULL") == []
    db.write(storage_jobs.finish, jobs)
    assert_one_is_indexed(store)
    assert [row.vectors for row in rows(store, "memlayer_namespaces")] == [1]


@pytest.mark.requirement("M22")
def test_when_a_record_was_recalled_is_written_down_in_the_background(clocked) -> None:
    store, later = clocked(NOW), NOW + timedelta(days=1)
    record = store.chat(user_id="louis").remember(NUTS)
    rt = clocked(later).runtime
    (row,) = rt.db.read(records_writes.list_rows, Scope("louis"))
    rt.note_recall([row.number])
    store.flush()
    (seen,) = store.records(user_id="louis")
    assert seen == replace(record, last_accessed=later, accesses=1)
    rt.db.write(records_writes.note_recall, [row.number], NOW)  # word that comes late changes nothing
    assert store.records(user_id="louis") == [seen]


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


def test_an_imported_record_goes_on_where_it_was_and_never_back(store, memory) -> None:
    chat = store.chat(user_id="louis")
    record = chat.remember(NUTS)
    old = exported(store)
    memory.import_from(io.StringIO(old))
    chat.revise(record.memory_id, "Louis may eat nuts.")
    for text, remembered in ((exported(store), 1), (old, 0)):
        assert memory.import_from(io.StringIO(text)).remembered == remembered
        assert everything(memory) == everything(store)
    assert told(memory, Scope("louis")) == ["Louis may eat nuts."]
    assert memory.chat(user_id="louis").remember("Something else.").memory_id == "louis_mem_002"


def test_a_record_whose_id_is_taken_gets_another(store, memory) -> None:
    store.chat(user_id="louis").remember("Louis likes tea.")
    memory.chat(user_id="louis").remember(NUTS)
    for _ in range(2):
        memory.import_from(io.StringIO(exported(store)))
        found = {one.memory_id: one.text for one in memory.records(user_id="louis", all_versions=True)}
        assert found == {"louis_mem_001": NUTS, "louis_mem_002": "Louis likes tea."}


@pytest.mark.parametrize(
    "change",
    [
        lambda form: form["record"].pop("type"),
        lambda form: form["record"].update(memory_id="eve_mem_001"),
        lambda form: form["record"].update(content=["raw"]),
        lambda form: form["record"]["metadata"].update(importance=7),
        lambda form: form["record"]["time"].update(created_at="soon"),
        lambda form: form.update(before=[form["record"]]),
    ],
)
def test_a_line_that_is_no_record_stops_the_import(store, memory, change) -> None:
    store.chat(user_id="louis").remember(NUTS)
    head, user, line, end = exported(store).splitlines()
    form = json.loads(line)
    change(form)
    with pytest.raises(ImportStoppedError, match="line 3"):
        memory.import_from([head, user, json.dumps(form), end])
    with pytest.raises(ImportStoppedError, match="lines are missing"):
        memory.import_from([head, end])
    assert memory.records(user_id="louis", all_versions=True) == []


# --- rules

words = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12
).filter(lambda text: bool(text.strip()))
lists = st.lists(words, max_size=3, unique=True).map(tuple)
shares = st.floats(0, 1)
moments = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ids = st.builds(model.memory_id, st.just("louis"), st.integers(1, 10**12))
notes = st.none() | words
dates = st.none() | moments
values = st.none() | st.integers() | st.text(max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("tenant_id", "raw"), words),
    **dict.fromkeys(("agent_id", "session_id", "category", "key", "value", "summary"), notes),
    **dict.fromkeys(("created_at", "updated_at", "first_observed"), moments),
    **dict.fromkeys(("occurred_at", "last_accessed", "expires_at"), dates),
    **dict.fromkeys(("key_topics", "actions_taken", "outcomes", "tags"), lists),
    **dict.fromkeys(("importance", "confidence", "decay_score"), shares),
    **dict.fromkeys(("mentions", "version"), st.integers(1, 1000)),
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


@given(user=words, number=st.integers(1, 10**12), other=words)
def test_an_id_names_one_user_and_one_number(user, number, other) -> None:
    assert model.ordinal_of(model.memory_id(user, number)) == (user, number)
    strange = model.memory_id(model.memory_id(user, number), 1)
    assert model.ordinal_of(strange) == (model.memory_id(user, number), 1)
    if user != other:
        assert model.memory_id(user, number) != model.memory_id(other, number)


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


@given(text=words, spaces=st.lists(st.sampled_from(["\t", "\n", "  ", "\u3000"]), min_size=2, max_size=2))
def test_case_and_spacing_make_no_other_record(text, spaces) -> None:
    scope = Scope("louis", "s")
    said = check.new_record(scope, f"Nuts {text}", {}, NOW)
    again = check.new_record(scope, f"{spaces[0]}nUTS{spaces[1]}{text} ", {}, NOW)
    assert digest(said) == digest(again)
    assert digest(said) != digest(check.new_record(Scope("eve", "s"), f"Nuts {text}", {}, NOW))
    assert digest(said) != digest(check.new_record(scope, f"Nut {text}", {}, NOW))


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
            with suppress(UnknownRecordError):  # somebody else was faster
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


@pytest.mark.parametrize("agent", [None, "cook"])
def test_saying_it_again_as_private_takes_it_from_everybody_else(store, agent) -> None:
    chat = store.chat(user_id="louis", session_id="s", agent_id=agent)
    louis, eve = Scope("louis", agent_id=agent), Scope("eve", agent_id=agent)
    shared = chat.remember(NUTS, visibility="public", tags=["food"], importance=0.9)
    store.flush()
    assert told(store, eve) == [NUTS]
    assert chat.remember(NUTS).scope == "public", "nothing was said of whom to tell"
    again = chat.remember(NUTS, visibility="private")
    assert (again.memory_id, again.version, again.mentions) == (shared.memory_id, 2, 3)
    assert (again.tags, again.importance, again.access_control) == (("food",), 0.9, Access())
    store.flush()
    for asked in ("nuts", "food"):
        assert (told(store, louis, words=asked), told(store, eve, words=asked)) == ([NUTS], [])
    assert store.admin.verify() == []
    assert chat.remember(NUTS, visibility="public").access_control == Access(), "nobody else is told again"
    chat.revise(again.memory_id, visibility="public")
    store.flush()
    assert told(store, eve) == [NUTS]
