"""What was recalled for a question stays with it, so that a prompt begins like the one before."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from memlayer_core import Memory, Message, Settings, ToolCall
from memlayer_core.errors import InvalidLimitError
from memlayer_core.recall.sql import pinned as recall_sql
from memlayer_core.records.sql.reads import visible_keys

PEARS = "I grow pears in the garden of Lisbon."


@pytest.fixture
def past(store: Memory):
    chat = store.chat(user_id="louis", session_id="past")
    chat.add("user", PEARS, id="pears")
    store.flush()
    return chat


@pytest.fixture
def chat(store: Memory, past):
    return store.chat(user_id="louis", session_id="now")


def texts(context) -> list[str]:
    return [f"{message.role}: {message.text}" for message in context.messages]


def test_recalled_text_stays_with_its_question_until_the_next_one(chat, do) -> None:
    do(chat, "add", "user", "Which pears grow in Lisbon?")
    first = texts(do(chat, "context"))
    assert PEARS in first[0]
    do(chat, "add", "assistant", "Yours.")
    second = do(chat, "context")
    assert texts(second)[:1] == first
    assert [piece.message_ids for piece in second.pieces if piece.kind == "recall"] == [("pears",)]
    assert second.tokens == sum(piece.tokens for piece in second.pieces)


def test_the_next_question_takes_the_place_of_the_recall_before_it(chat, do) -> None:
    do(chat, "add", "user", "Which pears grow in Lisbon?")
    shown = do(chat, "context").recall
    do(chat, "add", "assistant", "Yours.")
    do(chat, "add", "user", "Thank you!")
    later = do(chat, "context")
    assert texts(later) == ["user: Which pears grow in Lisbon?", "assistant: Yours.", "user: Thank you!"]
    assert later.tokens == sum(piece.tokens for piece in later.pieces)
    assert [one.text for one in do(chat, "pinned_recalls")] == [shown]


def test_what_a_model_was_shown_can_be_asked_for(chat, past, do) -> None:
    assert do(chat, "pinned_recalls") == []
    chat.add("user", "Which pears grow in Lisbon?", id="question")
    shown = chat.context().recall
    assert do(chat, "pinned_recalls") == []  # no model has seen it yet
    chat.add("assistant", "Yours.")
    chat.add("user", "Thank you!")
    chat.context()
    chat.add("assistant", "You are welcome.")
    (found,) = do(chat, "pinned_recalls", limit=5)
    assert (found.question_id, found.text, found.message_ids) == ("question", shown, ("pears",))
    assert do(chat, "pinned_recalls", offset=1) == []
    with pytest.raises(InvalidLimitError, match="`limit`"):
        do(chat, "pinned_recalls", limit=0)
    past.delete_message("pears")
    assert do(chat, "pinned_recalls") == []


def test_it_is_recalled_anew_as_long_as_no_model_has_answered(store, chat) -> None:
    chat.add("user", "Which pears grow in Lisbon?")
    assert PEARS in texts(chat.context())[0]
    store.chat(user_id="louis", session_id="other").add("user", "Pears of Lisbon are sweet.")
    assert "sweet" in texts(chat.context())[0]


def test_a_model_that_calls_tools_is_shown_the_same_from_call_to_call(store, chat) -> None:
    chat.add("user", "Which pears grow in Lisbon?")
    first = texts(chat.context())
    chat.add("assistant", tool_calls=[ToolCall("c1", "look")])
    store.chat(user_id="louis", session_id="other").add("user", "Pears of Lisbon are sweet.")
    chat.add("tool", "found", tool_call_id="c1")
    assert texts(chat.context())[:1] == first


def test_what_is_in_view_is_not_recalled_again(chat) -> None:
    for number in range(3):
        chat.add("user", f"Which pears grow in Lisbon, number {number}?")
        shown = "\n".join(texts(chat.context()))
        assert shown.count(PEARS) == 1
        chat.add("assistant", f"Yours, number {number}.")


@pytest.mark.parametrize("gone", ["delete", "edit", "clear", "end of the question", "edit of the question"])
def test_no_words_stay_that_were_deleted_or_edited(past, chat, do, gone) -> None:
    chat.add("user", "Which pears grow in Lisbon?", id="question")
    chat.context()
    chat.add("assistant", "Yours.")
    assert PEARS in texts(chat.context())[0]
    match gone:
        case "delete":
            do(past, "delete_message", "pears")
        case "edit":
            do(past, "edit", "pears", "I grow plums.")
        case "clear":
            do(past, "clear")
        case "end of the question":
            do(chat, "delete_message", "question")
        case _:
            do(chat, "edit", "question", "And?")
    chat.add("user", "Thank you!")
    context = chat.context("nothing of the kind")
    assert not context.pinned_recalls
    if "question" not in gone:
        assert not any(PEARS in text for text in texts(context))


def test_what_was_deleted_before_the_answer_is_not_kept(past, chat) -> None:
    chat.add("user", "Which pears grow in Lisbon?")
    chat.context()
    past.clear()
    chat.add("assistant", "Yours.")
    chat.add("user", "Thank you!")
    assert not any(PEARS in text for text in texts(chat.context()))


def test_nothing_of_a_forgotten_user_stays(store, chat) -> None:
    chat.add("user", "Which pears grow in Lisbon?")
    chat.context()
    chat.add("assistant", "Yours.")
    store.forget(user_id="louis")
    with store._resources.runtime.db._engine.connect() as connection:
        for table in ("memlayer_pinned_recalls", "memlayer_recall_sources", "memlayer_messages"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0


def test_it_follows_its_question_when_a_list_moves_it(past, chat) -> None:
    said = [
        Message("user", "Which pears grow in Lisbon, of all the pears?"),
        Message("assistant", "Yours are the best of all that grow there."),
    ]
    chat.add_messages(said[:1])
    first = texts(chat.context())
    chat.add_messages(said[1:])
    chat.resync([Message("user", "A summary of what was said before this."), *said])
    assert first[0] in texts(chat.context())
    past.clear()
    assert not any(PEARS in text for text in texts(chat.context("nothing")))


def test_a_fork_keeps_the_words_alone(past, chat) -> None:
    chat.add("user", "Which pears grow in Lisbon?")
    chat.context()
    chat.add("assistant", "Yours.")
    fork = chat.fork()
    fork.add("user", "Thank you!")
    assert texts(fork.context("nothing of the kind"))[0] == "user: Which pears grow in Lisbon?"


@examples(25)
@given(st.lists(st.sampled_from(["pears", "plums", "Lisbon", "rain", "trains"]), min_size=3, max_size=25))
def test_a_prompt_changes_at_its_last_turn_alone_until_the_window_begins_anew(words) -> None:
    chosen = Settings(index_delay=3600, compact_to=0.5)
    with Memory.in_memory(tokenizer="estimate", settings=chosen) as memory:
        past = memory.chat(user_id="louis", session_id="past")
        for word in ("pears", "plums", "Lisbon", "rain", "trains"):
            past.add("user", f"Something that I told you of {word} in May.")
        chat = memory.chat(user_id="louis", session_id="now")
        before: list[str] = []
        for number, word in enumerate(words):
            chat.add("user", f"Question {number}: what did I tell you of {word}?")
            context = chat.context(token_limit=400)
            prompt = texts(context)
            assert context.tokens <= 400
            if "compacted" not in {reason.code for reason in context.reasons}:
                assert prompt[: len(before) - 1] == before[:-1]
            before = prompt
            chat.add("assistant", f"Answer {number}.")


SECRET = "The pears of Lisbon are sold for seven coins."


def sold(memory: Memory, *roles: str):
    chat = memory.chat(user_id="bob", session_id="his", roles=roles)
    chat.add("user", "For how many coins are the pears of Lisbon sold?")
    context = chat.context()
    assert SECRET in texts(context)[0]
    chat.add("assistant", "Seven.")
    return chat


def is_told(chat) -> bool:
    context = chat.context(query="")
    there = any(SECRET in text for text in texts(context))
    assert context.tokens == sum(piece.tokens for piece in context.pieces)
    assert [SECRET in one.text for one in chat.pinned_recalls()] == [True] * there
    return there


def test_what_only_a_role_may_be_told_is_left_out_without_it_and_comes_back_with_it(store) -> None:
    store.chat(user_id="louis", session_id="s").remember(
        SECRET, visibility="share", allowed_roles=["seller"], importance=0.9
    )
    store.flush()
    seller = sold(store, "seller")
    assert is_told(seller)
    plain = store.chat(user_id="bob", session_id="his")
    assert not is_told(plain)
    spent = plain.context(query="").tokens
    assert spent < seller.context(query="").tokens
    # the room that it leaves is there for turns
    assert len(plain.context(query="", token_limit=spent).window) == 2
    assert is_told(seller)


def test_what_has_expired_is_told_no_longer(store, monkeypatch) -> None:
    at = datetime.now(UTC)
    rt = store.runtime
    monkeypatch.setattr(store._resources, "runtime", replace(rt, now=lambda: at))
    chat = store.chat(user_id="bob", session_id="his")
    chat.remember(SECRET, expires_at=at + timedelta(days=1), importance=0.9)
    store.flush()
    chat = sold(store)
    assert is_told(chat)
    monkeypatch.setattr(store._resources, "runtime", replace(rt, now=lambda: at + timedelta(days=2)))
    assert not is_told(chat)


def test_a_record_that_is_made_private_is_told_to_nobody_else_any_more(store) -> None:
    owner = store.chat(user_id="louis", session_id="s")
    owner.remember(SECRET, visibility="public", importance=0.9)
    store.flush()
    chat = sold(store)
    assert is_told(chat)
    owner.remember(SECRET, visibility="private")
    assert not is_told(chat)


def test_only_where_text_quotes_a_record_another_query_asks_who_may_be_told(store, chat, monkeypatch) -> None:
    chat.add("user", "Which pears grow in Lisbon?")
    assert PEARS in texts(chat.context())[0]
    chat.add("assistant", "Yours.")
    asked: list[object] = []
    monkeypatch.setattr(recall_sql, "visible_keys", lambda *args: asked.append(args) or visible_keys(*args))
    chat.context(query="")
    assert asked == []
    chat.remember(SECRET, importance=0.9)
    store.flush()
    sold_to = store.chat(user_id="louis", session_id="third")
    sold_to.add("user", "For how many coins are the pears of Lisbon sold?")
    sold_to.context()
    sold_to.add("assistant", "Seven.")
    assert asked == []
    sold_to.context(query="")
    assert len(asked) == 1
