"""What a model is shown of a conversation, and what it may answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memlayer_core.records.model import USER, Modality


@dataclass(frozen=True, slots=True)
class Line:
    """A message that a model reads.

    Attributes:
        speaker: Who said it: `"user"`, `"assistant"`, or the name of somebody else.
        text: What it says: redacted, and without what memory itself told.
        said_at: When it was said.
        number: Its number in the prompt, from 1; None: it is there to be understood, and says nothing new.
        key: Key of the message; 0: it has no number.
        original: The message as it is stored.
    """

    speaker: str
    text: str
    said_at: datetime
    number: int | None = None
    key: int = 0
    original: str = ""


class Operation(BaseModel):
    """What a model says about one fact.

    Attributes:
        op: `"add"`: it is new. `"update"`: a known fact has another value. `"end"`: a known fact holds no longer.
            `"confirm"`: a known fact is said again. `"none"`: nothing.
        fact: Number of the known fact, from 1; None: none.
        subject: `"user"`, or of whom it is said.
        key: What it is about; None: nothing that has a name.
        category: `"identity"`, `"preference"`, `"skill"`, `"relationship"`, `"habit"` or another kind; None: a state.
        value: The value.
        text: The fact as a sentence; empty: the quote.
        modality: Whether it is stated, wanted, planned, denied, or was so in the past.
        many: Whether several values of the key hold at a time.
        always: Whether it must be known in every conversation.
        correction: Whether a known fact was never true.
        since: From when on it holds: an ISO 8601 day, week, month or year; None: nobody said.
        until: Until when it holds, or held; None: nobody said.
        confidence: 0 to 1: how sure it is that the user says so.
        messages: Numbers of the lines that say it.
        quote: The words of a line that say it.
        reason: The model's reason.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    op: Literal["add", "update", "end", "confirm", "none"]
    fact: int | None = None
    subject: str = Field(default=USER, max_length=200)
    key: str | None = Field(default=None, max_length=100)
    category: str | None = Field(default=None, max_length=100)
    value: str = Field(default="", max_length=2000)
    text: str = Field(default="", max_length=2000)
    modality: Modality = "states"
    many: bool = False
    always: bool = False
    correction: bool = False
    since: str | None = Field(default=None, max_length=40)
    until: str | None = Field(default=None, max_length=40)
    confidence: float = Field(default=0.8, ge=0, le=1)
    messages: tuple[int, ...] = ()
    quote: str = Field(default="", max_length=2000)
    reason: str = Field(default="", max_length=500)

    @field_validator("op", mode="before")
    @classmethod
    def _in_small_letters(cls, value: Any) -> Any:
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("*", mode="before")
    @classmethod
    def _default_for_null(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].default if value is None else value

    @field_validator("messages", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """Accept null for an empty list, and a number for a list of one."""
        return () if value is None else value if isinstance(value, list | tuple) else (value,)


class Operations(BaseModel):
    """A model's whole answer: the form that a model is held to, where it can be.

    Attributes:
        operations: What it says about facts.
    """

    operations: list[Operation]


class RefusedError(Exception):
    """An operation makes no fact. Its text is the reason, without words of anybody."""
