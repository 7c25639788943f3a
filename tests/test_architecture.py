"""The house stands as it was drawn: imports point down, types and style hold."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["memlayer_core", "langchain_memlayer", "llamaindex_memlayer"]
BIN = Path(sys.executable).parent


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_point_down() -> None:
    run(BIN / "lint-imports", "--no-cache")


def test_style_is_checked_with_every_rule_on() -> None:
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def test_no_file_is_a_drawer_for_everything() -> None:
    banned = re.compile(r"^(utils?|helpers?|manager|base|common|misc)\.py$")
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(sources) > 30
    assert not [path for path in sources if banned.search(path.name)]


def test_everything_public_has_a_home() -> None:
    import memlayer_core

    assert set(memlayer_core.__all__) <= set(dir(memlayer_core))
    with pytest.raises(AttributeError, match="nothing"):
        _ = memlayer_core.nothing


def test_the_project_names_no_machine() -> None:
    """No path of a developer's machine, in any file that is shipped."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    banned = re.compile(r"/(?:home|root|Users)/[a-z]+/")
    for name in files.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".ipynb", ""} and path.is_file():
            assert not banned.search(path.read_text(errors="replace")), name
