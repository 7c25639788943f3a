"""Reads and writes JSON text, and says in words what is wrong with it: above all, that it was cut off."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from memlayer_core.errors import MemlayerError

__all__ = ["parsed", "shown", "written"]

_begun = re.compile(r"(?:[tfn][a-z]{0,4}|-|[.eE][-+]?|\\(?:u[0-9a-fA-F]{0,4})?)?\s*").fullmatch
"""What stands at the end of a text that was cut off inside a word, a number or an escape."""

_BREAKS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}
"""What some programs take for the end of a line, and JSON does not escape by itself."""


def parsed(text: str | bytes, what: str, error: type[MemlayerError]) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The whole text; bytes are UTF-8.
        what: What the text is called in an error: `"the session file 'x.json'"`.
        error: What to raise.

    Raises:
        MemlayerError: Of the type `error`: the text is empty, cut off, or no JSON.
    """
    try:
        read = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as problem:
        raise error(f"{what} is no UTF-8: {problem}", hint="Write it again as UTF-8.") from None
    if not read.strip():
        raise error(
            f"{what} is empty", hint="There should be JSON in it: take it from where it came once more."
        )
    try:
        return json.loads(read, parse_constant=_refuse)
    except json.JSONDecodeError as problem:
        if _was_cut(read, problem):
            raise error(
                f"{what} is cut off: it ends after {len(read):,} character(s), in the middle of its JSON",
                hint="It was not written or copied to its end; take it from where it came once more.",
            ) from None
        raise error(
            f"{what} is no JSON: {problem.msg}, line {problem.lineno}, column {problem.colno}",
            hint="Correct that place, or write the text with a JSON library.",
        ) from None
    except (ValueError, RecursionError) as problem:
        raise error(
            f"{what} holds JSON that cannot be read: {str(problem)[:80]}",
            hint="NaN, numbers of thousands of digits and endless nesting have no place in it.",
        ) from None


def written(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Return a value as JSON text that UTF-8 can hold: as it reads, or escaped where it has to be.

    Without `indent` it is one line, for whatever program.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=indent, separators=separators)
    if ascii_only:
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return written(value, indent=indent, ascii_only=True)
    return text.translate(_BREAKS)


def shown(value: object) -> str:
    """Return a value as an error shows it: short."""
    return f"{type(value).__name__} {value!r:.80}"


def _was_cut(text: str, problem: json.JSONDecodeError) -> bool:
    if problem.msg.startswith("Unterminated string"):
        return True
    return _begun(text, max(0, problem.pos - 1) if "escape" in problem.msg else problem.pos) is not None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
