"""Whatever is done to it, the store answers as LangGraph's own one in memory does."""

from typing import Any

from hypothesis import HealthCheck, example, given, strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from examples import examples
from langchain_memlayer import MemlayerStore
from memlayer_core import Memory
from tests.conftest import PROMPT

USER = {"name": "Ada", "access-level": {"deep": "x"}, "empty": {}}
VALUE = {"kind": "note", "n": 3, "half": 0.5, "yes": True, "none": None, "user": USER}
VALUE |= {"tags": ["a", {"b": 1.0}], "a.b": "literal", "when": "2026-05-04", "digits": "10"}


FILTERS: list[tuple[dict[str, Any], bool]] = [
    ({"tags": ["a", {"b": 1}]}, True),
    ({"user": {"name": "Ada", "age": None}}, True),
    ({"user": {"name": {"$ne": "Bob"}}}, True),
    ({"user.access-level.deep": "x"}, True),
    ({"user.name.first": "Ada"}, False),
    ({"a.b": "literal"}, True),
    ({"user": {"$eq": {"name": "Ada"}}}, False),
    ({"user": {"$eq": USER}}, True),
    ({"n": {"$lt": float("inf"), "$gt": float("-inf")}}, True),
    ({"n": {"$lt": float("nan")}}, False),
    ({"n": {"$ne": float("nan")}}, True),
    ({"missing": {"$gt": 0}}, False),
    ({"kind": {"$gt": 0}}, False),
    ({"digits": {"$gt": 9}}, True),
    ({"when": {"$gte": "2026-05", "$lt": "2026-06"}}, True),
    ({"n": {"$gt": "2"}}, False),
    ({"kind": "note' OR '1'='1"}, False),
    ({"kind": "note\0"}, False),
]
"""Where LangGraph's own store in memory says nothing of them."""

LATER = PROMPT.replace(index_delay=3600)
ODD = ["users'--", "[users", "?", "louis", "l\u043euis", "a" * 600]  # three of the longest are still a path
labels = st.sampled_from(["users", "USERS", "1", "10", "%", "*", "'"]) | st.sampled_from(ODD)
namespaces = st.lists(labels, min_size=1, max_size=3).map(tuple) | st.just(("deep",) * 60)
keys = st.sampled_from(["a", "b"]) | st.sampled_from(["", "e\u0301", "k" * 10_000, '"; DROP TABLE items; --'])
names = st.sampled_from(["x", "y", "text"])
numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0])
scalars = st.none() | st.booleans() | numbers | st.sampled_from(["", "1", "a", "你好"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
items = st.dictionaries(names, values, max_size=3)
ordered = st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), numbers, min_size=1, max_size=2)
numbered = st.dictionaries(names, numbers, min_size=3, max_size=3)
equal = st.dictionaries(st.sampled_from(["$eq", "$ne"]), values, min_size=1, max_size=2)
flat = scalars | st.lists(scalars, max_size=2)
wanted = st.dictionaries(names, flat | equal | st.dictionaries(names, flat | equal, max_size=2), max_size=2)
patterns = st.tuples(st.sampled_from(["prefix", "suffix"]), namespaces).map(lambda one: MatchCondition(*one))


def some(kind: Any, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*parts).map(lambda given: kind(*given))


queries, page = st.sampled_from([None, "a 1"]), (st.integers(1, 4) | st.just(100), st.integers(0, 2))
both = st.lists(patterns, max_size=2).map(tuple)
operations: st.SearchStrategy[Op] = st.one_of(
    some(PutOp, namespaces, keys, st.none() | items),
    some(PutOp, namespaces, keys, items),
    some(GetOp, namespaces, keys),
    some(SearchOp, st.just(()) | namespaces, st.none() | wanted, st.just(1000), st.just(0), queries),
    some(ListNamespacesOp, both, st.none() | st.integers(1, 3), *page),
)


class Reference(InMemoryStore):
    """Lists no namespace that is empty: the one in memory goes on listing those."""

    def _handle_list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        for namespace in [one for one, held in self._data.items() if not held]:
            del self._data[namespace]
        return super()._handle_list_namespaces(op)


def plain(answer: Any) -> Any:
    """Return an answer without its times and its order, which LangGraph's stores do not agree on."""
    if isinstance(answer, list) and answer and not isinstance(answer[0], tuple):
        return sorted((repr((item.namespace, item.key)), repr(item.value)) for item in answer)
    return (answer.namespace, answer.key, answer.value) if hasattr(answer, "value") else answer


D = ("docs",)


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(operations, max_size=6), max_size=5))
@example([[PutOp(D, "k", {"v": 1}), PutOp(D, "k", {"v": 2}), GetOp(D, "k")], [SearchOp(D)]])
@example([[PutOp(D, "k", {"v": 1})], [PutOp(D, "k", None), PutOp(D, "k", {"v": 2})], [GetOp(D, "k")]])
@example([*([PutOp(D, "k", {"x": n})] for n in (1, 2)), [SearchOp(D, {"x": 1}), SearchOp(D, {"x": 2})]])
@example([[PutOp((one,), "", {"n": 1}) for one in ODD], [SearchOp((one,)) for one in ODD]])
@example([[PutOp(("a" * 1900,), "", {"n": 1})], [SearchOp(("a" * 1900,))]])
def test_the_same_batches_are_answered_alike(batches) -> None:
    reference = Reference()
    with Memory.in_memory(settings=LATER) as memory:
        store = MemlayerStore(memory)
        for batch in batches:
            expected, answers = reference.batch(batch), store.batch(batch)
            assert list(map(plain, answers)) == list(map(plain, expected))


def test_a_filter_finds_what_its_fields_say() -> None:
    with Memory.in_memory(settings=LATER) as memory:
        store = MemlayerStore(memory)
        store.put(("d",), "it", VALUE)
        store.put(("d",), "other", {})
        for wanted, found in FILTERS:
            assert ("it" in {item.key for item in store.search(("d",), filter=wanted)}) is found, wanted


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(numbered, max_size=4), st.dictionaries(names, ordered, max_size=2))
def test_numbers_are_put_in_order_alike(held, asked) -> None:
    reference = InMemoryStore()
    with Memory.in_memory(settings=LATER) as memory:
        store = MemlayerStore(memory)
        for one in (reference, store):
            one.batch([PutOp(("n",), str(number), value) for number, value in enumerate(held)])
        expected = reference.search(("n",), filter=asked, limit=100)
        assert plain(store.search(("n",), filter=asked, limit=100)) == plain(expected)
