"""Reads what is said in what a runnable takes and returns: text, messages, or a dict with them under a key."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue

from memlayer_core.errors import InvalidMessageError, MessageTypeError

__all__ = ["INTERRUPTED", "STEPS", "Keys", "called", "marked", "whole"]

INTERRUPTED = "interrupted"
"""Marks an answer that ended early: in its `response_metadata`, and in the metadata of the stored message."""

STEPS = "intermediate_steps"
"""What an `AgentExecutor` calls the tool calls behind its answer, where it is asked to return them."""

_ACTIONS = "langchain_classic.agents.output_parsers.tools"

logger = logging.getLogger("memlayer")


@dataclass(frozen=True, slots=True)
class Keys:
    """Where messages are in a runnable's input and output, where these are dicts.

    Attributes:
        input: Key of what the user says.
        output: Key of what is answered.
        history: Key under which the runnable expects the conversation so far, apart from what is said now.
    """

    input: str | None = None
    output: str | None = None
    history: str | None = None

    def asked(self, value: Any) -> list[BaseMessage]:
        """Return what is said in an input.

        Raises:
            InvalidMessageError: Nobody can tell what it is.
        """
        if isinstance(value, Mapping):
            rest = [key for key in value if key != self.history]
            value = value[_key(value, rest, "input", self.input)]
        elif self.history is not None:
            raise InvalidMessageError(
                f"with `history_messages_key` the input must be a dict, got {type(value).__name__}",
                hint=f"Pass a dict such as `{{{self.input or 'input'!r}: …}}`, or leave out the key.",
            )
        if isinstance(value, str | BaseMessage):
            return [HumanMessage(value) if isinstance(value, str) else value]
        if not isinstance(value, PromptValue | list | tuple):
            raise _unreadable("said", value)
        try:
            return convert_to_messages(value)
        except (ValueError, NotImplementedError) as problem:
            raise _unreadable("said", value) from problem

    def filled(self, value: Any, history: Sequence[BaseMessage], shown: Sequence[BaseMessage]) -> Any:
        """Return what the runnable is given.

        Args:
            value: The input.
            history: What it is told of what was said before.
            shown: That, and what is said now.
        """
        if self.history is not None:
            return {**value, self.history: list(history)}
        if isinstance(value, Mapping) and self.input is not None:
            return {**value, self.input: list(shown)}
        return list(shown)

    def answered(self, output: Any, shown: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return what is answered in an output; of a list, what is not from the input; of an agent, also what it did.

        Args:
            output: What the runnable returned.
            shown: What it was given: graphs return that along with what they add.

        Raises:
            InvalidMessageError: Nobody can tell what it is.
        """
        steps: Any = None
        if isinstance(output, Mapping):
            key = _key(output, list(output), "output", self.output)
            steps, output = output.get(STEPS) if key != STEPS else None, output[key]
        if isinstance(output, AIMessage) and any(one.id == output.id for one in shown):
            output = output.model_copy(update={"id": None})  # a cache gives an answer's id again with it
        if isinstance(output, str | BaseMessage):
            return [*called(steps), AIMessage(output) if isinstance(output, str) else output]
        if not isinstance(output, list | tuple) or not all(isinstance(one, BaseMessage) for one in output):
            raise _unreadable("answered", output)
        given = list(shown)
        known = {id(one) for one in given} | {one.id for one in given if one.id is not None}
        return [one for one in output if id(one) not in known and one.id not in known]

    def begun(self, chunks: Sequence[Any], shown: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return what was answered in a stream that ended early: nothing, or messages of which the last is marked.

        Whatever ended it is what its caller is to be told, so that nothing is raised here.
        """
        if not chunks:
            return []
        try:
            said = self.answered(whole(chunks), shown)
        except MessageTypeError as problem:
            logger.warning("a stream ended early, and nothing of it is stored: %s", problem)
            return []
        except InvalidMessageError:  # what came is not the answer yet
            return []
        if not any(one.text or getattr(one, "tool_calls", ()) for one in said):
            return []
        return [*said[:-1], marked(said[-1])]


def marked(message: BaseMessage) -> BaseMessage:
    """Return a copy of a message that says that it ended early."""
    return message.model_copy(update={"response_metadata": {**message.response_metadata, INTERRUPTED: True}})


def called(steps: Any) -> list[BaseMessage]:
    """Return the tool calls and results in an `AgentExecutor`'s steps.

    What agents of another kind write down for themselves is not said.
    """
    if _ACTIONS not in sys.modules or not isinstance(steps, list | tuple):
        return []  # whoever made such a step has imported that
    from langchain_classic.agents.format_scratchpad.tools import format_to_tool_messages  # noqa: PLC0415  (a second)
    from langchain_classic.agents.output_parsers.tools import ToolAgentAction  # noqa: PLC0415

    made = (step for step in steps if isinstance(step, tuple) and step)
    return format_to_tool_messages([step for step in made if isinstance(step[0], ToolAgentAction)])


def whole(chunks: Iterable[Any]) -> Any:
    """Return what the chunks of a stream are together; the last one where they cannot be added, None without any."""
    together: Any = None
    for chunk in chunks:
        try:
            together = chunk if together is None else together + chunk
        except TypeError:
            together = chunk
    return together


def _key(value: Mapping[Any, Any], candidates: Sequence[Any], usual: str, named: str | None) -> Any:
    key = named if named is not None else candidates[0] if len(candidates) == 1 else usual
    if key in value:
        return key
    raise InvalidMessageError(
        f"the {usual} has no {key!r}, only {list(value)!r:.200}",
        hint=f"Name the key that holds the messages: `{usual}_messages_key=…`.",
    )


def _unreadable(done: str, value: object) -> MessageTypeError:
    return MessageTypeError(
        f"cannot tell what is {done} in {type(value).__name__}: {value!r:.80}",
        hint="A text, a message, a list of messages, or a dict with one of these under a key.",
    )
