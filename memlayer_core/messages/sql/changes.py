"""What follows from a change of messages. Rooms above register it, and it happens in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from memlayer_core.scope import Scope

__all__ = ["Change", "Follower", "follow", "register", "session_deleted", "session_ended"]


@dataclass(frozen=True, slots=True)
class Change:
    """Messages of a session that leave, get other words, or move.

    Attributes:
        scope: The session.
        session: The session's number.
        keys: Keys of the messages.
        now: The present.
        places: New places of messages by their old places, if they move.
    """

    scope: Scope
    session: int
    keys: Sequence[int]
    now: datetime
    places: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Follower:
    """What a room does when messages change.

    Attributes:
        change: Returns a context manager. The messages change inside of it.
        delete: Called with the number of a session that is deleted, and the present.
        end: Called with the row of a session that ends, the messages that an episode needs, and the place
            where the ended part stops (None: at its last message).
    """

    change: Callable[[Connection, Change], AbstractContextManager[None]]
    delete: Callable[[Connection, int, datetime], None]
    end: Callable[[Connection, Any, int, int | None], None] | None = None


_FOLLOWERS: list[Follower] = []


def register(follower: Follower) -> None:
    """Add a follower, for every store of this process."""
    _FOLLOWERS.append(follower)


@contextmanager
def follow(connection: Connection, change: Change) -> Iterator[None]:
    """Change messages inside of this context. Everything that rests on them follows."""
    with ExitStack() as stack:
        for follower in _FOLLOWERS:
            stack.enter_context(follower.change(connection, change))
        yield


def session_deleted(connection: Connection, number: int, now: datetime) -> None:
    """Delete what rests on a session."""
    for follower in _FOLLOWERS:
        follower.delete(connection, number, now)


def session_ended(
    connection: Connection, row: Any, min_messages: int | None, until: int | None = None
) -> None:
    """Owe what is written about an ended part of a session; without `min_messages`, nothing."""
    for follower in _FOLLOWERS:
        if follower.end is not None and min_messages is not None:
            follower.end(connection, row, min_messages, until)
