"""Scope: tenant, user, agent and session. Every read and every write has one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self, TypeAlias

from memlayer_core.errors import InvalidScopeError, require_text

ALONE = "memlayer:session:"
"""Prefix of the user id of a session without a user; the session's id follows."""


@lru_cache(maxsize=4096)
def _digest(*parts: str | None) -> str:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).hexdigest()


class _Place:
    """What texts belong to: it names the tokens that they are filed under."""

    __slots__ = ()

    @property
    def namespace(self) -> str:
        """The place as 32 hexadecimal digits."""
        raise NotImplementedError

    @property
    def bucket(self) -> str:
        """The token that an index searches by: of the session, else the agent, else the user."""
        return self.session_bucket or self.agent_bucket or self.user_bucket

    @property
    def user_bucket(self) -> str:
        """The token that everything of this user, tenant or folder is filed under."""
        return "u" + self.namespace

    @property
    def agent_bucket(self) -> str:
        """The token that everything here with this agent is filed under; empty: no agent is named."""
        return ""

    @property
    def session_bucket(self) -> str:
        """The token that everything of this session is filed under; empty: no session is named."""
        return ""


@dataclass(frozen=True)  # without slots, for what is made of it once
class Scope(_Place):
    """A tenant's user, with the agent and the session if they are named.

    An id may be any string with a visible character and without NUL. Backends see digests, so its length does not matter. Without
    `agent_id`, a read reaches the user's sessions with all agents; with it, with that agent only.

    Raises:
        InvalidScopeError: An id is empty, is not a string, or cannot be stored.
    """

    user_id: str
    session_id: str | None = None
    agent_id: str | None = None
    tenant_id: str = "default"

    def __post_init__(self) -> None:
        for name in ("tenant_id", "user_id", "agent_id", "session_id"):
            value = getattr(self, name)
            if value is not None or name in {"tenant_id", "user_id"}:
                require_text(name, value, InvalidScopeError)
        if self.user_id.startswith(ALONE) and self.user_id != ALONE + (self.session_id or ""):
            raise InvalidScopeError(
                f"`user_id` may not begin with {ALONE!r}: sessions without a user are stored under it",
                hint="Choose another user id.",
            )

    @classmethod
    def alone(cls, session_id: str, *, tenant_id: str = "default", agent_id: str | None = None) -> Scope:
        """Return the scope of a session without a user. Recall never connects it with other sessions."""
        require_text("session_id", session_id, InvalidScopeError)
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
        """Return the scope of a session; if no user is named, of a session without a user."""
        alone = cls.alone(session_id, tenant_id=tenant_id, agent_id=agent_id)
        return alone if user_id is None else replace(alone, user_id=user_id)

    @classmethod
    def of_user(cls, user_id: str, *, tenant_id: str = "default", agent_id: str | None = None) -> Scope:
        """Return the scope of a user. The user id of a session without a user gives that session's scope."""
        alone = isinstance(user_id, str) and user_id.startswith(ALONE)
        return cls(user_id, user_id.removeprefix(ALONE) if alone else None, agent_id, tenant_id)

    @classmethod
    def of_search(
        cls, *, user_id: str | None, session_id: str | None, tenant_id: str, agent_id: str | None
    ) -> Scope:
        """Return the scope of a search: a user's, or that of one session.

        Raises:
            InvalidScopeError: Neither a user nor a session is named, or an id cannot be stored.
        """
        if session_id is not None:
            return cls.of_session(session_id, user_id=user_id, tenant_id=tenant_id, agent_id=agent_id)
        if user_id is None:
            raise InvalidScopeError(
                "neither a user nor a session is named, so there is nothing to search",
                hint="Pass `user_id=…`, or the `session_id=…` of a session that stands alone.",
            )
        return cls(user_id, None, agent_id, tenant_id)

    @cached_property
    def namespace(self) -> str:
        """The tenant's user as 32 hexadecimal digits. Recall never leaves it."""
        return _digest(self.tenant_id, self.user_id)

    @property
    def agent_bucket(self) -> str:
        """The token that everything of this user with this agent is filed under; empty: no agent is named."""
        if self.agent_id is None:
            return ""
        return "a" + _digest(self.tenant_id, self.user_id, self.agent_id)

    @property
    def session_bucket(self) -> str:
        """The token that everything of this session is filed under: the session's key. Empty: no session is named."""
        if self.session_id is None:
            return ""
        return "s" + _digest(self.tenant_id, self.user_id, self.agent_id, self.session_id)

    @property
    def commons(self) -> SharedScope:
        """Scope of the records that users of the tenant share, with this scope's agent if it names one."""
        return SharedScope(self.tenant_id, self.agent_id)

    def other_session(self, session_id: str) -> Scope:
        """Return the scope of another session of the same user, or without a user if this one has none."""
        if self.user_id.startswith(ALONE):
            return Scope.alone(session_id, tenant_id=self.tenant_id, agent_id=self.agent_id)
        return replace(self, session_id=session_id)

    def reach(self) -> Scope:
        """Return the scope that recall for this session searches.

        That is all sessions of the user (and agent), or only this session if it has no user.
        """
        return self if self.user_id.startswith(ALONE) else replace(self, session_id=None)


@dataclass(frozen=True, slots=True)
class SharedScope(_Place):
    """Records that users of one tenant share, with one agent or with all. They have their own namespace.

    A user who finds a record here may not always see it: the record's access decides.
    """

    tenant_id: str
    agent_id: str | None = None
    session_id: None = None

    @property
    def namespace(self) -> str:
        """The tenant as 32 hexadecimal digits, different from every user's."""
        return _digest(self.tenant_id)

    @property
    def agent_bucket(self) -> str:
        """The token that everything shared in the tenant with this agent is filed under; empty: no agent is named."""
        if self.agent_id is None:
            return ""
        return "a" + _digest(self.tenant_id, "memlayer:commons", self.agent_id, None, None)


@lru_cache(maxsize=4096)
def _folder_digest(tenant_id: str, labels: tuple[str, ...]) -> str:
    # A scope has texts only. The object makes this JSON different, so no user and no folder share a namespace.
    written = json.dumps([tenant_id, {"folder": labels}], separators=(",", ":")).encode()
    return hashlib.blake2b(written, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Folder(_Place):
    """A place for items of a tenant, named by labels from the outermost on. No labels: the tenant's root.

    A label may have any characters, and cannot reach into another folder or tenant.
    """

    tenant_id: str
    labels: tuple[str, ...] = ()
    agent_id: None = None
    session_id: None = None

    @property
    def namespace(self) -> str:
        """The folder as 32 hexadecimal digits, equal to no user's."""
        return _folder_digest(self.tenant_id, self.labels)

    @property
    def path(self) -> str:
        """Tenant and labels, each with a slash behind it, escaped as in a JSON pointer."""
        names = (name.replace("~", "~0").replace("/", "~1") for name in (self.tenant_id, *self.labels))
        return "".join(f"{name}/" for name in names)

    @classmethod
    def at(cls, path: str) -> Self:
        """Return the folder that has this path."""
        tenant_id, *labels = (name.replace("~1", "/").replace("~0", "~") for name in path.split("/")[:-1])
        return cls(tenant_id, tuple(labels))


Reach: TypeAlias = Scope | SharedScope | Folder
"""What a search reaches."""
