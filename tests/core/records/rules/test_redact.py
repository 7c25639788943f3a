"""What should not be remembered, and what is only a number."""

import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlayer_core.records.model import Record
from memlayer_core.records.rules.redact import original_span, redact, redact_record, sensitive

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
        text, runs = (unit * size)[:size], []
        for _ in range(3):  # a collection of garbage may fall into one of them
            begin = time.process_time()
            redact(text)
            runs.append(time.process_time() - begin)
        return min(runs)

    assert seconds(100_000) <= 12 * max(seconds(25_000), 0.01)


# ---- Places, and records


@given(pieces.map(" ".join).filter(bool), st.data())
def test_a_place_of_a_redacted_text_leads_to_the_words_that_stand_there(text, data) -> None:
    left = redact(text)
    start = data.draw(st.integers(0, len(left) - 1))
    end = data.draw(st.integers(start + 1, len(left)))
    begin, until = original_span(text, left, start, end)
    assert 0 <= begin <= until <= len(text)
    if left == text:
        assert text[begin:until] == text[start:end]


@pytest.mark.parametrize(("text", "expected"), SENSITIVE)
def test_the_words_around_a_redaction_keep_their_places(text, expected) -> None:
    said = f"I live in Graz. {text} I am allergic to nuts."
    left = redact(said)
    start = left.index("I am allergic")
    begin, until = original_span(said, left, start, start + len("I am allergic to nuts"))
    assert said[begin:until] == "I am allergic to nuts"


def test_of_a_record_every_text_is_redacted_and_the_rest_stays() -> None:
    at = datetime(2026, 5, 4, tzinfo=UTC)
    record = Record(
        memory_id="",
        tenant_id="default",
        user_id="louis",
        agent_id=None,
        session_id=None,
        type="semantic",
        raw="it is ana@example.org",
        created_at=at,
        updated_at=at,
        first_observed=at,
        tags=("ana@example.org", "mail"),
        structured={"to": ["ana@example.org", 3]},
        key="mail",
        value="ana@example.org",
    )
    clean = redact_record(record, redact)
    assert (clean.raw, clean.tags, clean.value) == ("it is [email]", ("[email]", "mail"), "[email]")
    assert clean.structured == {"to": ["[email]", 3]}
    assert redact_record(clean, redact) is clean
    assert redact_record(record, lambda _: "").raw == "[redacted]"
