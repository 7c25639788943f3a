"""Tries a model as an extractor: five batches of ours, learned from as any message is, and what came of them."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any

from pydantic import BaseModel

from memlayer_core.cli.spec import load_object
from memlayer_core.errors import ConfigurationError, InputError, ModelError
from memlayer_core.extraction.rules.answer import AnswerError, operations_in
from memlayer_core.memory import Memory
from memlayer_core.message import Message
from memlayer_core.models.llm import LanguageModel, language_model
from memlayer_core.records.facts import LedgerEntry
from memlayer_core.seams import Reply
from memlayer_core.settings import Settings
from memlayer_core.show import View, Viewable

__all__ = ["Trial", "batches", "load_model", "try_model"]

_RIGHT = 0.75  # of the facts, at least
_WRONG = 1  # facts, at the most
_UNREADABLE = 0.2  # of the replies, at the most
_BEGIN = datetime(2026, 5, 4, 9, tzinfo=UTC)
_FACTLESS = {"refused", "given up", "quarantined"}


@dataclass(slots=True)
class Trial(Viewable):
    """What a model made of the batches.

    Attributes:
        model: Its name.
        facts: How many changes of what is known the messages state.
        right: How many of them it made.
        missing: The others, each with its message.
        wrong: What it stored that no message says of the user.
        refusals: What it said that no message supports, and was therefore not stored, each with the reason.
        calls: How often it was asked.
        unreadable: How many replies could not be read.
        failures: Why it did not answer, call by call.
        seconds: How long it took, in all.
        slowest: How long the slowest reply took, in seconds.
        tokens: Tokens that it read and wrote, as it told, or as they were counted.
        verdict: Why it is good enough, or why not.
        is_good: Whether it is good enough.
    """

    model: str
    facts: int = 0
    right: int = 0
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: int = 0
    unreadable: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    tokens: int = 0
    verdict: str = ""
    is_good: bool = False

    def _view(self) -> View:
        return View(
            rows=(
                ("Model", self.model),
                ("Right", f"{self.right} of {self.facts} facts"),
                *(("Missing", one) for one in self.missing),
                ("Wrong", f"{len(self.wrong)} fact(s)"),
                *(("Wrong", one) for one in self.wrong),
                ("Refused", f"{len(self.refusals)} answer(s), which memlayer did not store"),
                *(("Refused", one) for one in self.refusals),
                ("Unreadable", f"{self.unreadable} of {self.calls} replies"),
                *(("No answer", one) for one in self.failures),
                ("Seconds", f"{self.seconds:.1f} in all, {self.slowest:.1f} for the slowest reply"),
                ("Tokens", f"{self.tokens:,} in all"),
                ("Verdict", self.verdict),
            )
        )


def load_model(spec: str) -> Any:
    """Return the model that `package.module:attribute` names.

    Raises:
        InputError: It cannot be imported, is not there, or is no model.
    """
    model = load_object(spec, "--model")
    try:
        language_model(model, task="an extractor")
    except ConfigurationError as problem:
        raise InputError(str(problem), hint=problem.hint) from None
    return model


def batches() -> list[dict[str, Any]]:
    """Return the batches of the data file."""
    text = (files("memlayer_core.cli") / "data" / "trial.toml").read_text("utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["batch"]
    return found


def try_model(model: Any, status: Callable[[str], AbstractContextManager[Any]]) -> Trial:
    """Let a model read the batches, in a memory that is deleted again, and judge what is known afterwards.

    Args:
        model: What `Memory.open(extractor=…)` takes.
        status: Shows what is being done while its context is open.
    """
    settings = Settings().replace(
        learn=True,
        index_delay=0,
        durability="normal",
        episodes=False,
        extraction_turns=20,
        extraction_idle_seconds=0,
        extraction_daily_calls=None,
        extraction_daily_tokens=None,
        job_attempts=1,
        job_backoff=0,
    )
    asked = language_model(model, settings.model_timeout, task="an extractor")
    assert asked is not None
    trial = Trial(asked.name)
    with Memory.in_memory(extractor=_Watch(asked, trial), tokenizer="auto", settings=settings) as memory:
        for number, batch in enumerate(batches()):
            with status(f"Batch {number + 1} of 5: {batch['name']} …"):
                _play(memory, batch, number)
            _judge(memory, batch, number, trial)
            if trial.failures and not trial.calls:
                break  # it has never answered
        for user in dict.fromkeys(batch["user"] for batch in batches()):
            entries = memory.ledger(user_id=user, limit=1000)
            refused = (one for one in reversed(entries) if one.outcome == "refused")
            trial.refusals += [f"{one.subject}: {one.value}: {one.reason}" for one in refused]
        trial.tokens = sum(
            cost.tokens_in + cost.tokens_out for cost in memory.costs() if cost.kind == "learn"
        )
    _decide(trial)
    return trial


class _Watch(LanguageModel):
    """A model whose replies are counted and timed."""

    def __init__(self, model: LanguageModel, trial: Trial) -> None:
        super().__init__(model.name, model.ask)
        self._model, self._trial = model, trial

    def ask(self, instructions: str, text: str, schema: type[BaseModel] | None = None) -> Reply:
        """Ask the model."""
        began = time.monotonic()
        try:
            reply = self._model.ask(instructions, text, schema)
        except ModelError as problem:
            cause = problem.__cause__
            detail = f": {cause}" if cause is not None else ""
            self._trial.failures.append(f"{problem}{detail}"[:500])
            raise
        finally:
            took = time.monotonic() - began
            self._trial.seconds += took
            self._trial.slowest = max(self._trial.slowest, took)
        self._trial.calls += 1
        try:
            operations_in(reply.text)
        except AnswerError:
            self._trial.unreadable += 1
        return reply


def _play(memory: Memory, batch: dict[str, Any], number: int) -> None:
    """Say the messages of a batch, and wait until they are learned from."""
    at = _BEGIN + timedelta(days=30 * number)
    memory.chat(user_id=batch["user"], session_id=batch["name"]).add_messages(
        [
            Message("user", one["text"], id=f"{number}-{place}", created_at=at + timedelta(minutes=place))
            for place, one in enumerate(batch["message"])
        ]
    )
    memory.flush()


def _judge(memory: Memory, batch: dict[str, Any], number: int, trial: Trial) -> None:
    """Compare what is known after a batch with what its messages state."""
    in_force = [f"{one.value} {one.raw}" for one in memory.records(user_id=batch["user"], limit=1000)]
    about = {f"{number}-{place}": one for place, one in enumerate(batch["message"])}
    entries = [
        (entry, about[entry.evidence.message_id])
        for entry in memory.ledger(user_id=batch["user"], limit=1000)
        if entry.evidence is not None and entry.evidence.message_id in about
    ]
    for message in about.values():
        if not ("holds" in message or "ends" in message):
            continue
        trial.facts += 1
        before = [text for text in in_force if message.get("ends", "\0") in text]
        is_new = "holds" not in message or any(message["holds"] in text for text in in_force)
        stale = [text for text in before if message.get("holds", "\0") not in text]
        if is_new and not stale and any(one is message and _is_stored(entry) for entry, one in entries):
            trial.right += 1
        else:
            trial.missing.append(message["text"])
    for entry, message in entries:
        if _is_stored(entry) and _is_wrong(entry, message):
            trial.wrong.append(f"{entry.subject}: {entry.value}, of {message['text']!r}")


def _is_stored(entry: LedgerEntry) -> bool:
    return entry.outcome not in _FACTLESS


def _is_wrong(entry: LedgerEntry, message: dict[str, Any]) -> bool:
    """Tell whether a fact was stored that the message does not state: of nobody, or of the user what somebody else says."""
    if "other" in message:
        return entry.subject == "user"
    return not ("holds" in message or "ends" in message)


def _decide(trial: Trial) -> None:
    """Say whether the model is good enough, and why not."""
    faults = []
    if trial.failures:
        faults.append(
            f"it did not answer {len(trial.failures)} time(s): look at its credentials, its network, or `MEMLAYER_MODEL_TIMEOUT`"
        )
    if trial.right < _RIGHT * trial.facts:
        faults.append(f"it made {trial.right} of {trial.facts} facts, and {_RIGHT:.0%} are wanted")
    if len(trial.wrong) > _WRONG:
        faults.append(f"it stored {len(trial.wrong)} wrong facts, and {_WRONG} is allowed")
    if trial.unreadable > _UNREADABLE * trial.calls:
        faults.append(f"{trial.unreadable} of {trial.calls} replies could not be read")
    trial.is_good = not faults
    trial.verdict = (
        "good enough as an extractor" if trial.is_good else f"not good enough: {'; '.join(faults)}"
    )
