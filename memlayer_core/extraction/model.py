"""What a model is shown of a conversation, and what it may answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memlayer_core.records.model import USER, Modality

__all__ = ["Line", "Operation", "Operations", "Refusal"]


@dataclass(frozen=True, slots=True)
class Line:
    """A message that a model reads.

    Attributes:
        speaker: Who said it.
        text: What it says: redacted, and without what memory itself told.
        said_at: When it was said.
        number: Its number in the prompt, from 1; None: it is there to be understood, and says nothing new.
        message_id: Id of the message.
    """

    speaker: str
    text: str
    said_at: datetime
    number: int | None = None
    message_id: str = ""


class Operation(BaseModel):
    """What a model says about one fact.

    Attributes:
        op: `"add"`: it is new. `"update"`: a known fact has another value. `"end"`: a known fact holds no longer.
            `"confirm"`: a known fact is said again. `"none"`: nothing.
        fact: Number of the known fact, from 1; None: none.
        subject: `"user"`, or of whom it is said.
        key: What it is about; None: nothing that has a name.
        value: The value, in words of the quote.
        modality: Whether it is stated, wanted, planned, denied, or was so in the past.
        since: The words that say from when on it holds; None: none do.
        until: The words that say until when it holds; None: none do.
        messages: Numbers of the lines that say it.
        quote: The words of a line that say it.
        reason: The model's reason.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    op: Literal["add", "update", "end", "confirm", "none"]
    fact: int | None = None
    subject: str = Field(default=USER, max_length=200)
    key: str | None = Field(default=None, max_length=100)
    value: str = Field(default="", max_length=2000)
    modality: Modality = "states"
    since: str | None = Field(default=None, max_length=200)
    until: str | None = Field(default=None, max_length=200)
    messages: tuple[int, ...] = ()
    quote: str = Field(default="", max_length=2000)
    reason: str = Field(default="", max_length=500)

    @field_validator("op", mode="before")
    @classmethod
    def _in_small_letters(cls, value: Any) -> Any:
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("subject", "value", "quote", "reason", "modality", mode="before")
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operation that makes no fact.

    Attributes:
        reason: Why, in plain words.
        place: Place of its message among the numbered lines.
        subject: Of whom it was said.
        key: What it was about.
        value: The value.
    """

    reason: str
    place: int
    subject: str | None = None
    key: str | None = None
    value: str | None = None
