"""Finds texts that try to instruct a model: "ignore previous instructions", a forged system message, 忽略之前的指令.

What a user wishes ("always answer in bullet points") is none of these, nor is what somebody only quotes. The patterns
are in `records/data/instructions.toml`; a text without one of their words costs some microseconds.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from memlayer_core.records.facts import Candidate
from memlayer_core.records.model import Record

__all__ = ["instructs", "quarantine_candidate", "quarantine_record"]

_READ = 20_000
"""Characters of a text that are read: no more of it is indexed, and told."""
_NAME = re.compile(r"(?<!\?P)<([a-z_]+)>")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_SPACED = re.compile(r"\b(?:[a-z] ){4,}[a-z]\b")
_SPACE = re.compile(r"[^\S\n]+")
_QUOTED = re.compile(
    '“[^”]{1,300}”|"[^"]{1,300}"|「[^」]{1,300}」|『[^』]{1,300}』'
    "|\u2018[^']{1,300}'"
    r"|(?<!\w)'[^'\n]{1,300}'(?!\w)|`[^`]{1,300}`"
)
_OWN_WORDS = 0.3
"""A text with a smaller share of words of its own is nothing but a quote, which is then read."""


@dataclass(frozen=True, slots=True)
class _Forms:
    """The data file, read.

    Attributes:
        suspects: One of these is in every text that a pattern matches.
        plain_suspects: Those of them that can be in a text of ASCII alone.
        patterns: Regular expressions, each with what it shows.
    """

    suspects: Sequence[str]
    plain_suspects: Sequence[str]
    patterns: Sequence[tuple[re.Pattern[str], str]]


def instructs(text: str) -> str | None:
    """Return why a text seems to instruct a model, in plain words; None if it does not."""
    forms = _forms()
    plain = _plain(text[:_READ])
    signs = forms.plain_suspects if plain.isascii() else forms.suspects
    if not any(map(plain.__contains__, signs)):
        return None
    said = _QUOTED.sub(" … ", plain)
    if len(said) < _OWN_WORDS * len(plain):
        said = plain
    return next((reason for pattern, reason in forms.patterns if pattern.search(said)), None)


def quarantine_record(record: Record) -> Record:
    """Return a record with the reason why it is never told; without one if nothing in it instructs a model."""
    said = (record.raw, record.summary, record.key, record.value, record.subject, record.category)
    lists = (record.key_topics, record.actions_taken, record.outcomes, record.tags)
    every = "\n".join([*filter(None, said), *(one for some in lists for one in some)])
    reason = instructs(every)
    return record if reason == record.quarantine else replace(record, quarantine=reason)


def quarantine_candidate(candidate: Candidate, message: str) -> Candidate:
    """Return a candidate with the reason why it is no fact: its sentence instructs a model.

    What is only to be remembered, and has no key, is none either if anything else in its message does.
    """
    reason = instructs(candidate.text) or (instructs(message) if candidate.key is None else None)
    return candidate if reason is None else replace(candidate, quarantine=reason)


def _plain(text: str) -> str:
    """Return a text in small letters, without what hides a word: other widths, unseen characters, spaced letters."""
    if not text.isascii():
        text = _UNSEEN.sub("", unicodedata.normalize("NFKC", text))
    text = text.lower().replace("\u2019", "'").replace("you're", "you are")
    if "  " in text or "\t" in text:
        text = _SPACE.sub(" ", text)
    return _SPACED.sub(lambda word: word[0].replace(" ", ""), text)


@cache
def _forms() -> _Forms:
    data = tomllib.loads((files("memlayer_core.records") / "data" / "instructions.toml").read_text("utf-8"))
    words: dict[str, str] = data["words"]

    def written_out(form: str) -> re.Pattern[str]:
        return re.compile(_NAME.sub(lambda name: words.get(name[1], name[0]), form))

    return _Forms(
        data["suspects"],
        [sign for sign in data["suspects"] if sign.isascii()],
        [(written_out(form), one["reason"]) for one in data["pattern"] for form in one["text"]],
    )
