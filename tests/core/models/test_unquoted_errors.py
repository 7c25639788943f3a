"""An error of somebody's model may quote what was said: none of that is logged, stored or told to listeners."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import text

from memlayer_core import Memory
from memlayer_core.errors import (
    EmbedderError,
    FlushTimeoutError,
    InvalidMessageError,
    MemlayerError,
    in_short,
)
from tests.conftest import PROMPT

SECRET = "my diagnosis is scurvy"
SETTINGS = PROMPT.replace(job_attempts=2, job_backoff=0.01, max_tokens=300, session_idle_days=None)


def embed(texts: list[str]) -> list[list[float]]:
    raise ValueError(f"cannot embed {texts!r}")


def answer(prompt: str) -> str:
    raise RuntimeError(f"cannot answer {prompt!r}")


def fill(memory: Memory) -> list[object]:
    """Say something secret in a session whose older turns are summed up, and ask for it from another."""
    chat, notes = memory.chat(user_id="louis", session_id="s"), []
    for number in range(12):
        chat.add("user", f"{SECRET}, number {number}, and so I eat as many oranges and lemons as I can find.")
        chat.add("assistant", "Eat more of them, and see your doctor again next week about it.")
        notes.extend(chat.context().reasons)
    notes.extend(memory.chat(user_id="louis", session_id="t").context("What is my diagnosis?").reasons)
    notes.extend(hit.reasons for hit in memory.search("What is my diagnosis?", user_id="louis"))
    return notes


def test_it_is_nowhere_but_in_the_cause(open_at, caplog) -> None:
    caplog.set_level(logging.DEBUG, "memlayer")
    memory = open_at(embedder=embed, summarizer=answer, settings=SETTINGS)
    told: list[object] = []
    memory.listen(told.append)
    told.extend(fill(memory))
    try:
        memory.flush(10)
    except FlushTimeoutError as problem:
        told.append(problem)
    status = memory.admin.status()
    told.extend(status.problems.values())
    told.extend(memory.runtime.db.read(lambda c: c.execute(text("SELECT error FROM memlayer_jobs")).all()))
    told.extend((record.getMessage(), record.exc_text, record.exc_info) for record in caplog.records)
    said = "\n".join(map(repr, told))
    assert "ValueError" in said
    assert "RuntimeError" in said
    assert status.backlog.dead
    for word in ("diagnosis", "scurvy", "oranges", "doctor"):
        assert word not in said
    with pytest.raises(EmbedderError) as raised:
        memory.runtime.embedder.embed([SECRET])
    assert SECRET not in str(raised.value)
    assert SECRET in str(raised.value.__cause__)


def test_of_errors_that_may_quote_only_the_type_is_told() -> None:
    assert in_short(ValueError(SECRET)) == "ValueError"
    assert in_short(InvalidMessageError(SECRET, hint="")) == "InvalidMessageError"
    assert in_short(MemlayerError("the disk is full", hint="")) == "the disk is full"
