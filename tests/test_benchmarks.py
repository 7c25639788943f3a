"""The benchmarks run, and memlayer makes no error in them. How fast it is, is not a test's matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_model
import talks

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def run(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / script), "--quick", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "told"),
    [
        ("turn_cost.py", ("--rounds", "1", "--turns", "4"), {"messages": 2}),
        ("doors.py", ("--turns", "2"), {"doors": 5}),
        ("footprint.py", ("--embedder", "hashing"), {"goals": 2}),
        ("window.py", ("--rounds", "2"), {"milliseconds": 2, "goals": 4}),
        ("recall_scale.py", ("--only", "memlayer", "chroma"), {"found": 2, "goals": 3}),
    ],
)
def test_a_benchmark_of_costs_runs_and_compares_them_with_its_goals(script, options, told) -> None:
    result = run(script, *options)
    assert {name: len(result[name]) for name in told} == told
    assert all({"goal", "measured", "met"} < set(goal) for goal in result["goals"])


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
def test_recall_tells_which_lines_are_found_and_told_in_three_formats(tmp_path):
    scorer = tmp_path / "scorer.py"
    scorer.write_text(
        "class Scorer:\n    def index(self, turns):\n        self.ids = [turn['id'] for turn in turns]\n"
        "    def search(self, query, k):\n        return self.ids[:k]\n"
    )
    files = locomo_file(tmp_path), beam_folder(tmp_path / "beam"), FOLDER / "data" / "talks"
    beside = ("--scorer", str(scorer), "--only", "memlayer", "chroma", "bm25", "scorer")
    result = run("recall.py", *map(str, files), *beside, "--embedder", "hashing")

    talk, chat, ours = (result["data"][str(file)]["found"] for file in files)
    assert [result["data"][str(file)]["turns"] for file in files[:2]] == [40, 2]
    assert list(talk) == ["memlayer, hashing", "Chroma alone", "BM25 alone", "scorer.py"]
    told = talk["memlayer, hashing"]
    assert told["questions"] == 3
    assert 0 < told["first_8"] <= told["first_10"] <= 100
    assert 0 < told["in_1024"] <= 100
    assert chat["memlayer, hashing"]["contexts"]["all"]["needed"] == 100
    assert talk["Chroma alone"]["contexts"] == {}, "only a memory composes a context"
    shown = ours["memlayer, hashing"]["contexts"]
    assert shown["question"]["needed"] > 0
    assert 0 < shown["question"]["precision"] < 100
    assert ours["scorer.py"]["first_8"] < ours["memlayer, hashing"]["first_8"]
    assert {goal["goal"].rpartition(": ")[2] for goal in result["goals"]} <= {"silent", "tokens"}


@pytest.mark.slow
@pytest.mark.requirement("J20")
def test_judge_model_tells_a_model_that_learns_nothing_from_one_that_learns_everything(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(
        """
import json, re

def mute(instructions, prompt):
    return '{"operations": []}'

def parrot(instructions, prompt):
    said = re.findall(r"\\[([0-9]+)\\] [0-9-]+ user: (.*)", prompt)
    every = [{"op": "add", "value": one, "quote": one, "messages": [int(at)], "many": True} for at, one in said]
    return json.dumps({"operations": every})
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    mute, parrot = (run("judge_model.py", f"models:{name}") for name in ("mute", "parrot"))
    languages = ("en", "de", "zh")
    for language in languages:
        assert [mute["good"][f"{kind}, {language}"] for kind in ("statement", "trap")] == [0, 100]
        assert parrot["good"][f"statement, {language}"] > mute["good"][f"statement, {language}"]
        assert parrot["good"][f"trap, {language}"] < 100
        for kind in ("wish", "change"):
            assert mute["good"][f"{kind}, {language}"] == parrot["good"][f"{kind}, {language}"] == 0
    assert mute["costs"]["calls"] == 2 * len(languages) * (1 + 2 + 1 + 2)
    assert mute["costs"]["gave_up"] == 0


def test_small_model_says_what_is_missing_and_counts_what_became_of_each_call():
    """Two bad models stand for the small one: one talks, and one quotes what nobody said."""
    command = [sys.executable, str(FOLDER / "small_model.py"), "--quick"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("SKIPPED")
    talk = next(one for one in talks.read_talks(small_model.TALKS) if one.name == small_model.TALK)
    lie = json.dumps({"operations": [{"op": "add", "value": "x", "quote": "never said", "messages": [1]}]})
    for answer, outcome in (("Sure! Here is a story.", "learn: gave up"), (lie, "learn: refused")):
        row = small_model.measured(lambda *_, said=answer: said, talk.turns[:24])
        assert row["calls"] > 0
        assert outcome in row["outcomes"]
        for what in ("unknown outcomes", "left", "without evidence", "records"):
            assert row[what] == 0, what
