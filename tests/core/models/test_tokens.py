"""Counting tokens: exact where a table is at hand, estimated elsewhere, and never over a network."""

import base64
import hashlib
import inspect
import itertools
import json
import logging
import os
import tempfile
from types import MappingProxyType

import numpy as np
import pytest
import tiktoken
from hypothesis import example, given, strategies as st
from refusals import refused
from tiktoken_ext import openai_public

from memlayer_core import Memory, Message, ToolCall, errors
from memlayer_core.models import tokens
from memlayer_core.models.tokens import estimate, token_counter

_DIGESTS = [hashlib.sha256(str(number).encode()).digest() for number in range(40)]
_FACES = "😀 😂 😍 🙏 👍 🔥 🎉 🚀 💪 🤔 😎 🙌 🐱 🍕 🎂 ☕ ⭐ ✅".split()  # noqa: SIM905
_ORDERS = [
    {"order": 4711 + n, "customer": f"c-{n * 37}", "total": round(19.9 * (n + 1), 2), "paid": n % 2 == 0, "items": ["tea", "cup"]}
    for n in range(12)
]  # fmt: skip

SAMPLES = {
    "English prose": (
        "The harbour was quiet when we arrived, apart from two fishermen who were mending a net under the yellow "
        "lamp. My grandmother used to say that a town shows its character before breakfast, and she wasn't wrong."
    ),
    "Chinese": (
        "港口在清晨非常安静,只有两个渔夫坐在黄色的灯下修补渔网。我的奶奶常说,一座城市的性格在早饭以前就能看出来。"
        "面包店已经开门了,没有人对穿着泥靴问路的陌生人感到惊讶。请帮我预订周五晚上七点的餐厅,四个人,靠窗的位置,谢谢!"
    ),
    "Japanese": (
        "港は静かで、黄色い街灯の下で二人の漁師が網を直していました。祖母はよく、町の性格は朝ごはんの前に分かると"
        "言っていました。金曜日の夜七時に、窓側の席でレストランを四名予約してください。よろしくお願いします。"
    ),
    "Russian": (
        "Когда мы приехали, в порту было тихо, только двое рыбаков чинили сеть под жёлтым фонарём. Пекарня уже "
        "открылась, и никто не удивился незнакомцам. Забронируйте, пожалуйста, столик на четверых в пятницу вечером."
    ),
    "Python": """class RateLimiter:
    def __init__(self, limit: int, seconds: float = 60.0, *, clock=time.monotonic) -> None:
        if limit < 1:
            raise ValueError(f"limit must be positive, got {limit!r}")
        self._calls: deque[float] = deque(maxlen=limit)
        self._window_seconds = seconds
""",
    "JSON": json.dumps(_ORDERS),
    "URLs": (
        "https://docs.example.org/en/latest/guide/getting-started.html#installation\n"
        "https://shop.example.com/products/coffee-maker-1200w?utm_source=newsletter&ref=5f2c9a\n"
        "http://localhost:8080/api/v2/users/42/orders?sort=-created_at&page[size]=50\n"
    ),
    "base64": base64.b64encode(b"".join(_DIGESTS)).decode(),
    "numbers": ", ".join(str(int.from_bytes(d[:3]) / 10 ** (d[3] % 5)) for d in _DIGESTS),
    "emoji": "".join(_FACES[byte % len(_FACES)] for digest in _DIGESTS[:6] for byte in digest),
}
COUNTS = {
    "cl100k_base": (43, 140, 110, 108, 81, 457, 69, 1220, 255, 491),
    "o200k_base": (42, 98, 77, 63, 82, 457, 69, 1156, 255, 294),
}
"""Tokens of the samples."""
REAL = tuple(COUNTS)
any_text = st.text(st.characters(exclude_categories=()))


def _table_name(encoding: str) -> str:
    url = f"https://openaipublic.blob.core.windows.net/encodings/{encoding}.tiktoken"
    return hashlib.sha1(url.encode()).hexdigest()


@pytest.fixture
def fresh(monkeypatch, socket_disabled):
    """A process that has loaded and warned of nothing yet, and has no network."""
    tokens.warn_once.cache_clear()
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})


@pytest.fixture
def bare(fresh, monkeypatch, tmp_path):
    """A machine without any table: the folder that is tiktoken's cache there."""
    cache = tmp_path / "data-gym-cache"
    cache.mkdir()
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda name: None)
    return cache


def at_hand(encoding: str) -> str:
    if tokens.find_tables(encoding) is None:
        pytest.skip(f"the table of {encoding} is not on this machine")
    return encoding


@pytest.fixture(params=REAL)
def real(request):
    """A counter with a real table."""
    return token_counter(at_hand(request.param))


@pytest.fixture
def words():
    """A counter with which the tokens of a text are its words."""
    return token_counter(str.split)


class TestEstimate:
    @pytest.mark.requirement("A20", "J06")
    def test_is_a_tenth_below_the_dearer_encoding_at_most_and_not_far_above_both(self):
        for (kind, text), *counts in zip(SAMPLES.items(), *COUNTS.values(), strict=True):
            assert 0.9 * max(counts) <= estimate(text) <= min(1.6 * max(counts), 1.8 * min(counts)), kind

    def test_is_held_against_what_the_encodings_really_count(self, real):
        assert tuple(map(real.text, SAMPLES.values())) == COUNTS[real.name]
        model = token_counter({"cl100k_base": "gpt-4", "o200k_base": "gpt-4o"}[real.name])
        assert (model.name, model.text("Guten Morgen")) == (real.name, real.text("Guten Morgen"))

    @given(any_text)
    @example(" ")
    @example("")
    def test_of_any_text_is_at_least_one_and_at_most_four_a_character(self, text):
        assert bool(text) <= estimate(text) <= 4 * len(text)

    @given(any_text, any_text)
    def test_of_two_lines_is_that_of_both_give_or_take_the_line_break(self, one, other):
        first, second, both = map(estimate, (one, other, f"{one}\n{other}"))
        assert max(first, second, first + second - 4) <= both <= first + second + 2


class TestChoice:
    def test_auto_is_the_newest_encoding_at_hand_and_else_the_estimate(self, fresh, monkeypatch, caplog):
        assert token_counter().name == at_hand("o200k_base")
        for found, name in (("cl100k_base", "cl100k_base"), (None, "estimate")):
            monkeypatch.setattr(tokens, "find_tables", lambda name, found=found: name == found or None)
            assert token_counter().name == name
        assert token_counter().text("How are you?") == estimate("How are you?")
        assert not caplog.records

    def test_a_model_without_its_table_is_estimated_with_one_warning(self, bare, caplog, monkeypatch):
        assert [token_counter("gpt-4o").name for _ in range(3)] == ["estimate"] * 3
        [record] = caplog.records
        assert (record.name, record.levelno) == ("memlayer", logging.WARNING)
        for part in ("'gpt-4o'", "TIKTOKEN_CACHE_DIR", "get_encoding('o200k_base')", "llama-index-core"):
            assert part in record.getMessage()
        # An encoding of a plugin may download anything.
        plugins = {"house_base": lambda: pytest.fail("loaded")}
        monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", plugins)
        assert token_counter("house_base").name == "estimate"
        assert "tiktoken.get_encoding('house_base').encode_ordinary" in caplog.text

    def test_an_unknown_name_and_what_is_no_tokenizer_are_errors_before_it_is_called(self):
        async def count(text):
            return 1

        for nonsense, why in ((None, "tokenizer"), (count, "blocking"), ("gtp-4o", "gtp-4o")):
            with pytest.raises(errors.ConfigurationError, match=why) as caught:
                token_counter(nonsense)
        for part in ("auto", "estimate", "gpt-4o", "cl100k_base", "o200k_base", "function"):
            assert part in caught.value.hint


class Split:
    def __call__(self, text):
        return text.split()


class TestFunctions:
    def test_a_function_answers_with_a_number_or_the_tokens_and_has_its_name(self):
        own = f"{__name__}.Split"
        for function, name in ((len, "builtins.len"), (str.split, "builtins.str.split"), (Split(), own)):
            counter = token_counter(function)
            assert (counter.text("x"), counter.name.partition("#")[0]) == (1, f"callable:{name}")
        for answer in (np.zeros(5), np.int64(5)):
            assert token_counter(lambda _, answer=answer: answer).text("x") == 5, type(answer)
        one, other, same = (token_counter(lambda text, n=n: n * len(text)) for n in (1, 2, 1))
        assert one.name == same.name != other.name, "of two with one name, it says which"

    def test_an_answer_that_is_no_count_is_an_error_that_names_the_function(self):
        for answer in (None, -1, 1.5, True, "tokens", {"input_ids": [1, 2]}):
            refused(errors.ConfigurationError, "lambda", token_counter, lambda text, answer=answer: answer)
        with pytest.raises(ZeroDivisionError):
            token_counter(lambda text: 1 / 0)
        later = token_counter(lambda text: None if text == "anything" else 1)
        refused(errors.ConfigurationError, "lambda", later.text, "anything")


class TestTables:
    def test_the_known_tables_are_those_that_tiktoken_names(self):
        source = inspect.getsource(openai_public)
        for name, digest in tokens._TABLES.values():
            assert f"{tokens._SOURCE}{name}" in source
            assert digest in source
        assert set(tiktoken.list_encoding_names()) >= set(tokens._TABLES)

    def test_a_table_is_found_in_every_cache_of_tiktoken(self, bare, monkeypatch, tmp_path):
        digest = hashlib.sha256(b"table").hexdigest()
        monkeypatch.setitem(tokens._TABLES, "cl100k_base", ("cl100k_base.tiktoken", digest))
        assert tokens.find_tables("cl100k_base") is None
        for folder in ("temporary", "DATA_GYM_CACHE_DIR", "TIKTOKEN_CACHE_DIR"):  # the later one comes first
            cache = bare
            if folder != "temporary":
                cache = tmp_path / folder
                cache.mkdir()
                monkeypatch.setenv(folder, str(cache))
            (cache / _table_name("cl100k_base")).write_bytes(b"table")
            assert tokens.find_tables("cl100k_base") == cache

    def test_a_damaged_table_leads_to_the_estimate_and_a_warning_and_is_left_alone(self, bare, caplog):
        table = bare / _table_name("o200k_base")
        table.write_bytes(b"IQ== 0\n")
        for named in ("auto", "gpt-4o"):
            counter = token_counter(named)
            assert (counter.name, counter.text("hello")) == ("estimate", estimate("hello"))
        assert f"{str(table)!r} (o200k_base.tiktoken) is damaged" in caplog.text
        assert table.read_bytes() == b"IQ== 0\n"

    def test_a_table_that_goes_or_is_broken_leads_to_the_estimate(self, bare, monkeypatch, caplog):
        def fail(name):
            raise ValueError("bad line")

        monkeypatch.setattr(tiktoken, "get_encoding", fail)
        for found, problem in ((bare, "bad line"), (None, "went away")):
            monkeypatch.setattr(tokens, "find_tables", lambda name: bare)
            counter = token_counter("o200k_base")
            monkeypatch.setattr(tokens, "find_tables", lambda name, found=found: found)
            assert (counter.text("hello there"), counter.name) == (estimate("hello there"), "estimate")
            assert problem in caplog.text
            assert "TIKTOKEN_CACHE_DIR" not in os.environ

    @pytest.mark.parametrize("before", [None, "/nowhere"])
    def test_loading_uses_no_network_and_leaves_the_environment_alone(self, fresh, real, before, monkeypatch):
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
        if before is not None:
            monkeypatch.setenv("TIKTOKEN_CACHE_DIR", before)
        if tokens.find_tables(real.name) is None:
            pytest.skip("the only table on this machine is in the folder that this test hides")
        one, other = token_counter(real.name), token_counter(real.name)
        assert not tiktoken.registry.ENCODINGS, "the first count loads it"
        assert one.text("hello world") == other.text("hello world") == 2
        assert list(tiktoken.registry.ENCODINGS) == [real.name]
        assert os.environ.get("TIKTOKEN_CACHE_DIR") == before


class TestText:
    def test_special_tokens_and_lone_surrogates_in_what_a_user_wrote_are_text(self, real):
        assert real.text("<|endoftext|>") > 1
        assert real.text("a\ud800b \udc00") >= 3

    def test_a_million_spaces_are_counted_in_pieces_for_two_tokens_more_each(self, real, monkeypatch):
        for counter in (real, token_counter("estimate")):
            assert 1000 < counter.text(" " * 1_000_000) < 100_000
        text = SAMPLES["English prose"] * 5
        whole = real.text(text)
        monkeypatch.setattr(tokens, "_PIECE", 100)
        assert whole <= real.text(text) <= whole + 2 * (len(text) // 100 + 1)


def block(**fields):
    return Message("user", (fields,))


FRAME = tokens.MESSAGE_TOKENS


class TestMessages:
    def test_text_names_calls_and_what_is_answered_are_counted(self, words):
        call = ToolCall("id", "weather", '{"city": "Lisbon", "days": 3}')
        for message, cost in (
            (Message("user", "one two three"), 3),
            (block(type="text", text="one two three"), 3),
            (Message("tool", "it rains", name="my weather", tool_call_id="call 1"), tokens.NAME_TOKENS + 6),
            (Message("assistant", tool_calls=(call,)), tokens.CALL_TOKENS + 1 + 1 + 4),
            (block(type="thinking", thinking="first second third", signature="a b c d"), 3),
            (block(type="reasoning", reasoning="first second third", signature="a b c d"), 3),
            (block(type="tool_result", content="it rains"), 5),  # its JSON
        ):
            assert words.message(message) == FRAME + cost, message
        sentence = block(type="tool_result", content="so many words " * 200)
        assert words.message(sentence) > 600, "a long sentence is not taken for bytes"

    def test_a_call_that_is_also_a_block_is_counted_once(self, words):
        call, named = ToolCall("id", "weather", "in Rome " * 500), {"id": "fc", "call_id": "id"}
        kinds = {"tool_use": {"id": "id"}, "function_call": named, "custom_tool_call": named}
        for kind, own in kinds.items():
            content = ({**own, "type": kind, "name": "weather", "input": call.arguments},)
            both, alone = (Message("assistant", one, tool_calls=(call,)) for one in (content, ""))
            assert words.message(both) == words.message(alone)
            assert words.message(Message("assistant", content)) > FRAME

    def test_media_cost_a_flat_sum_whatever_their_bytes_and_fetch_nothing(self, words, socket_disabled):
        costs = {"image": tokens.IMAGE_TOKENS, "audio": tokens.AUDIO_TOKENS, "video": tokens.VIDEO_TOKENS}
        sources = ("https://example.com/it", "data:x/y;base64," + "QUJD" * 100_000, b"bytes")
        kinds = [*costs, "image_url", "input_image", "input_audio"]
        for kind, source in itertools.product(kinds, sources):
            cost = next(cost for medium, cost in costs.items() if medium in kind)
            assert words.message(block(type=kind, source=source)) == cost + FRAME

    def test_a_document_costs_its_text_wherever_that_is(self, words):
        text = "three words here " * 1000
        code = base64.b64encode(text.encode()).decode()
        part = {"type": "text", "text": text}
        document = {"type": "document", "source": {"type": "base64", "data": code}}
        for form in (
            {"type": "file", "text": text},
            {"type": "file", "mime_type": "text/markdown", "base64": code},
            {"type": "file", "source_type": "text", "data": text},
            {"type": "media", "mime_type": "text/csv", "data": code},
            {"type": "file", "file": {"file_data": f"data:text/plain;base64,{code}"}},
            {"type": "document", "source": {"type": "content", "content": [part]}},
            {"type": "citable", "text": text},
            {"type": "tool_result", "content": [document]},
            {"type": "non_standard", "value": {"document": {"format": "txt", "source": {"bytes": code}}}},
        ):
            found = words.message(block(**form))
            assert 3000 <= found - FRAME <= 3020, form["type"]

    def test_a_file_that_is_no_text_costs_its_bytes_and_one_that_is_named_a_page(self, words):
        for size, pages in ((1000, 1), (5_000_000, 100)):
            code = base64.b64encode(b"%PDF-1.7\n\xff" + bytes(size - 10)).decode()
            for one in (
                {"type": "document", "source": {"type": "base64", "data": code}},
                {"type": "file", "base64": code, "mime_type": "application/pdf"},
                {"type": "input_file", "file_data": f"data:application/pdf;base64,{code}"},
            ):
                assert words.message(block(**one)) == pages * tokens.DOCUMENT_TOKENS + FRAME
        for one in ({"file": {"file_id": "f1"}}, {"url": "https://example.com/it"}, {"source": b"\xff"}, {}):
            found = words.message(block(type="file", **one))
            assert found == tokens.DOCUMENT_TOKENS + FRAME

    def test_images_and_bytes_inside_of_other_blocks_cost_a_flat_sum(self, words):
        image = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo=" * 100_000}}
        for kind in ("document", "tool_result", "search_result"):
            found = words.message(block(type=kind, content=[image]))
            assert tokens.IMAGE_TOKENS <= found - FRAME <= tokens.IMAGE_TOKENS + 5
        letters, empty = token_counter(len), block(type="tool_result", content=[{"data": ""}])
        for data in ("data:image/png;base64,iVBORw0KGgo=", "QUJD" * 200, "QUJDREVG\n" * 100):
            full = block(type="tool_result", content=[{"data": data}])
            assert letters.message(full) == letters.message(empty) + tokens.IMAGE_TOKENS

    def test_no_block_is_too_odd_to_be_counted(self):
        deep: list = []
        for _ in range(100_000):
            deep = [deep]
        circle: dict = {}
        circle["self"] = circle
        counter, view = token_counter("estimate"), MappingProxyType({"a": 1})
        for odd in (b"\xff" * 10_000_000, {(1, 2): 3}, object(), float("nan"), view, circle, deep):
            assert 0 < counter.message(block(type="odd", value=odd)) < 200
        for one in ({"value": 1}, {"type": None, "text": None}):
            assert counter.message(block(**one)) > 0
        while deep:  # taken apart by hand: the interpreter would do it by recursion
            deep = deep.pop()


def test_a_tokenizer_that_raises_costs_no_message_and_is_a_problem_until_it_works() -> None:
    problems: list[Exception] = []

    def count(text: str) -> int:
        for problem in problems:
            raise problem
        return len(text)

    with Memory.in_memory(embedder="hashing", tokenizer=count) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        problems.append(RuntimeError("the table is gone"))
        chat.add("user", "I moved to Tokyo in May.")
        assert [message.text for message in chat.history()] == ["I moved to Tokyo in May."]
        assert chat.context().messages
        assert "RuntimeError; tokens are estimated" in memory.admin.status().problems["tokenizer"]
        problems.clear()
        chat.add("user", "And you?")
        assert "tokenizer" not in memory.admin.status().problems
