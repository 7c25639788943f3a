"""The command line: `memlayer demo`, and commands that read and maintain a store."""

from memlayer_core.cli import commands, context, doctor, forget, mcp, records, ui, upkeep  # noqa: F401  (each adds its commands)
from memlayer_core.cli.app import app

__all__ = ["app"]
