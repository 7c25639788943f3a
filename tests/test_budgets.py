"""Nothing grows: each number of `budgets.py` stays at or below its ceiling."""

import budgets


def test_a_number_is_at_most_its_ceiling_and_each_has_one() -> None:
    numbers, held = budgets.numbers(), budgets.ceilings()
    assert set(numbers) <= set(held), "write the new ones into tests/budgets.toml, out of another's ceiling"
    above = {name: number for name, number in numbers.items() if number > held[name]}
    assert above == {}, {**{name: held[name] for name in above}, **budgets.long_functions()}
    if below := {name: number for name, number in numbers.items() if number < held[name]}:
        print(f"lower the ceilings with python tests/budgets.py --lower: {below}")


def test_code_is_counted_as_the_formatter_writes_it() -> None:
    folders = (*budgets.PACKAGES, "tests")
    assert [fault for folder in folders for one in budgets.sources(folder) for fault in one.faults] == []
