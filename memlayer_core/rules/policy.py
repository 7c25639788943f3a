"""Decides what holds for a context, its limits and its order: what the settings say, or what a call says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import get_args

from memlayer_core.errors import ConfigurationError, InvalidLimitError
from memlayer_core.records.context import Placement
from memlayer_core.records.policy import Limits, MaxMessages, MaxRounds, MaxTokens, Policy
from memlayer_core.rules.check import at_least_one

__all__ = ["NAMES", "Policies", "limits", "named", "placed_where"]

NAMES: dict[str, type[Policy]] = {
    "max_tokens": MaxTokens,
    "max_messages": MaxMessages,
    "max_rounds": MaxRounds,
}
"""Policies by name, each with its default number."""

Policies = str | Policy | Mapping[str, int] | Iterable[str | Policy | Mapping[str, int]]
"""A policy by name or as an object, or several that hold together; JSON can say `{"max_rounds": 4}`."""


def limits(default: Limits, policies: Policies | None, token_limit: int | None) -> Limits:
    """Return the limits that hold for a call.

    A call that names policies replaces the number of messages and of rounds that the settings ask for; a
    limit in tokens holds always. Of two that limit the same, the smaller one holds.

    Args:
        default: What the settings say.
        policies: What the call says.
        token_limit: Tokens that the call names.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
    """
    chosen = {} if policies is None else named(policies)
    tokens = chosen.get("max_tokens", default.tokens if token_limit is None else token_limit)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        tokens = min(tokens, token_limit)
    found = replace(default, tokens=tokens)
    if policies is None:
        return found
    return replace(found, messages=chosen.get("max_messages"), rounds=chosen.get("max_rounds"))


def named(policies: Policies) -> dict[str, int]:
    """Return policies as JSON: the number that holds for each name, the smallest of several.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
    """
    found: dict[str, int] = {}
    for name, limit in _each(policies):
        found[name] = min(limit, found.get(name, limit))
    return found


def _each(policies: Policies) -> Iterator[tuple[str, int]]:
    given = [policies] if isinstance(policies, str | Policy) else policies
    if not isinstance(given, Iterable):
        raise _unknown(given)
    for policy in given:
        if isinstance(policy, Policy):
            name, limit = next(name for name, kind in NAMES.items() if kind is type(policy)), policy.limit
        elif isinstance(policy, Mapping):
            yield from _each(policy)
            continue
        elif isinstance(policy, str) and policy in NAMES:
            name, limit = policy, given[policy] if isinstance(given, Mapping) else NAMES[policy]().limit
        else:
            raise _unknown(policy)
        at_least_one(name, limit)
        yield name, limit


def _unknown(policy: object) -> InvalidLimitError:
    return InvalidLimitError(
        f"unknown policy {policy!r:.80}",
        hint=f"Use one of {', '.join(map(repr, NAMES))}, an object such as MaxRounds(4), or {{'max_rounds': 4}}.",
    )


def placed_where(asked: Placement | None, default: Placement) -> Placement:
    """Return where recalled text goes.

    Raises:
        ConfigurationError: There is no such place.
    """
    if asked is not None and asked not in get_args(Placement):
        raise ConfigurationError(
            f"recalled text cannot be placed {asked!r}",
            hint='`"user"`: in front of the newest question; `"system"`: behind the system message.',
        )
    return asked or default
