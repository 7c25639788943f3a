"""What the vector cache returns is what the journal has at that moment, whoever changed it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st
from sql import EVE, LOUIS, SHARDS, filed_under, filing
from tuned import Tuned

from examples import examples
from memlayer_core import Scope
from memlayer_core.messages import writes as messages_writes
from memlayer_core.storage import tables, vectors
from memlayer_core.storage.blobs import unpacked
from memlayer_core.storage.database import Connection, Database, ensure_tables, open_database
from memlayer_core.storage.vectors import VectorCache
from memlayer_core.testing import NOON
from memlayer_core.transfer.sql import forget
from tests.conftest import PROMPT
from tests.drafts import drafts

QUESTION = filing(0, LOUIS, [1, 2, 3]).vector
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
        row.key: round(float(max(unpacked([row.vector], [row.vectors]) @ QUESTION)), 4)
        for row in db.read(lambda connection: connection.execute(query).all())
        if reach.agent_id is None or row.agent_lane == reach.lane
    }


VERBS = st.sampled_from(["add", "embed", "forget one", "forget all", "ask"])
STEPS = st.lists(st.tuples(VERBS, st.sampled_from([LOUIS, HELPER, EVE]), st.integers(0, 9)), max_size=25)


@given(STEPS, st.sampled_from([0, 3_000, 2**20]))
@examples(90)
def test_a_search_compares_exactly_what_the_journal_has(
    steps: list[tuple[str, Scope, int]], max_bytes: int
) -> None:
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
                    db.write(messages_writes.append, scope, drafts(*["x"] * (number + 1)), now, SHARDS)
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


def test_each_commit_of_vectors_raises_the_version_and_all_are_found(db: Database) -> None:
    cache, keys, versions = VectorCache(2**20), list[int](), set[int]()
    for count in (8, 1, 1):
        db.write(messages_writes.append, LOUIS, drafts(*["x"] * count), NOON, SHARDS)
        new = [key for key in filed_under(db, LOUIS, "x") if key not in keys]
        db.write(vectors.store, [filing(key, LOUIS, [key, 1, 1]) for key in new], NOON)
        keys += new
        versions.add(db.read(vectors.overview, LOUIS.reach()).version)
        assert set(nearest(db, cache, LOUIS.reach())) == set(keys)
    assert len(versions) == 3


def test_a_user_who_was_forgotten_and_came_back_is_compared_anew(db: Database) -> None:
    cache = VectorCache(2**20)
    for day, vector in enumerate(([1, 0, 0], [0, 0, 1])):
        db.write(messages_writes.append, LOUIS, drafts("x"), NOON, SHARDS)
        (key,) = filed_under(db, LOUIS, "x")
        db.write(vectors.store, [filing(key, LOUIS, vector)], NOON + timedelta(days=day))
        assert nearest(db, cache, LOUIS.reach()) == in_journal(db, LOUIS.reach())
        db.write(forget, LOUIS.reach(), NOON)


@pytest.mark.requirement("A09")
def test_a_forget_of_another_process_is_seen_by_the_next_context(open_at) -> None:
    one, other = open_at(), open_at()
    chat = one.chat(user_id="ada", session_id="past")
    chat.add("user", "My parrot is called Solo.")
    chat.add("user", "My cat is called Whisky.")
    one.flush()
    asked = one.chat(user_id="ada", session_id="now")
    assert "Solo" in asked.context("What is my parrot called?").recall
    other.chat(user_id="ada", session_id="past").delete_message(0)
    assert "Solo" not in asked.context("What is my parrot called?").recall


def test_the_cache_is_bounded_however_many_users_ask(open_at) -> None:
    memory = open_at(settings=PROMPT.replace(vector_cache_bytes=200_000))
    for user in range(60):
        memory.chat(user_id=f"user {user}", session_id="s").add("user", "My parrot is called Solo.")
    memory.flush()
    for user in range(60):
        assert memory.search("parrot", user_id=f"user {user}")
    assert 0 < memory.runtime.vectors.bytes <= 200_000
    assert len(memory.runtime.vectors) < 60
