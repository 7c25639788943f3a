"""The README tells the truth: its examples run, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
OUTPUT = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


def test_every_example_runs_and_prints_what_the_readme_says(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("langchain_core")
    pytest.importorskip("llama_index.core")
    from langchain_core.language_models import GenericFakeChatModel
    from llama_index.core.llms.mock import MockLLM

    from langchain_memlayer import MemlayerChatMessageHistory

    class ModelWithTools(GenericFakeChatModel):
        def bind_tools(self, tools, **kwargs):
            return self

    monkeypatch.chdir(tmp_path)
    model = ModelWithTools(messages=iter(["To Tokyo.", "In Tokyo."]))
    names = {"model": model, "llm": MockLLM(is_chat_model=True)}
    assert len(PYTHON) == 6
    for example, output in zip(PYTHON[:3], (OUTPUT[0], "", OUTPUT[1]), strict=True):
        exec(compile(example, "README.md", "exec"), names)
        assert capsys.readouterr().out == output
    assert {key: fact.value for key, fact in names["facts"].items()} == {"home": "Tokyo", "allergy": "nuts"}
    assert names["why"].statements[0].evidence.quote == "I moved to Tokyo"
    names["memory"].flush()
    for number, example in enumerate(PYTHON[3:], start=4):
        exec(compile(example, f"README.md, example {number}", "exec"), names)
    memory = names["memory"]
    langchain = MemlayerChatMessageHistory(memory, session_id="langchain", user_id="louis")
    assert [m.content for m in langchain.messages] == ["Where did I move?", "In Tokyo."]
    assert "I moved to Tokyo" in str(langchain.context("Where did I move?", token_limit=3000))
    agent = memory.chat(user_id="louis", session_id="an-agent")
    assert [m.text for m in agent.history()] == ["Where did I move?", "To Tokyo."]
    assert "I moved to Tokyo" in agent.context(token_limit=3000).messages[0].content
    told = names["engine"].chat_history
    assert [m.role.value for m in told] == ["user", "assistant"]
    assert "I moved to Tokyo" in told[1].content  # this model repeats what it is given
    memory.close()


def test_the_two_commands_make_their_own_environment() -> None:
    commands = re.findall(r"^```\n(python3 .*)\n```$", README, re.MULTILINE)
    assert [command.split("/")[-1] for command in commands] == ["memlayer demo", "pytest"]
    for command in commands:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e '.[")


def test_every_command_that_it_names_exists() -> None:
    shown = subprocess.run(
        [Path(sys.executable).parent / "memlayer", "--help"], capture_output=True, text=True, check=True
    ).stdout
    listed = re.search(r"lists the commands: (.*?)\.\n", README)
    assert listed is not None
    for command in re.findall(r"`(\w+)`", listed[1]):
        assert re.search(rf"\b{command}\b", shown), command


def test_every_name_that_takes_the_place_of_another_exists() -> None:
    pytest.importorskip("langchain")
    pytest.importorskip("llama_index.core")
    import langchain_memlayer
    import llamaindex_memlayer

    tables = [line for line in README.splitlines() if line.startswith("|")]
    named = set(re.findall(r"\b(Memlayer\w+|with_memory|create_\w+)\b", "\n".join(tables)))
    assert len(named) > 8
    for name in named - {"create_agent"}:
        assert hasattr(langchain_memlayer, name) or hasattr(llamaindex_memlayer, name), name


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_page_about_adapters_quotes_the_example() -> None:
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "openai_agents_session.py").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    assert [block for block in blocks if block not in example] == []
    for target in re.findall(r"\]\(([^)#]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.requirement("F07")
def test_it_names_the_limit_that_suits_most_chats() -> None:
    assert "four to ten rounds suit most chats" in " ".join(README.split())


def test_it_stays_short() -> None:
    assert len(README.splitlines()) < 250
