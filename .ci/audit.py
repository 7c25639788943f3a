"""Ask an advisory service about each distribution of an environment: `audit.py PIP_AUDIT SITE_PACKAGES`.

Ends with 1 if one has a known vulnerability. Where no service knows any of them, none can be reached, or only a mirror
that has no advisories: that is said, and is no failure.
"""

import json
import subprocess
import sys

SERVICES = ("pypi", "osv")


def ask(pip_audit: str, folder: str, service: str) -> tuple[list[dict], str]:
    """Return the distributions that a service knows; and why there are none."""
    command = [
        pip_audit,
        "--path",
        folder,
        "--vulnerability-service",
        service,
        "--format",
        "json",
        "--timeout",
        "20",
    ]
    done = subprocess.run(
        [*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    try:
        every = json.loads(done.stdout)["dependencies"]
    except ValueError:
        last = done.stderr.strip().rpartition("\n")[2]
        return [], f"{service}: {last.partition(': ')[0][:80] or f'it ended with {done.returncode}'}"
    known = [one for one in every if "skip_reason" not in one]
    for one in every if known else ():
        if "skip_reason" in one:
            print(f"pip-audit: not audited: {one['skip_reason']}")
    return known, f"{service}: it knows none of {len(every)} distributions"


def main(pip_audit: str, folder: str) -> int:
    """Ask one service after the other until one answers."""
    reasons = []
    for service in SERVICES:
        known, reason = ask(pip_audit, folder, service)
        if known:
            break
        reasons.append(reason)
    else:
        print(f"pip-audit: SKIPPED: no advisory service can be reached ({'; '.join(reasons)})")
        return 0
    bad = [(one, problem) for one in known for problem in one["vulns"]]
    for one, problem in bad:
        mended = ", ".join(problem["fix_versions"]) or "no version"
        print(f"pip-audit: {one['name']} {one['version']}: {problem['id']}; mended in {mended}")
    print(f"pip-audit ({service}): {len(known)} distributions, {len(bad)} known vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
