"""Check that an environment has the lowest version that pyproject.toml allows of each dependency: `lowest.py FILE LIST…`.

FILE is a pyproject.toml. A list is an extra's name, or `dependencies` for those of the package itself. A bound that cannot be installed is not true.
"""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version


def main(file: str, *lists: str) -> int:
    """Print each dependency that is newer than its bound, and return how many there are."""
    project = tomllib.loads(Path(file).read_text(encoding="utf-8"))["project"]
    named = {"dependencies": project["dependencies"], **project.get("optional-dependencies", {})}
    wanted = [Requirement(one) for name in lists for one in named[name]]
    wanted = [one for one in wanted if one.name not in {project["name"], "memlayer-core"}]
    wrong = 0
    for one in wanted:
        (bound,) = (part.version for part in one.specifier if part.operator in {">=", "=="})
        if Version(version(one.name)) != Version(bound):
            print(f"{one.name} {version(one.name)} is installed, and {bound} is not possible")
            wrong += 1
    print(f"{len(wanted) - wrong} of {len(wanted)} dependencies have the lowest version")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
