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


@pytest.mark.parametrize(
    ("content", "number", "says"),
    [
        ("{", 1, "told.json"),
        ([sample(speaker_b="Carl")], 1, "told.json"),  # a third speaker
        ([sample(session_1_date_time="2023-05-08")], 1, "told.json"),
        ([sample()], 2, "no conversation 2"),
        ([sample()], 0, "no conversation 0"),
    ],
)
def test_what_is_not_in_this_format_is_refused_in_words(tmp_path: Path, content: Any, number: int, says: str):
    with pytest.raises(DataFormatError, match=says):
        read(write(tmp_path, content), number)
