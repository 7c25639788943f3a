"""What every context promises, whoever asks for it: conversations of every kind, and a check of what is shown."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from hypothesis import strategies as st

from memlayer_core import Message, ToolCall
from memlayer_core.seams import Limits, MaxMessages, MaxRounds, MaxTokens, Portion

IMAGE = "https://example.org/cat.png"
NEVER_DROPPED = {"newest_turn_over_limit", "newest_turn_over_policy", "temporary_over_limit"}

BLANK = ("", " \n", "\u200b")

_TAG = re.compile(r"«([0-9]+)»")
_OFFLOADED = re.compile(r"characters in all of 'msg-([0-9]+)'")
_SIZES = (0, 0, 1, 8, 60, 400, 1500)


@dataclass(frozen=True)
class Line:
    """One message of a conversation, as any framework has it.

    `places` tell which messages of the conversation it shows: its own, or several where neighbours are merged.
    """

    places: tuple[int, ...]
    role: str
    text: str
    calls: tuple[str, ...] = ()
    answers: str | None = None
    image: bool = False
    hidden: bool = False

    @property
    def says(self) -> bool:
        """Whether a model is told it: it is not hidden, and not blank."""
        return not self.hidden and (self.text not in BLANK or bool(self.calls) or self.role == "tool")


@dataclass
class _Talk:
    lines: list[Line] = field(default_factory=list)

    def say(self, role: str, words: int, **more: object) -> None:
        place = len(self.lines)
        said = f"«{place}» {'pear ' * words}".strip()
        self.lines.append(Line((place,), role, said, **more))


_KINDS = "user user assistant calls run late lost system hidden blank nameless"


@st.composite
def talks(draw: st.DrawFn, *, nameless: bool = True) -> list[Line]:  # noqa: C901, PLR0912  (one case a kind)
    """Draw a conversation: parallel calls, results that come late, in any order, doubled or never."""
    talk = _Talk()
    owed: list[str] = []
    kinds = _KINDS.split()
    for step in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(kinds if nameless else kinds[:-1]))
        words = draw(st.sampled_from(_SIZES))
        match kind:
            case "calls":
                again = draw(st.sampled_from([0, step]))  # some models use an id again
                calls = tuple(f"c{again}-{number}" for number in range(draw(st.integers(1, 3))))
                talk.say("assistant", draw(st.sampled_from(_SIZES)), calls=calls)
                owed += draw(st.permutations(calls))
                for _ in range(draw(st.integers(0, len(owed)))):
                    talk.say("tool", draw(st.sampled_from(_SIZES)), answers=owed.pop(0))
            case "run":
                for number in range(draw(st.integers(3, 5))):
                    talk.say("assistant", 1, calls=(f"r{step}-{number}",))
                    talk.say("tool", words, answers=f"r{step}-{number}")
            case "late":
                if owed:
                    talk.say("tool", words, answers=owed.pop(0))
            case "lost":
                talk.say("tool", words, answers=f"nobody{step}")
            case "nameless":
                talk.say("tool", words)
            case "hidden":
                talk.say(draw(st.sampled_from(["user", "assistant"])), words, hidden=True)
            case "blank":
                role = draw(st.sampled_from(["user", "assistant", "system"]))
                talk.lines.append(Line((len(talk.lines),), role, draw(st.sampled_from(BLANK))))
            case "user":
                talk.say("user", words, image=draw(st.sampled_from([False, False, True])))
            case _:
                talk.say(kind, words)
    return talk.lines


token_limits = st.sampled_from([1, 30, 60, 100, 200, 350, 700, 1500, 4000, 10**6])

to_8, to_4 = st.integers(1, 8), st.integers(1, 4)
policies = st.one_of(
    st.none(),
    st.sampled_from(["max_tokens", "max_messages", "max_rounds"]),
    st.builds(MaxMessages, to_8),
    st.builds(lambda number: {"max_rounds": number}, to_4),
    st.builds(lambda most, rounds: [MaxMessages(most), MaxRounds(rounds), MaxTokens(900)], to_8, to_4),
)


def arguments(line: Line) -> dict[str, str]:
    """Return what the line's calls give to their tool: much, where the line says much."""
    return {"at": line.text[:2000]}


def core(line: Line) -> Message:
    """Return a line as the core's message."""
    said = {"type": "text", "text": line.text}
    return Message(
        line.role,
        (said, {"type": "image", "url": IMAGE}) if line.image else line.text,
        tool_calls=tuple(ToolCall(call, "look", json.dumps(arguments(line))) for call in line.calls),
        tool_call_id=line.answers,
        model_visible=not line.hidden,
    )


def places(text: str) -> tuple[int, ...]:
    """Return which messages a shown text stands for, by their tags; a preview may have its id alone."""
    said = _TAG.findall(text) or _OFFLOADED.findall(text)
    return tuple(map(int, said))


def from_core(message: Message) -> Line:
    """Return a shown message as a line."""
    return Line(
        places(message.text),
        message.role,
        message.text,
        tuple(call.id for call in message.tool_calls),
        message.tool_call_id,
        message.content != message.text and any(block["type"] == "image" for block in message.content),
    )


def assert_kept(said: Sequence[Line], shown: Sequence[Line]) -> None:
    """Check what a model is shown of a conversation against what was said in it."""
    assert_answered(shown)
    told = [line for line in said if line.says]
    system = [line for line in said if not line.hidden and line.role == "system"]
    first = [*takewhile(lambda line: line.role == "system", shown)]
    others = shown[len(first) :]
    if system[-1:] and system[-1].says:
        assert first[-1] == system[-1], "the newest system message stands first, whole"
    assert [line for line in system if line in first] == first, "with those that came with it in front"
    assert not [line for line in others if line.role == "system"], "no other system message"

    order = [place for line in others for place in line.places]
    assert all(line.places for line in others)
    assert len(order) == len(set(order)), "nothing twice"
    spoken = [place for place in order if said[place].role != "tool"]
    assert spoken == sorted(spoken), "in the order of the conversation; results stand with their calls"
    assert {said[place].role for place in order} <= {"user", "assistant", "tool"}
    assert not [at for at in order if not said[at].says], "what only people see, or nobody, is not told"
    for line in others:
        for place in line.places:
            of = said[place]
            assert (line.role, line.answers) == (of.role, of.answers)
            assert of.calls == (line.calls if len(line.places) == 1 else ())

    questions = [line for line in told if line.role == "user"]
    if questions:
        newest = questions[-1]
        assert [line for line in others if newest.text in line.text and line.image == newest.image], (
            "the newest question is told, whole"
        )
    talking = [line for line in told if line.role in {"user", "assistant"} and not line.calls]
    assert others or not talking, "something was said, and something is told"


def assert_answered(shown: Sequence[Line]) -> None:
    """Check that all results stand directly behind their call, and that no call but the last ones lacks its result."""
    open_calls: set[str] = set()
    nameless = sum(line.role == "tool" and line.answers is None for line in shown)  # each answers some call
    for line in shown:
        if line.role == "tool":
            assert line.answers is None or line.answers in open_calls, f"{line.answers!r} is without its call"
            open_calls.discard(line.answers)
        else:
            assert len(open_calls) <= nameless, f"{open_calls} are not answered at once"
            open_calls = set(line.calls)


def assert_within(shown: Sequence[Line], tokens: int, limits: Limits, codes: set[str]) -> None:
    """Check the limits: the newest turn alone may be over them, and then a reason says so."""
    said = [line for line in shown if line.role != "system"]
    rounds = sum(said_by == "user" for said_by in (line.role for line in said for _ in line.places))
    messages = sum(len(line.places) for line in said)
    over = tokens > limits.tokens or not limits.allow(Portion(messages, rounds, 0))
    assert not over or codes & NEVER_DROPPED, f"{tokens} tokens, {messages} messages, {rounds} rounds"
    assert not over or rounds <= 1
