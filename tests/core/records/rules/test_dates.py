"""The day that a statement names."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.records.rules.dates import days_in, leading_day, trailing_day

TUESDAY = datetime(2026, 3, 10, 23, 30, tzinfo=UTC)


def day(text: str, *, ahead: bool = False) -> tuple[date, int] | None:
    found = next(days_in(text, TUESDAY, ahead=ahead), None)
    return None if found is None else (found.at.date(), found.length)


@pytest.mark.parametrize(
    ("text", "ahead", "expected"),
    [
        ("on 3 May", True, (date(2026, 5, 3), 1)),
        ("on 3 May", False, (date(2025, 5, 3), 1)),
        ("May 3rd, 2024", False, (date(2024, 5, 3), 1)),
        ("on the 3rd of February", True, (date(2027, 2, 3), 1)),
        ("in October", True, (date(2026, 10, 1), 31)),
        ("since October", False, (date(2025, 10, 1), 31)),
        ("since 2019", False, (date(2019, 1, 1), 366)),
        ("tomorrow", True, (date(2026, 3, 11), 1)),
        ("the day after tomorrow", True, (date(2026, 3, 12), 1)),
        ("yesterday", False, (date(2026, 3, 9), 1)),
        ("next Friday", True, (date(2026, 3, 20), 1)),
        ("on Friday", True, (date(2026, 3, 13), 1)),
        ("next week", True, (date(2026, 3, 16), 7)),
        ("next summer", True, (date(2027, 6, 1), 92)),
        ("last month", False, (date(2026, 2, 1), 31)),
        ("in two weeks", True, (date(2026, 3, 24), 1)),
        ("three months ago", False, (date(2025, 12, 10), 1)),
        ("2026-07-01", True, (date(2026, 7, 1), 1)),
        ("明天", True, (date(2026, 3, 11), 1)),
        ("下周五", True, (date(2026, 3, 20), 1)),
        ("上个月", False, (date(2026, 2, 1), 31)),
        ("5月20日", True, (date(2026, 5, 20), 1)),
        ("2024年5月20日", False, (date(2024, 5, 20), 1)),
        ("明年", True, (date(2027, 1, 1), 366)),
        ("从2019年起", False, (date(2019, 1, 1), 366)),
        ("三天后", True, (date(2026, 3, 13), 1)),
        ("31 June", True, None),
        ("may be", True, None),
        ("nothing at all", True, None),
    ],
)
def test_a_day_counts_from_when_it_was_said(text, ahead, expected) -> None:
    assert day(text, ahead=ahead) == expected


def test_a_day_is_found_at_the_edges_only_where_asked_for() -> None:
    leading, trailing = leading_day("tomorrow in Rome", TUESDAY), trailing_day("in Rome tomorrow", TUESDAY)
    assert leading is not None
    assert trailing is not None
    assert (leading.end, trailing.start) == (len("tomorrow"), len("in Rome "))
    assert leading_day("in Rome tomorrow", TUESDAY) is None


words = st.sampled_from(
    [
        "in",
        "on",
        "next",
        "last",
        "99",
        "3",
        "May",
        "year",
        "2019",
        "Friday",
        "下",
        "周",
        "十",
        "月",
        "年",
        "ago",
    ]
)


@given(
    st.lists(words | st.text(max_size=4), max_size=8).map(" ".join),
    st.datetimes(timezones=st.just(UTC)),
    st.booleans(),
)
def test_any_text_at_any_time_names_days_inside_of_it(text, said_at, ahead) -> None:
    for found in days_in(text, said_at, ahead=ahead):
        assert 0 <= found.start < found.end <= len(text)
        assert found.at.time() == datetime.min.time()


@given(st.integers(0, 11))
def test_a_plan_without_a_year_is_within_the_next_year(month) -> None:
    name = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ][month]
    found = day(f"on {name} 12", ahead=True)
    assert found is not None
    assert timedelta() <= found[0] - TUESDAY.date() <= timedelta(days=366)
