"""Conversations leave a store as lines and come into another one equal, page by page, whoever's they are."""

import asyncio
import gc
import io
import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import HealthCheck, given, strategies as st
from refusals import refused
from tuned import Tuned
from waiting import wait_for

from examples import examples
from memlayer_core import Memory, Message, Scope
from memlayer_core.errors import ImportStoppedError, InputError, InvalidScopeError, StoreUnavailableError
from memlayer_core.storage import files

pytestmark = pytest.mark.each_database

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)
EXPORT = [
    '{"memlayer": "export", "version": 1, "tenant_id": "t", "user_id": null, "messages": 2}',
    '{"session": 1, "tenant_id": "t", "user_id": "ada", "session_id": "s", "created_at": "2026-05-04T12:00:00Z"}',
    '{"message": {"role": "user", "content": "one", "id": "m1"}, "session": 1}',
    '{"message": {"role": "assistant", "content": "two", "id": "m2"}, "session": 1}',
    '{"end": {"sessions": 1, "messages": 2}}',
]


def exported(memory: Memory, **whose: Any) -> str:
    text = io.StringIO()
    memory.export(text, **whose)
    return text.getvalue()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def said(text: str) -> list[str]:
    return [line["message"]["content"] for line in lines(text) if "message" in line]


def history(memory: Memory, tenant: str = "t", session: str = "s", agent: str | None = None) -> list[Message]:
    return memory.chat(user_id="ada", tenant_id=tenant, session_id=session, agent_id=agent).history()


def words(memory: Memory, tenant: str = "t") -> list[Any]:
    return [one.content for one in history(memory, tenant)]


# --- round trip


@pytest.fixture
def still(open_with: Callable[..., Memory]) -> Iterator[list[Memory]]:
    """Return two memories in which no session of long ago is ended for being idle."""
    settings = Tuned(index_delay=3600, durability="normal", session_idle_days=None)
    with Memory.in_memory(embedder="hashing", settings=settings) as other:
        yield [open_with(settings), other]


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_imported_once_or_twice_is_equal_to_what_was_exported(data, conversations, still) -> None:
    store, memory = still
    here, there = str(uuid.uuid4()), str(uuid.uuid4())  # every example has tenants of its own
    for session, agent in (("s1", None), ("s2", None), ("s2", "bot")):
        chat = store.chat(user_id="ada", tenant_id=here, session_id=session, agent_id=agent)
        chat.add_messages(data.draw(conversations), verbatim=True)
        ended = data.draw(st.sampled_from([None, *(one.id for one in chat.history())]))
        title = data.draw(st.sampled_from([None, "Tools", "工具"]))
        chat.load_state({**chat.save_state(), "title": title, "ended_with": ended})
    text = exported(store, tenant_id=here)
    for target, tenant in ((store, there), (memory, here)):
        for is_new in (True, False):
            done = target.import_from(io.StringIO(text), tenant_id=tenant)
            assert (done.stored, done.unchanged) == (done.messages, 0)[:: 1 if is_new else -1]
            assert done.replaced == 0
            assert lines(exported(target, tenant_id=tenant))[1:] == lines(text.replace(here, tenant))[1:]
        for whose in ({"session": "s1"}, {"session": "s2"}, {"session": "s2", "agent": "bot"}):
            assert history(target, tenant, **whose) == history(store, here, **whose)


def test_a_session_that_went_on_here_keeps_what_it_has(store) -> None:
    chat = store.chat(user_id="ada", session_id="s", tenant_id="t")
    chat.load_state({"messages": [], "title": "Mine"})
    chat.add("assistant", "here alone")
    chat.add("assistant", "changed here", id="m2")
    text = "\n".join(EXPORT).replace('"session_id"', '"title": "Theirs", "ended_with": "m1", "session_id"')
    done = store.import_from(io.StringIO(text))
    assert (done.stored, done.replaced) == (1, 1)
    assert words(store) == ["here alone", "two", "one"]
    (session,) = store.sessions(user_id="ada", tenant_id="t")
    assert (session.title, session.created_at, session.ended) == ("Mine", MAY, True)
    assert session.updated_at > MAY
    chat.add("user", "and on")
    store.import_from(io.StringIO(text))
    assert not store.sessions(user_id="ada", tenant_id="t")[0].ended
    assert [one.content for one in chat.context().messages] == ["and on"]
    chat.end()
    store.import_from(io.StringIO(text))
    assert store.sessions(user_id="ada", tenant_id="t")[0].ended


# --- whose


def test_an_export_holds_all_of_a_user_or_a_tenant_and_nothing_of_anybody_else(store) -> None:
    """Two users of one id stay apart, also in the tenants that they come to, and are found there."""
    for tenant, user, session, agent, text in (
        ("a", "ada", "s1", None, "Ada in a"),
        ("a", "ada", "s2", "bot", "Ada in a, to the bot"),
        ("b", "ada", "s1", None, "Ada in b"),
        ("a", "bob", "s1", None, "Bob in a"),
    ):
        chat = store.chat(tenant_id=tenant, user_id=user, session_id=session, agent_id=agent)
        chat.add("user", text, id=text, created_at=MAY)
    store.chat_of(Scope.alone("by itself", tenant_id="a")).add("user", "Nobody in a")

    of_ada = ["Ada in a", "Ada in a, to the bot"]
    text = exported(store, user_id="ada", tenant_id="a")
    assert said(text) == of_ada
    assert not [other for other in ("Bob", '"b"') if other in text]
    assert said(exported(store, user_id="ada", tenant_id="b")) == ["Ada in b"]
    assert said(exported(store, user_id="ada")) == []
    assert said(exported(store, tenant_id="a")) == [*of_ada, "Bob in a", "Nobody in a"]

    for tenant in ("a", "b"):
        store.import_from(io.StringIO(exported(store, tenant_id=tenant)), tenant_id=f"new {tenant}")
    assert said(exported(store, user_id="ada", tenant_id="new b")) == ["Ada in b"]
    assert said(exported(store, user_id="ada", tenant_id="new a")) == of_ada
    store.flush()
    found = store.search("Ada in b", user_id="ada", tenant_id="new a")
    assert {hit.text for hit in found} == {*of_ada}
    assert {"words", "meaning", "user"} <= {reason.code for reason in found[0].reasons}
    assert store.chat_of(Scope.alone("by itself", tenant_id="new a")).history()[0].content == "Nobody in a"


# --- page by page


def alive() -> int:
    """Count the messages that the process holds."""
    return sum(isinstance(thing, Message) for thing in gc.get_objects())


@pytest.mark.slow
def test_neither_way_are_more_than_two_pages_in_memory(store, tmp_path: Path) -> None:
    chat, file = store.chat(user_id="ada", session_id="long"), tmp_path / "out.jsonl"
    chat.add_messages([Message("user", str(number)) for number in range(1200)])
    gc.collect()
    before, heard, held = alive(), [], []

    def hear(done: int, expected: int) -> None:
        heard.append((done, expected))
        if len(heard) % 3 == 0:  # it takes long to look at all that the process holds
            held.append(alive() - before)

    assert store.export(file, user_id="ada", progress=hear) == 1200
    assert heard == [(done, 1200) for done in (0, *range(200, 1201, 200), 1200)]
    heard.clear()

    def read() -> Iterator[str]:
        with file.open(encoding="utf-8") as opened:
            for drawn, line in enumerate(opened, start=1):
                assert drawn <= (heard[-1][0] if heard else 0) + 2 + 200
                yield line

    assert store.import_from(read(), tenant_id="other", progress=hear).stored == 1200
    assert (heard, heard[-1]) == (sorted(heard), (1200, 1200))
    assert max(held) <= 400
    assert history(store, tenant="other", session="long") == chat.history()


@pytest.mark.slow
def test_a_tenant_of_many_small_sessions_is_exported_whole(store) -> None:
    for number in range(250):
        store.chat(user_id=f"u{number % 7}", session_id=f"s{number}", tenant_id="t").add("user", str(number))
    store.chat(user_id="u0", session_id="empty", tenant_id="t").load_state({"messages": [], "title": "x"})
    text = exported(store, tenant_id="t")
    assert said(text) == [str(number) for number in range(250)]
    assert [line["session"] for line in lines(text) if "message" in line] == list(range(1, 251))
    assert store.import_from(io.StringIO(text), tenant_id="other").sessions == 250


def owned(user: str = "ada", tenant: str = "default", session: str = "s", number: int = 1) -> list[str]:
    """Return a session's lines."""
    begun = {"session": number, "tenant_id": tenant, "user_id": user, "session_id": session}
    said = {"message": {"role": "user", "content": f"{user} says", "id": f"m{number}"}, "session": number}
    return [json.dumps(begun), json.dumps(said)]


def of_a_record(user: str, tenant: str = "default", **access: Any) -> str:
    with Memory.in_memory(settings=Tuned(index_delay=3600)) as other:
        other.chat(user_id=user, tenant_id=tenant).remember("Likes tea.", **access)
        (line,) = (
            line for line in lines(exported(other, user_id=user, tenant_id=tenant)) if "record" in line
        )
    return json.dumps(line)


HEAD = '{"memlayer": "export", "version": 1, "tenant_id": "default", "messages": 2}'
TIMES = dict.fromkeys(("created_at", "updated_at"), "2026-05-04T12:00:00Z")
ITEM = {"tenant_id": "default", "labels": ["users", "bob"], "key": "k", "value": {"a": 1}, **TIMES}
SHARED = "the record 'ada_mem_001' is shared with others"
FOREIGN = {
    "a session": (owned("bob", number=2), "the session 's' is of the user 'bob' of the tenant 'default'"),
    "a session that stands alone": (owned(Scope.alone("x").user_id, session="x", number=2), ""),
    "a session of another tenant": (owned(tenant="b", number=2), ".* of the tenant 'b'"),
    "a record": ([of_a_record("bob")], "the record 'bob_mem_001' is of the user 'bob'"),
    "a record of another tenant": ([of_a_record("ada", "b")], ".* of the tenant 'b'"),
    "a record for everybody": ([of_a_record("ada", visibility="public")], SHARED),
    "a record for somebody": ([of_a_record("ada", allowed_users=["bob"])], SHARED),
    "an item": ([json.dumps({"item": ITEM})], "an item belongs to no user"),
}


def test_what_a_user_brings_is_not_written_into_somebody_elses_memory(memory, tmp_path) -> None:
    file = tmp_path / "brought.jsonl"
    for what, (foreign, problem) in FOREIGN.items():
        text = "\n".join([HEAD, *owned(), *foreign, '{"end": {"sessions": 2, "messages": 2}}']) + "\n"
        file.write_text(text, encoding="utf-8")
        sources = [file, io.BytesIO(text.encode()), io.StringIO(text)] if what == "a record" else [file]
        for source in sources:
            says = f"nothing was imported: line 4: {problem}"
            hint = refused(ImportStoppedError, says, memory.import_from, source, user_id="ada")
            assert "memory.export(user_id='ada')" in hint
            assert [len(exported(memory, tenant_id=one).splitlines()) for one in ("default", "b")] == [2, 2]
    with pytest.raises(ImportStoppedError, match="at line 4: an item"):
        memory.import_from(text.splitlines(), user_id="ada")  # lines are read once
    assert words(memory, tenant="default") == ["ada says"]
    # An upload that breaks off is checked as far as it is read.
    file.write_text("\n".join([HEAD, *owned(), "no JSON", *owned("bob", number=2)]), encoding="utf-8")
    refused(ImportStoppedError, "at line 4", memory.import_from, file, user_id="ada")
    assert said(exported(memory)) == ["ada says"]


# --- lines without an end


def test_a_line_without_an_end_stops_the_import_and_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "endless"
    file.write_text("\n".join(EXPORT[:4]) + "\n")
    os.truncate(file, 100_000_000)
    with Memory.in_memory(settings=Tuned(import_line_bytes=100_000)) as memory:
        for mode in ("rb", "r"):
            with file.open(mode) as opened:
                with pytest.raises(ImportStoppedError, match="line 5: it is longer than 100,000") as caught:
                    memory.import_from(opened)
                assert opened.tell() < 1_000_000
            assert "memory.export" in caught.value.hint
            assert words(memory) == ["one", "two"]
        with pytest.raises(ImportStoppedError, match="at line 1: it is longer than 100,000 bytes"):
            memory.import_from([" " * 100_001])
        drawn, pages = [], []
        blank = (drawn.append(1) or "\n" * 100_000 for _ in range(4))
        done = memory.import_from(chain(blank, EXPORT), progress=lambda *_: pages.append(len(drawn)))
        assert (done.messages, pages) == (2, [1, 2, 3, 4, 4])  # a page is not much larger than a line


def test_pages_hold_every_line_once_whatever_they_are_read_from(memory) -> None:
    blank = "\n" * 450
    for made in (lambda text: io.BytesIO(text.encode()), io.StringIO, str.splitlines):
        whose = {"user_id": "ada", "tenant_id": made.__name__}
        with pytest.raises(ImportStoppedError, match="at line 454: it is cut off"):
            memory.import_from(made(blank + "\n".join(EXPORT[:3]) + '\n{"mess'), **whose)
        done = memory.import_from(made(blank + "\n".join(EXPORT)), **whose)
        assert (done.messages, words(memory, made.__name__)) == (2, ["one", "two"])


# --- files


def test_an_export_appears_when_it_is_complete(store, tmp_path: Path, monkeypatch) -> None:
    store.chat(user_id="ada").add("user", "one")
    file = tmp_path / "new" / "out.jsonl"
    store.export(file, user_id="ada")
    before = file.read_text(encoding="utf-8")
    assert said(before) == ["one"]

    def stop(done: int, _: int) -> None:
        if done:
            raise KeyboardInterrupt

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt):
        store.export(file, user_id="ada", progress=stop)
    monkeypatch.setattr(Path, "replace", full)
    refused(StoreUnavailableError, "No space left on device", store.export, file, user_id="ada")
    assert [path.name for path in file.parent.iterdir()] == ["out.jsonl"]
    assert file.read_text(encoding="utf-8") == before


async def test_an_export_that_is_cancelled_leaves_nothing(memory, tmp_path: Path, monkeypatch) -> None:
    await memory.chat(user_id="ada").aadd("user", "one")
    entered, go_on, opened, begun = threading.Event(), threading.Event(), threading.Event(), files.mkstemp

    def slowly(**place: Any) -> Any:
        entered.set()
        assert go_on.wait(10)
        file = begun(**place)
        opened.set()
        return file

    monkeypatch.setattr(files, "mkstemp", slowly)
    running = asyncio.create_task(memory.aexport(tmp_path / "out.jsonl", user_id="ada"))
    assert await asyncio.to_thread(entered.wait, 10)
    running.cancel()
    await asyncio.sleep(0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(opened.wait, 10)
    # The thread that writes ends when it likes.
    await asyncio.to_thread(wait_for, lambda: not any(tmp_path.iterdir()))


def test_a_file_that_cannot_hold_every_character_gets_escapes(memory, tmp_path: Path) -> None:
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", "你好 \ud800")
    chat.add("user", "ça va")
    for encoding in ("latin-1", "utf-16"):
        file = tmp_path / encoding
        with file.open("w", encoding=encoding) as opened:
            memory.export(opened, user_id="ada")
        with file.open(encoding=encoding) as opened:
            memory.import_from(opened, tenant_id=encoding)
        assert history(memory, tenant=encoding) == chat.history()


def test_an_export_to_no_place_or_of_nobody_is_refused_and_writes_nothing(memory, tmp_path: Path) -> None:
    for nobody in ({"user_id": ""}, {"tenant_id": ""}):
        refused(InvalidScopeError, None, memory.export, tmp_path / "out.jsonl", **nobody)
        refused(InvalidScopeError, None, memory.import_from, EXPORT, **nobody)
    refused(InputError, "goes to a path or an open text file", memory.export, io.BytesIO())
    for source, problem in ((b"bytes", "comes from a path or an open file"), (tmp_path, "holds no file")):
        refused(InputError, problem, memory.import_from, source)
    refused(StoreUnavailableError, "cannot be written", memory.export, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- bad input


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_truncated_export_tells_the_line_and_goes_on_where_it_stopped(data, memory) -> None:
    tenant, whole = str(uuid.uuid4()), "\n".join(EXPORT)
    cut = data.draw(st.integers(0, len(whole) - 1))
    begun = whole[:cut].splitlines()
    full = sum(line in EXPORT[2:4] for line in begun)
    with pytest.raises(ImportStoppedError) as caught:
        memory.import_from(io.StringIO(whole[:cut]), tenant_id=tenant)
    told = str(caught.value)
    assert re.search(rf"at line {len(begun)}:", told)
    assert "cut off" in told or (cut == 0 and "empty" in told)
    assert f"{full} message(s) of" in told
    assert f"{full} of them new were imported and stay" in told
    assert "goes on where this stopped" in caught.value.hint
    assert words(memory, tenant=tenant) == ["one", "two"][:full]
    done = memory.import_from(io.StringIO(whole), tenant_id=tenant)
    assert (done.stored, done.unchanged) == (2 - full, full)
    assert words(memory, tenant=tenant) == ["one", "two"]


BAD_LINES: list[tuple[int, Any, str]] = [
    (0, '{"memlayer": "export", "version": 2}', "the export has version 2"),
    (0, None, "it does not begin as an export does"),
    (0, "steps", "it is not JSON"),
    (0, '{"some": "thing"}', "it is not a line of an export"),
    (1, None, "the message is of session 1, whose line does not precede it"),
    (1, EXPORT[0], "a second export begins"),
    (1, '{"session": 1, "tenant_id": "t"}', "`user_id` must be a non-empty string"),
    (1, '{"session": 1, "tenant_id": "t", "user_id": "ada"}', ".* lacks its `session_id`"),
    (1, EXPORT[1].replace("T12:", "noon"), "`created_at` must be a time"),
    (3, EXPORT[3].replace("assistant", "robot"), "unknown role 'robot'"),
    (3, EXPORT[3].replace(', "id": "m2"', ""), "it is not a line of an export"),
    (3, EXPORT[3].replace("1}", "9}"), "the message is of session 9"),
    (3, EXPORT[3].replace("two", "two" * 1000), "a message of .* bytes is larger"),
    (3, b"\xff\xfe", "it is not UTF-8"),
    (3, 7, "got int 7"),
    (3, None, r"lines are missing: it had 2 message\(s\) of 1 session\(s\)"),
    (5, EXPORT[4], "something follows"),
]


def test_a_bad_line_is_told_by_its_number_and_what_stands_before_it_stays() -> None:
    with Memory.in_memory(settings=Tuned(message_bytes_limit=1000)) as memory:
        for number, (at, line, problem) in enumerate(BAD_LINES):
            given = [line if place == at else one for place, one in enumerate([*EXPORT, None])]
            imported = max(0, min(at, 4) - 2)
            with pytest.raises(ImportStoppedError, match=f"at line {at + 1}: {problem}") as caught:
                memory.import_from([one for one in given if one is not None], tenant_id=str(number))
            assert ("Of another program's file" in caught.value.hint) is (at == 0)
            assert words(memory, str(number)) == ["one", "two"][:imported]
            assert f"{imported} of them new were imported and stay" in str(caught.value)


def test_an_id_that_comes_twice_is_one_message_the_later_one_and_empty_lines_say_nothing(memory) -> None:
    twice = [*EXPORT[:3], EXPORT[2].replace("one", "corrected"), EXPORT[4], "\n", ""]
    done = memory.import_from(twice)
    assert (done.messages, done.stored, done.replaced) == (2, 1, 1)
    assert words(memory) == ["corrected"]


# --- the command line


def test_the_command_line_moves_a_tenant_or_what_is_a_users_own_to_another_store(open_at, tmp_path) -> None:
    directory, file, second = tmp_path / "memory", tmp_path / "ada.jsonl", tmp_path / "second"
    with open_at() as memory:
        memory.chat(user_id="ada", session_id="s").add("user", "I am Ada: 你好")
        memory.chat(user_id="bob", session_id="s").add("user", "I am Bob")
        memory.chat(user_id="ada", session_id="s", tenant_id="other").add("user", "I am another Ada")
        everything = exported(memory)
    shown = run("export", file, directory, "--user", "ada")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "Exported: 1 message(s).\n")
    assert said(file.read_text(encoding="utf-8")) == ["I am Ada: 你好"]
    assert run("import", file, second, "--user", "bob").exit_code == 1
    for new in (1, 0):
        shown = run("import", file, second, "--user", "ada", "--tenant", "new")
        assert f"Imported\t1 message(s) of 1 session(s), {new} of them new\n" in shown.stdout
        assert "given up" in shown.stdout
        assert shown.stderr == ""  # no bar where nobody watches
    piped = run("export", "-", directory, FORCE_COLOR="1")  # what rich takes for a terminal
    assert "100%" in piped.stderr
    assert lines(piped.stdout)[1:] == lines(everything)[1:]
    assert said(piped.stdout) == ["I am Ada: 你好", "I am Bob"]
    assert "2 of them new" in run("import", "-", second, stdin=piped.stdout).stdout
    missing = run("import", tmp_path / "missing", tmp_path / "third")
    assert (missing.exit_code, "there is no file" in missing.stderr) == (2, True)
    assert not (tmp_path / "third").exists()
