"""The benchmarks run, and memlayer makes no error in them. How fast it is, is not a test's matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
PARTS = {"add", "context", "add_busy", "context_busy", "context_net", "embed", "bare_read", "vector_search"}


def run(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / script), "--quick", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@pytest.mark.slow
def test_turn_cost_tells_what_each_part_of_a_turn_costs_at_each_length():
    result = run("turn_cost.py", "--rounds", "1", "--turns", "4")

    assert list(result["lengths"]) == ["10", "100", "1000"]
    for costs in result["lengths"].values():
        assert PARTS | {"path_cpu", "turn_cpu"} == set(costs)
    assert set(result["exponents"]) == set(result["lengths"]["10"])
    flushes = result["flushes_a_turn"]
    assert flushes is None or set(flushes) == {"path", "path_mean", "background_mean"}
    assert all({"goal", "measured", "at_most", "met"} == set(goal) for goal in result["goals"])


@pytest.mark.slow
def test_concurrency_makes_no_error_and_loses_nothing():
    result = run("concurrency.py")

    ours = result["participants"]["memlayer"]
    for way in ("threads", "coroutines"):
        assert ours[way]["errors"] == 0, ours[way]["first_error"]
        assert ours[way]["lost"] == 0
        assert ours[way]["turns_a_second"] > 0
        assert {"p50", "p95", "max"} == set(ours[way]["write_ms"]) == set(ours[way]["read_ms"])
    assert {"p50", "p95", "p99", "max"} == set(ours["coroutines"]["stall_ms"])
    assert len(result["participants"]) + len(result["skipped"]) == 4
    assert all({"goal", "measured", "met"} < set(goal) for goal in result["goals"])


@pytest.mark.slow
def test_window_tells_what_each_policy_costs_at_each_length():
    result = run("window.py", "--rounds", "2")

    policies = {"max_tokens", "max_messages", "max_rounds", "all three"}
    assert {length: set(costs) for length, costs in result["milliseconds"].items()} == {
        "100": policies,
        "1000": policies,
    }
    for taken in result["peers"].values():
        assert list(taken) == ["100", "1000"]
    assert [goal["at_most"] for goal in result["goals"]] == [1.3] * 4


@pytest.mark.slow
def test_summary_tells_how_much_evidence_each_way_keeps(tmp_path):
    said = [
        {"speaker": who, "dia_id": f"D1:{at}", "text": f"{who} says that {at} boats lie there. It is fine."}
        for at, who in enumerate(["Ann", "Ben"] * 10)
    ]
    told = {"speaker_a": "Ann", "speaker_b": "Ben", "session_1": said}
    told["session_1_date_time"] = "1:56 pm on 8 May, 2023"
    asked = [{"question": "How many boats does Ben see?", "answer": "7", "evidence": ["D1:7"]}]
    file = tmp_path / "talks.json"
    file.write_text(json.dumps([{"conversation": told, "qa": asked}]))
    result = run("summary.py", str(file))

    assert (result["conversations"], result["evidence"]) == (1, 1)
    assert set(result["kept"]) == {"memlayer", "first sentences", "last sentences", "random sentences"}
    for of_one in result["kept"].values():
        assert list(of_one) == ["0.1", "0.2", "0.3"]
        assert all(0 <= cell["evidence"] <= 1 and 0 <= cell["score"] <= 1 for cell in of_one.values())
    assert all({"goal", "measured", "at_least", "met"} == set(goal) for goal in result["goals"])
