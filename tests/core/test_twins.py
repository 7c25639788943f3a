"""Each async verb does what the blocking one does: it returns the same, leaves the same behind, and raises the same."""

from __future__ import annotations

import asyncio
import inspect
import re
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from message_store import DictStore
from scripted_reader import reads

from memlayer_core import Chat, Memory, Message, WindowMemory
from memlayer_core.chat import UserMemory
from memlayer_core.errors import MemlayerError
from memlayer_core.items.model import FindItems, PutItem
from memlayer_core.memory import Admin, Items
from memlayer_core.session_files import JsonSession, SessionManager, Transcripts
from tests.conftest import OURS, PROMPT

MAY = datetime(2026, 5, 1, tzinfo=UTC)
SAID = [
    Message("system", "Be brief.", id="m0", created_at=MAY),
    Message("user", "I moved to Tokyo and like pears.", id="m1", created_at=MAY),
    Message("assistant", "Noted.", id="m2", created_at=MAY),
]
CHANGES = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:[\d.]+)?(\+00:00|Z)?"
    r"|datetime\([^)]*\)|\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b|tokens=\d+"
)
"""What differs from store to store: ids that it makes, the present, keys of signed blocks and what they cost."""

CALLS: dict[type, dict[str, tuple[tuple[Any, ...], dict[str, Any]]]] = {
    Memory: {
        "close": ((), {}),
        "export": ((Path("export.jsonl"),), {}),
        "flush": ((), {"timeout": 60}),
        "forget": (("ada",), {}),
        "import_from": ((["no export"],), {}),
        "ledger": ((), {"user_id": "ada"}),
        "profile": (("ada",), {}),
        "records": ((), {"user_id": "ada"}),
        "search": (("pears",), {"user_id": "ada"}),
        "sessions": ((), {"user_id": "ada"}),
        "summarize": ((SAID,), {"token_limit": 100}),
        "users": ((), {}),
        "why": (("ada_mem_001",), {"user_id": "ada"}),
    },
    Chat: {
        "add": (("user", "And plums."), {"id": "m3", "created_at": MAY}),
        "add_messages": (([Message("user", "And plums.", id="m3", created_at=MAY)],), {}),
        "add_temporary": (([Message("user", "Quick!")],), {}),
        "clear": ((), {}),
        "context": (("What do I like?",), {"token_limit": 500}),
        "delete_message": (("m1",), {}),
        "edit": (("m1", "I moved to Kyoto."), {}),
        "end": ((), {}),
        "fork": ((), {"session_id": "other"}),
        "history": ((), {"limit": 2}),
        "load_state": (({"version": 1, "messages": []},), {}),
        "recall": (("pears",), {}),
        "reload": (("m1",), {}),
        "reload_text": (("m1",), {}),
        "remember": (("Ada likes plums.",), {"key": "fruit", "value": "plums", "always": True}),
        "rename": (("Moving",), {}),
        "resync": ((SAID[:2],), {}),
        "revise": (("ada_mem_001", "Ada lives in Kyoto."), {}),
        "save_state": ((), {}),
        "summary": ((), {}),
        "withdraw": ((["m2"],), {}),
    },
    Items: {
        "batch": (([PutItem(("docs",), "a", {"text": "pears"}), FindItems(("docs",), query="plums")],), {}),
        "declare_user_namespace": ((("notes", "{user_id}"),), {}),
        "forget": ((("docs",),), {}),
        "of_user": (("ada",), {}),
        "sweep": ((), {}),
    },
    Admin: {
        name: ((), {}) for name in ("costs", "maintain", "reindex", "retry_dead", "status", "verify", "warm")
    },
    UserMemory: {"record": ((SAID[1:],), {}), "retrieve": (("pears",), {})},
    WindowMemory: {
        "add": (("user", "And plums."), {"id": "m3"}),
        "add_messages": ((SAID,), {}),
        "clear": ((), {}),
        "context": ((), {}),
        "history": ((), {}),
    },
    SessionManager: {"load_if_exists": ((), {}), "save_session": ((), {})},
    Transcripts: {
        "add": (("list", SAID[1:]), {}),
        "archive": (("monday", 1), {}),
        "count": (("monday",), {}),
        "insert": (("monday", 0, [Message("user", "First.", id="m9", created_at=MAY)]), {}),
        "keys": ((), {}),
        "messages": (("monday",), {}),
        "set": (("monday", SAID[1:2]), {}),
        "take": (("monday",), {}),
    },
}

WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Memory.search": (("pears",), {"user_id": ""}),
    "Memory.records": ((), {"user_id": "ada", "limit": 0}),
    "Memory.why": (("nobody",), {"user_id": "ada"}),
    "Chat.add": (("nobody", "x"), {}),
    "Chat.context": ((), {"token_limit": 0}),
    "Chat.delete_message": (("m9",), {}),
    "Chat.edit": (("m9", "x"), {}),
    "Chat.load_state": (({},), {}),
    "Chat.recall": (("pears",), {"limit": 0}),
    "Chat.revise": (("nobody", "x"), {}),
    "Items.batch": (([PutItem(("docs",), "a", "no object")],), {}),
    "WindowMemory.add": (("nobody", "x"), {}),
    "Transcripts.insert": (("monday", "first", SAID), {}),
}
"""Calls that are refused."""

REFUSED = {("Memory", "summarize"), ("Memory", "import_from"), ("Chat", "reload"), ("Chat", "reload_text")}
"""What a store without a model, an export and a preview has no answer to."""

TWINS = [
    pytest.param(kind, verb, id=f"{kind.__name__}.{verb}") for kind, calls in CALLS.items() for verb in calls
]


def test_every_verb_with_an_async_twin_is_compared() -> None:
    for kind, calls in CALLS.items():
        verbs = {
            name
            for name in dir(kind)
            if not name.startswith("_") and inspect.iscoroutinefunction(getattr(kind, f"a{name}", None))
        }
        assert verbs == set(calls), kind.__name__


def told(value: object) -> str:
    """Write a value without what differs from store to store."""
    if isinstance(value, list | tuple):
        value = [told(one) for one in value]
    return CHANGES.sub(
        "…", value.__dict__.__repr__() if type(value).__repr__ is object.__repr__ else repr(value)
    )


def outcome_of(
    kind: type, verb: str, call: Any, folder: Path, monkeypatch: Any, *, awaits: bool
) -> list[str]:
    """Return what a verb returns or raises in a store with three messages and a fact, and what the store has then."""
    args, kwargs = call
    folder.mkdir()
    monkeypatch.chdir(folder)
    with ExitStack() as stack:
        memory = stack.enter_context(Memory.in_memory(embedder="hashing", settings=PROMPT, extractor=reads()))
        chat = memory.chat(user_id="ada", session_id="monday")
        chat.add_messages(SAID)
        chat.remember("Ada lives in Tokyo.", key="home", value="Tokyo")
        memory.flush()
        window = WindowMemory(DictStore(), "monday")
        window.add_messages(SAID)
        files = SessionManager("monday").with_session(JsonSession(folder)).add_component(chat)
        made = {
            Memory: memory,
            Chat: chat,
            Items: memory.items(),
            Admin: memory.admin,
            UserMemory: UserMemory(chat),
            WindowMemory: window,
            SessionManager: files,
            Transcripts: Transcripts(memory, user_id="ada"),
        }[kind]
        try:
            if awaits:
                with blockbuster_ctx(OURS):
                    result = asyncio.run(getattr(made, f"a{verb}")(*args, **kwargs))
            else:
                result = getattr(made, verb)(*args, **kwargs)
        except MemlayerError as problem:
            result = (type(problem), str(problem), problem.hint)
        left = [told(result), told(window.history()), told(sorted(path.name for path in folder.iterdir()))]
        if memory.closed:
            return left
        memory.flush()
        lines: list[str] = []
        memory.export(Lines(lines))
        return left + [CHANGES.sub("…", line) for line in lines]


class Lines:
    """A text file that is a list."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)

    def flush(self) -> None: ...


@pytest.mark.parametrize(("kind", "verb"), TWINS)
def test_an_async_verb_does_what_the_blocking_one_does(tmp_path, monkeypatch, kind, verb) -> None:
    calls = [CALLS[kind][verb], *filter(None, [WRONG.get(f"{kind.__name__}.{verb}")])]
    for place, call in enumerate(calls):
        one, other = (
            outcome_of(kind, verb, call, tmp_path / f"{place}{awaits}", monkeypatch, awaits=awaits)
            for awaits in (False, True)
        )
        assert one == other
        assert ("Error" in one[0]) == (place == 1 or (kind.__name__, verb) in REFUSED)
