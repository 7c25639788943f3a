"""What did the model see, afterwards? A trace says it without a text, is bounded, and goes with its session."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from examples import examples
from memlayer_core import Context, ContextTrace, Memory, Message, Settings, ToolCall
from memlayer_core.errors import InvalidLimitError, UnknownTraceError
from memlayer_core.messages.rules.traces import MOST_BYTES
from memlayer_core.storage.tables import traces

QUIET = Settings(index_delay=3600, durability="normal", learn=False)
CAT = "My cat is called Solomon, and he is allergic to nuts."
SECRET = "Whitaker"


@pytest.fixture
def open_quiet(open_with: Callable[[Settings], Memory]) -> Callable[..., Memory]:
    return lambda **settings: open_with(QUIET.replace(**settings))


@pytest.fixture
def store(open_quiet: Callable[..., Memory]) -> Memory:
    return open_quiet()


@pytest.fixture
def past(store: Memory) -> Any:
    """Return a session of Ada with something to recall."""
    chat = store.chat(user_id="ada", session_id="past")
    chat.add("user", CAT, id="cat")
    chat.add("assistant", "I see.")
    store.flush()
    return chat


@pytest.fixture
def chat(store: Memory, past: Any) -> Any:
    return store.chat(user_id="ada", session_id="now")


def rows(memory: Memory) -> list[Any]:
    return memory.runtime.db.read(lambda connection: connection.execute(select(traces)).all())


def plan(one: Context | ContextTrace) -> Any:
    """Return all that a context and its trace must agree in."""
    return (
        one.tokens,
        one.token_limit,
        one.placement,
        one.compaction,
        [reason.code for reason in one.reasons],
        [
            (
                piece.kind,
                piece.tokens,
                piece.message_ids if piece.kind != "temporary" else (),  # it is not in the history
                None if piece.score is None else round(piece.score, 3),
                [reason.code for reason in piece.reasons],
            )
            for piece in one.pieces
        ],
    )


def answer(
    chat: Any, question: str = "What is my cat called?", text: str = "Solomon.", **how: Any
) -> Context:
    chat.add("user", question)
    context = chat.context(**how)
    chat.add("assistant", text)
    return context


def states(trace: ContextTrace, kind: str) -> list[tuple[str, str | None]]:
    return [(piece.state, piece.text) for piece in trace.pieces if piece.kind == kind]


@pytest.mark.parametrize("placement", ["user", "system"])
def test_a_trace_says_what_the_model_was_sent(chat, do, placement) -> None:
    chat.add("system", "Be brief.")
    chat.remember("Ada prefers trains.", always=True)
    chat.add_temporary(Message("user", "(I am in a hurry.)"))
    chat.add("user", "What is my cat called?", id="question")
    context = do(chat, "context", placement=placement)
    assert {piece.kind for piece in context.pieces} == {"system", "profile", "recall", "window", "temporary"}
    receipt = do(chat, "add", "assistant", "Solomon.")
    (listed,) = do(chat, "traces")
    told = do(chat, "trace", listed.id)
    assert plan(listed) == plan(told) == plan(context)
    assert (told.question_id, told.answer_id) == ("question", receipt.ids[0])
    assert abs((told.created_at - datetime.now(UTC)).total_seconds()) < 60
    for piece, sent in zip(told.pieces, context.pieces, strict=True):
        expected = ("unstored", None) if sent.kind == "temporary" else ("stored", sent.text)
        assert (piece.state, piece.text) == expected
        if sent.kind in {"window", "system", "recall"}:
            assert (piece.created_at, piece.speaker) == (sent.created_at, sent.speaker)
    assert {piece.text for piece in listed.pieces} == {None}
    assert [piece.state for piece in listed.pieces] == [piece.state for piece in told.pieces]
    (row,) = rows(chat.memory)
    assert "words" in row.body  # a reason whose text names them
    assert not [word for word in re.findall(r"\w{4,}", CAT.casefold()) if word in row.body.casefold()]
    ranked = next(piece for piece in told.pieces if piece.kind == "recall")
    sent = next(piece for piece in context.pieces if piece.kind == "recall")
    assert [reason.value for reason in ranked.reasons] == pytest.approx(
        [reason.value for reason in sent.reasons], abs=0.001
    )


def test_the_recall_that_stays_with_its_question_is_told_as_it_was(chat, past) -> None:
    context = answer(chat)
    later = chat.context("")  # nothing new is recalled, the pinned one stays
    assert [piece.reasons[0].code for piece in later.pieces if piece.kind == "recall"] == ["kept"]
    chat.add("assistant", "Anything else?")
    told = chat.trace(chat.traces()[0].id)
    assert plan(told) == plan(later)
    assert states(told, "recall") == [("stored", context.recall)]
    past.edit("cat", "My cat is called Felix.")
    assert states(chat.trace(told.id), "recall") == [("gone", None)]


def test_a_question_that_is_stored_with_its_answer_is_in_the_trace(chat, do) -> None:
    asked = Message("user", "What is my cat called?")
    context = do(chat, "context", pending=[asked])
    receipt = do(chat, "add_messages", [asked, Message("assistant", "Solomon.")], context=context)
    (listed,) = chat.traces()
    told = chat.trace(listed.id)
    assert (told.question_id, told.answer_id) == receipt.ids
    (question,) = (piece for piece in told.pieces if piece.kind == "window")
    assert (question.message_ids, question.state, question.text) == (receipt.ids[:1], "stored", asked.text)
    assert [reason.code for reason in question.reasons] == ["pending"]


def test_a_question_that_is_not_stored_after_all_is_told_as_such(chat) -> None:
    context = chat.context(pending=[Message("user", "What is my cat called?")])
    chat.add_messages([Message("user", "And my dog?"), Message("assistant", "Felix.")], context=context)
    (told,) = chat.traces()
    assert [piece.state for piece in told.pieces if piece.kind == "window"] == ["unstored"]


def test_an_answer_to_a_question_that_the_last_context_did_not_show_has_none(chat, store) -> None:
    """As when a conversation is imported after a context was looked at."""
    chat.add("user", "What is my cat called?")
    chat.context()
    chat.add_messages([Message("user", "And my dog?"), Message("assistant", "Felix.")])
    assert chat.traces() == rows(store) == []


def test_the_text_of_another_long_term_memory_is_not_stored() -> None:
    class Service:
        def retrieve(self, message: Message) -> str:
            return f"Ada owns the kayak of {SECRET}."

        def record(self, messages: list[Message]) -> None:
            return None

    with Memory.in_memory(settings=QUIET, long_term_memory=lambda scope: Service()) as memory:
        chat = memory.chat(user_id="ada", session_id="s")
        context = answer(chat, "Whose kayak do I have?", "I know.")
        assert SECRET in context.recall
        told = chat.trace(chat.traces()[0].id)
        assert plan(told) == plan(context)
        assert states(told, "recall") == [("unstored", None)]
        assert told.token_limit == 8000
        (row,) = rows(memory)
        assert SECRET not in row.body
        assert [one.text for one in chat.pinned_recalls()] == [context.recall]


def test_previews_and_merged_messages_are_told_of(open_quiet) -> None:
    chat = open_quiet(last_keep=1).chat(user_id="ada", session_id="s")
    chat.add("user", "Look at this report.")
    chat.add("user", "Tell me all of it.")
    chat.add("assistant", f"{SECRET} writes: " + "It is blue. " * 1000)
    context = answer(chat, "And now?", "Still blue.", token_limit=1000)
    told = chat.trace(chat.traces()[0].id)
    assert plan(told) == plan(context)
    merged, preview, question = told.pieces
    assert len(merged.message_ids) == 2
    assert merged.text == "Look at this report.\n\nTell me all of it." == context.pieces[0].text
    assert [reason.code for reason in preview.reasons] == ["recent", "offloaded"]
    assert len(preview.text or "") > 10_000 > len(context.pieces[1].text)
    assert question.text == "And now?"


def test_a_trace_says_what_a_compaction_did(open_quiet) -> None:
    chat = open_quiet().chat(user_id="ada", session_id="s")
    for number in range(30):
        chat.add("user", f"Question {number}: " + "what do you think of pears? " * 3)
        context = chat.context(token_limit=400)
        if context.compaction is not None:
            break
        chat.add("assistant", f"Answer {number}.")
    left = context.compaction
    assert left is not None
    assert left.turns == number + 1 - sum(message.role == "user" for message in context.window)
    whole = sum(piece.tokens for piece in context.pieces if piece.kind == "window")
    assert left.tokens_before > 400 > left.tokens_after == whole
    again = chat.context(token_limit=400)  # asked once more before the answer, as a notebook does
    assert again.compaction is None
    chat.add("assistant", "The last answer.")
    newest, before, *_ = chat.traces()
    assert newest.compaction == left
    assert "compacted" not in {reason.code for reason in newest.reasons}
    assert before.compaction is None
    answer(chat, token_limit=400)
    assert chat.traces()[0].compaction is None
    assert "turn(s) left the window" in newest._repr_html_()


def test_reasons_of_a_whole_context_have_their_numbers(open_quiet) -> None:
    chat = open_quiet().chat(user_id="ada", session_id="s")
    for _ in range(4):
        context = answer(chat, policy={"max_rounds": 2})
    assert [(one.code, one.value) for one in context.reasons] == [("not_recent", 2)]
    (reason,) = chat.traces()[0].reasons
    assert (reason.code, reason.value, reason.text) == ("not_recent", 2, "not recent (+2)")


@pytest.mark.parametrize("most", [1, 3, 50])
def test_a_new_trace_takes_the_place_of_the_oldest_one(open_quiet, most) -> None:
    memory = open_quiet(context_traces=most)
    chat = memory.chat(user_id="ada", session_id="s")
    for number in range(most + 2):
        answer(chat, f"Question {number}?", f"Answer {number}.")
        assert len(rows(memory)) == min(most, number + 1)
    found = chat.traces(limit=1000)
    assert [one.id for one in found] == [f"trace-{number}" for number in range(most + 2, 2, -1)]
    history = [message.id for message in chat.history() if message.role == "assistant"]
    assert [one.answer_id for one in found] == history[:1:-1]
    assert [one.id for one in chat.traces(limit=2)] == [one.id for one in found[:2]]
    with pytest.raises(UnknownTraceError, match="trace-1"):
        chat.trace("trace-1")


def test_without_the_setting_nothing_is_written(open_quiet) -> None:
    memory = open_quiet(context_traces=0)
    chat = memory.chat(user_id="ada", session_id="s")
    context = answer(chat)
    assert context.note is not None
    assert context.note.trace is None
    assert rows(memory) == []
    assert chat.traces() == []


def test_a_large_context_has_a_trace_of_sixteen_kibibytes(open_quiet) -> None:
    memory = open_quiet()
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("system", "Be brief.")
    chat.add_messages(Message(("user", "assistant")[n % 2], f"Line {n}.") for n in range(3000))
    context = answer(chat, token_limit=1_000_000)
    (row,) = rows(memory)
    assert MOST_BYTES * 0.9 < len(row.body.encode()) <= MOST_BYTES
    (told,) = chat.traces()
    assert told.missing == len(context.pieces) - len(told.pieces) > 1000
    assert told.tokens == context.tokens
    system, *window = [piece.message_ids for piece in told.pieces]
    assert system == context.pieces[0].message_ids
    assert window == [piece.message_ids for piece in context.pieces[-len(window) :]]
    assert f"{told.missing:,} older piece(s)" in told._repr_html_()


def test_many_messages_that_are_stored_with_the_answer_fit_too(open_quiet) -> None:
    memory = open_quiet()
    chat = memory.chat(user_id="ada", session_id="s")
    asked = [Message("user", f"Line {n}.") for n in range(1500)]
    context = chat.context(pending=asked, token_limit=1_000_000)
    chat.add_messages([*asked, Message("assistant", "Ok.")], context=context)
    (row,) = rows(memory)
    assert len(row.body.encode()) <= MOST_BYTES
    told = chat.trace(chat.traces()[0].id)
    assert told.missing == 1500 - len(told.pieces)
    assert [piece.text for piece in told.pieces] == [one.text for one in asked[told.missing :]]


@pytest.mark.parametrize("way", ["delete", "edit", "withdraw", "clear"])
def test_a_text_that_is_not_as_it_was_is_not_told(chat, past, way) -> None:
    answer(chat)
    (before,) = chat.traces()
    assert ("stored", CAT) in states(chat.trace(before.id), "recall")
    match way:
        case "delete":
            past.delete_message("cat")
        case "edit":
            past.edit("cat", "My cat is called Felix.")
        case "withdraw":
            past.withdraw(["cat"])
        case "clear":
            past.clear()
    told = chat.trace(before.id)
    state = "changed" if way == "edit" else "gone"
    assert (state, None) in states(told, "recall")
    assert "Solomon" not in str([piece.text for piece in told.pieces])
    assert state in [piece.state for piece in chat.traces()[0].pieces]
    assert told.tokens == before.tokens


def test_an_edit_that_is_taken_back_is_as_it_was(chat, past) -> None:
    answer(chat)
    past.edit("cat", "My cat is called Felix.")
    past.edit("cat", CAT)
    assert ("stored", CAT) in states(chat.trace("trace-1"), "recall")


def test_a_record_that_was_revised_or_forgotten_is_not_told(store, chat) -> None:
    record = chat.remember("The kayak is a Whitaker.")
    profile = chat.remember("Ada prefers trains.", always=True)
    answer(chat, "Which kayak do I have, a Whitaker?")
    assert ("stored", "The kayak is a Whitaker.") in states(chat.trace("trace-1"), "recall")
    chat.revise(record.memory_id, "The kayak is a Stainer.")
    chat.revise(profile.memory_id, "Ada prefers boats.")
    told = chat.trace("trace-1")
    assert ("changed", None) in states(told, "recall")
    assert states(told, "profile") == [("changed", None)]
    store.forget(record_id=record.memory_id)
    store.forget(record_id=profile.memory_id)
    told = chat.trace("trace-1")
    assert ("gone", None) in states(told, "recall")
    assert states(told, "profile") == [("gone", None)]
    assert record.memory_id not in str(told.pieces)


def test_what_another_user_shared_is_told_as_long_as_it_is_shared(store, chat) -> None:
    bob = store.chat(user_id="bob", session_id="his")
    shared = bob.remember("The kayak is a Whitaker.", visibility="share", allowed_users=["ada"])
    answer(chat, "Which kayak is it, a Whitaker?")
    assert ("stored", "The kayak is a Whitaker.") in states(chat.trace("trace-1"), "recall")
    store.forget(record_id=shared.memory_id)
    assert ("gone", None) in states(chat.trace("trace-1"), "recall")


def test_nobody_reads_the_traces_of_somebody_else(store, chat) -> None:
    answer(chat)
    for other in (
        store.chat(user_id="bob", session_id="now"),
        store.chat(user_id="ada", session_id="past"),
        store.chat(user_id="ada", session_id="now", agent_id="agent"),
        store.chat(user_id="ada", session_id="now", tenant_id="acme"),
        store.chat(user_id="ada", session_id="never"),
    ):
        if other.session_id != "never":
            other.add("user", "Hello!")
        assert other.traces() == []
        with pytest.raises(UnknownTraceError):
            other.trace("trace-1")
    assert len(chat.traces()) == 1


def test_a_trace_opens_nothing_that_its_reader_may_not_see(store, chat) -> None:
    """Even if a row of Ada's came into a session of Bob's: what it names is looked up in his scope."""
    chat.remember("The kayak is blue.", always=True)
    answer(chat)
    bob = store.chat(user_id="bob", session_id="his")
    answer(bob, "Hello?", "Hello!")
    ours, theirs = rows(store)
    move = update(traces).where(traces.c.session == theirs.session).values(body=ours.body, answer=ours.answer)
    store.runtime.db.write(lambda connection: connection.execute(move))
    for told in (bob.traces()[0], bob.trace("trace-1")):
        assert told.answer_id is None
        assert {piece.state for piece in told.pieces if piece.kind in {"recall", "profile"}} == {"gone"}
        assert not any(piece.message_ids or piece.text for piece in told.pieces if piece.kind != "window")


@pytest.mark.parametrize("way", ["clear", "session", "user", "agent"])
def test_traces_go_with_their_session(open_quiet, way) -> None:
    memory = open_quiet()
    agent = "agent" if way == "agent" else None
    chat = memory.chat(user_id="ada", session_id="s", agent_id=agent)
    other = memory.chat(user_id="ada", session_id="other", agent_id="another")
    answer(chat)
    answer(other)
    assert len(rows(memory)) == 2
    match way:
        case "clear":
            chat.clear()
        case "session":
            memory.forget(user_id="ada", session_id="s")
        case "agent":
            memory.forget(user_id="ada", agent_id="agent")
        case "user":
            memory.forget(user_id="ada")
    assert chat.traces() == []
    assert len(rows(memory)) == len(other.traces()) == (way != "user")


def test_no_word_stays_in_the_database(open_at, tmp_path: Path) -> None:
    """Where traces are, a deleted word is not: the journal's bytes are searched."""
    memory = open_at("store", settings=QUIET)
    chat = memory.chat(user_id="ada", session_id="s")
    chat.add("user", f"My kayak is a {SECRET}.", id="m")
    for _ in range(3):
        answer(chat, "Which kayak do I have?", "A good one.")
    chat.delete_message("m")
    memory.flush()
    assert len(chat.traces()) == 3
    memory.close()
    for file in (tmp_path / "store").glob("journal.sqlite3*"):
        assert SECRET.encode() not in file.read_bytes()


def test_an_answer_to_a_session_that_was_forgotten_meanwhile_has_no_trace(store, chat) -> None:
    chat.add("user", "What is my cat called?")
    context = chat.context()
    store.forget(user_id="ada", session_id="now")
    chat.add_messages([Message("user", "Hello?"), Message("assistant", "Solomon.")], context=context)
    assert rows(store) == []


def test_messages_that_move_are_followed(chat) -> None:
    said = [
        Message("user", "Which pears grow in Lisbon, of all the pears?"),
        Message("assistant", "Yours are the best of all that grow there."),
    ]
    chat.add_messages(said[:1])
    context = chat.context()
    chat.add_messages(said[1:])
    (before,) = chat.traces()
    told = chat.trace(before.id)
    chat.resync([Message("user", "A summary of what was said before this."), *said])
    assert len(chat.history()) == 3
    after = chat.trace(before.id)
    assert after == told
    assert plan(after) == plan(context)
    assert after.question_id == chat.history()[1].id


def test_forks_and_exports_have_none(store, chat, tmp_path: Path) -> None:
    answer(chat)
    assert chat.fork(session_id="fork").traces() == []
    store.export(tmp_path / "export.jsonl")
    assert "trace" not in (tmp_path / "export.jsonl").read_text()
    chat.load_state(chat.save_state())
    assert len(rows(store)) == 1  # the state is equal, and its messages stay


@pytest.mark.slow
def test_an_answer_of_another_process_has_none_and_the_others_are_read_there(open_at, tmp_path: Path) -> None:
    memory = open_at("store", settings=QUIET)
    chat = memory.chat(user_id="ada", session_id="s")
    context = answer(chat)
    chat.add("user", "And now?")
    chat.context()
    code = (
        "import sys; from memlayer_core import Memory, Settings\n"
        "with Memory.open(sys.argv[1], embedder='hashing', settings=Settings(learn=False)) as memory:\n"
        "    chat = memory.chat(user_id='ada', session_id='s')\n"
        "    print(chat.add('assistant', 'From elsewhere.').ids[0])\n"
        "    print(*[one.id for one in chat.traces()], chat.trace('trace-1').pieces[-1].text)\n"
        "    chat.add('user', 'Again?'); chat.context(); chat.add('assistant', 'Yes.')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stored, read = done.stdout.splitlines()
    assert read == f"trace-1 {context.pieces[-1].text}"
    newest, oldest = chat.traces()
    assert stored not in {newest.answer_id, oldest.answer_id}
    assert (newest.id, chat.history()[-1].id) == ("trace-2", newest.answer_id)


def test_answers_at_the_same_time_each_have_one(store) -> None:
    chats = [store.chat(user_id="ada", session_id=f"s{n % 2}") for n in range(8)]

    async def turn(number: int) -> None:
        asked = Message("user", f"Question {number}?")
        context = await chats[number].acontext(pending=[asked])
        await chats[number].aadd_messages([asked, Message("assistant", f"Answer {number}.")], context=context)

    async def everyone() -> None:
        await asyncio.gather(*(turn(number) for number in range(8)))

    asyncio.run(everyone())
    for chat in chats[:2]:
        found = chat.traces()
        assert [one.id for one in found] == ["trace-4", "trace-3", "trace-2", "trace-1"]
        for one in found:
            question = chat.trace(one.id).pieces[-1].text
            (said,) = (message.text for message in chat.history() if message.id == one.answer_id)
            assert question == said.replace("Answer", "Question").replace(".", "?")


@pytest.mark.parametrize(
    "id", ["", "trace", "trace-0", "trace-2", "trace--1", "trace-1 ", "1", 1, None, "trace-" + "9" * 99]
)
def test_an_unknown_trace_is_refused_in_words(chat, id) -> None:
    answer(chat)
    with pytest.raises(UnknownTraceError, match="has no trace") as refused:
        chat.trace(id)
    assert "chat.traces()" in refused.value.hint


def test_a_limit_is_checked(chat) -> None:
    with pytest.raises(InvalidLimitError):
        chat.traces(0)


def test_traces_are_shown(chat) -> None:
    answer(chat)
    assert "What the model saw: trace-1" in chat.trace("trace-1")._repr_html_()
    assert "Traces: 1" in chat.traces()._repr_html_()
    assert "Traces: none" in chat.memory.chat(user_id="bob").traces()._repr_html_()


WORDS = st.lists(st.text("QXZJ", min_size=6) | st.text("我狗鱼", min_size=3), min_size=2, max_size=4).map(
    " ".join
)


@examples(25)
@given(
    turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6),
    records=st.lists(WORDS, max_size=3),
    names=st.booleans(),
)
def test_no_word_of_anything_stands_in_a_trace(turns, records, names) -> None:
    with Memory.in_memory(tokenizer="estimate", settings=QUIET) as memory:
        past = memory.chat(user_id="ada", session_id="past")
        for record in records:
            past.remember(record, always=names, tags=[record[:6]])
        past.add_messages(Message("user", f"{question} {answered}") for question, answered in turns)
        memory.flush()
        chat = memory.chat(user_id="ada", session_id="now")
        for number, (question, answered) in enumerate(turns):
            call = ToolCall(f"c{number}", question[:6], f'{{"a": "{question}"}}')
            name = question[:6] if names else None
            chat.add("user", question, name=name, metadata={"m": question})
            chat.context(token_limit=120)
            chat.add("assistant", answered, tool_calls=[call])
            chat.add("tool", answered, tool_call_id=call.id)
            chat.context(f"What of {question}?", token_limit=2000)
            chat.add("assistant", answered)
        found = rows(memory)
        assert len(found) == 2 * len(turns)
        for row in found:
            body = {**json.loads(row.body), "c": ""}  # checks are letters, too
            written = json.dumps(body, ensure_ascii=False).casefold()  # as words are searched for
            assert written.isascii()
            assert not re.search("[qxzj]{5}", written)
