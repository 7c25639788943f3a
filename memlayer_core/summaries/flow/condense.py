"""Summarizes lines: with a model, which is asked again after a bad answer, or with extracted sentences."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memlayer_core.errors import ModelContextError, ModelError
from memlayer_core.messages.model import beginning
from memlayer_core.messages.rules.check import at_least_one, check_messages, text_of
from memlayer_core.models.usage import ModelUsage
from memlayer_core.policy import quarter_at_most
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.storage import costs
from memlayer_core.summaries.model import Method, SideTask
from memlayer_core.summaries.rules.episodes import (
    CLOSING_INSTRUCTIONS,
    EpisodeText,
    split_episode,
    usable_episode,
)
from memlayer_core.summaries.rules.extract import Line, extract
from memlayer_core.summaries.rules.gate import (
    Bounds,
    Fault,
    Verdict,
    assess,
    is_no_summary,
    strip_wrapping,
    without_inventions,
)
from memlayer_core.summaries.rules.prompt import (
    INSTRUCTIONS,
    halve,
    is_conversation,
    line_of,
    lines_of_summary,
    one_line,
    parts,
    request,
    retry_prompt,
)

__all__ = [
    "Summarization",
    "condense",
    "episode_bounds",
    "extractive_summary",
    "summarize_messages",
]

_TRIES, _FULL = 3, 0.9  # attempts to fill so much of the budget with an extract
_ABSURD = 4  # times its budget: a function's answer that is longer is no summary
_SHORTEST_EPISODE = 8  # tokens that the summary of a long conversation needs
_EPISODE_COVERAGE = 0.05
"""Share of the important names, numbers and words that an episode must have: low, because it is short."""
_SHORTEST = 20  # a summary of a long text has at least a twentieth of it, or so many tokens


@dataclass(frozen=True, slots=True)
class Summarization:
    """A summary and its quality.

    Attributes:
        text: The summary.
        tokens: Its tokens.
        method: Who wrote it.
        score: Its score from the gate, 0 to 1.
        missing: Important words of the source that it lacks.
        faults: Faults of the model's answers.
        episode: What the model said of it as an episode; None if it was not asked, or said nothing usable.
    """

    text: str
    tokens: int
    method: Method
    score: float
    missing: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    episode: EpisodeText | None = None


async def summarize_messages(
    rt: Runtime, run: Runner, messages: object, previous: object, token_limit: int | None
) -> str:
    """Return a summary of messages without storing anything; an extract if the model does not answer."""
    told, before = check_messages(messages), text_of("previous", previous)
    room = quarter_at_most(rt.settings.max_tokens, rt.settings.summary_tokens)
    if token_limit is not None:
        at_least_one("token_limit", token_limit)
        room = token_limit
    lines = [line_of(message) for message in told if is_conversation(message)]
    if rt.summarizer is not None:
        bill = ModelUsage(rt, rt.summarizer)
        try:
            written = await condense(rt, run, bill, before, lines, room)
        except ModelError as problem:
            rt.health.down("summarizer", str(problem))
        else:
            rt.health.up("summarizer")
            return written.text
        finally:
            await run(rt.db.write, costs.spend, bill.costs())
    return (await run(extractive_summary, rt, [*lines_of_summary(before), *lines], room)).text


def extractive_summary(rt: Runtime, lines: Sequence[Line], budget: int) -> Summarization:
    """Return the most informative sentences, without a model; the first words if no sentence fits."""
    count = rt.tokens.text
    found = extract(lines, budget, count)
    tokens = count(found.text)
    left = budget
    while tokens > budget:  # sentences may cost more together than one by one
        left -= tokens - budget
        found = extract(lines, left, count)
        tokens = count(found.text)
    for _ in range(_TRIES):  # or less, for sentences of one speaker share a line
        more = extract(lines, left * budget // tokens, count) if 0 < tokens < _FULL * budget else found
        if more == found or count(more.text) > budget:
            break
        found, tokens = more, count(more.text)
    text = found.text or _first_words(
        " ".join(one_line(line) for line in lines if line.text.strip()), budget, count
    )
    tokens = count(text)
    verdict = assess(text, [one_line(line) for line in lines], tokens, Bounds(0, budget, 0.0))
    return Summarization(text, tokens, "extract", verdict.score, verdict.missing)


def _first_words(text: str, budget: int, count: Callable[[str], int]) -> str:
    length = 8 * budget  # characters: more than any counter has room for
    while count(words := beginning(text, length)) > budget and length > 1:
        length //= 2
    return words


async def condense(
    rt: Runtime,
    run: Runner,
    usage: ModelUsage,
    previous: str,
    lines: Sequence[Line],
    budget: int,
    *,
    is_last: bool = False,
    side_task: SideTask | None = None,
) -> Summarization:
    """Summarize lines with a model, together with the summary of what came before them.

    A long text is summarized part by part, each part with the summary of those before it; a part that is too long
    for the model is halved. Extracted sentences are used if the text is shorter than its summary may be, or if no
    answer of the model is usable. If the summary `is_last`, which nothing is added to, the model tells its episode in
    the same answer. A `side_task` is asked for once, and only if the text has one part.

    Raises:
        ModelError: The model did not answer.
    """
    if not lines:
        previous, lines = "", lines_of_summary(previous)
    flattened = [one_line(line) for line in lines]
    source = [*filter(None, previous.splitlines()), *flattened]
    if rt.tokens.text("\n".join(source)) <= budget:
        return extractive_summary(rt, [*lines_of_summary(previous), *lines], budget)
    waiting = deque(parts(flattened, rt.settings.summary_input, rt.tokens.text))
    side_task = side_task if len(waiting) == 1 else None
    text, method = previous, "model"
    faults: dict[Fault, None] = {}
    episode: EpisodeText | None = None
    while waiting:
        part = waiting.popleft()
        closes = is_last and not waiting
        try:
            found, held, episode = await _summary_by_model(
                rt, run, usage, text, part, budget, closes=closes, side_task=side_task
            )
        except ModelContextError:
            side_task = None
            halves = halve(part)
            if halves is None:
                raise
            waiting.extendleft(reversed(halves))
            continue
        faults |= dict.fromkeys(held)
        if found is None:
            found = extractive_summary(
                rt, [*lines_of_summary(text), *lines_of_summary("\n".join(part))], budget
            ).text
            method = "extract"
        text = found
    tokens = rt.tokens.text(text)
    verdict = assess(text, source, tokens, Bounds(0, budget, 0.0))
    written: Method = "extract" if method == "extract" else "model"
    return Summarization(text, tokens, written, verdict.score, verdict.missing, tuple(faults), episode)


async def _summary_by_model(
    rt: Runtime,
    run: Runner,
    usage: ModelUsage,
    previous: str,
    part: Sequence[str],
    budget: int,
    *,
    closes: bool,
    side_task: SideTask | None,
) -> tuple[str | None, tuple[Fault, ...], EpisodeText | None]:
    """Return the first good answer, else the best usable one with its faults; None without any. And the episode.

    An answer of the user's own function is usable if it is a summary at all.
    """
    source = [*filter(None, previous.splitlines()), *part]
    tokens = rt.tokens.text("\n".join(source))
    bounds = Bounds(min(_SHORTEST, tokens // 20), budget, rt.settings.summary_coverage)
    instructions = CLOSING_INSTRUCTIONS if closes else INSTRUCTIONS
    prompt = asked = request(previous, part, budget)
    if side_task is not None:
        prompt = f"{request(previous, part, budget, side_task.numbers)}\n\n{side_task.material}"
    best: tuple[tuple[bool, float], str, tuple[Fault, ...]] | None = None
    verdict, episode = Verdict(0.0), None
    for _ in range(1 + rt.settings.summary_rewrites):
        try:
            if side_task is not None:
                both = f"{instructions}\n\n{side_task.instructions}"
                answer = side_task.take(await run(usage.ask, prompt, both))
                side_task = None
            else:
                answer = await run(usage.ask, prompt, instructions)
        except ModelError:
            if best is None:
                raise
            break  # the best answer so far is used
        answer = strip_wrapping(answer)
        if closes:
            answer, told = split_episode(answer)
            episode = _check_episode(rt, told, source) or episode
        cost = rt.tokens.text(answer)
        verdict = assess(answer, source, cost, bounds)
        if verdict.good:
            return answer, (), episode
        own = usage.model.own and cost <= _ABSURD * budget and not is_no_summary(verdict)
        for text, judged in ((answer, verdict), _without_inventions(rt, answer, verdict, source, bounds)):
            worth = judged.usable, judged.score
            if (judged.usable or (own and text)) and (best is None or worth > best[0]):
                best = worth, text, verdict.faults
        prompt = retry_prompt(asked, answer, verdict)
    return (*best[1:], episode) if best is not None else (None, verdict.faults, episode)


def _check_episode(rt: Runtime, by_model: EpisodeText | None, source: Sequence[str]) -> EpisodeText | None:
    if by_model is None:
        return None
    _, usable = usable_episode(by_model, source, episode_bounds(rt, source), rt.tokens.text)
    return usable[1] if usable is not None else None


def episode_bounds(rt: Runtime, source: Sequence[str]) -> Bounds:
    """Return the limits of an episode's summary of these lines."""
    shortest = min(_SHORTEST_EPISODE, rt.tokens.text("\n".join(source)) // 20)
    return Bounds(shortest, rt.settings.episode_tokens, _EPISODE_COVERAGE)


def _without_inventions(
    rt: Runtime, answer: str, verdict: Verdict, source: Sequence[str], bounds: Bounds
) -> tuple[str, Verdict]:
    if not verdict.inventions:
        return answer, verdict
    text = without_inventions(answer, verdict.inventions)
    return text, assess(text, source, rt.tokens.text(text), bounds)
