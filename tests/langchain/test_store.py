"""A store for LangGraph keeps items as its own stores do, durably, and finds them by fields, meaning and words."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store import base
from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchItem, SearchOp
from langmem import create_manage_memory_tool, create_memory_store_manager, create_search_memory_tool
from refusals import refused
from waiting import wait_for

from langchain_memlayer import MemlayerStore
from memlayer_core import Memory, errors
from memlayer_core.index.flow import calibration_texts
from memlayer_core.items import sql as items_sql
from tests.conftest import PROMPT
from tests.langchain.scripted_model import calling, says

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


def test_what_is_put_is_got_as_a_copy_with_its_times_and_what_is_deleted_is_gone(do, store, at) -> None:
    """Other stores hand out the very dict that they keep, and forget when an item came into being if it is put again."""
    value = {"text": "hello", "n": 1.0, "nested": {"list": [1, None, True, "東京 \ud83d"]}}
    do(store, "put", ("users", "ada"), "k", given := deepcopy(value))
    for changed in (given, do(store, "get", ("users", "ada"), "k").value):
        changed["nested"]["list"].append(2)
    item = do(store, "get", ("users", "ada"), "k")
    assert type(item) is Item
    assert (item.namespace, item.key, item.value) == (("users", "ada"), "k", value)
    assert do(store, "get", ("users", "bob"), "k") is None
    at(NOON + timedelta(hours=1))
    do(store, "put", ("users", "ada"), "k", {"v": 2})
    [item] = do(store, "search", ("users", "ada"))
    assert (item.value, item.created_at, item.updated_at) == ({"v": 2}, NOON, NOON + timedelta(hours=1))
    for _ in range(2):
        do(store, "delete", ("users", "ada"), "k")
        assert do(store, "get", ("users", "ada"), "k") is None


@pytest.mark.trap("langchain", 13, 15)
def test_values_that_json_has_no_type_for_are_found_and_come_back_as_json(store) -> None:
    found_by = {"when": NOON, "pair": (1, "two"), "money": Decimal("1.10")}
    same = {"bytes": b"\0\xff", "nul": "\0", "half": "\ud800", "huge": 10**400, "$memlayer": "mine"}
    store.put(DOCS, "k", {**found_by, **same})
    plain = {"when": NOON.isoformat().replace("+00:00", "Z"), "pair": [1, "two"], "money": "1.10"}
    assert store.get(DOCS, "k").value == {**plain, **same}
    assert keys(store.search(DOCS, filter=found_by)) == ["k"]


def test_tenants_never_see_each_other_whatever_their_namespaces(memory) -> None:
    tenants = ["acme", "acme.docs", 'acme","docs', "ACME", "%"]
    stores = [MemlayerStore(memory, tenant_id=tenant) for tenant in tenants]
    for number, one in enumerate(stores):
        one.put(DOCS, "k", {"text": "pineapple", "of": number})
    for number, one in enumerate(stores):
        assert one.get(DOCS, "k").value["of"] == number
        for asked in ({}, {"query": "pineapple"}, {"filter": {"text": "pineapple"}}):
            assert [item.value["of"] for item in one.search((), **asked)] == [number]
        assert one.list_namespaces() == [DOCS]
    assert stores[0].forget() == 1
    assert [one.get(DOCS, "k") is None for one in stores] == [True, False, False, False, False]


# --- batches


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE
BAD_OPS: list[Any] = [
    *(PutOp(DOCS, "k", value) for value in ({"v": object()}, ["no", "mapping"], CIRCLE)),
    *(PutOp(namespace, "k", {}) for namespace in ("docs", ("half\ud800",), ("a" * 2000,))),
    *(PutOp(DOCS, "k", {}, ttl=ttl) for ttl in (0, float("nan"), 1e12, "1")),
    PutOp(DOCS, "nul\0", {}),
    PutOp(DOCS, "k", {"text": [NOON]}, index=["text"]),
    *(SearchOp(DOCS, **asked) for asked in ({"limit": -1}, {"offset": -1}, {"query": 5})),
    *(SearchOp(DOCS, filter=wanted) for wanted in (["v"], {1: "v"}, {"$or": []}, {"v": {"$regex": "."}})),
    *(SearchOp(DOCS, filter=wanted) for wanted in ({"v": {"$gt": []}}, CIRCLE)),
    ListNamespacesOp((MatchCondition("middle", ("x",)),)),  # type: ignore[arg-type]
    ListNamespacesOp(max_depth=0),
    "no operation",
    *(PutOp(labels, "k", {}) for labels in (("foo.bar",), ("foo", ""), ("foo", 1), ("nul\0",))),
    # LangGraph checks labels in `put`, `get` and `search`, and not in a batch
    *(GetOp(("foo.bar",), "k"), SearchOp(("foo.bar",))),
    ListNamespacesOp((MatchCondition("suffix", ("foo.bar",)),)),
]


def test_nothing_of_a_batch_is_done_when_one_operation_cannot_be(do, store) -> None:
    do(store, "put", ("foo", "bar"), "k", {"changed": False})
    refused = (errors.InvalidItemError, errors.InvalidLimitError, base.InvalidNamespaceError)
    for bad in BAD_OPS:
        with pytest.raises(refused) as raised:
            do(store, "batch", [PutOp(DOCS, "good", {}), PutOp(("foo", "bar"), "k", None), bad])
        assert isinstance(raised.value, ValueError), bad
        assert isinstance(raised.value, base.InvalidNamespaceError) or raised.value.hint, bad
        assert do(store, "get", ("foo", "bar"), "k").value == {"changed": False}, bad
        assert do(store, "list_namespaces") == [("foo", "bar")], bad


# --- search without a query


def test_without_a_query_the_last_put_come_first_page_by_page(store, at) -> None:
    for minute in range(5):
        at(NOON + timedelta(minutes=minute))
        store.put(("docs", str(minute % 2)), str(minute), {"even": minute % 2 == 0})
    at(NOON + timedelta(hours=1))
    store.put(("docs", "0"), "0", {"even": True})
    pages = ({}, "04321"), ({"limit": 2}, "04"), ({"limit": 2, "offset": 3}, "21"), ({"limit": 0}, "")
    even = {"filter": {"even": True}, "limit": 1, "offset": 1}
    for more, found in (*pages, (even, "4")):
        assert keys(store.search(DOCS, **more)) == [*found]
    assert keys(store.search(DOCS, query="  ")) == keys(store.search(["docs"])) == [*"04321"]
    assert store.list_namespaces(prefix=["docs"]) == [("docs", "0"), ("docs", "1")]
    assert {(type(item), item.score) for item in store.search(DOCS)} == {(SearchItem, None)}


# --- search by meaning and by words


def test_an_item_is_found_by_meaning_at_once_paid_once_and_its_score_is_a_cosine(do, memory, letters) -> None:
    store = MemlayerStore(memory, index={"fields": ["text"]})
    for key, text in (("zebra", "zany zebra"), ("dogs", "something about dogs"), ("again", "zany zebra")):
        do(store, "put", DOCS, key, {"text": text})
    for _ in range(2):
        found = do(store, "search", DOCS, query="a zebra")
        assert (sorted(keys(found[:2])), keys(found[2:])) == (["again", "zebra"], ["dogs"])
        memory.flush()
        do(store, "put", DOCS, "zebra", {"text": "zany zebra"})  # as it was
    paid = [text for text in letters.embedded if text not in calibration_texts()]
    assert sorted(paid) == ["something about dogs", "zany zebra"]
    for item in found:
        cosine = np.dot(letters.embed_query("a zebra"), letters.embed_query(item.value["text"]))
        assert item.score == pytest.approx(cosine, abs=1e-3)
    assert keys(do(store, "search", DOCS, query="a zebra", limit=1, offset=2)) == ["dogs"]
    assert do(store, "search", ("empty",), query="a zebra") == []


def test_each_field_is_compared_by_itself_and_the_best_one_counts(memory) -> None:
    store = MemlayerStore(memory, index={"fields": ["title", "notes[*].text", "user.name"]})
    store.put(DOCS, "a", {"title": "xxx", "notes": [{"text": "yyy"}, {"text": "zzz"}], "other": "ooo"})
    store.put(DOCS, "b", {"title": "www", "user": {"name": "uuu"}})
    for query, key in (("xxx", "a"), ("zzz", "a"), ("uuu", "b"), ("www", "b")):
        best = store.search(DOCS, query=query)[0]
        assert (best.key, best.score > 0.99) == (key, True)
    assert all(item.score < 0.9 for item in store.search(DOCS, query="ooo"))


def test_put_may_say_what_an_item_is_found_by(memory) -> None:
    """No fields mean the whole value in the configuration, as in LangGraph's own stores; with `put`, nothing."""
    store = MemlayerStore(memory, index={"fields": ["title"]})
    store.put(DOCS, "a", {"title": "xxx", "text": "aaa"}, index=["text"])
    store.put(DOCS, "b", {"title": "bbb", "text": "aaa"})
    store.put(DOCS, "c", {"title": "aaa"}, index=False)
    store.put(DOCS, "d", {"title": "ddd", "text": "eee"}, index=["$"])
    MemlayerStore(memory, index={"fields": []}).put(DOCS, "e", {"title": "eee"})
    store.put(DOCS, "f", {"title": "aaa"}, index=[])
    found = store.search(DOCS, query="aaa")
    assert found[0].key == "a"
    assert {item.key for item in found if item.score is None} == {*"cf"} == {*keys(found[-2:])}
    assert {*keys(store.search(DOCS, query="aaa", limit=4))} == {*"abde"}


def test_filters_go_with_any_query(store) -> None:
    docs = {"red apple": 5, "red car": 3, "green apple": 4, "blue car": 3.5, "这是中文": 1, "Это русский": 1}
    for text, score in docs.items():
        store.put(DOCS, text, {"text": text, "color": text.split()[0], "score": score})
    assert keys(store.search(DOCS, query="apple", filter={"color": "red"})) == ["red apple", "red car"]
    assert keys(store.search(DOCS, query="car", filter={"color": "red"})) == ["red car", "red apple"]
    found = store.search(DOCS, query="bbbbluuu", filter={"score": {"$gt": 3.2}})
    assert (found[0].key, len(found)) == ("blue car", 3)
    assert [store.search(DOCS, query=text)[0].key for text in docs] == [*docs]
    for query in ("", None, "test " * 1000, "test!@#$%^&*()", "\0", '"AND (NEAR', "\ud800"):
        assert len(store.search(DOCS, query=query)) == len(docs)


# --- namespaces


def test_a_namespace_is_forgotten_with_all_below_it_and_a_users_with_the_user(do, memory) -> None:
    """Other stores list a namespace for ever once something was in it."""
    store = MemlayerStore(memory, user_namespace=("users", "{user_id}"))
    for namespace in (("users", "1"), ("users", "1", "notes"), ("users", "10"), ("empty",), ("drafts", "10")):
        store.put(namespace, "k", {"text": "secret"})
    store.delete(("empty",), "k")
    assert len(store.search((), query="secret")) == 4
    assert do(store, "forget", ("users", "1")) == 2
    assert store.list_namespaces() == [("drafts", "10"), ("users", "10")]
    assert do(store, "forget", ("users", "1")) == 0
    report = memory.forget("10")
    assert (report.items, report.undeclared_folders) == (1, (("drafts", "10"),))
    assert len(store.search((), query="secret")) == 1


# --- time to live


def test_an_item_that_expired_goes_when_it_is_swept_and_may_be_hidden_before(do, store, at, memory) -> None:
    other = MemlayerStore(memory, tenant_id="other")
    hiding = MemlayerStore(memory, ttl={"omit_expired": True})
    for key, ttl in (("short", 1), ("long", 60), ("stays", None)):
        store.put(DOCS, key, {"text": "x"}, ttl=ttl)
    for one in (store, other):
        one.put(("gone",), "short", {"text": "x"}, ttl=1)
    at(NOON + timedelta(seconds=59))
    assert do(store, "sweep_ttl") == 0
    at(NOON + timedelta(seconds=61))
    assert hiding.get(DOCS, "short", refresh_ttl=True) is None
    assert keys(hiding.search(DOCS, limit=2)) == ["stays", "long"]
    assert {*keys(hiding.search((), query="x"))} == {"long", "stays"}
    assert hiding.list_namespaces() == [DOCS]
    assert store.get(DOCS, "short", refresh_ttl=False) is not None  # until it is swept
    assert do(store, "sweep_ttl") == 2  # reading brought none of them back
    assert sorted(keys(store.search(DOCS, query="x", refresh_ttl=False))) == ["long", "stays"]
    at(NOON + timedelta(days=1))
    assert do(store, "sweep_ttl") == 1
    assert (store.list_namespaces(), keys(store.search(DOCS))) == ([DOCS], ["stays"])
    assert other.get(("gone",), "short") is not None


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
    refused(errors.InvalidItemError, "above zero", store.start_ttl_sweeper, -1)


# --- the object


def test_a_configuration_that_cannot_be_kept_is_refused(memory, letters) -> None:
    wrong_fields = ({"text": 1}, ["notes["], ["notes[x]"], ["{title"], ["$.text"], "text")
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
        *(({"index": {"fields": fields}}, errors.InvalidItemError) for fields in wrong_fields),
    ):
        refused(problem, None, MemlayerStore, **{"memory": memory, **given})
    for fields in wrong_fields:
        with pytest.raises(errors.InvalidItemError):
            MemlayerStore(memory).put(DOCS, "k", {"text": "x"}, index=fields)
    assert MemlayerStore(memory, index={"embed": letters, "dims": 64}).supports_ttl
    memory.close()
    refused(errors.StoreClosedError, None, MemlayerStore(memory).get, DOCS, "k")


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


def test_one_store_serves_threads_and_event_loops_at_once_also_behind_one_ended_amid_calls(store) -> None:
    async def leave(ticks: int) -> None:
        asyncio.get_running_loop().create_task(store.aput(("left",), "k", {}))
        for _ in range(ticks):
            await asyncio.sleep(0)

    async def in_a_loop(number: int) -> None:
        await asyncio.gather(*(store.aput(DOCS, f"{number}-{one}", {"n": one}) for one in range(5)))
        assert store.get(DOCS, f"{number}-0") is not None  # blocking calls are allowed there, too
        assert await store.asearch(DOCS, query="n", limit=3)

    for ticks in range(4):
        asyncio.run(leave(ticks))
    threads = [threading.Thread(target=asyncio.run, args=(in_a_loop(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    store.put(DOCS, "main", {})
    for thread in threads:
        thread.join()
    assert len(store.search(DOCS, limit=100)) == 16


@pytest.fixture
def held_up(memory, monkeypatch) -> SimpleNamespace:
    """Let the next write that changes items wait: it tells that it began, and goes on when it is told to."""
    db, state = memory.runtime.db, SimpleNamespace(began=threading.Event(), go_on=threading.Event())
    write = db.write

    def waiting(work: Any, *args: Any, **kwargs: Any) -> Any:
        if work is items_sql.change and not state.began.is_set():
            state.began.set()
            assert state.go_on.wait(30)
        return write(work, *args, **kwargs)

    monkeypatch.setattr(db, "write", waiting)
    return state


async def test_writes_keep_their_order_and_what_fails_or_is_cancelled_holds_nobody_up(store, held_up) -> None:
    """A task that timed out is cancelled, and the thread that writes for it goes on."""

    def put(key: str, value: Any) -> asyncio.Task[None]:
        return asyncio.create_task(store.aput(DOCS, key, value))

    late = put("k", {"n": "old"})
    await asyncio.to_thread(held_up.began.wait, 30)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    slow = {"text": "many words " * 20_000}
    later = [put("k", slow), put("k", {"n": "new"}), put("bad", {"n": object()}), put("k", {"n": "never"})]
    gone = [put("gone", slow), asyncio.create_task(store.adelete(DOCS, "gone"))]
    half = asyncio.create_task(store.abatch([PutOp(DOCS, "half", {}), PutOp(DOCS, "half\0", {})]))
    await asyncio.sleep(0.05)
    later[3].cancel()
    assert not any(task.done() for task in later[:2])
    assert await store.aget(DOCS, "k") is None  # a read waits for no write
    held_up.go_on.set()
    await asyncio.gather(*later, *gone, half, return_exceptions=True)
    assert [type(task.exception()) for task in (later[2], half)] == [errors.InvalidItemError] * 2
    assert [(item.key, item.value) for item in await store.asearch(DOCS)] == [("k", {"n": "new"})]


# --- in LangMem


ADA = {"configurable": {"user": "ada@example\uff0eorg"}}  # a full stop would end the label
WHERE = ("memories", "{user}")


def test_its_tools_create_find_update_and_delete_memories_of_one_user(store) -> None:
    tool = create_manage_memory_tool(WHERE, store=store)
    search = create_search_memory_tool(WHERE, store=store, response_format="content_and_artifact")
    bob = {"configurable": {"user": "bob"}}

    def manage(config: Any = ADA, **given: Any) -> str:
        return tool.invoke(given, config)

    def found(query: str, whose: Any) -> list[str]:
        call = {"name": search.name, "args": {"query": query}, "id": "c1", "type": "tool_call"}
        return [item.value["content"] for item in search.invoke(call, whose).artifact]

    named = manage(content="Ada is allergic to peanuts").split()[-1]
    manage(content="Ada likes hiking")
    manage(bob, content="Bob is allergic to cats")
    assert found("allergic", ADA) == ["Ada is allergic to peanuts", "Ada likes hiking"]
    assert found("allergic", bob) == ["Bob is allergic to cats"]
    manage(content="Ada is allergic to walnuts", action="update", id=named)
    assert found("allergic walnuts", ADA)[0] == "Ada is allergic to walnuts"
    manage(action="delete", id=named)
    assert found("allergic", ADA) == ["Ada likes hiking"]


def test_its_manager_extracts_changes_and_deletes_memories_of_one_user(do, store) -> None:
    def manage(said: str, *calls: tuple[str, dict[str, Any]]) -> str:
        model = says(calling(*calls))
        made = create_memory_store_manager(model, namespace=WHERE, store=store, enable_deletes=True)
        do(made, "invoke", {"messages": [{"role": "user", "content": said}], "max_steps": 1}, ADA)
        return str(model.seen[0])

    def contents() -> list[str]:
        found = store.search(("memories", ADA["configurable"]["user"]))
        return sorted(item.value["content"]["content"] for item in found)

    store.put(("memories", "bob"), "k", {"kind": "Memory", "content": {"content": "Bob likes Oslo"}})
    facts = [("Memory", {"content": fact}) for fact in ("Ada lives in Tokyo", "Ada likes sushi")]
    manage("I moved to Tokyo, and I like sushi.", *facts)
    assert contents() == ["Ada likes sushi", "Ada lives in Tokyo"]
    (tokyo,) = (item for item in store.search(()) if "Tokyo" in item.value["content"]["content"])
    stable = create_memory_store_manager(says(), store=store)._stable_id(tokyo)
    change = {"op": "replace", "path": "/content", "value": "Ada lives in Oslo"}
    patch = {"json_doc_id": stable, "planned_edits": "the city", "patches": [change]}
    told = manage("I live in Oslo now, no longer in Tokyo.", ("PatchDoc", patch))
    assert "Ada lives in Tokyo" in told
    assert "Bob" not in told
    assert contents() == ["Ada likes sushi", "Ada lives in Oslo"]
    manage("Forget where I live, Oslo.", ("RemoveDoc", {"json_doc_id": stable}))
    assert contents() == ["Ada likes sushi"]
