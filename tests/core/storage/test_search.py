"""Words and vectors in SQL, on each database: what is found, by whom, whoever changed it; and how vectors are packed."""

import random
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sql import EVE, LOUIS, SHARDS, filed_under, filing, stored_vectors
from tuned import Tuned

from examples import examples
from memlayer_core import Scope
from memlayer_core.messages import reads as messages_reads, writes as messages_writes
from memlayer_core.messages.model import Batch
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage import jobs, tables, vectors
from memlayer_core.storage.blobs import packed, unpacked
from memlayer_core.storage.database import Connection, Database, ensure_tables, open_database
from memlayer_core.storage.vectors import VectorCache
from memlayer_core.testing import NOON
from memlayer_core.transfer.sql import forget
from tests.conftest import PROMPT
from tests.drafts import draft, drafts
from tests.sql import postings

pytestmark = pytest.mark.each_database

(QUESTION,) = filing(0, LOUIS, [1, 2, 3]).vectors
HELPER = Scope("louis", "s2", agent_id="helper")
REACHES = (Scope("louis"), Scope("louis", agent_id="helper"), Scope("eve"))


def nearest(db: Database, cache: VectorCache, reach: Scope) -> dict[int, float]:
    def read(connection: Connection) -> dict[int, float]:
        overview = vectors.overview(connection, reach)
        near = cache.columns(connection, reach, overview).nearest(QUESTION, 100)
        return {one.key: round(one.similarity, 4) for one in near}

    return db.read(read)


def in_journal(db: Database, reach: Scope) -> dict[int, float]:
    """Return the same, straight from the rows: each text is as near as the nearest of its parts."""
    columns = tables.texts.c
    query = tables.texts.select().where(columns.namespace == reach.namespace, columns.vector.is_not(None))
    return {
        row.key: round(float(max(QUESTION @ unpacked([row.vector], [row.vectors]))), 4)
        for row in db.read(lambda connection: connection.execute(query).all())
        if reach.agent_id is None or row.agent_bucket == reach.bucket
    }


def add_x(db: Database, scope: Scope, *vectors_of_it: list[float], now: datetime = NOON) -> int:
    """Add a message, and its vector if one is given. Returns its key."""
    db.write(messages_writes.append, Batch(scope, [draft("user", "x", id="m1")], NOON))
    (key,) = filed_under(db, scope, "x")
    db.write(vectors.store, [filing(key, scope, vector) for vector in vectors_of_it], now)
    return key


VERBS = st.sampled_from(["add", "embed", "forget one", "forget all", "ask"])
STEPS = st.lists(st.tuples(VERBS, st.sampled_from([LOUIS, HELPER, EVE]), st.integers(0, 9)), max_size=25)


@given(STEPS, st.sampled_from([0, 3_000, 2**20]))
@examples(90)
def test_a_search_compares_exactly_what_the_journal_has(steps, max_bytes) -> None:
    db, now = open_database(None, Tuned()), NOON
    db.write(ensure_tables, shards=SHARDS)
    cache, late = VectorCache(max_bytes), VectorCache(2**20)
    before = [(what, scope, 2) for scope in (LOUIS, HELPER, EVE) for what in ("add", "embed")]
    try:
        for what, scope, number in (*before, *steps):
            now += timedelta(microseconds=1)
            here = filed_under(db, scope, "x")
            match what:
                case "add":
                    db.write(messages_writes.append, Batch(scope, drafts(*["x"] * (number + 1)), now))
                case "embed":  # again, some of them
                    some = here[: number + 1]
                    made = [
                        filing(key, scope, [key % 7 + 1, number, 1], *[[1, part, key % 5]] * (part % 3))
                        for part, key in enumerate(some, number)
                    ]
                    db.write(vectors.store, made, now)
                case "forget one" if here:
                    db.write(messages_writes.delete_message, scope, number % len(here), now)
                case "forget all":
                    db.write(messages_writes.clear_session, scope, now)
                case _:
                    nearest(db, late, REACHES[number % 3])
            for reach in REACHES:
                assert nearest(db, cache, reach) == in_journal(db, reach)
        for reach in REACHES:
            assert nearest(db, late, reach) == in_journal(db, reach)
        assert cache.bytes <= max_bytes
    finally:
        db.close()


def test_new_vectors_are_found_at_once_in_reach_and_of_a_user_who_came_back_alone(db: Database) -> None:
    cache, reach, keys, versions = VectorCache(2**20), LOUIS.reach(), set[int](), set[int]()
    for count in (8, 1, 1):
        db.write(messages_writes.append, Batch(LOUIS, drafts(*["x"] * count), NOON))
        new = set(filed_under(db, LOUIS, "x")) - keys
        db.write(vectors.store, [filing(key, LOUIS, [key, 1, 1]) for key in new], NOON)
        keys |= new
        versions.add(db.read(vectors.overview, reach).version)
        assert set(nearest(db, cache, reach)) == keys
    assert len(versions) == 3, "each commit raises the version"
    for day, vector in enumerate(([1, 0, 0], [0, 0, 1])):
        db.write(forget, reach, NOON)
        add_x(db, LOUIS, vector, now=NOON + timedelta(days=day))
        assert nearest(db, cache, reach) == in_journal(db, reach)
    for scope in (HELPER, EVE):
        add_x(db, scope, [3, 2, 1])
    for one in REACHES:
        assert nearest(db, cache, one) == in_journal(db, one)
    assert len(nearest(db, cache, REACHES[0])) == db.read(vectors.overview, REACHES[0]).vectors == 2
    assert list(nearest(db, cache, REACHES[1]).values()) == pytest.approx([10 / 14], abs=0.001)


def test_words_are_found_only_within_reach_and_hostile_ones_are_words(db):
    helper = Scope("louis", "s1", agent_id="helper")
    for scope in (LOUIS, EVE, helper, Scope("louis", "s1", tenant_id="other")):
        db.write(messages_writes.append, Batch(scope, [draft("user", f"tokyo of {scope.user_id}")], NOON))

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
    assert db.read(messages_reads.find_messages, Scope("louis"), of_eve) == [], "keys of others bring nothing"

    hostile = "it's \"quoted\" AND (near* : ^col) 'x' \\ OR -"
    db.write(messages_writes.append, Batch(EVE, drafts("我五月份搬到了东京。", "很好!", hostile), NOON))
    found = db.read(postings, EVE.reach(), ("东京", "京东", "京"))
    assert {word: list(keys.values()) for word, keys in found.items()} == {"东京": [1], "京": [1]}
    for query in ("it's", '"quoted"', "AND", "near*", "'x'", "\\", "buckets : *", "NOT"):
        filed_under(db, EVE.reach(), query)
    assert len(filed_under(db, EVE.reach(), "quoted")) == 1


def test_a_speaker_whose_name_is_one_endless_word_is_found_by_it(open_with):
    memory = open_with(PROMPT)
    letters = list(filter(str.isalpha, map(chr, range(0x1200, 0x1350))))
    name = "".join(random.Random(1).choices(letters, k=1_500))
    chat = memory.chat(user_id="ada", session_id="s")
    for speaker, verb in ((name, "won"), ("Lee", "lost")):
        chat.add("user", f"We {verb} the cup.", name=speaker)
    memory.flush()
    best, _ = memory.search(f"Which cup did {name} see?", user_id="ada")
    assert best.text == "We won the cup."


def test_a_vector_is_kept_for_the_same_text_alone_and_as_long_as_that_is_there(db):
    key = add_x(db, LOUIS)
    (waiting,) = db.read(vectors.index_tasks, [key])
    assert not waiting.vectors
    assert waiting.buckets == (LOUIS.user_bucket, LOUIS.agent_bucket, LOUIS.session_bucket)
    db.write(vectors.store, [replace(filing(key, LOUIS, [1, 0]), text_hash=waiting.text_hash)], NOON)
    assert db.read(vectors.index_tasks, [key])[0].vectors
    db.write(messages_writes.append, Batch(LOUIS, [draft("user", "y", id="m1")], NOON))
    assert not db.read(vectors.index_tasks, [key])[0].vectors
    db.write(messages_writes.clear_session, LOUIS, NOON)
    db.write(vectors.store, [filing(key, LOUIS, [1, 0])], NOON)
    assert db.read(stored_vectors) == []
    assert db.read(vectors.index_tasks, [key]) == []


def test_the_embedder_of_the_first_vectors_is_recorded_and_stays(db):
    assert db.read(vectors.layout).embedder is None
    assert db.write(vectors.set_embedder, "none yet", None).embedder == "none yet"
    assert db.read(vectors.layout).dimension is None
    for name, dimension in (("one", 4), ("two", 8), ("three", None)):
        assert db.write(vectors.set_embedder, name, dimension).embedder == "one"
    assert db.read(vectors.layout).dimension == 4
    db.write(messages_writes.append, Batch(LOUIS, [*drafts("x"), draft("system", "no")], NOON))
    db.write(vectors.forget, NOON)
    assert db.read(vectors.layout).embedder is None
    assert db.read(jobs.backlog).queued == 1


SIZES = st.tuples(st.integers(1, 4), st.floats(0, 1))


@given(st.lists(SIZES, min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_rows_of_any_density_come_back_together(rows, dimension: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    sizes = [((count, dimension), share) for count, share in rows]
    given_ = [chance.normal(size=size) * (chance.random(size) < share) for size, share in sizes]
    blobs = [packed(one.astype(np.float32)) for one in given_]
    back = unpacked(blobs, [len(one) for one in given_]).T
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, np.concatenate(given_), atol=2e-3, rtol=1e-3)


def test_a_hashed_message_takes_a_sixth_of_its_floats() -> None:
    (vector,) = HashingEmbedder().embed(["I moved to Leeds with my mate Joe last summer, near the river."])
    assert len(packed([vector])) < 4 * len(vector) / 6
    assert (vector @ unpacked([packed([vector])], [1])).item() > 0.999
