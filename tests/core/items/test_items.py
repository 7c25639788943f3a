"""Items are as durable as what was said, found through the index like it, and leave nothing behind when they go."""

from __future__ import annotations

import io
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st
from projection import in_chroma, in_journal
from sqlalchemy import Connection, text
from tuned import Tuned

from memlayer_core import Memory, Scope
from memlayer_core.errors import EmbedderError, ImportStoppedError, InvalidItemError, InvalidScopeError
from memlayer_core.items.check import by_words, folder_page, order, scores, whole_text
from memlayer_core.items.model import DropItem, FindItems, GetItem, Item, ListFolders, PutItem
from memlayer_core.scope import Folder
from memlayer_core.storage import vectors
from tests.sql import postings

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
LATER = Tuned(index_delay=3600, durability="normal")
FEW = LATER.replace(exact_scan_limit=4)
TABLES = (
    "memlayer_items",
    "memlayer_namespaces",
    "memlayer_texts WHERE vector IS NOT NULL",
    "memlayer_lexical",
)


def put(memory: Memory, *labels: str, tenant: str = "default", **texts: str) -> None:
    memory.items(tenant_id=tenant).batch(
        [PutItem(labels, key, {"text": said}) for key, said in texts.items()]
    )


def find(memory: Memory, query: str | None, *labels: str, tenant: str = "default", **more: Any) -> list[Item]:
    (found,) = memory.items(tenant_id=tenant).batch([FindItems(labels, query=query, **more)])
    assert isinstance(found, list)
    return found  # type: ignore[return-value]


def keys(found: list[Item]) -> list[str]:
    return [item.key for item in found]


def cosine(memory: Memory, query: str, item: Item) -> float:
    embedder = memory.runtime.embedder
    return float(embedder.embed_query(query) @ embedder.embed([whole_text(item.value)])[0])


def counted(memory: Memory) -> dict[str, int]:
    def count(connection: Connection) -> dict[str, int]:
        return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in TABLES}

    return memory.runtime.db.read(count)


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """Return the shards that Chroma was asked about, also where a folder has few texts."""
    from memlayer_core.chroma.index import ChromaIndex

    shards: list[int] = []
    real = ChromaIndex.nearest

    def nearest(self: Any, shard: int, *args: Any) -> Any:
        shards.append(shard)
        return real(self, shard, *args)

    monkeypatch.setattr(ChromaIndex, "nearest", nearest)
    monkeypatch.setattr("memlayer_core.items.flow._MORE", 1)
    return shards


# --- durable


def test_items_are_there_when_the_store_is_opened_again(open_with) -> None:
    memory = open_with(LATER)
    put(memory, "users", "ada", a="likes hiking", b="likes sushi")
    before = find(memory, None, "users")
    find(memory, "hiking", "users")  # makes the vectors
    memory.close()
    again = open_with(LATER)
    assert find(again, None, "users") == before
    assert keys(find(again, "hiking", "users")) == ["a", "b"]


def test_an_item_that_goes_leaves_nothing_behind(store) -> None:
    put(store, "a", "b", gone="secret words", other="something else")
    find(store, "secret")
    held = counted(store)
    assert held[TABLES[-2]] == held["memlayer_lexical"] == 2
    items = store.items()
    items.batch([DropItem(("a", "b"), "gone")])
    held = counted(store)
    assert held["memlayer_items"] == held[TABLES[-2]] == held["memlayer_lexical"] == 1
    assert keys(find(store, "secret")) == ["other"]
    items.batch([PutItem(("a",), "short", {"text": "x"}, ttl=timedelta(microseconds=1))])
    assert items.sweep() == 1
    assert items.forget(("a",)) == 1
    store.flush()
    assert counted(store) == dict.fromkeys(TABLES, 0)


def test_an_update_leaves_nothing_of_the_old_text_behind(store) -> None:
    put(store, "a", k="old secret")
    find(store, "old")
    put(store, "a", k="new words")
    find(store, "new")
    held = counted(store)
    assert (held["memlayer_items"], held[TABLES[-2]], held["memlayer_lexical"]) == (1, 1, 1)
    assert store.runtime.db.read(postings, Folder("default", ("a",)), ["secret"]) == {}
    store.flush()
    assert store.runtime.db.read(vectors.overview, Folder("default", ("a",))).vectors == 1


def test_forgetting_a_user_leaves_the_items_of_the_tenant_and_the_other_way_round(store) -> None:
    store.chat(user_id="ada").add("user", "I like pineapples")
    put(store, "ada", k="pineapples")
    store.forget("ada")
    assert keys(find(store, "pineapples")) == ["k"]
    store.chat(user_id="ada").add("user", "I like pineapples")
    store.items().forget()
    assert find(store, "pineapples") == []
    assert len(store.search("pineapples", user_id="ada")) == 1


def test_recall_in_conversations_finds_no_item_and_items_find_nothing_that_was_said(store) -> None:
    put(store, "ada", k="pineapples are yellow")
    put(store, k="pineapples", tenant="ada")
    store.chat(user_id="ada").add("user", "mangos are orange")
    store.flush()
    assert not store.search("pineapples yellow", user_id="ada")
    assert keys(find(store, "mangos orange")) == ["k"]
    assert find(store, "mangos orange")[0].value == {"text": "pineapples are yellow"}


def test_no_folder_is_a_users_namespace() -> None:
    for labels in ((), ("ada",), ("memlayer:commons",)):
        folder = Folder("t", labels)
        users = [
            Scope("ada", tenant_id="t"),
            Scope("t", tenant_id="t"),
            Scope('{"folder":[]}', tenant_id="t"),
        ]
        assert folder.namespace not in {user.namespace for user in users} | {users[0].commons.namespace}


def test_many_threads_write_to_one_folder_and_empty_it_without_losing_any(store) -> None:
    def work(number: int) -> None:
        items = store.items()
        for one in range(4):
            items.batch(
                [PutItem(("shared",), "same", {"by": number}), PutItem(("own", str(number)), "k", {})]
            )
            items.batch([DropItem(("own", str(number)), "k"), PutItem(("shared",), f"{number}-{one}", {})])
            items.batch([DropItem(("shared",), "same"), GetItem(("shared",), "same")])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(find(store, None, limit=100)) == 16
    assert store.items().batch([ListFolders()]) == [[("shared",)]]


# --- exports


def test_a_tenants_export_has_its_items_and_they_come_back_equal(store, memory) -> None:
    items = store.items(tenant_id="acme")
    items.batch(
        [
            PutItem(("users", "ada"), "k", {"when": NOON, "text": "hiking", "half": "\ud800"}),
            PutItem(("users",), "titled", {"title": "sushi", "text": "other"}, texts=("sushi",)),
            PutItem((), "", {"text": "hidden"}, texts=(), ttl=timedelta(minutes=5)),
        ]
    )
    put(store, "users", "ada", k="another tenant's")
    store.chat(user_id="ada", tenant_id="acme").add("user", "Hi")
    out = io.StringIO()
    store.export(out, tenant_id="acme")
    assert json.loads(out.getvalue().splitlines()[-1]) == {"end": {"sessions": 1, "messages": 1, "items": 3}}
    done = memory.import_from(io.StringIO(out.getvalue()), tenant_id="moved")
    assert (done.items, done.placed) == (3, 3)
    assert str(done).endswith("3 item(s), 3 of them new")

    def plain(found: list[Item]) -> list[Any]:
        return sorted(
            (one.labels, one.key, repr(one.value), one.created_at, one.updated_at, one.ttl) for one in found
        )

    assert plain(find(memory, None, tenant="moved")) == plain(find(store, None, tenant="acme"))
    assert find(memory, "sushi", tenant="moved")[0].key == "titled"
    assert find(memory, "hidden", tenant="moved")[-1].score is None
    assert find(memory, None) == []
    memory.items(tenant_id="moved").batch([PutItem(("users", "ada"), "k", {"text": "newer"})])
    again = memory.import_from(io.StringIO(out.getvalue()), tenant_id="moved")
    assert (again.items, again.placed) == (3, 0)
    assert find(memory, None, "users", "ada", tenant="moved")[0].value == {"text": "newer"}


def test_a_users_export_has_no_items(memory) -> None:
    put(memory, "ada", k="hiking")
    memory.chat(user_id="ada").add("user", "Hi")
    out = io.StringIO()
    memory.export(out, user_id="ada")
    assert "hiking" not in out.getvalue()


@pytest.mark.parametrize(
    "form",
    [
        {"labels": ["a"], "key": "k"},
        {"labels": ["a", ""], "key": "k", "value": {}},
        {"labels": ["a"], "key": "k", "value": []},
        {"labels": ["a"], "key": "k", "value": {}, "texts": "x"},
        {"labels": ["a"], "key": "k", "value": {}, "ttl_seconds": -1},
        {"labels": ["a"], "key": "k", "value": {}, "ttl_seconds": True},
        {"labels": ["a"], "key": "k", "value": {}, "created_at": "yesterday"},
    ],
    ids=repr,
)
def test_a_line_that_is_no_item_stops_an_import(memory, form) -> None:
    head = {"memlayer": "export", "version": 1, "messages": 0}
    times = {"created_at": "2026-05-04T12:00:00Z", "updated_at": "2026-05-04T12:00:00Z"}
    lines = [
        head,
        {"item": {"tenant_id": "t", **times, **form}},
        {"end": {"sessions": 0, "messages": 0, "items": 1}},
    ]
    with pytest.raises(ImportStoppedError, match="line 2"):
        memory.import_from([json.dumps(line) for line in lines])
    assert find(memory, None, tenant="t") == []


# --- the index


def test_many_items_are_found_through_the_index(open_at, asked) -> None:
    memory = open_at(settings=FEW)
    put(memory, "docs", "a", **{f"a{n}": f"note about topic{n} and hiking" for n in range(6)})
    put(memory, "docs", "b", **{f"b{n}": f"note about topic{n} and sushi" for n in range(6)})
    put(memory, "docs", tenant="other", k="note about topic3 and hiking")
    memory.flush()
    assert keys(find(memory, "topic3 hiking", "docs", "a", limit=2))[:1] == ["a3"]
    assert len(asked) == 1
    found = find(memory, "topic3 sushi", "docs", limit=4)
    assert (found[0].key, len(asked)) == ("b3", 3)
    assert [item.score for item in found] == sorted((item.score or 0 for item in found), reverse=True)
    assert found[0].score == pytest.approx(cosine(memory, "topic3 sushi", found[0]), abs=1e-3)


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


def test_a_filter_that_leaves_little_of_what_the_index_finds_is_answered_exactly(open_at, asked) -> None:
    memory = open_at(settings=FEW)
    said = [f"hikers{n}" if n < 5 else f"unrelated{n}" for n in range(10)]
    memory.items().batch([PutItem(("d",), str(n), {"text": text, "n": n}) for n, text in enumerate(said)])
    memory.flush()
    found = find(memory, "hikers", "d", filter={"n": {"$gte": 4}}, limit=3)
    assert asked
    assert (found[0].key, len(found)) == ("4", 3)
    assert all(item.value["n"] >= 4 for item in found)
    assert len(find(memory, "hikers", "d", limit=100)) == 10


def test_what_is_not_in_the_index_yet_is_found_beside_what_is(open_at, asked) -> None:
    memory = open_at(settings=FEW)
    put(memory, "d", **{f"k{n}": f"topic{n} hiking" for n in range(6)})
    memory.flush()
    memory._resources.worker.close()  # nothing more comes into the index
    put(memory, "d", fresh="zebra hiking")
    for _ in range(2):  # the first search makes its vector
        found = find(memory, "a zebra hiking", "d", limit=2)
        assert found[0].key == "fresh"
        assert found[0].score == pytest.approx(cosine(memory, "a zebra hiking", found[0]), abs=1e-3)
    assert asked


def test_what_was_deleted_is_found_no_more_and_leaves_the_index(open_at) -> None:
    memory = open_at(settings=FEW)
    put(memory, "d", **{f"k{n}": f"topic{n} hiking" for n in range(6)})
    memory.flush()
    memory.items().batch([DropItem(("d",), "k3")])
    assert "k3" not in keys(find(memory, "topic3 hiking", "d", limit=3))
    memory.flush()
    assert in_chroma(memory) == in_journal(memory)
    assert len(in_journal(memory)) == 5


def test_the_index_of_items_is_built_again_without_a_model(open_at, asked) -> None:
    memory = open_at(settings=FEW)
    put(memory, "d", **{f"k{n}": f"topic{n} hiking" for n in range(6)})
    memory.flush()
    memory.runtime.embedder.embed = None  # nobody asks
    assert memory.admin.verify() == []
    assert memory.admin.reindex() == 6
    assert find(memory, "topic3 hiking", "d", limit=1)[0].key == "k3"
    assert asked


def test_another_embedder_embeds_items_anew(open_at) -> None:
    memory = open_at(settings=FEW)
    put(memory, "d", a="hiking", b="sushi")
    memory.flush()
    memory.close()

    def letters(texts: list[str]) -> list[list[float]]:
        return [[text.count("h") + 0.1, text.count("s") + 0.1] for text in texts]

    memory = open_at(embedder=letters, reembed=True)
    memory.flush()
    assert counted(memory)[TABLES[-2]] == 2
    assert keys(find(memory, "hhh", "d")) == ["a", "b"]


def test_an_embedder_that_fails_half_way_lets_words_find_the_rest(store) -> None:
    put(store, "d", early="hiking")
    find(store, "hiking")
    real = store.runtime.embedder

    def away(_: Any) -> Any:
        raise EmbedderError("away", hint="wait")

    real.embed = away
    put(store, "d", late="sushi rolls")
    found = find(store, "sushi rolls")
    assert (found[0].key, found[0].score) == ("late", 1.0)
    assert found[1].key == "early"
    assert isinstance(found[1].score, float)


def test_items_are_filed_again_with_everything_else(store) -> None:
    from memlayer_core.storage import words
    from memlayer_core.storage.texts import repair_words

    put(store, "users", "ada", k="hiking boots")
    store.chat(user_id="ada").add("user", "hiking")
    db = store.runtime.db
    db.write(lambda c: words.delete(c, words.keys(c)))
    assert db.write(repair_words, store.runtime.own_words)
    assert set(db.read(postings, Folder("default", ("users", "ada")), ["hike", "boot"])) == {
        "hike",
        "boot",
    }
    assert db.read(postings, Folder("default", ("users",)), ["hike"]) == {}


def test_thirty_folders_are_searched_as_one(store) -> None:
    for number in range(30):
        put(store, "users", str(number), k=f"user {number} likes topic{number}")
    assert find(store, "topic17", "users", limit=1)[0].labels == ("users", "17")
    (listing,) = store.items().batch([ListFolders(max_depth=1)])
    assert listing == [("users",)]


def test_bad_labels_and_tenants_are_refused(memory) -> None:
    with pytest.raises(InvalidScopeError):
        memory.items(tenant_id="nul\0")
    for labels in ("text", ("",), (1,), ("half\ud800",), 5):
        with pytest.raises(InvalidItemError):
            memory.items().forget(labels)


def test_an_item_that_is_too_large_is_refused(open_at) -> None:
    memory = open_at(settings=LATER.replace(message_bytes_limit=100))
    with pytest.raises(InvalidItemError, match="larger than the limit"):
        put(memory, "d", k="x" * 200)
    assert find(memory, None) == []


# --- rules

words = st.lists(st.sampled_from("abcde"), unique=True, max_size=5)


@given(
    words, st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.integers(1, 5), st.integers(1, 3)))
)
def test_the_share_of_a_querys_words_is_a_share(asked, postings) -> None:
    standing = {word: found for word, found in postings.items() if word in asked}
    shares = by_words(asked, standing, 5)
    assert all(0 < share <= 1 + 1e-9 for share in shares.values())
    everything = [
        key for key in range(1, 6) if asked and all(key in standing.get(word, ()) for word in asked)
    ]
    assert all(shares[key] == pytest.approx(1) for key in everything)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20))),
    st.dictionaries(st.integers(1, 20), st.floats(-1, 1)),
)
def test_the_best_text_counts_and_what_has_no_score_keeps_its_place_at_the_end(texts, near) -> None:
    scored = scores(texts, near, {})
    for number, score in scored.items():
        assert score == max(near[key] for one, key in texts if one == number and key in near)
    numbers = [number for number, _ in texts]
    ordered = order(numbers, scored)
    assert sorted(ordered) == sorted(set(numbers))
    without = [number for number in dict.fromkeys(numbers) if number not in scored]
    assert ordered[len(scored) :] == without
    assert [scored[number] for number in ordered[: len(scored)]] == sorted(scored.values(), reverse=True)


@given(
    st.lists(st.lists(st.sampled_from("ab*"), max_size=3).map(tuple)),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_pages_of_a_listing_are_parts_of_the_whole_in_order(found, depth, limit, offset) -> None:
    whole = folder_page(found, ListFolders(max_depth=depth, limit=1000))
    assert whole == sorted({labels[:depth] for labels in found})
    assert (
        folder_page(found, ListFolders(max_depth=depth, limit=limit, offset=offset))
        == whole[offset : offset + limit]
    )


def test_what_a_value_says_is_told_without_the_signs_of_json() -> None:
    value = {
        "kind": "note",
        "body": {"text": "hi", "tags": ["a", {"b": 1}]},
        "none": None,
        "empty": "",
        "raw": b"x",
    }
    assert whole_text(value) == "kind: note\ntext: hi\ntags: a, b: 1"
