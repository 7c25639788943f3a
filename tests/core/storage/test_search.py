"""Words and vectors in SQL, on each database: what is found, and by whom."""

from __future__ import annotations

from dataclasses import replace

from sql import EVE, LOUIS, SHARDS, filed_under, filing, stored_vectors

from memlayer_core import Scope
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.storage import jobs, vectors
from memlayer_core.storage.vectors import VectorCache
from memlayer_core.testing import NOON
from tests.drafts import draft, drafts
from tests.sql import postings


def test_words_are_found_only_within_reach_and_keys_of_others_bring_nothing(db):
    helper = Scope("louis", "s1", agent_id="helper")
    for scope in (LOUIS, EVE, helper, Scope("louis", "s1", tenant_id="other")):
        db.write(messages_writes.append, scope, [draft("user", f"tokyo of {scope.user_id}")], NOON, SHARDS)

    def whose(reach: Scope) -> list[tuple[str, str | None, str]]:
        found = filed_under(db, reach, "tokyo")
        records = db.read(messages_reads.find_messages, reach, found)
        assert len(records) == len(found)
        return sorted((r.scope.user_id, r.scope.agent_id or "", r.scope.tenant_id) for r in records)

    assert whose(Scope("louis")) == [("louis", "", "default"), ("louis", "helper", "default")]
    assert whose(Scope("louis", agent_id="helper")) == [("louis", "helper", "default")]
    assert whose(EVE) == [("eve", "", "default")]
    assert whose(Scope("louis", tenant_id="other")) == [("louis", "", "other")]
    assert whose(Scope("nobody")) == []
    of_eve = filed_under(db, EVE.reach(), "tokyo")
    assert len(of_eve) == 1
    assert db.read(messages_reads.find_messages, Scope("louis"), of_eve) == []


def test_chinese_words_of_two_characters_are_found_and_hostile_words_are_words(db):
    hostile = "it's \"quoted\" AND (near* : ^col) 'x' \\ OR -"
    db.write(messages_writes.append, LOUIS, drafts("我五月份搬到了东京。", "很好!", hostile), NOON, SHARDS)
    found = db.read(postings, LOUIS.reach(), ("东京", "京东", "京"))
    assert {word: list(keys.values()) for word, keys in found.items()} == {"东京": [1], "京": [1]}
    for query in ("it's", '"quoted"', "AND", "near*", "'x'", "\\", "lanes : *", "NOT"):
        filed_under(db, LOUIS.reach(), query)
    assert len(filed_under(db, LOUIS.reach(), "quoted")) == 1


def test_vectors_are_compared_within_reach_alone(db):
    helper = Scope("louis", "s1", agent_id="helper")

    def similarities(reach: Scope) -> list[float]:
        def read(connection):
            columns = VectorCache(2**20).columns(connection, reach, vectors.overview(connection, reach))
            return columns.nearest(filing(0, LOUIS, [1, 0]).vector, 10)

        return [round(neighbour.similarity, 3) for neighbour in db.read(read)]

    for scope, vector in ((LOUIS, [1, 0]), (helper, [0.8, 0.6]), (EVE, [1, 0])):
        db.write(messages_writes.append, scope, drafts("x"), NOON, SHARDS)
        (key,) = filed_under(db, scope, "x")
        db.write(vectors.store, [filing(key, scope, vector)], NOON)
    assert similarities(Scope("louis")) == [1.0, 0.8]
    assert similarities(Scope("louis", agent_id="helper")) == [0.8]
    assert db.read(vectors.overview, Scope("louis")).vectors == 2


def test_no_vector_is_kept_of_a_message_that_is_gone(db):
    db.write(messages_writes.append, LOUIS, drafts("x"), NOON, SHARDS)
    (key,) = filed_under(db, LOUIS, "x")
    db.write(messages_writes.clear_session, LOUIS, NOON)
    db.write(vectors.store, [filing(key, LOUIS, [1, 0])], NOON)
    assert db.read(stored_vectors) == []
    assert db.read(vectors.index_tasks, [key]) == []


def test_a_kept_vector_is_offered_again_for_the_same_text_only(db):
    db.write(messages_writes.append, LOUIS, [draft("user", "x", id="m1")], NOON, SHARDS)
    (key,) = filed_under(db, LOUIS, "x")
    (waiting,) = db.read(vectors.index_tasks, [key])
    assert not waiting.vectors
    assert waiting.lanes == (LOUIS.user_lane, LOUIS.agent_lane, LOUIS.session_lane)
    db.write(vectors.store, [replace(filing(key, LOUIS, [1, 0]), text_hash=waiting.text_hash)], NOON)
    assert db.read(vectors.index_tasks, [key])[0].vectors
    db.write(messages_writes.append, LOUIS, [draft("user", "y", id="m1")], NOON, SHARDS)
    assert not db.read(vectors.index_tasks, [key])[0].vectors


def test_the_embedder_of_the_first_vectors_is_recorded_and_stays(db):
    assert db.read(vectors.layout).embedder is None
    assert db.write(vectors.set_embedder, "none yet", None).embedder == "none yet"
    assert db.read(vectors.layout).dimension is None
    for name, dimension in (("one", 4), ("two", 8), ("three", None)):
        assert db.write(vectors.set_embedder, name, dimension).embedder == "one"
    assert db.read(vectors.layout).dimension == 4
    db.write(messages_writes.append, LOUIS, [*drafts("x"), draft("system", "no")], NOON, SHARDS)
    db.write(vectors.forget, NOON)
    assert db.read(vectors.layout).embedder is None
    assert db.read(jobs.backlog).queued == 1
