"""What people bring from elsewhere comes in with its times, once, and as theirs. All files here are made up."""

import io
import json
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from growth import cost
from hypothesis import HealthCheck, event, given, strategies as st
from refusals import refused
from tuned import Tuned

from examples import examples
from memlayer_core import Memory, Message
from memlayer_core.errors import ConfigurationError, ImportStoppedError, InputError, MemlayerError
from memlayer_core.items.model import PutItem
from memlayer_core.transfer.model import Conversation
from memlayer_core.transfer.sources import FORMATS

AT = 1_700_000_000.0  # 2023-11-14T22:13:20Z
HIDDEN = {"is_visually_hidden_from_conversation": True}


def node(name: str, parent: str | None, role: str, text: Any, **more: Any) -> dict[str, Any]:
    """Return a node of ChatGPT's tree, after the public descriptions of its export. `text` may be a whole content."""
    content = text if isinstance(text, dict) else {"content_type": "text", "parts": [text]}
    author = {"role": role, "name": more.pop("speaker", None)}
    said = {"id": name, "author": author, "content": content, "create_time": AT, **more}
    return {"id": name, "parent": parent, "children": [], "message": said}


def chatgpt(*nodes: dict[str, Any], last: str | None = None, name: str = "c1") -> dict[str, Any]:
    root = {"id": "root", "parent": None, "children": [], "message": None}
    mapping = {one["id"]: one for one in (root, *nodes)}
    for one in nodes:
        mapping[one["parent"]]["children"].append(one["id"])
    about = {"title": "Kyoto", "create_time": AT, "conversation_id": name}
    return {**about, "current_node": last, "mapping": mapping}


THOUGHT = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "They moved."}]}
TALK = chatgpt(
    node("sys", "root", "system", "", create_time=None, metadata=HIDDEN),
    node("u1", "sys", "user", "I moved to Kyoto.", create_time=AT + 1),
    node("old", "u1", "assistant", "An answer that was asked for again."),
    node("think", "u1", "assistant", THOUGHT),
    node("call", "think", "assistant", {"content_type": "code", "text": "search()"}, recipient="browser"),
    node("found", "call", "tool", "Kyoto is a city.", speaker="browser"),
    node("a1", "found", "assistant", "A fine city!", create_time=AT + 9),
    last="a1",
)
TOFU = [{"file_name": "cat.txt", "extracted_content": "Her name is Tofu."}]
CAT = {"uuid": "m1", "sender": "human", "created_at": "2024-01-02T03:04:06Z", "attachments": TOFU}
CAT |= {"content": [{"type": "text", "text": "I have a cat."}]}
LOOKED_UP = [
    {"type": "tool_use", "name": "web", "input": {"q": "cat"}},
    {"type": "tool_use", "name": "web", "input": {"q": "tofu"}},
    {"type": "tool_result", "name": "web", "content": [{"type": "text", "text": "one"}]},
    {"type": "tool_result", "name": "web", "content": [{"type": "text", "text": "two"}]},
    {"type": "text", "text": "Lovely."},
]
LOVELY = {"uuid": "m2", "sender": "assistant", "created_at": "2024-01-02T03:04:09Z", "content": LOOKED_UP}
EMPTY = {"uuid": "m3", "sender": "assistant", "text": "", "content": []}
CLAUDE = {"uuid": "k1", "name": "Cats", "chat_messages": [CAT, LOVELY, EMPTY]}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
OPENAI = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    {"role": "assistant", "content": "Done."},
]
RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thinking."}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
    {"type": "web_search_call", "id": "w"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
]
ROWS = [
    {"role": "user", "content": "one", "time": "2024-01-01T10:00:00+02:00", "session": "a"},
    {"role": "user", "content": "two", "time": "2024-01-01T10:00:01+02:00", "session": "b"},
    {"role": "assistant", "content": "three", "time": "2024-01-01T10:00:02+02:00", "session": "a"},
]
MEM0 = {"id": "1", "memory": "Likes tea", "user_id": "alice", "categories": ["food"]}
MEM0 |= {"created_at": "2024-01-01T00:00:00-07:00"}
DID = {"content": "Yo", "tool_calls": [{"name": "f", "args": {"x": 1}, "id": "c1"}]}
LANGCHAIN = [
    {"type": "human", "data": {"content": "Hi", "additional_kwargs": {"timestamp": AT}}},
    {"type": "ai", "data": DID},
    {"type": "ai", "data": {"content": "She owes us.", "additional_kwargs": {"model_visible": False}}},
    {"type": "chat", "data": {"content": "Too short", "role": "critic"}},
    {"type": "remove", "data": {"content": "", "id": "x"}},
]
STORE = {"store": {"s1": [{"role": "user", "blocks": [{"block_type": "text", "text": "Hi"}]}]}}
SHAREGPT = {"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}

MOVED = (
    "user: I moved to Kyoto.|(assistant: They moved.)|(assistant: search())|(tool: Kyoto is a city.)"
    "|assistant: A fine city!"
)
HAS_CAT = (
    "user: I have a cat.\n\ncat.txt:\nHer name is Tofu."
    '|(assistant: calls web({"q":"cat"}))|(assistant: calls web({"q":"tofu"}))|(tool: one)|(tool: two)'
    "|assistant: Lovely."
)
KIND = 'system: Be kind.|user: Hi|assistant: calls f({"x": 1})|tool: ok|assistant: Done.'
FILES: dict[str, tuple[Any, str, str]] = {
    "chatgpt": ([TALK], "c1", MOVED),
    "claude": ([CLAUDE], "k1", HAS_CAT),
    "openai": (OPENAI, "", KIND),
    "sharegpt": ([SHAREGPT], "x", "user: Hi|assistant: Yo"),
    "langchain": (LANGCHAIN, "", "user: Hi|assistant: Yo|(assistant: She owes us.)|user: Too short"),
    "llamaindex": (STORE, "s1", "user: Hi"),
}
"""For each format what it holds, the id of its session if it has one, and what is said in it; in brackets, what no model sees."""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(value: Any, name: str = "brought.json") -> Path:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    return write


def history(memory: Memory, session: str, user: str = "ada") -> list[Message]:
    session = session or memory.sessions(user_id=user)[0].scope.session_id or ""
    return memory.chat(user_id=user, session_id=session).history()


def told(messages: list[Message]) -> str:
    lines = ((one.model_visible, f"{one.role}: {one.label}") for one in messages)
    return "|".join(line if is_visible else f"({line})" for is_visible, line in lines)


@pytest.mark.parametrize("name", FILES)
def test_each_format_is_recognized_and_a_second_import_changes_nothing(store, write, name) -> None:
    value, session, said = FILES[name]
    source = write(value)
    tried = store.import_from(source, user_id="ada", dry_run=True)
    assert (tried.messages > 0, store.sessions(user_id="ada")) == (True, [])
    first, again = (store.import_from(source, user_id="ada") for _ in range(2))
    assert (first.source_format, told(history(store, session))) == (name, said)
    assert first.stored == first.messages == again.unchanged > 0
    assert (again.stored, again.replaced, again.remembered) == (0, 0, 0)
    names = {"chatgpt": {"browser"}, "langchain": {"critic"}}
    assert {one.name for one in history(store, session)} - {None} == names.get(name, set())


def test_a_file_may_have_any_shape(store, write, tmp_path) -> None:
    plain, folder, archive = json.dumps(TALK), tmp_path / "folder", tmp_path / "export.zip"
    folder.mkdir()
    write(plain, "folder/conversations-000.json")
    write({"id": "somebody"}, "folder/user.json")
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("export/conversations.json", plain)
        packed.writestr("../../user.json", '{"id": "somebody"}')
    indented = write(json.dumps([TALK], indent=2), "indented.json")
    with indented.open("rb") as opened:
        for source in (write(f"{plain}\n{plain}", "lines.json"), indented, archive, folder, opened):
            tenant = str(source)
            store.import_from(source, user_id="ada", tenant_id=tenant)
            assert told(store.chat(user_id="ada", session_id="c1", tenant_id=tenant).history()) == MOVED
    twice = write(json.dumps(json.dumps(STORE)), "text.json")  # as LlamaIndex writes it
    store.import_from(twice, user_id="ada")
    assert told(history(store, "s1")) == "user: Hi"


def test_chatgpts_branch_times_and_title_are_kept_and_the_rest_is_counted(store, write) -> None:
    report = store.import_from(write([TALK]), user_id="ada")
    assert report.left_out == {"on a branch that was left": 1, "a hidden system message": 1}
    (session,) = store.sessions(user_id="ada")
    assert (session.title, session.created_at.timestamp()) == ("Kyoto", AT)
    assert session.updated_at.timestamp() == AT + 9
    assert history(store, "c1")[0].created_at == datetime.fromtimestamp(AT + 1, UTC)
    assert "from 2023-11-14 to 2023-11-14" in str(report)
    shown = str(store.chat(user_id="ada", session_id="c1").context("And now?").messages)
    assert ("fine city" in shown, "They moved" in shown) == (True, False)

    talk = chatgpt(
        node("u", "root", "user", "Hi"),
        node("a", "u", "assistant", "Yo", create_time=AT + 5),
        node("b", "u", "assistant", "No"),
        name="c2",
    )
    older = {**talk, "conversation_id": "c3", "current_node": "b"}
    circle = chatgpt(node("u", "root", "user", "Round"), last="u", name="c4")
    circle["mapping"]["root"] |= {"parent": "u"}
    store.import_from(write([talk, older, circle]), user_id="ada")
    assert told(history(store, "c2")) == "user: Hi|assistant: Yo", "the newest end"
    assert told(history(store, "c3")) == "user: Hi|assistant: No", "the branch that is shown, not the newest"
    assert told(history(store, "c4")) == "user: Round"


def test_claudes_calls_without_ids_have_the_results_of_their_own(store, write) -> None:
    store.import_from(write([CLAUDE]), user_id="ada")
    said = history(store, "k1")
    calls = [call.id for one in said for call in one.tool_calls]
    assert (calls, len(set(calls))) == ([one.tool_call_id for one in said if one.role == "tool"], 2)
    leaf = {**CLAUDE, "uuid": "k2", "current_leaf_message_uuid": "m1"}
    report = store.import_from(write([leaf]), user_id="ada")
    assert (told(history(store, "k2"))[:7], report.left_out) == ("user: I", {"on a branch that was left": 2})


def test_openais_list_is_the_inverse_of_to_openai_and_responses_keep_their_calls(store, write) -> None:
    store.import_from(write(OPENAI), user_id="ada")
    session = store.sessions(user_id="ada")[0].scope.session_id
    assert store.chat(user_id="ada", session_id=session).context().to_openai() == OPENAI
    report = store.import_from(write({"input": RESPONSES, "id": "r1"}), user_id="ada")
    assert told(history(store, "r1")) == (
        'user: Hi|(assistant: Thinking.)|assistant: calls f({"x": 1})|tool: [{"type":"input_text","text":"ok"}]|assistant: Done.'
    )
    assert report.left_out == {"a call of web_search that the provider made": 1}


def test_a_table_goes_to_its_sessions_in_the_order_of_its_times(store, tmp_path) -> None:
    path = tmp_path / "table"
    path.write_text("\n".join(map(json.dumps, ROWS[::-1])))  # the newest first
    store.import_from(path, user_id="ada")
    a, b = (store.chat(user_id="ada", session_id=one).history() for one in "ab")
    assert (told(a), told(b)) == ("user: one|assistant: three", "user: two")
    assert a[0].created_at == datetime.fromisoformat(ROWS[0]["time"])


@pytest.mark.each_database
def test_what_another_memory_knows_becomes_records_with_their_times(store, write) -> None:
    path = write({"results": [MEM0], "relations": []})
    assert store.import_from(path, user_id="ada", dry_run=True).records == 1
    assert store.records(user_id="ada", every=True) == []
    report = store.import_from(path, user_id="ada")
    assert (report.source_format, report.remembered) == ("mem0", 1)
    assert store.import_from(write([MEM0]), user_id="ada").remembered == 0
    found = {one.text: one for one in store.records(user_id="ada", every=True)}
    assert {one.source for one in found.values()} == {"external_data"}
    assert found["Likes tea"].occurred_at == datetime.fromisoformat(MEM0["created_at"])
    assert found["Likes tea"].tags == ("food",)


# --- whose it is


GROUP = [
    {"name": name, "content": text, "time": AT + at}
    for at, (name, text) in enumerate([("Ada", "Hi"), ("Bob", "I am vegan"), ("Ada", "Good")])
]


@pytest.mark.each_database
@pytest.mark.requirement("F12")
def test_of_a_group_one_speaker_is_the_user_and_another_one_can_be_forgotten(store, write) -> None:
    path = write(GROUP)
    problems = {None: "several people speak in it: 'Ada', 'Bob'", "Eve": "nobody .* called 'Eve'"}
    for me, problem in problems.items():
        refused(ImportStoppedError, problem, store.import_from, path, user_id="ada", me=me)
    assert store.sessions(user_id="ada") == []
    store.import_from(path, user_id="ada", me="ada")
    said = [(None, "Hi"), ("Bob", "I am vegan"), (None, "Good")]
    assert [(one.name, one.text) for one in history(store, "")] == said

    chat = store.chat(user_id="ada", session_id="s")
    for name, text in (("b", "Bob again."), ("c", "Bob takes this back.")):
        chat.add("user", text, name="Bob", id=name)
    chat.add("user", "And me.", name="Bo")
    chat.edit("b", content="Bob once more.")
    chat.withdraw(["c"])
    store.chat(user_id="eve", session_id="s").add("user", "Another Bob.", name="Bob")
    chat.remember("Bob is vegan", subject="Bob", key="diet", value="vegan")
    chat.remember("Likes tea")
    gone = store.forget("ada", speaker="Bob")
    # what was withdrawn is not a message any more
    assert (gone.sessions, gone.messages, gone.records) == (2, 2, 1)
    chats = [store.chat_of(session.scope) for session in store.sessions(user_id="ada")]
    left = [one for chat in chats for one in chat.history(all_versions=True)]
    assert {one.name for one in left} == {None, "Bo"}
    assert [one.text for one in store.records(user_id="ada", every=True)] == ["Likes tea"]
    assert not [hit for hit in store.search("Bob is vegan", user_id="ada", limit=50) if "Bob" in hit.text]
    assert told(history(store, "s", "eve")) == "user: Another Bob."
    refused(InputError, None, store.forget, "ada", speaker="Bob", record_id="ada_mem_001")


def test_an_unknown_role_is_a_speakers_name_and_calls_and_thoughts_are_the_assistants(store, write) -> None:
    roles = ["human", "Bob", "function_call", "observation", "tool_call", "thought", "gpt"]
    said = [("user", None), ("user", "Bob"), *[("assistant", None)] * 5]
    said[3] = ("tool", None)
    for listed, role, content in (("messages", "role", "content"), ("conversations", "from", "value")):
        rows = [{role: name, content: "I am vegan"} for name in roles]
        store.import_from(write([{"id": listed, listed: rows}]), user_id="ada")
        assert [(one.role, one.name) for one in history(store, listed)] == said


def test_nobodys_file_is_refused_and_a_file_of_several_users_is_not_mixed(store, write) -> None:
    rows = [{**row, "user": user} for row, user in zip(ROWS, ("ada", "bob", "ada"), strict=True)]
    for nobodys in (OPENAI, [*rows, {**ROWS[0], "session": "c"}]):
        refused(ImportStoppedError, "does not say whose it is", store.import_from, write(nobodys))
    assert store.sessions(user_id="ada") == []
    with pytest.raises(ImportStoppedError, match="of the users 'ada', 'bob', and not of 'eve'"):
        store.import_from(write(rows), user_id="eve")
    report = store.import_from(write(rows), user_id="bob")
    assert (report.stored, report.left_out) == (1, {"of another user than bob": 2})
    assert store.import_from(write(rows), tenant_id="t").stored == 3
    said = told(store.chat(user_id="ada", session_id="a", tenant_id="t").history())
    assert said == "user: one|assistant: three"
    assert store.sessions(user_id="ada") == []


def test_conversations_of_your_own_are_taken_one_by_one_and_each_whole_or_not_at_all(open_with) -> None:
    store = open_with(Tuned(index_delay=3600, message_bytes_limit=1000))

    def made():
        yield Conversation(messages=[Message("user", "one", id="a")], session_id="s1")
        yield Conversation(messages=[Message("user", "two"), Message("user", "x" * 2000)], session_id="s2")

    refused(MemlayerError, "larger than the limit", store.import_from, made(), user_id="ada")
    assert [one.scope.session_id for one in store.sessions(user_id="ada")] == ["s1"]
    for none in ([], iter(())):
        assert str(store.import_from(none, user_id="ada")).startswith("0 message(s) of 0 session(s)")
    odd = [Message("user", "\0", name="\0"), Message("user", "three")]
    report = store.import_from([Conversation(messages=odd)], user_id="ada")
    assert (report.stored, report.left_out) == (1, {"cannot be stored: InvalidMessageError": 1})
    then = datetime.fromtimestamp(AT, UTC)
    put = PutItem(("users", "ada"), "k", {"a": 1}, created_at=then, updated_at=then)
    for dry_run, placed in ((True, 0), (False, 1), (False, 0)):
        report = store.import_from([Conversation(items=[put])], dry_run=dry_run)
        assert (report.items, report.placed) == (1, placed)


# --- what cannot be read


BAD: list[tuple[bytes, str]] = [
    (json.dumps([TALK, TALK]).encode()[:-40], "cut off"),
    (b'[{"role": "user", "content": "\xff"}]', "damaged"),
    (b"<!doctype html><html>", "it looks like HTML"),
    (b"[10:04] Ada: hi", "it looks like JSON|it looks like text|damaged"),
    (b'{"sessionId": "s", "components": {}, "version": 1}', "a session file of memlayer"),
    (b'{\n "a": {"b": 1}\n}', "JSON with the fields .*a"),
    (b"[]", "JSON with no messages in it"),
    (b"[" * 4000, "nested more than 200 levels deep"),
    (b'[{"role": 1, "content": ' + b"[" * 4000, "nested more than 200 levels deep"),
    (b"\x1f\x8b\x08rest", "gzip"),
    (b"PK\x03\x04" + bytes(300), "cut off"),
]


def test_what_cannot_be_read_is_named_and_nothing_is_written(store, tmp_path) -> None:
    path = tmp_path / "conversations.json"

    def packed(text: str, at: int = 0, by: bytes = b"") -> bytes:
        """Return an archive of a file, with some bytes changed behind the beginning of its list of files."""
        with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("conversations.json", text)
        whole = file.getvalue()
        place = at + (whole.index(b"PK\x01\x02") if at > 0 else whole.index(b".json") + 5 - at)
        return whole[:place] + by + whole[place + len(by) :]

    bad = (
        (packed(" " * 10_000_000), "less than a hundredth"),
        (packed(json.dumps([TALK]), 8, b"\1"), "is encrypted"),
        (packed(json.dumps([TALK]), 10, b"\x63"), "compression"),
        (packed(json.dumps([TALK]), -1, b"\xff\xff\xff"), "is damaged"),
    )
    for content, problem in (*BAD, *bad):
        path.write_bytes(content)
        refused(ImportStoppedError, problem, store.import_from, path, user_id="ada")
        assert store.sessions(user_id="ada") == []
    with pytest.raises(ConfigurationError, match="no format 'claud'"):
        store.import_from(path, user_id="ada", source_format="claud")


def test_a_database_is_refused_with_the_page_that_shows_how_it_is_read(store, tmp_path) -> None:
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE other (a)").connection.close()
    urls = "postgresql://ada:hush-hush@127.0.0.1:1/x", "redis://:hush-hush@127.0.0.1:1"
    for source in (tmp_path / "x.db", *urls):
        with pytest.raises((ImportStoppedError, InputError)) as caught:
            store.import_from(source, user_id="ada")
        assert "docs/migration.md" in str(caught.value.hint)
        assert "hush" not in f"{caught.value}{caught.value.hint}"


def test_a_number_of_thousands_of_digits_stops_the_import_and_not_the_process(write) -> None:
    path = write('[{"role": "user", "content": "hi", "time": ' + "9" * 5000 + "}]")
    command = [sys.executable, "-c", PEAK, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert "ImportStoppedError: 'brought' is damaged" in ended.stderr, ended.returncode


SAMPLES = (TALK, TALK["mapping"]["u1"]["message"], CLAUDE, LOVELY, OPENAI[2], MEM0, STORE)
FIELDS = sorted({"message", "parent", "data", "type", *SHAREGPT, *(name for row in SAMPLES for name in row)})
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values, name=st.sampled_from([None, *FORMATS]))
def test_whatever_a_file_holds_an_import_ends_with_a_report_or_our_error(store, write, value, name) -> None:
    path = write(value)
    try:
        first = store.import_from(path, user_id="ada", source_format=name)
        assert store.import_from(path, user_id="ada", source_format=name).stored == 0
        assert first.stored + first.unchanged + first.replaced == first.messages
    except MemlayerError:
        event("refused")


# --- the command


def test_the_command_tells_what_it_would_import_and_then_does(write, tmp_path) -> None:
    path, directory = write([TALK], "conversations.json"), tmp_path / "memory"
    of_ada = ("import", path, directory, "--user", "ada")
    shown = run(*of_ada, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "5 message(s) of 1 session(s)" in shown.stdout
    assert "nothing was written" in shown.stdout
    assert not directory.exists()
    assert "5 of them new" in run(*of_ada, "--from", "chatgpt").stdout
    assert "0 of them new" in run(*of_ada).stdout
    assert "nobody in it is called 'Bob'" in run(*of_ada, "--me", "Bob").stderr
    shown = run("import", "postgresql://ada:secret@127.0.0.1/x", directory, "--user", "ada")
    assert (shown.exit_code, "secret" in shown.output) == (2, False)
    unlike = run("import", write("<html>", "page.json"), tmp_path / "none", "--user", "ada")
    assert ("it looks like HTML" in unlike.stderr, (tmp_path / "none").exists()) == (True, False)


def test_a_dry_run_of_an_export_knows_what_the_store_declares_and_writes_nothing(open_at, tmp_path) -> None:
    with open_at() as memory:
        memory.items().declare_user_namespace(("users", "{user_id}"))
        memory.items().batch([PutItem(("users", "ada"), "k", {"a": 1})])
        chat = memory.chat(user_id="ada", session_id="s")
        chat.add("user", "Hi")
        chat.remember("Likes tea")
        memory.export(tmp_path / "ada.jsonl", user_id="ada")
        assert memory.forget("ada").items
    of_ada = ("import", tmp_path / "ada.jsonl", tmp_path / "memory", "--user", "ada")
    tried, *_, done = (run(*of_ada, *more).stdout for more in (["--dry-run"], ["--dry-run"], ["--json"]))
    assert "Would import" in tried
    assert "1 message(s)" in tried
    counts = json.loads(done)["imported"]
    assert [counts[name] for name in ("placed", "stored", "remembered")] == [1, 1, 1], "all of it is new"


PEAK = """
import resource, sys
from memlayer_core import Memory
with Memory.in_memory(embedder="hashing") as memory:
    memory.import_from(sys.argv[1], user_id="a", dry_run=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_the_time_of_an_import_does_not_grow_by_the_square_of_a_texts_length(store, write) -> None:
    def taken(megabytes: int) -> float:
        path = write([*OPENAI[:1], {"role": "user", "content": "x" * megabytes * 10**6}])
        return cost(lambda: store.import_from(path, user_id="ada", dry_run=True))

    assert taken(8) < 24 * taken(1)


def test_the_memory_of_an_import_does_not_grow_with_its_file(write) -> None:
    """A file of ten times the size takes at most a little more: one conversation is held at a time."""

    def peak(talks: int) -> int:
        said = node("u", "root", "user", "x" * 20_000)
        every = [chatgpt(said, last="u", name=f"c{number}") for number in range(talks)]
        command = [sys.executable, "-c", PEAK, str(write(every))]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert peak(2_000) < peak(100) + 20_000  # kilobytes: the file grew by 38,000
