"""Messages that are too long are shortened on copies, and JSON stays JSON."""

import copy
import json
from functools import partial

import pytest
from growth import cost
from hypothesis import example, given, strategies as st

from memlayer_core import Message, ToolCall, errors
from memlayer_core.message import Raw
from memlayer_core.messages.preview import ELLIPSIS, truncate_arguments, truncate_message, truncate_text
from memlayer_core.models.tokens import is_document
from memlayer_core.testing import NOON

FAMILY = "👨‍👩‍👧‍👦"
MARKS = [" ", "\n", ". ", "。", ELLIPSIS, "\0", '"', "\\", "\ud83d"]
PIECES = [*MARKS, FAMILY, "🇩🇪", "e\u0301", "क्ष", "word", "汉字"]
texts = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


# Texts


@pytest.mark.requirement("F09")
@given(texts, st.integers(-1, 70))
def test_a_text_keeps_its_limit_its_beginning_and_at_least_half_of_the_room(text, characters):
    truncated = truncate_text(text, characters)

    assert len(truncated) <= max(0, characters)
    assert (truncated is text) == (len(text) <= max(0, characters))
    assert truncate_text(truncated, characters) is truncated or characters < 0
    if truncated is text or characters < 1:
        return
    beginning = truncated.removesuffix(ELLIPSIS)
    assert truncated == beginning + ELLIPSIS
    assert text.startswith(beginning)
    assert 2 * len(beginning) >= characters - 2 or not text[len(beginning) : characters // 2].strip()


CUTS = [
    # the end of a sentence
    ("It rains. It pours a lot.", 15, "It rains.…"),
    ('He said "no." Then he went away.', 20, 'He said "no."…'),
    ("今天下雨了。明天天气很好，我们去公园玩。", 10, "今天下雨了。…"),
    ("one line  \r\n\r\n another line that goes on", 17, "one line…"),
    # it would keep too little: the last word
    ("Yes. It pours and it pours.", 20, "Yes. It pours and…"),
    ("the value of pi is 3.14159 as we know", 26, "the value of pi is…"),
    ("they don't know it", 9, "they…"),
    # no word ends in the second half
    ("Donaudampfschifffahrt", 10, "Donaudamp…"),
    # a word longer than any
    ("a " + "x" * 40_000, 30_000, "a " + "x" * 29_997 + "…"),
]


def test_a_text_is_cut_where_a_reader_would():
    for text, characters, truncated in CUTS:
        assert truncate_text(text, characters) == truncated


def test_what_has_millions_of_characters_takes_as_long_as_what_has_thousands():
    for unit in [*PIECES, "word. ", "x"]:
        short, long = (unit * (length // len(unit)) for length in (50_000, 5_000_000))
        quick = cost(lambda short=short: truncate_text(short, 1000))
        assert cost(lambda long=long: truncate_text(long, 1000)) < 10 * quick + 0.001, ascii(unit)


# Arguments of tool calls

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)
formats = st.sampled_from([{"indent": 2}, {"separators": (",", ":"), "ensure_ascii": False}, {}])


def assert_shortened(value, short) -> None:
    """Claim that JSON has kept all its objects, keys and numbers, and beginnings of its lists and texts."""
    assert type(value) is type(short)
    match value:
        case dict():
            assert list(value) == list(short)
            for key in value:
                assert_shortened(value[key], short[key])
        case list():
            beginning = short if len(short) == len(value) else short[:-1]
            assert len(short) == len(value) or short[-1:] in ([], [ELLIPSIS])
            for one, other in zip(value, beginning, strict=False):
                if other != ELLIPSIS:
                    assert_shortened(one, other)
        case str():
            assert short == value or value.startswith(short.removesuffix(ELLIPSIS))
        case _:
            assert short == value


@pytest.mark.requirement("F09")
@given(json_values, formats, st.integers(-1, 300))
def test_arguments_stay_json_of_the_same_structure_and_keep_the_limit_if_any_json_does(value, form, limit):
    arguments = json.dumps(value, **form)
    truncated = truncate_arguments(arguments, limit)

    assert_shortened(json.loads(arguments), json.loads(truncated))
    assert len(truncated) <= max(limit, len(truncate_arguments(arguments, 0)))
    assert truncated is arguments or len(arguments) > limit
    assert truncate_arguments(truncated, limit) == truncated


SHORTENED = [
    # white space is not a loss
    (r'{"city": "\u6771\u4eac",  "days": 3 }', 28, '{"city": "東京", "days": 3}'),
    # the longest strings first, all to the same length
    (json.dumps({"old": "x" * 100, "new": "y" * 200}), 100, f'{{"old": "{"x" * 38}…", "new": "{"y" * 38}…"}}'),
    # and long lists
    (json.dumps({"unit": "metres", "at": [*range(100)]}), 51, '{"unit": "metres", "at": [0, 1, 2, 3, 4, 5, "…"]}'),
    # to nothing
    ('{"a":"some text here","b":["more text"]}', 10, '{"a": "", "b": []}'),
    # nothing else
    ('{"number": 123456789, "flag": true, "none": null}', 5, '{"number": 123456789, "flag": true, "none": null}'),
    ('"a string"', 6, '"a s…"'),
    # escapes count
    (json.dumps({"q": '"' * 50}), 21, json.dumps({"q": '"' * 5 + "…"}, ensure_ascii=False)),
    # no JSON
    ('{"city": "Tok', 10, r'"{\"city…"'),
    ("[" * 200_000 + "]" * 200_000, 10, '"[[[[[[[…"'),
    ("[" * 5000 + "]" * 5000, 10, '"[[[[[[[…"'),
    ("", -1, '""'),
]  # fmt: skip


def test_arguments_lose_what_hurts_least():
    for arguments, characters, truncated in SHORTENED:
        assert truncate_arguments(arguments, characters) == truncated


# Messages

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
LONG = "It rains in Tokyo today. " * 100


def message(content=LONG, **more) -> Message:
    more |= {"raw": Raw("langchain", "1.4", {"content": content, "artifact": content})}
    return Message("assistant", content, id="m1", name="Me", created_at=NOON, metadata={"long": LONG}, **more)


blocks = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}, optional={"index": st.integers()}),
    st.fixed_dictionaries({"type": st.sampled_from(["image_url", "file", "reasoning"]), "text": texts}),
    st.fixed_dictionaries({"type": st.just("text")}, optional={"text": st.none()}),
)
calls = st.builds(ToolCall, st.just("c1"), st.just("tool"), json_values.map(json.dumps) | texts)
contents = texts | st.lists(blocks, max_size=4).map(tuple)
messages = st.builds(message, contents, tool_calls=st.lists(calls, max_size=3).map(tuple))


@pytest.mark.requirement("F09", "F12")
@given(messages, st.integers(0, 60))
@example(message(({"type": "image_url", "text": FAMILY},), tool_calls=(ToolCall("c1", "tool", FAMILY),)), 0)
def test_a_truncated_message_and_its_dump_keep_the_limit_and_all_else_the_original_stays(
    original, characters
):
    before = copy.deepcopy(original)
    short = truncate_message(original, characters)
    is_text = isinstance(short.content, str)
    texts = (
        [short.content] if is_text else [one.get("text") for one in short.content if one["type"] == "text"]
    )

    assert original == before
    assert all(text is None or len(text) <= characters for text in texts)
    for call, untouched in zip(short.tool_calls, original.tool_calls, strict=True):
        assert call.arguments == truncate_arguments(untouched.arguments, characters)
        assert (call.id, call.name) == (untouched.id, untouched.name)
    assert characters < 2 or truncate_message(short, characters) == short
    assert (short is original) == (
        short.content == original.content and short.tool_calls == original.tool_calls
    )
    assert short is original or short.id is None, "it does not replace the whole one"
    for field in ("role", "name", "tool_call_id", "created_at", "metadata"):
        assert getattr(short, field) is getattr(original, field)
    blocks = () if is_text else original.content
    if not any(map(is_document, blocks)):
        for old, new in zip(blocks, short.content if blocks else (), strict=True):
            assert new is old or (old["type"], {**old, "text": None}) == ("text", {**new, "text": None})
        assert short.raw.dump["artifact"] == original.content
        if {call.arguments for call in original.tool_calls}.isdisjoint(one.get("text") for one in blocks):
            assert list(short.raw.dump["content"]) == list(short.content)


LONG_CALL = ToolCall("c1", "write", json.dumps({"path": "a.txt", "content": LONG}))
OK = {"type": "text", "text": "ok"}


# Processors of the users' own


@pytest.mark.requirement("F10", "F09")
def test_a_processor_of_the_users_own_is_asked_for_long_texts_only_and_what_it_leaves_too_long_is_truncated():
    asked = []

    def keywords(text: str, characters: int) -> str:
        asked.append((text, characters))
        return "rain, Tokyo"

    short = truncate_message(
        message((OK, {"type": "text", "text": LONG}, IMAGE), tool_calls=(LONG_CALL,)), 50, keywords
    )

    assert short.content == (OK, {"type": "text", "text": "rain, Tokyo"}, IMAGE)
    assert short.tool_calls[0].arguments == truncate_arguments(LONG_CALL.arguments, 50)
    assert truncate_message(message("x" * 50), 50, keywords).content == "x" * 50
    assert asked == [(LONG, 50)]
    assert truncate_message(message(), 12, lambda text, _: text.upper()).content == "IT RAINS IN…"

    async def wait(text: str, characters: int) -> str:
        return text

    def slow(text: str, characters: int) -> str:
        raise TimeoutError("the model is slow")

    with pytest.raises(errors.ConfigurationError, match="coroutine") as caught:
        truncate_message(message(), 50, partial(wait))
    assert "async" in caught.value.hint
    with pytest.raises(TimeoutError, match="slow"):
        truncate_message(message(), 50, slow)
