"""Each async verb does what the blocking one does: it returns the same, leaves the same behind, and raises the same."""

import inspect
import re
from contextlib import chdir
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from message_store import DictStore
from scripted_reader import reads

from memlayer_core import Chat, Memory, Message, WindowMemory, errors
from memlayer_core.chat import UserMemory
from memlayer_core.items.model import FindItems, PutItem
from memlayer_core.memory import Admin, Items
from memlayer_core.session_files import JsonSession, SessionManager
from tests.conftest import PROMPT, Colour

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

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def plain(names: str) -> dict[str, Call]:
    """Return calls without arguments."""
    return dict.fromkeys(names.split(), call())


ADA = call(user_id="ada")
PLUMS = Message("user", "And plums.", id="m3", created_at=MAY)
CALLS: dict[type, dict[str, Call]] = {
    Memory: {
        **plain("close users"),
        **dict.fromkeys(("ledger", "records", "sessions"), ADA),
        "export": call(Path("export.jsonl")),
        "flush": call(timeout=60),
        "forget": call("ada"),
        "import_from": call(["no export"]),
        "profile": call("ada"),
        "search": call("pears", user_id="ada"),
        "summarize": call(SAID, token_limit=100),
        "why": call("ada_mem_001", user_id="ada"),
    },
    Chat: {
        **plain("clear end save_state summary"),
        **dict.fromkeys(("delete_message", "reload", "reload_text"), call("m1")),
        "add": call("user", "And plums.", id="m3", created_at=MAY),
        "add_messages": call([PLUMS]),
        "add_temporary": call([Message("user", "Quick!")]),
        "context": call("What do I like?", token_limit=500),
        "edit": call("m1", "I moved to Kyoto."),
        "fork": call(session_id="other"),
        "history": call(limit=2),
        "load_state": call({"version": 1, "messages": []}),
        "recall": call("pears"),
        "remember": call("Ada likes plums.", key="fruit", value="plums", always=True),
        "rename": call("Moving"),
        "resync": call(SAID[:2]),
        "revise": call("ada_mem_001", "Ada lives in Kyoto."),
        "withdraw": call(["m2"]),
    },
    Items: {
        "batch": call([PutItem(("docs",), "a", {"text": "pears"}), FindItems(("docs",), query="plums")]),
        "declare_user_namespace": call(("notes", "{user_id}")),
        "forget": call(("docs",)),
        "sweep": call(),
    },
    Admin: plain("costs maintain reindex retry_dead status verify warm"),
    UserMemory: {"record": call(SAID[1:]), "retrieve": call("pears")},
    WindowMemory: {**plain("clear context history"), "add": call("user", "a"), "add_messages": call(SAID)},
    SessionManager: plain("load_if_exists save_session"),
}

WRONG: dict[str, Call] = {
    "Memory.search": call("pears", user_id=""),
    "Memory.records": call(user_id="ada", limit=0),
    "Memory.why": call("nobody", user_id="ada"),
    "Chat.add": call("nobody", "x"),
    "Chat.context": call(token_limit=0),
    "Chat.delete_message": call("m9"),
    "Chat.edit": call("m9", "x"),
    "Chat.load_state": call({}),
    "Chat.recall": call("pears", limit=0),
    "Chat.revise": call("nobody", "x"),
    "Items.batch": call([PutItem(("docs",), "a", "no object")]),
    "WindowMemory.add": call("nobody", "x"),
}
"""Calls that are refused."""

REFUSED = {("Memory", "summarize"), ("Memory", "import_from"), ("Chat", "reload"), ("Chat", "reload_text")}
"""What a store without a model, an export and a preview has no answer to."""

TWINS = {f"{kind.__name__}.{verb}": (kind, verb) for kind, calls in CALLS.items() for verb in calls}


def test_every_verb_with_an_async_twin_is_compared() -> None:
    for kind, calls in CALLS.items():
        public = [name for name in dir(kind) if not name.startswith("_")]
        verbs = {name for name in public if inspect.iscoroutinefunction(getattr(kind, f"a{name}", None))}
        assert verbs == set(calls), kind.__name__


def told(value: object) -> str:
    """Write a value without what differs from store to store."""
    if isinstance(value, list | tuple):
        value = [told(one) for one in value]
    is_bare = type(value).__repr__ is object.__repr__
    return CHANGES.sub("…", repr(vars(value)) if is_bare else repr(value))


def outcome_of(kind: type, verb: str, given: Call, folder: Path, *, awaits: bool) -> list[str]:
    """Return what a verb returns or raises in a store with three messages and a fact, and what the store has then."""
    args, kwargs = given
    folder.mkdir()
    opened = Memory.in_memory(embedder="hashing", settings=PROMPT, extractor=reads())
    with chdir(folder), opened as memory:
        chat = memory.chat(user_id="ada", session_id="monday")
        chat.add_messages(SAID)
        chat.remember("Ada lives in Tokyo.", key="home", value="Tokyo")
        memory.flush()
        window = WindowMemory(DictStore(), "monday")
        window.add_messages(SAID)
        files = SessionManager("monday").with_session(JsonSession(folder)).add_component(chat)
        made = memory, chat, memory.items(), memory.admin, UserMemory(chat), window, files
        owner = next(one for one in made if type(one) is kind)
        try:
            result = Colour(awaits=awaits)(owner, verb, *args, **kwargs)
        except errors.MemlayerError as problem:
            result = (type(problem), str(problem), problem.hint)
        left = [told(result), told(window.history()), told(sorted(path.name for path in folder.iterdir()))]
        if memory.closed:
            return left
        memory.flush()
        lines: list[str] = []
        memory.export(SimpleNamespace(write=lines.append, flush=lambda: None))
        return left + [CHANGES.sub("…", line) for line in lines]


@pytest.mark.parametrize(("kind", "verb"), TWINS.values(), ids=TWINS)
def test_an_async_verb_does_what_the_blocking_one_does(tmp_path, kind, verb) -> None:
    calls = [CALLS[kind][verb], *filter(None, [WRONG.get(f"{kind.__name__}.{verb}")])]
    for place, given in enumerate(calls):
        blocks, awaits = (tmp_path / f"{place} {way}" for way in ("blocks", "awaits"))
        one = outcome_of(kind, verb, given, blocks, awaits=False)
        other = outcome_of(kind, verb, given, awaits, awaits=True)
        assert one == other
        assert ("Error" in one[0]) == (place == 1 or (kind.__name__, verb) in REFUSED)
