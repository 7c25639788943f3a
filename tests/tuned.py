"""Settings of tests: they may also change what is a constant for everybody else."""

from typing import Any, Self

from memlayer_core.settings import Constants, Settings

LIMITS = frozenset(name for name in vars(Constants) if not name.startswith("_"))


class Tuned(Settings):
    """Settings with other limits. `replace` keeps them."""

    def __init__(self, **values: Any) -> None:
        limits = {name: values.pop(name) for name in LIMITS & values.keys()}
        super().__init__(**values)
        for name, value in limits.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_tuned", limits)

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{**self.model_dump(), **vars(self)["_tuned"], **changes})
