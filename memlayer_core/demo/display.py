"""Shows on a terminal what a model was given: part by part, with what each costs and why it is there."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from memlayer_core.demo.turn import Received
from memlayer_core.records.context import Context, Piece, PieceKind

__all__ = ["say", "show_budget", "show_context", "show_line", "show_recall", "show_received"]

_BAR = 40
_LONGEST = 1000
_NO_SUMMARY = "empty: nothing has left the window so far, or its summary is still being written"
_PARTS: tuple[tuple[PieceKind, str, str], ...] = (
    ("system", "System", "empty: this session has no instructions of its own"),
    ("summary", "Summary slot", _NO_SUMMARY),
    (
        "recall",
        "Recall, from before the window",
        "empty: nothing older bears on the question, or it all fits",
    ),
    ("window", "Window, the newest whole turns", "empty: nothing said in this session yet"),
)


def show_line(console: Console, speaker: str, text: str, note: str = "") -> None:
    """Show one line of the conversation."""
    row = Table.grid(padding=(0, 1))
    row.add_column(width=14, justify="right", style="bold")
    row.add_column()
    row.add_row(escape(speaker), Text(text))
    if note:
        row.add_row("", Text(note, style="dim"))
    console.print(row)


def say(console: Console, text: str) -> None:
    """Show a remark in markup, every line of it indented."""
    console.print(Padding(text, (0, 0, 0, 2)))


def show_context(console: Console, context: Context) -> None:
    """Show every part of a context in a table of its own, and what holds for the whole."""
    for kind, title, otherwise in _PARTS:
        _show_part(console, title, [piece for piece in context.pieces if piece.kind == kind], otherwise)
    show_budget(console, context)
    for reason in context.reasons:
        console.print(Text(f"  note: {reason}", style="yellow"))


def show_recall(
    console: Console,
    pieces: Iterable[Piece],
    *,
    marked: frozenset[str] = frozenset(),
    longest: int = _LONGEST,
) -> None:
    """Show recalled turns.

    Args:
        console: Where to.
        pieces: What was recalled.
        marked: Ids of messages that get a mark.
        longest: Characters of a turn that are shown.
    """
    console.print(Padding(_table(pieces, marked=marked, longest=longest), (0, 0, 0, 2)))


def show_budget(console: Console, context: Context) -> None:
    """Show the tokens against the limit, as a bar."""
    share = context.tokens / context.token_limit
    filled = min(_BAR, round(share * _BAR))
    line = Text("  ")
    line.append("━" * filled, style="red" if share > 1 else "green")
    line.append("━" * (_BAR - filled), style="bright_black")
    line.append(f" {context.tokens:,} of {context.token_limit:,} tokens ({share:.0%})")
    console.print(line)


def show_received(console: Console, received: Received) -> None:
    """Show the last message as it reached the model, and how many came before it."""
    role, text = received[-1]
    console.print(
        Panel(
            Text(text, style="dim"),
            title=f"the last of {len(received)} message(s) that reached the model, role {role!r}",
            title_align="left",
            border_style="bright_black",
        )
    )


def _show_part(console: Console, title: str, pieces: list[Piece], otherwise: str) -> None:
    if not pieces:
        say(console, f"[bold cyan]{title}[/]  [dim]{otherwise}[/]")
        return
    say(console, f"[bold cyan]{title}[/]  [dim]{sum(piece.tokens for piece in pieces)} tokens[/]")
    console.print(Padding(_table(pieces), (0, 0, 0, 4)))


def _table(
    pieces: Iterable[Piece], *, marked: frozenset[str] = frozenset(), longest: int = _LONGEST
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=True, header_style="dim")
    table.add_column("date", no_wrap=True)
    table.add_column("who", no_wrap=True, max_width=10)
    table.add_column("tok.", justify="right", no_wrap=True)
    table.add_column("what", ratio=3, overflow="fold")
    table.add_column("why", ratio=2, style="dim")
    for piece in pieces:
        sign = "✓ " if marked & set(piece.message_ids) else ""
        table.add_row(
            f"{piece.created_at:%Y-%m-%d}" if piece.created_at else "",
            escape(piece.speaker),
            str(piece.tokens),
            Text(sign, style="bold green").append(_cut(piece.text, longest), style="not bold default"),
            Text("; ".join(map(str, piece.reasons))),
        )
    return table


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
