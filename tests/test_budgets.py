"""Nothing grows: each number of `budgets.py` stays at or below its ceiling."""

from __future__ import annotations

import budgets
import pytest

HELD = budgets.ceilings()


@pytest.mark.parametrize("name", HELD)
def test_a_number_is_at_most_its_ceiling(name) -> None:
    number = budgets.numbers().get(name, 0)
    places = budgets.long_functions() if name.startswith("functions of more") else ""
    assert number <= HELD[name], f"{name}: {number:g}, allowed {HELD[name]:g} {places}"
    if number < HELD[name]:
        print(f"{name}: {number:g}; lower the ceiling of {HELD[name]:g}: python tests/budgets.py --lower")


def test_each_number_has_a_ceiling() -> None:
    assert set(budgets.numbers()) <= set(HELD), (
        "write the new ones into tests/budgets.toml, out of another's ceiling"
    )


def test_code_is_counted_as_the_formatter_writes_it() -> None:
    folders = (*budgets.PACKAGES, "tests")
    assert [fault for folder in folders for one in budgets.sources(folder) for fault in one.faults] == []
