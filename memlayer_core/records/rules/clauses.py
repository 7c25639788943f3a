"""Reads one clause: whom it is about, how its verb is said, and the facts that patterns find behind it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from memlayer_core.records.facts import USER, Candidate, Modality
from memlayer_core.records.rules.dates import days_in
from memlayer_core.records.rules.grammar import Grammar, Pattern
from memlayer_core.records.rules.keys import key_of
from memlayer_core.records.rules.values import Values

__all__ = ["CONFIDENCE", "ClauseReader", "Subject", "Tense"]

CONFIDENCE = 0.9
"""Confidence of a fact that a pattern found: the example of J20 in layered agent memories."""

_TENSE: dict[str, Modality] = {"gone": "denies", "no": "denies", "used": "used_to"}
_REST = re.compile(r"[^,，;\uff1b]*[,，;\uff1b]?")


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a clause is about.

    Attributes:
        name: The subject of its facts.
        relation: Word for the relation to the user, such as "sister"; None: it is the user, or a name alone.
        start: Place of the subject in the sentence.
        end: Place after it.
        owns: Whether patterns of what somebody owns follow: "my …".
    """

    name: str
    relation: str | None
    start: int
    end: int
    owns: bool = False


@dataclass(frozen=True, slots=True)
class Tense:
    """How a verb is said.

    Attributes:
        form: `"gone"`: no longer, `"no"`: not, `"used"`: used to, or `"plain"`.
        after: What a pattern must be said after.
    """

    form: str
    after: str


_NAMED = frozenset({"partner", "child", "parent", "sibling", "pet"})
_PLAIN = Tense("plain", "do")
_WHOLE = Tense("plain", "any")
_Match = tuple[Pattern, re.Match[str], Tense]


class ClauseReader:
    """Reads one clause of a sentence. `last` is whom the next clause is about if it names nobody."""

    def __init__(self, sentence: str, clause: str, grammar: Grammar, said_at: datetime) -> None:
        self._sentence = sentence
        self._clause = clause
        self._grammar = grammar
        self._said_at = said_at
        self._values = Values(sentence, grammar, said_at)
        self.last: tuple[Subject, Tense] | None = None

    def clause(self, place: int, before: tuple[Subject, Tense] | None) -> Iterator[tuple[Candidate, int]]:
        """Yield the facts of the clause that begins at a place, each with the place after it."""
        whole = list(self._by(self._grammar.whole, place, Subject(USER, None, place, place), _WHOLE))
        if whole:
            yield from whole
            return
        subjects = list(self._subjects(place))
        for subject in subjects:
            found = list(self._of_subject(subject))
            if found or len(subjects) == 1:
                yield from found
                return
        if not subjects and before is not None:
            yield from self._continued(place, before)

    def _subjects(self, place: int) -> Iterator[Subject]:
        """Yield whom a clause may be about, the likeliest first."""
        match = self._grammar.forms["subject"].match(self._sentence, place)
        if match is None:
            return
        named = match.groupdict()
        if named.get("me"):
            yield Subject(USER, None, place, match.end())
        elif named.get("person"):
            yield Subject(match["person"], None, place, match.end())
        elif relation := named.get("rel"):
            if named.get("name"):
                yield Subject(match["name"], relation, place, match.end())
            yield Subject(relation, relation, place, match.end("rel"))
            if self._grammar.prefixes and self._grammar.prefixes.match(self._sentence, match.end()):
                for length in (2, 3):
                    name = self._sentence[match.end() : match.end() + length]
                    yield Subject(name, relation, place, match.end() + length)
        else:
            yield Subject(USER, None, place, match.end(), owns=True)

    def _of_subject(self, subject: Subject) -> Iterator[tuple[Candidate, int]]:
        found: list[tuple[Candidate, int]] = []
        if subject.owns:
            found = list(self._by(self._grammar.own, subject.end, subject, _WHOLE))
        elif subject.relation and (
            match := self._grammar.forms["possessor"].match(self._sentence, subject.end)
        ):
            found = list(self._by(self._grammar.own, match.end(), subject, _WHOLE))
        if not found and not subject.owns:
            found = list(self._said_of(subject, subject.end))
        yield from self._relation(subject, found)
        yield from found

    def _said_of(self, subject: Subject, place: int) -> Iterator[tuple[Candidate, int]]:
        tense, end = self._tense(place)
        found = [*self._by(self._grammar.say, end, subject, tense)]
        self.last = self._topic(found) or subject, tense
        yield from found

    def _topic(self, facts: Iterable[tuple[Candidate, int]]) -> Subject | None:
        """Return who was named, if clauses without a subject go on about them: 我儿子叫乐乐，今年五岁."""
        if self._grammar.prefixes is None:
            return None
        names = [fact.value.partition(" (")[0] for fact, _ in facts if fact.key in _NAMED]
        return Subject(names[0], None, 0, 0) if names else None

    def _continued(self, place: int, before: tuple[Subject, Tense]) -> Iterator[tuple[Candidate, int]]:
        """Read a clause without a subject: "I'm Jonas, 29, from Vilnius"."""
        subject, tense = before
        start = place - 1 if place and self._sentence[place - 1].isspace() else place
        own, end = self._tense(start)
        tenses = [own] if end > start else [_PLAIN, Tense("plain", tense.after)]
        for each in dict.fromkeys(tenses):
            found = [
                (fact, until)
                for fact, until in self._by(self._grammar.say, end, subject, each)
                if end > start or each.after == "do" or self._values.closes(until)
            ]
            if found:
                self.last = subject, each
                yield from (one for one in found if one[0].key != "name")
                return
        if tense.after == "be":
            self.last = before

    def _tense(self, place: int) -> tuple[Tense, int]:
        match = self._grammar.forms["polarity"].match(self._sentence, place)
        assert match is not None, "every part of it is optional"
        named = {name for name, part in match.groupdict().items() if part}
        form = next((one for one in ("gone", "used") if one in named), "plain")
        if form == "plain" and named & {"no", "no1", "no2", "no3"}:
            form = "no"
        after = next((one for one in ("will", "would", "have") if one in named), "do")
        return Tense(form, "be" if named & {"be", "be2", "be3"} else after), match.end()

    def _by(
        self, patterns: Iterable[Pattern], place: int, subject: Subject, tense: Tense
    ) -> Iterator[tuple[Candidate, int]]:
        """Yield the facts of all patterns that match at a place: what is denied as a fact of its own comes first."""
        found = [
            (pattern, match, self._tense_in(match, tense))
            for pattern in patterns
            if self._follows(pattern, tense)
            and not (pattern.user and subject.name != USER)
            and (match := pattern.text.match(self._sentence, place)) is not None
        ]
        keys: set[str | None] = set()
        for pattern, match, form in self._readable(found):
            for fact, end in self._facts(pattern, match, subject, form):
                if fact.key not in keys or pattern.items or pattern.each:
                    keys.add(fact.key)
                    yield fact, end

    def _follows(self, pattern: Pattern, tense: Tense) -> bool:
        """Tell whether a pattern can stand after a verb: what follows "I" follows "I have", too."""
        most = {"any", tense.after, "do" if tense.after == "have" else tense.after}
        return tense.after == "any" or pattern.after in most

    def _readable(self, matches: list[_Match]) -> list[_Match]:
        """Return what may be read of the matches: after a "not", what says something by it: "I don't eat pork".

        After "no longer", this counts only if nothing else matches: "I no longer eat pork".
        """
        negative = [each for each in matches if each[0].negative and each[2].form == "no"]
        positive = [each for each in matches if not each[0].negative]
        ended = [each for each in matches if each[0].negative and each[2].form == "gone"]
        return [each for each in negative or positive or ended if self._allows(*each)]

    def _tense_in(self, match: re.Match[str], tense: Tense) -> Tense:
        """Return the tense, with a "not" inside of the match and an "any more" behind it."""
        form = "no" if match.groupdict().get("neg") else tense.form
        rest = _REST.match(self._sentence, match.start("v"))
        assert rest is not None, "it may be empty"
        if form == "no" and self._grammar.forms["gone_after"].search(rest[0]):
            form = "gone"
        return replace(tense, form=form)

    def _allows(self, pattern: Pattern, match: re.Match[str], tense: Tense) -> bool:
        """Tell whether a pattern may be read in a tense and on the days that its sentence names."""
        if (
            tense.form != "plain"
            and not pattern.negative
            and (pattern.states or pattern.modality != "states")
        ):
            return False
        if not (pattern.with_day or pattern.with_future_day or pattern.without_day):
            return True
        days = list(days_in(self._sentence, self._said_at, ahead=True))
        if pattern.without_day:
            return not any(day.at > self._said_at for day in days)
        today = self._said_at.astimezone(UTC).date()
        return any(day.at.date() > today or (pattern.with_day and day.at.date() == today) for day in days)

    def _facts(
        self, pattern: Pattern, match: re.Match[str], subject: Subject, tense: Tense
    ) -> Iterator[tuple[Candidate, int]]:
        matches = (
            [match]
            if pattern.each is None
            else pattern.each.finditer(self._sentence, match.start(), match.end())
        )
        for one in matches:
            for value, end in self._values.of(pattern, one):
                parts = {name: part for name, part in one.groupdict().items() if part}
                yield self._fact(pattern, parts, subject, tense, value), end

    def _fact(
        self, pattern: Pattern, parts: dict[str, str], subject: Subject, tense: Tense, value: str
    ) -> Candidate:
        key = None if pattern.key is None else pattern.key.format(part=parts.get("part", "").lower())
        written = pattern.value.format(v=value, kind=parts.get("kind", "").lower())
        who = subject.name
        if (
            key == "name"
            and subject.relation
            and (relation := self._grammar.relations.get(subject.relation.lower()))
        ):
            key, written, who = relation, f"{value} ({subject.relation.lower()})", USER
        modality = pattern.modality if pattern.negative else _TENSE.get(tense.form, pattern.modality)
        return self._timed(
            Candidate(
                subject=who if who != subject.relation else who.lower(),
                category=None if key is None else key_of(key).category,
                key=key,
                value=written,
                text=self._sentence,
                said_at=self._said_at,
                modality=modality,
                confidence=CONFIDENCE,
                ends=pattern.ends or (tense.form in {"gone", "used"} and not pattern.negative),
                replaces=parts.get("old"),
            )
        )

    def _timed(self, fact: Candidate) -> Candidate:
        """Return a fact with the day that its sentence names: a plan's day, or since when something is so."""
        ahead = fact.modality == "plans"
        day = next(days_in(self._clause, self._said_at, ahead=ahead), None)
        if day is None or (fact.key in {"birthday", "goal"}) or (not ahead and day.at > self._said_at):
            return fact
        if ahead:
            left = (day.at.date() - self._said_at.astimezone(UTC).date()).days
            return replace(fact, valid_from=day.at, expires_in_days=max(1, left + day.length))
        return replace(fact, valid_until=day.at) if fact.ends else replace(fact, valid_from=day.at)

    def _relation(
        self, subject: Subject, facts: list[tuple[Candidate, int]]
    ) -> Iterator[tuple[Candidate, int]]:
        """Yield that "my brother Jan" is a brother whose name is Jan."""
        key = self._grammar.relations.get((subject.relation or "").lower())
        if key is None or subject.relation in {None, subject.name} or (self._grammar.prefixes and not facts):
            return
        fact = self._fact(Pattern(text=re.compile(""), key="name"), {}, subject, _PLAIN, subject.name)
        yield replace(fact, valid_from=None), subject.end  # the sentence's day is of what else it says
