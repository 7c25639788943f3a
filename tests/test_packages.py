"""The distributions that people search by give what they promise, and no second copy of anything."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from memlayer_core import Memory

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"
THIN = {"langchain-memlayer": "langchain", "llama-index-memory-memlayer": "llamaindex"}


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("name", sorted(THIN))
def test_it_depends_on_one_extra_of_the_core_of_its_version_and_on_nothing_else(name) -> None:
    core, thin = project(ROOT), project(PACKAGES / name)
    (wanted,) = map(Requirement, thin["dependencies"])
    assert (thin["name"], wanted.name, wanted.extras) == (name, core["name"], {THIN[name]})
    assert THIN[name] in core["optional-dependencies"]
    assert wanted.specifier.contains(core["version"])
    for field in ("version", "requires-python", "license", "authors"):
        assert thin[field] == core[field], field


def test_no_module_is_in_two_distributions() -> None:
    modules = {file.relative_to(PACKAGES / name) for name in THIN for file in (PACKAGES / name).rglob("*.py")}
    assert modules == {Path("llama_index/memory/memlayer/__init__.py")}
    assert not (PACKAGES / "llama-index-memory-memlayer/llama_index/__init__.py").exists()


@pytest.fixture
def thin_modules(monkeypatch) -> None:
    pytest.importorskip("llama_index.core", reason="the extra llamaindex is missing")
    monkeypatch.syspath_prepend(PACKAGES / "llama-index-memory-memlayer")


def test_the_module_for_llamaindex_has_the_very_names_of_the_adapter(thin_modules) -> None:
    adapter = importlib.import_module("llamaindex_memlayer")
    module = importlib.import_module("llama_index.memory.memlayer")
    assert module.__all__ == adapter.__all__
    assert all(getattr(module, name) is getattr(adapter, name) for name in adapter.__all__)


@pytest.mark.parametrize("page", ["README.md", "integration.md"])
@pytest.mark.parametrize("name", sorted(THIN))
def test_the_examples_of_its_pages_run(name, page, thin_modules, tmp_path, monkeypatch) -> None:
    pytest.importorskip("langchain", reason="the extra langchain is missing")
    from langchain_core.language_models import GenericFakeChatModel
    from llama_index.core.llms.mock import MockLLM

    class ModelWithTools(GenericFakeChatModel):
        def bind_tools(self, tools: object, **kwargs: object) -> ModelWithTools:
            return self

    text = (PACKAGES / name / page).read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names = {"model": ModelWithTools(messages=repeat("To Tokyo.")), "llm": MockLLM(is_chat_model=True)}
    exec(compile(code, name, "exec"), names)
    memory = names["memory"] if "memory" in names else names["session"].memory
    assert isinstance(memory, Memory)
    assert len(memory.chat(user_id="ada", session_id="monday").history()) == 2
    memory.close()
    sys.modules.pop("llama_index.memory.memlayer", None)


def test_the_entry_of_the_mcp_registry_names_what_is_published() -> None:
    server = PACKAGES / "memlayer-server"
    entry, made = json.loads((server / "server.json").read_text()), project(server)
    (package,) = entry["packages"]
    assert f"<!-- mcp-name: {entry['name']} -->" in (server / "README.md").read_text()
    assert entry["version"] == package["version"] == made["version"]
    assert package["identifier"] == made["name"]
    assert "memlayer-mcp" in made["scripts"]
    given = (*package["runtimeArguments"], *package["packageArguments"])
    assert {"memlayer-mcp", "--user"} <= {one.get("value", one.get("name")) for one in given}
