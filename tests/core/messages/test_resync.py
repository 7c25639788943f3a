"""A framework that sends its list again, trimmed or edited, neither repeats nor loses a message."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from sqlalchemy import select
from waiting import heard

from memlayer_core import Chat, Memory, Message, ToolCall
from memlayer_core.events import MessagesStored
from memlayer_core.messages import flow, reads as messages_reads
from memlayer_core.messages.align import Digest, align, digest_of
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.storage.tables import texts
from tests.conftest import taken_out
from tests.core.messages.conftest import listed
from tests.examples import examples

pytestmark = pytest.mark.each_database


@pytest.fixture
def chat(store: Memory) -> Chat:
    return store.chat(user_id="ada", session_id="monday")


def words(chat: Chat) -> str:
    return " ".join(message.text for message in chat.history())


def kept_apart(chat: Chat) -> list[str]:
    """Return what each change took out, the last one first."""
    return [" ".join(some) for some in taken_out(chat)]


@pytest.mark.requirement("L06", "L08", "L09")
def test_a_list_that_is_sent_with_every_message_is_a_history(chat):
    told: list[str] = []
    for word in ("s0", "u1", "a1", "u2", "a2", "u3", "a3"):
        told = [*told, word][-4:]  # the framework evicts its oldest
        chat.resync(listed(" ".join(told)))
        assert chat.resync(listed(" ".join(told))).stored == 0
    assert words(chat) == "s0 u1 a1 u2 a2 u3 a3"
    assert (chat.clear(), chat.clear()) == (7, 0)
    assert chat.history() == []


def test_an_edit_keeps_the_id_the_time_and_the_place_and_the_old_words_are_no_longer_recalled(store, chat):
    chat.resync(listed("u1 a1 uzebra ayak"))
    store.flush()
    before = chat.history()
    synced = chat.resync(listed("u1 aother uzebra ayak"))
    assert chat.history() == [before[0], replace(before[1], content="aother"), *before[2:]]
    assert synced.ids == tuple(one.id for one in before)
    synced = chat.resync(listed("u1 aother ulion"))
    assert words(chat) == "u1 aother ulion"
    assert synced.superseded == 2
    assert kept_apart(chat) == ["uzebra ayak", "a1"]
    found = {hit.text for hit in store.search("a1 uzebra ayak", user_id="ada")}
    assert found.isdisjoint({"a1", "uzebra", "ayak"})
    assert [session.scope.session_id for session in store.sessions(user_id="ada")] == ["monday"]


def test_a_summary_stands_in_front_of_what_followed_it_and_all_is_still_found(store, chat):
    chat.add("system", "rules")
    chat.resync(listed("u1 a1 u2 a2 uzebra ayak"))
    store.flush()
    chat.resync(listed("usummary uzebra ayak u4"))
    assert words(chat) == "rules u1 a1 u2 a2 usummary uzebra ayak u4"
    assert chat.context().messages[0].content == "rules"
    assert chat.resync(listed("usummary uzebra ayak u4 a4")).stored == 1
    store.flush()
    assert store.search("uzebra", user_id="ada", limit=1)[0].text == "uzebra"
    assert (store.admin.status().backlog.dead, store.admin.verify()) == (0, [])
    session = store.sessions(user_id="ada")[0]
    assert (session.messages, session.tokens) == (10, sum(p.tokens for p in chat.context().pieces))


def test_the_receipt_names_what_is_stored_and_it_is_told_of_like_an_add(store, chat):
    events = heard(store, MessagesStored)
    first = chat.resync(listed("u1 a1#mine"))
    assert chat.resync(listed("u1 a1")).stored == 0
    again = chat.resync(listed("u1 a1 u2"))
    assert (first.stored, first.unchanged, again.stored, again.unchanged) == (2, 0, 1, 2)
    assert again.ids == tuple(message.id for message in chat.history())
    assert again.ids[:2] == first.ids == (first.ids[0], "mine")
    assert [(told.stored, told.unchanged) for told in events] == [(2, 0), (1, 2)]


def test_two_processes_that_send_the_same_list_store_it_once(store):
    lists = [" ".join(f"{'ua'[n % 2]}{n}" for n in range(end)) for end in range(2, 12)]
    start = threading.Barrier(4)

    def send(_: int) -> None:
        chat = store.chat(user_id="ada", session_id="together")
        start.wait()
        for written in lists:
            chat.resync(listed(written))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert words(store.chat(user_id="ada", session_id="together")) == lists[-1]


def test_only_the_end_of_a_long_history_is_read(open_at, monkeypatch):
    chat = open_at().chat(user_id="ada", session_id="long")
    told = [f"{'ua'[n % 2]}{n}" for n in range(3000)]
    chat.add_messages(listed(" ".join(told)))
    read: list[int] = []
    real = messages_reads.stored_of
    monkeypatch.setattr(messages_reads, "stored_of", lambda *a: read.append(1) or real(*a))
    for front in ([], told[:1], ["usummary"]):
        for n in range(len(told), len(told) + 10):
            told.append(f"{'ua'[n % 2]}{n}")
            chat.resync(listed(" ".join([*front, *told[-20:]])))
    assert len(read) < 30 * 130
    assert words(chat) == " ".join([*told[:-29], "usummary", *told[-29:]])


def named(count: int, *, first: int = 0) -> list[Message]:
    """Return messages with ids of their own, as a framework sends them."""
    return [replace(one, id=f"lg-{n}") for n, one in enumerate(long(count))][first:]


def long(count: int) -> list[Message]:
    return listed(" ".join(f"{'ua'[n % 2]}{n}" for n in range(count)))


@pytest.mark.requirement("L09")
def test_a_framework_that_gives_stored_messages_ids_of_its_own_stores_none_again(store):
    for said, kept in ((4, 4), (300, 6)):
        chat = store.chat(user_id="ada")
        chat.add_messages(long(said))
        for end in range(said + 1, said + 4):
            told = named(end, first=said - kept)
            synced = chat.resync(told)
            assert (synced.stored, synced.unchanged, synced.superseded) == (1, len(told) - 1, 0)
            assert chat.resync(told).stored == 0
        assert [message.text for message in chat.history()] == [message.text for message in long(said + 3)]


def test_an_id_that_comes_to_mean_something_else_is_that_message_and_no_longer_in_force(store, chat):
    chat.resync(listed("s1#1 s2#2 u1#3"))
    chat.resync(listed("u8#2 u1#3"))
    assert [message.text for message in chat.context().system] == ["s1"]
    for _ in range(2):
        synced = chat.resync(listed("u9#1 u8#2 u1#3"))
        assert (words(chat), list(chat.context().system)) == ("u9 u8 u1", [])
        assert synced.ids == ("1", "2", "3")
    assert (synced.stored, kept_apart(chat)) == (0, ["s1", "s2"])
    store.flush()
    assert store.admin.verify() == []


def test_what_is_far_back_is_found_and_supersedes_all_that_followed(chat):
    """By its words, as calls without text, and by its ids."""
    calls = [Message("assistant", tool_calls=(ToolCall(f"c{n}", "f", "{}"),)) for n in range(3)]
    answers = [Message("tool", f"answer {n}", tool_call_id=f"c{n}") for n in range(3)]
    chat.add_messages([*listed("s1#s"), *(m for pair in zip(calls, answers, strict=True) for m in pair)])
    chat.add_messages(named(300))
    assert chat.resync([calls[1], answers[1], *long(300)[-4:], Message("user", "new")]).stored == 1
    synced = chat.resync([*listed("s1#s"), *named(62, first=60), *listed("uelse#x")])
    assert words(chat).split()[-63:] == [*(message.text for message in long(62)), "uelse"]
    assert (synced.stored, synced.superseded) == (1, 239)
    assert chat.resync(long(7)[5:], replace="all").superseded == 56
    assert [len(apart.split()) for apart in kept_apart(chat)] == [56, 239]


def test_of_a_whole_list_only_what_is_new_is_embedded(store, monkeypatch):
    embedded: list[str] = []
    embed = HashingEmbedder.embed
    monkeypatch.setattr(HashingEmbedder, "embed", lambda self, of: embedded.extend(of) or embed(self, of))
    said = listed("u1 a1 uok a2 uok a3")
    for options in ({}, {"replace": "all"}, {"replace": "nothing"}, {"replace": "all", "erase": True}):
        chat = store.chat(user_id="ada")
        chat.add_messages(said)
        embedded.clear()
        assert chat.resync([*said, *listed("uok a4")], **options).stored == 2
        store.flush()
        assert embedded == ["uok", "a4"]
        found = store.search("uok", user_id="ada", session_id=chat.session_id, limit=9)
        assert [hit.text for hit in found][:3] == ["uok"] * 3
    assert store.admin.verify() == []


WORDS = st.sampled_from(["u1", "a1", "u2", "a2", "uok", "aok", "s1", "s2", "h1", "h2"])
NEW = st.lists(st.tuples(WORDS, st.booleans(), st.integers(0, 12)), max_size=4)


def sent_by_a_framework(history: list[Message], turn: object, data: st.DataObject) -> list[Message]:
    """Return a list that a framework makes of a history: trimmed, edited, in another order, with ids or without."""
    told: list[Message] = []
    for place, one in enumerate(history[data.draw(st.integers(0, 6)) :]):
        fate = data.draw(st.sampled_from(["id", "id", "words", "stranger", "edit", "out"]))
        name = {"words": None, "stranger": f"x{turn}-{place}"}.get(fate, one.id)
        if fate != "out":
            text = one.text + f"e{turn}" * (fate == "edit")
            told.append(replace(one, content=text, id=name, created_at=None))
    for number, (word, is_named, place) in enumerate(data.draw(NEW)):
        told[place:place] = listed(f"{word}#n{turn}-{number}" if is_named else word)
    return data.draw(st.permutations(told)) if data.draw(st.booleans()) else told


def lists(verb: str, *given: Any) -> Callable[..., Any]:
    """Return what calls a verb of the chat stores of the adapters."""
    return lambda chat, *_: getattr(flow, verb)(chat.memory.runtime, chat.scope, *given)


VERBS: dict[str, Callable[[Chat, list[Message], str], Any]] = {
    "add": lambda chat, sent, _: chat.add_messages(sent),
    "add anew": lambda chat, sent, _: chat.add_messages(sent, verbatim=True),
    "hear": lambda chat, sent, _: chat.resync(sent, replace="nothing"),
    "start over": lambda chat, sent, _: chat.resync(sent, replace="all", erase=True),
    "set": lambda chat, sent, _: lists("replace_list", sent)(chat),
    "insert": lists("insert_into_list", listed("uok"), 1),
    "take": lists("take_from_list", 1, 2),
    "edit": lambda chat, _, name: chat.edit(name, "a1 a2"),
    "edit for good": lambda chat, _, name: chat.edit(name, "u1", erase=True),
    "delete": lambda chat, _, name: chat.delete_message(name),
    "withdraw": lambda chat, _, name: chat.withdraw([name, "unknown"]),
    "load": lambda chat, *_: chat.load_state(chat.save_state()),
}


ERASING = {"start over", "edit for good", "delete", "take", "load"}


def assert_sound(chat: Chat) -> None:
    """Check a session's places, totals and what is filed of it against its history."""
    db, count = chat.memory.runtime.db, chat.memory.tokens.message
    if (row := db.read(messages_reads.find, chat.scope)) is None:
        assert chat.history() == []
        return
    now = db.read(messages_reads.history, row, 0, None)
    assert [one.message for one in now] == chat.history()
    counted = [count(one.message) if one.message.model_visible else 0 for one in now]
    assert (row.messages, row.tokens) == (len(now), sum(counted))
    places = [*(one.position for one in now), row.next_position]
    assert places == sorted({*places})
    system = [one.key for one in now if one.message.role == "system" and one.message.model_visible]
    assert row.instructions == (system[-1] if system else None)
    filed = select(texts.c.key).where(texts.c.owner == row.number).order_by(texts.c.key)
    findable = [one.key for one in now if one.message.model_visible and one.message.role != "system"]
    assert db.read(lambda connection: connection.scalars(filed).all()) == sorted(findable)


def meant(messages: list[Message]) -> Counter[tuple[str, str, bool]]:
    return Counter((one.role, one.text, one.model_visible) for one in messages)


@pytest.mark.requirement("L09")
@examples(60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(WORDS, max_size=10).map(" ".join), data=st.data())
def test_whatever_a_framework_sends_nothing_is_lost_and_the_same_list_changes_nothing(store, said, data):
    chat = store.chat(user_id="ada")
    chat.add_messages(listed(said), verbatim=True)
    for number in range(data.draw(st.integers(1, 4))):
        for step, verb in enumerate(data.draw(st.lists(st.sampled_from([*VERBS]), max_size=2))):
            if there := chat.history():
                again = sent_by_a_framework(there, f"{number}v{step}", data)
                VERBS[verb](chat, again, data.draw(st.sampled_from(there)).id)
                assert_sound(chat)
                kept = [one.text for one in chat.history(all_versions=True)]
                lost = [one for one in there if not any(text.startswith(one.text) for text in kept)]
                assert verb in ERASING or not lost
        before = chat.history()
        sent = sent_by_a_framework(before, number, data)
        earlier = {None, *(one.withdrawn_at for one in chat.history(all_versions=True))}
        synced = chat.resync(sent)
        now = chat.history()
        apart = [one for one in chat.history(all_versions=True) if one.withdrawn_at not in earlier]
        assert meant(before) <= meant([*now, *apart])
        assert meant([*now, *apart]) <= meant(before) + meant(sent)
        stored = {one.id: one for one in now}
        for one, name in zip(sent, synced.ids, strict=True):
            assert meant([stored[name]]) == meant([one])
            assert name == one.id or one.id not in stored
        assert len({*synced.ids}) == len(sent)
        for last in [one for one in sent if one.role == "system"][-1:]:
            assert last.text in [one.text for one in chat.context().system] or not last.model_visible
        again = chat.resync(sent)
        assert (again.stored, again.superseded, chat.history()) == (0, 0, now)
        assert meant([stored[name] for name in again.ids]) == meant(sent)
        assert_sound(chat)


# What a list means for a history

BEFORE = " ".join(f"{'ua'[n % 2]}long{n}" for n in range(100))
"""More than is read of a history's end."""


def resynced(chat: Chat, past: str, sent: str, *, whole: bool = True, **options) -> tuple[str, str]:
    """Return a session to which a list is sent, and what that superseded, as words; the list again changes nothing."""
    before = [] if whole else BEFORE.split()
    chat.add_messages(listed(" ".join([*before, past])), verbatim=True)
    chat.resync(listed(sent), **options)
    then, gone = chat.history(), taken_out(chat)
    again = chat.resync(listed(sent), **options)
    assert (again.stored, again.superseded, chat.history()) == (0, 0, then), sent
    told = [message.text for message in then]
    assert told[: len(before)] == before
    return " ".join(told[len(before) :]), " ".join(word for some in gone for word in some)


SENT_AGAIN = [
    # trimmed, filtered, cut at the end, without the tools
    ("u1 a1 u2 a2 u3 a3", "u1 a2 a3 u4", "u1 a1 u2 a2 u3 a3 u4", ""),
    ("u1 a1 u2 a2", "u1 a1", "u1 a1 u2 a2", ""),
    ("u1 a1 u2 t2", "u1 a1 u2 u3", "u1 a1 u2 t2 u3", ""),
    # other words from some place on
    ("u1 a1 u2 a2 u3 a3", "u2 a2 u3 a9 u4", "u1 a1 u2 a2 u3 a9 u4", "a3"),
    # other words in the middle
    ("u1 a1 u2 a2", "u1 a9 u2 a2 u3", "u1 a9 u2 a2 u3", "a1"),
    # a summary in front, or in between
    ("u1 a1 u2 a2 u3 a3", "uS u3 a3 u4", "u1 a1 u2 a2 uS u3 a3 u4", ""),
    # by chance
    ("u1 a1 uok a2", "uok u9", "u1 a1 uok a2 uok u9", ""),
    # ids
    ("u1#1 a1#2 u2#3 a2#4", "u2#3 a2#4 u2#5", "u1 a1 u2 a2 u2", ""),
    ("u1#1 a1#2 u2#3 a2#4", "u1#1 u2#3 a1#2", "u1 a1 u2 a2", ""),
    ("u1#1 u2#2", "u9#2 u8#1", "u8 u9", "u1 u2"),
    # ids that the history does not know
    ("u1#1 a1#2 u2#3 a2#x", "u1#v a9#w u2#3 a2#x", "u1 a9 u2 a2", "a1"),
    # instructions and hidden messages, also by their ids
    ("s1 s2 u1 a1", "s1 u1 a1", "s1 s2 u1 a1 s1", ""),
    ("s1 u1 a1", "s2 s1 u1 a1 u2", "s1 u1 a1 s2 s1 u2", ""),
    ("u1#1 h1#2 a1#3", "u1#1 h2#2 a1#3", "u1 h2 a1", "h1"),
    ("s1#a", "s1#b u1#x s1#a", "s1 u1 s1", ""),
    ("s1#a u1#1 s2#b", "s3#a u1#1", "u1 s2 s3", "s1"),
    # an id of instructions proves nothing about the conversation
    ("s1#a u1#1 uok#2 a1#3 uok#4 a2#5", "s1#a uok u9", "s1 u1 uok a1 uok a2 uok u9", ""),
]
AT_THE_END = [
    ("u1 a1 u2 a2 u3 a3", "u2 a2", "u1 a1 u2 a2", "u3 a3"),
    ("u1 t1 a1 u2 t2", "u1 a1", "u1 t1 a1", "u2 t2"),
    ("u1 a1 s1 u2", "u1 a1", "u1 a1 s1", "u2"),
    # too little to decide over what follows, or nothing tells which of several is meant
    ("u1 a1 u2 a2", "a1", "u1 a1 u2 a2", ""),
    ("u1 aok u2 aok u3 aok", "aok", "u1 aok u2 aok u3 aok", ""),
]


@pytest.mark.requirement("L09")
@pytest.mark.parametrize("whole", [True, False])
def test_a_list_that_is_sent_again_says_what_is_new_and_what_is_superseded(store, whole):
    for past, sent, then, superseded in SENT_AGAIN:
        found = resynced(store.chat(user_id="ada"), past, sent, whole=whole)
        assert found == (then, superseded), (past, sent)
    for past, sent, then, superseded in AT_THE_END:
        found = resynced(store.chat(user_id="ada"), past, sent, whole=whole, replace="all")
        assert found == (then, superseded), (past, sent)


def test_people_repeat_themselves_and_what_could_be_chance_decides_over_nothing(store):
    long, end = "a" + "long" * 12, "u3 a3 u4 a4"
    for past, sent, options, then in (
        ("uok uok", "uok uok uok", {}, ("uok uok uok", "")),
        ("u1 a1 uok a2 uok", "uok a2 uok u3", {"whole": False}, ("u1 a1 uok a2 uok u3", "")),
        ("u1 u1", "u1", {"replace": "all"}, ("u1", "u1")),
        ("u1 a1 u1 a1", "u1 a1", {"replace": "all"}, ("u1 a1", "u1 a1")),
        ("u1 a1 u1 a1", "u1 a1", {}, ("u1 a1 u1 a1", "")),
        # what has nothing in common comes behind or instead
        ("", "", {}, ("", "")),
        ("s0 u1 a1", "u7 a7", {}, ("s0 u1 a1 u7 a7", "")),
        ("s0 u1 a1", "s1 u8 a8", {"replace": "all"}, ("s1 u8 a8", "s0 u1 a1")),
        ("u1 a1", "s1", {"replace": "all"}, ("s1", "u1 a1")),
        ("u1 a1", "", {"replace": "all"}, ("", "u1 a1")),
        ("u1 a1 u2 a2 u3", "u1 a1 u1 a1", {"whole": False}, ("u1 a1 u1 a1 u2 a2 u3", "")),
        # one short message is chance, a long one or two in a row are not
        ("u1 a1 u2 a2", "u2 a9", {"whole": False}, ("u1 a1 u2 a2 u2 a9", "")),
        ("u1 a1 u2 a2", "a1 u2 a9", {"whole": False}, ("u1 a1 u2 a9", "a2")),
        (f"u1 {long} u2", f"{long} u9", {"whole": False}, (f"u1 {long} u9", "u2")),
        # what stands behind a message far back is not an edit
        (f"u1 aone {BEFORE} {end}", f"u1 a7 {end}", {}, (f"u1 aone {BEFORE} a7 {end}", "")),
    ):
        found = resynced(store.chat(user_id="ada"), past, sent, **options)
        assert found == then, (past, sent)


@pytest.mark.requirement("L09")
def test_the_end_of_a_long_talk_in_few_words_is_known_again(chat):
    """Words that are said often are no reason to store a talk once more."""
    chat.add_messages([Message("assistant" if at % 2 else "user", f"move {at % 14}") for at in range(300)])
    end = [Message(one.role, one.text) for one in chat.history(-200)]

    assert chat.resync([*end, Message("user", "I give up.")]).stored == 1
    assert len(chat.history()) == 301


def test_the_spelling_of_arguments_and_blocks_and_the_signature_of_a_thought_say_nothing():
    def words(message: Message) -> bytes:
        return digest_of(message, with_id=False).words

    call = Message("assistant", tool_calls=(ToolCall("c", "f", '{"a": 1, "b": 2}'),))
    spelt = Message("assistant", tool_calls=(ToolCall("c", "f", '{"b":2,"a":1}'),), metadata={"x": 1})
    assert words(call) == words(spelt)
    assert words(Message("user", "hi")) == words(Message("user", ({"type": "text", "text": "hi"},)))
    thought = {"type": "thinking", "thinking": "hm"}
    signed = thought | {"extras": {"additional_information": {"signature": "EqQB=="}}}
    assert words(Message("assistant", (thought,))) == words(Message("assistant", (signed,)))
    different = [
        Message("assistant", (thought,)),
        Message("assistant", (thought | {"thinking": "aha"},)),
        Message("user", "hi"),
        Message("user", "hi", name="ada"),
        Message("assistant", "hi"),
        Message("user", ({"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "x"})),
        Message("user", "hi", model_visible=False),
        Message("assistant", "hi", tool_calls=(ToolCall("c", "f", "no json"),)),
        Message("tool", "hi", tool_call_id="c"),
        call,
    ]
    assert len({words(message) for message in different}) == len(different)


@pytest.mark.slow
def test_a_list_of_ten_thousand_messages_takes_time_as_its_length():
    def line(written: str) -> list[Digest]:
        return [digest_of(message, with_id=False) for message in listed(written)]

    def longer(shape: str, count: int) -> float:
        rare = {"half of it says ok": 2, "nothing once": count}.get(shape, 1)
        past = line(" ".join(f"u{n}" if n % rare == 0 else "ua"[n % 3 == 0] + "ok" for n in range(count)))
        edits = line("ux" * (shape == "every tenth edited"))
        sent = [edits[0] if edits and n % 10 == 5 else old for n, old in enumerate(past)]
        began = time.process_time()
        found = align(past, [*sent, *line("unew anew")], complete=True)
        assert found.new == ((count, None), (count + 1, None))
        assert align(past[10:], [*sent[20:], *line("unew")], complete=False).superseded == ()
        return (time.process_time() - began) / count

    for shape in ("the same", "half of it says ok", "every tenth edited", "nothing once"):
        assert min(longer(shape, 10_000) for _ in range(2)) < 4 * min(longer(shape, 1_000) for _ in range(3))
