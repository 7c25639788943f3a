"""Makes tables for a page of the views that notebooks and terminals show.

A page may have no style in its elements, so colours and widths are classes of its style sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memlayer_core.show import Bar, Cell, Colour, Mark, Viewable, fold, words_of

__all__ = ["Field", "Link", "Part", "Table", "no_link", "tables_of"]

Link = Callable[[str], tuple[str, str | None] | None]
"""Returns for an id what is shown of it, and where it leads to; None: it is no id of something."""

_PROSE = 30  # a longer text is broken into lines
_WHOLE = 20_000  # characters of one cell
_METER, _STRIP = 320, 48  # widths of a bar above a table, and in a cell


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar.

    Attributes:
        colour: Its colour.
        x: Where it begins, in pixels.
        width: Its width.
        text: What it is, with its number.
    """

    colour: Colour
    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A cell of a table.

    Attributes:
        text: What is seen at once.
        rest: What is seen when it is unfolded.
        kind: The classes of its style.
        links: What is shown instead, and where each leads to; None: nowhere.
        bar: The parts of its bar.
    """

    text: str
    rest: str = ""
    kind: str = ""
    links: tuple[tuple[str, str | None], ...] = ()
    bar: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A view, ready for a page.

    Attributes:
        title: The line above it.
        columns: The names of the columns with their classes.
        rows: The rows.
        notes: Lines below it, each with its colour.
        bar: The parts of the bar above it.
        sentence: What the bar says.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Field, ...], ...]
    notes: tuple[tuple[str, Colour], ...]
    bar: tuple[Part, ...]
    sentence: str


def no_link(_: str) -> None:
    """Return that a text is no id of something."""


def tables_of(value: object, link: Link = no_link, hrefs: Sequence[str | None] = ()) -> list[Table]:
    """Return the tables of a value, one for its view and one for each of its sections.

    Args:
        value: A value that notebooks and terminals show.
        link: Where ids in cells lead to.
        hrefs: Where the first cell of each row leads to; empty: `link` tells.
    """
    assert isinstance(value, Viewable)
    view = value._view()  # noqa: SLF001  (the same value, for another reader)
    numbers = [
        bool(view.columns) and any(isinstance(row[place], int | float | Bar) for row in view.rows)
        for place in range(len(view.rows[0]) if view.rows else 0)
    ]
    places = list(hrefs) or [None] * len(view.rows)
    rows = tuple(
        tuple(
            _field(cell, link, href if at == 0 else None, is_number=numbers[at])
            for at, cell in enumerate(row)
        )
        for row, href in zip(view.rows, places, strict=True)
    )
    rows = _widen(rows)
    marks = [note if isinstance(note, Mark) else Mark(note, "amber") for note in view.notes]
    own = Table(
        view.title,
        tuple((name, "number" if numbers and numbers[at] else "") for at, name in enumerate(view.columns)),
        rows,
        tuple((mark.text, mark.colour) for mark in marks),
        _parts(view.bar, _METER) if view.bar is not None else (),
        _sentence(view.bar) if view.bar is not None else "",
    )
    is_shown = own.title or own.rows or own.notes or own.bar
    below = [table for section in view.sections for table in tables_of(section, link)]
    return [own, *below] if is_shown else below


def _widen(rows: tuple[tuple[Field, ...], ...]) -> tuple[tuple[Field, ...], ...]:
    """Give the room that is left to the column with the longest texts."""
    columns = [sum(len(field.text + field.rest) for field in column) for column in zip(*rows, strict=True)]
    widest = columns.index(max(columns)) if columns else None

    def widen(at: int, one: Field) -> Field:
        return replace(one, kind=f"{one.kind} wide") if at == widest and "prose" in one.kind else one

    return tuple(tuple(widen(at, one) for at, one in enumerate(row)) for row in rows)


def _field(cell: Cell, link: Link, href: str | None, *, is_number: bool) -> Field:
    text = words_of(cell, _WHOLE)
    bar = _parts(cell, _STRIP) if isinstance(cell, Bar) else ()
    kinds = ["number"] if is_number else []
    if isinstance(cell, Mark):
        kinds += ["mark", cell.colour]
    links = [(text, href)] if href is not None else _links(cell, link) if isinstance(cell, str) else []
    shown = ", ".join(text for text, _ in links) or text
    if isinstance(cell, str) and (len(shown) > _PROSE or "\n" in shown):
        kinds.append("prose")
    head, rest = (shown, "") if links else fold(text)
    return Field(head, rest, " ".join(kinds), tuple(links), bar)


def _links(cell: str, link: Link) -> list[tuple[str, str | None]]:
    """Return the links of a cell that is an id, or several; empty if it is anything else."""
    if (whole := link(cell)) is not None:
        return [whole]
    some = [link(one) for one in cell.split(", ")]
    return [one for one in some if one is not None] if None not in some else []


def _parts(bar: Bar, width: int) -> tuple[Part, ...]:
    """Return the parts of a bar, from the left."""
    whole = max(bar.value, bar.limit, 1)
    simple: Colour = "red" if bar.value > bar.limit else "blue"
    drawn, left = list[Part](), 0.0
    for mark, value in bar.parts or ((Mark("", simple), bar.value),):
        size = width * value / whole
        text = f"{mark.text} {value:,}" if mark.text else ""
        drawn.append(Part(mark.colour, round(left, 1), round(size, 1), text))
        left += size
    return tuple(drawn)


def _sentence(bar: Bar) -> str:
    return f"{bar.value:,} of {bar.limit:,} {bar.unit}" + (f" ({bar.note})" if bar.note else "")
