"""Items are as durable as what was said, found through the index like it, and leave nothing behind when they go."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from projection import in_chroma, in_journal
from refusals import refused
from sql import postings
from sqlalchemy import Connection, text
from tuned import Tuned

from memlayer_core import Memory, Scope
from memlayer_core.errors import EmbedderError, ImportStoppedError, InvalidItemError, InvalidScopeError
from memlayer_core.items.check import whole_text
from memlayer_core.items.model import DropItem, FindItems, GetItem, Item, ListFolders, PutItem
from memlayer_core.scope import Folder
from memlayer_core.storage import vectors, words
from memlayer_core.storage.texts import repair_words

pytestmark = pytest.mark.each_database

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
LATER = Tuned(index_delay=3600, durability="normal")
TABLES = ("items", "namespaces", "texts WHERE vector IS NOT NULL")


def put(memory: Memory, *labels: str, tenant: str = "default", **texts: str) -> None:
    memory.items(tenant_id=tenant).batch([PutItem(labels, key, {"text": one}) for key, one in texts.items()])


def find(memory: Memory, query: str | None, *labels: str, tenant: str = "default", **more: Any) -> list[Item]:
    (found,) = memory.items(tenant_id=tenant).batch([FindItems(labels, query=query, **more)])
    return found  # type: ignore[return-value]


def keys(found: list[Item]) -> list[str]:
    return [item.key for item in found]


def is_scored(memory: Memory, query: str, item: Item) -> bool:
    embedder = memory.runtime.embedder
    cosine = float(embedder.embed_query(query) @ embedder.embed([whole_text(item.value)])[0])
    return item.score == pytest.approx(cosine, abs=1e-3)


def counted(memory: Memory) -> list[int]:
    """Count items, folders with items, vectors and filed texts."""

    def count(connection: Connection) -> list[int]:
        counts = [connection.scalar(text(f"SELECT count(*) FROM memlayer_{name}")) or 0 for name in TABLES]
        return [*counts, len(words.keys(connection))]

    return memory.runtime.db.read(count)


@pytest.fixture
def few(open_at, monkeypatch) -> Memory:
    """Return a memory that asks Chroma also where a folder has few texts."""
    monkeypatch.setattr("memlayer_core.items.flow._MORE", 1)
    return open_at(settings=LATER.replace(exact_scan_limit=4))


# --- durable


def test_items_are_there_when_the_store_is_opened_again(open_with) -> None:
    memory = open_with(LATER)
    put(memory, "users", "ada", a="likes hiking", b="likes sushi")
    before = find(memory, None, "users")
    find(memory, "hiking", "users")  # makes the vectors
    memory.close()
    again = open_with(LATER)
    assert (find(again, None, "users"), keys(find(again, "hiking", "users"))) == (before, ["a", "b"])


def test_an_item_that_goes_and_the_old_text_of_one_that_changes_leave_nothing_behind(store) -> None:
    folder = Folder("default", ("a", "b"))
    put(store, *folder.labels, k="old secret", other="something else")
    find(store, "old")
    put(store, *folder.labels, k="new words")
    find(store, "new")
    assert counted(store) == [2, 1, 2, 2]
    assert store.runtime.db.read(postings, folder, ["secret"]) == {}
    store.flush()
    assert store.runtime.db.read(vectors.overview, folder).vectors == 2
    items = store.items()
    items.batch([DropItem(folder.labels, "k")])
    assert (counted(store), keys(find(store, "new words"))) == ([1, 1, 1, 1], ["other"])
    items.batch([PutItem(("a",), "short", {"text": "x"}, ttl=timedelta(microseconds=1))])
    assert items.sweep() == 1
    assert items.forget(("a",)) == 1
    store.flush()
    assert counted(store) == [0, 0, 0, 0]


def test_what_was_said_and_items_are_found_and_forgotten_apart(store) -> None:
    put(store, "ada", k="pineapples are yellow")
    put(store, k="pineapples", tenant="ada")
    chat = store.chat(user_id="ada")
    chat.add("user", "mangos are orange")
    store.flush()
    assert not store.search("pineapples yellow", user_id="ada")
    (item,) = find(store, "mangos orange")
    assert item.value == {"text": "pineapples are yellow"}
    store.forget("ada")
    assert keys(find(store, "pineapples")) == ["k"]
    users = [Scope(user, tenant_id="t") for user in ("ada", "t", '{"folder":[]}')]
    folders = {Folder("t", labels).namespace for labels in ((), ("ada",), ("memlayer:commons",))}
    assert not folders & {users[0].commons.namespace, *(one.namespace for one in users)}
    chat.add("user", "I like pineapples")
    store.items().forget()
    assert (find(store, "pineapples"), len(store.search("pineapples", user_id="ada"))) == ([], 1)


def test_many_threads_write_to_one_folder_and_empty_it_without_losing_any(store) -> None:
    def work(number: int) -> None:
        items, own = store.items(), ("own", str(number))
        for one in range(4):
            items.batch([PutItem(("shared",), "same", {"by": number}), PutItem(own, "k", {})])
            items.batch([DropItem(own, "k"), PutItem(("shared",), f"{number}-{one}", {})])
            items.batch([DropItem(("shared",), "same"), GetItem(("shared",), "same")])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(find(store, None, limit=100)) == 16
    assert store.items().batch([ListFolders()]) == [[("shared",)]]


# --- exports


def test_a_tenants_export_has_its_items_and_they_come_back_equal(store, memory) -> None:
    store.items(tenant_id="acme").batch(
        [
            PutItem(("users", "ada"), "k", {"when": NOON, "text": "hiking", "half": "\ud800"}),
            PutItem(("users",), "titled", {"title": "sushi", "text": "other"}, texts=("sushi",)),
            PutItem((), "", {"text": "hidden"}, texts=(), ttl=timedelta(minutes=5)),
        ]
    )
    put(store, "users", "ada", k="another tenant's")
    store.chat(user_id="ada", tenant_id="acme").add("user", "Hi")
    store.export(out := io.StringIO(), tenant_id="acme")
    *lines, end = out.getvalue().splitlines()
    assert json.loads(end) == {"end": {"sessions": 1, "messages": 1, "items": 3}}
    done = memory.import_from([*lines, end], tenant_id="moved")
    assert (done.items, done.placed) == (3, 3)
    assert str(done).endswith("3 item(s), 3 of them new")

    def plain(memory: Memory, tenant: str) -> dict[str, Item]:
        found = find(memory, None, tenant=tenant)
        return {one.key: replace(one, number=0, expires_at=None) for one in found}

    assert plain(memory, "moved") == plain(store, "acme")
    assert find(memory, "sushi", tenant="moved")[0].key == "titled"
    assert find(memory, "hidden", tenant="moved")[-1].score is None
    assert find(memory, None) == []
    put(memory, "users", "ada", tenant="moved", k="newer")
    again = memory.import_from([*lines, end], tenant_id="moved")
    assert (again.items, again.placed) == (3, 0)
    assert find(memory, None, "users", "ada", tenant="moved")[0].value == {"text": "newer"}


def test_what_is_no_item_is_refused_in_an_import_and_elsewhere(open_at) -> None:
    memory = open_at(settings=LATER.replace(message_bytes_limit=100))
    times = dict.fromkeys(("created_at", "updated_at"), "2026-05-04T12:00:00Z")
    good = {"tenant_id": "t", "labels": ["a"], "key": "k", "value": {}, **times}
    end = {"end": {"sessions": 0, "messages": 0, "items": 1}}
    for wrong in ({"value": []}, {"labels": [""]}, {"texts": "x"}, {"ttl_seconds": -1}, {"created_at": "x"}):
        lines = [{"memlayer": "export", "version": 1, "messages": 0}, {"item": good | wrong}, end]
        refused(ImportStoppedError, "line 2", memory.import_from, map(json.dumps, lines))
        assert find(memory, None, tenant="t") == [], wrong
    refused(InvalidScopeError, None, memory.items, tenant_id="nul\0")
    for labels in ("text", ("",), (1,), ("half\ud800",), 5):
        refused(InvalidItemError, None, memory.items().forget, labels)
    for bad in ({"ttl": 5}, {"texts": "x"}, {"created_at": "x"}, "x", ListFolders(("x",)), ListFolders(5)):
        op = PutItem(("a",), "k", {}, **bad) if isinstance(bad, dict) else bad
        refused(InvalidItemError, None, memory.items().batch, [PutItem(("a",), "good", {}), op])
    refused(InvalidItemError, "larger than the limit", put, memory, "d", k="x" * 200)
    assert find(memory, None) == []


# --- the index


def test_many_items_are_found_through_the_index(few, asked) -> None:
    for label, what in (("a", "hiking"), ("b", "sushi")):
        put(few, "docs", label, **{f"{label}{n}": f"note about topic{n} and {what}" for n in range(6)})
    put(few, "docs", tenant="other", k="note about topic3 and hiking")
    few.flush()
    assert find(few, "topic3 hiking", "docs", "a", limit=2)[0].key == "a3"
    assert len(asked) == 1
    found = find(few, "topic3 sushi", "docs", limit=4)
    assert (found[0].key, len(asked)) == ("b3", 3)
    assert [item.score for item in found] == sorted((item.score or 0 for item in found), reverse=True)
    assert is_scored(few, "topic3 sushi", found[0])


def test_the_best_of_many_items_are_those_that_a_comparison_of_all_finds(open_at) -> None:
    memory = open_at()
    kinds = ("hiking boots", "sushi rice", "a red kite", "piano lessons")
    said = {f"k{n}": f"{kinds[n % 4]} number {n}" for n in range(120)}
    put(memory, "d", **said)
    memory.flush()
    for query, more in (("sushi 17", {}), ("piano 40", {"filter": {"text": {"$ne": said["k43"]}}})):
        found = find(memory, query, "d", limit=5, **more)
        every = find(memory, query, "d", limit=120, **more)  # as many as there are: all are compared
        assert found[0].key == every[0].key
        assert [one.score for one in found] == pytest.approx([one.score for one in every[:5]])
    put(memory, "d", late="sushi 17 and 18")
    assert find(memory, "sushi 17 and 18", "d", limit=2)[0].key == "late"


def test_a_filter_that_leaves_little_of_what_the_index_finds_is_answered_exactly(few, asked) -> None:
    said = [f"hikers{n}" if n < 5 else f"unrelated{n}" for n in range(10)]
    few.items().batch([PutItem(("d",), str(n), {"text": text, "n": n}) for n, text in enumerate(said)])
    few.flush()
    found = find(few, "hikers", "d", filter={"n": {"$gte": 4}}, limit=3)
    assert asked
    assert (found[0].key, len(found)) == ("4", 3)
    assert all(item.value["n"] >= 4 for item in found)
    assert len(find(few, "hikers", "d", limit=100)) == 10


def test_the_index_is_built_again_without_a_model_and_what_it_lacks_is_found(few, asked) -> None:
    put(few, "d", **{f"k{n}": f"topic{n} hiking" for n in range(6)})
    few.flush()
    few.items().batch([DropItem(("d",), "k3")])
    assert "k3" not in keys(find(few, "topic3 hiking", "d", limit=3))
    few.flush()
    assert in_chroma(few) == in_journal(few)
    few.runtime.embedder.embed = None  # nobody asks
    assert few.admin.verify() == []
    assert few.admin.reindex() == 5
    asked.clear()
    assert find(few, "topic4 hiking", "d", limit=1)[0].key == "k4"
    assert len(asked) == 1
    del few.runtime.embedder.embed
    few._resources.worker.close()  # nothing more comes into the index
    put(few, "d", fresh="zebra hiking")
    for _ in range(2):  # the first search makes its vector
        found = find(few, "a zebra hiking", "d", limit=2)
        assert found[0].key == "fresh"
        assert is_scored(few, "a zebra hiking", found[0])
    assert len(asked) > 1


def test_an_embedder_that_fails_half_way_lets_words_find_the_rest(store) -> None:
    put(store, "d", early="hiking")
    find(store, "hiking")

    def away(_: Any) -> Any:
        raise EmbedderError("away", hint="wait")

    store.runtime.embedder.embed = away
    put(store, "d", late="sushi rolls", common="good rolls", rare="good sushi", more="the rolls")
    late, rare, *rest = find(store, "sushi rolls")
    assert (late.key, rare.key) == ("late", "rare"), "rare words count more"
    assert late.score == pytest.approx(1)
    assert 1 > rare.score > rest[0].score == rest[1].score > 0
    assert {*keys(rest)} == {"common", "more", "early"}
    assert all(isinstance(item.score, float) for item in rest)


def test_items_are_filed_again_with_everything_else(store) -> None:
    put(store, "users", "ada", k="hiking boots")
    store.chat(user_id="ada").add("user", "hiking")
    db = store.runtime.db
    db.write(lambda connection: words.delete(connection, words.keys(connection)))
    assert db.write(repair_words, store.runtime.own_words)
    assert set(db.read(postings, Folder("default", ("users", "ada")), ["hike", "boot"])) == {"hike", "boot"}
    assert db.read(postings, Folder("default", ("users",)), ["hike"]) == {}


def test_thirty_folders_are_searched_as_one(store) -> None:
    for number in range(30):
        put(store, "users", str(number), k=f"user {number} likes topic{number}")
    assert find(store, "topic17", "users", limit=1)[0].labels == ("users", "17")
    assert store.items().batch([ListFolders(max_depth=1)]) == [[("users",)]]


def test_what_a_value_says_is_told_without_the_signs_of_json() -> None:
    body = {"text": "hi", "tags": ["a", {"b": 1}]}
    value = {"kind": "note", "body": body, "none": None, "empty": "", "void": [""], "raw": b"x"}
    assert whole_text(value) == "kind: note\ntext: hi\ntags: a, b: 1"
