"""What a model is shown for a question: through `chat.context`, in a fresh session of the same user."""

import statistics
from typing import NamedTuple

from memlayer_core import Message

__all__ = ["Shown", "means", "measured", "shown"]


class Shown(NamedTuple):
    """The recall of one context: the ids of its lines, and its tokens."""

    ids: tuple[str, ...]
    tokens: int


def shown(memory, user, query, limit=None, before=()):
    """Return what a context for a question recalls, with the round before it in the same session if there is one."""
    chat = memory.chat(user_id=user, session_id="a fresh one")
    new = [Message(role, text, id=f"before-{place}") for place, (role, text) in enumerate(before)]
    context = chat.context(pending=[*new, Message("user", query, id="asked")], token_limit=limit)
    lines = [piece for piece in context.pieces if piece.kind == "recall"]
    ids = tuple(one for piece in lines for one in piece.message_ids)
    return Shown(ids, sum(piece.tokens for piece in lines))


def measured(memory, user, questions, limit=None):
    """Return what a context has of each question: lines needed, told, to the point; tokens."""
    rows = []
    for asked in questions:
        told = shown(memory, user, asked.text, limit, asked.before)
        rows.append(
            {
                "kind": asked.kind,
                "needed": len(asked.evidence),
                "told": len(asked.evidence.intersection(told.ids)),
                "bears": len(asked.bears),
                "to_the_point": len((asked.evidence | asked.bears).intersection(told.ids)),
                "lines": len(told.ids),
                "tokens": told.tokens,
            }
        )
    return rows


def means(rows):
    """Return shares in percent of all lines together; lines and tokens of a question."""

    def share(part, whole):
        every = sum(one[whole] for one in rows)
        return round(100 * sum(one[part] for one in rows) / every, 1) if every else None

    return {
        "questions": len(rows),
        "needed": share("told", "needed"),
        "bears": share("to_the_point", "bears"),
        "precision": share("to_the_point", "lines"),
        "lines": round(statistics.mean(one["lines"] for one in rows), 1),
        "tokens": round(statistics.mean(one["tokens"] for one in rows)),
        "silent": round(100 * statistics.mean(not one["lines"] for one in rows), 1),
    }
