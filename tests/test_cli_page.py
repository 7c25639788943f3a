"""What the page about commands says of `memlayer` is true: its examples run, its tables have each command and exit code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import run
from typer.main import get_command

from memlayer_core.cli.app import EXIT_CODES
from memlayer_core.cli.commands import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("\n## `memlayer-ui`")[0]
COMMANDS = set(get_command(app).commands)


@pytest.mark.slow
def test_its_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", *["sh"] * 4]
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "cli.md", "exec"), {})
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            shown = run(*arguments)
            assert program == "memlayer"
            assert shown.exit_code == 0, f"{line}: {shown.output}"
            assert shown.stdout, line


def test_its_table_and_the_readme_have_each_command() -> None:
    table = "".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", table)) == COMMANDS
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"`memlayer --help`\s+lists the commands: (.*?)\.", readme, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == COMMANDS


def test_its_exit_codes_are_those_of_the_help() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert codes == re.findall(r"(\d+)(?=[: ])(?!%)", EXIT_CODES)
