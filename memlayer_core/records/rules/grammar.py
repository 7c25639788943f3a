"""Reads how a language says facts, from a data file: `records/data/english.toml` and `chinese.toml`.

A file has guards (`hedge`, `hypothetical`, …: a sentence that matches one states nothing), the forms of a subject and
of what stands between it and its verb, kinds of values, and patterns of four sorts:

::

    [[say]]    what follows a subject: "I" + " live in {v}"
    [[own]]    what follows an owner: "my" or "my wife's" + " birthday is {v}"
    [[whole]]  what has no subject: "call me {v}"
    [[note]]   what asks to remember something

`Pattern` explains their fields. Every pattern is tried at the beginning of a clause only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from memlayer_core.records.facts import Modality

__all__ = ["Grammar", "Kind", "Pattern", "grammars"]

_WORD = re.compile(r"(?<!\?P)<([a-z_]+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the values of a kind look like.

    Attributes:
        shape: Matches a value at the beginning of its zone; None: the zone is the value.
        lower: The same in a message without capital letters.
        reject: Matches what is no value.
        free: Whether commas and words such as "in" belong to a value.
    """

    shape: re.Pattern[str] | None = None
    lower: re.Pattern[str] | None = None
    reject: re.Pattern[str] | None = None
    free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way to say a fact.

    Attributes:
        text: Its regular expression; group `v` is the value, `old` what it replaces, `kind` and `part` go into names.
        key: Key of the fact; None: it has none.
        after: What must stand between the subject and the pattern: a form of "be", "have", "will", "would", or none of them ("do").
        kind: Kind of the value.
        items: Whether the value is a list: `"and"` parts it at each "and", `"comma"` only if there are commas.
        value: How the value is written: `"no {v}"`.
        each: Finds several values in what the pattern matched.
        modality: How it is said.
        ends: Whether it says that something holds no longer.
        negative: Whether it needs a "not" in front.
        user: Whether it is read of the user only.
        states: Whether it is read only without "not", "no longer" or "used to".
        with_day: Whether its sentence must name a day.
        with_future_day: Whether its sentence must name a day that lies ahead.
        without_day: Whether its sentence must name no day.
        at_end: Whether the clause must end after the value.
    """

    text: re.Pattern[str]
    key: str | None = None
    after: Literal["be", "do", "have", "will", "would", "any"] = "any"
    kind: Kind = Kind()
    items: Literal["and", "comma"] | None = None
    value: str = "{v}"
    each: re.Pattern[str] | None = None
    modality: Modality = "states"
    ends: bool = False
    negative: bool = False
    user: bool = False
    states: bool = False
    with_day: bool = False
    with_future_day: bool = False
    without_day: bool = False
    at_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """How one language says facts.

    Attributes:
        forms: Its regular expressions by name, as the data file has them.
        say: What follows a subject.
        own: What follows an owner.
        whole: What has no subject.
        note: What asks to remember something.
        relations: The key of a relation, such as `"partner"` of "wife".
        prefixes: What a name after a relation begins with, where names are written without spaces around them.
    """

    forms: Mapping[str, re.Pattern[str]]
    say: tuple[Pattern, ...]
    own: tuple[Pattern, ...]
    whole: tuple[Pattern, ...]
    note: tuple[Pattern, ...]
    relations: Mapping[str, str]
    prefixes: re.Pattern[str] | None


@cache
def grammars() -> tuple[Grammar, ...]:
    """Return the grammars of all languages."""
    folder = files("memlayer_core.records") / "data"
    names = ("english.toml", "chinese.toml")
    return tuple(_grammar(tomllib.loads((folder / name).read_text("utf-8"))) for name in names)


def _grammar(data: dict[str, Any]) -> Grammar:
    words = data["words"]
    kinds = {name: _kind(fields, words) for name, fields in data["kinds"].items()}
    say, own, whole, note = (
        tuple(_pattern(fields, words, kinds) for fields in data.get(sort, ()))
        for sort in ("say", "own", "whole", "note")
    )
    prefix = f"{words['prefix']}|{words['surname']}" if "prefix" in words else None
    return Grammar(
        forms={name: _compile(form, words) for name, form in data.items() if isinstance(form, str)},
        say=say,
        own=own,
        whole=whole,
        note=note,
        relations=_relations(words["relation_key"]),
        prefixes=None if prefix is None else re.compile(prefix),
    )


def _pattern(fields: dict[str, Any], words: Mapping[str, str], kinds: Mapping[str, Kind]) -> Pattern:
    more = {name: value for name, value in fields.items() if name not in {"text", "kind", "each", "not"}}
    return Pattern(
        text=_compile(fields["text"].replace("{v}", "(?P<v>.+)"), words),
        kind=kinds[fields["kind"]] if "kind" in fields else Kind(),
        each=_compile(fields["each"], words, re.NOFLAG) if "each" in fields else None,
        negative=fields.get("not", False),
        **more,
    )


def _kind(fields: Mapping[str, Any], words: Mapping[str, str]) -> Kind:
    forms = {name: _compile(form, words, re.NOFLAG) for name, form in fields.items() if name != "free"}
    return Kind(**forms, free=fields.get("free", False))


def _compile(form: str, words: Mapping[str, str], flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Compile a form, with the words that it names in angle brackets."""
    while _WORD.search(form):
        form = _WORD.sub(lambda word: words[word[1]], form)
    return re.compile(form, flags)


def _relations(lines: str) -> dict[str, str]:
    """Read `key: word|word; key: word`."""
    return {
        word: key.strip()
        for key, _, names in (line.partition(":") for line in lines.split(";"))
        for word in names.strip().split("|")
    }
