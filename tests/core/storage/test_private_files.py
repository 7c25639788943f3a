"""What a memory writes is for nobody but its user, whatever directory it lies in; and a URL is no directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuned import Tuned
from typer.testing import CliRunner

from memlayer_core import Memory
from memlayer_core.cli.app import app
from memlayer_core.errors import ConfigurationError

SETTINGS = Tuned(index_delay=0.0, durability="normal", exact_scan_limit=0)
pytestmark = pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def to_others(top: Path) -> list[str]:
    """Return what others than the user may read or enter; behind a closed directory they reach nothing."""
    found = []
    for path in [top, *top.iterdir()]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077:
            found.append(f"{path.name} {mode:o}")
        elif path is not top and path.is_dir():
            found.extend(to_others(path) if path.name != "chroma" else [])
    return found


def fill(where: Path) -> Memory:
    memory = Memory.open(where, embedder="hashing", settings=SETTINGS)
    memory.chat(user_id="louis", session_id="s").add("user", "I like pears.")
    memory.flush(60)
    return memory


@pytest.mark.usefixtures("open_umask")
def test_files_are_private_in_a_directory_that_is_not(tmp_path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    (shared / "store").mkdir(mode=0o777)
    with fill(shared / "store") as memory:
        memory.export(shared / "exports" / "today.jsonl")
        there = {path.name for path in (shared / "store").iterdir()}
        assert there >= {
            "journal.sqlite3",
            "journal.sqlite3-wal",
            "journal.sqlite3-shm",
            "chroma",
            "chroma.lock",
        }
        assert to_others(shared / "store") == ["store 777"]
    for path in (shared / "store").iterdir():
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert to_others(shared / "exports") == []


@pytest.mark.usefixtures("open_umask")
def test_directories_that_are_made_are_private(tmp_path) -> None:
    fill(tmp_path / "one" / "two" / "store").close()
    for path in (tmp_path / "one", tmp_path / "one" / "two", tmp_path / "one" / "two" / "store"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_files_that_others_may_read_are_taken_from_them_at_opening(tmp_path) -> None:
    fill(tmp_path / "store").close()
    for path in (tmp_path / "store").iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Memory.open(tmp_path / "store", embedder="hashing", settings=SETTINGS) as memory:
        memory.flush(60)
        memory.search("pears", user_id="louis")
        memory.chat(user_id="louis", session_id="s").add("user", "And apples.")
        memory.flush(60)
        assert to_others(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgresql://user:p4ssw0rd@host/db", "database_url="),
        ("postgresql+psycopg://user:p4ssw0rd@host/db", "database_url="),
        (" postgresql://user:p4ssw0rd@host/db", "database_url="),
        ("http://user:p4ssw0rd@host:8000", "chroma_url="),
        ("sqlite:///p4ssw0rd.db", "give a directory"),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_url_is_no_directory_and_its_password_is_not_repeated(
    tmp_path, monkeypatch, url, hint, kind
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        Memory.open(kind(url))
    assert hint in refused.value.hint
    assert "p4ssw0rd" not in f"{refused.value} {refused.value.hint}"
    for command in (["inspect", url], ["verify", url], ["import", "lines.jsonl", url]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code != 0
        assert "p4ssw0rd" not in done.output
    assert list(tmp_path.iterdir()) == []
