"""Each change of a session is a splice: what it says of a plain list is what the store has afterwards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, strategies as st
from sql import SHARDS

from memlayer_core import Message, Scope
from memlayer_core.message import StoredMessage
from memlayer_core.messages import reads, writes
from memlayer_core.messages.model import Batch, PreparedMessage, SessionDetails
from memlayer_core.messages.splice import Splice, loses
from memlayer_core.storage import words
from memlayer_core.storage.database import Database
from memlayer_core.storage.tables import texts
from memlayer_core.testing import NOON
from memlayer_core.transfer import sql
from tests.drafts import draft
from tests.examples import examples

pytestmark = pytest.mark.each_database

WHO = {"u": "user", "a": "assistant", "s": "system", "h": "assistant"}
SPOKEN = ["u1", "a1", "u2", "a2", "u1 and more", "a1 and more", "s1", "s2", "h1", "u" + "many words " * 5]
NUMBERS = itertools.count()

writings = st.tuples(st.sampled_from(SPOKEN), st.none() | st.sampled_from("vwxyz"))
lists = st.lists(writings, max_size=6, unique_by=lambda one: one[1] or object())


def prepared(text: str, named: str | None = None) -> PreparedMessage:
    hidden = text[0] == "h"
    made = draft(WHO[text[0]], text, id=named, tokens=0 if hidden else len(text), model_visible=not hidden)
    return replace(made, search_text="", terms=()) if hidden else made


def drawn(present: list[StoredMessage], data: st.DataObject) -> SimpleNamespace:
    """Return what a verb is called with: a part of the session again, edited or not, and what is new."""
    again = [one.message for one in present if data.draw(st.booleans())]
    repeated = [(one.text, one.id if data.draw(st.booleans()) else None) for one in again]
    written = {one[1] or object(): one for one in [*repeated, *data.draw(lists)]}.values()
    return SimpleNamespace(
        present=present,
        sent=[prepared(*one) for one in written],
        place=data.draw(st.integers(0, max(0, len(present) - 1))),
        flag=data.draw(st.booleans()),
        part=data.draw(st.sampled_from([None, "active", "archived"])),
        text=data.draw(st.sampled_from(SPOKEN)),
    )


def sends(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return what writes a list of messages as a batch."""
    return lambda connection, scope, sent, *more, **options: write(
        connection, Batch(scope, sent, NOON), *more, **options
    )


AT, ALL = (NOON, SHARDS), {"replaceable": lambda _: True}
VERBS: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "append": lambda run, one: run(sends(writes.append), one.sent, verbatim=one.flag),
    "merge": lambda run, one: run(sql.merge, one.sent, SessionDetails(), *AT, is_learned=False),
    "hear": lambda run, one: run(sends(writes.hear), one.sent),
    "insert": lambda run, one: run(
        sends(writes.insert_into_list), [prepared(each.message.text) for each in one.sent], one.place
    ),
    "replace": lambda run, one: run(sends(writes.replace_list), one.sent, one.part, erase=one.flag),
    "restore": lambda run, one: run(sql.restore, one.sent, SessionDetails(), *AT),
    "resync": lambda run, one: run(sends(writes.resync), one.sent, replace_all=one.flag, **ALL),
    "edit": lambda run, one: run(
        writes.edit_message, one.place, lambda old: prepared(one.text, old.id), NOON, erase=one.flag
    ),
    "delete": lambda run, one: run(writes.delete_message, one.present[one.place].message.id, NOON),
    "take": lambda run, one: run(writes.take_from_list, None, one.place, 2, NOON),
    "withdraw": lambda run, one: run(
        writes.withdraw, ["unknown", *(each.message.id for each in one.present[one.place :])], NOON
    ),
}


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


def check(db: Database, scope: Scope, before: Sequence[StoredMessage], splice: Splice) -> None:
    """Compare a session with its list after a splice, and its totals with a recount."""
    session = db.read(reads.find, scope)
    after = db.read(reads.history, session, 0, None)
    assert [stored.message for stored in after] == applied_to(before, splice)
    assert (session.messages, session.tokens) == (len(after), sum(stored.tokens for stored in after))
    positions = [0, *(stored.position for stored in after), session.next_position]
    assert positions == sorted(set(positions))
    there = {stored.key: stored.position for stored in after}
    assert all(there[old.key] == old.position for old in before if old.key in there)
    instructions = [stored.key for stored in after if stored.message.role == "system"]
    assert session.instructions == (instructions[-1] if instructions else None)
    findable = [stored.key for stored in after if stored.tokens and stored.message.role != "system"]
    filed = sa.select(texts.c.key, texts.c.owner).order_by(texts.c.key)
    every = db.read(lambda connection: connection.execute(filed).all())
    assert [row.key for row in every if row.owner == session.number] == sorted(findable)
    assert db.read(words.keys) == [row.key for row in every]


@pytest.mark.parametrize(
    "db", ["memory", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
@pytest.mark.parametrize("verb", VERBS)
@examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_store_has_what_the_splice_makes_of_a_plain_list(db: Database, verb: str, data: st.DataObject):
    scope, versions = Scope("ada", f"session {next(NUMBERS)}"), []
    splices: list[Splice] = []
    apply = writes.apply

    def spy(connection: Any, scope: Scope, row: Any, splice: Splice, *more: Any) -> Any:
        splices.append(splice)
        return apply(connection, scope, row, splice, *more)

    for step in ["append", *data.draw(st.lists(st.sampled_from([*VERBS]), max_size=3)), verb, verb]:
        session = db.read(reads.find, scope)
        present = db.read(reads.history, session, 0, None) if session else []
        if not present and step in {"edit", "delete", "take", "withdraw"}:
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writes, "apply", spy)
            receipt = VERBS[step](
                lambda work, *more, **options: db.write(work, scope, *more, **options), drawn(present, data)
            )
        splice = splices[-1]
        check(db, scope, present, splice)
        says = {stored.key: stored.message for stored in present}
        kept = [message for message in versions if message.id not in splice.erasures]
        versions = [*kept, *(says[key] for key in splice.versions)]
        stored = db.read(reads.versions, db.read(reads.find, scope))
        assert Counter((one.message.id, one.message.text) for one in stored) == Counter(
            (one.id, one.text) for one in versions
        )
        assert getattr(receipt, "ids", splice.ids) == splice.ids
        if step in {"append", "merge", "hear", "edit"}:
            lost = [key for key, new in splice.replacements if loses(says[key], new.message)]
            assert lost == [*splice.versions] or splice.erasures
