"""Shows values to people: a value offers a `View`, which notebooks and pages draw as HTML and terminals as text.

A message may contain characters that control a terminal or change the direction of writing: `visible` escapes them. In HTML
every text is escaped, too, and each element has its own style, in colours that can be read on a light and on a dark page.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import date, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from rich.text import Text

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except line break and tab, characters that change the direction of writing, lone surrogates."""

Colour = Literal["plain", "blue", "green", "amber", "red", "violet", "pink"]
_COLOURS: Mapping[Colour, tuple[str, str]] = {  # in HTML, on light and dark; on a terminal
    "plain": ("#808690", "dim"),
    "blue": ("#3f83c8", "blue"),
    "green": ("#27945a", "green"),
    "amber": ("#b87a16", "yellow"),
    "red": ("#d84a4a", "red"),
    "violet": ("#9065ca", "magenta"),
    "pink": ("#c4568e", "bright_magenta"),
}
_BOX = "font:13px/1.5 system-ui,sans-serif;color:inherit;overflow-x:auto;margin:6px 0;max-width:1100px"
_TABLE = "table-layout:auto;width:auto;border-collapse:collapse;border:0;margin:4px 0;font:inherit;font-variant-numeric:tabular-nums"
_CELL = "padding:3px 14px 3px 0;vertical-align:top;border:0;border-bottom:1px solid #8883"
_PROSE = "white-space:pre-wrap;overflow-wrap:anywhere;min-width:8em;max-width:38em"
_SHORT = 30  # characters of a text that is never broken
_FOLD, _HEAD = 280, 200  # a longer cell is folded in HTML: so many characters of it are seen at once
_LONGEST = 400  # characters of one cell on a terminal
_WHOLE = 20_000  # characters of one cell in HTML
_LINE = reprlib.Repr()  # cuts a long field of a value's one line
_LINE.maxstring = _LINE.maxother = 80
_LINE.maxtuple = _LINE.maxlist = _LINE.maxdict = 3
_DAY = "%Y-%m-%d"
_FORMATS: Mapping[type, str] = {bool: "", int: ",", float: ".3f", datetime: f"{_DAY} %H:%M", date: _DAY}


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


class Tabular(Viewable):
    """A dataclass that is a row of a table: of its fields, or of what a subclass returns."""

    __slots__ = ()

    def _row(self) -> dict[str, Cell]:
        """Return the cells by the names of their columns; for a field with several values, how many there are."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        counts = {name: len(one) if isinstance(one, tuple) else one for name, one in values.items()}
        return {name.replace("_", " "): cell for name, cell in counts.items()}

    def _view(self) -> View:
        return table_of([self])


class Report(Tabular):
    """A dataclass that is shown as one line for each of its fields."""

    __slots__ = ()

    def _view(self) -> View:
        return View(rows=tuple(self._row().items()))


T = TypeVar("T", bound=Tabular)


class ViewList(Viewable, list[T]):
    """A list that notebooks and terminals show as one table; for programs it is a list like any other.

    Args:
        name: What is in it, such as `"Records"`.
        values: The values.
    """

    def __init__(self, name: str, values: Iterable[T] = ()) -> None:
        super().__init__(values)
        self._name = name

    def _view(self) -> View:
        return table_of(self, f"{self._name}: {len(self):,}") if self else View(f"{self._name}: none")


@dataclass(frozen=True, slots=True)
class Mark:
    """A word that catches the eye: the kind of a row, or what is wrong with it.

    Attributes:
        text: The word, or a sentence if it is a note.
        colour: Its colour: amber for what somebody should look at, red for what failed.
    """

    text: str
    colour: Colour = "plain"


@dataclass(frozen=True, slots=True)
class Bar:
    """A number that is shown against a limit.

    Attributes:
        value: The number.
        limit: The limit.
        unit: What is counted.
        parts: What it consists of, each with its number; they have a colour each.
        note: What else there is to say of it.
    """

    value: int
    limit: int
    unit: str = ""
    parts: tuple[tuple[Mark, int], ...] = ()
    note: str = ""


Cell = str | int | float | date | Bar | Mark | None
"""A cell of a table: a time is shown to the minute, a number of points with three digits behind the point."""


@dataclass(frozen=True, slots=True)
class View(Viewable):
    """What people see of a value.

    Attributes:
        title: A line above it.
        bar: A number against a limit, above the table.
        columns: The names of the columns; empty for a table without a head.
        rows: The rows, each with a cell for each column.
        notes: Lines below the table; a line that is not a `Mark` is amber.
        sections: Further views, below all that.
    """

    title: str = ""
    bar: Bar | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str | Mark, ...] = ()
    sections: tuple[Viewable, ...] = ()

    def _view(self) -> View:
        return self


def table_of(values: Iterable[Tabular], title: str = "") -> View:
    """Return values of one class as a table."""
    rows = [one._row() for one in values]  # noqa: SLF001  (of its own file)
    return View(title, columns=tuple(rows[0]), rows=tuple(tuple(row.values()) for row in rows))


def visible(text: str) -> str:
    r"""Return a text for people, with escapes for characters that control a terminal or the direction of writing.

    A line break and a tab stay; an escape sequence begins with `\x1b`, an override of direction is `\u202e`.
    """
    return _COMMANDS.sub(lambda match: ascii(match[0])[1:-1], text)


def words_of(cell: Cell, longest: int = _LONGEST) -> str:
    """Return a cell as text that is safe to show, cut to so many characters."""
    text = cell.text if isinstance(cell, Mark) else cell
    if isinstance(text, str):
        return visible(text if len(text) <= longest else text[: longest - 1] + "…")
    number = text.value if isinstance(text, Bar) else text
    return "" if number is None else format(number, _FORMATS[type(number)])


def line_of(value: Any) -> str:
    """Return a dataclass as one line for people: fields with their default are left out, long ones are cut."""
    shown = []
    for field in fields(value):
        found = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.repr and found != default:
            short = format(found, _FORMATS[datetime]) if isinstance(found, datetime) else _LINE.repr(found)
            shown.append(f"{field.name}={short}")
    return visible(f"{type(value).__name__}({', '.join(shown)})")


def html_of(view: View) -> str:
    """Return a view as HTML, in a `<div class="memlayer">`."""
    title = f'<div style="font-weight:600;margin:2px 0 4px">{escape(visible(view.title))}</div>'
    above = (title if view.title else "") + (_meter(view.bar) if view.bar is not None else "")
    notes = "".join(
        f'<div style="border-left:3px solid {_COLOURS[note.colour][0]};padding-left:8px;margin:4px 0">'
        f"{escape(visible(note.text))}</div>"
        for note in map(_mark, view.notes)
    )
    below = "".join(section._repr_html_() for section in view.sections)
    return f'<div class="memlayer" style="{_BOX}">{above}{_rows(view)}{notes}{below}</div>'


def text_of(view: View) -> object:
    """Return a view as what the library rich prints on a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    above = [Text(visible(view.title))] if view.title else []
    if view.bar is not None:
        above += [Text(_sentence(view.bar)), _legend(view.bar)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=bool(view.columns))
    columns = view.columns or ("",) * len(view.rows[0]) if view.rows else ()
    for place, name in enumerate(columns):
        table.add_column(
            Text(visible(name), style="bold"),
            justify="right" if _is_number(view, place) else "left",
            overflow="fold",
            no_wrap=not any(isinstance(row[place], str) for row in view.rows),
        )
    for row in view.rows:
        table.add_row(*(Text(words_of(cell), style=_style(cell)) for cell in row))
    notes = (Text(visible(note.text), style=_style(note)) for note in map(_mark, view.notes))
    below = (part for section in view.sections for part in ("", section))
    return Group(*above, *([table] if view.rows else []), *notes, *below)  # type: ignore[arg-type]


def _sentence(bar: Bar) -> str:
    return f"{bar.value:,} of {bar.limit:,} {visible(bar.unit)}"


def _mark(note: str | Mark) -> Mark:
    return note if isinstance(note, Mark) else Mark(note, "amber")


def _style(cell: Cell) -> str:
    return _COLOURS[cell.colour][1] if isinstance(cell, Mark) else ""


def _is_number(view: View, place: int) -> bool:
    return any(isinstance(row[place], int | float | Bar) for row in view.rows)


def _legend(bar: Bar) -> Text:
    from rich.text import Text

    parts = ((f"■ {visible(mark.text)} {value:,}  ", _style(mark)) for mark, value in bar.parts)
    return Text.assemble(*parts, visible(bar.note))


def _rows(view: View) -> str:
    if not view.rows:
        return ""
    aligned = ["right" if _is_number(view, place) else "left" for place in range(len(view.rows[0]))]
    head = "".join(
        f'<th style="{_CELL};text-align:{align};font-weight:600;opacity:.7;white-space:nowrap">{escape(visible(name))}</th>'
        for name, align in zip(view.columns, aligned, strict=False)
    )
    body = "".join(
        f'<tr style="background:none">{"".join(map(_cell, row, aligned))}</tr>' for row in view.rows
    )
    above = f'<thead><tr style="background:none">{head}</tr></thead>' if head else ""
    return f'<table style="{_TABLE}">{above}<tbody>{body}</tbody></table>'


def _cell(cell: Cell, align: str) -> str:
    text = words_of(cell, _WHOLE)
    is_long = isinstance(cell, str) and (len(text) > _SHORT or "\n" in text)
    kind = _PROSE if is_long else "white-space:nowrap"
    if isinstance(cell, Mark):
        kind += f";font-weight:600;color:{_COLOURS[cell.colour][0]}"
    begin = f'<td style="{_CELL};text-align:{align};{kind}">'
    if len(text) <= _FOLD:
        picture = f"{_strip(cell, 48, 6)} " if isinstance(cell, Bar) else ""
        return f"{begin}{picture}{escape(text)}</td>"
    cut = max(text.rfind(" ", 0, _HEAD), _HEAD // 2)
    summary = f'<summary style="cursor:pointer">{escape(text[:cut])} …</summary>'
    return f"{begin}<details>{summary}{escape(text[cut:].lstrip(' '))}</details></td>"


def _meter(bar: Bar) -> str:
    legend = "".join(
        f'<span style="white-space:nowrap;margin-right:16px"><span style="display:inline-block;width:9px;height:9px;'
        f'border-radius:2px;margin-right:5px;background:{_COLOURS[mark.colour][0]}"></span>'
        f"{escape(visible(mark.text))} {value:,}</span>"
        for mark, value in bar.parts
    )
    below = f'<div style="margin:3px 0 6px">{legend}<span>{escape(visible(bar.note))}</span></div>'
    return f'<div style="margin:2px 0">{_strip(bar, 320, 10)} {escape(_sentence(bar))}</div>{below}'


def _strip(bar: Bar, width: int, height: int) -> str:
    colours, left = [], 0.0
    for mark, value in bar.parts:
        right = left + 100 * value / max(bar.value, bar.limit, 1)
        colours.append(f"{_COLOURS[mark.colour][0]} {left:.1f}% {right:.1f}%")
        left = right
    look = f"display:inline-block;vertical-align:middle;width:{width}px;height:{height}px;border-radius:3px"
    fill = f"background:linear-gradient(to right,{','.join([*colours, f'#8884 {left:.1f}%'])})"
    return f'<span role="img" aria-label="{bar.value} of {bar.limit}" style="{look};{fill}"></span>'
