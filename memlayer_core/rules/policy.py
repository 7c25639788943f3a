"""Decides which limits hold for a context: those of the settings, or those of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from memlayer_core.errors import InvalidLimitError
from memlayer_core.records.policy import Limits, MaxMessages, MaxRounds, MaxTokens, Policy
from memlayer_core.rules.check import at_least_one

__all__ = ["NAMES", "Policies", "limits"]

NAMES: dict[str, type[Policy]] = {
    "max_tokens": MaxTokens,
    "max_messages": MaxMessages,
    "max_rounds": MaxRounds,
}
"""Policies by name, each with its default number."""

Policies = str | Policy | Iterable[str | Policy]
"""A policy by name or as an object, or several that hold together."""


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
    chosen = [] if policies is None else list(_each(policies))
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        chosen.append(MaxTokens(token_limit))
    tokens = [policy.limit for policy in chosen if isinstance(policy, MaxTokens)]
    found = replace(default, tokens=min(tokens)) if tokens else default
    if policies is None:
        return found
    messages = [policy.limit for policy in chosen if isinstance(policy, MaxMessages)]
    rounds = [policy.limit for policy in chosen if isinstance(policy, MaxRounds)]
    return replace(found, messages=min(messages, default=None), rounds=min(rounds, default=None))


def _each(policies: Policies) -> Iterable[Policy]:
    given = [policies] if isinstance(policies, str | Policy) else policies
    if not isinstance(given, Iterable):
        raise _unknown(given)
    for policy in given:
        if isinstance(policy, str) and policy in NAMES:
            yield NAMES[policy]()
        elif isinstance(policy, Policy):
            at_least_one(f"{type(policy).__name__}.limit", policy.limit)
            yield policy
        else:
            raise _unknown(policy)


def _unknown(policy: object) -> InvalidLimitError:
    return InvalidLimitError(
        f"unknown policy {policy!r:.80}",
        hint=f"Use one of {', '.join(map(repr, NAMES))}, or MaxTokens(n), MaxMessages(n), MaxRounds(n).",
    )
