"""The arguments of agents' memory tools, as a model sees them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

__all__ = [
    "CorrectArguments",
    "FactArguments",
    "ForgetArguments",
    "RecordArguments",
    "ReloadArguments",
    "RetrieveArguments",
]


class FactArguments(BaseModel):
    """One thing to record, with what it is about and who says it."""

    text: str = Field(description="A whole sentence that can be understood by itself.")
    key: str | None = Field(
        None,
        description='What it is about, such as "home", "job" or "allergy". What you conclude under a key later replaces '
        "what you concluded before.",
    )
    value: str | None = Field(None, description='The value under the key, in few words, such as "Berlin".')
    asserted_by: Literal["agent", "user"] = Field(
        "agent", description='"user" only if the user said it in this conversation; then `quote` is needed.'
    )
    quote: str | None = Field(
        None, description="The user's own words, copied exactly from a message of this conversation."
    )


class RecordArguments(BaseModel):
    """Arguments of the record tool."""

    thinking: str = Field(description="Why this is worth remembering. It is not recorded.")
    content: list[str | FactArguments] = Field(
        description="What to remember: each a whole sentence that can be understood by itself; or an object, for a fact with "
        "a key, or for what the user said."
    )


class RetrieveArguments(BaseModel):
    """Arguments of the retrieve tool."""

    keywords: list[str] = Field(
        description="What to look for, each short and specific: a name, a date, a place, a topic."
    )


class CorrectArguments(BaseModel):
    """Arguments of the correct tool."""

    memory_id: str = Field(
        description='The record, as `retrieve_from_memory` names it, such as "u7_mem_001".'
    )
    text: str = Field(description="What it should say: a whole sentence.")
    reason: str = Field(description="Why it is wrong or out of date. This is kept with the new version.")
    value: str | None = Field(None, description="The new value, if the record is a fact with a key.")
    quote: str | None = Field(
        None,
        description="The user's own words that say so, copied exactly from a message of this conversation. Needed for a "
        "record that the user said.",
    )


class ForgetArguments(BaseModel):
    """Arguments of the forget tool."""

    memory_ids: list[str] = Field(description="The records, as `retrieve_from_memory` names them.")
    quote: str | None = Field(
        None,
        description="The words with which the user asks for it, copied exactly from a message of this conversation. Needed "
        "for a record that the user said.",
    )


class ReloadArguments(BaseModel):
    """Arguments of the reload tool."""

    id: str = Field(description='The id that the preview names, such as "msg-17".')
    offset: int = Field(0, description="Characters to pass over, as the part before says.")
