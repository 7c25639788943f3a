"""Writes records in SQL: remember, revise, forget. Each function runs in its caller's transaction.

Every write locks in this order: messages, owners, records (see `texts`). So writes to one user's records happen one after
the other, and there is no deadlock.

Each version of a record has its own number, which is the key of its text: a key never means two texts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from memlayer_core.errors import InvalidRecordError
from memlayer_core.facts import check, model, reads
from memlayer_core.facts.model import Claim, Decision, Record, memory_id, no_record, ordinal_of
from memlayer_core.facts.reconcile import TimeLine
from memlayer_core.messages.reads import ever_inside, lock_messages
from memlayer_core.messages.writes import Change, Follower, register
from memlayer_core.scope import Scope
from memlayer_core.settings import Settings
from memlayer_core.storage import jobs as storage_jobs, statements, tables, texts, vectors
from memlayer_core.storage.statements import LAST, to_micros
from memlayer_core.storage.tables import IN_FORCE, evidence, messages, records, sessions

_DAY = 86_400_000_000  # microseconds
_IN_FORCE = records.c.replaced_by.is_(None)
_EVER = -LAST  # before any moment, in microseconds
_Known = dict[int, tuple[Any, Record]]
"""Rows of records, each with its record, by their numbers."""
_says = attrgetter("subject", "category", "key", "value", "raw", "modality")


def _set(connection: sa.Connection, table: sa.Table, *where: Any, **values: Any) -> None:
    """Change the rows of a table that meet all conditions."""
    connection.execute(sa.update(table).where(*where).values(values))


def revise(
    connection: sa.Connection,
    reach: Scope,
    record_id: str,
    others: Sequence[str],
    change: Callable[[Record, Sequence[Record]], Record],
    now: datetime,
    quote: tuple[int, int, int] | None = None,
) -> Record:
    """Replace a record, and others that are merged into it, by the result of `change`.

    A fact then says what the caller says, and rests on the quote alone, if there is one. If `change` raises, nothing is
    changed. If it changes nothing, there is no new version.

    Raises:
        UnknownRecordError: One of them is not in force, or not the user's.
        InvalidRecordError: Another record has the same words.
    """
    hold(connection, reach)
    rows = [_find(connection, reach, one) for one in (record_id, *others)]
    stored, *taken = map(reads.record_of, rows)
    changed, ordinals = change(stored, taken), [row.ordinal for row in rows]
    if changed == stored and not taken:
        return stored
    supersede(connection, rows, ordinals[0], now)
    same = same_words(connection, check.digest(changed))
    if same is not None:
        raise InvalidRecordError(
            f"the record {memory_id(same.user_id, same.ordinal)!r} says the same",
            hint="Merge them: `chat.revise(…, merge=[…])`, or forget one of them.",
        )
    record = add_version(connection, changed, ordinals[0], now)
    if taken or _says(stored) != _says(record):
        reads.release_evidence(connection, rows, keeps_words=True)
        merged = records.c.namespace == reach.namespace, records.c.ordinal.in_(ordinals[1:])
        _set(connection, records, *merged, about=None)
        said = Claim(record=record, quote=quote, model="agent" if quote is not None else None)
        reads.add_evidence(connection, record.owner, ordinals[0], said, "said")
    else:
        of_it = evidence.c.ordinal == ordinals[0], evidence.c.kind != "ended"
        _set(connection, evidence, evidence.c.namespace == reach.namespace, *of_it, **reads.times_of(record))
    return record


def forget_all(connection: sa.Connection, reach: Scope, condition: Any, now: datetime) -> Sequence[Any]:
    """Delete a user's records that meet a condition, with every version of them. Returns their rows."""
    query = sa.select(records).where(reads.OWN, condition)
    if connection.execute(query, statements.reach_parameters(reach)).first() is None:
        return []
    texts.lock_owners(connection, _names_of(reach))
    rows = connection.execute(query, statements.reach_parameters(reach)).all()
    delete_records(connection, rows, now)
    return rows


def list_rows(connection: sa.Connection, reach: Scope) -> list[Any]:
    """Return the rows of all versions of a user's records; only of an agent, or of a session and those below it, if named."""
    session = reach.session_id
    part = sa.true() if session is None else statements.is_within(records.c.session_id, session)
    query = sa.select(records).where(reads.OWN, part).order_by(records.c.ordinal, records.c.version)
    return list(connection.execute(query, statements.reach_parameters(reach.reach())))


def delete_records(connection: sa.Connection, rows: Sequence[Any], now: datetime) -> int:
    """Delete records. `rows` are all versions of them, and are locked. Returns how many records were deleted."""
    if not rows:
        return 0
    take_away(connection, [row for row in rows if row.replaced_by is None], now)
    reads.release_evidence(connection, rows)
    for some in statements.chunks([row.number for row in rows]):
        connection.execute(sa.delete(records).where(records.c.number.in_(some)))
    storage_jobs.enqueue_erasure(connection, now)
    return len({(row.namespace, row.ordinal) for row in rows})


def _restore(connection: sa.Connection, versions: Sequence[Record], now: datetime) -> int | None:
    """Store a record that comes from elsewhere, the oldest version first. Returns its number; None: nothing was stored.

    If this very record is here, under whatever number, it is replaced if what comes is later. Otherwise, nothing is stored
    if its words are in force here, and if another record has its id, it gets a new one.
    """
    newest = versions[-1]
    owner, ordinal, made = newest.owner, ordinal_of(newest.memory_id)[1], to_micros(newest.created_at)
    hold(connection, owner)
    if reads.was_forgotten(connection, owner, ordinal, made):
        return None
    alike = (same_words(connection, check.digest(one)) for one in reversed(versions))
    numbers = chain([ordinal], (row.ordinal for row in alike if row is not None))
    found = (_versions(connection, owner.namespace, number) for number in numbers)
    here = next((rows for rows in found if rows and rows[-1].created_at == made), [])
    if here and not _is_later(versions, here):
        return None
    is_taken = not here and bool(_versions(connection, owner.namespace, ordinal))
    delete_records(connection, here, now)
    said, is_past = check.digest(newest), newest.replaced_by is not None
    same = None if is_past else same_words(connection, said)
    if not here and (same is not None or (is_past and is_taken and ever_said(connection, owner, said))):
        return None
    ordinal = here[-1].ordinal if here else count(connection, owner, 0 if is_taken else ordinal)
    if here and (here[-1].last_accessed or 0) > (reads.in_micros(newest.last_accessed) or 0):
        recalled = reads.in_time(here[-1].last_accessed)
        versions = [*versions[:-1], replace(newest, accesses=here[-1].accesses, last_accessed=recalled)]
    names = dict[str | None, str | None]({newest.memory_id: memory_id(owner.user_id, ordinal)})
    names[None] = None if same is None else memory_id(owner.user_id, same.ordinal)
    for one in versions:
        after = names.get(one.replaced_by, one.replaced_by)
        add_version(connection, replace(one, replaced_by=after), ordinal, now)
    return ordinal


def _is_later(versions: Sequence[Record], here: Sequence[Any]) -> bool:
    """Return whether versions that come from elsewhere go on from those of the same record here, or were written later."""
    newest, head = versions[-1], here[-1]
    told = attrgetter("version", "text", "value", "tags", "access_control")
    is_known = {*map(told, map(reads.record_of, here))} <= {*map(told, versions)}
    there = to_micros(newest.updated_at), newest.version, newest.replaced_by is not None
    is_newer = there > (head.updated_at, head.version, head.replaced_by is not None)
    return is_newer or (is_known and newest.version > head.version)


def note_recall(connection: sa.Connection, keys: Sequence[int], now: datetime) -> None:
    """Note when records were recalled, and on how many days. If a later moment is noted already, it stays."""
    at, last = to_micros(now), sa.func.coalesce(records.c.last_accessed, 0)
    first_today = sa.case((last < at - at % _DAY, 1), else_=0)
    noted = {"last_accessed": at, "accesses": records.c.accesses + first_today}
    for some in statements.chunks(keys):
        _set(connection, records, records.c.number.in_(some), last < at, **noted)


def hold(connection: sa.Connection, owner: Scope) -> None:
    """Lock a user's records and the tenant's shared ones until the transaction ends. The user's row is created if needed.

    Both are locked in the order of their names, as in every write.
    """
    for name in _names_of(owner):
        if name == owner.namespace:
            texts.hold_owner(connection, owner)
        else:
            texts.lock_owners(connection, [name])


def _names_of(owner: Scope) -> list[str]:
    """Return the namespaces of a user's records, in the order in which they are locked: the user's, and the tenant's."""
    return sorted([owner.namespace, owner.commons.namespace])


def note_numbers(connection: sa.Connection, owner: Scope, ordinal: int) -> None:
    """Let no new record of a user get this number, or a lower one."""
    texts.hold_owner(connection, owner)
    count(connection, owner, ordinal)


def count(connection: sa.Connection, owner: Scope, ordinal: int = 0) -> int:
    """Return the number of a user's next record, or note that `ordinal` is used. No number is used twice."""
    highest = tables.namespaces.c.records
    counted = sa.update(tables.namespaces).where(tables.namespaces.c.namespace == owner.namespace)
    if ordinal:
        connection.execute(counted.where(highest < ordinal).values(records=ordinal))
        return ordinal
    next_one = connection.execute(counted.values(records=highest + 1).returning(highest)).scalar_one()
    return int(next_one)


def add_version(
    connection: sa.Connection, record: Record, ordinal: int, now: datetime, *, is_filed: bool = True
) -> Record:
    """Write a version of a record, and index it if it is in force, not archived by an import, and `is_filed`."""
    (number,) = statements.take_keys(connection, 1)
    numbers = {"number": number, "ordinal": ordinal}
    recalls = {"accesses": record.accesses, "last_accessed": reads.in_micros(record.last_accessed)}
    connection.execute(sa.insert(records).values({**reads.columns_of(record), **numbers, **recalls}))
    if record.replaced_by is None and is_filed:
        if record.access_control.is_shared:
            texts.hold_owner(connection, record.owner.commons)
        _file(connection, number, record, now)
    return replace(record, memory_id=memory_id(record.user_id, ordinal))


def _file(connection: sa.Connection, key: int, record: Record, now: datetime) -> None:
    """File a record in force for searches, unless an import archived it."""
    if record.archived_because is None:
        filed = [(key, reads.terms_of(record))]
        texts.add(connection, "record", reads.index_scope(record), filed, now, reads.readers_of(record))


def supersede(connection: sa.Connection, rows: Sequence[Any], ordinal: int, now: datetime) -> None:
    """Replace versions in force by the record with this number."""
    given_up = [row for row in rows if row.replaced_by is None]
    take_away(connection, given_up, now)
    for some in statements.chunks([row.number for row in given_up]):
        _set(connection, records, records.c.number.in_(some), replaced_by=ordinal)


def take_away(connection: sa.Connection, rows: Sequence[Any], now: datetime) -> None:
    """Delete everything by which these records are found."""
    home = attrgetter("indexed_in")
    for namespace, some in groupby(sorted(rows, key=home), key=home):
        texts.remove(connection, namespace, [row.number for row in some], now)


def _find(connection: sa.Connection, reach: Scope, record_id: str) -> Any:
    """Return the row of a user's record in force.

    Raises:
        UnknownRecordError: There is none.
    """
    this = sa.select(records).where(_versions_of(record_id), _IN_FORCE)
    row = connection.execute(this, statements.reach_parameters(reach)).first()
    if row is None:
        raise no_record(reach, record_id)
    return row


def _versions_of(record_id: str) -> Any:
    """Return the condition that rows are versions of a user's record; `reach_parameters` gives its values."""
    user_id, ordinal = ordinal_of(record_id)
    return sa.and_(reads.OWN, records.c.ordinal == ordinal, records.c.user_id == user_id)


def same_words(connection: sa.Connection, digest: bytes) -> Any | None:
    """Return the row of the record in force with these words; None if there is none."""
    return connection.execute(sa.select(records).where(records.c.digest == digest, _IN_FORCE)).first()


def _versions(connection: sa.Connection, namespace: str, ordinal: int) -> Sequence[Any]:
    these = sa.and_(records.c.namespace == namespace, records.c.ordinal == ordinal)
    return connection.execute(sa.select(records).where(these).order_by(records.c.version)).all()


def ever_said(connection: sa.Connection, owner: Scope, digest: bytes) -> bool:
    """Return whether a user has, or had, a record with these words."""
    said = sa.exists().where(records.c.namespace == owner.namespace, records.c.digest == digest)
    return connection.scalar(sa.select(said)) is True


# Facts: carries out the decision about a statement.


def remember(connection: sa.Connection, statement: Claim, now: datetime) -> tuple[Decision, Record | None]:
    """Decide what a statement does to the records in force, and do it. Returns the decision, and the record.

    If a record in force has the same words, it is confirmed. Otherwise the record is a new one; a fact may also confirm,
    replace or end others. The record is then the one that it confirmed or ended; None: nothing was stored. A record with
    evidence is not filed for searches, since its messages are found, and say it in full.

    Args:
        connection: In a transaction that writes. The messages that the statement quotes are locked.
        statement: The statement.
        now: The present.
    """
    new, owner = statement.record, statement.record.owner
    hold(connection, owner)
    since = min(new.first_observed, new.valid_from or new.first_observed)
    named = {ordinal_of(one)[1] for one in statement.targets}
    known = _linked(connection, owner.namespace, [new], named, to_micros(since))
    line = _time_line(connection, owner.namespace, known, now)
    decision = line.decide(statement)
    if decision.kind == "refuse":
        return decision, None
    kind = _EVIDENCE.get(decision.kind, "said")
    ordinal = count(connection, owner) if kind == "said" else ordinal_of(decision.old[0].memory_id)[1]
    quote = statement.quote
    if kind == "confirmed" and quote and reads.rests_on(connection, owner.namespace, ordinal, quote[0]):
        return decision, decision.old[0]
    record = line.tell(statement, decision, memory_id(owner.user_id, ordinal))
    if kind == "confirmed" and statement.narrows:
        record = check.narrow_access(record, new.access_control)
        line.facts[record.memory_id] = record
    for one in decision.old if kind == "ended" else [record]:
        reads.add_evidence(connection, owner, ordinal_of(one.memory_id)[1], statement, kind)
    _store(connection, owner.namespace, known, line)
    return decision, record


_EVIDENCE: dict[str, model.EvidenceKind] = {"confirm": "confirmed", "end": "ended"}
"""What a statement is to the facts that it is about, by the kind of the decision; any other makes a new one."""


def _linked(
    connection: sa.Connection, namespace: str, said: Sequence[Record], named: set[int], since: int = _EVER
) -> _Known:
    """Return the newest rows of records that may change each other, each with its record, by their numbers.

    These are the named ones, those that are about the same as what is said, and those that they replaced or that replaced
    them. If all that is said is of collections, these are the facts of the values that are said. If only what holds since a
    moment (in microseconds) counts, facts that ended before it, and before all that hold, are left out.
    """
    every, known = records.c, _Known()
    values = {check.fold(one.value) for one in said}
    every_value = any(one.category != model.COLLECTION for one in said)
    of_user, is_merged = every.namespace == namespace, sa.and_(every.about.is_(None), ~_IN_FORCE)
    alike = sa.and_(every.digest.in_([check.digest(one) for one in said if one.subject is None]), _IN_FORCE)
    named, abouts, first, size = {*named}, {*map(check.about, said)}, since, -1
    while size < len(known):
        size = len(known)
        counts = sa.or_(_IN_FORCE, sa.func.coalesce(every.valid_until, LAST) >= first)
        ties = sa.and_(of_user, every.replaced_by.in_(named)), sa.and_(of_user, every.ordinal.in_(named))
        linked = sa.or_(sa.and_(every.about.in_(abouts - {None}), counts), alike, *ties)
        query = sa.select(records).where(linked, ~is_merged, every.ordinal.not_in(known), reads.NEWEST)
        for row in connection.execute(query.order_by(every.number)).all():
            one, holds = reads.record_of(row), row.replaced_by in {None, row.ordinal}
            is_one = every_value or one.category != model.COLLECTION or row.ordinal in named
            if is_one or check.fold(one.value) in values:
                known[row.ordinal] = row, one
                abouts.add(row.about)
                named |= {row.replaced_by, row.ordinal if holds or since == _EVER else None} - {None}
                first = min(first, row.valid_from or first) if holds else first
    return known


def _time_line(connection: sa.Connection, namespace: str, known: _Known, now: datetime) -> TimeLine:
    held = {ordinal: one for ordinal, (_, one) in known.items() if one.replaced_by in {None, one.memory_id}}
    return TimeLine((one for _, one in known.values()), reads.last_said(connection, namespace, held), now)


def _store(connection: sa.Connection, namespace: str, known: _Known, line: TimeLine) -> None:
    """Write what has changed of facts. Those that only messages say are not filed for searches, since these are found."""
    facts = ((ordinal_of(one.memory_id)[1], one) for one in line.facts.values())
    changed = {ordinal: one for ordinal, one in facts if ordinal not in known or known[ordinal][1] is not one}
    filed = texts.existing_keys(connection, [known[one][0].number for one in changed.keys() & known.keys()])
    quotes = reads.quotes_of(connection, namespace, changed)
    told = {row.ordinal for row in quotes if row.message == 0 and row.kind != "ended"}
    quoted = {row.ordinal for row in quotes} - told
    for ordinal, record in sorted(changed.items(), key=lambda pair: pair[1].replaced_by is None):
        row = known[ordinal][0] if ordinal in known else None
        if row is None or row.version != record.version:
            supersede(connection, [] if row is None else [row], ordinal, line.now)
            add_version(connection, record, ordinal, line.now, is_filed=ordinal not in quoted)
            continue
        _set(connection, records, records.c.number == row.number, **reads.columns_of(record))
        if row.number in filed and record.replaced_by is not None:
            take_away(connection, [row], line.now)
        elif record.replaced_by is None and row.number not in filed and ordinal not in quoted:
            _file(connection, row.number, record, line.now)


def restore(
    connection: sa.Connection, versions: Sequence[Record], quotes: Sequence[model.Evidence], now: datetime
) -> tuple[bool, int | None]:
    """Store a record that comes from elsewhere next to the facts in force here, with its evidence.

    Returns whether anything was stored, and the number of the record with these words; None: there is none.
    """
    newest = versions[-1]
    stored = _restore(connection, versions, now)
    row = same_words(connection, check.digest(newest))
    if stored is not None:
        reads.restore_evidence(connection, newest, stored, quotes)
    is_fact = newest.key is not None and newest.archived_because is None
    if row is not None and row.ordinal == stored and is_fact:
        replay(connection, [row], now)
    return stored is not None, getattr(row, "ordinal", None)


def forget_fact(connection: sa.Connection, reach: Scope, record_id: str, now: datetime) -> int:
    """Delete a record with all its versions, and the records that were merged into it. Returns how many there were.

    Facts that it had ended are deleted, too, unless another record has taken its place since. None of them is learned
    again, or comes back from an export.
    """
    ordinal, versions = ordinal_of(record_id)[1], sa.select(records).where(_versions_of(record_id))
    newest = versions.order_by(records.c.version.desc()).limit(1)
    row = connection.execute(newest, statements.reach_parameters(reach)).first()
    if row is None:
        return 0
    heads, taken_in = [row], [records.c.about.is_(None)]
    if row.replaced_by in {None, ordinal}:
        same = records.c.about == sa.literal(row.about, sa.LargeBinary), _IN_FORCE
        ended = records.c.valid_until == sa.literal(row.valid_from, sa.BigInteger)
        has_ended = records.c.valid_until <= to_micros(now)
        heads += connection.execute(sa.select(records).where(*same, ended, has_ended))
        taken_in = []
    gone = found = {one.ordinal for one in heads}
    while found:  # what they replaced would be in force again without them
        gave_way = records.c.namespace == reach.namespace, records.c.replaced_by.in_(found), *taken_in
        found = set(connection.scalars(sa.select(records.c.ordinal).where(*gave_way))) - gone
        gone = gone | found
    sources = reads.sources_of(connection, reach.namespace, gone)
    lock_messages(connection, chain(*sources.values()))
    texts.lock_owners(connection, _names_of(reach))
    these = records.c.namespace == reach.namespace, records.c.ordinal.in_(gone)
    rows = connection.execute(sa.select(records).where(*these)).all()
    delete_records(connection, rows, now)
    reads.note_forgotten(connection, reach, {(one.ordinal, one.created_at) for one in rows})
    replay(connection, [row], now)
    return len({one.ordinal for one in rows if one.about is not None} | {ordinal})


def forget_again(connection: sa.Connection, reach: Scope, record_id: str, moment: int, now: datetime) -> int:
    """Delete a record that was deleted elsewhere. If its id is another record's here, that one stays. Returns how many."""
    ordinal = ordinal_of(record_id)[1]
    this = sa.select(records.c.created_at).where(reads.OWN, records.c.ordinal == ordinal)
    here = connection.scalars(this, statements.reach_parameters(reach)).all()
    if moment in here:
        return forget_fact(connection, reach, record_id, now)
    if not here and not reads.was_forgotten(connection, reach, ordinal, moment):
        reads.note_forgotten(connection, reach, {(ordinal, moment)})
    return 0


def withdraw_evidence(connection: sa.Connection, condition: Any, now: datetime) -> None:
    """Delete evidence that meets a condition, and records without other evidence: as if nobody had ever said it."""
    owners = connection.scalars(sa.select(evidence.c.namespace).where(condition).distinct()).all()
    if not owners:
        return
    texts.lock_owners(connection, owners)
    rows = connection.execute(sa.delete(evidence).where(condition).returning(evidence)).all()
    touched, of_records = list[Any](), [row for row in rows if row.ordinal is not None]
    for namespace, ordinal in sorted({(row.namespace, row.ordinal) for row in of_records}):
        withdrawn = [row for row in of_records if (row.namespace, row.ordinal) == (namespace, ordinal)]
        if versions := _versions(connection, namespace, ordinal):
            gone = {row.text for row in withdrawn}
            gone |= {versions[-1].text for row in withdrawn if row.kind == "said"}
            touched.append(_without(connection, versions, gone, now))
    every, earlier_words = records.c, [row for row in rows if row.ordinal is None and row.more is not None]
    for row in earlier_words:
        earlier = every.namespace == row.namespace, every.ordinal == int(row.more), every.text == row.text
        connection.execute(sa.delete(records).where(*earlier, every.replaced_by.is_not(None)))
    replay(connection, touched, now)


def said_in(reach: Scope, session_id: str) -> Any:
    """Return the condition on evidence that an application said it in a session, or in one below it."""
    agent = sa.true() if reach.agent_id is None else evidence.c.agent_id == reach.agent_id
    here = evidence.c.message == 0, statements.is_within(evidence.c.session_id, session_id)
    return sa.and_(evidence.c.namespace == reach.namespace, agent, *here)


def _without(connection: sa.Connection, versions: Sequence[Any], gone: set[str | None], now: datetime) -> Any:
    """Let a record not say some words any more, unless other evidence does; without any, delete it. Returns its newest row."""
    left = reads.quotes_of(connection, versions[0].namespace, [versions[0].ordinal])
    words = [row.text for row in left if row.kind != "ended"]
    for one in versions if left else ():
        record = replace(reads.record_of(one), mentions=max(1, len(words)), session_id=None)
        if one.text in gone.difference(words):
            record = replace(record, raw=words[0] if words else record.value or record.raw, summary=None)
            take_away(connection, [one], now)
        columns = reads.columns_of(replace(record, replaced_by=record.replaced_by or record.memory_id))
        _set(connection, records, records.c.number == one.number, **{**columns, "about": one.about})
    if not left:
        delete_records(connection, versions, now)
    return versions[-1]


# Decides anew about facts when something that was said of them is deleted.


def replay(connection: sa.Connection, touched: Sequence[Any], now: datetime) -> None:
    """Let what is left about the subjects and keys of some facts decide anew, as if nothing else had ever been said.

    Args:
        connection: In a transaction that writes. The owners' records are locked.
        touched: Rows of the newest versions of facts that are deleted, or rest on less than before.
        now: The present.
    """
    facts = sorted((row for row in touched if row.about is not None), key=attrgetter("namespace"))
    for namespace, rows in groupby(facts, key=attrgetter("namespace")):
        for some in statements.chunks(list(rows)):
            _decide_anew(connection, namespace, some, now)


def _decide_anew(connection: sa.Connection, namespace: str, touched: Sequence[Any], now: datetime) -> None:
    known = _linked(connection, namespace, [*map(reads.record_of, touched)], {row.ordinal for row in touched})
    quotes = reads.quotes_of(connection, namespace, known)
    named = {ordinal_of(one)[1] for row in quotes for one in reads.targets_of(row)} - known.keys()
    others = {at: one for at, one in _linked(connection, namespace, (), named).items() if at not in known}
    line, told = _time_line(connection, namespace, others, now), set[int]()
    for quote in quotes:
        _tell_again(connection, line, known[quote.ordinal][0], quote, told)
    for ordinal, (_, fact) in known.items():
        if fact.memory_id not in line.facts:
            delete_records(connection, _versions(connection, namespace, ordinal), now)
    _store(connection, namespace, known | others, line)


def _tell_again(connection: sa.Connection, line: TimeLine, row: Any, quote: Any, told: set[int]) -> None:
    """Decide about a statement once more.

    Args:
        connection: In a transaction that writes.
        line: The facts that are told again.
        row: The fact that the statement made, confirmed or ended before.
        quote: The row of evidence.
        told: The numbers of the facts that were told; it is changed.
    """
    changed = dict[str, Any](ordinal=None, text=None, more=None)
    record_id = memory_id(row.user_id, row.ordinal)
    statement = reads.claim_of(row, quote, is_told=record_id in line.facts)
    decision = line.decide(statement)
    if decision.kind != "refuse":
        kind = _EVIDENCE.get(decision.kind, "said")
        if kind == "said" and record_id in line.facts:
            record_id = memory_id(row.user_id, count(connection, statement.record.owner))
            statement = replace(statement, record=replace(statement.record, mentions=1, version=1))
        made = line.tell(statement, decision, record_id)
        ordinal = ordinal_of(made.memory_id)[1]
        if kind == "confirmed":
            known = decision.old[0]
            more = 0 if row.ordinal in {ordinal, *told} else row.mentions
            same = {name: getattr(known, name) for name in ("confidence", "importance", "updated_at")}
            line.facts[made.memory_id] = replace(made, mentions=known.mentions + more, **same)
        told |= {row.ordinal, ordinal}
        changed = {"ordinal": ordinal, "kind": kind}
    if any(getattr(quote, name) != value for name, value in changed.items()):
        _set(connection, evidence, evidence.c.number == quote.number, **changed)


def _words(connection: sa.Connection, keys: Sequence[int]) -> dict[int, sa.Row[Any]]:
    """Return what some messages say, those of them that are evidence of a record."""
    is_evidence = sa.exists().where(evidence.c.message == messages.c.key)
    said = sa.select(*messages.c["key", "text", "role", "created_at"]).where(is_evidence, IN_FORCE)
    pages = (said.where(messages.c.key.in_(some)) for some in statements.chunks(keys))
    return {row.key: row for page in pages for row in connection.execute(page)}


@contextmanager
def _follow_facts(connection: sa.Connection, change: Change) -> Iterator[None]:
    """Take back the records whose evidence is in messages that change. The messages are read again."""
    before = _words(connection, change.keys)
    yield
    now_there = _words(connection, list(before))
    changed = [key for key, statement in before.items() if now_there.get(key) != statement]
    for some in statements.chunks(changed):
        withdraw_evidence(connection, evidence.c.message.in_(some), change.now)


def _drop_facts(connection: sa.Connection, session: int, now: datetime) -> None:
    """Take back the records whose evidence is in a session that is deleted."""
    every = sa.select(messages.c.key).where(ever_inside(session))
    withdraw_evidence(connection, evidence.c.message.in_(every), now)


# Counts and deletes archived records of all users, in SQL. Each function runs in its caller's transaction.
#
# A record is archived when it has faded or expired. Nothing is written for that.

_AT: Any = sa.bindparam("now")
_EXPIRED = sa.and_(records.c.expires_at.is_not(None), records.c.expires_at <= _AT)
_ARCHIVED = sa.and_(_IN_FORCE, sa.or_(_EXPIRED, sa.and_(sa.not_(reads.KEPT), _AT >= reads.USED)))
"""The condition that records were archived at a moment, and have not been used since."""


def count_archived(connection: sa.Connection, settings: Settings, at: datetime) -> tuple[int, int]:
    """Return how many records of all users have faded at a moment, and how many have expired."""
    faded = sa.and_(sa.not_(_EXPIRED), sa.not_(reads.KEPT))
    both = [sa.func.count().filter(one) for one in (faded, _EXPIRED)]
    row = connection.execute(sa.select(*both).where(_IN_FORCE), _values(settings, at, 0)).one()
    return row[0], row[1]


def delete_archived(
    connection: sa.Connection, settings: Settings, at: datetime, days: float, limit: int, now: datetime
) -> int:
    """Delete records that have been archived for some days at a moment, with the facts that they had replaced.

    Their evidence is not learned again. The ledger names each record that was deleted. Returns how many were deleted.

    Args:
        connection: In a transaction that writes.
        settings: Its thresholds count.
        at: The moment that counts.
        days: How many days they must have been archived by then.
        limit: Of how many archived records at most.
        now: The present, for jobs.
    """
    archived, deleted = sa.select(records).where(_ARCHIVED).order_by(records.c.number).limit(limit), 0
    for row in connection.execute(archived, _values(settings, at, days)).all():
        owner, record_id = reads.record_of(row).owner, memory_id(row.user_id, row.ordinal)
        deleted += forget_fact(connection, owner, record_id, now)
        result: Any = {"reason": _reason(row, at), "record_ids": (record_id,), "session_id": owner.session_id}
        entry = model.LedgerEntry(task="maintain", outcome="deleted", at=at, **result)
        reads.note_outcome(connection, owner, entry)
    return deleted


def _reason(row: Any, now: datetime) -> str:
    record = reads.record_of(row)
    if record.expires_at is not None and record.expires_at <= now:
        return f"it expired on {record.expires_at.date()}"
    used = max(record.updated_at, record.last_accessed or record.updated_at)
    return f"it was not used since {used.date()}, and has faded"


def _values(settings: Settings, at: datetime, days: float) -> dict[str, float]:
    """Return the values of `_ARCHIVED` so many days before a moment."""
    before = to_micros(at) - statements.micros_of(timedelta(days=days))
    return {**reads.limits_of(settings), "now": before}


# The messages that a model reads.


def begin_learning(connection: sa.Connection, now: datetime, days: float) -> None:
    """Note that a model learns from this store from now on. The first time, messages of the last days are queued for it."""
    if not statements.note(connection, vectors.LEARNS, str(to_micros(now))) or not days:
        return
    said = messages.c.role == "user", IN_FORCE, messages.c.created_at >= to_micros(now - timedelta(days=days))
    keys = connection.scalars(sa.select(messages.c.key).where(*said).order_by(messages.c.key)).all()
    for some in statements.chunks(keys):
        queue(connection, some, 1, now, now, now)


_FEW = 3
"""Fewer turns of a session than this wait until the session ends, or the user begins another one."""


def queue(
    connection: sa.Connection,
    keys: Sequence[int],
    turns: int,
    now: datetime,
    later: datetime,
    ended: datetime,
) -> None:
    """Queue jobs of kind `"learn"` for those of some messages that a user said.

    The messages of a session wait until there are `turns` of them. Three or more wait at most until `later`. Fewer wait
    until the session ends, at most until `ended`. Messages that wait in the user's other sessions are due now.
    """
    rows = reads.from_users(connection, keys)
    for session, some in groupby(sorted(rows, key=attrgetter("session")), key=attrgetter("session")):
        said, stretch = list(some), storage_jobs.Stretch(session, 0, LAST)
        namespace, subjects = said[0].namespace, [row.key for row in said]
        storage_jobs.enqueue_once(connection, "learn", subjects, ended, namespace)
        begins = sa.select(sessions.c.memory_start).where(sessions.c.number == session).with_for_update()
        start = connection.scalar(begins) or 0  # locked, so nobody ends the session meanwhile
        is_over = any(row.position < start for row in said)

        def due(count: int, rest: datetime = now if is_over else ended) -> datetime:
            return now if count >= turns else later if count >= _FEW else rest

        storage_jobs.gather(connection, stretch, due)
        storage_jobs.hasten(connection, namespace, stretch, now)


def _hurry_rest(connection: sa.Connection, session: Any, *_: object) -> None:
    """Make the messages that wait in a session due, since it ends."""
    whole = storage_jobs.Stretch(session.number, 0, LAST)
    storage_jobs.gather(connection, whole, lambda _: statements.from_micros(0))


register(Follower(_follow_facts, _drop_facts, _hurry_rest))


def unchanged(connection: sa.Connection, rows: Sequence[Any], *, unread: bool) -> set[int]:
    """Lock messages, and return the keys of those that did not change since they were read; `unread` as in `from_users`."""
    keys = sorted(row.key for row in rows)
    lock_messages(connection, keys)
    digests = {row.key: bytes(row.digest) for row in reads.from_users(connection, keys, unread=unread)}
    return {row.key for row in rows if digests.get(row.key) == bytes(row.digest)}
