"""Draws values as HTML for notebooks: tables and bars, every text escaped, no script, no style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "bar", "table"]

_CELL = "text-align:left;vertical-align:top;padding:2px 8px;white-space:pre-wrap;max-width:48em"
_LONGEST = 400  # characters of one cell


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell that shows a number as a bar against a limit."""

    value: int
    limit: int


def table(head: Sequence[str], rows: Sequence[Sequence[str | Bar]], *, caption: str = "") -> str:
    """Return an HTML table; cells are texts, escaped and cut to 400 characters, or bars."""
    heads = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_cell(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    title = f'<caption style="text-align:left">{escape(caption)}</caption>' if caption else ""
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def bar(value: int, limit: int, unit: str) -> str:
    """Return a line with a bar and the words "value of limit unit"."""
    return f"<div>{_svg(value, limit, 240)} {value:,} of {limit:,} {escape(unit)}</div>"


def _cell(cell: str | Bar) -> str:
    if isinstance(cell, Bar):
        return f"{_svg(cell.value, cell.limit, 80)} {cell.value:,}"
    return escape(cell if len(cell) <= _LONGEST else cell[: _LONGEST - 1] + "…")


def _svg(value: int, limit: int, width: int) -> str:
    share = min(1.0, value / limit) if limit > 0 else 1.0
    colour = "#c0392b" if value > limit else "#2e86c1"
    return (
        f'<svg width="{width}" height="10" role="img" aria-label="{value} of {limit}">'
        f'<rect width="{width}" height="10" fill="#8884"/>'
        f'<rect width="{share * width:.1f}" height="10" fill="{colour}"/></svg>'
    )
