"""What the benchmarks share: their options, their goals, and how a result is told."""

import argparse
import importlib.util
import json
import sys

BOUNDS = {"at_most": lambda value, limit: value <= limit, "at_least": lambda value, limit: value >= limit}


def options(about, quick):
    """Return a parser with the options that every benchmark has; `quick` says what a quick run leaves out."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser


def installed(module):
    """Return whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package is there
        return False


def goal(name, measured, **bound):
    """Judge a number: `at_most=…` or `at_least=…`."""
    ((kind, limit),) = bound.items()
    return {"goal": name, "measured": round(measured, 3), kind: limit, "met": BOUNDS[kind](measured, limit)}


def tell(result, asked, show):
    """Print a result with its goals; end with 1 if one is missed and that was asked for."""
    if asked.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
        for one in result["goals"]:
            kind = next(kind for kind in BOUNDS if kind in one)
            verdict = "met   " if one["met"] else "MISSED"
            print(f"{verdict} {one['goal']}: {one['measured']} ({kind.replace('_', ' ')} {one[kind]})")
    if asked.check and not all(one["met"] for one in result["goals"]):
        sys.exit(1)
