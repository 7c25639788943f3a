"""Tells whose conversation a call of a chain is: the call's config names the ids, and a function makes the history."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from langchain_core.runnables import ConfigurableFieldSpec, RunnableConfig

from memlayer_core.drive import BLOCKING, Drive
from memlayer_core.errors import ConfigurationError, InvalidScopeError

__all__ = ["IDS", "HistoryFactory", "factory_of", "fields_of"]

H = TypeVar("H")

IDS: Mapping[str, str] = {
    "tenant_id": "Users and sessions of different tenants are different ones, whatever their ids.",
    "user_id": "Whose conversation it is.",
    "agent_id": "Which agent it is with.",
    "session_id": "Which conversation.",
}
"""What a call's config may name, and what it is."""


def fields_of(names: Sequence[str]) -> list[ConfigurableFieldSpec]:
    """Return the fields that a config names ids in.

    Raises:
        ConfigurationError: One of them is none of `IDS`, or comes twice.
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
    """A function that makes the history of a conversation, and the ids that a call names for it.

    Pass it to LangChain as `get_session_history`, and its `config_specs` as `history_factory_config`.

    Args:
        make: Makes a history; it may be async where its callers are. A single id is passed by its position,
            several are by their names.
        config_specs: The fields of a config's `configurable` that name the ids, all of them needed.
        fixed: The ids that are the same for all calls; one that names another is refused.
    """

    def __init__(
        self,
        make: Callable[..., H],
        config_specs: Sequence[ConfigurableFieldSpec],
        fixed: Mapping[str, str] | None = None,
    ) -> None:
        self.config_specs = list(config_specs)
        self._make = make
        self._fixed = dict(fixed or {})
        names = (spec.id for spec in self.config_specs)
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )

    def __call__(self, *args: Any, **ids: Any) -> H:
        """Make the history of a conversation.

        Raises:
            InvalidScopeError: An id is missing, or is not asked for.
        """
        try:
            named = self.__signature__.bind(*args, **ids).arguments
        except TypeError as problem:
            raise InvalidScopeError(
                f"a history here is named by {self._names}: {problem}",
                hint="Pass the factory's `config_specs` along: "
                "`RunnableWithMessageHistory(…, factory, history_factory_config=factory.config_specs)`.",
            ) from None
        missing = [name for name, value in named.items() if value is None]
        if missing:
            raise self._unnamed(missing)
        return self._make(*named.values()) if len(named) == 1 else self._make(**named)

    async def made(self, drive: Drive, config: RunnableConfig) -> Any:
        """Return the history of the conversation that a call's config names.

        Raises:
            InvalidScopeError: The config does not name it, or names somebody else's.
            ConfigurationError: The function is async, and the call is not.
        """
        configurable = config.get("configurable", {})
        for name, value in self._fixed.items():
            if configurable.get(name, value) != value:
                raise InvalidScopeError(
                    f"the call says {name}={configurable[name]!r:.80}, and {name}={value!r:.80} was given in code",
                    hint=f"Leave `{name}` out in one of the two places: nobody is told what is somebody else's.",
                )
        found = await drive.call(self, **{spec.id: configurable.get(spec.id) for spec in self.config_specs})
        if not inspect.isawaitable(found):
            return found
        if drive is BLOCKING:
            if inspect.iscoroutine(found):
                found.close()
            raise ConfigurationError(
                "the function that makes a session's history is async, and this call is not",
                hint="Call the chain with `ainvoke`, `abatch` or `astream`, or give it a blocking function.",
            )
        return await found

    @property
    def _names(self) -> str:
        return ", ".join(f"`{spec.id}`" for spec in self.config_specs) or "nothing"

    def _unnamed(self, missing: Sequence[str]) -> InvalidScopeError:
        example = {"configurable": {spec.id: "…" for spec in self.config_specs}}
        return InvalidScopeError(
            f"the call does not say whose conversation it is: {' and '.join(map(repr, missing))} missing",
            hint=f"Pass `config={example}` with each call, or bind it by `.with_config(…)`.",
        )


def factory_of(
    make: Callable[..., Any], config_specs: Sequence[ConfigurableFieldSpec] | None
) -> HistoryFactory[Any]:
    """Return a function that makes histories with the ids that it takes, as `RunnableWithMessageHistory` has them.

    Args:
        make: The function. One that takes nothing always makes the same history.
        config_specs: The fields that name the ids; if left out, its own, else `"session_id"`.

    Raises:
        ConfigurationError: It takes other ids than are named.
    """
    if config_specs is None and isinstance(make, HistoryFactory):
        return make
    takes = inspect.signature(make).parameters
    if config_specs is None:
        config_specs = fields_of(["session_id"] if takes else [])
    names = [spec.id for spec in config_specs]
    if len(names) > 1 and set(names) != set(takes):
        raise ConfigurationError(
            f"`history_factory_config` names {names!r}, and the function takes {list(takes)!r}",
            hint="Name the same ids in both.",
        )
    return HistoryFactory(make, config_specs)
