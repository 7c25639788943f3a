"""The conversation that the demo plays: who says what, how long ago, and through which framework."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PLAIN", "STORY", "USER", "Framework", "Part"]

Framework = str
"""`"langchain"`, `"llamaindex"` or `"plain"`: the name of the module of `memlayer_core.demo` that plays it."""

PLAIN: Framework = "plain"
USER = "maya"
_BY_HEART = "I only recite lines. What a real model would answer from is shown below."


@dataclass(frozen=True, slots=True)
class Part:
    """One session of the story.

    Attributes:
        session_id: Its id.
        weeks_ago: How long before the present it happened.
        frameworks: What it is played with, the first that is installed.
        lines: What the user says, and what the scripted model recites.
        looked_at: How many of its last lines are questions whose context is shown in full.
    """

    session_id: str
    weeks_ago: int
    frameworks: tuple[Framework, ...]
    lines: tuple[tuple[str, str], ...]
    looked_at: int = 0


STORY = (
    Part(
        "summer",
        10,
        ("langchain", "llamaindex", PLAIN),
        (
            (
                "Hi, I'm Maya. My sister Lena is moving to Porto, and I want to visit her there.",
                "Nice to meet you, Maya. A visit to Lena in Porto, then.",
            ),
            (
                "Lena collects old maps, so I would like to bring her one of Graz, our home town.",
                "An old map of Graz for Lena.",
            ),
            ("顺便说一句，我对花生过敏，订餐厅的时候请记得。", "好的，我会记得花生过敏的事。"),  # noqa: RUF001
            (
                "While I am away, my dog Bruno stays with our neighbour, Mr. Novak.",
                "Bruno will be in good hands with Mr. Novak.",
            ),
        ),
    ),
    Part(
        "tickets",
        3,
        ("llamaindex", "langchain", PLAIN),
        (
            (
                "The tickets are booked: flight TP 1273, leaving at 6:40 in the morning.",
                "TP 1273 at 6:40. An early start.",
            ),
            (
                "My new job at the library begins two days after I am back.",
                "Congratulations! That leaves one day to unpack.",
            ),
        ),
    ),
    Part(
        "packing",
        0,
        ("langchain", "llamaindex", PLAIN),
        (
            ("Good morning! I am packing for the trip.", "Good morning, Maya. Let us go through the list."),
            ("What did I want to bring Lena from our home town?", _BY_HEART),
            ("点菜之前再确认一下：我对什么过敏？", "我只会背台词。"),  # noqa: RUF001
        ),
        looked_at=2,
    ),
)
