"""Reads the words and forms by which contradictions are found."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from memlayer_core.storage.terms import index_terms

__all__ = ["Frames", "frames"]


@dataclass(frozen=True, slots=True)
class Frames:
    """The data file, read.

    Attributes:
        groups: The name of each word's group, by its stem.
        forms: Regular expressions by their name.
    """

    groups: dict[str, str]
    forms: dict[str, re.Pattern[str]]


@cache
def frames() -> Frames:
    """Return what the data file has."""
    data = tomllib.loads((files("memlayer_core.records") / "data" / "frames.toml").read_text("utf-8"))
    lines = [line.split() for line in data.pop("frames")]
    groups = {index_terms(word)[0]: f"~{line[0]}" for line in lines for word in line}
    return Frames(groups, {name: re.compile(form, re.IGNORECASE) for name, form in data.items()})
