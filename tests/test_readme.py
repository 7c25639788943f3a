"""The README tells the truth: its commands exist, and it stays short. `test_docs.py` runs its examples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURING = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")


def test_the_two_commands_make_their_own_environment() -> None:
    commands = re.findall(r"^```\n(python3 .*)\n```$", README, re.MULTILINE)
    assert [command.split("/")[-1] for command in commands] == ["memlayer demo", "pytest"]
    for command in commands:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e '.[")


def test_every_command_that_it_names_exists() -> None:
    shown = subprocess.run(
        [Path(sys.executable).parent / "memlayer", "--help"], capture_output=True, text=True, check=True
    ).stdout
    listed = re.search(r"lists the commands: (.*?)\.\n", README, re.DOTALL)
    for command in re.findall(r"`(\w+)`", listed[1]):
        assert re.search(rf"\b{command}\b", shown), command


def test_each_of_its_five_numbers_is_in_the_full_tables() -> None:
    table = README[README.index("## Measured") : README.index("## When not to use it")]
    rows = [line for line in table.splitlines() if "docs/measuring.md#" in line]
    assert len(rows) == 5
    for row in rows:
        for number in re.findall(r"[\d.]+", row.rstrip("| ").rpartition("|")[2]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", MEASURING), row


def test_it_stays_short() -> None:
    assert len(README.splitlines()) <= 120
