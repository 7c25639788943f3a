"""The page about the command line tells the truth: its examples run, and its tables have each command and exit code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import run
from typer.main import get_command

from memlayer_core.cli import app
from memlayer_core.cli.terminal import EXIT_CODES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = set(get_command(app).commands)
MODEL = """
import json

def extractor(prompt: str) -> str:
    return json.dumps({"operations": []})
"""


@pytest.mark.slow
def test_its_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_app.py").write_text(MODEL)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", *["sh"] * 5]
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "cli.md", "exec"), {})
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            shown = run(*arguments)
            assert program == "memlayer"
            silent = arguments[-2:] == ["--model", "my_app:extractor"]  # says nothing, which is not enough
            assert shown.exit_code == (1 if silent else 0), f"{line}: {shown.output}"
            assert shown.stdout or arguments[0] == "audit" or "--as-of" in arguments, line


def test_its_table_and_the_readme_have_each_command() -> None:
    table = "".join(re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", table)) == COMMANDS
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"`memlayer --help` lists the commands: (.*?)\.", readme, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == COMMANDS


def test_its_exit_codes_are_those_of_the_help() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert codes == re.findall(r"(\d+)(?=[: ])(?!%)", EXIT_CODES)
