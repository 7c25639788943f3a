"""A store for LangGraph keeps items as its own stores do, durably, and finds them by fields, meaning and words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)
from waiting import wait_for

from langchain_memlayer import MemlayerStore
from memlayer_core import Memory, errors
from memlayer_core.index.flow import calibration_texts
from memlayer_core.items import sql as items_sql
from tests.conftest import PROMPT

DOCS = ("docs",)
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Letters(Embeddings):
    """Texts of the same letters are near each other; it counts what it was asked, and may be away."""

    def __init__(self) -> None:
        self.embedded: list[str] = []
        self.away = False

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors = [self.embed_query(text) for text in texts]
        self.embedded += texts
        return vectors

    def embed_query(self, text: str) -> list[float]:
        if self.away:
            raise ConnectionError("nobody answers")
        found = np.zeros(64)
        for letter in text.casefold():
            found[ord(letter) % 63] += 1
        found[63] = 0.1
        return list(found / np.linalg.norm(found))


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def memory(letters) -> Iterator[Memory]:
    with Memory.in_memory(embedder=letters, settings=PROMPT.replace(index_delay=3600)) as opened:
        yield opened


@pytest.fixture
def store(memory) -> MemlayerStore:
    return MemlayerStore(memory)


@pytest.fixture
def at(memory) -> Callable[[datetime], None]:
    """Return a function that sets the memory's clock."""

    def set_clock(moment: datetime) -> None:
        memory._resources.runtime = replace(memory._resources.runtime, now=lambda: moment)

    set_clock(NOON)
    return set_clock


def keys(found: Sequence[Item]) -> list[str]:
    return [item.key for item in found]


# --- keys and values


def test_what_is_put_is_got_and_what_is_deleted_is_gone(do, store) -> None:
    value = {"text": "hello", "n": 1.0, "nested": {"list": [1, None, True, "東京 \ud83d\ude00"]}}
    do(store, "put", ("users", "ada"), "k", value)
    item = do(store, "get", ("users", "ada"), "k")
    assert type(item) is Item
    assert (item.namespace, item.key, item.value) == (("users", "ada"), "k", value)
    assert do(store, "get", ("users", "bob"), "k") is None
    for _ in range(2):
        do(store, "delete", ("users", "ada"), "k")
        assert do(store, "get", ("users", "ada"), "k") is None


def test_an_update_keeps_when_an_item_came_into_being(do, store, at) -> None:
    """Other stores forget when an item came into being once it is put again."""
    do(store, "put", DOCS, "k", {"v": 1})
    at(NOON + timedelta(hours=1))
    do(store, "put", DOCS, "k", {"v": 2})
    item = do(store, "get", DOCS, "k")
    assert (item.value, item.created_at, item.updated_at) == ({"v": 2}, NOON, NOON + timedelta(hours=1))
    assert len(do(store, "search", DOCS)) == 1  # it was not appended


def test_a_value_that_was_read_is_a_copy(store) -> None:
    """Other stores hand out the very dict that they keep, and whoever changes it changes them."""
    given = {"list": [1]}
    store.put(DOCS, "k", given)
    given["list"].append(2)
    store.get(DOCS, "k").value["list"].append(3)
    assert store.get(DOCS, "k").value == {"list": [1]}


@pytest.mark.trap("langchain", 13, 15)
def test_values_that_json_has_no_type_for_come_back_equal(store) -> None:
    found_by = {"when": NOON, "nul": "\0", "huge": 10**400}
    odd = {"bytes": b"\0\xff", "pair": (1, "two"), "half": "\ud800", "endless": float("inf")}
    value = {**found_by, **odd, "money": Decimal("1.10"), "$memlayer": "mine"}
    store.put(DOCS, "k", value)
    assert store.get(DOCS, "k").value == value
    assert keys(store.search(DOCS, filter=found_by)) == ["k"]


STRANGE = [
    (("users", "*"), "*"),
    (("a" * 1900,), "k" * 10_000),
    (("users'--", '"; DROP TABLE memlayer_items; --'), "'"),
    (("l\u043euis",), "e\u0301"),
    (("[users", "?"), ""),
    (("deep",) * 60, "k"),
]


@pytest.mark.parametrize(("namespace", "key"), STRANGE)
def test_strange_labels_and_keys_name_one_place_and_no_other(do, store, namespace, key) -> None:
    others = [("users", "x"), ("users",), ("louis",), ("b" * 1900,)]
    for place in (*others, namespace):
        do(store, "put", place, key, {"mine": place == namespace})
    assert do(store, "get", namespace, key).value == {"mine": True}
    assert [item.namespace for item in do(store, "search", namespace)] == [namespace]
    assert namespace in do(store, "list_namespaces", suffix=namespace[-1:])
    do(store, "delete", namespace, key)
    assert len(do(store, "search", ())) == len(others)


def test_tenants_never_see_each_other_whatever_their_namespaces(do, memory) -> None:
    tenants = ["acme", "acme.docs", 'acme","docs', "ACME", "%"]
    stores = [MemlayerStore(memory, tenant_id=tenant) for tenant in tenants]
    for number, one in enumerate(stores):
        do(one, "put", DOCS, "k", {"text": "pineapple", "of": number})
    for number, one in enumerate(stores):
        assert do(one, "get", DOCS, "k").value["of"] == number
        for found in (
            do(one, "search", ()),
            do(one, "search", DOCS, query="pineapple"),
            do(one, "search", (), filter={"text": "pineapple"}),
        ):
            assert [item.value["of"] for item in found] == [number]
        assert do(one, "list_namespaces") == [DOCS]
    assert do(stores[0], "forget") == 1
    assert [do(one, "get", DOCS, "k") is None for one in stores] == [True, False, False, False, False]


# --- batches


def test_the_same_text_may_stand_in_many_items_of_a_batch(do, store) -> None:
    """Other stores embed a batch's texts by their words, and fail where two items say the same."""
    do(store, "batch", [PutOp(DOCS, str(n), {"text": "the same"}) for n in range(3)])
    found = do(store, "search", DOCS, query="the same")
    assert sorted(keys(found)) == ["0", "1", "2"]
    assert len({item.score for item in found}) == 1


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE
BAD_OPS: list[Any] = [
    *(PutOp(DOCS, "k", value) for value in ({"v": object()}, ["no", "mapping"], CIRCLE)),
    *(PutOp(namespace, "k", {}) for namespace in ("docs", ("half\ud800",), ("a" * 2000,))),
    *(PutOp(DOCS, "k", {}, ttl=ttl) for ttl in (0, float("nan"), 1e12, "1")),
    PutOp(DOCS, "nul\0", {}),
    PutOp(DOCS, "k", {"text": "x"}, index="text"),  # type: ignore[arg-type]
    PutOp(DOCS, "k", {"text": [NOON]}, index=["text"]),
    *(SearchOp(DOCS, **asked) for asked in ({"limit": -1}, {"offset": -1}, {"query": 5})),
    *(SearchOp(DOCS, filter=wanted) for wanted in (["v"], {1: "v"}, {"$or": []}, {"v') = 1 OR 1=1 --": 1})),
    *(SearchOp(DOCS, filter={"v": wanted}) for wanted in ({"$regex": "."}, {"$gt": None})),
    ListNamespacesOp((MatchCondition("middle", ("x",)),)),  # type: ignore[arg-type]
    ListNamespacesOp(max_depth=0),
    "no operation",
    *(  # LangGraph checks labels in `put`, `get` and `search`, and not in a batch
        bad
        for labels in (("foo.bar",), ("foo", ""), ("foo", 1), ("nul\0",))
        for bad in (
            GetOp(labels, "k"),
            PutOp(labels, "k", {}),
            SearchOp(labels),
            ListNamespacesOp((MatchCondition("suffix", labels),)),
        )
    ),
]


def test_nothing_of_a_batch_is_done_when_one_operation_cannot_be(do, store) -> None:
    do(store, "put", ("foo", "bar"), "k", {"changed": False})
    refused = (errors.InvalidItemError, errors.InvalidLimitError, InvalidNamespaceError)
    for bad in BAD_OPS:
        with pytest.raises(refused) as raised:
            do(store, "batch", [PutOp(DOCS, "good", {}), PutOp(("foo", "bar"), "k", None), bad])
        assert isinstance(raised.value, ValueError), bad
        assert isinstance(raised.value, InvalidNamespaceError) or raised.value.hint, bad
        assert do(store, "get", ("foo", "bar"), "k").value == {"changed": False}, bad
        assert do(store, "list_namespaces") == [("foo", "bar")], bad


# --- search without a query


def test_without_a_query_the_last_put_come_first_page_by_page(do, store, at) -> None:
    for minute in range(5):
        at(NOON + timedelta(minutes=minute))
        do(store, "put", ("docs", str(minute % 2)), str(minute), {})
    at(NOON + timedelta(hours=1))
    do(store, "put", ("docs", "0"), "0", {"again": True})
    for more, found in (
        ({}, "04321"),
        ({"limit": 2}, "04"),
        ({"limit": 2, "offset": 3}, "21"),
        ({"limit": 0}, ""),
    ):
        assert keys(do(store, "search", DOCS, **more)) == [*found]
    assert keys(do(store, "search", DOCS, query="  ")) == keys(do(store, "search", ["docs"])) == [*"04321"]
    assert do(store, "list_namespaces", prefix=["docs"]) == [("docs", "0"), ("docs", "1")]
    assert {(type(item), item.score) for item in do(store, "search", DOCS)} == {(SearchItem, None)}


def test_pages_are_cut_from_what_a_filter_leaves(do, store) -> None:
    for number in range(20):
        do(store, "put", DOCS, str(number), {"even": number % 2 == 0, "n": number})
    even = {"even": True}
    assert keys(do(store, "search", DOCS, filter=even, limit=3, offset=2)) == ["14", "12", "10"]
    assert len(do(store, "search", DOCS, filter={"n": {"$gte": 15}}, limit=100)) == 5


# --- search by meaning and by words


def test_an_item_is_found_by_its_meaning_at_once_and_its_score_is_the_cosine(do, memory, letters) -> None:
    store = MemlayerStore(memory, index={"fields": ["text"]})
    do(store, "put", DOCS, "zebra", {"text": "zany zebra"})
    do(store, "put", DOCS, "dogs", {"text": "something about dogs"})
    found = do(store, "search", DOCS, query="a zebra")
    assert keys(found) == ["zebra", "dogs"]
    for item in found:
        cosine = np.dot(letters.embed_query("a zebra"), letters.embed_query(item.value["text"]))
        assert item.score == pytest.approx(cosine, abs=1e-3)
    assert keys(do(store, "search", DOCS, query="a zebra", limit=1, offset=1)) == ["dogs"]
    assert do(store, "search", ("empty",), query="a zebra") == []


def test_a_search_pays_for_a_text_once(store, letters, memory) -> None:
    store.put(DOCS, "k", {"text": "hello"})
    for _ in range(3):
        store.search(DOCS, query="hello")
    memory.flush()
    store.put(DOCS, "k", {"text": "hello"})  # as it was
    store.search(DOCS, query="hello")
    assert [text for text in letters.embedded if text not in calibration_texts()] == ["text: hello"]


def test_each_field_is_compared_by_itself_and_the_best_one_counts(do, memory) -> None:
    store = MemlayerStore(memory, index={"fields": ["title", "notes[*].text", "user.name"]})
    do(store, "put", DOCS, "a", {"title": "xxx", "notes": [{"text": "yyy"}, {"text": "zzz"}], "other": "ooo"})
    do(store, "put", DOCS, "b", {"title": "www", "user": {"name": "uuu"}})
    for query, key in (("xxx", "a"), ("zzz", "a"), ("uuu", "b"), ("www", "b")):
        best = do(store, "search", DOCS, query=query)[0]
        assert (best.key, best.score > 0.99) == (key, True)
    assert all(item.score < 0.9 for item in do(store, "search", DOCS, query="ooo"))


def test_put_may_say_what_an_item_is_found_by(do, memory) -> None:
    """No fields mean the whole value in the configuration, as in LangGraph's own stores; with `put`, nothing."""
    store = MemlayerStore(memory, index={"fields": ["title"]})
    do(store, "put", DOCS, "a", {"title": "xxx", "text": "aaa"}, index=["text"])
    do(store, "put", DOCS, "b", {"title": "bbb", "text": "aaa"})
    do(store, "put", DOCS, "c", {"title": "aaa"}, index=False)
    do(store, "put", DOCS, "d", {"title": "ddd", "text": "eee"}, index=["$"])
    do(MemlayerStore(memory, index={"fields": []}), "put", DOCS, "e", {"title": "eee"})
    do(store, "put", DOCS, "f", {"title": "aaa"}, index=[])
    found = do(store, "search", DOCS, query="aaa")
    assert found[0].key == "a"
    assert {item.key for item in found if item.score is None} == {*"cf"} == {*keys(found[-2:])}
    assert {*keys(do(store, "search", DOCS, query="aaa", limit=4))} == {*"abde"}
    assert {*keys(do(store, "search", DOCS, query="aaa", limit=4, offset=4))} == {*"cf"}


def test_filters_and_queries_go_together(do, store) -> None:
    docs = {"red apple": 4.5, "red car": 3.0, "green apple": 4.0, "blue car": 3.5}
    for text, score in docs.items():
        do(store, "put", DOCS, text, {"text": text, "color": text.split()[0], "score": score})
    assert keys(do(store, "search", DOCS, query="apple", filter={"color": "red"})) == ["red apple", "red car"]
    assert keys(do(store, "search", DOCS, query="car", filter={"color": "red"})) == ["red car", "red apple"]
    found = do(store, "search", DOCS, query="bbbbluuu", filter={"score": {"$gt": 3.2}})
    assert (found[0].key, len(found)) == ("blue car", 3)


def test_a_query_may_be_anything(do, store) -> None:
    said = ["test document", "这是中文", "これは日本語です", "이건 한국어야", "Это русский", "यह रूसी है"]
    for number, text in enumerate(said):
        do(store, "put", DOCS, str(number), {"text": text})
    for number, text in enumerate(said):
        assert do(store, "search", DOCS, query=text)[0].key == str(number)
    for query in ("", None, "test " * 1000, "test!@#$%^&*()", "\0", '"AND (NEAR', "\ud800"):
        assert len(do(store, "search", DOCS, query=query)) == len(said)


# --- namespaces


def test_a_namespace_is_forgotten_with_all_below_it_and_listed_no_more(do, store) -> None:
    """Other stores list a namespace for ever once something was in it."""
    for namespace in (("users", "1"), ("users", "1", "notes"), ("users", "10"), ("empty",)):
        do(store, "put", namespace, "k", {"text": "secret"})
    do(store, "delete", ("empty",), "k")
    do(store, "search", (), query="secret")
    assert do(store, "forget", ("users", "1")) == 2
    assert do(store, "list_namespaces") == [("users", "10")]
    assert len(do(store, "search", (), query="secret")) == 1
    assert do(store, "forget", ("users", "1")) == 0


# --- time to live


def test_an_item_that_has_expired_goes_when_it_is_swept(do, store, at, memory) -> None:
    other = MemlayerStore(memory, tenant_id="other")
    for key, ttl in (("short", 1), ("long", 60), ("stays", None)):
        do(store, "put", DOCS, key, {"text": "x"}, ttl=ttl)
    do(other, "put", DOCS, "short", {}, ttl=1)
    at(NOON + timedelta(seconds=59))
    assert do(store, "sweep_ttl") == 0
    at(NOON + timedelta(seconds=61))
    assert store.get(DOCS, "short", refresh_ttl=False) is not None  # until it is swept
    assert do(store, "sweep_ttl") == 1
    assert sorted(keys(do(store, "search", DOCS, query="x", refresh_ttl=False))) == ["long", "stays"]
    at(NOON + timedelta(days=1))
    assert do(store, "sweep_ttl") == 1
    assert do(store, "list_namespaces") == [DOCS]
    assert keys(do(store, "search", DOCS)) == ["stays"]
    assert do(other, "get", DOCS, "short") is not None


def test_reading_an_item_begins_its_time_anew_unless_it_is_not_to(do, store, at) -> None:
    def put_and_read(read: Callable[[], object]) -> bool:
        at(NOON)
        do(store, "put", DOCS, "k", {"text": "x"}, ttl=10)
        at(NOON + timedelta(minutes=6))
        read()
        at(NOON + timedelta(minutes=12))
        store.sweep_ttl()
        return do(store, "get", DOCS, "k") is not None

    assert not put_and_read(lambda: None)
    assert put_and_read(lambda: do(store, "get", DOCS, "k"))
    assert put_and_read(lambda: do(store, "search", DOCS))
    assert put_and_read(lambda: do(store, "search", DOCS, query="x"))
    assert not put_and_read(lambda: do(store, "get", DOCS, "k", refresh_ttl=False))
    assert not put_and_read(lambda: do(store, "search", DOCS, query="x", refresh_ttl=False))
    assert not put_and_read(lambda: do(store, "search", DOCS, filter={"text": "other"}))
    assert put_and_read(lambda: do(store, "put", DOCS, "k", {}, ttl=10))


@pytest.mark.parametrize(("refreshes", "stays"), [({}, True), ({"refresh_on_read": False}, False)])
def test_reading_restarts_the_time_to_live_unless_that_is_forbidden(do, memory, at, refreshes, stays) -> None:
    """As LangGraph documents it; its `SqliteStore` does so only if `refresh_on_read` is there, and true."""
    store = MemlayerStore(memory, ttl={"default_ttl": 10, **refreshes})
    for key, ttl in (("default", {}), ("own", {"ttl": 30}), ("stays", {"ttl": None})):
        do(store, "put", DOCS, key, {}, **ttl)
    at(NOON + timedelta(minutes=6))
    assert len(do(store, "search", DOCS)) == 3
    at(NOON + timedelta(minutes=12))
    assert do(store, "sweep_ttl") == (not stays)
    assert (do(store, "get", DOCS, "default") is not None) is stays


def test_what_has_expired_may_be_hidden_before_it_is_swept(do, memory, at) -> None:
    store = MemlayerStore(memory, ttl={"omit_expired": True})
    for key in ("a", "gone", "b"):
        do(store, "put", DOCS, key, {"text": key}, ttl=1 if key == "gone" else 60)
    do(store, "put", ("gone",), "k", {"text": "k"}, ttl=1)
    at(NOON + timedelta(minutes=2))
    assert do(store, "get", DOCS, "gone", refresh_ttl=True) is None
    assert keys(do(store, "search", DOCS, limit=2)) == ["b", "a"]
    assert sorted(keys(do(store, "search", (), query="gone"))) == ["a", "b"]
    assert do(store, "list_namespaces") == [DOCS]
    assert store.sweep_ttl() == 2  # reading brought none of them back


def test_a_sweeper_sweeps_until_it_is_stopped_cancelled_or_the_memory_is_closed(memory, at) -> None:
    store = MemlayerStore(memory, ttl={"sweep_interval_minutes": 0.0001})  # type: ignore[typeddict-item]
    store.put(DOCS, "k", {}, ttl=1)
    at(NOON + timedelta(minutes=2))
    running = store.start_ttl_sweeper()
    assert store.start_ttl_sweeper() is running
    wait_for(lambda: store.list_namespaces() == [])
    assert store.stop_ttl_sweeper(timeout=5)
    running.result(timeout=5)
    again = store.start_ttl_sweeper()
    assert again.cancel()
    wait_for(lambda: store.start_ttl_sweeper() is not again)
    last = store.start_ttl_sweeper()
    memory.close()
    assert last.result(timeout=5) is None
    with pytest.raises(errors.InvalidItemError, match="above zero"):
        store.start_ttl_sweeper(-1)


# --- the object


def test_a_configuration_that_cannot_be_kept_is_refused(memory, letters) -> None:
    for given, problem in (
        ({"memory": object()}, errors.ConfigurationError),
        ({"tenant_id": ""}, errors.InvalidScopeError),
        ({"user_namespace": ("memories",)}, errors.InvalidItemError),
        ({"index": {"field": ["text"]}}, errors.ConfigurationError),
        ({"index": {"embed": lambda texts: [[1.0] for _ in texts]}}, errors.ConfigurationError),
        ({"index": "text"}, errors.ConfigurationError),
        ({"index": {"dims": "64"}}, errors.ConfigurationError),
        ({"ttl": {"default": 5}}, errors.ConfigurationError),
        ({"ttl": {"default_ttl": 0}}, errors.ConfigurationError),
        ({"ttl": {"sweep_interval_minutes": "often"}}, errors.ConfigurationError),
    ):
        with pytest.raises(problem) as raised:
            MemlayerStore(**{"memory": memory, **given})
        assert raised.value.hint
    assert MemlayerStore(memory, index={"embed": letters, "dims": 64}).supports_ttl
    memory.close()
    with pytest.raises(errors.StoreClosedError):
        MemlayerStore(memory).get(DOCS, "k")


def test_the_dimensions_that_a_store_is_to_have_are_those_of_its_embedder(memory, letters) -> None:
    assert MemlayerStore(memory, index={"dims": 64}).index_config == {"dims": 64}
    assert letters.embedded == ["length"]
    store = MemlayerStore(memory)
    store.put(DOCS, "k", {"text": "x"})
    store.search(DOCS, query="x")
    letters.away = True  # the vectors that are stored say it, too
    assert MemlayerStore(memory, index={"dims": 64, "fields": ["text"]})
    with pytest.raises(errors.ConfigurationError, match="384 dimensions, and the memory's embedder makes 64"):
        MemlayerStore(memory, index={"dims": 384})


@pytest.mark.parametrize("fields", [{"text": 1}, ["notes["], ["notes[x]"], ["{title"], ["$.text"], "text"])
def test_fields_that_no_item_can_be_found_by_are_refused(memory, fields) -> None:
    with pytest.raises(errors.InvalidItemError) as raised:
        MemlayerStore(memory, index={"fields": fields})
    assert raised.value.hint
    with pytest.raises(errors.InvalidItemError):
        MemlayerStore(memory).put(DOCS, "k", {"text": "x"}, index=fields)


def test_one_store_serves_threads_and_event_loops_at_once(store) -> None:
    async def in_a_loop(number: int) -> None:
        await asyncio.gather(*(store.aput(DOCS, f"{number}-{one}", {"n": one}) for one in range(5)))
        assert store.get(DOCS, f"{number}-0") is not None  # blocking calls are allowed there, too
        assert await store.asearch(DOCS, query="n", limit=3)

    threads = [threading.Thread(target=asyncio.run, args=(in_a_loop(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(5):
        store.put(DOCS, f"main-{number}", {})
    for thread in threads:
        thread.join()
    assert len(store.search(DOCS, limit=100)) == 20


@pytest.fixture
def transactions(memory, monkeypatch) -> list[str]:
    """Return the reads and writes of the journal, as they happen."""
    db, seen = memory._resources.runtime.db, []
    for verb in ("read", "write"):
        run = getattr(db, verb)

        def count(work: Any, *args: Any, _verb: str = verb, _run: Any = run, **kwargs: Any) -> Any:
            if _verb == "read" or work is items_sql.change:
                seen.append(_verb)
            return _run(work, *args, **kwargs)

        monkeypatch.setattr(db, verb, count)
    return seen


async def test_calls_that_are_awaited_together_share_a_transaction(store, transactions) -> None:
    await asyncio.gather(*(store.aput(DOCS, str(n), {"n": n}) for n in range(500)))
    assert transactions == ["write"]
    transactions.clear()
    found = await asyncio.gather(*(store.aget(DOCS, str(n)) for n in range(500)))
    assert transactions == ["read"]
    assert [item.value["n"] for item in found] == list(range(500))
    transactions.clear()
    await asyncio.gather(*(store.adelete(DOCS, str(n)) for n in range(0, 500, 2)))
    assert transactions == ["write"]
    assert len(await store.asearch(DOCS, limit=500)) == 250


@pytest.fixture
def held_up(memory, monkeypatch) -> SimpleNamespace:
    """Let the next write that changes items wait: it tells that it began, and goes on when it is told to."""
    db, state = (
        memory._resources.runtime.db,
        SimpleNamespace(began=threading.Event(), go_on=threading.Event()),
    )
    write = db.write

    def waiting(work: Any, *args: Any, **kwargs: Any) -> Any:
        if work is items_sql.change and not state.began.is_set():
            state.began.set()
            assert state.go_on.wait(30)
        return write(work, *args, **kwargs)

    monkeypatch.setattr(db, "write", waiting)
    return state


async def test_calls_during_a_batch_are_the_next_one(store, transactions, held_up) -> None:
    first = asyncio.create_task(store.aput(DOCS, "first", {}))
    await asyncio.to_thread(held_up.began.wait, 30)
    later = []
    for number in range(20):
        later.append(asyncio.create_task(store.aput(DOCS, "k", {"n": number})))
        await asyncio.sleep(0)
    later[19].cancel()
    assert await store.aget(DOCS, "first") is None  # a read waits for no write
    held_up.go_on.set()
    await asyncio.gather(first, *later[:19])
    assert (await store.aget(DOCS, "k")).value == {"n": 18}
    assert transactions.count("write") == 2


async def test_a_call_that_fails_fails_no_other_call_of_its_batch(store, transactions) -> None:
    values = [{"n": object()} if n in {3, 77} else {"n": n} for n in range(100)]
    found = await asyncio.gather(
        *(store.aput(DOCS, str(n), value) for n, value in enumerate(values)),
        store.abatch([PutOp(DOCS, "half", {}), PutOp(DOCS, "half\0", {})]),
        return_exceptions=True,
    )
    failed = {at: type(one) for at, one in enumerate(found) if one is not None}
    assert failed == dict.fromkeys((3, 77, 100), errors.InvalidItemError)
    assert len({*keys(await store.asearch(DOCS, limit=200))} ^ {str(n) for n in range(100)}) == 2
    assert transactions.count("write") < 20


async def test_when_the_journal_is_away_it_is_tried_once_for_all(store, memory, monkeypatch) -> None:
    tried = []

    def away(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise errors.StoreUnavailableError("locked", hint="Try again.")

    monkeypatch.setattr(memory._resources.runtime.db, "write", away)
    calls = (store.aput(DOCS, str(n), {}) for n in range(50))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in found} == {errors.StoreUnavailableError}
    assert len(tried) == 1


def test_a_loop_that_ends_amid_calls_leaves_nothing_behind(store) -> None:
    async def leave(ticks: int) -> None:
        for number in range(3):
            asyncio.get_running_loop().create_task(store.aput(DOCS, str(number), {}))
        for _ in range(ticks):
            await asyncio.sleep(0)

    for ticks in range(4):
        asyncio.run(leave(ticks))
        assert not store._writes._calls
        assert not store._writes._tasks
    asyncio.run(store.aput(DOCS, "k", {"n": 1}))
    assert store.get(DOCS, "k").value == {"n": 1}


async def test_writes_to_one_key_that_are_gathered_are_done_in_their_order(store) -> None:
    slow = {"text": "many words " * 20_000}
    await asyncio.gather(store.aput(DOCS, "gone", slow), store.adelete(DOCS, "gone"))
    await asyncio.gather(store.aput(DOCS, "k", slow), store.aput(DOCS, "k", {"n": 2}))
    assert [(item.key, item.value) for item in await store.asearch(DOCS)] == [("k", {"n": 2})]


async def test_a_write_that_is_cancelled_or_fails_holds_nobody_up(store) -> None:
    tasks = [asyncio.create_task(store.aput(DOCS, "k", {"n": number})) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    failing = store.aput(DOCS, "k", {"n": object()})
    found = await asyncio.gather(*tasks, failing, store.aput(DOCS, "k", {"n": 9}), return_exceptions=True)
    assert [type(one) for one in found[1:4]] == [asyncio.CancelledError, type(None), errors.InvalidItemError]
    assert (await store.aget(DOCS, "k")).value == {"n": 9}
    assert not store._writes._calls


async def test_a_write_that_timed_out_does_not_come_behind_the_one_tried_instead(store, held_up) -> None:
    """The task is cancelled, and the thread that writes for it goes on."""
    late = asyncio.create_task(store.aput(DOCS, "k", {"n": "old"}))
    await asyncio.to_thread(held_up.began.wait, 30)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    again = asyncio.create_task(store.aput(DOCS, "k", {"n": "new"}))
    await asyncio.sleep(0.05)
    assert not again.done()
    held_up.go_on.set()
    await again

    assert (await store.aget(DOCS, "k")).value == {"n": "new"}
    assert not store._writes._calls


# --- in LangGraph


def test_a_namespace_that_is_the_users_is_forgotten_with_the_user(memory) -> None:
    store = MemlayerStore(memory, user_namespace=("memories", "{user_id}"))
    ada, bob, drafts = ("memories", "ada"), ("memories", "bob"), ("drafts", "ada")
    for namespace in (ada, bob, drafts):
        store.put(namespace, "boat", {"text": "A boat."})
    report = memory.forget("ada")
    assert (report.items, report.undeclared_folders) == (1, (drafts,))
    assert store.list_namespaces() == [drafts, bob]
