"""No record is told to anybody but those it names: a state machine with hostile ids, roles and tags tries to show otherwise."""

import os
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import Bundle, invariant, rule
from tuned import Tuned

from memlayer_core import Memory, Record, Scope
from tests.conftest import _postgres_schema as postgres_schema
from tests.test_isolation import Reopening

pytestmark = pytest.mark.each_database

HOSTILE = [  # few, so that a user, a role and a tag often have the same name
    "louis",
    "l\u043euis",  # a look-alike letter
    "%",
    "a" * 10_000,
    "louis_mem_001",
    "memlayer:commons",
]
ids = st.sampled_from(HOSTILE)
tenants = st.sampled_from(["default", "louis"])
agents = st.none() | st.sampled_from(["louis", "%"])
few = st.lists(ids, max_size=2)
words = st.sampled_from(["pineapple", "mango", "東京", "tokyo"])
visibilities = st.sampled_from(["private", "share", "public"])
accesses = st.fixed_dictionaries({"visibility": visibilities, "allowed_users": few, "allowed_roles": few})


def whose(scope: Scope) -> dict[str, Any]:
    """Return how a listing or a search is asked for all of a scope."""
    named = {"user_id": scope.user_id, "tenant_id": scope.tenant_id, "agent_id": scope.agent_id}
    return {**named, "limit": 1000}


class RecordIsolation(Reopening):
    """Remembers, changes, merges, shares and forgets; a plain dict says who may be told what."""

    scopes = Bundle("scopes")

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], Record] = {}

    @rule(target=scopes, user=ids, agent=agents, tenant=tenants)
    def someone(self, user, agent, tenant) -> Scope:
        return Scope(user, "s1", agent, tenant)

    @rule(scope=scopes, word=words, access=accesses, tags=few)
    def remembers(self, scope, word, access, tags) -> None:
        self.count += 1
        record = self.memory.chat_of(scope).remember(f"{word} number{self.count}", **access, tags=tags)
        self.kept[scope.tenant_id, record.memory_id] = record

    @rule(data=st.data(), word=words, access=accesses)
    def revises(self, data, word, access) -> None:
        if not self.kept:
            return
        tenant, record_id = place = data.draw(st.sampled_from(sorted(self.kept)))
        user = self.kept[place].user_id
        self.count += 1
        mine = {at[1] for at, one in self.kept.items() if (at[0], one.user_id) == (tenant, user)}
        others = sorted(mine - {record_id})
        merge = data.draw(st.sets(st.sampled_from(others), max_size=2)) if others else ()
        chat = self.memory.chat(user_id=user, tenant_id=tenant)
        self.kept[place] = chat.revise(record_id, f"{word} number{self.count}", merge=merge, **access)
        for other in merge:
            del self.kept[tenant, other]

    @rule(data=st.data())
    def forgets_a_record(self, data) -> None:
        if self.kept:
            tenant, record_id = data.draw(st.sampled_from(sorted(self.kept)))
            del self.kept[tenant, record_id]
            assert self.memory.forget(record_id=record_id, tenant_id=tenant).records == 1

    @rule(scope=scopes, narrow=st.booleans())
    def forgets_a_user(self, scope, narrow) -> None:
        agent = scope.agent_id if narrow else None
        self.memory.forget(scope.user_id, tenant_id=scope.tenant_id, agent_id=agent)
        for place, one in list(self.kept.items()):
            is_theirs = (one.tenant_id, one.user_id) == (scope.tenant_id, scope.user_id)
            if is_theirs and agent in {None, one.agent_id}:
                del self.kept[place]

    def seen_by(self, scope: Scope, roles: list[str]) -> set[str]:
        """Return the texts that the dict says somebody may be told."""
        return {
            one.text
            for one in self.kept.values()
            if one.tenant_id == scope.tenant_id
            and scope.agent_id in {None, one.agent_id}
            and (
                scope.user_id in {one.user_id, *one.access_control.allowed_users}
                or one.scope == "public"
                or set(roles) & set(one.access_control.allowed_roles)
            )
        }

    @rule(scope=scopes, word=words, roles=few)
    def searches(self, scope, word, roles) -> None:
        found = self.memory.search(word, **whose(scope), roles=roles)
        allowed, texts = self.seen_by(scope, roles), {hit.text for hit in found}
        assert {one for one in allowed if word in one} <= texts <= allowed

    @rule(scope=scopes, word=words, roles=few)
    def reads_a_context(self, scope, word, roles) -> None:
        context = self.memory.chat_of(scope, roles=roles).context(word)
        assert {piece.text for piece in context.pieces} <= self.seen_by(scope, roles)

    @invariant()
    def everybody_is_shown_what_they_may_see_and_nothing_else(self) -> None:
        for place, user in enumerate(HOSTILE):
            roles = [HOSTILE[place - self.count % len(HOSTILE)]]
            for scope in (Scope(user), Scope(user, agent_id="%", tenant_id="louis")):
                found = self.memory.records(**whose(scope), roles=roles, shared=True)
                assert sorted(one.text for one in found) == sorted(self.seen_by(scope, roles))
                every = self.memory.records(**whose(scope), all_versions=True)
                assert {(one.tenant_id, one.user_id) for one in every} <= {(scope.tenant_id, user)}

    @invariant()
    def the_index_holds_what_the_journal_has(self) -> None:
        if not self.memory.admin.status().backlog.queued:
            assert self.memory.admin.verify() == []


class RecordIsolationOnPostgres(RecordIsolation):
    """The same on PostgreSQL, where vectors are compared in the journal."""

    def open(self) -> Memory:
        if not hasattr(self, "stack"):
            self.stack = ExitStack()
            self.url = self.stack.enter_context(postgres_schema())
        return Memory.open(database_url=self.url, embedder="hashing", settings=self.settings)

    def teardown(self) -> None:
        super().teardown()
        self.stack.close()


TestRecordIsolation = pytest.mark.slow(RecordIsolation.TestCase)
TestRecordIsolation.settings = hypothesis_settings(max_examples=15, stateful_step_count=25, deadline=None)
is_away = pytest.mark.skipif(not os.environ.get("MEMLAYER_TEST_POSTGRES"), reason="no PostgreSQL")
on_postgres = is_away(pytest.mark.slow(RecordIsolationOnPostgres.TestCase))
TestRecordIsolationOnPostgres = pytest.mark.postgres(on_postgres)
fewer = hypothesis_settings(max_examples=8, stateful_step_count=20, deadline=None)
TestRecordIsolationOnPostgres.settings = fewer


HIDDEN = 300


def nearness(texts: list[str]) -> list[list[float]]:
    """Return vectors: what is hidden is nearer to the question than what may be seen, and no word is needed for that."""
    return [[1.0, 0.5 if "plum" in text else 1.0 if "mango" in text else 0.0] for text in texts]


@pytest.mark.parametrize("index", ["Chroma", "none", pytest.param("none", marks=pytest.mark.postgres)])
def test_what_a_reader_may_not_see_takes_nobodys_place(request, tmp_path, index) -> None:
    """Neither its vector, nor its words."""
    at: dict[str, Any] = {"path": tmp_path}
    if request.node.get_closest_marker("postgres"):
        at = {"database_url": request.getfixturevalue("postgres_url")}
    settings = Tuned(index_delay=3600, durability="normal", exact_scan_limit=1)
    with Memory.open(**at, embedder=nearness, settings=settings) as memory:
        eve = memory.chat(user_id="eve")
        for number in range(HIDDEN):
            eve.remember(f"plum mango {number}", visibility="share", allowed_users=["bob"])
        eve.remember("mango", visibility="share", allowed_roles=["cook"])
        memory.flush()
        if index == "none" and memory.runtime.index is not None:
            memory.runtime.index.close()
        for asked in ("what?", "plum mango"):
            assert len(memory.search(asked, user_id="bob", limit=10)) == 10
            found = memory.search(asked, user_id="ada", roles=["cook"], limit=1)
            assert [hit.text for hit in found] == ["mango"]
            assert not memory.search(asked, user_id="ada", limit=10)
