"""Runs commands of the command line in this process, as a pipe sees them, and on a terminal."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from memlayer_core.cli.commands import app

__all__ = ["ROOT", "line_of", "listening", "on_terminal", "printed_by", "run", "unprivileged", "words"]

ROOT = Path(__file__).parents[1]


def run(*arguments: str | Path, stdin: str | None = None, **environment: str) -> Result:
    """Run a command; its output goes into a pipe."""
    env = {"COLUMNS": "160", **environment}
    return CliRunner(env=env).invoke(app, [*map(str, arguments)], input=stdin, catch_exceptions=False)


def on_terminal(*arguments: str | Path, columns: int = 160, typed: str = "") -> tuple[int, str]:
    """Run a command in a process with a terminal of so many columns. Returns its exit code and what is seen there.

    Args:
        arguments: The command and its arguments.
        columns: Width of the terminal.
        typed: What somebody types there.
    """
    import pty

    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "memlayer_core", *map(str, arguments)]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        os.write(leader, typed.encode())
        seen = bytearray()
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # Linux tells the end of a terminal by an error
                break
            if not piece:
                break
            seen += piece
        code = process.wait(30)
    os.close(leader)
    return code, seen.decode().replace("\r\n", "\n")


def line_of(server: str, *arguments: str | Path) -> list[str]:
    """Return the command line of a server: of `ui` or `mcp`."""
    program = f"from memlayer_server.commands import {server}; {server}()"
    return [sys.executable, "-c", program, *map(str, arguments)]


@contextmanager
def listening(
    command: Sequence[str], environment: Mapping[str, str], address: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server. Gives the address in the first line of its standard error, and its process.

    Args:
        command: The program and its arguments.
        environment: Its environment.
        address: A pattern for the address.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**environment}, text=True, **pipes) as process:
        try:
            assert process.stderr is not None
            found = re.search(address, line := process.stderr.readline())
            assert found, line + process.stderr.read()
            yield found[0], process
        finally:
            process.kill()


def printed_by(code: str, *arguments: str | Path, **environment: str) -> str:
    """Run a program in a process of its own, and return what it prints. It must not complain."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    given = {"cwd": ROOT, "env": {**os.environ, **environment}, "timeout": 60}
    done = subprocess.run(command, **given, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def words(shown: str) -> str:
    """Return a text without line breaks."""
    return " ".join(shown.split())


def unprivileged(*command: str | Path) -> list[str]:
    """Return a command that cannot read or write where its user may not: root gives that power up. Skips where it cannot."""
    given = [str(part) for part in command]
    if os.geteuid() != 0:
        return given
    if not shutil.which("setpriv"):
        pytest.skip("root cannot give up its power to write everywhere")
    power = "-dac_override,-dac_read_search"
    return ["setpriv", "--bounding-set", power, "--inh-caps", power, *given]
