"""For tests of your own: a journal's conformance suite, ports that fail on demand, and a clock that stands.

::

    from memlayer_core.testing import JournalConformance

    class TestMyJournal(JournalConformance):
        @pytest.fixture
        def journal(self):
            return MyJournal()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from memlayer_core.errors import EmbedderError
from memlayer_core.ports import Draft, Embedder, Journal
from memlayer_core.records.message import Message, Raw, ToolCall
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Mark
from memlayer_core.records.vector import Filing, FloatVector
from memlayer_core.rules.check import digest
from memlayer_core.rules.terms import asked, filed

__all__ = ["NOON", "FlakyEmbedder", "JournalConformance", "draft", "drafts", "filing"]

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
"""A moment to use as the present."""


def draft(role: Any, text: str, *, id: str | None = None, tokens: int = 10, **fields: Any) -> Draft:  # noqa: A002
    """Make a message ready to be written, as the flow that remembers would."""
    searched = "" if role == "system" else text
    given = id or f"made-{next(_numbers)}"
    message = Message(role, text, id=given, **{"created_at": NOON, **fields})
    return Draft(
        message,
        given_id=id is not None,
        given_time="created_at" in fields,
        digest=digest(message),
        tokens=tokens,
        counter="words",
        searched=searched,
        terms=filed(searched),
    )


def drafts(*texts: str) -> list[Draft]:
    """Make user and assistant messages in turn."""
    return [draft("assistant" if place % 2 else "user", text) for place, text in enumerate(texts)]


def filing(key: int, scope: Scope, vector: Sequence[float], *, shard: int = 0) -> Filing:
    """Make a vector ready to be filed."""
    import numpy as np  # noqa: PLC0415

    lanes = (scope.user_lane, scope.agent_lane, scope.session_lane)
    made: FloatVector = np.asarray(vector, dtype=np.float32)
    return Filing(key, shard, lanes, made / np.linalg.norm(made), f"hash-of-{key}")


def _count() -> Any:
    number = 0
    while True:
        yield number
        number += 1


_numbers = _count()


class FlakyEmbedder:
    """An embedder that fails while `failing` is set, and counts what it is asked.

    Args:
        inner: Does the work when nothing fails.
    """

    def __init__(self, inner: Embedder) -> None:
        self.inner = inner
        self.failing: Callable[[str], bool] = lambda _: False
        self.texts: list[str] = []
        self.queries: list[str] = []

    @property
    def identity(self) -> str:
        """The inner embedder's."""
        return self.inner.identity

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Embed, or fail if one of the texts makes it."""
        self.texts.extend(texts)
        self._check(texts)
        return self.inner.embed(texts)

    async def aembed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Embed, or fail if one of the texts makes it."""
        self.texts.extend(texts)
        self._check(texts)
        return await self.inner.aembed(texts)

    def embed_query(self, text: str) -> FloatVector:
        """Embed a question, or fail if it makes it."""
        self.queries.append(text)
        self._check([text])
        return self.inner.embed_query(text)

    async def aembed_query(self, text: str) -> FloatVector:
        """Embed a question, or fail if it makes it."""
        self.queries.append(text)
        self._check([text])
        return await self.inner.aembed_query(text)

    def _check(self, texts: Sequence[str]) -> None:
        if any(map(self.failing, texts)):
            raise EmbedderError("the model is away", hint="This embedder fails on demand.")


def filed_under(journal: Journal, reach: Scope, words: str) -> list[int]:
    """Return the keys of what any of the words stands in, in their order."""
    found = journal.postings(reach, asked(words))
    return sorted(set().union(*found.values()))


class JournalConformance:
    """Claims that every journal must fulfil. Subclass it with a pytest fixture `journal`."""

    LOUIS: ClassVar[Scope] = Scope("louis", "s1")
    EVE: ClassVar[Scope] = Scope("eve", "s1")

    def texts(self, journal: Journal, scope: Scope) -> list[str]:
        """Return what a session holds."""
        session = journal.session(scope)
        return [] if session is None else [s.message.text for s in journal.history(session, -1, None)]

    def test_messages_come_back_in_their_order_and_equal(self, journal: Journal) -> None:
        given = [
            draft("system", "be kind"),
            draft("user", "hi \0 \ud800 𝄞", name="Louis", metadata={"a": [1, None, {"b": "ü"}]}),
            draft("assistant", "", tool_calls=(ToolCall("c1", "look", '{"x":1}'),)),
            draft("tool", "found", tool_call_id="c1"),
            draft("assistant", "done", raw=Raw("somewhere", "1.0", {"deep": {"er": [1.5, "\0"]}})),
        ]
        blocks = replace(given[1].message, id="blocks", content=({"type": "image_url", "image_url": "x"},))
        given.append(replace(given[1], message=blocks))
        receipt = journal.append(self.LOUIS, given, NOON)
        session = journal.session(self.LOUIS)
        assert session is not None
        stored = [item.message for item in journal.history(session, -1, None)]
        assert stored == [item.message for item in given]
        assert receipt.stored == len(given)
        assert receipt.ids == tuple(item.message.id for item in given)

    def test_running_totals_agree_with_the_messages(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a", "b", "c"), NOON)
        journal.append(self.LOUIS, [draft("user", "d", tokens=5)], NOON + timedelta(seconds=1))
        session = journal.session(self.LOUIS)
        assert session is not None
        assert (session.messages, session.tokens) == (4, 35)
        assert session.updated_at == NOON + timedelta(seconds=1)

    def test_the_same_id_again_changes_nothing(self, journal: Journal) -> None:
        journal.append(self.LOUIS, [draft("user", "hello", id="m1")], NOON)
        again = journal.append(self.LOUIS, [draft("user", "hello", id="m1")], NOON)
        assert (again.stored, again.unchanged, again.replaced) == (0, 1, 0)
        assert self.texts(journal, self.LOUIS) == ["hello"]

    def test_the_same_id_with_another_text_takes_the_place_of_the_old(self, journal: Journal) -> None:
        journal.append(self.LOUIS, [draft("user", "tokyo", id="m1", tokens=3), draft("user", "then")], NOON)
        again = journal.append(self.LOUIS, [draft("user", "osaka", id="m1", tokens=4)], NOON)
        assert (again.stored, again.unchanged, again.replaced) == (0, 0, 1)
        assert self.texts(journal, self.LOUIS) == ["osaka", "then"]
        assert filed_under(journal, self.LOUIS.reach(), "tokyo") == []
        assert len(filed_under(journal, self.LOUIS.reach(), "osaka")) == 1
        session = journal.session(self.LOUIS)
        assert session is not None
        assert session.tokens == 14

    def test_the_same_id_with_another_time_is_a_correction(self, journal: Journal) -> None:
        journal.append(self.LOUIS, [draft("user", "hello", id="m1")], NOON)
        later = NOON + timedelta(days=1)
        again = journal.append(self.LOUIS, [draft("user", "hello", id="m1", created_at=later)], NOON)
        assert again.replaced == 1
        session = journal.session(self.LOUIS)
        assert session is not None
        assert journal.history(session, -1, None)[0].message.created_at == later

    def test_one_id_in_two_sessions_is_two_messages(self, journal: Journal) -> None:
        journal.append(self.LOUIS, [draft("user", "one", id="m1")], NOON)
        journal.append(Scope("louis", "s2"), [draft("user", "two", id="m1")], NOON)
        assert self.texts(journal, self.LOUIS) == ["one"]
        assert self.texts(journal, Scope("louis", "s2")) == ["two"]

    def test_a_session_of_any_tenant_user_or_agent_is_its_own(self, journal: Journal) -> None:
        scopes = [
            Scope("louis", "s1"),
            Scope("eve", "s1"),
            Scope("louis", "s1", tenant_id="other"),
            Scope("louis", "s1", agent_id="helper"),
            Scope("l" * 10_000, "'; DROP TABLE memlayer_messages; --"),
        ]
        for number, scope in enumerate(scopes):
            journal.append(scope, [draft("user", f"secret {number}")], NOON)
        for number, scope in enumerate(scopes):
            assert self.texts(journal, scope) == [f"secret {number}"]

    def test_words_are_found_only_within_reach(self, journal: Journal) -> None:
        helper = Scope("louis", "s1", agent_id="helper")
        for scope in (self.LOUIS, self.EVE, helper, Scope("louis", "s1", tenant_id="other")):
            journal.append(scope, [draft("user", f"tokyo of {scope.user_id}")], NOON)

        def whose(reach: Scope) -> list[tuple[str, str | None, str]]:
            found = filed_under(journal, reach, "tokyo")
            records = journal.records(reach, found)
            assert len(records) == len(found)
            return sorted((r.scope.user_id, r.scope.agent_id or "", r.scope.tenant_id) for r in records)

        assert whose(Scope("louis")) == [("louis", "", "default"), ("louis", "helper", "default")]
        assert whose(Scope("louis", agent_id="helper")) == [("louis", "helper", "default")]
        assert whose(self.EVE) == [("eve", "", "default")]
        assert whose(Scope("louis", tenant_id="other")) == [("louis", "", "other")]
        assert whose(Scope("nobody")) == []

    def test_keys_of_others_bring_nothing(self, journal: Journal) -> None:
        journal.append(self.EVE, [draft("user", "a secret of eve")], NOON)
        keys = filed_under(journal, self.EVE.reach(), "secret")
        assert len(keys) == 1
        assert journal.records(Scope("louis"), keys) == []

    def test_chinese_words_of_two_characters_are_found(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("我五月份搬到了东京。", "很好!"), NOON)
        found = journal.postings(self.LOUIS.reach(), ("东京", "京东", "京"))
        assert {word: list(keys.values()) for word, keys in found.items()} == {"东京": [1], "京": [1]}

    def test_hostile_words_are_words(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("it's \"quoted\" AND (near* : ^col) 'x' \\ OR -"), NOON)
        for query in ("it's", '"quoted"', "AND", "near*", "'x'", "\\", "lanes : *", "NOT"):
            filed_under(journal, self.LOUIS.reach(), query)
        assert len(filed_under(journal, self.LOUIS.reach(), "quoted")) == 1

    def test_the_last_entries_come_first_and_page_by_page(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts(*(str(n) for n in range(10))), NOON)
        session = journal.session(self.LOUIS)
        assert session is not None
        first = journal.tail(session, None, 4)
        second = journal.tail(session, first[-1].seq, 4)
        assert [entry.seq for entry in (*first, *second)] == [9, 8, 7, 6, 5, 4, 3, 2]
        read = journal.read(session, [entry.seq for entry in second])
        assert [item.message.text for item in read] == ["2", "3", "4", "5"]

    def test_the_newest_system_message_is_the_one_in_force(self, journal: Journal) -> None:
        journal.append(self.LOUIS, [draft("system", "be brief"), draft("user", "hi")], NOON)
        again = journal.append(self.LOUIS, [draft("system", "be brief")], NOON)
        assert (again.stored, again.unchanged) == (0, 1)
        journal.append(self.LOUIS, [draft("system", "be long")], NOON)
        assert self.in_force(journal) == "be long"
        journal.rewrite(self.LOUIS, drafts("hi"), NOON)
        assert self.in_force(journal) is None

    def in_force(self, journal: Journal) -> str | None:
        session = journal.session(self.LOUIS)
        assert session is not None
        if session.instructions is None:
            return None
        return journal.read(session, [session.instructions & 0xFFFF_FFFF])[0].message.text

    def test_a_mark_moves_forward_only_and_goes_with_its_message(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a", "b", "c"), NOON)
        session = journal.session(self.LOUIS)
        assert session is not None
        for mark in (Mark(2, 1), Mark(1, 5), Mark(2, 3), Mark(2, 2)):
            journal.move_mark(session.number, 30, mark)
        assert (journal.mark(session, 30), journal.mark(session, 31)) == (Mark(2, 3), Mark())
        journal.rewrite(self.LOUIS, drafts("a"), NOON)
        assert journal.mark(session, 30) == Mark()
        journal.move_mark(session.number, 30, Mark(2, 3))
        assert journal.mark(session, 30) == Mark()

    def test_rewriting_keeps_a_common_beginning(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a", "b", "c"), NOON)
        before = filed_under(journal, self.LOUIS.reach(), "b")
        receipt = journal.rewrite(self.LOUIS, drafts("a", "b", "d", "e"), NOON)
        assert (receipt.unchanged, receipt.stored) == (2, 2)
        assert self.texts(journal, self.LOUIS) == ["a", "b", "d", "e"]
        assert filed_under(journal, self.LOUIS.reach(), "b") == before
        assert filed_under(journal, self.LOUIS.reach(), "c") == []
        session = journal.session(self.LOUIS)
        assert session is not None
        assert (session.messages, session.tokens) == (4, 40)

    def test_a_list_is_inserted_into_archived_taken_from_and_replaced(self, journal: Journal) -> None:
        whose = self.LOUIS
        journal.append(whose, drafts("a", "b", "c"), NOON)
        journal.insert(whose, drafts("x"), NOON, 1)
        assert [one.message.text for one in journal.archive(whose, 2, NOON, None)] == ["a", "x"]
        assert [one.message.text for one in journal.take(whose, "active", -1, 1, NOON)] == ["c"]
        session = journal.session(whose)
        assert session is not None
        assert [one.message.text for one in journal.listed(session, "archived", None, 1)] == ["x"]
        assert (journal.counted(session, "active"), self.texts(journal, whose)) == (1, ["a", "x", "b"])
        journal.replace(whose, drafts("x", "b", "d"), NOON, "aside", "active")
        assert self.texts(journal, whose) == ["x", "b", "d"]
        assert self.texts(journal, replace(whose, session_id="aside")) == ["a"]
        assert journal.session_ids(whose.tenant_id, whose.user_id, None) == ["s1"]

    def test_clearing_leaves_nothing_and_no_key_comes_back(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("alpha", "beta"), NOON)
        old = set(filed_under(journal, self.LOUIS.reach(), "alpha beta"))
        journal.file([filing(key, self.LOUIS, [1, 0]) for key in old])
        assert journal.clear(self.LOUIS, NOON) == 2
        assert self.texts(journal, self.LOUIS) == []
        assert filed_under(journal, self.LOUIS.reach(), "alpha beta") == []
        assert journal.filings(None, -1, 10) == []
        assert journal.overview(self.LOUIS.reach()).vectors == 0
        journal.append(self.LOUIS, drafts("alpha"), NOON)
        new = set(filed_under(journal, self.LOUIS.reach(), "alpha"))
        assert not new & old

    def test_a_leased_job_is_given_to_nobody_else_until_the_lease_ends(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a", "b"), NOON)
        until = NOON + timedelta(seconds=60)
        first = journal.lease(["index", "unindex"], 10, "one", NOON, until)
        assert len(first) == 2
        assert journal.lease(["index"], 10, "two", NOON + timedelta(seconds=59), until) == []
        again = journal.lease(["index"], 10, "two", until, until + timedelta(seconds=60))
        assert [job.subject for job in again] == [job.subject for job in first]
        assert {job.attempts for job in again} == {2}

    def test_jobs_end_done_failed_or_dead_and_the_dead_can_be_revived(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a", "b", "c"), NOON)
        until = NOON + timedelta(seconds=60)
        done, failed, dead = journal.lease(["index"], 3, "one", NOON, until)
        journal.finish([done])
        journal.fail([failed], "later", NOON + timedelta(seconds=5))
        journal.fail([dead], "never", None)
        backlog = journal.backlog()
        assert (backlog.queued, backlog.dead) == (1, 1)
        assert journal.lease(["index"], 3, "one", NOON + timedelta(seconds=4), until) == []
        again = journal.lease(["index"], 3, "one", NOON + timedelta(seconds=5), until)
        assert [job.subject for job in again] == [failed.subject]
        assert journal.revive(NOON) == 1
        revived = journal.lease(["index"], 3, "one", NOON + timedelta(seconds=6), until)
        assert [job.subject for job in revived] == [dead.subject]

    def test_a_worker_that_leaves_gives_its_jobs_back(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a"), NOON)
        until = NOON + timedelta(seconds=60)
        assert len(journal.lease(["index"], 1, "one", NOON, until)) == 1
        journal.release("one", NOON)
        (job,) = journal.lease(["index"], 1, "two", NOON, until)
        assert job.attempts == 1

    def test_vectors_are_compared_within_reach_alone(self, journal: Journal) -> None:
        helper = Scope("louis", "s1", agent_id="helper")
        for scope, vector in ((self.LOUIS, [1, 0]), (helper, [0.8, 0.6]), (self.EVE, [1, 0])):
            journal.append(scope, drafts("x"), NOON)
            (key,) = filed_under(journal, scope, "x")
            journal.file([filing(key, scope, vector)])
        near = journal.scan(Scope("louis"), filing(0, self.LOUIS, [1, 0]).vector, 10)
        assert [round(neighbour.similarity, 3) for neighbour in near] == [1.0, 0.8]
        only = journal.scan(Scope("louis", agent_id="helper"), filing(0, helper, [1, 0]).vector, 10)
        assert [round(neighbour.similarity, 3) for neighbour in only] == [0.8]
        assert journal.overview(Scope("louis")).vectors == 2

    def test_no_vector_is_kept_of_a_message_that_is_gone(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("x"), NOON)
        (key,) = filed_under(journal, self.LOUIS, "x")
        journal.clear(self.LOUIS, NOON)
        journal.file([filing(key, self.LOUIS, [1, 0])])
        assert journal.filings(None, -1, 10) == []
        assert journal.unindexed([key]) == []

    def test_a_kept_vector_is_offered_again_for_the_same_text_only(self, journal: Journal) -> None:
        journal.append(self.LOUIS, [draft("user", "x", id="m1")], NOON)
        (key,) = filed_under(journal, self.LOUIS, "x")
        (waiting,) = journal.unindexed([key])
        assert waiting.vector is None
        assert waiting.lanes == (self.LOUIS.user_lane, self.LOUIS.agent_lane, self.LOUIS.session_lane)
        journal.file([replace(filing(key, self.LOUIS, [1, 0]), text_hash=waiting.text_hash)])
        assert journal.unindexed([key])[0].vector is not None
        journal.append(self.LOUIS, [draft("user", "y", id="m1")], NOON)
        assert journal.unindexed([key])[0].vector is None

    def test_the_embedder_of_the_first_vectors_is_recorded_and_stays(self, journal: Journal) -> None:
        assert journal.layout().embedder is None
        assert journal.settle("none yet", None).embedder == "none yet"
        assert journal.layout().dimension is None
        assert journal.settle("one", 4).embedder == "one"
        assert journal.settle("two", 8).embedder == "one"
        assert journal.settle("three", None).embedder == "one"
        assert journal.layout().dimension == 4
        journal.append(self.LOUIS, [*drafts("x"), draft("system", "no")], NOON)
        journal.forget_vectors(NOON)
        assert journal.layout().embedder is None
        assert journal.backlog().queued == 1

    def test_a_refused_message_leaves_nothing_of_its_batch(self, journal: Journal) -> None:
        broken = draft("user", "no", created_at="not a time")
        try:
            journal.append(self.LOUIS, [*drafts("a", "b"), broken], NOON)
        except Exception:  # noqa: BLE001, S110  (which error is the store's own affair)
            pass
        else:
            raise AssertionError("a message without a time was stored")
        assert self.texts(journal, self.LOUIS) == []
        assert journal.backlog().queued == 0

    def test_many_threads_lose_nothing_and_number_without_gaps(self, journal: Journal) -> None:
        threads, each = 8, 10
        start = threading.Barrier(threads)

        def write(number: int) -> None:
            start.wait()
            for turn in range(each):
                journal.append(self.LOUIS, [draft("user", f"{number}:{turn}")], NOON)
                journal.append(Scope(f"user {number}", "own"), [draft("user", str(turn))], NOON)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(write, range(threads)))
        session = journal.session(self.LOUIS)
        assert session is not None
        stored = journal.history(session, -1, None)
        assert [item.seq for item in stored] == list(range(threads * each))
        for number in range(threads):
            mine = [item.message.text for item in stored if item.message.text.startswith(f"{number}:")]
            assert mine == [f"{number}:{turn}" for turn in range(each)]
            assert self.texts(journal, Scope(f"user {number}", "own")) == [str(t) for t in range(each)]

    def test_a_snapshot_does_not_move(self, journal: Journal) -> None:
        journal.append(self.LOUIS, drafts("a"), NOON)
        assert journal.at_once(lambda inside: self.texts(inside, self.LOUIS)) == ["a"]
