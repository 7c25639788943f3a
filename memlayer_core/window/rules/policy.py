"""Decides the limits and the placement of a context, from the settings and the call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from pydantic import InstanceOf

from memlayer_core.errors import ConfigurationError, InvalidLimitError
from memlayer_core.messages.rules.check import at_least_one
from memlayer_core.policy import Limits, MaxMessages, MaxRounds, MaxTokens, Policy
from memlayer_core.settings import Settings
from memlayer_core.window.model import Placement

__all__ = ["NAMES", "Policies", "default_limits", "limits", "placement_of", "policy_json", "size_of"]

NAMES: dict[str, type[MaxTokens | MaxMessages | MaxRounds]] = {
    "max_tokens": MaxTokens,
    "max_messages": MaxMessages,
    "max_rounds": MaxRounds,
}
"""Policies by name, each with its default number."""

_One = str | MaxTokens | InstanceOf[Policy] | Mapping[str, int]
Policies = _One | Iterable[_One]
"""A policy by name or as an object, or several that hold together; JSON can say `{"max_rounds": 4}`."""


def default_limits(settings: Settings) -> Limits:
    """Return the limits that the settings name."""
    messages = () if settings.max_messages is None else (MaxMessages(settings.max_messages),)
    rounds = () if settings.max_rounds is None else (MaxRounds(settings.max_rounds),)
    return Limits(settings.max_tokens, (*messages, *rounds))


def limits(default: Limits, policies: Policies | None, token_limit: int | None) -> Limits:
    """Return the limits that hold for a call.

    Policies of a call replace those of the settings; a token limit always holds. Of several limits of tokens the
    smallest one holds.

    Args:
        default: The limits of the settings.
        policies: The policies of the call.
        token_limit: The token limit of the call.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
    """
    every = [] if policies is None else list(_each(policies))
    tokens = [policy.limit for policy in every if isinstance(policy, MaxTokens)]
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        tokens.append(token_limit)
    others = tuple(policy for policy in every if not isinstance(policy, MaxTokens))
    return Limits(min(tokens, default=default.tokens), default.policies if policies is None else others)


def policy_json(policies: Policies) -> dict[str, int]:
    """Return policies as JSON: the number that holds for each name, the smallest of several.

    Raises:
        InvalidLimitError: An unknown policy, or a limit below one.
        ConfigurationError: A policy of the caller's own, which JSON cannot name.
    """
    found: dict[str, int] = {}
    for policy in _each(policies):
        name = next((name for name, kind in NAMES.items() if isinstance(policy, kind)), None)
        if name is None or not isinstance(policy, MaxTokens | MaxMessages | MaxRounds):
            raise ConfigurationError(
                f"{policy!r:.80} cannot be written as JSON",
                hint="Pass a policy of your own again to the object that is loaded.",
            )
        found[name] = min(policy.limit, found.get(name, policy.limit))
    return found


def _each(policies: Policies) -> Iterator[MaxTokens | Policy]:
    if isinstance(policies, str | Policy | MaxTokens):
        yield _policy_of(policies)
    elif isinstance(policies, Mapping):
        for name, limit in policies.items():
            if name not in NAMES:
                raise _unknown(name)
            at_least_one(name, limit)
            yield NAMES[name](limit)
    elif isinstance(policies, Iterable):
        for policy in policies:
            yield from _each(policy) if isinstance(policy, Mapping) else (_policy_of(policy),)
    else:
        raise _unknown(policies)


def _policy_of(policy: object) -> MaxTokens | Policy:
    if isinstance(policy, str) and policy in NAMES:
        return NAMES[policy]()
    for name, kind in NAMES.items():
        if isinstance(policy, kind):
            at_least_one(name, policy.limit)
            return policy
    if not isinstance(policy, Policy) or isinstance(policy, type):
        raise _unknown(policy)
    return policy


def _unknown(policy: object) -> InvalidLimitError:
    return InvalidLimitError(
        f"unknown policy {policy!r:.80}",
        hint=f"Use one of {', '.join(map(repr, NAMES))}, an object such as MaxRounds(4), {{'max_rounds': 4}}, or an "
        "object of your own with `allows(portion)`.",
    )


def placement_of(placement: Placement | None, default: Placement) -> Placement:
    """Return where the recall goes.

    Raises:
        ConfigurationError: There is no such place.
    """
    if placement is not None and placement not in get_args(Placement):
        raise ConfigurationError(
            f"recalled text cannot be placed {placement!r}",
            hint='`"user"`: in front of the newest question; `"system"`: behind the system message.',
        )
    return placement or default


def size_of(tokens: int) -> int:
    """Return the number under which a window start is stored: equal for limits that differ by less than a quarter."""
    return round(math.log(tokens) / math.log(1.25))
