"""What the background work cost and brought is counted for each user, and stays as a number when the user is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Memory
from memlayer_core.storage import jobs
from memlayer_core.storage.jobs import Cost

QUIET = Tuned(index_delay=3600, durability="normal")


def learn(memory: Memory, user_id: str, *said: str) -> None:
    chat = memory.chat(user_id=user_id, session_id="s")
    for text in said:
        chat.add("user", text)
    memory.flush(30)


@pytest.mark.parametrize("more", [{}, {"session_id": "s"}], ids=["user", "session"])
def test_facts_are_counted_for_each_user_once_and_stay_as_a_number_when_the_user_is_forgotten(
    open_with, more
) -> None:
    def facts(**whose: Any) -> int:
        return sum(one.facts for one in memory.admin.costs(**whose))

    memory = open_with(QUIET, extractor=reads())
    learn(memory, "ada", "My name is Ada.", "I live in Graz.")
    learn(memory, "eve", "My name is Eve.")
    assert (facts(user_id="ada"), facts(user_id="eve"), facts()) == (2, 1, 3)
    assert memory.admin.costs(user_id="ada", tenant_id="other") == memory.admin.costs(user_id="nobody") == []
    status = memory.admin.status()
    assert (status.calls, status.facts) == (2, 3)
    learn(memory, "ada", "I live in Graz.", "My name is Ada.")  # it is known
    assert facts(user_id="ada") == 2
    learn(memory, "ada", "I live in Oslo now.")
    assert facts(user_id="ada") == 3
    memory.forget("ada", **more)
    assert memory.admin.costs(user_id="ada") == []
    assert (facts(user_id="eve"), facts()) == (1, 4)
    left = memory.runtime.db.read(lambda c: c.exec_driver_sql("SELECT namespace FROM memlayer_costs").all())
    assert len(left) == 2
    assert "" in {row.namespace for row in left}


def test_what_models_read_and_wrote_is_counted_for_the_user_of_the_session(open_at) -> None:
    settings = QUIET.replace(max_tokens=300)
    memory = open_at(summarizer=lambda prompt: "They spoke of a garden.", settings=settings)
    for user in ("ada", "eve"):
        chat = memory.chat(user_id=user, session_id="s")
        for number in range(30):
            chat.add(
                "user", f"House {number} has a garden with {number} trees and a wall of stone around it."
            )
            chat.add("assistant", f"Noted, house {number}.")
        chat.context(token_limit=300)
        memory.flush(60)
    names = ("calls", "tokens_in", "tokens_out", "facts")
    totals = [memory.admin.costs(**whose) for whose in ({"user_id": "ada"}, {"user_id": "eve"}, {})]
    ada = totals[0]
    assert ada
    assert all(cost.calls and cost.tokens_in and cost.tokens_out for cost in ada if cost.kind == "summarize")
    sums = [{name: sum(getattr(cost, name) for cost in costs) for name in names} for costs in totals]
    assert all(sums[0][name] + sums[1][name] == sums[2][name] for name in names)
    status = memory.admin.status()
    assert status.calls == sums[2]["calls"] > 1
    assert status.tokens == sums[2]["tokens_in"] + sums[2]["tokens_out"]


def test_an_answer_that_comes_after_its_user_was_forgotten_is_booked_for_nobody(db) -> None:
    cost = Cost("summarize", "small", 1, 10, 5)
    db.write(jobs.spend, [cost], "0" * 32)
    assert db.read(jobs.cost_ledger, "0" * 32) == []
    assert db.read(jobs.cost_ledger, "") == db.read(jobs.cost_ledger) == [cost]
