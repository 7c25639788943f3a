"""Temporary messages: told to a model once, and kept by nobody. They live in the process that adds them."""

from __future__ import annotations

import threading
from collections import OrderedDict

from memlayer_core.records.message import Beside, Stored
from memlayer_core.records.scope import Scope

__all__ = ["Temporaries"]

_SESSIONS = 10_000  # that may wait for a model's answer at once; the one that waits longest is given up


class Temporaries:
    """Messages that wait for a model's next answer, by session. Safe to use from any thread."""

    def __init__(self) -> None:
        self._recalled: OrderedDict[str, Beside] = OrderedDict()
        self._waiting: OrderedDict[str, list[tuple[Stored, bool]]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, message: Stored) -> list[Stored]:
        """Keep a message until a model has answered to it. Returns those given up for it, of one session."""
        with self._lock:
            lane = message.scope.session_lane
            self._waiting.setdefault(lane, []).append((message, False))
            self._waiting.move_to_end(lane)
            if len(self._waiting) <= _SESSIONS:
                return []
            _, given_up = self._waiting.popitem(last=False)
            return [waiting for waiting, _ in given_up]

    def show(self, scope: Scope) -> list[Stored]:
        """Return a session's messages, and remember that they were shown: the next answer ends them."""
        with self._lock:
            waiting = [message for message, _ in self._waiting.get(scope.session_lane, ())]
            if waiting:
                self._waiting[scope.session_lane] = [(message, True) for message in waiting]
            return waiting

    def recalled(self, scope: Scope, beside: Beside | None) -> None:
        """Remember what was recalled for the question that is being answered, until it is."""
        with self._lock:
            self._recalled.pop(scope.session_lane, None)
            if beside is not None:
                self._recalled[scope.session_lane] = beside
            if len(self._recalled) > _SESSIONS:
                self._recalled.popitem(last=False)  # it will be recalled anew

    def standing(self, scope: Scope) -> Beside | None:
        """Return what was recalled for the question that is being answered."""
        return self._recalled.get(scope.session_lane)

    def answered(self, scope: Scope) -> None:
        """Let go of what was shown: the model's call has succeeded."""
        with self._lock:
            self._recalled.pop(scope.session_lane, None)
            left = [one for one in self._waiting.pop(scope.session_lane, ()) if not one[1]]
            if left:
                self._waiting[scope.session_lane] = left

    def clear(self, scope: Scope) -> int:
        """Let go of all of a session. Returns how many there were."""
        with self._lock:
            self._recalled.pop(scope.session_lane, None)
            return len(self._waiting.pop(scope.session_lane, ()))

    def forget(self, reach: Scope) -> None:
        """Let go of all within reach: of a user, of a user with one agent, or of a session."""

        def reached(scope: Scope) -> bool:
            within = reach.agent_id in {None, scope.agent_id} and reach.session_id in {None, scope.session_id}
            return within and scope.namespace == reach.namespace

        with self._lock:
            for lane, waiting in list(self._waiting.items()):
                if reached(waiting[0][0].scope):
                    del self._waiting[lane]
