"""Each change of a session is a splice: what it says of a plain list is what the store has afterwards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, strategies as st
from sql import SHARDS

from memlayer_core import Message, Scope
from memlayer_core.message import StoredMessage
from memlayer_core.messages import (
    reads as messages_reads,
    splice as messages_splice,
    writes as messages_writes,
)
from memlayer_core.messages.align import align, digest_of, find_in_order
from memlayer_core.messages.model import PreparedMessage, Session, SessionDetails
from memlayer_core.messages.splice import Splice, loses
from memlayer_core.storage import words
from memlayer_core.storage.database import Database
from memlayer_core.storage.tables import texts
from memlayer_core.testing import NOON
from memlayer_core.transfer import sql
from tests.drafts import draft
from tests.examples import examples

pytestmark = pytest.mark.each_database

Planned = tuple[Splice, Callable[[], object]]

WHO = {"u": "user", "a": "assistant", "s": "system", "h": "assistant"}
SPOKEN = ["u1", "a1", "u2", "a2", "u1 and more", "a1 and more", "s1", "s2", "h1", "u" + "many words " * 5]
NUMBERS = itertools.count()

writings = st.tuples(st.sampled_from(SPOKEN), st.none() | st.sampled_from("vwxyz"))
lists = st.lists(writings, max_size=6, unique_by=lambda one: one[1] or object())


def prepared(written: tuple[str, str | None]) -> PreparedMessage:
    text, named = written
    hidden = text[0] == "h"
    made = draft(WHO[text[0]], text, id=named, tokens=0 if hidden else len(text), model_visible=not hidden)
    return replace(made, search_text="", terms=()) if hidden else made


def again(stored: StoredMessage, *, with_id: bool) -> tuple[str, str | None]:
    return stored.message.text, stored.message.id if with_id else None


def applied_to(present: Sequence[StoredMessage], splice: Splice) -> list[Message]:
    """Return a list after a splice: the reference for what the store does."""
    drafts = dict(splice.replacements)
    after: list[Message] = []
    for stored in [*present, None]:
        front = None if stored is None else stored.key
        after += [one.message for before, one in splice.insertions if before == front]
        if stored is not None and stored.key not in splice.removals:
            after.append(drafts[stored.key].message if stored.key in drafts else stored.message)
    return after


@dataclass(frozen=True)
class Drawn:
    """What a verb is called with: a part of the session again, edited or not, and what is new."""

    present: list[StoredMessage]
    sent: list[PreparedMessage]
    erase: bool
    place: int
    data: st.DataObject

    @property
    def known(self) -> dict[str, StoredMessage]:
        own = {one.message.id for one in self.sent if one.has_own_id}
        return {one.message.id or "": one for one in self.present if one.message.id in own}


class Conversation:
    """A session in a database. Each verb returns the splice that it should do, and a function that does it."""

    def __init__(self, db: Database) -> None:
        self.db, self.scope = db, Scope("ada", f"session {next(NUMBERS)}")
        self.versions: list[Message] = []

    def session(self) -> Session | None:
        return self.db.read(messages_reads.find, self.scope)

    def present(self) -> list[StoredMessage]:
        session = self.session()
        return [] if session is None else self.db.read(messages_reads.history, session, 0, None)

    def instructions(self) -> tuple[list[StoredMessage], bool]:
        return self.db.read(messages_reads.instructions, self.scope, self.session())

    def write(self, work: Callable[..., Any], *more: object, **options: object) -> Any:
        return self.db.write(work, self.scope, *more, **options)

    def draw(self, data: st.DataObject) -> Drawn:
        present = self.present()
        repeated = [
            again(one, with_id=data.draw(st.booleans())) for one in present if data.draw(st.booleans())
        ]
        written = {one[1] or object(): one for one in [*repeated, *data.draw(lists)]}.values()
        place = data.draw(st.integers(0, max(0, len(present) - 1)))
        sent = [prepared(one) for one in written]
        return Drawn(present, sent, data.draw(st.booleans()), place, data)

    def append(self, drawn: Drawn) -> Planned:
        verbatim = drawn.data.draw(st.booleans())
        in_force, begins = self.instructions()
        splice = messages_splice.append(
            drawn.known, drawn.sent, in_force, begins=begins, verbatim=verbatim, erase=drawn.erase
        )
        return splice, lambda: self.write(
            messages_writes.append, drawn.sent, NOON, SHARDS, erase=drawn.erase, verbatim=verbatim
        )

    def merge(self, drawn: Drawn) -> Planned:
        in_force, begins = self.instructions()
        splice = messages_splice.append(drawn.known, drawn.sent, in_force, begins=begins)
        more = (drawn.sent, SessionDetails(), NOON, SHARDS)
        return splice, lambda: self.write(sql.merge, *more, is_learned=False)

    def hear(self, drawn: Drawn) -> Planned:
        digests = [one.digest for one in drawn.present], [one.digest for one in drawn.sent]
        new = drawn.sent[len(find_in_order(*digests)) :]
        splice = messages_splice.append(drawn.known, new, verbatim=True)
        return splice, lambda: self.write(messages_writes.hear, drawn.sent, NOON, SHARDS)

    def insert(self, drawn: Drawn) -> Planned:
        sent = [prepared((one.message.text, None)) for one in drawn.sent]
        splice = messages_splice.insert([], sent, drawn.present[drawn.place].key if drawn.present else None)
        return splice, lambda: self.write(messages_writes.insert_into_list, sent, NOON, SHARDS, drawn.place)

    def replace(self, drawn: Drawn) -> Planned:
        part = drawn.data.draw(st.sampled_from([None, "active", "archived"]))
        splice = messages_splice.rewrite(drawn.present, drawn.sent, erase=drawn.erase)
        return splice, lambda: self.write(
            messages_writes.replace_list, drawn.sent, NOON, SHARDS, part, erase=drawn.erase
        )

    def restore(self, drawn: Drawn) -> Planned:
        splice, details = messages_splice.rewrite(drawn.present, drawn.sent, erase=True), SessionDetails()
        return splice, lambda: self.write(sql.restore, drawn.sent, details, NOON, SHARDS)

    def resync(self, drawn: Drawn) -> Planned:
        present, sent, final = drawn.present, drawn.sent, drawn.erase
        past = [digest_of(one.message, with_id=True) for one in present]
        incoming = [digest_of(one.message, with_id=one.has_own_id) for one in sent]
        alignment = align(past, incoming, complete=True, final=final)
        roles = [present[to].message.role for to in alignment.matches if to is not None]
        splice = messages_splice.follow(present, sent, alignment)
        if final and {*roles} <= {"system"} and not len(present) == len(sent) == len(roles):
            splice = messages_splice.start_over(present, sent, lambda _: True)
        options = {"replace_all": final, "replaceable": lambda _: True}
        return splice, lambda: self.write(messages_writes.resync, sent, NOON, SHARDS, **options)

    def edit(self, drawn: Drawn) -> Planned:
        stored = drawn.present[drawn.place]
        changed = prepared((drawn.data.draw(st.sampled_from(SPOKEN)), stored.message.id))
        splice = messages_splice.edit([(stored, changed)], erase=drawn.erase)
        return splice, lambda: self.write(
            messages_writes.edit_message, drawn.place, lambda _: changed, NOON, erase=drawn.erase
        )

    def delete(self, drawn: Drawn) -> Planned:
        stored = drawn.present[drawn.place]
        splice = messages_splice.remove([stored], erase=True)
        return splice, lambda: self.write(messages_writes.delete_message, stored.message.id, NOON)

    def take(self, drawn: Drawn) -> Planned:
        splice = messages_splice.remove(drawn.present[drawn.place : drawn.place + 2], erase=True)
        return splice, lambda: self.write(messages_writes.take_from_list, None, drawn.place, 2, NOON)

    def withdraw(self, drawn: Drawn) -> Planned:
        some = [one for one in drawn.present if drawn.data.draw(st.booleans())]
        named = ["unknown", *(one.message.id for one in some)]
        splice = messages_splice.remove(some, erase=False)
        return splice, lambda: self.write(messages_writes.withdraw, named, NOON)


def check(one: Conversation, before: Sequence[StoredMessage], splice: Splice) -> None:
    """Compare a session with its list after a splice, and its totals with a recount."""
    after = one.present()
    assert [stored.message for stored in after] == applied_to(before, splice)
    session = one.session()
    assert session is not None
    assert (session.messages, session.tokens) == (len(after), sum(stored.tokens for stored in after))
    positions = [0, *(stored.position for stored in after), session.next_position]
    assert positions == sorted(set(positions))
    there = {stored.key: stored.position for stored in after}
    assert all(there[old.key] == old.position for old in before if old.key in there)
    instructions = [stored.key for stored in after if stored.message.role == "system"]
    assert session.instructions == (instructions[-1] if instructions else None)
    findable = [stored.key for stored in after if stored.tokens and stored.message.role != "system"]
    filed = sa.select(texts.c.key, texts.c.owner).order_by(texts.c.key)
    every = one.db.read(lambda connection: connection.execute(filed).all())
    assert [row.key for row in every if row.owner == session.number] == sorted(findable)
    assert one.db.read(words.keys) == [row.key for row in every]
    versions = one.db.read(messages_reads.versions, session)
    assert Counter((version.message.id, version.message.text) for version in versions) == Counter(
        (message.id, message.text) for message in one.versions
    )


EACH = ["memory", pytest.param("postgres", marks=pytest.mark.postgres)]
VERBS = "append merge hear insert replace restore resync edit delete take withdraw".split()  # noqa: SIM905


@pytest.mark.parametrize("db", EACH, indirect=True)
@pytest.mark.parametrize("verb", VERBS)
@examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_store_has_what_the_splice_makes_of_a_plain_list(db: Database, verb: str, data: st.DataObject):
    one = Conversation(db)
    others = data.draw(st.lists(st.sampled_from(VERBS), max_size=3))
    for step in ["append", *others, verb, verb]:
        drawn = one.draw(data)
        if not drawn.present and step in {"edit", "delete"}:
            continue
        splice, write = getattr(one, step)(drawn)
        says = {stored.key: stored.message for stored in drawn.present}
        receipt = write()
        kept = [message for message in one.versions if message.id not in splice.erasures]
        one.versions = [*kept, *(says[key] for key in splice.versions)]
        if one.session() is not None:
            check(one, drawn.present, splice)
        if hasattr(receipt, "ids"):
            assert receipt.ids == splice.ids
        if step in {"append", "merge", "hear", "edit"}:
            lost = [key for key, new in splice.replacements if loses(says[key], new.message)]
            assert lost == [*splice.versions] or splice.erasures


@pytest.mark.parametrize("db", EACH, indirect=True)
@examples(30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=lists.filter(bool), data=st.data())
def test_a_fork_is_a_splice_that_only_inserts(db: Database, written, data):
    one, copy = Conversation(db), Conversation(db)
    one.write(messages_writes.append, [prepared(each) for each in written], NOON, SHARDS, verbatim=True)
    before = one.present()
    last = data.draw(st.integers(0, len(before) - 1))

    def fork(connection: Any, scope: Scope) -> int:
        into = copy.scope.session_id or ""
        return messages_writes.fork_session(connection, scope, into, last, as_draft, NOON, SHARDS)

    def as_draft(message: Message) -> PreparedMessage:
        return prepared((message.text, message.id))

    assert one.write(fork) == last + 1
    splice = messages_splice.append(
        {}, [as_draft(stored.message) for stored in before[: last + 1]], verbatim=True
    )
    check(copy, [], splice)


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_an_addition_counts_where_it_locks_takes_its_keys_and_writes_four_rows_a_message(db: Database):
    one = Conversation(db)
    one.write(messages_writes.append, [prepared(("s1", None)), prepared(("u1", None))], NOON, SHARDS)
    ran: list[str] = []

    def append(connection: Any, *arguments: Any) -> Any:
        driver = connection.connection.driver_connection
        driver.set_trace_callback(lambda text: ran.append(text) if text[:2] != "--" else None)
        messages_writes.append(connection, *arguments)
        driver.set_trace_callback(None)

    one.write(append, [prepared(("u2", None)), prepared(("a2", None))], NOON, SHARDS)
    words = ["SELECT", "INSERT", "INSERT"]  # the number of their owner, and them
    assert [text.split()[0] for text in ran] == ["UPDATE", *["INSERT"] * 5, *words, *["INSERT"] * 2]
