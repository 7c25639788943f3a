"""Type checkers accept programs as users write them, and refuse what is wrong: `tests/typing` has both."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("typing")
BIN = Path(sys.executable).parent
PACKAGES = "memlayer_core", "langchain_memlayer", "llamaindex_memlayer"
THEIRS = re.compile(
    r'Type of "(create_agent|invoke|from_tools_or_functions)" is partially unknown'
    r'|Type of "chat" is partially unknown\s+Type of "chat" is "\(\.\.\.\) -> Unknown"'
    r'|Type of "from_defaults" is partially unknown\s+Type of "from_defaults" is "\(session_id'
    r'|The method "run" in class "(BaseWorkflowAgent|AgentWorkflow)" is deprecated'
)
"""What pyright says of the frameworks' own verbs, in whatever program."""


def refused() -> set[tuple[str, int]]:
    """The lines that a checker has to refuse."""
    return {
        (file.name, number)
        for file in PROGRAMS.glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if line.endswith("# refused")
    }


def test_there_are_programs_to_check_and_none_silences_a_checker() -> None:
    assert len(refused()) > 20
    assert {file for file, _ in refused()} == {"wrong.py"}
    names = {file.name for file in PROGRAMS.glob("*.py")}
    assert names == {"plain.py", "seams.py", "with_langchain.py", "with_llamaindex.py", "wrong.py"}
    for name in names:
        assert not re.search(r"# (type|pyright|mypy):", (PROGRAMS / name).read_text()), name


@pytest.mark.slow
def test_mypy_accepts_them_and_the_packages_strictly_and_refuses_what_is_wrong() -> None:
    checked = [*PACKAGES, "packages/memlayer-server/memlayer_server", PROGRAMS]
    command = [BIN / "mypy", "--no-error-summary", *checked]
    done = subprocess.run(command, cwd=PROGRAMS.parents[1], capture_output=True, text=True)
    found = re.findall(r"([\w/]+\.py):(\d+): error: ", done.stdout)
    assert {(Path(file).name, int(line)) for file, line in found} == refused(), done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_accepts_them_strictly_and_refuses_what_is_wrong() -> None:
    command = [BIN / "pyright", "-p", PROGRAMS, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=PROGRAMS.parents[1], capture_output=True, text=True)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 5
    found = [one for one in report["generalDiagnostics"] if not THEIRS.match(one["message"])]
    lines = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}
    assert lines == refused(), "\n".join(one["message"] for one in found)
