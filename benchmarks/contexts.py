"""What a model is shown of a question's evidence: through `chat.context`, in a fresh session of the same user.

`recall.py` and `gate.py` measure with it.
"""

import statistics
from typing import NamedTuple

from memlayer_core import Message
from memlayer_core.storage.terms import content_words

__all__ = ["LIMITS", "Shown", "measured", "repeated", "shown"]

LIMITS = (2000, 4000, 8000)
SAME = 0.9  # share of a line's words in another text, from which on it repeats that text


class Shown(NamedTuple):
    """The recall of one context: the ids of its turns, its tokens, and those of them that repeat other texts."""

    ids: tuple[str, ...]
    tokens: int
    repeated: int


def shown(memory, user, query, limit=None, *, pending=False):
    """Return what a context for a query recalls; the query is asked for, or is the newest message of the session."""
    chat = memory.chat(user_id=user, session_id="a fresh one")
    if pending:
        context = chat.context(pending=[Message("user", query)], token_limit=limit)
    else:
        context = chat.context(query, token_limit=limit)
    lines = [piece for piece in context.pieces if piece.kind == "recall"]
    others = [piece.text for piece in context.pieces if piece.kind != "recall"]
    return Shown(
        tuple(one for piece in lines for one in piece.message_ids),
        sum(piece.tokens for piece in lines),
        sum(piece.tokens for piece in repeated(lines, others)),
    )


def repeated(lines, others):
    """Give the lines whose words stand nearly all in another text of the context."""
    known = [set(content_words(text)) for text in others]
    for line in sorted(lines, key=lambda line: -len(line.text)):
        words = set(content_words(line.text))
        if words and any(len(words & other) >= SAME * len(words) for other in known):
            yield line
        known.append(words)


def measured(memory, user, questions, limit):
    """Return the means over questions with known evidence, in percent; tokens as they are."""
    answers = [(shown(memory, user, asked.text, limit), asked) for asked in questions]
    return [
        {
            "kind": asked.kind,
            "evidence": len(asked.evidence.intersection(told.ids)) / len(asked.evidence),
            "tokens": told.tokens,
            "empty": not told.ids,
            "repeated": told.repeated,
            "right": len(asked.evidence.intersection(told.ids)),
            "turns": len(told.ids),
        }
        for told, asked in answers
    ]


def means(found):
    """Return the means of what `measured` gave."""
    tokens = sum(one["tokens"] for one in found)
    turns = sum(one["turns"] for one in found)

    def percent(values):
        return round(100 * statistics.mean(values), 1)

    return {
        "evidence": percent(one["evidence"] for one in found),
        "tokens": round(tokens / len(found)),
        "empty": percent(one["empty"] for one in found),
        "repeated": round(100 * sum(one["repeated"] for one in found) / max(tokens, 1), 1),
        "precision": round(100 * sum(one["right"] for one in found) / max(turns, 1), 1),
    }
