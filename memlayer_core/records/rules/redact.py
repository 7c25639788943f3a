"""Replaces what should not be remembered: e-mail addresses, phone numbers, cards, bank accounts, keys and secrets.

What has a checksum (cards, IBANs) is replaced only if it is right, so that order numbers stay. Secrets are found by the
shapes that their issuers document. The checks are a few lines each; a library that knows every country's numbers finds
no more of these in running text, and would be one more thing to install.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from memlayer_core.records.model import Record
from memlayer_core.settings import SensitiveKind

__all__ = ["KINDS", "Redaction", "original_span", "redact", "redact_record", "sensitive"]

KINDS: tuple[SensitiveKind, ...] = ("secret", "email", "iban", "card", "phone")

_PHONE_DIGITS = range(8, 16)
"""Digits of a phone number: ITU-T E.164 allows 15 at the most."""

_DIGIT = re.compile(r"\d")  # each bank account, card and phone number has some
_TAKEN = "\ufffc"  # stands where another kind was found: no pattern matches it
_SECRET = re.compile(
    r"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant)[-_][\w-]{16,200}|\bsk-[A-Za-z0-9]{20,200}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_\w{22,255}\b|\bglpat-[\w-]{20,64}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{35}|\bxox[abprs]-[\w-]{10,200}"
    r"|\beyJ[\w-]{8,2000}\.eyJ[\w-]{8,2000}\.[\w-]{8,2000}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
    r"|(?i:\b(?:password|passwort|passwd|api[ _-]?key|secret|access[ _-]?token)\b"
    r"(?:\s*[:=]\s*|\s+is\s+(?=[^\s,;]{0,200}[\d_!$%&*#-])))[^\s,;\ufffc]{4,200}"
    r"|(?:密码|口令)(?:是|为|[:：=])\s*[^\s，。\uff1b,;\ufffc]{4,200}"
)
_SIGNS = (
    *(f"{name}{mark}" for name in ("sk", "pk", "rk") for mark in "-_"),
    *(
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "xox",
        "passw",
        "secret",
        "密码",
        "口令",
    ),
    *(f"{name}{mark}" for name in ("api", "access") for mark in (" ", "_", "-")),
    "apikey",
    "accesstoken",
)
_LARGE_SIGNS = ("AKIA", "ASIA", "AIza", "eyJ", "PRIVATE KEY")
"""One of these, or in small letters of those above, is in every secret."""
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")
_CARD = re.compile(r"(?<![\d.,-])\d(?:[ -]?\d){12,18}(?![\d-])")
_PHONE = re.compile(
    r"(?<![\w.,+-])(?<!\d )(?:\+|00)\d{1,3}(?:[ .()/-]{0,2}\d){6,13}(?!\w)"
    r"|(?<![\d.,+-])1[3-9]\d(?:[ -]?\d{4}){2}(?!\d)"
    r"|(?<![\w.,+-])\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}(?!\w)"
)


@dataclass(frozen=True, slots=True)
class Redaction:
    """A part of a text that should not be remembered.

    Attributes:
        kind: What it is.
        start: Place of its first character.
        end: Place after the last one.
    """

    kind: SensitiveKind
    start: int
    end: int


def redact(text: str, kinds: Collection[SensitiveKind] = KINDS) -> str:
    """Return a text with `[email]`, `[card]` and so on in place of what should not be remembered."""
    return _replaced(text, sensitive(text, kinds), lambda one: f"[{one.kind}]")


def sensitive(text: str, kinds: Collection[SensitiveKind] = KINDS) -> list[Redaction]:
    """Return the parts of a text that should not be remembered, in their order; none overlaps another."""
    parts: list[Redaction] = []
    for kind in KINDS:
        if kind in kinds:
            more = list(_parts(text, kind))
            parts += more
            text = _replaced(text, more, lambda one: _TAKEN * (one.end - one.start))
    return sorted(parts, key=lambda one: one.start)


_TEXTS = ("raw", "summary", "category", "key", "value", "subject")
_LISTS = ("key_topics", "actions_taken", "outcomes", "tags")
_NOTHING_LEFT = "[redacted]"


def redact_record(record: Record, redactor: Callable[[str], str]) -> Record:
    """Return a record as it may be stored: each of its texts, lists and structured values redacted."""
    said = {name: getattr(record, name) for name in _TEXTS}
    changed: dict[str, Any] = {
        name: redactor(text).strip() or _NOTHING_LEFT for name, text in said.items() if text is not None
    }
    changed = {name: text for name, text in changed.items() if text != said[name].strip()}
    for name in _LISTS:
        each = getattr(record, name)
        left = tuple(dict.fromkeys(text for one in each if (text := redactor(one)).strip()))
        if left != each:
            changed[name] = left
    if record.structured is not None and (left := _in_json(record.structured, redactor)) != record.structured:
        changed["structured"] = left
    return replace(record, **changed) if changed else record


def _in_json(value: Any, redactor: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redactor(value)
    if isinstance(value, Mapping):
        return {name: _in_json(inner, redactor) for name, inner in value.items()}
    return [_in_json(inner, redactor) for inner in value] if isinstance(value, list | tuple) else value


_TOKEN = re.compile(r"\w+|\W")


def original_span(original: str, clean: str, start: int, end: int) -> tuple[int, int]:
    """Return the place in a text of what stands at a place of the redacted text.

    A place inside of what was replaced becomes the whole of what stood there.
    """
    before, after = _TOKEN.findall(original), _TOKEN.findall(clean)
    starts = [0], [0]
    for places, tokens in zip(starts, (before, after), strict=True):
        for token in tokens:
            places.append(places[-1] + len(token))
    begin, until = 0, len(original)
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after).get_opcodes():
        here, there = (starts[0][i1], starts[0][i2]), (starts[1][j1], starts[1][j2])
        if there[0] <= start < there[1]:
            begin = here[0] + (start - there[0] if tag == "equal" else 0)
        if there[0] < end <= there[1]:
            until = here[0] + (end - there[0]) if tag == "equal" else here[1]
    return begin, max(begin, until)


def _replaced(text: str, parts: list[Redaction], by: Callable[[Redaction], str]) -> str:
    pieces: list[str] = []
    place = 0
    for one in parts:
        pieces += [text[place : one.start], by(one)]
        place = one.end
    return "".join([*pieces, text[place:]])


def _parts(text: str, kind: SensitiveKind) -> Iterator[Redaction]:
    pattern, check = _RULES[kind]
    if not _may_have(text, kind):
        return
    for match in pattern.finditer(text):
        if check(match[0]):
            yield Redaction(kind, match.start(), match.end())


def _may_have(text: str, kind: SensitiveKind) -> bool:
    """Tell whether a text has what every part of a kind has: most have not, and cost no more than this."""
    if kind == "email":
        return "@" in text
    if kind != "secret":
        return _DIGIT.search(text) is not None
    return any(map(text.lower().__contains__, _SIGNS)) or any(map(text.__contains__, _LARGE_SIGNS))


def _is_card(text: str) -> bool:
    """Check the last digit by Luhn's rule (ISO/IEC 7812)."""
    digits = [int(digit) for digit in text if digit.isdecimal()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    """Check the two digits after the country (ISO 13616): the rest of a division by 97 is 1."""
    plain = text.replace(" ", "")
    return int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


def _is_phone(text: str) -> bool:
    return sum(character.isdecimal() for character in text) in _PHONE_DIGITS


def _always(text: str) -> bool:
    return bool(text)


_RULES: dict[SensitiveKind, tuple[re.Pattern[str], Callable[[str], bool]]] = {
    "secret": (_SECRET, _always),
    "email": (_EMAIL, _always),
    "iban": (_IBAN, _is_iban),
    "card": (_CARD, _is_card),
    "phone": (_PHONE, _is_phone),
}
