"""What the ledger knows to contradict a recalled message, or to have replaced it, is told beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from memlayer_core import Memory, Message, RecallFilter, Settings
from memlayer_core.storage.terms import sentences

SAID = re.compile(r"^\[(\d+)\] \d{4}-\d\d-\d\d user: (.*)$", re.MULTILINE)
NEVER = "I've never met Bryan Okafor."
MET = "I got advice from Bryan Okafor at the harbour, about varnish."
FILLER = " ".join(f"Then we looked at boat {number} of the yard." for number in range(60))
QUESTION = "Who gave me advice about varnish at the harbour?"


def every_sentence(prompt: str) -> str:
    """Propose every sentence of a prompt as a fact without a key."""
    return json.dumps(
        {
            "operations": [
                {"op": "add", "value": text, "quote": text, "messages": [int(number)]}
                for number, line in SAID.findall(prompt)
                for text in sentences(line)
            ]
        }
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def memory(request: pytest.FixtureRequest, open_at: Callable[..., Memory]) -> Any:
    quiet = Settings(index_delay=0, durability="normal", episodes=False)
    if request.param == "sqlite":
        yield open_at("store", settings=quiet, extractor=every_sentence)
        return
    url = request.getfixturevalue("postgres_url")
    with Memory.open(
        database_url=url, embedder="hashing", extractor=every_sentence, settings=quiet
    ) as memory:
        yield memory


def say(memory: Memory, *texts: str, user_id: str = "ada", **more: Any) -> None:
    for number, text in enumerate(texts):
        memory.chat(user_id=user_id, session_id=f"of {len(texts)}, {number}", **more).add("user", text)
        memory.flush()


@pytest.mark.parametrize("order", [(NEVER, MET), (MET, NEVER)])
def test_both_sides_of_a_contradiction_are_told(memory, order) -> None:
    say(memory, "I repair violins.", *order)
    [entry] = [one for one in memory.ledger(user_id="ada") if one.outcome == "conflict"]
    assert entry.value == order[1]
    of_first = next(one for one in memory.ledger(user_id="ada") if one.value == order[0])
    assert entry.against == of_first.record_id
    context = memory.chat(user_id="ada", session_id="now").context(QUESTION)
    told = {piece.text: piece for piece in context.pieces if piece.kind == "recall"}
    [never] = [piece for text, piece in told.items() if NEVER in text]
    assert any(MET in text for text in told)
    assert "other_side" in {reason.code for reason in never.reasons}
    found = memory.chat(user_id="ada", session_id="now").recall(QUESTION)
    assert {MET, NEVER} <= {hit.text for hit in found}


def test_without_a_contradiction_the_other_is_not_told(memory) -> None:
    say(memory, "I repair violins.", NEVER, MET.replace("Bryan Okafor", "Ann Lee"))
    context = memory.chat(user_id="ada", session_id="now").context(QUESTION)
    assert "Ann Lee" in context.recall
    assert NEVER not in context.recall


def test_the_other_side_keeps_to_the_scope_and_to_the_filter(memory) -> None:
    say(memory, NEVER, user_id="bob")
    say(memory, NEVER, MET, agent_id="cook")
    chat = memory.chat(user_id="ada", session_id="now", agent_id="pilot")
    assert not chat.context(QUESTION).recall
    own = memory.chat(user_id="ada", session_id="now", agent_id="cook")
    assert NEVER in own.context(QUESTION).recall
    shown = own.context(QUESTION, filter=RecallFilter(sessions=["of 2, 1"])).recall
    assert MET in shown
    assert NEVER not in shown


def test_a_side_that_was_deleted_is_not_told(memory) -> None:
    say(memory, NEVER, MET)
    chat = memory.chat(user_id="ada", session_id="of 2, 0")
    chat.clear()
    now = memory.chat(user_id="ada", session_id="now")
    assert NEVER not in now.context(QUESTION).recall
    assert MET in now.context(QUESTION).recall
    [entry] = [one for one in memory.ledger(user_id="ada") if one.value == MET]
    assert (entry.outcome, entry.against) == ("stored", None)


NOISE = "At the harbour somebody asked for advice about varnish, number {}: nothing came of it."


def told_for(memory: Memory, **more: Any) -> dict[str, set[str]]:
    """Return the codes of the reasons of each recalled line, by its text."""
    context = memory.chat(user_id="ada", session_id="now").context(QUESTION, **more)
    pieces = [piece for piece in context.pieces if piece.kind == "recall"]
    return {piece.text: {reason.code for reason in piece.reasons} for piece in pieces}


def test_of_a_long_message_only_the_words_that_contradict_are_told(memory) -> None:
    say(memory, "I repair violins.", f"Hello. {NEVER} {FILLER}", MET)
    told = told_for(memory)
    [words] = [text for text, codes in told.items() if "other_side" in codes]
    assert words.removesuffix(" …").removeprefix("… ") == NEVER.removesuffix(".")
    assert told[words] == {"other_side", "excerpt"}


def test_the_same_words_of_two_long_messages_are_told_once(memory) -> None:
    say(memory, "I repair violins.", f"Hello. {NEVER} {FILLER}", f"Listen. {NEVER} {FILLER[:-60]}", MET)
    assert sum("other_side" in codes for codes in told_for(memory).values()) == 1
    context = memory.chat(user_id="ada", session_id="now").context(QUESTION)
    assert context.recall.count(NEVER.removesuffix(".")) == 1


def test_the_words_of_a_side_that_are_redacted_are_not_told(memory) -> None:
    say(memory, f"{NEVER[:-1]} as my password is hunter2-hunter2.", MET)
    told = told_for(memory)
    assert any(text.startswith(NEVER[:-1]) for text in told)
    assert not any("hunter2" in text for text in told)


def test_two_other_sides_of_a_message_are_told_where_all_else_has_no_room(memory) -> None:
    nevers = [NEVER, NEVER.replace("met", "talked to"), NEVER.replace("met", "known")]
    say(memory, MET, *nevers)
    noise = [Message("assistant", NOISE.format(number)) for number in range(30)]
    memory.chat(user_id="ada", session_id="noise").add_messages(noise)
    memory.flush()
    told = told_for(memory, token_limit=500)
    assert MET in told
    sides = [text for text, codes in told.items() if "other_side" in codes]
    assert sides == nevers[1:]  # those that were said last


def test_what_contradicts_words_that_do_not_bear_on_the_question_is_not_told(memory) -> None:
    advice = "Ann gave me advice about varnish at the harbour."
    say(memory, "I repair violins.", f"{advice} I once cooked lunch for Bryan Okafor.", NEVER)
    assert [one.value for one in memory.ledger(user_id="ada") if one.against] == [NEVER]
    assert not any("other_side" in codes for codes in told_for(memory).values())
    context = memory.chat(user_id="ada", session_id="now").context("Who was I cooking lunch for?")
    assert NEVER in context.recall


def test_a_small_limit_tells_the_other_sides_of_the_best_messages_only(memory) -> None:
    other = MET.replace("Bryan Okafor", "Ann Lee").replace("the harbour", "home")
    say(memory, "I repair violins.", MET, other, NEVER, NEVER.replace("Bryan Okafor", "Ann Lee"))
    small, large = told_for(memory, token_limit=600), told_for(memory, token_limit=4000)
    assert {MET, other} <= small.keys() & large.keys()
    assert [text for text, codes in small.items() if "other_side" in codes] == [NEVER]
    assert sum("other_side" in codes for codes in large.values()) == 2


def test_a_side_that_is_among_the_best_messages_is_told_as_such_and_in_its_place(memory) -> None:
    never = "At the harbour I've never met Bryan Okafor, nor got advice about varnish."
    say(memory, "I repair violins.", never, MET)
    assert [one.value for one in memory.ledger(user_id="ada") if one.against]
    told = told_for(memory)
    assert {never, MET} <= told.keys()
    assert not any("other_side" in codes for codes in told.values())


def test_sides_that_the_window_has_are_not_told_again_and_leave_room_for_another(memory) -> None:
    nevers = [NEVER, NEVER.replace("met", "talked to"), NEVER.replace("met", "known")]
    say(memory, "I repair violins.", MET, nevers[0])
    chat = memory.chat(user_id="ada", session_id="now")
    for text in nevers[1:]:
        chat.add("user", text)
        memory.flush()
    assert {one.value for one in memory.ledger(user_id="ada") if one.against} == {*nevers}
    told = told_for(memory)
    assert {text for text, codes in told.items() if "other_side" in codes} == {NEVER}
    assert told.keys().isdisjoint(nevers[1:])
