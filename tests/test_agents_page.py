"""The page about agents and services tells the truth: its examples run, and its tools are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memlayer_core.models.overflow import RETRY_SHARE
from memlayer_core.settings import Settings
from memlayer_core.tools import AGENT_TOOLS

PAGE = (Path(__file__).parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")


def test_its_examples_run() -> None:
    pytest.importorskip("llama_index.core")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "agents.md", "exec"), names)
    assert "Hello" in str(names["answer"])  # this model repeats what it is given


def test_its_table_and_its_numbers_are_those_of_the_code() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(AGENT_TOOLS)
    assert f"({Settings().long_term_timeout:g} seconds)" in PAGE
    assert f"with {RETRY_SHARE:.0%}".replace("%", " %") in PAGE


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (Path(__file__).parents[1] / "docs" / target).exists(), target
