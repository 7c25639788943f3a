"""What the tests of both servers share: memories, and the commands as processes."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import memlayer_server
import pytest
from memlayer_server import commands
from tuned import Tuned

import memlayer_core
from memlayer_core import Memory

PROMPT = Tuned(index_delay=0.0, durability="normal")
PLACES = {str(Path(str(one.__file__)).parents[1]) for one in (memlayer_core, memlayer_server)}


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory.in_memory(settings=PROMPT) as opened:
        fill(opened)
        yield opened


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the directory of a memory of several users, closed."""
    with Memory.open(tmp_path / "memory", embedder="hashing", settings=PROMPT) as opened:
        fill(opened)
    return tmp_path / "memory"


@pytest.fixture
def environment() -> dict[str, str]:
    """Return the environment of a command, without tokens."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_TOKEN")}
    return {**own, "PYTHONPATH": os.pathsep.join(PLACES)}


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that returns what a command says which refuses to start."""
    for name in (commands.MCP_TOKEN, commands.UI_TOKEN):
        monkeypatch.delenv(name, raising=False)

    def refused(name: str, *arguments: str | Path, **variables: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [f"memlayer-{name}", *map(str, arguments)])
            patch.setattr(sys, "path", [*sys.path])
            for variable, value in variables.items():
                patch.setenv(variable, value)
            with pytest.raises(SystemExit) as ended:
                getattr(commands, name)()
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (2, ""), arguments
        return printed.err

    return refused


def fill(memory: Memory) -> None:
    """Fill a memory with two users of one tenant, and one of the same name in another."""
    ada = memory.chat(user_id="ada", session_id="spring")
    ada.add("user", "The cello lesson is on Monday.")
    ada.add("assistant", "Monday it is.")
    ada.remember("Ada lives in Oslo.", key="home", value="Oslo")
    ada.remember("Ada lives in Bergen.", key="home", value="Bergen")
    ada.remember("Ada may like hiking.", source="implicit_inference")
    memory.chat(user_id="ada", session_id="garden", agent_id="gardener").add("user", "Water the roses.")
    eve = memory.chat(user_id="eve", session_id="spring")
    eve.add("user", "The oboe lesson is on Friday.")
    eve.remember("Eve lives in Cairo.", key="home", value="Cairo")
    memory.chat(user_id="ada", tenant_id="other", session_id="spring").add("user", "The tuba is in Quito.")
    memory.flush()
