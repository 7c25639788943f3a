"""memlayer's memory under the name where LlamaIndex's users look for it: all public names of `llamaindex_memlayer`."""

from llamaindex_memlayer import *  # noqa: F403  (its `__all__` says what is public)
from llamaindex_memlayer import __all__ as __all__
