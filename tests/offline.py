"""Runs programs that have no network, and tells what they tried to reach."""

import os
import textwrap
from pathlib import Path

_NO_NETWORK = """
    import os, socket
    def refuse(self, address, *rest):
        if self.family != socket.AF_UNIX:
            with open(os.environ["TRIED"], "a") as file:
                file.write(f"{address}\\n")
            raise OSError("no network here")
    socket.socket.connect = socket.socket.connect_ex = refuse
"""


class Offline:
    """A directory with modules of our own in front of the installed ones, for processes without a network."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tried = directory / "tried"
        self.module("sitecustomize", _NO_NETWORK)
        own = {"PYTHONPATH": str(directory / "modules"), "TRIED": str(self._tried), "HOME": str(directory)}
        self.environment = {**os.environ, "COLUMNS": "160", **own}

    def module(self, name: str, source: str) -> None:
        file = self.directory / "modules" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(source))

    @property
    def tried(self) -> list[str]:
        """The addresses that the processes tried to reach."""
        return self._tried.read_text().splitlines() if self._tried.exists() else []
