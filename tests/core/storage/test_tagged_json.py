"""Any value is written as JSON and read back equal, of the same types; what cannot be is left out by name."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from memlayer_core import codec
from memlayer_core.codec import TAG, Instance, TaggedJson, read


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = None


class Stranger:
    """An object that nothing can write."""


class HostileType(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


def dump(value: Any) -> Any:
    if isinstance(value, Point):
        return Instance("Point", {"x": value.x, "y": value.y})
    if isinstance(value, complex):
        return (value.real, value.imag)
    raise TypeError


def load(instance: Instance) -> Any:
    return Point(**instance.fields) if instance.name == "Point" else instance


def write(value: object, place: str = "") -> TaggedJson:
    return codec.write(value, dump=dump, place=place)


def through(value: object) -> Any:
    """Return a value as it comes back from JSON text."""
    return read(json.loads(json.dumps(write(value).value, allow_nan=False)), load=load)


def typed(value: Any) -> Any:
    """Return a value with the type of everything in it; equal for values that are equal and of equal types."""
    match value:
        case list() | tuple():
            inside: Any = [typed(item) for item in value]
        case dict():
            inside = [(typed(key), typed(inner)) for key, inner in value.items()]
        case set() | frozenset():
            inside = {(type(item), item) for item in value}
        case Point():
            inside = (typed(value.x), typed(value.y))
        case _:
            inside = repr(value) if isinstance(value, Decimal | float) else value
    return type(value), inside


def alike(one: Any, other: Any) -> bool:
    return typed(one) == typed(other)


# Every value that is known

texts = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from("a \n\0\udc80😀汉"), max_size=6),
    st.sampled_from([TAG, "value", "class", "fields", *codec._LOADERS, "dict", "object", "lost"]),
)
numbers = st.one_of(
    st.integers(),
    st.builds(lambda bits, sign: sign * (1 << bits), st.integers(1_900, 20_000), st.sampled_from([1, -1])),
    st.floats(allow_nan=False),  # it equals nothing, so no set with it does
)
# Whole seconds: Python's own reader of ISO 8601 loses a fraction of one in an offset.
offsets = st.integers(-80_000, 80_000).map(lambda seconds: timezone(timedelta(seconds=seconds)))
paths = st.builds(Path, st.text(st.characters(exclude_characters="\0"), max_size=6))
simple = (st.none(), st.booleans(), numbers, texts, st.binary(max_size=8), st.decimals(allow_nan=False))
moments = (st.datetimes(timezones=st.none() | offsets), st.dates(), st.times(timezones=st.none() | offsets))
hashed = st.one_of(*simple, *moments, st.timedeltas(), st.uuids(), paths)
couples = st.tuples(hashed, st.tuples(hashed))
members = st.deferred(lambda: hashed | couples | st.frozensets(hashed | couples, max_size=3))
values = st.recursive(
    members | st.sets(members, max_size=3) | st.sampled_from([math.nan, Decimal("sNaN")]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(texts, inner, max_size=3),
        st.dictionaries(members, inner, max_size=3),
        st.builds(Point, inner, inner),
        st.fixed_dictionaries({TAG: texts | inner}, optional={"value": inner, "more": inner}),
    ),
    max_leaves=8,
)


@pytest.mark.requirement("F18")
@given(values)
def test_a_value_comes_back_equal_and_of_the_same_type_all_the_way_down_and_with_tags_where_json_has_no_type(
    value,
):
    written = write(value)

    assert alike(through(value), value)
    assert written.losses == ()
    assert written.has_tags is not alike(written.value, value)
    assert write(through(value)) == written


class Level(str, Enum):  # noqa: UP042  (what many providers' enumerations still are)
    HIGH = "high"


class Rank(IntEnum):
    FIRST = 1


class Moment(datetime):
    """What date libraries give."""


class Lossy(datetime):
    """A date that is not a datetime, though it derives from one."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return False


PLAIN = [
    (OrderedDict(a=1), {"a": 1}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (namedtuple("Pair", "a b")(1, 2), (1, 2)),  # noqa: PYI024
    ({Level.HIGH: Rank.FIRST}, {"high": 1}),
    (bytearray(b"x"), b"x"),
    (memoryview(b"x"), b"x"),
    (Moment(2026, 5, 4, tzinfo=UTC), datetime(2026, 5, 4, tzinfo=UTC)),
    (PurePosixPath("a/b"), Path("a/b")),
]


def test_a_subclass_comes_back_as_the_plain_type_that_it_equals_and_is_not_written_if_it_equals_none():
    for value, plain in PLAIN:
        written = write(value)
        assert alike(through(value), plain)
        assert value == plain
        assert alike(written.value, json.loads(json.dumps(written.value)))
        assert not written.losses
    for odd in (Lossy(2026, 5, 4, tzinfo=UTC), PureWindowsPath("a\\b")):
        assert write([odd]).losses == (f"[] ({type(odd).__module__}.{type(odd).__qualname__})",)


def test_an_object_comes_back_as_whoever_loads_it_makes_it_and_is_no_key_as_that_may_be_a_dict():
    stored = write([Point(1, Point(b"x")), 1j, {Point(1)}]).value
    keyed = write({Point(1): 1, (Point(2),): 2, 1: "kept"}, "args")

    assert read(stored, load=load) == [Point(1, Point(b"x")), (0.0, 1.0), {Point(1)}]
    assert read(stored) == [{"x": 1, "y": {"x": b"x", "y": None}}, (0.0, 1.0), [{"x": 1, "y": None}]]
    assert read(keyed.value) == {1: "kept"}
    assert keyed.losses == (f"args ({__name__}.Point)", "args (tuple)")


def test_sets_are_written_in_one_order_so_that_equal_ones_are_written_equal():
    code = (
        "import json; from memlayer_core.codec import write\n"
        "print(json.dumps(write({str(n) for n in range(50)} | {(1,), None}, dump=None).value))"
    )
    command = [sys.executable, "-c", code]
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2"))
    one, other = (subprocess.check_output(command, env=environment) for environment in environments)

    assert one == other


# What cannot be written


def circle(around: Any) -> Any:
    around += [around, around, {1: around}]
    return around


def deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(5000):
        inner = [inner]
    return inner


UNWRITABLE = {
    "object of a hostile type": lambda: object.__new__(HostileType("OfHostileType", (), {})),
    "iterator": lambda: iter([1]),
    "circle": lambda: circle([1]),
    "abyss": deep,
    "member": lambda: {Stranger()},
}


def test_what_cannot_be_written_is_left_out_and_named_and_its_neighbours_stay():
    for name, make in UNWRITABLE.items():
        written = write({"odd": make(), "list": [1, make(), 3], "good": (b"x",)}, ".args")
        back = read(json.loads(json.dumps(written.value, allow_nan=False)))

        assert back["good"] == (b"x",), name
        assert (back["list"][0], back["list"][2]) == (1, 3), name
        assert written.losses, name
        assert all(place.startswith((".args.odd", ".args.list[]")) for place in written.losses), name


CONTAINERS = ("list", "tuple", "dict", "pairs", "object", "set")


@given(values, st.lists(st.sampled_from(CONTAINERS), max_size=4))
def test_what_was_left_out_is_missing_from_its_dict_none_elsewhere_and_nothing_beside_it_is_lost(
    value, around
):
    made: Any = Stranger()
    expected: Any = None
    for at, container in enumerate(around):
        match container:
            case "list":
                made, expected = [value, made], [value, expected]
            case "tuple":
                made, expected = (value, made), (value, expected)
            case "object":
                made, expected = Point(value, made), Point(value, expected)
            case "set" if at == 0:
                made, expected = {made}, {expected}
            case _:
                kept, odd = ("a", "b") if container == "dict" else (1, 2)
                made, expected = {kept: value, odd: made}, {kept: value, odd: expected}
                if at == 0:
                    del expected[odd]

    assert alike(through(made), expected)
    assert len(write(made).losses) == 1


class Secret:
    def __repr__(self) -> str:
        return "hunter2"

    __str__ = __repr__


class Torn(dict):
    def items(self):
        yield "a", Stranger()
        raise RuntimeError


def test_what_was_left_out_is_named_by_its_place_and_its_type_alone_and_not_beside_its_container():
    written = write({"key": [Secret(), Secret()], (1, 2): {Secret(): 1}}, ".args")

    assert "hunter2" not in json.dumps(written.value) + "".join(written.losses)
    assert written.losses[0] == f".args.key[] ({__name__}.Secret)"
    assert len(written.losses) == 2
    assert write([Torn(a=1)]).losses == (f"[] ({__name__}.Torn)",)


def test_nesting_is_written_to_a_depth_that_every_reader_of_json_bears():
    bearable: Any = "bottom"
    for _ in range(100):
        bearable = [bearable]
    levels, rest = 0, write(deep()).value
    while isinstance(rest, list):
        levels, rest = levels + 1, rest[0]

    assert through(bearable) == bearable
    assert levels == 100
    assert rest == {TAG: "lost", "value": "list"}
    endless = codec.write([object()], dump=lambda _: object())  # simplified to another one again and again
    assert read(endless.value) == [None]
    assert len(endless.losses) == 1


# What is stored already


FORMS = {
    "bytes": ("/wA=", b"\xff\0"),
    "float": ("-inf", -math.inf),
    "int": (f"-0x1{500 * '0'}", -(2**2000)),
    "tuple": ([1, [{TAG: "tuple", "value": []}]], (1, [()])),
    "dict": ([[TAG, "bytes"], ["value", "AAAA"]], {TAG: "bytes", "value": "AAAA"}),
    "datetime": ("2026-05-04T12:30:01.000007+00:00", datetime(2026, 5, 4, 12, 30, 1, 7, tzinfo=UTC)),
    "date": ("2026-05-04", date(2026, 5, 4)),
    "time": ("12:30:00", time(12, 30)),
    "timedelta": ([-1, 0, 3], timedelta(days=-1, microseconds=3)),
    "decimal": ("1.10", Decimal("1.10")),
    "uuid": ("00000000-0000-0000-0000-000000000007", UUID(int=7)),
    "set": (["a", 1, None], {1, "a", None}),
    "frozenset": ([{TAG: "tuple", "value": [1, 2]}], frozenset({(1, 2)})),
    "path": ("a/b", Path("a/b")),
}


@pytest.mark.requirement("F18")
def test_the_form_of_what_is_stored_and_exported_stays():
    for kind, (form, value) in FORMS.items():
        stored = {TAG: kind, "value": form}
        assert write(value).value == stored
        assert alike(read(stored), value)


FORGED = {"bytes": ["?", None], "int": ["ten"], "datetime": ["yesterday"], "timedelta": [["a"]]}
FORGED |= {"dict": [[[{}, 1]], [1]]}


def test_what_was_never_written_is_refused_and_a_tag_of_a_later_version_is_a_dict():
    for kind, forms in FORGED.items():
        for form in forms:
            with pytest.raises((ValueError, TypeError)):
                read([{TAG: kind, "value": form}])
    assert read({TAG: "quaternion", "value": [1, 2]}) == {TAG: "quaternion", "value": [1, 2]}
