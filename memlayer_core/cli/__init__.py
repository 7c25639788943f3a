"""The command line: `memlayer demo`, and what one does to a store from outside."""

from memlayer_core.cli.commands import app

__all__ = ["app"]
