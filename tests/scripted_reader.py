"""A script that stands for the model which reads facts: it knows a few sentences of our tests, and nothing else."""

import json
import re
from collections.abc import Callable
from typing import Any

_SENTENCES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"[Mm]y name is (\w+)", {"key": "name", "always": True, "category": "identity"}),
    (r"I am allergic to (\w+)", {"key": "allergy", "many": True, "always": True}),
    (r"I (?:no longer|don't) (?:live in|like) (\w+)", {"op": "end"}),
    (r"Actually, I live in (\w+)", {"key": "home", "correction": True, "always": True}),
    (r"(?:I think|maybe) I live in (\w+)", {"key": "home", "confidence": 0.4}),
    (r"(?<!Do )I (?:live in|moved to) (\w+)", {"key": "home", "always": True}),
    (r"I used to live in (\w+)", {"key": "home", "modality": "used_to"}),
    (r"I like (\w+(?: number \w+)?)", {"key": "likes", "many": True, "always": True}),
    (r"I work at (\w+)", {"key": "employer"}),
)
_LINE = re.compile(r"\[(\d+)\] \S+ [^:]+: (.*)")
_FACT = re.compile(r"(\d+)\. .*? \(\w+.*?\): (?:(\S+) = (.*?) )?\"")


def reads(*more: tuple[str, dict[str, Any]]) -> Callable[[str, str], str]:
    """Return an extractor: a function of instructions and a prompt.

    Args:
        more: Further patterns of sentences, each with the operation that they make; the first group is the value.
    """

    def extract(_instructions: str, prompt: str) -> str:
        head, _, talk = prompt.rpartition("Conversation:")
        known = [(int(number), key, value) for number, key, value in _FACT.findall(head)]
        found = [
            _operation(match, int(number), dict(operation), known)
            for number, text in _LINE.findall(talk)
            for match, operation in _matches(text, (*more, *_SENTENCES))
        ]
        return json.dumps({"operations": list(filter(None, found))}, ensure_ascii=False)

    return extract


def _matches(text: str, sentences: Any) -> list[tuple[re.Match[str], dict[str, Any]]]:
    taken: set[int] = set()
    found = []
    for pattern, operation in sentences:
        for match in re.finditer(pattern, text):
            if taken.isdisjoint(range(*match.span())):
                taken.update(range(*match.span()))
                found.append((match, operation))
    return sorted(found, key=lambda one: one[0].start())


def _operation(
    match: re.Match[str], number: int, operation: dict[str, Any], known: list[tuple[int, str, str]]
) -> dict[str, Any] | None:
    key, value = operation.get("key"), match[1]
    if operation.get("op") == "end":
        target = next((at for at, _, held in known if held.casefold() == value.casefold()), None)
        if target is None:
            return None
        operation["fact"] = target
    elif operation.get("correction"):
        target = next((at for at, name, _ in known if name == key), None)
        operation |= {"op": "update", "fact": target} if target is not None else {}
    said = {"op": "add", "value": value, "quote": match[0], "messages": [number]}
    return said | operation
