"""How an agent reads a memory, and the arguments of its tools as a model sees them.

They are short, since every call of a model has them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field

from memlayer_core.errors import ConfigurationError

__all__ = [
    "QUOTE",
    "CorrectArguments",
    "FactArguments",
    "ForgetArguments",
    "Mode",
    "RecordArguments",
    "ReloadArguments",
    "RetrieveArguments",
    "check_mode",
]

Mode: TypeAlias = Literal["STATIC", "AGENT", "BOTH"]
"""How an agent reads the memory: `"STATIC"`, by recall; `"AGENT"`, by tools; or `"BOTH"`."""
QUOTE = "The user's words, exactly as in a message here."
"""What a model is told of an argument that quotes the user."""


def _shorten(schema: dict[str, Any]) -> None:
    """Leave out of a schema what tells a model nothing: titles, and the class's own docstring."""
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)


def check_mode(mode: object) -> None:
    """Check how an agent reads the memory.

    Raises:
        ConfigurationError: It is no `Mode`.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(
            f"unknown mode {mode!r:.80}", hint=f"Use one of {', '.join(map(repr, get_args(Mode)))}."
        )


class _Arguments(BaseModel):
    model_config = ConfigDict(json_schema_extra=_shorten)


class FactArguments(_Arguments):
    """One thing to record, with what it is about and who says it. Texts that are empty are not given."""

    text: str = Field(description="A whole sentence.")
    key: str = Field("", description='What it is about: "home", "job", "allergy".')
    value: str = Field("", description='In few words: "Berlin".')
    asserted_by: Literal["agent", "user"] = Field("agent", description='"user" needs `quote`.')
    quote: str = Field("", description=QUOTE)


class RecordArguments(_Arguments):
    """Arguments of the record tool."""

    thinking: str = Field(description="Why this is worth remembering. It is not recorded.")
    content: list[str | FactArguments] = Field(
        description="What to remember: each a whole sentence that can be understood by itself; as an object if it has a key, "
        "or if the user said it."
    )


class RetrieveArguments(_Arguments):
    """Arguments of the retrieve tool."""

    keywords: list[str] = Field(
        description="What to look for, each short and specific: a name, a date, a place, a topic."
    )


class CorrectArguments(_Arguments):
    """Arguments of the correct tool. Texts that are empty are not given."""

    memory_id: str = Field(description="As in the answer of `retrieve_from_memory`.")
    text: str = Field(description="What the record should say.")
    reason: str
    value: str = Field("", description="The new value, if it has a key.")
    quote: str = Field("", description=QUOTE)


class ForgetArguments(_Arguments):
    """Arguments of the forget tool. A quote that is empty is not given."""

    memory_ids: list[str] = Field(description="As in the answer of `retrieve_from_memory`.")
    quote: str = Field("", description=QUOTE)


class ReloadArguments(_Arguments):
    """Arguments of the reload tool."""

    id: str = Field(description='The id that the preview names, such as "msg-17".')
    offset: int = Field(0, description="Characters to pass over, as the part before says.")
