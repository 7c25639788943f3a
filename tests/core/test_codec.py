"""Any value is written as JSON: JSON, bytes, paths and all numbers come back equal, all else in pydantic's form, and what has none is named."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from memlayer_core.codec import TAG, read, write


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = None


class Stranger:
    def __repr__(self) -> str:
        return "hunter2"


class HostileType(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Torn(dict):
    def items(self):
        yield "a", Stranger()
        raise RuntimeError


def through(value: Any) -> Any:
    """Return a value as it comes out of a database."""
    return read(json.loads(json.dumps(write(value)[0], allow_nan=False)))


texts = st.text() | st.just(TAG) | st.sampled_from(["value", "bytes", "float", "path"])
numbers = st.integers() | st.floats(allow_nan=False)
paths = st.sampled_from([Path("a/b"), Path("/x.pdf"), Path()])
json_and_bytes = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary() | paths,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.requirement("F18")
@given(json_and_bytes)
def test_json_and_bytes_come_back_equal_whatever_keys_they_have(value) -> None:
    assert through(value) == value
    assert write(value)[1] == []
    assert math.isnan(through([math.nan])[0])


@pytest.mark.requirement("F18")
def test_what_json_has_no_type_for_gets_pydantics_form_for_good() -> None:
    odd = {
        "pair": (1, [b"x"]),
        "when": datetime(2026, 5, 4, 12, tzinfo=UTC),
        "money": Decimal("1.10"),
        "point": Point(1, Point("deep")),
        "frozen": MappingProxyType({"a": 1}),
        "huge": -(2**2000),
        7: {None: 1},
    }
    assert through(odd) == {
        "pair": [1, [b"x"]],
        "when": "2026-05-04T12:00:00Z",
        "money": "1.10",
        "point": {"x": 1, "y": {"x": "deep", "y": None}},
        "frozen": {"a": 1},
        "huge": f"-0x1{500 * '0'}",
        "7": {"None": 1},
    }


def test_equal_sets_are_written_equal_by_every_process() -> None:
    code = "from memlayer_core.codec import write; print(write({str(n) for n in range(50)} | {(1,), None}))"
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2"))
    one, other = (subprocess.check_output([sys.executable, "-c", code], env=some) for some in environments)

    assert one == other


def circle() -> list[Any]:
    around: list[Any] = [1]
    around.append({"again": around})
    return around


def deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(5000):
        inner = [inner]
    return inner


UNWRITABLE = {
    "stranger": Stranger,
    "hostile": lambda: object.__new__(HostileType("OfHostileType", (), {})),
    "iterator": lambda: iter([1]),
    "circle": circle,
    "abyss": deep,
    "torn": lambda: Torn(a=1),
    "inside an object": lambda: Point(Stranger()),
}


def test_what_cannot_be_written_is_named_by_its_place_and_type_alone_and_its_neighbours_stay() -> None:
    for name, make in UNWRITABLE.items():
        value = {"odd": make(), "list": [1, make(), 3], "good": [b"x"]}
        written, losses = write(value, "args")
        back = read(json.loads(json.dumps(written, allow_nan=False)))

        assert back["good"] == [b"x"], name
        assert (back["list"][0], back["list"][2]) == (1, 3), name
        assert len(losses) >= 2, name
        assert all(one.startswith(("args.odd", "args.list[]")) for one in losses), name
        assert "hunter2" not in json.dumps(written) + "".join(losses), name


def test_nesting_is_written_to_a_depth_that_every_reader_of_json_bears() -> None:
    bearable: Any = "bottom"
    for _ in range(100):
        bearable = [bearable]
    levels, rest = 0, write(deep())[0]
    while isinstance(rest, list):
        levels, rest = levels + 1, rest[0]

    assert through(bearable) == bearable
    assert (levels, rest) == (101, None)
