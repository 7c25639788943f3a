"""A process that serves many users does not grow without end: every cache has a bound."""

import importlib
import inspect
import pkgutil
from functools import cache

import langchain_memlayer
import llamaindex_memlayer
import memlayer_core
from memlayer_core import Message, runtime as runtimes
from memlayer_core.models import embed
from memlayer_core.storage import terms
from tests.conftest import PROMPT

BY_COUNT = {"_visible_query", "_shared_query", "_change_query"}
"""Statements that are cached for each number of roles that a reader has."""

BY_LANGUAGE = {"_owners", "_stemmer", "stop_words"}
"""What is cached for each of the known languages."""

USERS = 25


def test_every_cached_function_has_a_bound_or_no_arguments() -> None:
    packages = (memlayer_core, langchain_memlayer, llamaindex_memlayer)
    modules = [
        importlib.import_module(module.name)
        for package in packages
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ]
    held = [(name, one) for module in modules for name, one in vars(module).items()]
    found = [(name, one) for name, one in held if isinstance(one, type(cache(str)))]
    assert ("stem", terms.stem) in found, "the test sees the caches"
    without_bound = [(name, one) for name, one in found if one.cache_info().maxsize is None]
    endless = {name for name, one in without_bound if inspect.signature(one).parameters}
    assert endless <= BY_COUNT | BY_LANGUAGE


def test_what_many_users_leave_in_a_process_is_bounded(open_at, monkeypatch):
    for name in ("_SESSIONS", "_RECALLS", "_SHOWN"):
        monkeypatch.setattr(runtimes, name, 5)
    monkeypatch.setattr(embed, "_QUESTIONS", 5)
    memory = open_at(settings=PROMPT.replace(vector_cache_bytes=50_000))
    for number in range(USERS):
        chat = memory.chat(user_id=f"user-{number}", session_id="before")
        chat.add("user", f"I have {number} pears and a boat.")
    memory.flush()
    for number in range(USERS):
        chat = memory.chat(user_id=f"user-{number}", session_id="now")
        chat.add("user", f"How many pears do I have, {number}? <recalled_memory>")
        chat.add_temporary(Message("user", "Be brief."))
        assert chat.context().recall

    held = memory.runtime.temporaries
    for cached in (held._recalls, held._waiting, held._shown, memory.runtime.questions):
        assert 0 < len(cached) <= 5
    assert 0 < memory.runtime.vectors.bytes <= 50_000
