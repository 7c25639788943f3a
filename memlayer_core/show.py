"""Shows values to people: a value offers a `View`, which notebooks draw as HTML and terminals as text.

A message may contain characters that control a terminal, or that change the direction of writing. `visible` replaces
them by escapes, everywhere. In HTML every text is escaped, too; there is no script and no style sheet.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import date, datetime
from html import escape
from typing import Any

__all__ = ["Bar", "Cell", "View", "Viewable", "html_of", "line_of", "text_of", "visible"]

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except line break and tab, characters that change the direction of writing, lone surrogates."""

_CELL = "text-align:left;vertical-align:top;padding:2px 8px;white-space:pre-wrap;max-width:48em"
_LONGEST = 400  # characters of one cell
_LINE = reprlib.Repr()  # cuts a long field of a value's one line
_LINE.maxstring = _LINE.maxother = 80
_LINE.maxtuple = _LINE.maxlist = _LINE.maxdict = 3
_FORMATS: Mapping[type, str] = {int: ",", float: ".3f", datetime: "%Y-%m-%d %H:%M", date: "%Y-%m-%d"}


class Viewable:
    """A value that notebooks and terminals show: a subclass returns its view."""

    __slots__ = ()

    def _view(self) -> View:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_of(self._view())

    def __rich__(self) -> object:
        """Return what the library rich prints."""
        return text_of(self._view())


@dataclass(frozen=True, slots=True)
class Bar:
    """A number that is shown against a limit.

    Attributes:
        value: The number.
        limit: The limit.
        unit: What is counted.
    """

    value: int
    limit: int
    unit: str = ""


Cell = str | int | float | date | Bar | None
"""A cell of a table: a time is shown to the minute, a number of points with three digits behind the point."""


@dataclass(frozen=True, slots=True)
class View(Viewable):
    """What people see of a value.

    Attributes:
        title: A line above it.
        bar: A number against a limit, above the table.
        columns: The names of the columns; empty for a table without a head.
        rows: The rows, each with a cell for each column.
        notes: Lines below the table.
    """

    title: str = ""
    bar: Bar | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def _view(self) -> View:
        return self


def visible(text: str) -> str:
    r"""Return a text for people, with escapes for characters that control a terminal or the direction of writing.

    A line break and a tab stay; an escape sequence begins with `\x1b`, an override of direction is `\u202e`.
    """
    return _COMMANDS.sub(_escape, text)


def line_of(value: Any) -> str:
    """Return a dataclass as one line for people: fields with their default are left out, long ones are cut."""
    shown = []
    for field in fields(value):
        found = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if found != default:
            short = format(found, _FORMATS[datetime]) if isinstance(found, datetime) else _LINE.repr(found)
            shown.append(f"{field.name}={short}")
    return visible(f"{type(value).__name__}({', '.join(shown)})")


def html_of(view: View) -> str:
    """Return a view as HTML."""
    head = "".join(f'<th style="{_CELL}">{escape(visible(name))}</th>' for name in view.columns)
    rows = (
        "".join(f'<td style="{_CELL}">{_picture(cell)}{escape(_words(cell))}</td>' for cell in row)
        for row in view.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    lines = [escape(visible(view.title)), view.bar and _picture(view.bar, 240) + escape(_sentence(view.bar))]
    above = "".join(f"<div>{line}</div>" for line in lines if line)
    below = "".join(f"<div>{escape(visible(note))}</div>" for note in view.notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if head or body else ""
    return above + table + below


def text_of(view: View) -> object:
    """Return a view as what the library rich prints on a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=bool(view.columns))
    for place in range(max(map(len, [view.columns, *view.rows]))):
        name = Text(visible(view.columns[place]), style="bold") if view.columns else ""
        is_number = any(isinstance(row[place], int | Bar) for row in view.rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in view.rows:
        table.add_row(*(Text(_words(cell)) for cell in row))
    above = [visible(view.title), _sentence(view.bar) if view.bar else ""]
    notes = (Text(visible(note), style="yellow") for note in view.notes)
    return Group(*(Text(line) for line in above if line), *([table] if view.rows else []), *notes)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004  (two digits hold it)


def _words(cell: Cell) -> str:
    """Return a cell as text that is safe for a terminal, cut to 400 characters."""
    if isinstance(cell, str):
        return visible(cell if len(cell) <= _LONGEST else cell[: _LONGEST - 1] + "…")
    number = cell.value if isinstance(cell, Bar) else cell
    return "" if number is None else format(number, _FORMATS[type(number)])


def _sentence(bar: Bar) -> str:
    return f"{bar.value:,} of {bar.limit:,} {visible(bar.unit)}"


def _picture(cell: Cell, width: int = 80) -> str:
    """Return the picture of a bar as SVG; nothing for other cells."""
    if not isinstance(cell, Bar):
        return ""
    share = min(1.0, cell.value / cell.limit) if cell.limit > 0 else 1.0
    colour = "#c0392b" if cell.value > cell.limit else "#2e86c1"
    return (
        f'<svg width="{width}" height="10" role="img" aria-label="{cell.value} of {cell.limit}">'
        f'<rect width="{width}" height="10" fill="#8884"/>'
        f'<rect width="{share * width:.1f}" height="10" fill="{colour}"/></svg> '
    )
