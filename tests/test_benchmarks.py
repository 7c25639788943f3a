"""The benchmarks run, and memlayer makes no error in them; their data is as it says. How fast it is, is not a test's matter."""

import json
import subprocess
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import small_model
import talks
from locomo import DataFormatError, read, read_all

from memlayer_core.models import multilingual
from memlayer_core.storage.terms import language_of

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def measured(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / script), "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def run(script: str, *options: str) -> dict[str, Any]:
    return measured(script, "--quick", *options)


COSTS = [
    ("turn_cost.py", ("--rounds", "1", "--turns", "4"), {"messages": 2}),
    ("doors.py", ("--turns", "2"), {"doors": 5}),
    ("footprint.py", ("--embedder", "hashing"), {"goals": 2}),
    ("window.py", ("--rounds", "2"), {"milliseconds": 2, "goals": 4}),
    ("recall_scale.py", ("--only", "memlayer", "chroma"), {"found": 2, "goals": 3}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "options", "told"), COSTS)
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
    texts = [f"I count {at}: {subjects[at % 2]}{' and so on' * 30}." for at in range(40)]
    speakers = ["Ann", "Ben"] * 20
    said = [{"speaker": speakers[at], "dia_id": f"D1:{at}", "text": text} for at, text in enumerate(texts)]
    said[7] |= {"text": "Look what I found!", "blip_caption": "a red bicycle"}
    told = {"speaker_a": "Ann", "speaker_b": "Ben", "session_1": said}
    told["session_1_date_time"] = "1:56 pm on 8 May, 2023"
    even, odd = ([f"D1:{at}" for at in range(first, 40, 2)] for first in (0, 1))
    asked = [
        {"question": "Who showed a red bicycle?", "evidence": ["D1:7"], "category": 4},
        {"question": "Which boats lie in the harbour?", "evidence": even, "category": 1},
        {"question": "What does Ben count?", "evidence": odd, "category": 3},
        {"question": "What was never said?", "evidence": ["D1:1"], "category": 5},
    ]
    file = folder / "talks.json"
    file.write_text(json.dumps([{"conversation": told, "qa": asked}]))
    return file


def beam_folder(folder: Path) -> Path:
    """Write a chat with an assistant, and questions of two kinds."""
    folder.mkdir()
    texts = {"user": "My tortoise is called Zarquon.", "assistant": "Noted."}
    said = [
        {"role": role, "id": at, "content": f"{text} ->-> 1,{at}", "time_anchor": "March-15-2024"}
        for at, (role, text) in enumerate(texts.items())
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


# Facts in seven languages, talks in three; and what is found in them


FACTS: dict[str, Any] = json.loads((FOLDER / "data" / "languages.json").read_text(encoding="utf-8"))
FILES = sorted((FOLDER / "data" / "talks").glob("*.json"))
TALKS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
KINDS = {"question": 22, "remark": 7, "follow_up": 8, "small_talk": 5, "task": 5}


@pytest.mark.parametrize("name", TALKS)
def test_a_talk_has_dated_sessions_and_each_label_names_a_turn(name: str) -> None:
    talk = TALKS[name]
    times = [datetime.fromisoformat(session["date"]) for session in talk["sessions"]]
    turns = {turn["id"]: turn for session in talk["sessions"] for turn in session["turns"]}
    assert all(before < after for before, after in pairwise([*times, datetime.fromisoformat(talk["asked"])]))
    assert all(time.tzinfo is not None for time in times)
    assert len(turns) == sum(len(session["turns"]) for session in talk["sessions"]) >= 90
    assert {turn["role"] for turn in turns.values()} == {"user", "assistant"}
    assert {kind: sum(one["kind"] == kind for one in talk["questions"]) for kind in KINDS} == KINDS
    for one in talk["questions"]:
        assert {*one["needed"], *one["bears"]} <= set(turns), one
        assert bool(one["needed"]) == (one["kind"] in {"question", "follow_up"}), one
        assert bool(one.get("before")) == (one["kind"] == "follow_up"), one


def test_each_language_has_its_facts_and_talks_and_hardly_a_text_is_taken_for_one_of_another() -> None:
    assert set(FACTS) == {"en", "de", "fr", "es", "ru", "ja", "zh"}
    assert [talk["language"] for talk in TALKS.values()] == ["de"] * 3 + ["en"] * 3 + ["zh"] * 3
    for language, data in FACTS.items():
        rows = data["facts"]
        assert len({row["fact"] for row in rows}) == len({row["question"] for row in rows}) == 40
        assert len(set(data["unrelated"])) == len(set(data["small_talk"])) == 10
        told = [language_of(text) for row in rows for text in row.values()]
        assert sum(one in {language, ""} for one in told) >= 70, language
        assert sum(one == language for one in told) >= 48, language


@pytest.mark.slow
def test_facts_are_found_by_other_words_in_each_language() -> None:
    if not multilingual.is_present():
        pytest.skip("the multilingual embedder is not installed")
    result = measured("languages.py", "--embedder", "multilingual")
    missed = [one for one in result["goals"] if not one["met"]]
    assert not missed


@pytest.mark.slow
def test_a_context_tells_most_of_what_people_ask_a_week_later_in_few_lines() -> None:
    """Goals are those of the talks that nobody looked at while weights and bars were chosen, less a few points."""
    if not multilingual.is_present():
        pytest.skip("the multilingual embedder is not installed")
    result = measured("recall.py", "--reserve", "--embedder", "multilingual")
    (told,) = result["data"].values()
    contexts = told["found"]["memlayer, multilingual"]["contexts"]
    assert contexts["question"]["needed"] >= 65
    assert contexts["question"]["lines"] <= 8
    assert contexts["question"]["silent"] <= 5
    assert contexts["follow_up"]["needed"] >= 75
    assert contexts["remark"]["bears"] >= 30


# Conversations in LoCoMo's format


def sample(**changes: Any) -> dict[str, Any]:
    conversation = {
        "speaker_a": "Ada",
        "speaker_b": "Bo",
        "session_2_date_time": "12:09 am on 13 September, 2023",
        "session_2": [{"speaker": "Ada", "dia_id": "D2:1", "text": "The kettle whistles in the kitchen."}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ada", "dia_id": "D1:1", "text": "My parrot is called Zarquon."},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "Look!", "blip_caption": "a red bicycle"},
        ],
        "session_9_date_time": "1:00 pm on 9 October, 2023",
    }
    named = {"answer": "Zarquon", "evidence": ["D1:1"], "category": 4}
    unknown = {"question": "Of no evidence?", "answer": 7, "evidence": [], "category": 5}
    asked = [{"question": "What is the parrot called?", **named}, unknown]
    return {"conversation": {**conversation, **changes}, "qa": asked}


def write(directory: Path, content: Any) -> Path:
    file = directory / "told.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def test_a_conversation_is_read_with_its_sessions_in_order_dates_names_and_pictures(tmp_path: Path):
    told = read(write(tmp_path, [{"conversation": "not looked at"}, sample()]), 2)
    assert (told.speakers, told.turns) == (("Ada", "Bo"), 3)
    assert [session.session_id for session in told.sessions] == ["session_1", "session_2"]
    assert [(said.role, said.name, said.text) for said in told.sessions[0].messages] == [
        ("user", "Ada", "My parrot is called Zarquon."),
        ("assistant", "Bo", "Look! [shares a picture: a red bicycle]"),
    ]
    dates = [f"{session.date:%Y-%m-%d %H:%M %Z}" for session in told.sessions]
    assert dates == ["2023-05-08 13:56 UTC", "2023-09-13 00:09 UTC"]
    assert (told.questions[0].text, told.questions[0].evidence) == ("What is the parrot called?", ("D1:1",))
    assert [(question.answer, question.category) for question in told.questions] == [("Zarquon", 4), ("7", 5)]
    one, other = read_all(write(tmp_path, [sample(), sample()]), picture="[image: {}]")
    assert one == other
    assert one.sessions[0].messages[1].text == "Look! [image: a red bicycle]"


def test_evidence_is_read_as_it_was_meant_and_names_turns_that_exist(tmp_path: Path):
    for written, meant in (
        (["D1:2", "D1:1", "D1:2"], ["D1:2", "D1:1"]),
        (["D1:1; D2:1"], ["D1:1", "D2:1"]),
        (["D1:1-D1:3"], ["D1:1", "D1:2"]),
        (["D1:1-D2:1"], ["D1:1", "D2:1"]),
        (["D:1:01", "D 1:2."], ["D1:1", "D1:2"]),
        (["D1:99", "D", "nothing"], []),
    ):
        told = {**sample(), "qa": [{"question": "Which?", "answer": "these", "evidence": written}]}
        assert read(write(tmp_path, [told])).questions[0].evidence == tuple(meant)


# One has a third speaker.
CHANGES = (
    {"speaker_a": ""},
    {"speaker_b": "Carl"},
    {"session_1": ["hello"]},
    {"session_1": [], "session_2": []},
)
TORN = "{", "[" * 100_000, "{}", "[]", "[1]", [sample(session_1_date_time="2023-05-08")]
BROKEN = [(one, 1, "told.json") for one in (*TORN, *([sample(**change)] for change in CHANGES))]
MISSING = [([sample()], number, f"no conversation {number}") for number in (2, 0)]


@pytest.mark.parametrize(("content", "number", "says"), [*BROKEN, *MISSING])
def test_what_is_not_in_this_format_is_refused_in_words(tmp_path: Path, content: Any, number: int, says: str):
    with pytest.raises(DataFormatError, match=says):
        read(write(tmp_path, content), number)
