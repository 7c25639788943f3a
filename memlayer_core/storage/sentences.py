"""Decides where a sentence ends, in languages with and without spaces."""

from __future__ import annotations

import regex

__all__ = ["sentences"]

_CLOSE = r"[\p{Pf}\p{Pe}\"']"
# A full stop needs white space after it: "3.14" and "example.com" are no ends; Chinese and Japanese ones do not.
_CUT = regex.compile(
    rf"(?<=[\p{{SB=STerm}}\p{{SB=ATerm}}]{_CLOSE}{{0,3}})\s+(?!\p{{SB=Lower}})"
    rf"|(?<=[\u3002\uff01\uff1f\uff1b\u2026]{_CLOSE}{{0,3}})(?![\u3002\uff01\uff1f\uff1b\u2026]|{_CLOSE})"
)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in their order, without the white space between them.

    A line is at least one sentence.
    """
    pieces = (piece for line in text.splitlines() for piece in _CUT.split(line))
    return [sentence for piece in pieces if (sentence := piece.strip())]
