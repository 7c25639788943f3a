"""Counts the calls and tokens of a language model while it is asked."""

from __future__ import annotations

from pydantic import BaseModel

from memlayer_core.runtime import Runtime
from memlayer_core.seams import LanguageModel
from memlayer_core.storage.costs import Cost
from memlayer_core.storage.terms import searchable

__all__ = ["ModelUsage"]


class ModelUsage:
    """Counts the calls and tokens of one model.

    Args:
        rt: Counts the tokens if the provider does not report them.
        model: The model to ask.
        kind: The kind of work that the calls are counted for.
    """

    def __init__(self, rt: Runtime, model: LanguageModel, kind: str = "summarize") -> None:
        self._rt = rt
        self._kind = kind
        self.model = model
        self._calls = self._tokens_in = self._tokens_out = 0

    def ask(self, text: str, instructions: str, schema: type[BaseModel] | None = None) -> str:
        """Ask the model, and count the tokens of question and answer. See `LanguageModel.ask`."""
        count = self._rt.tokens.text
        with self._rt.telemetry.model_call(self.model.name, self._kind) as call:
            reply = self.model.ask(instructions, searchable(text), schema)
            read = count(f"{instructions}\n{text}") if reply.tokens_in is None else reply.tokens_in
            written = count(reply.text) if reply.tokens_out is None else reply.tokens_out
            call.end_with_reply(instructions, text, reply.text, read, written)
        self._calls += 1
        self._tokens_in += read
        self._tokens_out += written
        return reply.text

    def costs(self) -> tuple[Cost, ...]:
        """Return the counts to store; empty if no call was answered."""
        noted = Cost(self._kind, self.model.name, self._calls, self._tokens_in, self._tokens_out)
        return (noted,) if self._calls else ()
