"""The benchmarks run, and memlayer makes no error in them. How fast it is, is not a test's matter."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from memlayer_core.recall.rank import Weights

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def run(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / script), "--quick", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@pytest.mark.slow
def test_turn_cost_tells_what_each_part_of_a_turn_costs_at_each_length():
    result = run("turn_cost.py", "--rounds", "1", "--turns", "4")

    assert list(result["messages"]) == ["100", "1000"]
    for costs in result["messages"].values():
        assert {"add", "rare", "common", "message", "all"} == set(costs)
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
        assert ours[way]["processor_ms"] > 0
        assert {"p50", "p95", "max"} == set(ours[way]["write_ms"]) == set(ours[way]["read_ms"])
    assert {"p50", "p95", "p99", "max"} == set(ours["coroutines"]["stall_ms"])
    assert len(result["participants"]) + len(result["skipped"]) == 5
    assert all({"goal", "measured", "met"} < set(goal) for goal in result["goals"])


@pytest.mark.slow
def test_doors_tells_what_every_door_costs_beside_the_frameworks_own_memory():
    result = run("doors.py", "--turns", "2")

    assert len(result["doors"]) == 5
    for lengths in result["doors"].values():
        for ways in lengths.values():
            assert list(ways) == ["bare", "own", "memlayer"]
            for costs in ways["memlayer"].values():
                assert {"caller", "whole", "statements", "writes", "hops"} == set(costs)
    assert all({"goal", "measured", "at_most", "met"} == set(goal) for goal in result["goals"])


@pytest.mark.slow
def test_footprint_tells_what_each_step_of_a_process_costs():
    result = run("footprint.py", "--embedder", "hashing")

    assert list(result["steps"])[:5] == ["python", "import", "open", "warm", "first answer"]
    assert all({"seconds", "megabytes"} == set(step) for step in result["steps"].values())
    assert len(result["goals"]) == 2


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
def locomo_file(folder: Path) -> Path:
    """Write a talk of forty turns, about a hundred tokens each, twenty of them on boats, and four questions."""
    subjects = ["boats lie in the harbour", "a piano stands in the attic"]
    said = [
        {
            "speaker": who,
            "dia_id": f"D1:{at}",
            "text": f"I count {at}: {subjects[at % 2]}{' and so on' * 30}.",
        }
        for at, who in enumerate(["Ann", "Ben"] * 20)
    ]
    said[7] |= {"text": "Look what I found!", "blip_caption": "a red bicycle"}
    told = {"speaker_a": "Ann", "speaker_b": "Ben", "session_1": said}
    told["session_1_date_time"] = "1:56 pm on 8 May, 2023"
    asked = [
        {"question": "Who showed a red bicycle?", "evidence": ["D1:7"], "category": 4},
        {"question": "Which boats lie in the harbour?", "category": 1}
        | {"evidence": [f"D1:{at}" for at in range(0, 40, 2)]},
        {"question": "What does Ben count?", "category": 3}
        | {"evidence": [f"D1:{at}" for at in range(1, 40, 2)]},
        {"question": "What was never said?", "evidence": ["D1:1"], "category": 5},
    ]
    file = folder / "talks.json"
    file.write_text(json.dumps([{"conversation": told, "qa": asked}]))
    return file


def beam_folder(folder: Path) -> Path:
    """Write a chat with an assistant, and questions of two kinds."""
    folder.mkdir()
    said = [
        {"role": role, "id": at, "content": f"{text} ->-> 1,{at}", "time_anchor": "March-15-2024"}
        for at, (role, text) in enumerate(
            [("user", "My tortoise is called Zarquon."), ("assistant", "Noted.")]
        )
    ]
    (folder / "1-chat.json").write_text(json.dumps([{"batch_number": 1, "turns": [said]}]))
    named = {"question": "What is my tortoise called?", "source_chat_ids": {"first": [0]}}
    unknown = {"question": "Who is the king?", "source_chat_ids": [1]}
    questions = {"information_extraction": [named], "abstention": [unknown]}
    (folder / "1-probing_questions.json").write_text(json.dumps(questions))
    return folder


@pytest.mark.slow
def test_recall_tells_which_share_of_the_evidence_is_found_in_both_formats(tmp_path):
    files = locomo_file(tmp_path), beam_folder(tmp_path / "beam")
    result = run("recall.py", *map(str, files), "--only", "hashing", "chroma")

    talk, chat = (result["data"][str(file)] for file in files)
    assert [talk[one] for one in ("conversations", "turns", "questions")] == [1, 40, 3]
    assert [chat[one] for one in ("conversations", "turns", "questions")] == [1, 2, 1]
    ours = talk["found"]["memlayer, hashing"]
    assert ours["kinds"]["single-hop"]["first_10"] == 100, "a picture's caption is found"
    for column in ("first_10", "in_1024", "as_packed"):  # ten of the twenty turns fit in, whichever way
        assert 0 < ours["kinds"]["multi-hop"][column] <= 50
        shares = [ours["kinds"][kind][column] for kind in ("single-hop", "multi-hop", "open-domain")]
        assert ours[column] == pytest.approx(sum(shares) / 3, abs=0.1)
    assert chat["found"]["memlayer, hashing"]["contexts"]["8000"]["evidence"] == 100
    found = chat["found"]["memlayer, hashing"]
    assert found["contexts_by_kind"] == {"information_extraction": 100}
    assert [found[one] for one in ("questions", "first_10", "in_1024", "as_packed")] == [1, 100, 100, 100]
    assert "as_packed" not in talk["found"]["Chroma alone"], "only a search can be asked to pack"
    assert talk["found"]["Chroma alone"]["contexts"] == {}, "and only a memory composes a context"
    assert [goal["at_least"] for goal in result["goals"]] == [1.1] * 4


@pytest.mark.slow
def test_recall_tells_what_each_ingredient_of_the_order_is_worth(tmp_path):
    file = str(locomo_file(tmp_path))
    result = run("recall.py", file, "--only", "memlayer", "--ablation")

    talk = result["data"][file]
    whole = talk["ablation"].pop("with all")
    assert whole.items() <= talk["found"][f"memlayer, {result['vectors']}"].items()
    assert {"without parts", *(f"without {one.name}" for one in fields(Weights))} == set(talk["ablation"])
    assert talk["ablation"]["without speaker"]["first_10"] <= whole["first_10"], "a question names Ben"
    assert any(without != whole for without in talk["ablation"].values())


@pytest.mark.slow
def test_recall_scale_tells_what_a_search_costs_beside_other_users_and_finds_what_it_asks_for():
    result = run("recall_scale.py", "--only", "memlayer", "chroma")

    assert {name: list(sizes) for name, sizes in result["found"].items()} == {
        "memlayer": ["200", "800"],
        "Chroma alone": ["200", "800"],
    }
    for sizes in result["found"].values():
        for size, told in sizes.items():
            assert told["turns"] == int(size)
            assert told["found"] > 0.9
            assert 0 < told["median_ms"] <= told["p95_ms"]
    assert all({"goal", "measured", "met"} < set(goal) for goal in result["goals"])
    assert len(result["goals"]) == 3
