"""A page to look through a memory: users, what is known of them and why, sessions, and each context as it was sent."""

from __future__ import annotations

from memlayer_core.errors import MissingExtraError

try:
    from memlayer_core.ui.app import ui_app
except ModuleNotFoundError as missing:
    raise MissingExtraError(
        f"the page needs the package {missing.name}", hint="pip install 'memlayer-core[ui]'"
    ) from missing

__all__ = ["ui_app"]
