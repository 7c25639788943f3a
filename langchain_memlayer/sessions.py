"""Makes the history of a chain's call: the call's config names the ids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig

from memlayer_core.errors import ConfigurationError, InvalidScopeError
from memlayer_core.integration import SYNC, Runner

__all__ = ["IDS", "HistoryFactory", "config_fields", "factory_of"]

H = TypeVar("H")

IDS: Mapping[str, str] = {
    "tenant_id": "The tenant of the user.",
    "user_id": "The user.",
    "agent_id": "The agent.",
    "session_id": "The session.",
    "conversation_id": "The session, as LangChain's tutorials name it.",
}
"""The ids that a call's config may name, with their descriptions."""


def config_fields(names: Sequence[str]) -> list[ConfigurableFieldSpec]:
    """Return the config fields of ids.

    Raises:
        ConfigurationError: A name is none of `IDS`, or comes twice.
    """
    if isinstance(names, str) or not set(names) <= set(IDS) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"`configurable` must be a list of ids, got {names!r:.80}",
            hint=f"Name some of {', '.join(map(repr, IDS))}, each once.",
        )
    return [
        ConfigurableFieldSpec(
            id=name,
            annotation=str,
            name=name.removesuffix("_id").capitalize() + " ID",
            description=IDS[name],
            default="",
            is_shared=True,
        )
        for name in names
    ]


class HistoryFactory(Generic[H]):
    """A function that makes the history of a conversation from the ids of a call.

    Pass it to LangChain as `get_session_history`, and its `config_specs` as `history_factory_config`.

    Args:
        make: Makes a history; it may be async if its callers are. A single id is passed by position, several by name.
        config_specs: The fields of a config's `configurable` that name the ids. All are required.
        constant_ids: The ids that are the same for all calls. A call that names another id is refused.
        blocks: Whether `make` may block an event loop.
    """

    def __init__(
        self,
        make: Callable[..., H],
        config_specs: Sequence[ConfigurableFieldSpec],
        constant_ids: Mapping[str, str] | None = None,
        *,
        blocks: bool = True,
    ) -> None:
        self.config_specs = list(config_specs)
        self._make = make
        self._blocks = blocks
        self._constant_ids = dict(constant_ids or {})
        names = (spec.id for spec in self.config_specs)
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )

    def __call__(self, *args: Any, **ids: Any) -> H:
        """Make the history of a conversation.

        Raises:
            InvalidScopeError: An id is missing, or is unknown.
        """
        try:
            ids_by_name = self.__signature__.bind(*args, **ids).arguments
        except TypeError as problem:
            raise InvalidScopeError(
                f"a history here is named by {self._names}: {problem}",
                hint="Pass the factory's `config_specs`, too: "
                "`RunnableWithMessageHistory(…, factory, history_factory_config=factory.config_specs)`.",
            ) from None
        missing = [name for name, value in ids_by_name.items() if value is None]
        if missing:
            raise self._missing_error(missing)
        return self._make(*ids_by_name.values()) if len(ids_by_name) == 1 else self._make(**ids_by_name)

    async def history_of(self, run: Runner, config: RunnableConfig) -> Any:
        """Return the history of the conversation that a call's config names.

        Raises:
            InvalidScopeError: The config does not name it, or names another user, tenant or agent.
            ConfigurationError: The function is async, and the call is not.
        """
        configurable = config.get("configurable", {})
        for name, value in self._constant_ids.items():
            if configurable.get(name, value) != value:
                raise InvalidScopeError(
                    f"the call names {name}={configurable[name]!r:.80}, but the code sets {name}={value!r:.80}",
                    hint=f"Leave `{name}` out in one of the two places.",
                )
        ids = {spec.id: configurable.get(spec.id) for spec in self.config_specs}
        history = await run(self, **ids) if self._blocks else self(**ids)
        if not inspect.isawaitable(history):
            return history
        if run is SYNC:
            if inspect.iscoroutine(history):
                history.close()
            raise ConfigurationError(
                "the function that makes a session's history is async, and this call is not",
                hint="Call the chain with `ainvoke`, `abatch` or `astream`, or give it a blocking function.",
            )
        return await history

    @property
    def _names(self) -> str:
        return ", ".join(f"`{spec.id}`" for spec in self.config_specs) or "nothing"

    def _missing_error(self, missing: Sequence[str]) -> InvalidScopeError:
        example = {"configurable": {spec.id: "…" for spec in self.config_specs}}
        return InvalidScopeError(
            f"the call does not say whose conversation it is: {' and '.join(map(repr, missing))} missing",
            hint=f"Pass `config={example}` with each call, or bind it by `.with_config(…)`.",
        )


def factory_of(
    make: Callable[..., Any], config_specs: Sequence[ConfigurableFieldSpec] | None
) -> HistoryFactory[Any]:
    """Return a factory of a function that makes histories, with the ids that `RunnableWithMessageHistory` would pass.

    Args:
        make: The function. Without parameters it always makes the same history.
        config_specs: The fields that name the ids; by default those of `make`, or `"session_id"`.

    Raises:
        ConfigurationError: The function takes other ids than `config_specs` names.
    """
    if config_specs is None and isinstance(make, HistoryFactory):
        return make
    takes = inspect.signature(make).parameters
    if config_specs is None:
        config_specs = config_fields(["session_id"] if takes else [])
    names = [spec.id for spec in config_specs]
    if len(names) > 1 and set(names) != set(takes):
        raise ConfigurationError(
            f"`history_factory_config` names {names!r}, and the function takes {list(takes)!r}",
            hint="Name the same ids in both.",
        )
    return HistoryFactory(make, config_specs)
