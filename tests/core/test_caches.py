"""A process that serves many users does not grow without end: every cache has a bound."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import langchain_memlayer
import llamaindex_memlayer
import memlayer_core
from memlayer_core import Memory, Message, runtime as runtimes
from memlayer_core.models import embed

BY_COUNT = {"_visible_query", "_shared_query"}
"""Statements that are cached for each number of roles that a reader has."""

BY_LANGUAGE = {"_owners", "_stemmer", "stop_words"}
"""What is cached for each of the known languages."""

USERS = 25
_Cached = type(cache(str))


def cached_functions() -> Iterator[tuple[str, Any]]:
    for package in (memlayer_core, langchain_memlayer, llamaindex_memlayer):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            held = vars(importlib.import_module(module.name))
            yield from (
                (f"{module.name}.{name}", one) for name, one in held.items() if isinstance(one, _Cached)
            )


def test_every_cached_function_has_a_bound_or_no_arguments() -> None:
    found = dict(cached_functions())

    assert "memlayer_core.storage.terms.stem" in found, "the test sees the caches"
    endless = {
        name
        for name, one in found.items()
        if one.cache_info().maxsize is None
        and inspect.signature(one).parameters
        and name.rpartition(".")[2] not in BY_COUNT | BY_LANGUAGE
    }
    assert endless == set()


def test_what_many_users_leave_in_a_process_is_bounded(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "_SESSIONS", 5)
    monkeypatch.setattr(runtimes, "_RECALLS", 5)
    monkeypatch.setattr(runtimes, "_SHOWN", 5)
    monkeypatch.setattr(embed, "_QUESTIONS", 5)
    runtime = memory.runtime
    for number in range(USERS):
        chat = memory.chat(user_id=f"user-{number}", session_id="before")
        chat.add("user", f"I have {number} pears and a boat.")
    memory.flush()
    for number in range(USERS):
        chat = memory.chat(user_id=f"user-{number}", session_id="now")
        chat.add("user", f"How many pears do I have, {number}? <recalled_memory>")
        chat.add_temporary(Message("user", "Be brief."))
        assert chat.context().recall

    held = runtime.temporaries
    assert 0 < len(held._recalls) <= 5
    assert 0 < len(held._waiting) <= 5
    assert 0 < len(held._shown) <= 5
    assert 0 < len(runtime.embedder._known) <= 5
