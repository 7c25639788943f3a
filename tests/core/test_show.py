"""What people are shown of remembered text commands no terminal, and reads in the order in which it was written."""

import inspect
import pickle
import re
import typing
from dataclasses import replace
from datetime import UTC, datetime
from html import escape, unescape
from io import StringIO

import pytest
from command_line import run
from hypothesis import given, strategies as st
from rich.console import Console
from scripted_reader import reads
from tuned import Tuned

from memlayer_core import Chat, Memory, Message, ToolCall
from memlayer_core.cli.demo import show_context
from memlayer_core.memory import Admin
from memlayer_core.message import Receipt
from memlayer_core.show import Bar, Mark, View, Viewable, html_of, visible

SIGNS = "\x1b\x00\x07\x08\r\x7f\x9b\x85\u202e\u2066\u2069\u200e\u200f\u061c\ud800"
EVIL = f"\x1b]0;owned\x07\x1b[31m{SIGNS}red\x1b[0m<script>"
ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture
def chat(open_at):
    chat = open_at().chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", EVIL, name="x\u202ey"), Message("assistant", "fine")])
    chat.memory.flush()
    return chat


def on_a_terminal(value: object, width: int = 200) -> str:
    console = Console(color_system=None, width=width, file=StringIO())
    console.print(value)
    return console.file.getvalue()


def test_the_command_line_prints_remembered_text_and_its_errors_with_escapes(chat, tmp_path) -> None:
    chat.memory.close()
    where = tmp_path / "memory"
    inspect_session = "inspect", where, "--user", "louis", "--session", "s"
    search, missing = ("search", "red", where, "--user", "louis"), ("inspect", tmp_path / "no\x1b[31m\u202e")
    for command in (inspect_session, search, missing):
        shown = run(*command, NO_COLOR="1")
        assert not ESCAPES.search(shown.output)
        if shown.exit_code == 0:
            assert "\\x1b]0;owned" in shown.stdout
            assert "\\u202e" in shown.stdout
    assert shown.exit_code == 2


def test_the_demo_shows_it_with_escapes(chat) -> None:
    console = Console(record=True, color_system=None, width=200, file=StringIO())
    later = chat.memory.chat(user_id="louis", session_id="later")
    later.add("user", f"What was red? {EVIL}")
    for why in (True, False):
        show_context(console, later.context(), why=why)
    shown = console.export_text()
    assert not ESCAPES.search(shown)
    assert " recalled  " in shown
    assert shown.count("\\x1b]0;owned") >= 3


def test_a_terminal_shows_what_a_notebook_shows_with_escapes(chat) -> None:
    for one in (chat, chat.context("red"), chat.memory.search("red", user_id="louis")):
        page, shown = one._repr_html_(), on_a_terminal(one)
        for text in (page, shown, repr(one)):
            assert not ESCAPES.search(text)
        assert "\\x1b]0;owned" in page
        assert "\\x1b]0;owned" in shown
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
        assert set(re.findall(r"[a-z]{3,}", shown)) <= set(re.findall(r"[a-z]{3,}", unescape(page)))
    assert not ESCAPES.search(repr(chat.memory.chat(user_id="x\x1b[31m\u202e")))
    assert 'role="img"' in chat.context("red")._repr_html_()


def test_a_value_is_one_short_line_without_what_goes_without_saying(open_at, tmp_path) -> None:
    memory = open_at()
    chat = memory.chat(user_id="louis", session_id="s")
    message = Message("user", "Hi", id="m-1", created_at=AT)
    assert repr(message) == "Message(role='user', content='Hi', id='m-1', created_at=2026-05-04 09:30)"
    assert repr(chat.add_messages([message])) == "Receipt(ids=('m-1',), stored=1)"
    memory.flush()
    status = memory.admin.status()
    told = f"store_id={status.store_id!r}, embedder='hashing-1024-v1', index='held'"
    assert repr(status) == f"Status({told}, backlog=Backlog(queued=0, dead=0))"
    directory = str(tmp_path / "memory")
    assert repr(memory) == f"Memory(path={directory!r}, embedder='hashing-1024-v1')"
    memory.close()
    assert repr(memory) == f"Memory(path={directory!r}, embedder='hashing-1024-v1', closed=True)"
    long = Message("user", "much " * 10_000, metadata={str(n): "more " * 100 for n in range(100)})
    assert len(repr(long)) < 500
    assert len(repr(Receipt(tuple(map(str, range(1000))), 1000))) < 100
    with Memory.in_memory() as other:
        assert repr(other) == "Memory(embedder='hashing-1024-v1')"


def test_a_memory_a_status_a_receipt_and_a_message_have_a_view(chat) -> None:
    chat.add("assistant", "Noted.")
    chat.memory.flush()
    status = chat.memory.admin.status()
    for one, told in (
        (Receipt(("a", "b"), stored=12, unchanged=345), ("ids", "stored", "12", "unchanged", "345")),
        (status, (status.store_id, "hashing-1024-v1", "0 job(s) queued, 0 given up")),
        (replace(status, problems={"index": "Chroma is away"}), ("index: Chroma is away",)),
        (chat.memory, (status.store_id,)),
        (Message("assistant", tool_calls=(ToolCall("c", "find", "{}"),)), ("assistant", "calls find({})")),
    ):
        for text in told:
            assert text in on_a_terminal(one)
            assert escape(text) in one._repr_html_()
    chat.memory.close()
    assert "closed=True" in on_a_terminal(chat.memory)


def test_a_view_is_text_and_never_markup() -> None:
    """Neither HTML nor the markup of rich, whatever the cell."""
    cells = (("<td>[bold]",), (None,), (Mark("bad\x1b[/]", "red"),), (True,))
    view = View("[red]a[/]", Bar(5, 4, "<i>"), ("<b>",), cells, ("<p>[/]",))
    page, shown = html_of(view), on_a_terminal(view)
    assert not re.search("<(?:i|b|p)>|<td>", page)
    for text in ("[red]a[/]", "5 of 4 <i>", "<b>", "<td>[bold]", "<p>[/]", "bad\\x1b[/]", "True"):
        assert text in shown
        assert escape(text) in page


AT = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
MAY_4 = "2026-05-04 09:30"


def test_numbers_and_times_look_alike_everywhere_and_never_wrap() -> None:
    view = View(columns=("a", "b", "c", "d", "e"), rows=((1234, 0.5, AT, AT.date(), Bar(1234, 9999)),))
    words = ["1,234", "0.500", MAY_4, "2026-05-04", "1,234"]
    assert on_a_terminal(view).splitlines()[1].split() == " ".join(words).split()
    assert re.findall(r">([^<>]+)</td>", html_of(view).replace("</span> ", "</span>")) == words
    long = View(columns=("a", "b", "c", "d"), rows=((AT, AT.date(), 1234, "long " * 20),))
    cells = {text: style for style, text in re.findall(r'<td style="([^"]*)">([^<]*)</td>', html_of(long))}
    assert all("white-space:nowrap" in cells[text] for text in (MAY_4, "2026-05-04", "1,234"))
    assert "text-align:right" in cells["1,234"]
    assert "white-space:pre-wrap" in cells["long " * 20]
    assert MAY_4 in on_a_terminal(View(columns=("a", "b"), rows=((AT, "long " * 20),)), width=20)


@given(st.text(st.characters(exclude_categories=())) | st.sampled_from([EVIL, "a\tb\nc"]))
def test_no_text_is_shown_with_signs_that_command_and_all_else_stays(text) -> None:
    shown = visible(text)
    assert not ESCAPES.search(shown)
    view = View(text, Bar(1, 2, text), (text,), ((text,),), (text,))
    assert not ESCAPES.search(html_of(view))
    assert not ESCAPES.search(on_a_terminal(view))
    if not ESCAPES.search(text):
        assert shown == text


PLAIN = {"items", "listen", "load_state", "save_state", "open", "reembed", "in_memory", "chat", "chat_of"}
"""Verbs that return what is not a value to look at; `chat` and `open` return what the classes below show."""


def test_everything_that_a_verb_returns_to_people_is_shown_as_a_table() -> None:
    seen = {}
    for kind in (Memory, Admin, Chat):
        for name, verb in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in PLAIN or inspect.iscoroutinefunction(verb):
                continue
            hint = typing.get_type_hints(verb)["return"]
            for one in typing.get_args(hint) or (hint,):
                if inspect.isclass(one) and one.__module__.startswith("memlayer_core"):
                    seen[f"{kind.__name__}.{name}"] = issubclass(one, Viewable)
    assert len(seen) > 25
    assert not [name for name, has_view in seen.items() if not has_view]


@pytest.fixture
def told(open_at):
    """A memory in which a fact was replaced, two are in conflict, one ended and one is an agent's."""
    memory = open_at(settings=Tuned(index_delay=0.0, durability="normal"), extractor=reads())
    may = memory.chat(user_id="louis", session_id="in-may")
    may.add("user", "I moved to Tokyo, and I am allergic to nuts.", created_at=AT)
    may.add("user", "I live in Oslo now.", created_at=datetime(2026, 7, 3, tzinfo=UTC))
    may.remember("Louis flew to Rome", key="trip", value="Rome", modality="used_to")
    for town in ("Lyon", "Nice"):
        may.remember(f"Louis was born in {town}", key="birthplace", value=town, category="identity")
    may.remember("\x1b]0;owned\x07 <b>Louis</b> works at Acme", source="implicit_inference")
    may.add("user", "What should I not eat?")
    memory.flush()
    return memory


def test_lists_are_tables_and_remain_lists(told) -> None:
    user = {"user_id": "louis"}
    for found, text in (
        (told.records(**user), "Louis was born in Nice"),
        (told.ledger(**user), "stored"),
        (told.admin.costs(), "learn"),
        (told.sessions(**user), "in-may"),
        (told.chat(**user, session_id="in-may").history(), "What should I not eat?"),
    ):
        assert isinstance(found, list)
        assert found == list(found) == pickle.loads(pickle.dumps(found))
        assert repr(found) == repr(list(found))
        assert text in on_a_terminal(found)
        page = found._repr_html_()
        assert escape(text) in page
        assert page.count("<tr") == len(found) + 1
        assert not ESCAPES.search(page)
        assert "<b>" not in page
    none = told.records(user_id="nobody")
    assert ("<table" in none._repr_html_(), "Records: none" in none._repr_html_()) == (False, True)
    assert on_a_terminal(none).strip() == "Records: none"


def test_what_is_wrong_with_a_record_catches_the_eye(told) -> None:
    page = told.records(user_id="louis", all_versions=True)._repr_html_()
    red, amber = "#d84a4a", "#b87a16"
    assert re.search(f"{amber}[^>]*>inferred<", page)
    assert ">ended<" in page
    home = next(one for one in told.records(user_id="louis") if one.key == "home")
    why = told.why(home.memory_id, user_id="louis")._repr_html_()
    assert "“I live in Oslo”" in why
    assert "2026-05-04</td>" in why
    assert f"replaced by {home.memory_id}" in why
    status = replace(told.admin.status(), problems={"index": "Chroma is away"})
    assert re.search(f"{red}[^>]*>index: Chroma is away<", status._repr_html_())


def test_a_context_shows_what_each_part_costs_and_facts_that_cannot_all_be_true(told) -> None:
    chat = told.chat(user_id="louis", session_id="today")
    context = chat.context("Which allergy do I have, what should I not eat?", token_limit=500)
    page, shown = context._repr_html_(), on_a_terminal(context)
    for kind in ("profile", "recall"):
        tokens = sum(piece.tokens for piece in context.pieces if piece.kind == kind)
        assert tokens
        assert f"{kind} {tokens}</span>" in page
        assert f"■ {kind} {tokens}" in shown
    assert f"{context.tokens} of 500 tokens" in page
    assert f"free {500 - context.tokens}" in page
    assert re.search("#b87a16[^>]*>facts of the profile that cannot all be true: birthplace Lyon", page)
    assert [one.code for one in context.reasons] == ["conflict"]


def test_a_long_text_is_folded_and_whole() -> None:
    text = " ".join(f"<b>{at}" for at in range(200))
    page = html_of(View(rows=((text,),)))
    head, rest = re.search(r"<summary[^>]*>(.*?) …</summary>(.*?)</details>", page).groups()
    assert unescape(f"{head} {rest}") == text
    assert "<b>" not in page
    assert len(unescape(head)) <= 200


def test_html_needs_nothing_from_elsewhere(told) -> None:
    """No script, no style sheet, no link, no colour that only one kind of page has."""
    page = told.records(user_id="louis")._repr_html_() + html_of(View("a", Bar(1, 2, "b", ((Mark("c"), 1),))))
    foreign = "<script|<style|<link|<img|url\\(|https?:|(?<!-)color:(?:black|white|#000|#fff)"
    assert not re.search(foreign, page)
    assert page.count('class="memlayer"') == 2
