"""What a memory writes is for nobody but its user, whatever directory it lies in; and a URL is not a directory."""

import os
import stat
from pathlib import Path

import pytest
from command_line import run
from tuned import Tuned

from memlayer_core import Memory, errors

SETTINGS = Tuned(index_delay=0.0, durability="normal", exact_scan_limit=0)
pytestmark = pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")


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


def test_files_and_directories_are_private_even_in_a_directory_that_is_not(tmp_path) -> None:
    before = os.umask(0)
    try:
        store, made = tmp_path / "store", tmp_path / "one" / "two" / "store"
        store.mkdir(mode=0o777)
        with fill(store) as memory:
            memory.export(tmp_path / "exports" / "today.jsonl")
            there = {path.name for path in store.iterdir()}
            journal = {f"journal.sqlite3{end}" for end in ("", "-wal", "-shm")}
            assert there >= {*journal, "chroma", "chroma.lock"}
            assert to_others(store) == ["store 777"]
        assert [path for path in store.iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
        assert to_others(tmp_path / "exports") == []
        fill(made).close()
        assert [stat.S_IMODE(path.stat().st_mode) for path in (made, *made.parents[:2])] == [0o700] * 3
    finally:
        os.umask(before)
    for path in made.iterdir():  # an earlier version, or a copy
        path.chmod(0o755 if path.is_dir() else 0o644)
    with fill(made):
        assert to_others(made) == []


URLS = {
    " postgresql+psycopg://user:p4ssw0rd@host/db": "database_url=",
    "http://user:p4ssw0rd@host:8000": "chroma_url=",
    "sqlite:///p4ssw0rd.db": "give a directory",
}


def test_a_url_is_no_directory_and_its_password_is_not_repeated(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, hint in URLS.items():
        for place in (url, Path(url)):
            with pytest.raises(errors.ConfigurationError) as refused:
                Memory.open(place)
            assert hint in refused.value.hint
            assert "p4ssw0rd" not in f"{refused.value} {refused.value.hint}"
        done = run("import", "lines.jsonl", url)
        assert done.exit_code != 0
        assert "p4ssw0rd" not in done.output
    assert list(tmp_path.iterdir()) == []
