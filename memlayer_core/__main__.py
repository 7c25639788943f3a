"""Runs the command line as `python -m memlayer_core`."""

from memlayer_core.cli import app

app(prog_name="python -m memlayer_core")
