"""Sessions as JSON files with the states of their components (a chat, an agent, anything with a state).

::

    manager = SessionManager.for_session_id("user123").with_session(JsonSession("sessions"))
    manager.add_component(agent).add_component(chat)
    manager.load_if_exists()
    ...
    manager.save_session()
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, Self
from urllib.parse import quote

from memlayer_core import errors
from memlayer_core.chat import Chat
from memlayer_core.memory import Memory
from memlayer_core.message import JSON
from memlayer_core.runtime import Asking, Threads, ask, async_drive, drive
from memlayer_core.scope import Scope
from memlayer_core.storage.files import write_whole
from memlayer_core.transfer.lines import components_of, session_text

_LONGEST_NAME = 200  # bytes of a file's name, below every file system's limit


class Component(Protocol):
    """An object with a state.

    Its name in the file is its `component_name` if it has one, or the name of its class. If it has `asave_state` and
    `aload_state`, too, the manager's async verbs await those.
    """

    def save_state(self) -> Mapping[str, JSON]:
        """Return its state as JSON."""

    def load_state(self, state: JSON, /) -> object:
        """Replace its state by this one."""


class JsonSession:
    """Session files. Each is written completely or not at all.

    Args:
        path: A directory for a file per session, or one file whose name ends with `.json`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()

    def file_of(self, session_id: str) -> Path:
        """Return the path of a session's file.

        Raises:
            InputError: The session id cannot be the name of a file.
        """
        if self.path.suffix == ".json" and not self.path.is_dir():
            return self.path
        name = quote(session_id, safe=" @+=,") + ".json"
        if len(name) > _LONGEST_NAME or name.startswith("."):
            raise errors.InputError(
                f"a session id cannot be the name of a file: {session_id!r:.80}",
                hint='Name the file: `JsonSession("session.json")`.',
            )
        return self.path / name

    def save(self, session_id: str, components: Mapping[str, JSON], now: datetime) -> None:
        """Write a session's file. It replaces the old one.

        Raises:
            InvalidStateError: A state is not JSON, or the existing file is not a readable file of this session; it
                stays as it is.
            StoreUnavailableError: It cannot be written.
        """
        text = session_text(session_id, components, now)
        self.load(session_id)  # raises if the existing file is not this session's
        write_whole(self.file_of(session_id), text)

    def load(self, session_id: str) -> dict[str, JSON] | None:
        """Return the states in a session's file, by the component's name; None if there is no file.

        Raises:
            InvalidStateError: The file is cut off, is not a session file, or is of another version or session.
            StoreUnavailableError: The file cannot be read.
        """
        file = self.file_of(session_id)
        what = f"the session file {str(file)!r}"
        hint = "Give a path that this process may read."
        with errors.os_errors_as(errors.StoreUnavailableError, f"{what} cannot be read", hint):
            text = file.read_bytes() if file.exists() else None
        return None if text is None else components_of(text, what, session_id)


class SessionManager:
    """Saves and loads the components of one session together. `for_session_id` makes it."""

    _drive, _threads = staticmethod(drive), Threads()

    def __init__(self, session_id: str) -> None:
        Scope.alone(session_id)  # checks the id
        self.session_id = session_id
        self._session: JsonSession | None = None
        self._components: dict[str, Component] = {}

    @classmethod
    def for_session_id(cls, session_id: str) -> Self:
        """Return a manager for the session of this id.

        Raises:
            InvalidScopeError: The id is empty or cannot be stored.
        """
        return cls(session_id)

    def with_session(self, session: JsonSession) -> Self:
        """Set the files that the session is saved in."""
        self._session = session
        return self

    def add_component(self, component: Component, name: str | None = None) -> Self:
        """Add an object with a state.

        Args:
            component: An object with `save_state` and `load_state`.
            name: Name of its state in the file; its `component_name` or the name of its class if left out.

        Raises:
            InputError: It has no such methods, or another component has that name.
        """
        has_both = all(callable(getattr(component, verb, None)) for verb in ("save_state", "load_state"))
        what = "an object with `save_state` and `load_state`"
        hint = "Add a chat, one of the adapters' memories, or an object with these two methods."
        errors.require(has_both, "component", what, component, hint, errors.InputError)
        called = name or getattr(component, "component_name", None) or type(component).__name__
        if called in self._components:
            raise errors.InputError(
                f"this session has a component {called!r} already",
                hint="Give it another name: `add_component(component, name=…)`.",
            )
        self._components[called] = component
        return self

    def save_session(self) -> None:
        """Write the states of all components into the session's file: all of them, or none.

        Raises:
            InputError: `with_session` was not called.
            InvalidStateError: A state is not JSON, or the existing file is not a readable file of this session.
            StoreUnavailableError: The file cannot be written.
        """
        return self._drive(self._save_session())

    asave_session = async_drive(save_session)
    """Do `save_session` without blocking the event loop."""

    def load_if_exists(self) -> bool:
        """Load the state of every component that the session's file contains. Other components stay as they are.

        Returns:
            Whether the file exists.

        Raises:
            InputError: `with_session` was not called.
            InvalidStateError: The file cannot be used, and nothing was loaded. Or a component's state cannot be used,
                and the components added after it were not loaded.
            StoreUnavailableError: The file cannot be read.
        """
        return self._drive(self._load_if_exists())

    aload_if_exists = async_drive(load_if_exists)
    """Do `load_if_exists` without blocking the event loop."""

    def _save_session(self) -> Asking[None]:
        session = self._file_store()
        states = {}
        for name, component in self._components.items():
            states[name] = yield ask(component.save_state, getattr(component, "asave_state", None))
        session.save(self.session_id, states, datetime.now(UTC))

    def _load_if_exists(self) -> Asking[bool]:
        states = self._file_store().load(self.session_id)
        if states is None:
            return False
        for name, component in self._components.items():
            if name in states:
                with errors.errors_as(errors.InvalidStateError, f"component {name!r}: "):
                    yield ask(component.load_state, getattr(component, "aload_state", None), states[name])
        return True

    def _file_store(self) -> JsonSession:
        if self._session is None:
            raise errors.InputError(
                "no session files were given", hint='Call `with_session(JsonSession("sessions"))` first.'
            )
        return self._session

    def __repr__(self) -> str:
        return f"SessionManager({self.session_id!r}, components={list(self._components)})"


class _HasChat(Protocol):
    @property
    def chat(self) -> Chat: ...


class ChatState:
    """Mixin: gives an object with a `chat` the state of that conversation."""

    def save_state(self: _HasChat) -> dict[str, JSON]:
        """Return the session as JSON: its messages, its title, and where its working memory begins."""
        return self.chat.save_state()

    async def asave_state(self: _HasChat) -> dict[str, JSON]:
        """Do `save_state` without blocking the event loop."""
        return await self.chat.asave_state()

    def load_state(self: _HasChat, state: Mapping[str, JSON]) -> None:
        """Replace the session by a saved state, in one transaction. Its messages before that are deleted.

        Raises:
            InvalidStateError: It is not a state, or a state of another version; nothing was changed.
        """
        self.chat.load_state(state)

    async def aload_state(self: _HasChat, state: Mapping[str, JSON]) -> None:
        """Do `load_state` without blocking the event loop."""
        await self.chat.aload_state(state)

    def set_memory(self: _HasChat, memory: Memory) -> None:
        """Continue in another memory, in the session of the same id. Messages stored so far stay where they are.

        Raises:
            ConfigurationError: `memory` is not a `Memory`.
            StoreClosedError: The memory is closed.
        """
        self.chat.set_memory(memory)

    @property
    def _threads(self: _HasChat) -> Threads:
        return self.chat.memory.runtime.threads
