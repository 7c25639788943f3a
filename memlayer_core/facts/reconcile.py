"""Decides what a statement does to facts about the same subject, and when these are true.

Facts are compared by their subject, their key and their value: equal after folding case, spaces and width, or different.
A model decides about values that are only similar: it names the facts that its statement ends or replaces. In this order:

1. A statement that ends a fact ends it. The same value again confirms it.
2. A conclusion of an agent never replaces or ends what the user said, nor an unsure statement a sure one.
3. A correction replaces what was never true. A fact that began earlier than what is in force, if both say since when, is of
   the past. Otherwise the later statement counts, or the surer one if the category does not change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from memlayer_core.facts.check import INFERRED, TOLERANCE, confirm, digest, fold, key_of
from memlayer_core.facts.model import COLLECTION, IDENTITY, Claim, Decision, Record

_COME_TRUE = (("plans", "states"), ("wants", "states"))
_OPPOSITES = ({"states", "denies"}, {"wants", "denies"}, {"plans", "denies"})


class TimeLine:
    """Facts that may change each other, in memory. Statements are told one after the other.

    Attributes:
        facts: The newest version of each, by its id. One that is replaced by itself has ended.
        last_said: When they were last said, or last said to end, by their ids.
        now: The present.
    """

    def __init__(self, facts: Iterable[Record], last_said: Mapping[str, datetime], now: datetime) -> None:
        self.facts = {one.memory_id: one for one in facts}
        self.last_said = dict(last_said)
        self.now = now

    def decide(self, statement: Claim) -> Decision:
        """Decide what a statement does to the facts. A record in force that has ended by now is put out of force first."""
        new, decision = statement.record, Decision("add", "it is new")
        again = self._said_before(new)
        if new.key is not None or statement.quote is not None:  # only then may others be about the same
            decision = self._reconcile(statement)
        if statement.ends or decision.kind in {"confirm", "end"} or decision.until is not None:
            return decision
        if again is None and decision.kind == "add":
            again = self._ended_since(new)
        return decision if again is None else Decision("confirm", "it says the same", (again,))

    def tell(self, statement: Claim, decision: Decision, record_id: str) -> Record:
        """Let facts begin and end as it was decided. Returns the record that the statement makes, confirms or ends.

        Args:
            statement: What is said; it is not refused.
            decision: What `decide` returned for it.
            record_id: The id of a new record.
        """
        old, said = [self.facts[one.memory_id] for one in decision.old], statement.record.first_observed
        if decision.kind == "confirm":
            self._close(old[1:], old[0].memory_id, decision.until, said)
            told = [self._confirmed(old[0], statement)]
        elif decision.kind == "end":
            for one in old:
                self._reopen_before(self._close([one], one.memory_id, decision.until, said))
            told = [self.facts[one.memory_id] for one in old]
        else:
            told = [self._begun(replace(statement.record, memory_id=record_id), statement, decision, old)]
        for one in map(self._put, told):
            self.last_said[one.memory_id] = max(said, self.last_said.get(one.memory_id, said))
        return told[0]

    def _reconcile(self, statement: Claim) -> Decision:
        """Decide by subject, key and value. Facts that ended or expired before the statement are of the past, and ignored.

        Facts that begin later than the statement are ignored, too, unless it names them or says the same.
        """
        new, at = statement.record, max(self.now, statement.record.first_observed)
        since = max(at, new.valid_from or at)
        held = [
            one
            for one in self._held()
            if _holds(one, at)
            if one.memory_id in statement.targets
            or (_same(one, new) and (one.valid_from is None or one.valid_from <= since or _says(one, new)))
        ]
        named = tuple(one for one in held if one.memory_id in statement.targets)
        same = tuple(one for one in held if _same(one, new) and fold(one.value) == fold(new.value))
        if statement.targets and statement.repeats and not named:
            return Decision("refuse", "the fact that it names has ended, or was deleted")
        if statement.ends or _has_ended(new, new.first_observed) or new.modality == "used_to":
            return self._end(named or tuple(one for one in same if one.modality != "denies"), statement)
        again = next((one for one in (*named, *same) if _says(one, new)), None)
        opposite = tuple(one for one in same if {one.modality, new.modality} in _OPPOSITES)
        peers = [one for one in held if _is_rival(one, new) and one not in same]
        if COLLECTION in {new.category, *(one.category for one in peers)}:
            peers = []
        rivals = tuple(one for one in held if one in (*named, *opposite, *peers) and one != again)
        change = Decision("add", "it is new")
        if rivals:
            change = self._choose(rivals, statement, is_named=bool(named or opposite))
        if again is not None:
            beaten = change.old if change.kind == "replace" else ()
            return Decision("confirm", "it says the same", (again, *beaten), change.until if beaten else None)
        planned = [one for one in same if (one.modality, new.modality) in _COME_TRUE and one not in rivals]
        if not planned or _weakness(new, planned) or (change.kind != "replace" and change.old):
            return change
        until = change.until or new.valid_from or new.first_observed
        return Decision("replace", "what was planned is so now", (*change.old, *planned), until)

    def _end(self, old: tuple[Record, ...], statement: Claim) -> Decision:
        new = statement.record
        until = new.valid_until or (new.expires_at if statement.ends else None) or new.first_observed
        if not statement.targets:  # a time before it began is another time
            old = tuple(one for one in old if one.valid_from is None or one.valid_from < until)
        if not old:
            return Decision("add", "it was so in the past", until=until)
        if weakness := _weakness(new, old):
            return Decision("refuse", weakness, old)
        if any(new.first_observed < self._last_said(one) for one in old):
            return Decision("refuse", "it was said before what it ends", old)
        return Decision("end", "it holds no longer", old, None if statement.is_correction else until)

    def _choose(self, old: tuple[Record, ...], statement: Claim, *, is_named: bool) -> Decision:
        """Decide between values that cannot both be true."""
        new, times = statement.record, {(one.first_observed, one.valid_from) for one in old}
        if weakness := _weakness(new, old):
            return Decision("conflict", weakness, old)
        if statement.is_correction:
            return Decision("replace", "it corrects what was said", old)
        since = new.valid_from or new.first_observed
        latest = min(statement.begins_by or since, new.first_observed)  # if a period was told, such as a year
        last = max(map(self._last_said, old))
        is_before = all(_begins_after(one, latest) for one in old)
        reason = "it changes, and this was said later"
        if not new.is_inferred and all(one.is_inferred for one in old):
            reason = "the user says otherwise than an agent concluded"
        elif new.category == IDENTITY and not is_named:
            return _by_confidence(old, new)
        elif new.first_observed < last or (is_before and not is_named):
            return _earlier(old, since, last)
        elif statement.quote is not None and not is_named and (new.first_observed, new.valid_from) in times:
            return Decision("conflict", "the same words say both", old)
        return Decision("replace", reason, old, max(since, min(last, latest)))

    def _last_said(self, one: Record) -> datetime:
        return max(one.first_observed, self.last_said.get(one.memory_id, one.first_observed))

    def _held(self) -> list[Record]:
        return [one for one in self.facts.values() if one.replaced_by is None]

    def _put(self, record: Record) -> Record:
        self.facts[record.memory_id] = record
        return record

    def _said_before(self, new: Record) -> Record | None:
        """Return the record in force that says the same; None if there is none, or it has ended by now."""
        words = digest(new)
        for one in self._held():
            if digest(one) == words:
                if not _has_ended(one, self.now) or one.valid_until == new.valid_until:
                    return one
                self._put(replace(one, replaced_by=one.memory_id))
        return None

    def _ended_since(self, new: Record) -> Record | None:
        """Return a fact of the same value that has ended since a new one was said; None if there is none."""
        if new.first_observed >= self.now:
            return None
        ended = (one for one in self.facts.values() if one.replaced_by == one.memory_id and one.valid_until)
        since = (one for one in ended if not _has_ended(one, new.first_observed))
        return next((one for one in since if _same(one, new) and fold(one.value) == fold(new.value)), None)

    def _begun(self, record: Record, statement: Claim, decision: Decision, old: Sequence[Record]) -> Record:
        """Return a new fact with the time that others leave it, and let others end."""
        until, said, successor = decision.until, record.first_observed, (*old, record)[0].memory_id
        if decision.kind == "conflict":
            return record
        if decision.kind == "replace":
            record = _beginning(record, statement, old[0], until)
        if record.key is not None and record.category != COLLECTION:
            successor, until = self._make_room(record, decision, successor)
        if decision.kind == "replace":
            goes_on = self._reopen_before(self._close(old, record.memory_id, until, said))
            if record.modality != "denies":
                self._close(goes_on, record.memory_id, record.valid_from or said, said)
        elif until is not None and until <= self.now:  # it is of the past
            # If nobody said when it began, it has no beginning.
            began = record.valid_from if record.valid_from is not None and record.valid_from < until else None
            return replace(record, valid_from=began, valid_until=until, replaced_by=successor, always=False)
        elif until is not None:
            return replace(record, valid_until=until)
        ends = filter(None, (record.valid_until, self._next_beginning(record)))
        return replace(record, valid_until=min(ends, default=None))

    def _make_room(self, record: Record, decision: Decision, successor: str) -> tuple[str, datetime | None]:
        """End facts of the past when a new one begins.

        Returns the id of the fact that comes after the new one, and the decision's `until`; both of another one if that
        begins sooner. If the new one is in force, those that gave way to others later have no time.
        """
        until, begins = decision.until, record.valid_from or record.first_observed
        held = ((one.valid_from, one) for one in self.facts.values() if not _has_ended(one, begins))
        past = [
            (began, one)
            for began, one in held
            if began is not None and one.valid_until is not None
            if one.replaced_by is not None or _has_ended(one, self.now)
            if _is_rival(one, record)
        ]
        for began, one in sorted(past, key=lambda pair: pair[0], reverse=True):
            gave_way = one.replaced_by not in {None, one.memory_id}
            if began > begins and decision.kind == "add":
                if until is not None and began < until:
                    successor, until = one.memory_id, began
            elif began <= begins or gave_way:
                after = record.memory_id if gave_way and decision.kind == "add" else one.replaced_by
                self._put(replace(one, valid_until=max(began, begins), replaced_by=after))
        return successor, until

    def _confirmed(self, known: Record, statement: Claim) -> Record:
        """Return a fact that was said again, with its beginning and its end. What gave way to it ends when it begins."""
        new, record = statement.record, confirm(known, statement.record, self.now)
        if statement.is_correction and new.valid_from != new.first_observed:
            record = replace(record, valid_from=new.valid_from)
        if known.valid_until is not None and new.first_observed >= self._last_said(known):
            record = replace(record, valid_until=self._next_beginning(record))  # it goes on
        begins = record.valid_from
        if begins is None or begins == known.valid_from:
            return record
        before = [one for one in self.facts.values() if _ends_at(one, known)]
        if any(one.valid_from is not None and one.valid_from >= begins for one in before):
            return replace(record, valid_from=known.valid_from)  # another one was so in between
        for one in before:
            self._put(replace(one, valid_until=begins))
        return record

    def _close(self, old: Iterable[Record], by: str, until: datetime | None, said: datetime) -> list[Record]:
        """Let facts give way to another one. If `until` is later, they end by the clock; never before they begin.

        Without `until`, and if they had not begun when that was said, they were never true. Returns these.
        """
        never, first = [], datetime.min.replace(tzinfo=UTC)
        for one in (self.facts[each.memory_id] for each in old):
            begins = one.valid_from or first
            if until is None or said < begins:
                never.append(self._put(replace(one, valid_until=None, updated_at=self.now, replaced_by=by)))
            else:
                end = max(until, begins)
                after = by if end <= self.now else one.replaced_by
                self._put(replace(one, valid_until=end, updated_at=self.now, replaced_by=after))
        return never

    def _reopen_before(self, facts: Iterable[Record]) -> list[Record]:
        """Put facts in force again that gave way to others, which were never true. Returns them.

        They hold until the next one begins. If another fact has their words, they stay as they are.
        """
        opened = []
        for fact in facts:
            for one in [one for one in self.facts.values() if _gave_way(one, fact) or _ends_at(one, fact)]:
                if all(digest(other) != digest(one) for other in self._held() if other is not one):
                    until = self._next_beginning(one)
                    again = replace(one, replaced_by=None, valid_until=until, updated_at=self.now)
                    opened.append(self._put(again))
        return opened

    def _next_beginning(self, record: Record) -> datetime | None:
        """Return when the next fact about the same begins, after the present and this one; None: none is known, or both hold."""
        if record.category == COLLECTION:
            return None
        after = max(self.now, record.valid_from or self.now)
        held = (one for one in self._held() if _is_rival(one, record) and one.category != COLLECTION)
        begins = (one.valid_from for one in held if one.valid_from is not None)
        return min((at for at in begins if at > after), default=None)


def _holds(record: Record, now: datetime) -> bool:
    return not _has_ended(record, now) and (record.expires_at is None or record.expires_at > now)


def _has_ended(record: Record, moment: datetime) -> bool:
    return record.valid_until is not None and record.valid_until <= moment


def _begins_after(one: Record, moment: datetime) -> bool:
    """Return whether somebody said when a fact begins, and that is after a moment."""
    return one.valid_from is not None and one.valid_from != one.first_observed and one.valid_from > moment


def _same(one: Record, other: Record) -> bool:
    """Return whether two facts are about the same: an agent's are apart from another agent's."""
    if one.key is None or other.key is None or one.agent_id != other.agent_id:
        return False
    return key_of(one.key) == key_of(other.key) and fold(one.subject) == fold(other.subject)


def _says(one: Record, other: Record) -> bool:
    """Return whether two facts say the same about the same subject."""
    return fold(one.value) == fold(other.value) and one.modality == other.modality


def _by_confidence(old: tuple[Record, ...], new: Record) -> Decision:
    if all(new.confidence > one.confidence + TOLERANCE for one in old):
        return Decision("replace", "it is surer, and such a thing does not change", old)
    return Decision("conflict", "such a thing does not change, and the new statement is not surer", old)


def _earlier(old: tuple[Record, ...], since: datetime, last: datetime) -> Decision:
    first = min(old, key=lambda one: one.valid_from or one.first_observed)
    began = first.valid_from or first.first_observed
    if since < began:
        return Decision("add", "it was so before what is in force", (first,), began)
    if last > max(since, first.first_observed):
        return Decision("add", "what is in force was said again since", (first,), last)
    return Decision("conflict", "it was said earlier, of the same time", old)


def _weakness(new: Record, old: Sequence[Record]) -> str:
    """Return why a statement counts less than facts; empty: it does not."""
    if new.is_inferred and not all(one.is_inferred for one in old):
        return "what an agent concluded does not count against what the user said"
    is_sure = [one.confidence > INFERRED - TOLERANCE for one in (new, *old)]
    if not is_sure[0] and any(is_sure):
        return "an unsure statement does not count against a sure one"
    return ""


def _is_rival(one: Record, other: Record) -> bool:
    return one.modality == other.modality and _same(one, other)


def _gave_way(one: Record, fact: Record) -> bool:
    return one.replaced_by == fact.memory_id != one.memory_id


def _ends_at(one: Record, fact: Record) -> bool:
    """Return whether a fact ended, or will end, when another one of the same subject and key begins."""
    gives_way = _gave_way(one, fact) or (one.replaced_by is None and _same(one, fact))
    return gives_way and one.valid_until is not None and one.valid_until == fact.valid_from


def _beginning(new: Record, statement: Claim, old: Record, until: datetime | None) -> Record:
    """Return a fact with the time when it began: of a correction without a date, when what it corrects began."""
    if until is None and new.valid_from == new.first_observed:
        return replace(new, valid_from=old.valid_from)
    if statement.begins_by is not None and until is not None and new.valid_from is not None:
        return replace(new, valid_from=max(new.valid_from, min(until, statement.begins_by)))
    return new
