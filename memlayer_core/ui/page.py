"""What a page is: its heading, the ways from it, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlayer_core.records.model import Record
from memlayer_core.scope import Scope
from memlayer_core.ui.addresses import address, name_of, names_of
from memlayer_core.ui.tables import Table

__all__ = ["SIZE", "Anchor", "MissingPageError", "Page", "anchors_above", "cut", "pager", "tabs"]

SIZE = 50
"""Rows of one page."""


class MissingPageError(Exception):
    """There is no such user or session."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A link.

    Attributes:
        text: What it is called.
        href: Where it leads to.
        current: Whether it leads to the page that shows it.
    """

    text: str
    href: str
    current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows.

    Attributes:
        title: Its heading.
        subtitle: A line below that.
        trail: The pages above it.
        tabs: The parts of what it is about.
        filters: Groups of choices.
        tables: Its tables.
        before: The page before it; None: it is the first.
        after: The page after it; None: it is the last.
        names: What its forms send, by name: whose page it is.
        find: The text that users are searched by; None: nobody is searched here.
        record: The record that it is about; None: it is about none.
        exports: Whether what it is about can be exported.
    """

    title: str
    subtitle: str = ""
    trail: tuple[Anchor, ...] = ()
    tabs: tuple[Anchor, ...] = ()
    filters: tuple[tuple[Anchor, ...], ...] = ()
    tables: tuple[Table, ...] = ()
    before: str | None = None
    after: str | None = None
    names: tuple[tuple[str, str], ...] = ()
    find: str | None = None
    record: Record | None = None
    exports: bool = False


def cut(rows: list[Any]) -> bool:
    """Remove the row behind a page, for which one more was read. Returns whether there was one."""
    more = len(rows) > SIZE
    del rows[SIZE:]
    return more


def pager(path: str, offset: int, query: dict[str, Any], *, more: bool) -> dict[str, Any]:
    """Return the addresses of the pages before and after a page, as `Page` has them."""
    back = address(path, **query, offset=max(0, offset - SIZE)) if offset else None
    return {"before": back, "after": address(path, **query, offset=offset + SIZE) if more else None}


def tabs(path: str, names: dict[str, str], current: str, parts: Sequence[str]) -> tuple[Anchor, ...]:
    """Return the parts of what a page is about."""
    return tuple(Anchor(one, address(path, **names, part=one), one == current) for one in parts)


def anchors_above(reach: Scope, part: str | None = None) -> tuple[Anchor, ...]:
    """Return the pages above one of a user: all users, the user with all agents, and a part of the user's page."""
    reach = replace(reach, agent_id=None)
    user = Anchor(name_of(reach.user_id), address("/user", **names_of(reach)))
    above = (Anchor("Users", "/"), user)
    return above if part is None else (*above, Anchor(part, address("/user", **names_of(reach), part=part)))
