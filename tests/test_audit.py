"""What CI asks about known vulnerabilities: a finding fails, and silence is told as silence."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"
SOUND = {"name": "numpy", "version": "2.5.5", "vulns": []}
UNKNOWN = {"name": "memlayer-core", "skip_reason": "Dependency not found: memlayer-core (0.1.0)"}
BAD = {"name": "regex", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}


def audit(folder: Path, **answers: list[dict[str, Any]] | None) -> subprocess.CompletedProcess[str]:
    """Run the script with a `pip-audit` that gives a service's answer; None: it cannot reach the service."""
    (folder / "answers.json").write_text(json.dumps(answers))
    fake = folder / "pip-audit"
    fake.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"answers = json.load(open({str(folder / 'answers.json')!r}))\n"
        "found = answers[sys.argv[sys.argv.index('--vulnerability-service') + 1]]\n"
        "if found is None: sys.exit('requests.exceptions.ConnectionError: https://user:secret@there')\n"
        "print(json.dumps({'dependencies': found}))\n"
        "sys.exit(any(one.get('vulns') for one in found))\n"
    )
    fake.chmod(0o755)
    return subprocess.run([sys.executable, SCRIPT, fake, folder], capture_output=True, text=True, timeout=60)


def test_without_a_finding_it_says_how_many_were_audited_and_names_the_others(tmp_path) -> None:
    done = audit(tmp_path, pypi=[SOUND, UNKNOWN])
    assert (done.returncode, done.stderr) == (0, "")
    assert "not audited: Dependency not found: memlayer-core" in done.stdout
    assert "pip-audit (pypi): 1 distributions, 0 known vulnerabilities" in done.stdout


@pytest.mark.parametrize("first", [None, [UNKNOWN], [SOUND, BAD]])
def test_a_finding_of_the_service_that_answers_fails(first, tmp_path) -> None:
    done = audit(tmp_path, pypi=first, osv=[SOUND, BAD])
    assert done.returncode == 1
    assert "regex 1.0: PYSEC-1; mended in 1.1" in done.stdout


def test_without_a_service_it_is_skipped_with_the_reasons_and_does_not_fail(tmp_path) -> None:
    done = audit(tmp_path, pypi=[UNKNOWN, UNKNOWN], osv=None)
    assert done.returncode == 0
    assert done.stdout == (
        "pip-audit: SKIPPED: no advisory service can be reached (pypi: it knows none of 2 distributions; "
        "osv: requests.exceptions.ConnectionError)\n"
    )
