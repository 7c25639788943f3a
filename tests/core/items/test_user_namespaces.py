"""Items in a namespace that is declared to be a user's go with the user; of the others, forgetting says that they stay."""

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from clock import set_ahead
from refusals import refused
from tuned import Tuned

from memlayer_core import Memory, RecallFilter, Scope, Settings
from memlayer_core.errors import ImportStoppedError, InvalidItemError
from memlayer_core.items.model import DropItem, FindItems, PutItem
from memlayer_core.tools import AGENT_TOOLS

pytestmark = pytest.mark.each_database

NAMESPACE = ("memories", "{user_id}")
RED, BLUE = "Ada has a red boat.", "Bob has a blue boat."
ASKS = "Is the boat red or blue?"
HELD = {
    ("memories", "ada"): ("boat", RED),
    ("memories", "ada", "pets"): ("cat", "Ada has a cat."),
    ("memories", "bob"): ("boat", BLUE),
    ("drafts", "ada"): ("poem", "Roses are red."),
    ("drafts", "adam"): ("poem", "Violets are blue."),
}


@pytest.fixture
def memory(open_with: Callable[[Settings], Memory]) -> Memory:
    memory = open_with(Tuned(index_delay=0, durability="normal"))
    memory.items().declare_user_namespace(NAMESPACE)
    for labels, (key, text) in HELD.items():
        put(memory.items(), labels, key, text)
    put(memory.items(tenant_id="other"), ("memories", "ada"), "boat", "Another Ada has a boat.")
    return memory


def put(items: Any, labels: tuple[str, ...], key: str, text: str) -> None:
    items.batch([PutItem(labels, key, {"text": text})])


def texts(memory: Memory, tenant_id: str = "default") -> set[str]:
    [found] = memory.items(tenant_id=tenant_id).batch([FindItems(limit=100)])
    return {one.value["text"] for one in found}


def test_they_are_forgotten_with_the_user_alone_and_others_are_named(memory) -> None:
    memory.chat(user_id="ada", session_id="s", agent_id="cook").add("user", "Hello.")
    for less in ({"session_id": "s", "agent_id": "cook"}, {"agent_id": "cook"}):
        report = memory.forget("ada", **less)
        assert (report.items, report.undeclared_folders) == (0, ())
    assert "Ada has a cat." in texts(memory)
    report = memory.forget("ada")
    assert (report.items, report.undeclared_folders) == (2, (("drafts", "ada"),))
    assert texts(memory) == {BLUE, "Roses are red.", "Violets are blue."}
    assert texts(memory, "other") == {"Another Ada has a boat."}
    assert memory.forget("ada").items == 0


def test_they_are_exported_with_the_user_and_imported_as_theirs(memory, open_at) -> None:
    memory.export(out := StringIO(), user_id="ada")
    lines = out.getvalue().splitlines()
    assert sum('"item"' in line for line in lines) == 2
    assert "Roses" not in out.getvalue()
    assert "Bob" not in out.getvalue()
    other = open_at("other")
    refused(ImportStoppedError, "belongs to no user", other.import_from, lines, user_id="ada")
    other.items().declare_user_namespace(NAMESPACE)
    assert other.import_from(lines, user_id="ada").items == 2
    assert texts(other) == {RED, "Ada has a cat."}
    refused(ImportStoppedError, None, other.import_from, lines, user_id="bob")


def test_a_declaration_names_the_user_once_and_is_kept_with_the_store(open_at) -> None:
    with open_at() as first:
        items = first.items(tenant_id="acme")
        for wrong in (("memories",), "{user_id}", ("{user_id}", "{user_id}"), ("u-{user_id}",)):
            refused(InvalidItemError, None, items.declare_user_namespace, wrong)
        for _ in range(2):
            items.declare_user_namespace(NAMESPACE)
    again = open_at()
    for user_id in ("ada", 'a%_"b'):
        for tenant_id, gone in (("acme", 1), ("default", 0)):
            again.items(tenant_id=tenant_id).batch([PutItem(("memories", user_id), "k", {"text": "mine"})])
            assert again.forget(user_id, tenant_id=tenant_id).items == gone


def test_agents_and_searches_find_them_where_they_find_what_was_said(memory) -> None:
    for user_id, own in (("ada", RED), ("bob", BLUE)):
        chat = memory.chat(user_id=user_id)
        retrieve, _ = AGENT_TOOLS["retrieve_from_memory"].functions(chat, None, ValueError)
        first = retrieve(["boat"]).splitlines()[2]
        assert first.split("] ")[1] == f"text: {own}"
        assert f"item, memories/{user_id}/boat]" in first
        assert retrieve(["xylophone"]) == "Nothing was found."
    hit, *_ = memory.search("a red boat", user_id="ada")
    assert (hit.kind, hit.speaker, hit.message_ids, hit.record) == ("item", "item", (), None)
    assert (hit.item.labels, hit.item.key) == (("memories", "ada"), "boat")
    assert not memory.search("a red boat", user_id="ada", filter=RecallFilter(kinds=["record"]))
    assert [one.item.key for one in memory.chat(user_id="ada").recall("Where is the cat?")] == ["cat"]


def ask(memory: Memory, question: str = ASKS, user_id: str | None = "ada", session_id: str = "s") -> Any:
    chat = memory.chat_of(Scope.of_session(session_id, user_id=user_id))
    chat.add("user", question)
    return chat, chat.context()


def test_a_context_recalls_what_bears_on_the_question_for_their_user_alone(memory) -> None:
    for is_indexed in (False, True):
        for user_id, own in (("ada", RED), ("bob", BLUE)):
            _, context = ask(memory, user_id=user_id, session_id=f"s{is_indexed}")
            told = {one.message_ids: one for one in context.pieces if one.kind == "recall"}
            piece = told[f"memories/{user_id}/boat",]
            assert own in piece.text
            assert piece.speaker == "item"
            assert all(f"/{user_id}/" in address for (address,) in told if "/" in address)
        for question, user_id in ((ASKS, "carl"), ("Thanks, that is all!", "ada"), (ASKS, None)):
            assert not ask(memory, question, user_id, session_id="ada")[1].recall
        memory.flush()


def test_an_item_is_recalled_once_and_not_when_it_ended(memory) -> None:
    two = ("The anchor is in the shed.", "An anchor, in a shed, is there.")
    anchor = PutItem(("memories", "ada"), "anchor", {"text": two[0]}, texts=two, ttl=timedelta(days=1))
    memory.items().batch([anchor])
    assert ask(memory, "Where is the anchor?")[1].recall.count(two[0]) == 1
    set_ahead(memory, 2)
    assert "anchor is in the shed" not in ask(memory, "Where is the anchor?", session_id="later")[1].recall


def test_a_recall_is_not_told_again_when_the_item_that_it_quotes_has_changed(memory) -> None:
    items, boat = memory.items(), ("memories", "ada")
    green, gone = PutItem(boat, "boat", {"text": "Ada has a green boat."}), DropItem(boat, "boat")
    for way in (lambda: items.batch([green]), lambda: items.batch([gone]), lambda: items.forget(boat)):
        put(items, boat, "boat", RED)
        asked = [ask(memory, user_id=user_id, session_id=str(way))[0] for user_id in ("ada", "bob")]
        for chat, own in zip(asked, (RED, BLUE), strict=True):
            chat.add("assistant", "So it is.")
            assert own in chat.context().recall
        way()
        assert "red boat" not in str(asked[0].context().messages)
        assert BLUE in asked[1].context().recall


def test_an_item_put_by_another_process_is_recalled_by_the_next_context(open_at) -> None:
    first, second = open_at(), open_at()
    chat, context = ask(second, "What is my cat called?")
    assert not context.recall
    first.items().declare_user_namespace(NAMESPACE)
    put(first.items(), ("memories", "ada", "pets"), "cat", "The cat is called Tom.")
    assert "The cat is called Tom." in chat.context().recall
    first.items().forget(("memories",))
    assert not chat.context().recall
