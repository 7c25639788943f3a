"""Holds what a process must remember of its contexts: temporary messages, the last recalls, and texts that it added."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from memlayer_core.message import StoredMessage
from memlayer_core.scope import Scope

__all__ = ["Temporaries"]

_SESSIONS = (
    10_000  # sessions that may wait for a model's answer; beyond it, the one that waits longest is dropped
)
_RECALLS = 1_000  # recalls that are kept; beyond it, what was recalled the longest ago is recalled anew
_GIVEN = 50_000  # texts that contexts added to messages; beyond it, the oldest are not recognised any more


class Temporaries:
    """Temporary messages by session, and what contexts added to messages. Safe to use from any thread."""

    def __init__(self) -> None:
        self._given: OrderedDict[bytes, None] = OrderedDict()
        self._lines: OrderedDict[bytes, int] = OrderedDict()
        self._recalls: OrderedDict[tuple[str, str], tuple[Scope, Any]] = OrderedDict()
        self._waiting: OrderedDict[str, list[tuple[StoredMessage, bool]]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, message: StoredMessage) -> list[StoredMessage]:
        """Hold a message until a model has answered. Returns the messages of a session that is dropped for it."""
        with self._lock:
            lane = message.scope.session_lane
            self._waiting.setdefault(lane, []).append((message, False))
            self._waiting.move_to_end(lane)
            if len(self._waiting) <= _SESSIONS:
                return []
            _, given_up = self._waiting.popitem(last=False)
            return [waiting for waiting, _ in given_up]

    def show(self, scope: Scope) -> list[StoredMessage]:
        """Return a session's messages, and note that a model sees them: its answer ends them."""
        with self._lock:
            waiting = [message for message, _ in self._waiting.get(scope.session_lane, ())]
            if waiting:
                self._waiting[scope.session_lane] = [(message, True) for message in waiting]
            return waiting

    def note_texts(self, scope: Scope, pairs: Iterable[tuple[str, str]]) -> None:
        """Note texts that a context put in front of messages' texts. Only digests are stored."""
        named = [_pair(scope, ours, theirs) for ours, theirs in pairs]
        with self._lock:
            for one in named:
                self._given[one] = None
                self._given.move_to_end(one)
            while len(self._given) > _GIVEN:
                self._given.popitem(last=False)

    def is_ours(self, scope: Scope, ours: str, theirs: str) -> bool:
        """Return whether a context of this user put the text `ours` in front of a message's text `theirs`."""
        return _pair(scope, ours, theirs) in self._given

    def note_lines(self, scope: Scope, lines: Iterable[tuple[str, int]]) -> None:
        """Note lines that a user's model was told, each with the key of the message or record that it quotes; 0: not known.

        Only digests are stored, and only in this process.
        """
        named = [(_pair(scope, line, ""), key) for line, key in lines]
        with self._lock:
            for one, key in named:
                self._lines[one] = key or self._lines.get(one, 0)
                self._lines.move_to_end(one)
            while len(self._lines) > _GIVEN:
                self._lines.popitem(last=False)

    def source_of(self, scope: Scope, line: str) -> int | None:
        """Return the key of what a line quotes; 0: not known; None: no model of this user was told this line."""
        return self._lines.get(_pair(scope, line, ""))

    def keep_recall(self, scope: Scope, kind: str, recall: Any) -> None:
        """Keep what was recalled for a session's newest question, in place of what was kept before.

        Who tells it again checks first that all that it quotes may still be told.
        """
        with self._lock:
            self._recalls[scope.session_lane, kind] = scope, recall
            self._recalls.move_to_end((scope.session_lane, kind))
            if len(self._recalls) > _RECALLS:
                self._recalls.popitem(last=False)

    def recall_of(self, scope: Scope, kind: str) -> Any:
        """Return what was recalled for a session's newest question; None if that is not kept."""
        return self._recalls.get((scope.session_lane, kind), (scope, None))[1]

    def finish_call(self, scope: Scope) -> None:
        """Drop the messages that the model has seen, since its call succeeded."""
        with self._lock:
            left = [one for one in self._waiting.pop(scope.session_lane, ()) if not one[1]]
            if left:
                self._waiting[scope.session_lane] = left

    def clear(self, scope: Scope) -> int:
        """Drop all messages of a session, and its recall. Returns how many messages there were."""
        with self._lock:
            self._drop_recalls(scope.__eq__)
            return len(self._waiting.pop(scope.session_lane, ()))

    def forget(self, reach: Scope) -> None:
        """Drop all of a scope: of a user, of a user with one agent, or of a session."""

        def is_within(scope: Scope) -> bool:
            within = reach.agent_id in {None, scope.agent_id} and reach.session_id in {None, scope.session_id}
            return within and scope.namespace == reach.namespace

        with self._lock:
            self._drop_recalls(is_within)
            for lane, waiting in list(self._waiting.items()):
                if is_within(waiting[0][0].scope):
                    del self._waiting[lane]

    def _drop_recalls(self, is_within: Callable[[Scope], bool]) -> None:
        for key, (scope, _) in list(self._recalls.items()):
            if is_within(scope):
                del self._recalls[key]


def _pair(scope: Scope, ours: str, theirs: str) -> bytes:
    named = f"{scope.namespace}:{len(ours)}:{ours}{theirs}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=16).digest()
