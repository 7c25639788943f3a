"""The memory's search, as the retriever of either framework."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from refusals import refused

from memlayer_core import Memory, Message, RecallFilter, Scope, errors

WHERE = "Which fruit grows in Lisbon?"
ALONE = {"user_id": None, "session_id": "s0"}


@pytest.fixture
def full(memory: Memory) -> Memory:
    """Let two users of one tenant, one of another, and nobody speak of fruit."""
    for tenant, user, fruit in (
        ("default", "ada", "pears"),
        ("default", "bob", "plums"),
        ("other", "ada", "figs"),
    ):
        for number in range(3):
            agent = f"agent{number}" if number else None
            chat = memory.chat(user_id=user, session_id=f"s{number}", tenant_id=tenant, agent_id=agent)
            said = datetime(2026, 5, number + 1, tzinfo=UTC)
            chat.add("user", f"In Lisbon garden {number} grow {fruit}.", id=f"m{number}", created_at=said)
    memory.flush()
    return memory


def texts(found: list[Any]) -> list[str]:
    return [text for text, _ in found]


@pytest.mark.requirement("A12", "M20")
def test_what_was_said_comes_best_first_with_scores_and_sources_as_json(do, kit, full) -> None:
    found = kit.search(do, full, WHERE, user_id="ada")
    hits = full.search(WHERE, user_id="ada", limit=50)
    assert texts(found) == [hit.text for hit in hits]
    scores = [known["score"] for _, known in found]
    assert scores == sorted(scores, reverse=True) == [hit.score for hit in hits]
    _, best = found[0]
    assert (best["kind"], best["speaker"], best["session_id"]) == ("message", "user", hits[0].session_id)
    assert hits[0].message_ids[0] in {best.get("message_id"), best.get("id")}
    assert datetime.fromisoformat(best["created_at"]) == hits[0].created_at
    assert json.loads(json.dumps(best)) == best


def test_a_record_is_found_with_what_is_known_of_it(do, kit, full) -> None:
    known = {"type": "preference", "tags": ["food"], "importance": 0.9, "confidence": 0.8}
    record = full.chat(user_id="ada").remember("Ada loves quinces.", **known)
    [(text, found)] = kit.search(do, full, "Who loves quinces?", 1, user_id="ada")
    assert text == "Ada loves quinces."
    assert record.memory_id in {found.get("memory_id"), found.get("id")}
    assert found == {**found, **known, "kind": "record"}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.trap("langchain", 15)
@pytest.mark.requirement("M16", "M06", "M15")
def test_it_finds_what_is_within_reach_and_nothing_else(do, kit, full) -> None:
    for name in ("s0", "alone"):
        full.chat_of(Scope.alone(name)).add("user", f"In Lisbon grow dates, {name}.")
    pears, plums = ({f"In Lisbon garden {at} grow {one}." for at in range(3)} for one in ("pears", "plums"))
    for reach, finds in (
        ({}, pears),
        ({"session_id": "s0"}, {"In Lisbon garden 0 grow pears."}),
        ({"session_id": "s1", "agent_id": "agent1"}, {"In Lisbon garden 1 grow pears."}),
        ({"agent_id": "agent2"}, {"In Lisbon garden 2 grow pears."}),
        ({"tenant_id": "other"}, {f"In Lisbon garden {number} grow figs." for number in range(3)}),
        ({"user_id": "bob"}, plums),
        ({"user_id": "nobody"}, set()),
        (ALONE, {"In Lisbon grow dates, s0."}),
    ):
        assert {*texts(kit.search(do, full, WHERE, **{"user_id": "ada", **reach}))} == finds, reach
    broken = "\0\udc80"  # no database takes it as it is
    assert {*texts(kit.search(do, full, f"{broken} Lisbon {broken} garden{broken}", user_id="ada"))} == pears


def test_what_others_share_is_shown_to_the_role_that_asks(do, kit, full) -> None:
    sold = "Quinces are sold out."
    full.chat(user_id="bob").remember(sold, visibility="share", allowed_roles=["cook"])
    for roles, finds in ((["cook"], True), ([], False)):
        assert (sold in texts(kit.search(do, full, "What of quinces?", user_id="ada", roles=roles))) is finds


def test_it_keeps_to_its_limits_and_looks_further_down_for_what_passes_a_filter(do, kit, full) -> None:
    chat = full.chat(user_id="ada", session_id="s0")
    chat.add_messages(Message("assistant", f"Fruit grows in Lisbon, note {number}.") for number in range(30))
    chat.remember("In Lisbon grow quinces", type="semantic")
    full.flush()
    assert len(kit.search(do, full, WHERE, 2, user_id="ada")) == 2
    assert 0 < len(kit.search(do, full, WHERE, user_id="ada", token_limit=40)) < 4
    for kinds in (["record"], ["semantic"]):
        found = kit.search(do, full, WHERE, 2, user_id="ada", filter=RecallFilter(kinds=kinds))
        assert texts(found) == ["In Lisbon grow quinces"]


def test_what_makes_no_sense_is_refused(do, kit, full) -> None:
    for wrong, problem in (
        ({"user_id": None}, errors.InvalidScopeError),
        ({"user_id": ""}, errors.InvalidScopeError),
        ({"session_id": ""}, errors.InvalidScopeError),
        ({"limit": 0}, errors.InvalidLimitError),
        ({"token_limit": 0}, errors.InvalidLimitError),
        ({"roles": "cook"}, errors.InvalidRecordError),
        ({"memory": "./memory"}, errors.ConfigurationError),
        ({"tenant": "other"}, (ValueError, TypeError)),  # it would search in another one
    ):
        given = {"memory": full, "user_id": "ada", **wrong}
        with pytest.raises(problem):
            kit.search(do, given.pop("memory"), WHERE, **given)
    full.close()
    refused(errors.StoreClosedError, None, kit.search, do, full, WHERE, user_id="ada")
