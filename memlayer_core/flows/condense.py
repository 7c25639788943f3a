"""Has a summary written: by a model that is asked again after a bad answer, or taken from what was said."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from memlayer_core.drive import Drive
from memlayer_core.errors import ModelContextError, ModelError
from memlayer_core.ports import LanguageModel, World
from memlayer_core.records.message import Message
from memlayer_core.records.summary import Cost, Method
from memlayer_core.rules.budget import recall_share
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.extract import Line, extract
from memlayer_core.rules.flatten import flat, halved, line_of, parts, retold, tells
from memlayer_core.rules.gate import Bounds, Verdict, assess, pruned, tidied
from memlayer_core.rules.summary_prompt import INSTRUCTIONS, again, request

__all__ = ["Bill", "Condensed", "condensed", "extracted", "summed_up"]

_TRIES, _FULL = 3, 0.9  # until an extract takes so much of its room
_SHORTEST = 20  # a summary of a long text has at least a twentieth of it, or so many tokens


@dataclass(frozen=True, slots=True)
class Condensed:
    """What was written.

    Attributes:
        text: The summary.
        tokens: What it costs.
        method: Who wrote it.
        score: What the gate gave it.
        missing: What of its source it does not tell.
    """

    text: str
    tokens: int
    method: Method
    score: float
    missing: tuple[str, ...]


class Bill:
    """Counts what one model was asked.

    Args:
        world: Counts the tokens that a provider does not tell.
        model: Who is paid.
        kind: For which kind of work.
    """

    def __init__(self, world: World, model: LanguageModel, kind: str = "summarize") -> None:
        self._world = world
        self._kind = kind
        self.model = model
        self._calls = self._tokens_in = self._tokens_out = 0

    def ask(self, text: str, instructions: str = INSTRUCTIONS) -> str:
        """Ask the model, and note what it read and wrote."""
        reply = self.model.ask(instructions, text)
        count = self._world.tokens.text
        self._calls += 1
        self._tokens_in += count(f"{instructions}\n{text}") if reply.tokens_in is None else reply.tokens_in
        self._tokens_out += count(reply.text) if reply.tokens_out is None else reply.tokens_out
        return tidied(reply.text)

    def costs(self) -> tuple[Cost, ...]:
        """Return what is to be noted: nothing if no call was answered."""
        noted = Cost(self._kind, self.model.name, self._calls, self._tokens_in, self._tokens_out)
        return (noted,) if self._calls else ()


async def summed_up(
    world: World, drive: Drive, messages: Sequence[Message], previous: str, token_limit: int | None
) -> str:
    """Return a summary of messages, of which nothing is kept. Extracts stand in for a model that does not answer."""
    room = recall_share(world.settings.max_tokens, world.settings.summary_tokens)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        room = token_limit
    lines = [line_of(message) for message in messages if tells(message)]
    if world.summarizer is not None:
        bill = Bill(world, world.summarizer)
        try:
            written = await condensed(world, drive, bill, previous, lines, room)
        except ModelError as problem:
            world.health.down("summarizer", str(problem))
        else:
            world.health.up("summarizer")
            return written.text
        finally:
            await drive.call(world.journal.spend, bill.costs())
    return (await drive.call(extracted, world, [*retold(previous), *lines], room)).text


def extracted(world: World, lines: Sequence[Line], room: int) -> Condensed:
    """Return the sentences that tell most, without any model."""
    count = world.tokens.text
    found = extract(lines, room, count)
    tokens = count(found.text)
    left = room
    while tokens > room:  # together they may cost more than one by one
        left -= tokens - room
        found = extract(lines, left, count)
        tokens = count(found.text)
    for _ in range(_TRIES):  # or less, for sentences of one speaker share a line
        more = extract(lines, left * room // tokens, count) if 0 < tokens < _FULL * room else found
        if more == found or count(more.text) > room:
            break
        found, tokens = more, count(more.text)
    verdict = assess(found.text, [flat(line) for line in lines], tokens, Bounds(0, room, 0.0))
    return Condensed(found.text, tokens, "extract", verdict.score, verdict.missing)


async def condensed(
    world: World, drive: Drive, bill: Bill, previous: str, lines: Sequence[Line], room: int
) -> Condensed:
    """Let a model sum up lines, and the summary of what was before them.

    What is longer than a model is given at once is summed up part by part, each with what the parts before it
    gave; a part that is longer than the model can read is halved. What costs less than its summary may, and
    what no answer of the model can stand for, is taken as it was said.

    Raises:
        ModelError: The model did not answer.
    """
    flattened = [flat(line) for line in lines]
    source = [*filter(None, previous.splitlines()), *flattened]
    if world.tokens.text("\n".join(source)) <= room:
        return extracted(world, [*retold(previous), *lines], room)
    waiting = deque(parts(flattened, world.settings.summary_input, world.tokens.text))
    text, method = previous, "model"
    while waiting:
        part = waiting.popleft()
        try:
            found = await _written(world, drive, bill, text, part, room)
        except ModelContextError:
            halves = halved(part)
            if halves is None:
                raise
            waiting.extendleft(reversed(halves))
            continue
        if found is None:
            found = extracted(world, [*retold(text), *retold("\n".join(part))], room).text
            method = "extract"
        text = found
    tokens = world.tokens.text(text)
    verdict = assess(text, source, tokens, Bounds(0, room, 0.0))
    return Condensed(
        text, tokens, "extract" if method == "extract" else "model", verdict.score, verdict.missing
    )


async def _written(
    world: World, drive: Drive, bill: Bill, previous: str, part: Sequence[str], room: int
) -> str | None:
    """Return the first good answer, else the best of those that can be used; None without any."""
    source = [*filter(None, previous.splitlines()), *part]
    tokens = world.tokens.text("\n".join(source))
    bounds = Bounds(min(_SHORTEST, tokens // 20), room, world.settings.summary_coverage)
    asked = request(previous, part, room)
    prompt = asked
    best: tuple[float, str] | None = None
    for _ in range(1 + world.settings.summary_rewrites):
        try:
            answer = await drive.call(bill.ask, prompt)
        except ModelError:
            if best is None:
                raise
            break  # what it wrote before is better than nothing
        verdict = assess(answer, source, world.tokens.text(answer), bounds)
        if verdict.good:
            return answer
        for text, judged in ((answer, verdict), _without_inventions(world, answer, verdict, source, bounds)):
            if judged.usable and (best is None or judged.score > best[0]):
                best = judged.score, text
        prompt = again(asked, answer, verdict)
    return best[1] if best is not None else None


def _without_inventions(
    world: World, answer: str, verdict: Verdict, source: Sequence[str], bounds: Bounds
) -> tuple[str, Verdict]:
    if not verdict.invented:
        return answer, verdict
    text = pruned(answer, verdict.invented)
    return text, assess(text, source, world.tokens.text(text), bounds)
