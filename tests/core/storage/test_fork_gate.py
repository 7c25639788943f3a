"""The gate that keeps threads out of SQLite while the process forks."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from memlayer_core.storage import connections


def elsewhere(work: Callable[[], object]) -> bool:
    """Do something in another thread; tell whether it ended."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


def test_a_fork_beside_a_long_one_opens_no_gate_and_locks_none_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 0.1)
    gate = connections._Gate()
    gate.begin_fork()
    assert elsewhere(lambda: (gate.begin_fork(), gate.end_fork())), "it waits no longer than its patience"
    entered = threading.Event()
    waiting = threading.Thread(target=lambda: (gate.enter(), entered.set()), daemon=True)
    waiting.start()
    assert not entered.wait(0.2), "the first fork goes on"
    gate.end_fork()
    assert entered.wait(5)


def test_a_fork_waits_for_another_thread_inside_and_not_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 60)
    gate = connections._Gate()
    gate.enter()
    gate.begin_fork()  # of the thread that was interrupted before it left
    gate.end_fork()
    forking = threading.Thread(target=gate.begin_fork, daemon=True)
    forking.start()
    forking.join(0.1)
    assert forking.is_alive()
    gate.leave()
    forking.join(5)
    assert not forking.is_alive()
