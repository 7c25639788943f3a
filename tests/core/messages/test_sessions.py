"""Sessions as a whole: lists and titles, ends, edits, forks, another memory, and forgetting."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from refusals import refused
from sqlalchemy import inspect, select, text
from waiting import heard, wait_for

from memlayer_core import Chat, Memory, Message, Scope, errors
from memlayer_core.events import SessionEnded
from memlayer_core.message import Raw
from memlayer_core.storage.tables import messages
from tests.conftest import PROMPT
from tests.core.messages.conftest import beside, listed

pytestmark = pytest.mark.each_database


@pytest.fixture
def chat(store: Memory) -> Chat:
    made = store.chat(user_id="ada", session_id="monday")
    made.add("system", "be kind")
    for n in (1, 2, 3):
        made.add("user", f"question {n} about parrots", id=f"u{n}")
        made.add("assistant", f"answer {n}", id=f"a{n}")
    return made


def texts(chat: Chat) -> list[str]:
    return [message.text for message in chat.history()]


def raw_rows(memory: Memory) -> dict[str, list[Any]]:
    """Return every row of every table of the store."""

    def look(connection: Any) -> dict[str, list[Any]]:
        names = inspect(connection).get_table_names()
        return {name: connection.execute(text(f"SELECT * FROM {name}")).all() for name in names}

    return memory.runtime.db.read(look)


@pytest.mark.requirement("M06")
def test_a_user_has_many_sessions_that_are_listed_with_labels_the_last_used_first(store):
    """A session in which no user spoke is called by its id."""
    for number in range(4):
        chat = store.chat(user_id="ada", session_id=f"s{number}")
        chat.add("system", "be kind")
        chat.add("user", f"Question number {number}\nand " + "many more words " * 20)
    store.chat(user_id="ada", session_id="quiet").add("assistant", "Hello?")
    store.chat(user_id="bob", session_id="his").add("user", "not hers")
    store.chat(user_id="ada", session_id="s1").rename("Parrots")

    listed = store.sessions(user_id="ada")
    assert [session.scope.session_id for session in listed] == ["quiet", "s3", "s2", "s1", "s0"]
    assert (listed[0].label, listed[3].label) == ("quiet", "Parrots")
    assert listed[1].label.startswith("Question number 3 and many more words")
    assert (len(listed[1].label) <= 60, listed[1].label[-1]) == (True, "…")
    assert store.sessions(user_id="ada", limit=2, offset=3) == listed[3:]
    assert store.sessions(user_id="nobody") == []

    assert chat.rename("Parrots") is chat.rename(None) is True
    assert store.sessions(user_id="ada")[1].label == listed[1].label
    assert store.chat(user_id="ada", session_id="none").rename("x") is False
    for wrong in ("", "  ", 3, "a\0b"):
        refused(errors.InvalidMessageError, "title", chat.rename, wrong)


@pytest.mark.requirement("A03", "F20", "J10", "L02", "L12")
def test_a_history_is_read_in_parts_as_copies_and_an_unknown_one_is_empty(store, chat):
    everything = chat.history()
    assert chat.history(2, 3) == chat.history(offset=2, limit=3) == everything[2:5]
    assert (chat.history(offset=5), chat.history(offset=99)) == (everything[5:], [])
    assert chat.history(-3) == chat.history(-3, all_versions=True) == everything[-3:]
    assert (chat.history(-3, 2), chat.history(-99)) == (everything[-3:-1], everything)
    for wrong in ({"offset": -1.5}, {"offset": True}, {"limit": 0}, {"limit": "3"}):
        refused(errors.InvalidLimitError, None, chat.history, **wrong)
    chat.history().clear()
    store.sessions(user_id="ada").clear()
    assert len(chat.history()) == 7
    with pytest.raises(AttributeError):
        chat.history()[0].content = "changed"
    unknown = store.chat(user_id="ada", session_id="unknown")
    assert unknown.history() == list(unknown.context().messages) == []
    assert store.sessions(user_id="ada")[0].messages == 7


@pytest.mark.requirement("J31", "L02")
def test_an_ended_session_begins_anew_and_keeps_its_history(store, chat):
    chat.add_temporary(Message("user", "a hint"))
    assert chat.end() is True
    assert chat.end() is False
    chat.edit("u3", "question 3 about ferrets")
    chat.delete_message("a3")
    assert store.sessions(user_id="ada")[0].ended, "a change of what was said begins nothing"
    assert [message.content for message in chat.context(policy="max_messages").messages] == ["be kind"]
    assert len(texts(chat)) == 6
    store.flush()
    found = {hit.text for hit in store.search("parrots", user_id="ada")}
    assert found >= {message.text for message in chat.history() if message.text.endswith("parrots")}

    chat.add("user", "question 4 about parrots")
    assert not store.sessions(user_id="ada")[0].ended
    context = chat.context()
    assert [message.content for message in context.window] == ["question 4 about parrots"]
    assert [message.content for message in chat.fork().context().window] == ["question 4 about parrots"]
    assert "question 1 about parrots" in context.recall
    assert store.chat(user_id="ada", session_id="unknown").end() is False


def at(memory: Memory, moment: datetime) -> None:
    """Set a memory's clock."""
    object.__setattr__(memory._resources.runtime, "now", lambda: moment)


@pytest.mark.requirement("F16", "J31")
def test_sessions_that_nobody_used_for_days_are_ended_by_the_worker_or_at_the_next_opening(open_at):
    memory, now = open_at(), datetime.now(UTC)
    ends = heard(memory, SessionEnded)
    for name, days in (("a", 7), ("b", 7), ("c", 6)):
        at(memory, now - timedelta(days=days, minutes=1))
        memory.chat(user_id="ada", session_id=name).add("user", f"parrots {name}")
    at(memory, now)
    wait_for(lambda: len(ends) == 2)
    assert {(told.session_id, told.idle) for told in ends} == {("a", True), ("b", True)}
    back = memory.chat(user_id="ada", session_id="a")
    assert texts(back) == [message.text for message in back.context().window] == ["parrots a"]
    assert len(memory.search("parrots", user_id="ada")) == 3
    memory.close()
    for days, ended in ((None, False), (7, False), (6, True)):
        with open_at(settings=PROMPT.replace(session_idle_days=days)) as again:
            open_of = {one.scope.session_id for one in again.sessions(user_id="ada") if not one.ended}
            assert open_of == (set() if ended else {"c"})


@pytest.mark.requirement("F20")
def test_an_edit_is_made_if_the_message_is_what_was_expected(store, chat):
    before = chat.history()[3]
    edited = chat.edit("u2", "question 2 about ferrets", expected=before)
    assert chat.history()[3] == edited == replace(before, content="question 2 about ferrets")
    for other in (before, "question 2 about parrots"):
        refused(errors.MessageChangedError, "u2", chat.edit, "u2", "mine", expected=other)
    for wrong in (3, b"bytes", [3], [{"no": "type"}]):
        refused(errors.InvalidMessageError, None, chat.edit, "u2", wrong)
    chat.edit("u2", ({"type": "text", "text": "blocks"},), expected="question 2 about ferrets")
    assert chat.history()[3].text == "blocks"
    store.flush()
    assert "question 2" not in str(store.search("ferrets question 2", user_id="ada", limit=50))
    assert store.sessions(user_id="ada")[0].messages == 7
    chat.edit(0, "be brief")
    assert chat.context().messages[0].content == "be brief"
    chat.add_messages([Message("user", "old", id="dumped", raw=Raw("somewhere", "1", {"text": "old"}))])
    assert chat.edit("dumped", "new").raw is None


def test_of_many_edits_with_one_expectation_one_is_made(chat):
    seen, start, made = chat.history()[1], threading.Barrier(8), []

    def edit(number: int) -> None:
        start.wait()
        with suppress(errors.MessageChangedError):
            made.append(chat.edit("u1", f"by {number}", expected=seen))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(edit, range(8)))
    assert made == chat.history()[1:2]


@pytest.mark.requirement("A02")
def test_a_message_is_deleted_by_its_id_or_its_place(store, chat):
    store.flush()
    assert [chat.delete_message(at).text for at in ("a1", -1, 0)] == ["answer 1", "answer 3", "be kind"]
    left = [*(f"question {n} about parrots" for n in (1, 2)), "answer 2", "question 3 about parrots"]
    assert texts(chat) == left
    assert not any(message.role == "system" for message in chat.context().messages)
    found = {hit.text for hit in store.search("answer", user_id="ada", limit=50)}
    assert found.isdisjoint({"answer 1", "answer 3"})
    assert store.sessions(user_id="ada")[0].messages == 4
    for place in ("a1", "none", 4, -5, True, None, 1.5):
        for verb in (partial(chat.edit, content="x"), chat.delete_message):
            assert "history" in refused(errors.UnknownMessageError, None, verb, place)
    assert texts(chat) == left


def test_ids_of_another_scope_name_nothing_here(chat):
    """Whatever a verb does with an id, sessions of others that have it keep their messages and versions."""
    before, others = chat.history(), beside(chat)
    for other in others:
        other.resync(listed("u1#u1 a1#a1 u2#u2"))
        other.withdraw(["u2"])
        for place in ("u3", 2):
            for verb in (partial(other.edit, content="changed"), other.delete_message, other.fork):
                with pytest.raises(errors.UnknownMessageError):
                    verb(until=place) if verb == other.fork else verb(place)
        assert other.withdraw(["u3"]) == []
    refused(errors.InvalidScopeError, None, chat.fork, session_id="tuesday")
    assert chat.history() == before
    chat.edit("u1", "changed", erase=True)
    chat.withdraw(["a1"])
    chat.delete_message("u2")
    chat.delete_message("a1")
    chat.resync(listed("u1#u1 uelse#9"), replace="all")
    every = [[one.text for one in other.history(all_versions=True)] for other in others]
    assert every == [["u1", "a1", "u2"]] * len(others)
    alone = others.pop()
    alone.delete_message("u2")
    assert [one.text for one in alone.history(all_versions=True)] == ["u1", "a1"]


def test_a_fork_has_the_same_messages_and_goes_its_own_way(store, chat):
    chat.add_messages([Message("assistant", "raw", raw=Raw("somewhere", "1", {"x": 1}), metadata={"m": 1})])
    fork = chat.fork()
    assert fork.history() == chat.history()
    assert (fork.user_id, fork.session_id != chat.session_id) == ("ada", True)
    assert fork.context().messages[0].content == "be kind"
    fork.add("user", "there alone")
    chat.edit("u1", "here alone")
    assert (texts(chat)[1], texts(fork)[1]) == ("here alone", "question 1 about parrots")
    assert "there alone" not in texts(chat)
    listed = {session.scope.session_id: session for session in store.sessions(user_id="ada")}
    assert listed[fork.session_id].forked_from == "monday"
    assert listed[fork.session_id].tokens > 0

    part = chat.fork(until="a1", session_id="other")
    assert (part.session_id, texts(part)) == ("other", texts(chat)[:3])
    assert texts(chat.fork(until=-2)) == texts(chat)[:-1]
    refused(errors.InvalidScopeError, "exists", chat.fork, session_id="other")
    for verb in (partial(chat.fork, until="none"), store.chat(user_id="ada", session_id="unknown").fork):
        refused(errors.UnknownMessageError, None, verb)
    part.add_messages(Message("user", str(number)) for number in range(1203))
    assert texts(part.fork(until=1100)) == texts(part)[:1101], "page by page"


@pytest.mark.requirement("L07", "L10")
def test_a_forgotten_user_is_in_no_table_and_nobody_else_is_missing(store, chat):
    chat.resync([Message("user", "question 1 about parrots"), Message("assistant", "an answer of hers")])
    chat.fork().rename("a fork of hers")
    chat.add_temporary(Message("user", "temporary"))
    others = [one for one in beside(chat) if (one.user_id, one.scope.tenant_id) != ("ada", "default")]
    for other in others:
        other.add("user", "parrots of others")
        other.add_temporary(Message("user", "temporary"))
    store.flush()
    before = store.sessions(user_id="ada")

    gone = store.forget("ada")

    assert (gone.sessions, gone.messages) == (2, sum(session.messages for session in before))
    store.flush()
    assert list(store.search("parrots answer", user_id="ada")) == store.sessions(user_id="ada") == []
    assert list(chat.context("parrots").messages) == chat.history() == []
    rows = raw_rows(store)
    for name, found in rows.items():
        told = str(found)
        assert not any(mine in told for mine in ("of hers", "question", chat.scope.namespace)), name
    assert not {session.number for session in before} & {row[1] for row in rows["memlayer_messages"]}
    assert rows["memlayer_jobs"] == []
    assert store.admin.verify() == []
    for other in others:
        assert other.recall("parrots", exclude=())[0].text == "parrots of others"
        assert other.context().temporary


def test_no_key_means_two_messages_though_the_newest_were_deleted(store):
    def keys() -> set[int]:
        return set(store.runtime.db.read(lambda connection: connection.scalars(select(messages.c.key)).all()))

    used: set[int] = set()
    chat = store.chat(user_id="ada", session_id="s")
    for erase in (partial(store.forget, "ada"), chat.clear, partial(store.forget, "ada")):
        chat.add("user", "pineapple")
        store.flush()
        assert keys().isdisjoint(used)
        used |= keys()
        assert store.admin.verify() == []
        erase()
    assert (len(used), keys()) == (3, set())


def test_forgetting_while_others_write_leaves_whole_sessions_or_none(store):
    start = threading.Barrier(5)

    def write(number: int) -> None:
        start.wait()
        for turn in range(15):
            chat = store.chat(user_id="ada", session_id=f"{number}-{turn % 3}")
            chat.resync([Message("user", f"{turn}"), Message("assistant", f"pineapple {number} {turn}")])
            chat.add("user", f"x {turn}", id="same")
            chat.add("user", "plain")

    def forget() -> None:
        start.wait()
        for _ in range(8):
            store.forget("ada")

    with ThreadPoolExecutor(5) as pool:
        for done in [*(pool.submit(write, number) for number in range(4)), pool.submit(forget)]:
            done.result()
    for session in store.sessions(user_id="ada", limit=1000):
        assert len(store.chat_of(session.scope).history()) == session.messages
    store.flush()
    assert store.admin.verify() == []
    store.forget("ada")
    store.flush()
    for name in ("messages", "sessions", "texts", "jobs", "namespaces"):
        assert raw_rows(store)[f"memlayer_{name}"] == []
    assert store.admin.verify() == []


# Sessions without a user: what comes of them stands alone too


@pytest.fixture
def alone(store: Memory) -> Chat:
    made = store.chat_of(Scope.alone("monday", agent_id="clerk"))
    made.add_messages([Message("user", "my parrot is called Coco"), Message("assistant", "nice")])
    store.flush()
    return made


def test_a_session_without_user_is_forgotten_by_its_id_and_nobody_elses_of_that_id(store, alone) -> None:
    of_ada = store.chat(user_id="ada", session_id="monday", agent_id="clerk")
    of_ada.add("user", "mine stays")
    other = store.chat_of(Scope.alone("tuesday", agent_id="clerk"))
    other.add("user", "so does this")

    assert store.forget(session_id="monday", tenant_id="other", agent_id="clerk").sessions == 0
    assert texts(alone)
    alone.edit(0, "my parrot is called Kiki")
    gone = store.forget(session_id="monday", agent_id="clerk")
    assert (gone.sessions, gone.messages) == (1, 2)
    assert alone.history(all_versions=True) == []
    assert texts(of_ada) == ["mine stays"]
    assert texts(other) == ["so does this"]


def test_a_copy_of_one_without_a_user_goes_its_own_way_and_neither_recalls_the_other(store, alone) -> None:
    copy = alone.fork(session_id="tuesday")
    copy.add("user", "my ferret is called Fred")
    alone.add("user", "and my cat is called Tom")
    store.flush()

    assert copy.scope == Scope.alone("tuesday", agent_id="clerk")
    assert texts(copy) == ["my parrot is called Coco", "nice", "my ferret is called Fred"]
    for one, other in ((alone, "Fred"), (copy, "Tom")):
        found = store.search(
            "my parrot cat ferret", user_id=one.user_id, session_id=one.session_id, agent_id="clerk", limit=20
        )
        assert "Coco" in str([hit.text for hit in found])
        assert other not in str([hit.text for hit in found])
    alone.clear()
    store.flush()
    (hit,) = store.search("Coco", user_id=copy.user_id, session_id="tuesday", agent_id="clerk", limit=1)
    assert "meaning" in [reason.code for reason in hit.reasons], "it has vectors of its own"
    assert store.admin.verify() == []
