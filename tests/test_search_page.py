"""The page about filters and rerankers tells the truth: its examples run."""

from __future__ import annotations

import re
from pathlib import Path

from memlayer_core import RecallFilter
from memlayer_core.recall.rules.rerank import FIRST
from memlayer_core.settings import Settings

PAGE = (Path(__file__).parents[1] / "docs" / "search.md").read_text(encoding="utf-8")


def test_its_examples_run() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "search.md", "exec"), names)
        names["memory"].close()


def test_its_table_has_each_condition_and_its_numbers_are_those_of_the_code() -> None:
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert listed == set(RecallFilter.__dataclass_fields__) - {"_"}
    assert f"the first {FIRST} hits" in PAGE
    assert f"({Settings().reranker_timeout:g} seconds)" in PAGE
