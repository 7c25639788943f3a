"""What memlayer itself adds to a prompt, so that it is known when it comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memlayer_core.messages.rules.offload import full_text, parse_preview
from memlayer_core.messages.rules.render import has_escapes, lines_inside
from memlayer_core.window.flow.parts import WindowView
from memlayer_core.window.model import Context

__all__ = ["lines_of_ours", "texts_of_ours"]


def lines_of_ours(view: WindowView, recall: str, sources: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield each line that memlayer adds to a context, with the key of what it quotes; 0 if that is not known here."""
    for text, keys in (recall, sources), *((one.message.text, one.keys) for one in view.profile):
        yield from zip(lines_inside(text), keys, strict=True)
    yield from ((line, 0) for one in view.summary for line in lines_inside(one.message.text))


def texts_of_ours(context: Context) -> Iterator[tuple[str, str]]:
    """Yield each text that memlayer adds to a message, with that message's text, for all placements of adapters.

    A message that is shown changed, escaped or as a preview, comes with nothing added.
    """
    turns = (*context.window, *context.pending)
    asked = next((message for message in reversed(turns) if message.role == "user"), None)
    hosts = {message.text for message in (*context.system[-1:], *turns[:1], asked) if message is not None}
    lasting = [message.text for message in (context.profile, context.summary) if message is not None]
    for ours in filter(None, (*lasting, context.recall)):
        yield from ((ours, theirs) for theirs in {"", *hosts})
    for message in (*context.system, *turns):
        if has_escapes(message) or parse_preview(message) is not None:
            yield "", full_text(message)
