"""Items in a namespace that is declared to be a user's go with the user; of the others, forgetting says that they stay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from clock import set_ahead
from tuned import Tuned

from memlayer_core import Memory, RecallFilter, Settings
from memlayer_core.errors import ImportStoppedError, InvalidItemError
from memlayer_core.items.model import DropItem, FindItems, PutItem
from memlayer_core.scope import Scope
from memlayer_core.tools import AGENT_TOOLS

NAMESPACE = ("memories", "{user_id}")


@pytest.fixture
def memory(open_with: Callable[[Settings], Memory]) -> Memory:
    memory = open_with(Tuned(index_delay=0, durability="normal"))
    items = memory.items()
    items.declare_user_namespace(NAMESPACE)
    put(items, ("memories", "ada"), "boat", "Ada has a red boat.")
    put(items, ("memories", "ada", "pets"), "cat", "Ada has a cat.")
    put(items, ("memories", "bob"), "boat", "Bob has a blue boat.")
    put(items, ("drafts", "ada"), "poem", "Roses are red.")
    put(items, ("drafts", "adam"), "poem", "Violets are blue.")
    put(memory.items(tenant_id="other"), ("memories", "ada"), "boat", "Another Ada has a boat.")
    return memory


def put(items: Any, labels: tuple[str, ...], key: str, text: str) -> None:
    items.batch([PutItem(labels, key, {"text": text})])


def texts(memory: Memory, tenant_id: str = "default") -> set[str]:
    [found] = memory.items(tenant_id=tenant_id).batch([FindItems(limit=100)])
    return {one.value["text"] for one in found}


def test_they_are_forgotten_with_the_user_and_others_are_named(memory) -> None:
    report = memory.forget("ada")
    assert report.items == 2
    assert report.undeclared_folders == (("drafts", "ada"),)
    assert texts(memory) == {"Bob has a blue boat.", "Roses are red.", "Violets are blue."}
    assert texts(memory, "other") == {"Another Ada has a boat."}
    assert memory.forget("ada").items == 0


def test_what_is_less_than_the_user_leaves_them(memory) -> None:
    chat = memory.chat(user_id="ada", session_id="s", agent_id="cook")
    chat.add("user", "Hello.")
    for less in ({"session_id": "s", "agent_id": "cook"}, {"agent_id": "cook"}):
        report = memory.forget("ada", **less)
        assert (report.items, report.undeclared_folders) == (0, ())
    assert "Ada has a cat." in texts(memory)


def test_they_are_exported_with_the_user_and_imported_as_theirs(memory, open_at) -> None:
    out = StringIO()
    memory.export(out, user_id="ada")
    lines = out.getvalue().splitlines()
    assert sum('"item"' in line for line in lines) == 2
    assert "Roses" not in out.getvalue()
    assert "Bob" not in out.getvalue()

    other = open_at("other")
    with pytest.raises(ImportStoppedError, match="belongs to no user"):
        other.import_from(lines, user_id="ada")
    other.items().declare_user_namespace(NAMESPACE)
    assert other.import_from(lines, user_id="ada").items == 2
    assert texts(other) == {"Ada has a red boat.", "Ada has a cat."}
    with pytest.raises(ImportStoppedError):
        other.import_from(lines, user_id="bob")


def test_a_declaration_is_kept_with_the_store(open_at) -> None:
    with open_at() as first:
        for _ in range(2):
            first.items(tenant_id="acme").declare_user_namespace(NAMESPACE)
    with open_at() as again:
        assert again.items(tenant_id="acme").of_user("ada") == [("memories", "ada")]
        assert again.items(tenant_id="acme").of_user('a%_"b') == [("memories", 'a%_"b')]
        assert again.items().of_user("ada") == []


def test_an_agent_finds_them_where_it_finds_what_was_said(memory) -> None:
    for user_id, own in (("ada", "Ada has a red boat."), ("bob", "Bob has a blue boat.")):
        retrieve, _ = AGENT_TOOLS["retrieve_from_memory"].functions(
            memory.chat(user_id=user_id), None, ValueError
        )
        lines = retrieve(["boat"]).splitlines()[1:]
        assert lines[0].split("] ")[1] == f"text: {own}"
        assert f"item, memories/{user_id}/boat]" in lines[0]
        assert retrieve(["xylophone"]) == "Nothing was found."


@pytest.mark.parametrize(
    "wrong", [("memories",), (), "{user_id}", ("{user_id}", "{user_id}"), ("u-{user_id}",)]
)
def test_a_namespace_names_the_user_once(memory, wrong) -> None:
    with pytest.raises(InvalidItemError):
        memory.items().declare_user_namespace(wrong)


def ask(memory: Memory, question: str, user_id: str = "ada", session_id: str = "s", **more: Any) -> Any:
    chat = memory.chat(user_id=user_id, session_id=session_id, **more)
    chat.add("user", question)
    return chat, chat.context()


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_context_recalls_what_bears_on_the_question_for_their_user_alone(memory, is_indexed) -> None:
    if is_indexed:
        memory.flush()
    for user_id, own in (("ada", "Ada has a red boat."), ("bob", "Bob has a blue boat.")):
        _, context = ask(memory, "Is the boat red or blue?", user_id)
        told = {one.message_ids: one for one in context.pieces if one.kind == "recall"}
        piece = told[f"memories/{user_id}/boat",]
        assert own in piece.text
        assert piece.speaker == "item"
        assert all(f"/{user_id}/" in address for (address,) in told)
    _, nobody = ask(memory, "Is the boat red or blue?", "carl")
    assert not nobody.recall
    _, unrelated = ask(memory, "Thanks, that is all!", "ada", "thanks")
    assert not unrelated.recall
    alone = memory.chat_of(Scope.alone("ada"))
    alone.add("user", "Is the boat red or blue?")
    assert not alone.context().recall


def test_a_search_finds_them_and_a_filter_does_not(memory) -> None:
    hit, *_ = memory.search("a red boat", user_id="ada")
    assert (hit.kind, hit.speaker, hit.message_ids, hit.record) == ("item", "item", (), None)
    assert (hit.item.labels, hit.item.key) == (("memories", "ada"), "boat")
    assert not memory.search("a red boat", user_id="ada", filter=RecallFilter(kinds=["record"]))
    chat = memory.chat(user_id="ada", session_id="r")
    assert [one.item.key for one in chat.recall("Where is the cat?")] == ["cat"]


def test_an_item_is_recalled_once_and_not_when_it_ended(memory) -> None:
    items = memory.items()
    two = ("The anchor is in the shed.", "An anchor, in a shed, is there.")
    items.batch([PutItem(("memories", "ada"), "anchor", {"text": two[0]}, texts=two, ttl=timedelta(days=1))])
    _, context = ask(memory, "Where is the anchor?")
    assert context.recall.count("The anchor is in the shed.") == 1
    set_ahead(memory, 2)
    _, later = ask(memory, "Where is the anchor?", session_id="later")
    assert "anchor is in the shed" not in later.recall


@pytest.mark.parametrize("way", ["put", "drop", "forget"])
def test_a_recall_is_not_told_again_when_the_item_that_it_quotes_has_changed(memory, way) -> None:
    chat, _ = ask(memory, "Is the boat red or blue?")
    chat.add("assistant", "Red.")
    assert "Ada has a red boat." in chat.context().recall
    other = memory.chat(user_id="bob", session_id="s")
    other.add("user", "Is the boat red or blue?")
    assert "Bob has a blue boat." in other.context().recall
    other.add("assistant", "Blue.")
    match way:
        case "put":
            put(memory.items(), ("memories", "ada"), "boat", "Ada has a green boat.")
        case "drop":
            memory.items().batch([DropItem(("memories", "ada"), "boat")])
        case "forget":
            memory.items().forget(("memories", "ada"))
    assert "red boat" not in str(chat.context().messages)
    assert "Bob has a blue boat." in other.context().recall


def test_an_item_put_by_another_process_is_recalled_by_the_next_context(open_at) -> None:
    first, second = open_at(), open_at()
    chat = second.chat(user_id="ada", session_id="s")
    chat.add("user", "What is my cat called?")
    assert not chat.context().recall
    first.items().declare_user_namespace(NAMESPACE)
    put(first.items(), ("memories", "ada", "pets"), "cat", "The cat is called Tom.")
    assert "The cat is called Tom." in chat.context().recall
    first.items().forget(("memories",))
    assert not chat.context().recall
