"""What becomes of a new statement beside the facts in force of the same subject and key."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st

from memlayer_core import Memory
from memlayer_core.facts.check import new_record
from memlayer_core.facts.model import Claim, Record
from memlayer_core.facts.reconcile import TimeLine
from memlayer_core.scope import Scope

MONDAY = datetime(2026, 3, 9, 9, tzinfo=UTC)
DAY = timedelta(days=1)
NOW = MONDAY + 100 * DAY
OWNER = Scope("louis")
INFERRED = {"source": "implicit_inference"}


def in_force(memory: Memory, key: str = "home") -> list[Any]:
    found = [one for one in memory.records(user_id="louis", about=None) if one.key == key]
    return [one.value for one in reversed(found)]


def remember(chat: Any, value: str, key: str = "home", **more: Any) -> Record:
    return chat.remember(f"{key}: {value}, {more}", key=key, value=value, **more)


# The rules, through `remember`


@pytest.mark.requirement("M19")
def test_what_is_equal_but_for_case_spaces_and_width_is_one_fact(chat: Any) -> None:
    for value in ("Berlin Mitte", "berlin mitte", "Berlin   Mitte", "\uff22erlin\u3000Mitte"):
        remember(chat, value)
    [home] = chat.memory.records(user_id="louis")
    assert (home.value, home.mentions) == ("Berlin Mitte", 4)


NEAR = [("nuts", "no nuts"), ("2 nuts", "3 nuts"), ("Anna hired Ben", "Ben hired Anna"), ("吃辣", "不吃辣")]


@pytest.mark.requirement("M19")
def test_what_is_merely_near_is_never_one_fact_and_a_collection_keeps_all(chat: Any) -> None:
    for value in (one for pair in NEAR for one in pair):
        assert remember(chat, value, "food", category="collection").mentions == 1
    assert in_force(chat.memory, "food") == [one for pair in NEAR for one in pair]


@pytest.mark.requirement("J21")
def test_one_key_of_one_user_has_one_value_whatever_the_words(chat: Any) -> None:
    remember(chat, "Berlin")
    remember(chat, "Rome")
    remember(chat, "Paris", subject="Ann")
    chat.memory.chat(user_id="bob").remember("Bob", key="home", value="Oslo")
    assert in_force(chat.memory) == ["Rome", "Paris"]


@pytest.mark.trap("layered", 5)
@pytest.mark.requirement("J22", "J23")
@given(first=st.floats(0, 1), second=st.floats(0, 1))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_what_does_not_change_is_replaced_by_a_strictly_surer_value_only(memory, first, second) -> None:
    memory.forget("louis")
    chat = memory.chat(user_id="louis", session_id="s")
    remember(chat, "May", "birthday", category="identity", confidence=first)
    remember(chat, "June", "birthday", category="identity", confidence=second)
    if second > first + 1e-9:
        assert in_force(memory, "birthday") == ["June"]
    elif second <= first:
        assert in_force(memory, "birthday") == ["May", "June"], "the conflict is kept"


def test_a_statement_replaces_conclusions_a_denial_what_it_denies_and_a_plan_nothing(chat: Any) -> None:
    memory = chat.memory
    remember(chat, "Berlin", confidence=0.5)
    remember(chat, "Rome", **INFERRED)
    assert in_force(memory) == ["Berlin", "Rome"]
    remember(chat, "Oslo")
    past = remember(chat, "Prague", modality="used_to")
    assert in_force(memory) == ["Oslo"], "a statement replaces both"
    assert past.valid_until is not None
    remember(chat, "Bern", modality="plans")
    assert in_force(memory) == ["Oslo", "Bern"]
    for value, modality in (("meat", "states"), ("fish", "states"), ("meat", "denies")):
        remember(chat, value, "eats", category="collection", modality=modality)
    found = {(one.value, one.modality) for one in memory.records(user_id="louis", about=None)}
    assert {("fish", "states"), ("meat", "denies")} < found
    assert ("meat", "states") not in found


@pytest.mark.requirement("J21")
@pytest.mark.parametrize("order", list(permutations([2021, 2023, 2024, 2025])))
def test_whatever_the_order_in_which_beginnings_are_told_one_value_holds_at_a_time(chat: Any, order) -> None:
    for year in order:
        remember(chat, f"place of {year}", valid_from=datetime(year, 1, 1, tzinfo=UTC))
    held = []
    for year in range(2020, 2027):
        found = chat.memory.records(user_id="louis", as_of=datetime(year, 6, 1, tzinfo=UTC))
        held.append([int((one.value or "")[-4:]) for one in found])
    assert held == [[], [2021], [2021], [2023], [2024], [2025], [2025]]
    assert in_force(chat.memory) == ["place of 2025"]


# The rules alone


def says(value: str, *, day: int = 1, key: str = "home", number: int = 0, **more: Any) -> Claim:
    flags = {name: more.pop(name) for name in ("ends", "targets", "is_correction") if name in more}
    fields = {"key": key, "subject": "user", "value": value, "category": "state", "modality": "states"}
    record = new_record(OWNER, f"It is {value}.", {**fields, **more}, MONDAY + day * DAY)
    return Claim(record=replace(record, memory_id=f"louis_mem_{number:03d}"), **flags)


@st.composite
def statements(draw: Any, number: int = 0) -> Claim:
    return says(
        draw(st.sampled_from(["Berlin", "Rome", "two cats", "no cats", "北京"])),
        day=draw(st.integers(0, 40)),
        number=number,
        key=draw(st.sampled_from(["home", "motto"])),
        modality=draw(st.sampled_from(["states", "wants", "plans", "denies", "used_to"])),
        category=draw(st.sampled_from(["state", "identity", "collection"])),
        confidence=draw(st.sampled_from([0.3, 0.6, 0.9, 1.0])),
        source=draw(st.sampled_from(["explicit_user_input", "implicit_inference", "external_data"])),
        ends=draw(st.booleans()),
        is_correction=draw(st.booleans()),
    )


@given(st.tuples(*map(statements, range(1, 6))), statements())
def test_whatever_is_known_what_is_inferred_never_closes_what_was_said(known, said) -> None:
    facts = [one.record for one in known]
    decision = TimeLine(facts, {}, NOW).decide(said)
    assert set(decision.old) <= set(facts)
    if decision.kind in {"replace", "end"}:
        assert decision.old
        assert not said.record.is_inferred or all(one.is_inferred for one in decision.old)


def test_a_later_value_replaces_an_earlier_one_and_what_it_names_whatever_the_category() -> None:
    berlin, rome = says("Berlin", day=1, number=1).record, says("Rome", day=5, number=2).record
    later = TimeLine([berlin], {}, NOW).decide(says("Rome", day=2))
    assert (later.kind, later.until) == ("replace", MONDAY + 2 * DAY)
    earlier = TimeLine([rome], {}, NOW).decide(says("Berlin", day=1))
    assert (earlier.kind, earlier.until) == ("add", MONDAY + 5 * DAY), "it is of the past"
    named: dict[str, Any] = {"targets": ("louis_mem_001",), "category": "collection"}
    line = TimeLine([berlin, rome], {}, NOW)
    never = line.decide(says("Oslo", confidence=0.7, is_correction=True, **named))
    assert (never.kind, never.old, never.until) == ("replace", (berlin,), None), "it was never true"
    end = line.decide(says("Berlin", ends=True, **named))
    assert (end.kind, end.old) == ("end", (berlin,))
