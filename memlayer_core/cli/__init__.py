"""The command line: `memlayer demo`, and commands that read and maintain a store."""

from memlayer_core.cli.commands import app

__all__ = ["app"]
