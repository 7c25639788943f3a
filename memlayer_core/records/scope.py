"""Whose memory it is: an argument of every read and write."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache

from memlayer_core.errors import InvalidScopeError

__all__ = ["ALONE", "Commons", "Scope"]

ALONE = "memlayer:session:"
"""What the user of a session without one is called, in front of the session's id."""


@lru_cache(maxsize=4096)
def _digest(*parts: str | None) -> str:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).hexdigest()


def _check(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidScopeError(
            f"`{name}` must be a string, got {value!r}",
            hint=f"Pass `{name}` as a non-empty string, for example `{name}=str(...)`.",
        )
    if not value or "\0" in value:
        raise InvalidScopeError(
            f"`{name}` must be a non-empty string without NUL characters, got {value!r}",
            hint=f"Every read and write names whose memory it is: pass a real `{name}`.",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidScopeError(
            f"`{name}` holds a lone surrogate, which no database can store: {value!r}",
            hint="Decode the id with the right codec, or replace its broken characters.",
        ) from None


@dataclass(frozen=True, slots=True)
class Scope:
    """A tenant's user, and when given the agent and the session.

    Any non-empty string without NUL is an id; backends see digests, so no id is too long or too strange.
    Without `agent_id`, a read reaches what all agents heard from this user; with it, that agent alone.

    Raises:
        InvalidScopeError: An id is empty, no string, or cannot be stored.
    """

    user_id: str
    session_id: str | None = None
    agent_id: str | None = None
    tenant_id: str = "default"

    def __post_init__(self) -> None:
        _check("tenant_id", self.tenant_id)
        _check("user_id", self.user_id)
        if self.agent_id is not None:
            _check("agent_id", self.agent_id)
        if self.session_id is not None:
            _check("session_id", self.session_id)
        if self.user_id.startswith(ALONE) and self.user_id != ALONE + (self.session_id or ""):
            raise InvalidScopeError(
                f"`user_id` may not begin with {ALONE!r}: sessions without a user are kept there",
                hint="Choose another user id.",
            )

    @classmethod
    def alone(cls, session_id: str, *, tenant_id: str = "default", agent_id: str | None = None) -> Scope:
        """Return the scope of a session without a user: nothing is recalled from or into other sessions."""
        _check("session_id", session_id)
        return cls(ALONE + session_id, session_id, agent_id, tenant_id)

    @classmethod
    def of_session(
        cls,
        session_id: str,
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
    ) -> Scope:
        """Return the scope of a session, which stands alone if no user is named."""
        alone = cls.alone(session_id, tenant_id=tenant_id, agent_id=agent_id)
        return alone if user_id is None else replace(alone, user_id=user_id)

    @classmethod
    def of_user(cls, user_id: str, *, tenant_id: str = "default", agent_id: str | None = None) -> Scope:
        """Return all that belongs to a user, or to the session that stands alone under that id."""
        alone = isinstance(user_id, str) and user_id.startswith(ALONE)
        return cls(user_id, user_id.removeprefix(ALONE) if alone else None, agent_id, tenant_id)

    @property
    def namespace(self) -> str:
        """The tenant's user as 32 hexadecimal digits: what recall never leaves."""
        return _digest(self.tenant_id, self.user_id)

    @property
    def lane(self) -> str:
        """The narrowest of user, agent and session that this scope names, as a token for an index."""
        if self.session_id is not None:
            return self.session_lane
        return self.agent_lane if self.agent_id is not None else self.user_lane

    @property
    def user_lane(self) -> str:
        """The token that everything of this user is filed under."""
        return "u" + self.namespace

    @property
    def agent_lane(self) -> str:
        """The token that everything of this user with this agent is filed under."""
        return "a" + _digest(self.tenant_id, self.user_id, self.agent_id)

    @property
    def session_lane(self) -> str:
        """The token that everything of this session is filed under: also the session's key."""
        return "s" + _digest(self.tenant_id, self.user_id, self.agent_id, self.session_id)

    @property
    def commons(self) -> Commons:
        """What users of the tenant share, as far as this scope's agent is concerned."""
        return Commons(self.tenant_id, self.agent_id)

    def beside(self, session_id: str) -> Scope:
        """Return another session of the same user; beside one that stands alone, another that does."""
        if self.user_id.startswith(ALONE):
            return Scope.alone(session_id, tenant_id=self.tenant_id, agent_id=self.agent_id)
        return replace(self, session_id=session_id)

    def reach(self) -> Scope:
        """Return the scope that recall for this session looks through.

        That is all sessions of the user (and agent), or this session where it stands alone.
        """
        return self if self.user_id.startswith(ALONE) else replace(self, session_id=None)


@dataclass(frozen=True, slots=True)
class Commons:
    """What users of one tenant share, with one agent or with any: filed apart from every user's own.

    Finding something here allows nobody to see it: a record's own access decides.
    """

    tenant_id: str
    agent_id: str | None = None
    session_id: None = None

    @property
    def namespace(self) -> str:
        """The tenant as 32 hexadecimal digits, equal to no user's."""
        return _digest(self.tenant_id)

    @property
    def lane(self) -> str:
        """The narrower of tenant and agent, as a token for an index."""
        return self.agent_lane if self.agent_id is not None else self.user_lane

    @property
    def user_lane(self) -> str:
        """The token that everything shared in the tenant is filed under."""
        return "u" + self.namespace

    @property
    def agent_lane(self) -> str:
        """The token that everything shared in the tenant with this agent is filed under."""
        return "a" + _digest(self.tenant_id, "memlayer:commons", self.agent_id, None, None)

    @property
    def session_lane(self) -> str:
        """The token in the place of a session's: nothing that is shared belongs to one."""
        return "s" + _digest(self.tenant_id, "memlayer:commons", self.agent_id, None, None)
