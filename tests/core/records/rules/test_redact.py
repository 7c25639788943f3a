"""What should not be remembered, and what is only a number."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.records.rules.redact import redact, sensitive

SENSITIVE = [
    ("write to ana.lopez+x@mail.example.org today", "write to [email] today"),
    ("my card is 4111 1111 1111 1111, ok?", "my card is [card], ok?"),
    ("IBAN DE89 3704 0044 0532 0130 00 please", "IBAN [iban] please"),
    ("call +49 30 901820 or +1 (415) 555-2671", "call [phone] or [phone]"),
    ("我的手机号是13800138000。", "我的手机号是[phone]。"),
    ("key AKIAIOSFODNN7EXAMPLE leaked", "key [secret] leaked"),
    ("use sk-proj-abcdefghijklmnopqrstuvwx", "use [secret]"),
    ("my password is hunter2 now", "my [secret] now"),
    ("密码是abc12345，别说", "[secret]，别说"),
]
HARMLESS = [
    "order 4111 1111 1111 1112 shipped",
    "DE88 3704 0044 0532 0130 00",
    "in 2026 we sold 1234567 units for 12,345,678.90",
    "version 3.11.7 of 2026-03-10",
    "meet @ noon",
    "the password is long",
    "pi is 3.14159265358979",
]


@pytest.mark.parametrize(("text", "expected"), SENSITIVE)
def test_what_is_sensitive_is_replaced_by_its_kind(text, expected) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_alike_stays(text) -> None:
    assert redact(text) == text


pieces = st.lists(
    st.sampled_from([text for text, _ in SENSITIVE] + HARMLESS) | st.text(max_size=20), max_size=4
)


@given(pieces.map("\n".join))
def test_a_second_time_changes_nothing(text) -> None:
    assert redact(redact(text)) == redact(text)


@given(pieces.map("\n".join))
def test_parts_are_in_order_and_do_not_overlap(text) -> None:
    parts = sensitive(text)
    assert all(one.end <= other.start for one, other in pairwise(parts))
    assert all(0 <= one.start < one.end <= len(text) for one in parts)


@given(st.text("0123456789", min_size=12, max_size=18).filter(lambda digits: len(set(digits)) > 1))
def test_of_ten_last_digits_one_makes_a_card(digits) -> None:
    assert sum(redact(f"{digits}{last}", ["card"]) == "[card]" for last in "0123456789") == 1


@given(st.sampled_from(SENSITIVE))
def test_only_the_kinds_that_are_asked_for_are_replaced(case) -> None:
    assert redact(case[0], []) == case[0]


@pytest.mark.parametrize("unit", ["1 ", "a@", "sk-", "DE89", "+1", "password: ", "a.", "eyJ"])
def test_redacting_takes_time_in_proportion_to_the_text(unit) -> None:
    def seconds(size: int) -> float:
        text = (unit * size)[:size]
        begin = time.process_time()
        redact(text)
        return time.process_time() - begin

    assert seconds(100_000) <= 12 * max(seconds(25_000), 0.01)
