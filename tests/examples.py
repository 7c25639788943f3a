"""How many examples a property is tried with: few at the desk, many in CI."""

import os
from typing import Any

from hypothesis import settings

SHARE = int(os.environ.get("MEMLAYER_TEST_EXAMPLES", "25")) / 150
"""CI sets the variable to 75: half of them. A long search for faults sets it to 150 or more."""


def examples(number: int, **more: Any) -> settings:
    """Try a property with so many examples in CI, and with a share of them at the desk."""
    return settings(max_examples=max(5, round(number * SHARE)), **more)
