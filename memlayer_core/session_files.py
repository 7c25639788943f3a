"""Keeps the state of a session's components (a chat, an agent, whatever has a state) in a JSON file.

::

    manager = SessionManager.for_session_id("user123").with_session(JsonSession("sessions"))
    manager.add_component(agent).add_component(chat)
    manager.load_if_exists()
    ...
    manager.save_session()
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import quote

from memlayer_core.drive import Drive, both
from memlayer_core.errors import InputError, InvalidStateError, StoreUnavailableError
from memlayer_core.records.scope import Scope
from memlayer_core.rules.json_text import shown
from memlayer_core.rules.state import components_of, session_text
from memlayer_core.stores.files import whole

if TYPE_CHECKING:
    from memlayer_core.chat import Chat

__all__ = ["Component", "JsonSession", "SavesItsChat", "SessionManager"]

_LONGEST_NAME = 200  # bytes of a file's name, below every file system's limit


class Component(Protocol):
    """What has a state.

    It is called by its class, or by its `component_name` if it has one. Where it has `asave_state` and
    `aload_state` too, those are awaited by the manager's async verbs.
    """

    def save_state(self) -> Mapping[str, Any]:
        """Return its state as JSON."""
        ...

    def load_state(self, state: Any, /) -> object:
        """Become what a state says."""
        ...


class JsonSession:
    """Session files, each written whole or not at all.

    Args:
        path: A directory, which gets a file for each session, or one file, whose name ends in `.json`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()

    def file_of(self, session_id: str) -> Path:
        """Return where a session is kept.

        Raises:
            InputError: No file can have such a name.
        """
        if self.path.suffix == ".json" and not self.path.is_dir():
            return self.path
        name = quote(session_id, safe=" @+=,") + ".json"
        if len(name) > _LONGEST_NAME or name.startswith("."):
            raise InputError(
                f"a session id cannot be the name of a file: {session_id!r:.80}",
                hint='Name the file: `JsonSession("session.json")`.',
            )
        return self.path / name

    def save(self, session_id: str, components: Mapping[str, Any], now: datetime) -> None:
        """Write a session's file in place of what it was before.

        Raises:
            InvalidStateError: A state is no JSON, or the file there is no readable one of this session: it
                stays as it is.
            StoreUnavailableError: It cannot be written.
        """
        text = session_text(session_id, components, now)
        self.load(session_id)  # what is there is this session's, or stays
        whole(self.file_of(session_id), text)

    def load(self, session_id: str) -> dict[str, Any] | None:
        """Return the states in a session's file by their component's name, None where there is no file.

        Raises:
            InvalidStateError: It is cut off, no session file, of another version or of another session.
            StoreUnavailableError: It cannot be read.
        """
        file = self.file_of(session_id)
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise StoreUnavailableError(
                f"the session file {str(file)!r} cannot be read: {problem.strerror or problem}",
                hint="Give a path that this process may read.",
            ) from problem
        return components_of(text, f"the session file {str(file)!r}", session_id)


class SessionManager:
    """Saves and loads the components of one session together. Made by `for_session_id`."""

    def __init__(self, session_id: str) -> None:
        Scope.alone(session_id)  # checks the id
        self.session_id = session_id
        self._session: JsonSession | None = None
        self._components: dict[str, Component] = {}

    @classmethod
    def for_session_id(cls, session_id: str) -> Self:
        """Begin with a session's id.

        Raises:
            InvalidScopeError: It is empty or cannot be stored.
        """
        return cls(session_id)

    def with_session(self, session: JsonSession) -> Self:
        """Say where the session is kept."""
        self._session = session
        return self

    def add_component(self, component: Component, name: str | None = None) -> Self:
        """Add something that has a state.

        Args:
            component: It has `save_state` and `load_state`.
            name: What its state is called in the file; its `component_name` or its class if left out.

        Raises:
            InputError: It has no state, or another component has that name.
        """
        if not (
            callable(getattr(component, "save_state", None))
            and callable(getattr(component, "load_state", None))
        ):
            raise InputError(
                f"a component has `save_state` and `load_state`, got {shown(component)}",
                hint="Add a chat, one of the adapters' memories, or an object with these two methods.",
            )
        called = name or getattr(component, "component_name", None) or type(component).__name__
        if called in self._components:
            raise InputError(
                f"this session has a component {called!r} already",
                hint="Name them apart: `add_component(component, name=…)`.",
            )
        self._components[called] = component
        return self

    async def _save_session(self, drive: Drive) -> None:
        """Write the state of every component into the session's file, whole or not at all.

        Raises:
            InputError: No place was named with `with_session`.
            InvalidStateError: A state is no JSON, or the file is no readable one of this session.
            StoreUnavailableError: The file cannot be written.
        """
        session = self._kept()
        states = {
            name: await drive.ask(component.save_state, _twin(component, "asave_state"))
            for name, component in self._components.items()
        }
        await drive.call(session.save, self.session_id, states, datetime.now(UTC))

    save_session, asave_session = both(_save_session)

    async def _load_if_exists(self, drive: Drive) -> bool:
        """Load every component that the session's file has a state of; the others stay as they are.

        Returns:
            Whether there is such a file.

        Raises:
            InputError: No place was named with `with_session`.
            InvalidStateError: The file cannot be used, and nothing was loaded; or one component's state
                cannot, and the components added after it were not loaded.
            StoreUnavailableError: The file cannot be read.
        """
        states = await drive.call(self._kept().load, self.session_id)
        if states is None:
            return False
        for name, component in self._components.items():
            if name not in states:
                continue
            try:
                await drive.ask(component.load_state, _twin(component, "aload_state"), states[name])
            except InvalidStateError as problem:
                raise InvalidStateError(f"component {name!r}: {problem}", hint=problem.hint) from None
        return True

    load_if_exists, aload_if_exists = both(_load_if_exists)

    def _kept(self) -> JsonSession:
        if self._session is None:
            raise InputError(
                "it is not known where the session is kept", hint='`with_session(JsonSession("sessions"))`.'
            )
        return self._session

    def __repr__(self) -> str:
        return f"SessionManager({self.session_id!r}, components={list(self._components)})"


class _HasChat(Protocol):
    @property
    def chat(self) -> Chat: ...


class SavesItsChat:
    """Gives an object with a `chat` that conversation's state."""

    def save_state(self: _HasChat) -> dict[str, Any]:
        """Return everything that was said in this session, its title and its end, as JSON."""
        return self.chat.save_state()

    async def asave_state(self: _HasChat) -> dict[str, Any]:
        """Return everything that was said in this session, its title and its end, as JSON."""
        return await self.chat.asave_state()

    def load_state(self: _HasChat, state: Mapping[str, Any]) -> None:
        """Make the session what `save_state` returned, in one transaction: what it held before is gone.

        Raises:
            InvalidStateError: It is no state, or of another version; nothing was changed.
        """
        self.chat.load_state(state)

    async def aload_state(self: _HasChat, state: Mapping[str, Any]) -> None:
        """Make the session what `save_state` returned, in one transaction: what it held before is gone.

        Raises:
            InvalidStateError: It is no state, or of another version; nothing was changed.
        """
        await self.chat.aload_state(state)


def _twin(component: Component, name: str) -> Callable[..., Awaitable[Any]] | None:
    return getattr(component, name, None)
