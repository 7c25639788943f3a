"""The public face: what goes in comes out, in sync and async code alike, and a pickle names its store."""

import copy
import multiprocessing
import pickle
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from command_line import printed_by
from hypothesis import given, strategies as st
from refusals import refused
from tuned import Tuned

from memlayer_core import Chat, Memory, Message, Scope
from memlayer_core.cli.app import JournalPlace
from memlayer_core.errors import ConfigurationError, FlushTimeoutError, StoreClosedError
from memlayer_core.events import MessagesIndexed, MessagesStored
from memlayer_core.opening import Place
from memlayer_core.storage import vectors
from tests.conftest import PROMPT

MAY = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


def chat_of(memory: Memory, session_id: str = "s", **more: Any) -> Chat:
    return memory.chat(user_id="louis", session_id=session_id, **more)


def texts(said: Iterable[Any]) -> list[str]:
    return [one.text for one in said]


def test_no_representation_has_the_stores_secret_or_a_password(memory) -> None:
    rt, url = memory.runtime, "postgresql://me:password@host/name"
    for one in (rt, rt.db.read(vectors.layout), Place(url), JournalPlace(database_url=url)):
        assert (rt.secret in repr(one), "password" in repr(one)) == (False, False)


@pytest.mark.requirement("M01", "L02", "J11")
def test_the_past_is_found_by_words_and_by_meaning_and_recalled_beside_the_present(memory) -> None:
    said = Message("user", "I moved to Tokyo in May.", name="Louis", created_at=MAY)
    chat_of(memory, "may").add_messages([said, Message("assistant", "Enjoy the ramen!", created_at=MAY)])
    memory.flush()
    (hit,) = memory.search("Tokyo", user_id="louis", limit=10)
    assert (hit.text, hit.speaker, hit.session_id, hit.created_at) == (said.text, "Louis", "may", MAY)
    assert {reason.code for reason in hit.reasons} == {"words", "meaning", "user"}
    assert hit.tokens > 5

    now = chat_of(memory, "now")
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
    assert texts(now.history()) == ["Be brief.", "Remind me: when did I move to Tokyo?"]
    (told,) = chat_of(memory, "new").context("Where is Tokyo?").messages
    assert told.role == "user", "a question that is not stored yet recalls all the same"
    assert "I moved to Tokyo" in told.content
    assert chat_of(memory, "new").history() == []


@pytest.mark.trap("layered", 4)
@pytest.mark.requirement("J14", "A14")
@pytest.mark.parametrize("chosen", ["setting", "call"])
def test_recall_can_stand_in_the_system_message_instead(chosen) -> None:
    told = {"setting": ({"recall_placement": "system"}, {}), "call": ({}, {"placement": "system"})}
    setting, call = told[chosen]
    with Memory.in_memory(settings=PROMPT.replace(**setting)) as memory:
        chat_of(memory, "may").add("user", "I moved to Tokyo in May.")
        chat = chat_of(memory)
        chat.add("user", "Where is Tokyo?")
        first, second = chat.context(**call).messages
        assert (first.role, second.role, second.content) == ("system", "user", "Where is Tokyo?")
        assert "I moved to Tokyo in May." in first.content
        refused(ConfigurationError, "'top'", chat.context, placement="top")
        whole = chat_of(memory, "whole")
        whole.add("system", "Be brief.")
        whole.add("user", "Where is Tokyo?")
        first, second = whole.context(**call).messages
        assert (first.role, second.role) == ("system", "user")
        assert first.content.startswith('Be brief.\n\n<recalled_memory key="')


@pytest.mark.requirement("F03")
def test_without_a_session_id_each_chat_is_a_new_session(memory) -> None:
    one, two = memory.chat(user_id="louis"), memory.chat(user_id="louis")
    assert one.session_id != two.session_id
    assert memory.chat(user_id="louis", session_id="session_123").session_id == "session_123"


@pytest.mark.requirement("F18", "J03", "F02", "L02")
@given(st.data())
def test_any_message_comes_back_equal(conversations, data) -> None:
    given_messages = data.draw(conversations)
    with Memory.in_memory(settings=Tuned(index_delay=60)) as memory:
        chat = chat_of(memory)
        receipt = chat.add_messages(given_messages)
        stored = chat.history()
        assert tuple(m.id for m in stored) == receipt.ids
        for put_in, came_out in zip(given_messages, stored, strict=True):
            for field in ("role", "content", "name", "tool_calls", "tool_call_id", "metadata"):
                assert getattr(came_out, field) == getattr(put_in, field)
            assert put_in.id in {None, came_out.id}
            assert came_out.created_at == (put_in.created_at or came_out.created_at) is not None
        assert chat.context(token_limit=10_000_000).tokens >= 0


def test_listeners_hear_what_happened_and_cannot_disturb_it_and_what_was_closed_says_so(memory) -> None:
    heard: list[object] = []

    def broken(event: object) -> None:
        raise RuntimeError("a listener's own problem")

    memory.listen(broken)
    stop = memory.listen(heard.append)
    chat = chat_of(memory)
    chat.add("user", "a secret")
    memory.flush()
    assert [type(event) for event in heard] == [MessagesStored, MessagesIndexed]
    assert "secret" not in str(heard)
    stop()
    chat.add("user", "more")
    assert len(heard) == 2
    memory.close()
    memory.close()
    for verb in (partial(chat.add, "user", "x"), chat.history, chat.context, chat.clear):
        refused(StoreClosedError, None, verb)


def test_settings_come_from_the_environment_and_wrong_ones_are_named(monkeypatch) -> None:
    monkeypatch.setenv("MEMLAYER_MAX_TOKENS", "123")
    assert Tuned().max_tokens == 123
    assert Tuned(max_tokens=5).max_tokens == 5
    assert Tuned().replace(recall_tokens=7).recall_tokens == 7
    monkeypatch.setenv("MEMLAYER_SESSION_IDLE_DAYS", "None")
    assert Tuned().session_idle_days is None
    monkeypatch.setenv("MEMLAYER_TELEMETRY", "spans")
    refused(ConfigurationError, "telemetry", Tuned)
    monkeypatch.delenv("MEMLAYER_TELEMETRY")
    for name, wrong in (("max_tokens", 0), ("max_token", 5)):
        refused(ConfigurationError, name, Tuned, **{name: wrong})


def test_scopes_of_different_people_never_share_a_key() -> None:
    names = ("a", "b"), ("ab", "b"), ("a", "b", "c"), ("a", "c", "b"), ('a","b', "b"), ("a", "b", "default")
    scopes = [*(Scope(*some) for some in names), Scope("a", "b", tenant_id="c"), Scope.alone("b")]
    assert len({scope.session_bucket for scope in scopes}) == len(scopes)


IN_MEMORY = """
from memlayer_core import Memory
with Memory.in_memory() as memory:
    chat = memory.chat(user_id='u')
    chat.add('user', 'I like pears.')
    memory.flush()
    chat.context('pears')
"""
OWN_STORE = """
from message_store import DictStore
from memlayer_core import WindowMemory
own = WindowMemory(DictStore(), 's')
own.add('user', 'hello')
assert own.context().messages[0].text == 'hello'
"""
HELP = """
from typer.testing import CliRunner
from memlayer_core.cli.commands import app
assert CliRunner().invoke(app, ['demo', '--help']).exit_code == 0
"""
COUNTS = "from memlayer_core.models.tokens import token_counter; token_counter().text('hello')"
HEAVY = "chromadb langchain_core llama_index onnxruntime tiktoken"
LOADS = {
    "an import": ("import memlayer_core", f"{HEAVY} sqlalchemy numpy"),
    "an import of all names": ("from memlayer_core import *", HEAVY),
    "help": (HELP, f"{HEAVY} sqlalchemy numpy"),
    "a window over a store of one's own": (OWN_STORE, "sqlalchemy chromadb sqlite3 numpy onnxruntime"),
    "a memory in memory, without traces": (IN_MEMORY, "postgres psycopg chromadb opentelemetry"),
    "counting with the table that LlamaIndex has": (COUNTS, "llama_index"),
}
"""Programs, and parts of the names of modules that they have no need of."""


@pytest.mark.requirement("F05")
@pytest.mark.parametrize(("program", "needless"), LOADS.values(), ids=LOADS)
def test_a_program_loads_nothing_that_it_does_not_need(program, needless) -> None:
    loaded = printed_by(f"import sys\n{program}\nprint(*sys.modules)").split()
    assert not [name for name in loaded if any(part in name for part in needless.split())]


@pytest.mark.requirement("J01")
def test_hundreds_of_rounds_fit_into_a_small_context_and_what_lasts_is_still_told(memory, chat) -> None:
    chat.add("user", "My name is Louis, and I want to watch something with robots tonight.")
    chat.remember("The user's name is Louis.", type="profile")
    talk = " ".join(f"We spoke of the budget of department {number}." for number in range(24))
    chat.add_messages(Message(("user", "assistant")[at % 2], f"{at + 1}. {talk}") for at in range(600))
    memory.flush()
    assert sum(memory.tokens.message(message) for message in chat.history()) > 128_000
    context = chat.context("What did I want to watch with robots?", token_limit=4000)
    assert context.tokens <= 4000
    assert context.profile is not None
    assert "Louis" in context.profile.text
    assert "something with robots tonight" in context.recall


def test_with_hashing_a_message_is_stored_with_its_vector_and_no_job_is_left(open_at) -> None:
    memory = open_at(settings=Tuned(index_delay=3600, durability="normal"))
    chat = chat_of(memory)
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
    refused(FlushTimeoutError, "come from the embedder", hashing.flush, 0.5)
    assert "embedder" in str(hashing.admin.status().problems)
    other = open_at(embedder=embedder)
    other.flush()  # who has the store's embedder makes the vector; who has another one leaves the job alone
    assert set(texts(other.search("boat", user_id="louis"))) == {"The kayak is blue.", "The boat is red."}
    assert other.admin.verify() == []


def _say(pickled: bytes, text: str) -> list[str]:
    """Add to a chat in another process, and return what it has."""
    chat = pickle.loads(pickled)
    chat.add("assistant", text)
    said = [one.text for one in chat.history()]
    chat.memory.close()
    return said


@pytest.mark.requirement("F01")
def test_a_chat_is_loaded_in_its_open_memory(memory: Memory) -> None:
    chat = memory.chat(user_id="ada", session_id="s", agent_id="cook", tenant_id="t", roles=["chef"])
    chat.add("user", "My code is 7777.")
    pickled = pickle.dumps(chat)
    again = pickle.loads(pickled)
    assert again.memory is memory
    assert (again.scope, again.roles) == (chat.scope, ("chef",))
    assert b"7777" not in pickled
    assert copy.deepcopy(chat).memory is memory


@pytest.mark.slow
def test_a_chat_is_loaded_in_another_process_from_its_directory(open_at: Any) -> None:
    chat = open_at().chat(user_id="ada", session_id="s")
    chat.add("user", "Hello.")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_say, (pickle.dumps(chat), "Hi.")) == ["Hello.", "Hi."]
    assert [one.text for one in chat.history()] == ["Hello.", "Hi."]


def test_a_closed_directory_is_opened_again_and_what_ended_with_its_process_says_so(open_at):
    memory = open_at()
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", "Hello.")
    pickled = pickle.dumps(chat)
    memory.close()
    refused(StoreClosedError, None, pickle.dumps, memory)
    again = pickle.loads(pickled)
    with again.memory as opened:
        assert opened is not memory
        assert [one.text for one in again.history()] == ["Hello."]
    with Memory.in_memory() as passing:
        pickled = pickle.dumps(passing.chat(user_id="ada"))
    hint = refused(ConfigurationError, "is not open in this process", pickle.loads, pickled)
    assert "Open the memory before you load it" in hint
