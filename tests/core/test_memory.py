"""The public face: what goes in comes out, in sync and async code alike."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st
from tuned import Tuned

from memlayer_core import Memory, Message, Scope, ToolCall
from memlayer_core.errors import ConfigurationError, FlushTimeoutError, StoreClosedError
from memlayer_core.events import MessagesIndexed, MessagesStored

MAY = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


@pytest.mark.requirement("F02", "J03", "L02")
def test_history_is_everything_verbatim_and_in_order(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s1")
    chat.add("system", "Be brief.")
    receipt = chat.add(
        "user",
        "I moved to Tokyo.",
        name="Louis",
        created_at=MAY,
        metadata={"app": "ios"},
        id="m1",
    )
    chat.add_messages([Message("assistant", "Welcome!"), Message("user", "Thanks \0 \ud800")])
    history = chat.history()
    assert [(m.role, m.content) for m in history] == [
        ("system", "Be brief."),
        ("user", "I moved to Tokyo."),
        ("assistant", "Welcome!"),
        ("user", "Thanks \0 \ud800"),
    ]
    assert receipt.ids == ("m1",)
    assert history[1].created_at == MAY
    assert history[1].metadata == {"app": "ios"}
    assert history[1].name == "Louis"
    assert all(m.id and m.created_at for m in history)


@pytest.mark.requirement("M01", "L02", "J11")
def test_a_context_holds_the_present_and_recalls_the_past(memory) -> None:
    weeks_ago = memory.chat(user_id="louis", session_id="s1")
    weeks_ago.add("user", "I moved to Tokyo in May.", name="Louis", created_at=MAY)
    weeks_ago.add("assistant", "Enjoy the ramen!", created_at=MAY)
    now = memory.chat(user_id="louis", session_id="s2")
    now.add("system", "Be brief.")
    now.add("user", "Remind me: when did I move to Tokyo?")
    context = now.context(token_limit=500)
    assert [m.role for m in context.messages] == ["system", "user"]
    told = context.messages[-1].content
    assert "[2026-05-04 Louis] I moved to Tokyo in May." in told
    assert told.endswith("Remind me: when did I move to Tokyo?")
    assert {piece.kind for piece in context.pieces} == {"system", "recall", "window"}
    assert all(piece.reasons for piece in context.pieces)
    assert context.tokens <= 500
    assert [m.content for m in now.history()] == ["Be brief.", "Remind me: when did I move to Tokyo?"]


@pytest.mark.requirement("J14", "A14")
def test_recall_can_stand_in_the_system_message_instead(tmp_path) -> None:
    settings = Tuned(recall_placement="system", index_delay=0)
    with Memory.in_memory(settings=settings) as memory:
        memory.chat(user_id="louis", session_id="s1").add("user", "I moved to Tokyo in May.")
        chat = memory.chat(user_id="louis", session_id="s2")
        chat.add("user", "Where is Tokyo?")
        first, second = chat.context().messages
        assert (first.role, second.role) == ("system", "user")
        assert "I moved to Tokyo in May." in first.content
        assert second.content == "Where is Tokyo?"
        chat.add("system", "not leading any more")
        whole = memory.chat(user_id="louis", session_id="s3")
        whole.add("system", "Be brief.")
        whole.add("user", "Where is Tokyo?")
        assert [m.role for m in whole.context().messages] == ["system", "user"]
        assert whole.context().messages[0].content.startswith('Be brief.\n\n<recalled_memory key="')


@pytest.mark.trap("layered", 4)
@pytest.mark.requirement("J14", "A14")
def test_a_call_may_say_where_recall_stands(memory) -> None:
    memory.chat(user_id="louis", session_id="s1").add("user", "I moved to Tokyo in May.")
    chat = memory.chat(user_id="louis", session_id="s2")
    chat.add("user", "Where is Tokyo?")
    system, asked = chat.context(placement="system").messages
    assert "I moved to Tokyo in May." in system.content
    assert asked.content == "Where is Tokyo?"

    with pytest.raises(ConfigurationError, match="'top'"):
        chat.context(placement="top")


@pytest.mark.requirement("J12")
def test_nothing_to_recall_leaves_the_messages_as_they_are(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s1")
    chat.add("user", "Hello")
    context = chat.context()
    assert [m.content for m in context.messages] == ["Hello"]
    assert context.recall == ""
    empty = memory.chat(user_id="nobody", session_id="s").context("anything")
    assert empty.messages == ()


def test_a_question_that_is_not_stored_yet_recalls_all_the_same(memory) -> None:
    memory.chat(user_id="louis", session_id="s1").add("user", "I moved to Tokyo in May.")
    fresh = memory.chat(user_id="louis", session_id="s2")
    (told,) = fresh.context("Where is Tokyo?").messages
    assert told.role == "user"
    assert "I moved to Tokyo" in told.content
    assert fresh.history() == []


def test_search_finds_by_words_at_once_and_by_meaning_when_indexed(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s1")
    chat.add("user", "I moved to Tokyo in May.", name="Louis", created_at=MAY)
    memory.flush()
    (hit,) = memory.search("Tokyo", user_id="louis", limit=10)
    assert (hit.text, hit.speaker, hit.session_id) == ("I moved to Tokyo in May.", "Louis", "s1")
    assert hit.created_at == MAY
    assert {reason.code for reason in hit.reasons} == {"words", "meaning", "user"}
    assert hit.tokens > 5
    assert memory.search("Tokyo", user_id="louis", token_limit=5) == ()
    assert len(memory.search("Tokyo", user_id="louis", token_limit=50)) == 1


@pytest.mark.requirement("L07", "M06", "M15")
def test_nobody_sees_what_another_tenant_user_or_agent_was_told(memory) -> None:
    memory.chat(user_id="eve", session_id="s").add("user", "the code is 4711")
    memory.chat(user_id="louis", session_id="s", tenant_id="b").add("user", "the code is 4712")
    memory.chat(user_id="louis", session_id="s", agent_id="bank").add("user", "the code is 4713")
    memory.flush()
    assert memory.search("what is the code", user_id="louis", agent_id="shop") == ()
    mine = memory.search("what is the code", user_id="louis")
    assert [hit.text for hit in mine] == ["the code is 4713"]
    chat = memory.chat(user_id="louis", session_id="new", agent_id="shop")
    chat.add("user", "what is the code?")
    assert [m.content for m in chat.context().messages] == ["what is the code?"]
    session = memory.search("code", user_id="louis", agent_id="bank", session_id="other")
    assert session == ()


@pytest.mark.requirement("L10", "J10")
def test_clearing_a_session_forgets_it_and_nothing_else(memory) -> None:
    one, two = (memory.chat(user_id="louis", session_id=s) for s in ("s1", "s2"))
    one.add("user", "pineapple one")
    two.add("user", "pineapple two")
    memory.flush()
    assert one.clear() == 1
    memory.flush()
    assert one.history() == []
    assert [hit.text for hit in memory.search("pineapple", user_id="louis")] == ["pineapple two"]
    assert memory.chat(user_id="louis", session_id="never").clear() == 0


@pytest.mark.requirement("L09")
def test_setting_messages_replaces_the_session_and_embeds_only_what_is_new(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s1")
    chat.add_messages([Message("user", "one"), Message("assistant", "two"), Message("user", "three")])
    memory.flush()
    embedded: list[int] = []
    memory.listen(lambda e: embedded.append(e.embedded) if isinstance(e, MessagesIndexed) else None)
    receipt = chat.resync([Message("user", "one"), Message("assistant", "two!")], replace="all", erase=True)
    assert (receipt.unchanged, receipt.stored) == (1, 1)
    memory.flush()
    assert sum(embedded) == 1
    assert [m.content for m in chat.history()] == ["one", "two!"]


def test_messages_of_one_session_are_listed_by_last_use(memory) -> None:
    for name in ("a", "b", "a"):
        memory.chat(user_id="louis", session_id=name).add("user", "hi")
    memory.chat(user_id="eve", session_id="c").add("user", "hi")
    sessions = memory.sessions(user_id="louis")
    assert [(s.scope.session_id, s.messages) for s in sessions] == [("a", 2), ("b", 1)]


@pytest.mark.requirement("F03")
def test_without_a_session_id_each_chat_is_a_new_session(memory) -> None:
    one, two = memory.chat(user_id="louis"), memory.chat(user_id="louis")
    assert one.session_id != two.session_id
    assert memory.chat(user_id="louis", session_id="session_123").session_id == "session_123"


def test_times_come_back_as_the_same_moment(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    tokyo = timezone(timedelta(hours=9))
    moments = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 5, 4, 1, 2, 3, 456789, tzinfo=tokyo),
    ]
    for moment in moments:
        chat.add("user", "x", created_at=moment)
    chat.add("user", "x", created_at=datetime(2026, 5, 4, 1, 2, 3))  # noqa: DTZ001
    stored = [m.created_at for m in chat.history()]
    assert stored[:3] == moments
    assert stored[3] == datetime(2026, 5, 4, 1, 2, 3, tzinfo=UTC)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
identifiers = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(st.characters())
    | st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "image_url", "x"])}, optional={"text": st.text()}
        ),
        max_size=3,
    ).map(tuple),
    id=st.none() | identifiers,
    name=st.none() | identifiers,
    tool_calls=st.lists(st.builds(ToolCall, identifiers, identifiers, st.text()), max_size=2).map(tuple),
    tool_call_id=st.none() | identifiers,
    created_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    metadata=st.dictionaries(st.text(), json_values, max_size=3),
)


@pytest.mark.requirement("F18")
@given(st.lists(messages, max_size=5, unique_by=lambda m: m.id or (m.role, str(m.content))))
def test_any_message_comes_back_equal(given_messages) -> None:
    with Memory.in_memory(settings=Tuned(index_delay=60)) as memory:
        chat = memory.chat(user_id="louis", session_id="s")
        receipt = chat.add_messages(given_messages)
        stored = chat.history()
        assert tuple(m.id for m in stored) == receipt.ids
        for put_in, came_out in zip(given_messages, stored, strict=True):
            for field in ("role", "content", "name", "tool_calls", "tool_call_id", "metadata"):
                assert getattr(came_out, field) == getattr(put_in, field)
            assert put_in.id in {None, came_out.id}
            assert put_in.created_at in {None, came_out.created_at}
        assert chat.context(token_limit=10_000_000).tokens >= 0


async def test_both_colours_work_in_a_running_loop_and_share_one_memory() -> None:
    memory = await asyncio.to_thread(Memory.in_memory)
    chat = memory.chat(user_id="louis", session_id="s")
    await chat.aadd("user", "from the loop")
    await asyncio.to_thread(chat.add, "assistant", "from a thread")
    assert [m.content for m in await chat.ahistory()] == ["from the loop", "from a thread"]
    await memory.aclose()


def test_one_memory_serves_many_event_loops_and_threads_at_once(open_at) -> None:
    memory = open_at()
    start = threading.Barrier(8)

    def talk(number: int) -> list[str]:
        chat = memory.chat(user_id=f"u{number}", session_id="s")

        async def turns() -> None:
            for turn in range(5):
                await asyncio.gather(chat.aadd("user", f"{number}.{turn}"), chat.acontext("anything"))

        start.wait()
        asyncio.run(turns())
        return [m.content for m in chat.history()]

    with ThreadPoolExecutor(8) as pool:
        for number, contents in enumerate(pool.map(talk, range(8))):
            assert contents == [f"{number}.{turn}" for turn in range(5)]


def test_what_was_closed_says_so(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "hi")
    memory.close()
    memory.close()
    for verb, arguments in (("add", ("user", "x")), ("history", ()), ("context", ()), ("clear", ())):
        with pytest.raises(StoreClosedError):
            getattr(chat, verb)(*arguments)


def test_listeners_hear_what_happened_and_cannot_disturb_it(memory) -> None:
    heard: list[object] = []

    def broken(event: object) -> None:
        raise RuntimeError("a listener's own problem")

    memory.listen(broken)
    stop = memory.listen(heard.append)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "a secret")
    memory.flush()
    assert [type(event) for event in heard] == [MessagesStored, MessagesIndexed]
    assert "secret" not in str(heard)
    stop()
    chat.add("user", "more")
    assert len(heard) == 2


def test_settings_come_from_the_environment_and_wrong_ones_are_named(monkeypatch) -> None:
    monkeypatch.setenv("MEMLAYER_MAX_TOKENS", "123")
    assert Tuned().max_tokens == 123
    assert Tuned(max_tokens=5).max_tokens == 5
    assert Tuned().replace(recall_tokens=7).recall_tokens == 7
    with pytest.raises(ConfigurationError, match="max_tokens"):
        Tuned(max_tokens=0)
    with pytest.raises(ConfigurationError, match="max_token"):
        Tuned(max_token=5)


def test_scopes_of_different_people_never_share_a_key() -> None:
    scopes = [
        Scope("a", "b"),
        Scope("ab", "b"),
        Scope("a", "b", "c"),
        Scope("a", "c", "b"),
        Scope("a", "b", tenant_id="c"),
        Scope('a","b', "b"),
        Scope("a", "b", agent_id="default"),
        Scope.alone("b"),
    ]
    assert len({scope.session_lane for scope in scopes}) == len(scopes)


def test_pieces_show_as_html_with_every_text_escaped(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "<script>alert('x')</script> & co", name="<b>Louis</b>")
    memory.flush()
    for shown in (
        chat.context()._repr_html_(),
        chat._repr_html_(),
        memory.search("script", user_id="louis")._repr_html_(),
    ):
        assert "<script>" not in shown
        assert "<b>Louis" not in shown
        assert "&lt;script&gt;" in shown
    assert "<svg" in chat.context()._repr_html_()


def test_importing_the_core_loads_no_index_and_no_framework() -> None:
    code = "import sys, json, memlayer_core; print(json.dumps(sorted(sys.modules)))"
    heavy = {"chromadb", "langchain_core", "llama_index", "sqlalchemy", "numpy", "onnxruntime", "tiktoken"}
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not heavy & set(loaded)
    code = "import sys, json; from memlayer_core import *; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not (heavy - {"numpy", "sqlalchemy"}) & set(loaded)  # verbs need these two


def test_a_memory_in_sqlite_loads_nothing_of_postgresql() -> None:
    code = (
        "import sys; from memlayer_core import Memory\n"
        "with Memory.in_memory() as m:\n"
        "    c = m.chat(user_id='u'); c.add('user', 'I like pears.'); m.flush(); c.context('pears')\n"
        "print(*(name for name in sys.modules if 'postgres' in name or 'psycopg' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not done.stdout.strip()


@pytest.mark.slow
def test_a_memory_in_memory_never_loads_chroma() -> None:
    code = (
        "import sys; from memlayer_core import Memory\n"
        "with Memory.in_memory() as m:\n"
        "    c = m.chat(user_id='u'); c.add('user', 'hi'); m.flush(); c.context('hi')\n"
        "print('chromadb' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.requirement("J01")
def test_hundreds_of_rounds_fit_into_a_small_context_and_what_lasts_is_still_told(memory) -> None:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "My name is Louis, and I want to watch something with robots tonight.")
    chat.remember("The user's name is Louis.", type="profile")
    talk = " ".join(f"We spoke of the budget of department {number}." for number in range(24))
    chat.add_messages(
        Message("user" if number % 2 else "assistant", f"{number}. {talk}") for number in range(1, 601)
    )
    memory.flush()
    assert sum(memory.tokens.message(message) for message in chat.history()) > 128_000
    context = chat.context("What did I want to watch with robots?", token_limit=4000)
    assert context.tokens <= 4000
    assert context.profile is not None
    assert "Louis" in context.profile.text
    assert "something with robots tonight" in context.recall


def test_with_hashing_a_message_is_stored_with_its_vector_and_no_job_is_left(open_at) -> None:
    memory = open_at(settings=Tuned(index_delay=3600, durability="normal"))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", "Our kayaks are in Bergen."), Message("assistant", "Noted.")])
    assert memory.admin.status().backlog.queued == 0
    (hit, *_) = memory.search("kayaking in Bergen", user_id="louis")
    assert any(reason.code == "meaning" and "cosine" in reason.text for reason in hit.reasons)
    chat.edit(0, content="Our kayaks are in Oslo.")
    assert "Oslo" in memory.search("kayaking in Oslo", user_id="louis")[0].text
    assert memory.admin.verify() == []


def test_no_vector_of_another_embedder_is_stored_beside_those_of_a_store(open_at) -> None:
    hashing = open_at(settings=Tuned(index_delay=0, durability="normal"))

    def embedder(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.5, float(len(text))] for text in texts]

    with open_at(embedder=embedder) as other:
        other.chat(user_id="louis").add("user", "The kayak is blue.")
        other.flush()
    hashing.chat(user_id="louis").add("user", "The boat is red.")
    with pytest.raises(FlushTimeoutError, match="come from the embedder"):
        hashing.flush(0.5)
    assert "embedder" in str(hashing.admin.status().problems)
    other = open_at(embedder=embedder)
    other.flush()  # who has the store's embedder makes the vector; who has another one leaves the job alone
    assert {hit.text for hit in other.search("boat", user_id="louis")} == {
        "The kayak is blue.",
        "The boat is red.",
    }
    assert other.admin.verify() == []
