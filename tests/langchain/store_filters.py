"""A value, and filters that find it or do not."""

from __future__ import annotations

from typing import Any

VALUE = {
    "kind": "note",
    "n": 3,
    "half": 0.5,
    "yes": True,
    "none": None,
    "tags": ["a", {"b": 1.0}],
    "user": {"name": "Ada", "access-level": {"deep": "x"}, "empty": {}},
    "a.b": "literal",
    "when": "2026-05-04",
    "digits": "10",
}


FILTERS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"kind": "note"}, True),
    ({"kind": "note", "n": 4}, False),
    ({"n": 3.0}, True),
    ({"n": "3"}, False),
    ({"yes": 1}, True),
    ({"none": None}, True),
    ({"missing": None}, True),
    ({"tags": ["a", {"b": 1}]}, True),
    ({"tags": ("a", {"b": 1})}, True),
    ({"tags": ["a"]}, False),
    ({"user": {"name": "Ada", "age": None}}, True),
    ({"user": {"empty": {}}}, True),
    ({"kind": {"empty": None}}, False),
    ({"user": {"name": {"$ne": "Bob"}}}, True),
    ({"user.name": "Ada"}, True),
    ({"user.access-level.deep": "x"}, True),
    ({"user.name.first": "Ada"}, False),
    ({"a.b": "literal"}, True),
    ({"missing": {"$eq": None}}, True),
    ({"user": {"$eq": {"name": "Ada"}}}, False),
    ({"user": {"$eq": VALUE["user"]}}, True),
    ({"kind": {"$ne": "note"}}, False),
    ({"missing": {"$ne": "note"}}, True),
    ({"missing": {"$ne": None}}, False),
    ({"n": {"$gt": 2.5}}, True),
    ({"n": {"$gt": 3}}, False),
    ({"n": {"$lte": 3, "$gt": 0}}, True),
    ({"n": {"$lte": 3, "$gt": 3}}, False),
    ({"n": {"$lt": float("inf"), "$gt": float("-inf")}}, True),
    ({"n": {"$lt": 10**400}}, True),
    ({"n": {"$lt": float("nan")}}, False),
    ({"n": {"$eq": float("nan")}}, False),
    ({"n": {"$ne": float("nan")}}, True),
    ({"missing": {"$gt": 0}}, False),
    ({"kind": {"$gt": 0}}, False),
    ({"digits": {"$gt": 9}}, True),
    ({"when": {"$gte": "2026-05", "$lt": "2026-06"}}, True),
    ({"n": {"$gt": "2"}}, False),
    ({"kind": "note' OR '1'='1"}, False),
    ({"kind": "note\0"}, False),
]
