"""Reads a model's answer: JSON, whatever is around it, and as much of it as can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import json_repair
from pydantic import ValidationError

from memlayer_core.extraction.model import Operation

__all__ = ["AnswerError", "operations_in", "split_operations"]

_READ = 20_000  # characters of an answer that are read: far more than the operations of ten turns
_MOST = 50  # operations
_THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_JSON = re.compile(r"\{|\[\s*[\]{]")


_OPERATIONS = re.compile(r"\{\s*\"operations\"\s*:")
_FENCE = re.compile(r"^\s*```\w*\s*$", re.MULTILINE)


class AnswerError(ValueError):
    """An answer that has no operations to read. Its text says what is wrong, for the model."""


def operations_in(answer: str) -> list[Operation | str]:
    """Return the operations in an answer; for each that has a wrong form, what is wrong with it.

    Raises:
        AnswerError: It is empty, or there is no list of operations in it.
    """
    text = _THOUGHTS.sub("", answer).strip()[:_READ]
    if not text:
        raise AnswerError("it was empty")
    begin = _JSON.search(text)
    if begin is None:
        raise AnswerError("there was no JSON object in it")
    found = _listed(json_repair.loads(text[begin.start() :]))
    if found is None:
        raise AnswerError('there was no list "operations" in it')
    read = [_operation(one) for one in found[:_MOST]]
    if read and all(isinstance(one, str) for one in read):
        raise AnswerError(f"no operation had the form that was asked for: {read[0]}")
    return read


def split_operations(answer: str) -> tuple[str, str]:
    """Return an answer without its object of operations, and that object; empty if there is none.

    What cannot be read as JSON goes to the end of the answer.
    """
    answer = _THOUGHTS.sub("", answer)
    found = max(_OPERATIONS.finditer(answer), key=lambda one: one.start(), default=None)
    if found is None:
        return answer, ""
    try:
        _, end = json.JSONDecoder().raw_decode(answer, found.start())
    except (ValueError, RecursionError):
        end = len(answer)
    rest = _FENCE.sub("", f"{answer[: found.start()]}\n{answer[end:]}")
    return rest.strip(), answer[found.start() : end]


def _listed(value: Any) -> Sequence[Any] | None:
    """Return the list of operations in what was read: `{"operations": […]}`, a list, or one operation."""
    if isinstance(value, list):
        inner = next((one for one in value if isinstance(one, dict) and "operations" in one), None)
        return _listed(inner) if inner is not None else value
    if not isinstance(value, dict):
        return None
    if "op" in value:
        return [value]
    found = value.get("operations")
    return [found] if isinstance(found, dict) else found if isinstance(found, list) else None


def _operation(value: Any) -> Operation | str:
    try:
        return Operation.model_validate(value)
    except ValidationError as problem:
        first = problem.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'operation'}: {first['msg']}"
