"""Runs the command line, as `memlayer` and as `python -m memlayer_core`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly, also while its modules are loaded."""
    try:
        from memlayer_core.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
