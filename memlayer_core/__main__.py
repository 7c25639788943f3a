"""Runs the command line, as `memlayer` and as `python -m memlayer_core`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly, also while its modules are loaded."""
    try:
        import memlayer_core.cli.commands  # noqa: F401  (adds the commands)
        from memlayer_core.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
