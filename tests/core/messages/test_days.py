"""A message has the day of the place where it was said: in the history, in what is recalled and learned, and in an export."""

import json
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.tools import AGENT_TOOLS

TOKYO, CHICAGO = timezone(timedelta(hours=9)), ZoneInfo("America/Chicago")
SAID = "I moved to the flat in Meguro today."
PLACES = [
    (datetime(2026, 5, 15, 1, 30, tzinfo=TOKYO), timedelta(hours=9)),
    (datetime(2026, 5, 15, 22, 30, tzinfo=CHICAGO), timedelta(hours=-5)),
    (datetime(2026, 5, 15, 1, 30), timedelta(0)),  # noqa: DTZ001  (without a zone it is UTC)
]
BOAT = {"op": "add", "key": "home", "value": "Meguro", "since": "2026-05-15", "quote": SAID, "messages": [1]}


def test_the_day_is_the_users_wherever_one_is_told(open_with, tmp_path) -> None:
    """In what a model is asked for a summary, an episode and facts, too."""
    prompts: list[str] = []

    def model(prompt: str) -> str:
        prompts.append(prompt)
        if '"operations"' in prompt:
            return json.dumps({"operations": [BOAT]})
        return json.dumps({"summary": "The user moved to the flat in Meguro.", "importance": 0.5})

    settings = Tuned(index_delay=3600, durability="normal", episode_messages=1)
    memory = open_with(settings, extractor=model, summarizer=model)
    for place, (moment, _) in enumerate(PLACES):
        chat = memory.chat(user_id=f"u{place}", session_id="a")
        chat.add("user", SAID, created_at=moment)
        chat.add("assistant", "Enjoy it!", created_at=moment)
        chat.end()
    memory.flush()
    assert all("2026-05-15" in prompt for prompt in prompts)
    assert not any("2026-05-14" in prompt or "2026-05-16" in prompt for prompt in prompts)

    def check(opened: Memory, user_id: str, moment: datetime, offset: timedelta) -> None:
        (said, _) = opened.chat(user_id=user_id, session_id="a").history()
        assert said.created_at == (moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        fact, episode = sorted(opened.records(user_id=user_id), key=lambda one: one.key is None)
        assert fact.key == "home"
        for day in (said.created_at, fact.date, fact.first_observed, fact.valid_from, episode.date):
            assert (day.utcoffset(), day.day) == (offset, 15)
        assert fact.valid_from.isoformat()[:16] == "2026-05-15T00:00"
        (proof,) = opened.why(fact.memory_id, user_id=user_id).evidence
        assert proof.said_at.day == 15
        new = opened.chat(user_id=user_id, session_id="b")
        retrieve, _ = AGENT_TOOLS["retrieve_from_memory"].functions(new, None, ValueError, None)
        told = new.context("When did I move to Meguro?", pending=[Message("user", "When?")]).recall
        for text in (told, retrieve(["Meguro flat"])):
            assert "2026-05-15" in text
            assert "2026-05-14" not in text
            assert "2026-05-16" not in text
        assert opened.search("2026 May 15", user_id=user_id)[0].created_at.day == 15

    memory.export(tmp_path / "all.jsonl")
    with Memory.in_memory(embedder="hashing") as copy:
        copy.import_from(tmp_path / "all.jsonl")
        copy.flush()
        for opened in (memory, copy):
            for place, (moment, offset) in enumerate(PLACES):
                check(opened, f"u{place}", moment, offset)


def test_an_edit_keeps_the_place_and_so_do_a_version_and_a_fork(resting) -> None:
    chat = resting.chat(user_id="u8", session_id="a")
    chat.add("user", SAID, id="m1", created_at=PLACES[0][0])
    chat.edit("m1", content="I moved to the flat in Meguro yesterday.")
    fork = chat.fork(session_id="b")
    for one in (*chat.history(all_versions=True), *fork.history()):
        assert one.created_at.isoformat() == "2026-05-15T01:30:00+09:00"
