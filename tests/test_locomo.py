"""Conversations in LoCoMo's format are read as they were meant, and whatever else is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from locomo import DataFormatError, read, read_all


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
    return {
        "conversation": {**conversation, **changes},
        "qa": [
            {
                "question": "What is the parrot called?",
                "answer": "Zarquon",
                "evidence": ["D1:1"],
                "category": 4,
            },
            {"question": "Of no evidence?", "answer": 7, "evidence": [], "category": 5},
        ],
    }


def write(directory: Path, content: Any) -> Path:
    file = directory / "told.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def test_a_conversation_is_read_with_dates_names_and_pictures(tmp_path: Path):
    told = read(write(tmp_path, [{"conversation": "not looked at"}, sample()]), 2)
    assert (told.speakers, told.turns) == (("Ada", "Bo"), 3)
    assert [(said.role, said.name, said.text) for said in told.sessions[0].messages] == [
        ("user", "Ada", "My parrot is called Zarquon."),
        ("assistant", "Bo", "Look! [shares a picture: a red bicycle]"),
    ]
    assert f"{told.sessions[0].date:%Y-%m-%d %H:%M %Z}" == "2023-05-08 13:56 UTC"
    assert (told.questions[0].text, told.questions[0].evidence) == ("What is the parrot called?", ("D1:1",))


@pytest.mark.parametrize("number", [0, 2])
def test_a_conversation_that_the_file_does_not_have_is_refused(number: int, tmp_path: Path):
    with pytest.raises(DataFormatError, match=f"no conversation {number}") as raised:
        read(write(tmp_path, [sample()]), number)
    assert "It has 1" in raised.value.hint


def test_a_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(DataFormatError, match="cannot be read"):
        read(tmp_path / "missing.json")


def test_sessions_come_in_their_order_and_dates_without_a_session_are_left_out(tmp_path: Path):
    told = read(write(tmp_path, [sample()]))
    assert [session.session_id for session in told.sessions] == ["session_1", "session_2"]
    assert told.sessions[1].date.hour == 0
    assert told.questions[1].answer == "7"
    assert [question.category for question in told.questions] == [4, 5]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["D1:2", "D1:1", "D1:2"], ["D1:2", "D1:1"]),
        (["D1:1; D2:1"], ["D1:1", "D2:1"]),
        (["D1:1-D1:3"], ["D1:1", "D1:2"]),
        (["D1:1-D2:1"], ["D1:1", "D2:1"]),
        (["D1:2-D1:1"], ["D1:2", "D1:1"]),
        (["D:1:01", "D 1:2."], ["D1:1", "D1:2"]),
        (["D1:99", "D", "nothing"], []),
    ],
)
def test_evidence_is_read_as_it_was_meant_and_names_turns_that_exist(
    written: list[str], meant: list[str], tmp_path: Path
):
    told = {**sample(), "qa": [{"question": "Which?", "answer": "these", "evidence": written}]}
    assert read(write(tmp_path, [told])).questions[0].evidence == tuple(meant)


def test_every_conversation_is_read_and_a_picture_is_written_as_wanted(tmp_path: Path):
    one, other = read_all(write(tmp_path, [sample(), sample(speaker_b="Bo")]), picture="[image: {}]")
    assert one == other
    assert one.sessions[0].messages[1].text == "Look! [image: a red bicycle]"


WRONG = {
    "not JSON": "{",
    "too deep": "[" * 100_000,
    "not a list": "{}",
    "nothing in it": "[]",
    "a sample that is none": "[1]",
    "no conversation": [{}],
    "no speakers": [sample(speaker_b=None)],
    "a nameless user": [sample(speaker_a="")],
    "a third speaker": [sample(speaker_b="Carl")],
    "a session without a date": [sample(session_1_date_time=None)],
    "a date in another form": [sample(session_1_date_time="2023-05-08")],
    "turns that are none": [sample(session_1=["hello"])],
    "a turn without a text": [sample(session_1=[{"speaker": "Ada", "dia_id": "D1:1"}])],
    "no turns": [sample(session_1=[], session_2=[])],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_not_in_this_format_is_refused_in_words(tmp_path: Path, what: str):
    with pytest.raises(DataFormatError) as raised:
        read(write(tmp_path, WRONG[what]))
    assert "told.json" in str(raised.value)
