"""What the background work cost and brought is counted for each user, and stays as a number when the user is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import Cost

QUIET = Tuned(index_delay=3600, durability="normal")


def learn(memory: Memory, user_id: str, *said: str, **scope: Any) -> None:
    chat = memory.chat(user_id=user_id, session_id="s", **scope)
    for text in said:
        chat.add("user", text)
    memory.flush(30)


def facts(found: list[Cost]) -> int:
    return sum(one.facts for one in found)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def memory(request, open_at) -> Iterator[Memory]:
    if request.param == "sqlite":
        yield open_at(settings=QUIET, extractor=reads())
        return
    url = request.getfixturevalue("postgres_url")
    with Memory.open(database_url=url, embedder="hashing", settings=QUIET, extractor=reads()) as opened:
        yield opened


def test_facts_are_counted_for_each_user_once(memory) -> None:
    learn(memory, "ada", "My name is Ada.", "I live in Graz.")
    learn(memory, "eve", "My name is Eve.")
    assert facts(memory.admin.costs(user_id="ada")) == 2
    assert facts(memory.admin.costs(user_id="eve")) == 1
    assert facts(memory.admin.costs()) == 3
    assert memory.admin.costs(user_id="ada", tenant_id="other") == []
    assert memory.admin.costs(user_id="nobody") == []
    status = memory.admin.status()
    assert (status.calls, status.facts) == (2, 3)
    learn(memory, "ada", "I live in Graz.", "My name is Ada.")  # it is known
    assert facts(memory.admin.costs(user_id="ada")) == 2
    learn(memory, "ada", "I live in Oslo now.")
    assert facts(memory.admin.costs(user_id="ada")) == 3


def test_what_models_read_and_wrote_is_counted_for_the_user_of_the_session(open_at) -> None:
    memory = open_at(
        summarizer=lambda prompt: "They spoke of a garden.", settings=QUIET.replace(max_tokens=300)
    )
    for user, rounds in (("ada", 30), ("eve", 30)):
        chat = memory.chat(user_id=user, session_id="s")
        for number in range(rounds):
            chat.add(
                "user", f"The garden of house {number} has {number} trees and a wall of stone around it."
            )
            chat.add("assistant", f"Noted, house {number}.")
        chat.context(token_limit=300)
        memory.flush(60)
    ada, eve, everybody = (
        memory.admin.costs(user_id="ada"),
        memory.admin.costs(user_id="eve"),
        memory.admin.costs(),
    )
    assert ada
    assert all(cost.calls and cost.tokens_in and cost.tokens_out for cost in ada if cost.kind == "summarize")
    for name in ("calls", "tokens_in", "tokens_out", "facts"):
        assert sum(getattr(cost, name) for cost in everybody) == sum(
            getattr(cost, name) for cost in ada + eve
        )
    status = memory.admin.status()
    assert status.calls == sum(cost.calls for cost in everybody) > 1
    assert status.tokens == sum(cost.tokens_in + cost.tokens_out for cost in everybody)


@pytest.mark.parametrize("how", ["user", "session"])
def test_to_forget_a_user_leaves_the_counts_and_not_the_user(memory, how) -> None:
    learn(memory, "ada", "My name is Ada.")
    learn(memory, "eve", "My name is Eve.")
    memory.forget("ada", **({"session_id": "s"} if how == "session" else {}))
    assert memory.admin.costs(user_id="ada") == []
    assert facts(memory.admin.costs(user_id="eve")) == 1
    assert facts(memory.admin.costs()) == 2
    namespaces = memory.runtime.db.read(
        lambda c: c.exec_driver_sql("SELECT namespace FROM memlayer_costs").all()
    )
    assert len(namespaces) == 2
    assert ("",) in {tuple(row) for row in namespaces}


def test_an_answer_that_comes_after_its_user_was_forgotten_is_booked_for_nobody(db) -> None:
    db.write(jobs.spend, [Cost("summarize", "small", 1, 10, 5)], "0" * 32)
    assert db.read(jobs.cost_ledger, "0" * 32) == []
    assert (
        db.read(jobs.cost_ledger, "") == db.read(jobs.cost_ledger) == [Cost("summarize", "small", 1, 10, 5)]
    )
