"""A framework that sends its list again, trimmed or edited, neither repeats nor loses a message."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memlayer_core import Chat, Memory, Message, Settings
from memlayer_core.errors import InvalidMessageError, MessageTypeError
from memlayer_core.events import Stored

PROMPT = Settings(index_delay=0.0, durability="normal")
WHO = {"u": "user", "a": "assistant", "s": "system"}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, open_at: Callable[..., Memory]) -> Iterator[Memory]:
    """Return a memory on each database."""
    if request.param == "sqlite":
        yield open_at()
        return
    url = request.getfixturevalue("postgres_url")
    with Memory.open(database_url=url, embedder="hashing", settings=PROMPT) as opened:
        yield opened


@pytest.fixture
def chat(store: Memory) -> Chat:
    return store.chat(user_id="ada", session_id="monday")


def listed(written: str) -> list[Message]:
    """Read `"u1 a1#id"`: who speaks, what is said, and perhaps an id."""
    read = []
    for word in written.split():
        text, _, named = word.partition("#")
        read.append(Message(WHO[text[0]], text, id=named or None))  # type: ignore[arg-type]
    return read


def words(chat: Chat) -> str:
    return " ".join(message.text for message in chat.history())


def kept_apart(chat: Chat) -> list[str]:
    """Return what each superseded session says, the newest first."""
    whose = chat.scope
    found = chat.memory.sessions(user_id=whose.user_id, tenant_id=whose.tenant_id, superseded=True)
    assert all(session.forked_from == chat.session_id for session in found if session.superseded)
    return [words(chat.memory.chat_of(one.scope)) for one in found if one.superseded]


@pytest.mark.requirement("L06", "L08", "L09")
def test_a_list_that_is_sent_with_every_message_is_a_history(chat):
    told: list[str] = []
    for word in ("s0", "u1", "a1", "u2", "a2", "u3", "a3"):
        told = [*told, word][-4:]  # the framework evicts its oldest
        chat.resync(listed(" ".join(told)))
        assert chat.resync(listed(" ".join(told))).stored == 0
    assert words(chat) == "s0 u1 a1 u2 a2 u3 a3"
    assert chat.clear() == 7
    assert chat.history() == []


def test_the_receipt_names_what_is_stored(chat):
    first = chat.resync(listed("u1 a1#mine"))
    again = chat.resync(listed("u1 a1 u2"))
    assert (first.stored, first.unchanged, first.superseded, first.fork) == (2, 0, 0, None)
    assert (again.stored, again.unchanged) == (1, 2)
    assert again.ids == tuple(message.id for message in chat.history())
    assert again.ids[:2] == first.ids
    assert first.ids[1] == "mine"


def test_what_an_edit_supersedes_is_kept_apart_and_no_longer_recalled(store, chat):
    chat.resync(listed("u1 a1 uzebra ayak"))
    store.flush()
    synced = chat.resync(listed("u1 a1 ulion"))
    assert words(chat) == "u1 a1 ulion"
    assert synced.superseded == 2
    assert kept_apart(chat) == ["uzebra ayak"]
    assert [one.session_id for one in store.search("uzebra ayak", user_id="ada")][0:1] != [synced.fork]
    assert {hit.text for hit in store.search("uzebra ayak", user_id="ada")}.isdisjoint({"uzebra", "ayak"})
    assert [session.scope.session_id for session in store.sessions(user_id="ada")] == ["monday"]


def test_what_is_superseded_stays_out_of_recall_when_all_is_embedded_anew(open_at):
    memory = open_at()
    chat = memory.chat(user_id="ada", session_id="monday")
    chat.resync(listed("u1 a1 uzebra"))
    chat.add("user", "hidden giraffe", model_visible=False)
    chat.resync(listed("u1 a1 ulion"))
    memory.chat(user_id="ada", session_id=kept(chat)).add("user", "zebra again")
    memory.flush()
    memory.close()
    again = open_at(embedder=lambda texts: [[1.0, float(len(text))] for text in texts], reembed=True)
    again.flush()
    again.reindex()
    assert {hit.text for hit in again.search("zebra giraffe", user_id="ada", k=50)} == {"u1", "a1", "ulion"}


def kept(chat: Chat) -> str:
    (found,) = [s for s in chat.memory.sessions(user_id="ada", superseded=True) if s.superseded]
    return found.scope.session_id or ""


def test_an_edit_keeps_the_id_and_the_place_and_the_old_words(chat):
    chat.resync(listed("u1 a1 u2 a2"))
    ids = [message.id for message in chat.history()]
    synced = chat.resync(listed("u1 aother u2 a2 u3"))
    assert words(chat) == "u1 aother u2 a2 u3"
    assert [message.id for message in chat.history()][:4] == ids
    assert synced.ids[:4] == tuple(ids)
    assert kept_apart(chat) == ["a1"]


def test_ids_say_which_message_was_edited(chat):
    chat.resync(listed("u1#1 a1#2 u2#3 a2#4"))
    assert chat.resync(listed("u1#1 a1#2 uother#3 anew#5")).superseded == 2
    assert words(chat) == "u1 a1 uother anew"
    assert kept_apart(chat) == ["u2 a2"]


def test_a_summary_stands_in_front_of_what_followed_it_and_all_is_still_found(store, chat):
    chat.add("system", "rules")
    chat.resync(listed("u1 a1 u2 a2 uzebra ayak"))
    store.flush()
    chat.resync(listed("usummary uzebra ayak u4"))
    assert words(chat) == "rules u1 a1 u2 a2 usummary uzebra ayak u4"
    assert chat.context().messages[0].content == "rules"
    assert chat.resync(listed("usummary uzebra ayak u4 a4")).stored == 1
    store.flush()
    assert store.search("uzebra", user_id="ada", k=1)[0].text == "uzebra"
    assert store.status().backlog.dead == 0
    assert store.verify() == []
    session = store.sessions(user_id="ada")[0]
    assert (session.messages, session.tokens) == (10, sum(p.tokens for p in chat.context().pieces))


def test_a_list_that_has_nothing_in_common_comes_behind_or_instead(chat):
    chat.resync(listed("s0 u1 a1"))
    chat.resync(listed("u7 a7"))
    assert words(chat) == "s0 u1 a1 u7 a7"
    chat.resync(listed("s1 u8 a8"), replace=True)
    assert words(chat) == "s1 u8 a8"
    chat.resync([], replace=True)
    assert words(chat) == ""
    assert kept_apart(chat) == ["s1 u8 a8", "s0 u1 a1 u7 a7"]
    assert chat.resync([]).stored == chat.resync([], replace=True).superseded == 0


def test_people_repeat_themselves(chat):
    chat.resync(listed("u1 a1 uok a2 uok"))
    chat.resync(listed("a2 uok a3 uok"))
    assert words(chat) == "u1 a1 uok a2 uok a3 uok"


def test_instructions_that_hold_again_are_in_force_again(chat):
    for system in ("s1", "s2", "s1"):
        chat.resync(listed(f"{system} u1 a1"))
        assert chat.context().messages[0].content == system
    assert words(chat) == "s1 u1 a1 s2 s1"


def test_a_session_that_stands_in_the_list_twice_by_its_ids_is_stored_once(chat):
    chat.resync(listed("u1#1 a1#2 u2#3 a2#4"))
    synced = chat.resync(listed("u1#1 u2#3 a1#2 u5#5"))
    assert words(chat) == "u1 a1 u2 a2 u5" or synced.superseded
    assert Counter(m.id for m in chat.history()).most_common(1)[0][1] == 1


def test_what_cannot_be_stored_changes_nothing(chat):
    chat.resync(listed("u1 a1"))
    with pytest.raises(MessageTypeError):
        chat.resync("text")
    with pytest.raises(InvalidMessageError, match="two messages"):
        chat.resync(listed("u1 u2#x u3#x"))
    assert words(chat) == "u1 a1"


def test_the_async_twin_does_the_same(store):
    async def talk() -> str:
        chat = store.chat(user_id="ada", session_id="async")
        await chat.aresync(listed("u1 a1"))
        synced = await chat.aresync(listed("u1 a1 u2"))
        assert synced.stored == 1
        return " ".join(message.text for message in await chat.ahistory())

    assert asyncio.run(talk()) == "u1 a1 u2"


def test_a_sync_is_told_of_like_an_add(store, chat):
    heard: list[Any] = []
    store.listen(lambda told: heard.append(told) if isinstance(told, Stored) else None)
    chat.resync(listed("u1 a1"))
    chat.resync(listed("u1 a1"))
    assert [(told.stored, told.unchanged) for told in heard] == [(2, 0)]


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


def test_ids_of_another_scope_are_strangers(store):
    mine = store.chat(user_id="ada", session_id="s")
    others = [
        store.chat(user_id="bob", session_id="s"),
        store.chat(user_id="ada", session_id="s", tenant_id="other"),
        store.chat(user_id="ada", session_id="s", agent_id="helper"),
        store.chat(user_id="ada", session_id="t"),
    ]
    for other in others:
        other.resync(listed("u1#1 a1#2 u2#3"))
    mine.resync(listed("u1#1 a9#2 u9#9"))
    mine.resync(listed("uelse#3"), replace=True)
    assert [words(other) for other in others] == ["u1 a1 u2"] * 4
    assert words(mine) == "uelse"


@pytest.mark.parametrize("shape", ["trimmed", "pinned", "summed up"])
def test_only_the_end_of_a_long_history_is_read(open_at, monkeypatch, shape):
    from memlayer_core.stores import revision

    memory = open_at()
    chat = memory.chat(user_id="ada", session_id="long")
    told = [f"{'ua'[n % 2]}{n}" for n in range(3000)]
    chat.add_messages(listed(" ".join(told)))
    read: list[int] = []
    real = revision.stored_of
    monkeypatch.setattr(revision, "stored_of", lambda *a: read.append(1) or real(*a))
    front = {"trimmed": [], "pinned": told[:1], "summed up": ["usummary"]}[shape]
    for n in range(3000, 3010):
        told.append(f"{'ua'[n % 2]}{n}")
        chat.resync(listed(" ".join([*front, *told[-20:]])))
    assert len(read) < 10 * 130
    expected = told if shape != "summed up" else [*told[:-29], "usummary", *told[-29:]]
    assert words(chat) == " ".join(expected)


def test_a_list_that_goes_on_far_back_is_found_there(open_at):
    memory = open_at()
    chat = memory.chat(user_id="ada", session_id="long")
    long = "which is long enough to be told from whatever else was said here"
    told = [Message("user" if n % 2 == 0 else "assistant", f"{n} {long}") for n in range(400)]
    chat.add_messages(told)
    synced = chat.resync([*told[10:14], Message("user", "something else")])
    assert [message.text for message in chat.history()] == [*(m.text for m in told[:14]), "something else"]
    assert synced.superseded == 386


class Framework(RuleBasedStateMachine):
    """A framework trims, filters, edits and goes on; a list of what was said says what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory.in_memory(settings=Settings(index_delay=60))
        self.chat = self.memory.chat(user_id="ada", session_id="s")
        self.session: list[str] = []
        self.apart: Counter[str] = Counter()
        self.window: list[str] = []
        self.count = 0

    def word(self, who: str) -> str:
        self.count += 1
        return f"{who}{self.count}"

    def send(self) -> None:
        self.chat.resync(listed(" ".join(self.window)))

    @initialize()
    def begins(self) -> None:
        self.session = self.window = [self.word("u"), self.word("a"), self.word("u"), self.word("a")]
        self.send()

    @rule(ok=st.booleans())
    def goes_on(self, ok: bool) -> None:
        new = ["uok" if ok else self.word("u"), self.word("a")]
        self.session, self.window = [*self.session, *new], [*self.window, *new]
        self.send()

    @precondition(lambda self: len(self.window) > 4)
    @rule(data=st.data())
    def trims(self, data: st.DataObject) -> None:
        self.window = self.window[data.draw(st.integers(1, len(self.window) - 4)) :]
        self.send()

    @precondition(lambda self: len(self.window) > 5)
    @rule(data=st.data())
    def filters(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.window) - 5))
        self.window = self.window[:place] + self.window[place + 1 :]
        self.send()

    @precondition(
        lambda self: len({*self.window[:-1]} - {"uok"}) > 1
    )  # else nothing tells it from a new list
    @rule()
    def regenerates(self) -> None:
        old, new = self.session[-1], self.word("a")
        self.session, self.window = [*self.session[:-1], new], [*self.window[:-1], new]
        self.apart[old] += 1
        self.send()

    @rule()
    def sends_again(self) -> None:
        synced = self.chat.resync(listed(" ".join(self.window)))
        assert (synced.stored, synced.superseded) == (0, 0)

    @invariant()
    def nothing_is_lost_or_repeated(self) -> None:
        assert words(self.chat).split() == self.session
        assert Counter(" ".join(kept_apart(self.chat)).split()) == self.apart

    def teardown(self) -> None:
        self.memory.close()


TestFramework = Framework.TestCase
TestFramework.settings = hypothesis_settings(
    max_examples=20, stateful_step_count=20, deadline=None, phases=(Phase.generate,)
)
