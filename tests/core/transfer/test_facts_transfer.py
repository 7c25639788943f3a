"""Facts go along with an export: what was learned is learned again, what the application said is a fact again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from memlayer_core import Memory, Message, Settings
from memlayer_core.errors import ImportStoppedError

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Return a memory that learns."""
    with Memory.in_memory(settings=Settings(index_delay=0)) as opened:
        yield opened


@pytest.fixture
def exported(memory: Memory) -> list[str]:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", "I live in Graz.", created_at=MAY)])
    memory.flush()
    chat.remember("Louis is allergic to nuts", key="allergy", value="nuts")
    target = io.StringIO()
    memory.export(target)
    return target.getvalue().splitlines()


def facts(memory: Memory) -> dict[str | None, tuple[Any, ...]]:
    return {
        record.key: (record.value, record.subject, record.always, record.valid_from, record.mentions)
        for record in memory.records(user_id="louis")
    }


def test_an_import_has_the_same_facts_and_a_second_one_changes_nothing(
    memory: Memory, exported: list[str], open_with: Any
) -> None:
    other = open_with(Settings(durability="normal"))
    for _ in range(2):
        other.import_from(exported)
        other.flush()
        assert facts(other) == facts(memory)
    other.chat(user_id="louis", session_id="s").add("user", "I live in Rome.")
    other.flush()
    assert facts(other)["home"][0] == "Rome"


def test_without_learning_what_was_learned_is_imported_as_a_record(
    exported: list[str], open_with: Any
) -> None:
    other = open_with(Settings(durability="normal"))
    other.import_from(exported)
    assert {record.value for record in other.records(user_id="louis")} == {"Graz", "nuts"}


def test_the_line_of_a_learned_fact_quotes_its_message(exported: list[str]) -> None:
    lines = [json.loads(line) for line in exported]
    [home] = [line for line in lines if line.get("record", {}).get("fact", {}).get("key") == "home"]
    [quote] = home["evidence"]
    assert (quote["quote"], quote["start"], quote["end"]) == ("I live in Graz", 0, 14)


@pytest.mark.parametrize("evidence", ["Graz", [1], [{"message_id": 1, "start": 0, "end": 1, "quote": "I"}]])
def test_evidence_of_a_wrong_type_is_refused(exported: list[str], open_at: Any, evidence: Any) -> None:
    lines = [json.loads(line) for line in exported]
    for line in lines:
        if "evidence" in line:
            line["evidence"] = evidence
    with pytest.raises(ImportStoppedError):
        open_at("other").import_from([json.dumps(line) for line in lines])
