"""The documents tell the truth: their examples run, their links lead somewhere, their numbers are those of the code."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from typer.main import get_command

from memlayer_core import Memory, RecallFilter, Settings
from memlayer_core.cli.app import EXIT_CODES
from memlayer_core.cli.commands import app
from memlayer_core.models.llm import RETRY_SHARE
from memlayer_core.recall.search import RERANKED
from memlayer_core.tools import AGENT_TOOLS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = {str(one.relative_to(ROOT)): one.read_text(encoding="utf-8") for one in [ROOT / "README.md", *DOCS]}
README = PAGES["README.md"]
COMMAND_PAGE = PAGES["docs/cli.md"].partition("\n## `memlayer-ui`")[0]
COMMANDS = set(get_command(app).commands)
EXAMPLES = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUNS = [name for name, text in PAGES.items() if "```python\n" in text]


def examples(page: str) -> Iterator[tuple[str, str]]:
    """Each example of a page with what it prints. A quote of a file in `examples` runs there."""
    blocks = BLOCK.findall(PAGES[page])
    for (kind, code), (next_kind, output) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python" and code not in EXAMPLES:
            yield code, output if next_kind == "text" else ""


def close(names: dict[str, Any]) -> None:
    for memory in {id(one): one for one in names.values() if isinstance(one, Memory)}.values():
        memory.close()


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What every page may use: a chat model of LangChain and one of LlamaIndex, which follow a script."""
    pytest.importorskip("langchain", reason="the extra langchain is missing")
    pytest.importorskip("llama_index.core", reason="the extra llamaindex is missing")
    from langchain_core.language_models import GenericFakeChatModel
    from llama_index.core.llms.mock import MockFunctionCallingLLM

    class ModelWithTools(GenericFakeChatModel):
        def bind_tools(self, tools: object, **kwargs: object) -> ModelWithTools:
            return self

    model = ModelWithTools(messages=iter(["To Tokyo.", "In Tokyo.", "Good.", "Fine."]))
    made: dict[str, Any] = {"model": model, "llm": MockFunctionCallingLLM()}
    yield made
    close(made)


KEY = re.compile(r'( key=")[0-9a-f]{8}(">)')


@pytest.mark.parametrize("page", RUNS)
def test_examples_print_what_the_page_says(page, names, tmp_path, monkeypatch, capsys) -> None:
    def set_one(provider: TracerProvider) -> None:
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    monkeypatch.chdir(tmp_path)
    # The real one holds for the whole process.
    monkeypatch.setattr(trace, "set_tracer_provider", set_one)
    for number, (code, output) in enumerate(examples(page), start=1):
        before = dict(names)
        exec(compile(code, f"{page}, example {number}", "exec"), names)
        printed = KEY.sub(r"\1…\2", capsys.readouterr().out)  # each store has its own
        assert printed == KEY.sub(r"\1…\2", output), f"{page}, example {number}"
        close({key: one for key, one in before.items() if one is not names.get(key)})
    CLAIMS.get(page, lambda _: None)(names)


def readme(names: dict[str, Any]) -> None:
    memory = names["memory"]
    assert names["why"].evidence[0].quote == "I work as a baker"
    agent = memory.chat(user_id="louis", session_id="an-agent")
    assert [one.text for one in agent.history()] == ["What am I allergic to?", "To nuts."]
    assert "I am allergic to nuts" in agent.context(token_limit=3000).messages[0].content
    seen = names["engine"].chat_history
    assert [one.role.value for one in seen] == ["user", "assistant"]
    assert "I am allergic to nuts" in seen[1].content  # this model repeats what it is given


def adapters_page(names: dict[str, Any]) -> None:
    assert "Hello" in str(names["answer"])  # this model repeats what it is given


def search_page(names: dict[str, Any]) -> None:
    """Both frameworks' rerankers put their best first, and what they leave out comes last."""
    from langchain_core.documents import BaseDocumentCompressor
    from llama_index.core.postprocessor import SimilarityPostprocessor

    class LikesRed(BaseDocumentCompressor):
        def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
            liked = [one.model_copy(deep=True) for one in documents if query in one.page_content]
            return sorted(liked, key=lambda one: one.page_content)

    keeps, texts = LikesRed(), ["blue", "red", "green", "dark red"]
    assert asyncio.run(names["with_compressor"](keeps)("red", texts)) == [0, 3, 0, 4]
    cut = SimilarityPostprocessor(similarity_cutoff=0.6)
    assert asyncio.run(names["with_postprocessor"](cut)("red", texts)) == [4, 3, 0, 0]


CLAIMS = {"README.md": readme, "docs/adapters.md": adapters_page, "docs/search.md": search_page}
"""What is true after a page's examples, besides what they assert themselves."""


def test_most_pages_have_examples_and_quotes_are_quotes() -> None:
    assert len(RUNS) >= 12
    codes = [code for kind, code in BLOCK.findall(PAGES["docs/adapters.md"]) if kind == "python"]
    assert len([code for code in codes if code in EXAMPLES]) == 8


def anchors(text: str) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"])
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(page) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text)
    for target in (one or other for one, other in links):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = (ROOT / page).parent / file if file else ROOT / page
        assert there.is_file(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


def test_the_page_about_search_has_each_condition_and_its_numbers_are_those_of_the_code() -> None:
    page = PAGES["docs/search.md"]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert listed == set(RecallFilter.__dataclass_fields__) - {"_"}
    assert f"the first {RERANKED} hits" in page
    assert f"longer than {Settings().reranker_timeout:g} seconds" in page


LEARNING, _, TOOLS = PAGES["docs/facts.md"].partition("## The tools of an agent\n")


def test_the_pages_about_agents_have_the_tools_and_the_numbers_of_the_code() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TOOLS, re.MULTILINE) == list(AGENT_TOOLS)
    page = PAGES["docs/adapters.md"]
    assert f"longer than {Settings().long_term_timeout:g} seconds" in page
    assert f"with {RETRY_SHARE:.0%}".replace("%", " %") in page


def test_the_page_about_learning_has_each_setting_with_its_default() -> None:
    page, settings = LEARNING, Settings()
    listed = dict(re.findall(r"^\| (`.*?`) \| (.*?) \|", page, re.MULTILINE))
    rows = {name: value for names, value in listed.items() for name in re.findall(r"`(\w+)`", names)}
    wanted = [name for name in Settings.model_fields if name.startswith(("extraction_", "model_"))]
    assert set(rows) == set(wanted) - {"model_config"}
    for name in wanted:
        value = getattr(settings, name)
        shown = {None: "no limit", False: "no"}
        assert rows[name] == (shown[value] if value is None or value is False else f"{value:,g}")
    assert f"{settings.job_attempts:d}" == "12"
    assert "after twelve times" in page


def test_the_glossary_has_each_term_once_and_is_short() -> None:
    terms = re.findall(r"^\| \*\*(.*?)\*\*", PAGES["docs/concepts.md"], re.MULTILINE)
    assert 30 < len(set(terms)) == len(terms) <= 40


def test_every_setting_that_a_page_names_exists() -> None:
    for page, text in PAGES.items():
        for name in re.findall(r"`Settings\.(\w+)`|Settings\((\w+)=", text):
            assert "".join(name) in {*Settings.model_fields, "replace"}, f"{page}: {name}"


@pytest.mark.parametrize("page", ["docs/langchain.md", "docs/llamaindex.md"])
def test_every_name_that_takes_the_place_of_another_exists(page) -> None:
    pytest.importorskip("langchain", reason="the extra langchain is missing")
    pytest.importorskip("llama_index.core", reason="the extra llamaindex is missing")
    import langchain_memlayer
    import llamaindex_memlayer

    lines = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    assert len(lines) > 6
    named = set(re.findall(r"\b(Memlayer\w+|with_memory|create_\w+)\b", "\n".join(lines)))
    assert len(named) > 4
    for name in named:
        assert hasattr(langchain_memlayer, name) or hasattr(llamaindex_memlayer, name), name


def test_every_page_is_in_the_navigation_and_there_are_few() -> None:
    listed = re.findall(r"^ +- ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {page.removeprefix("docs/") for page in PAGES} - {"README.md"}
    assert {"index.md"} | pages == set(listed)
    assert len([page for page in pages if not page.startswith("api/")]) <= 12


def test_every_command_that_a_page_names_exists() -> None:
    named = {name for text in PAGES.values() for name in re.findall(r"`memlayer (\w+)", text)}
    assert {"reindex", "work", "export"} <= named <= {*COMMANDS, "COMMAND"}


@pytest.mark.parametrize("package", ["memlayer_core", "langchain_memlayer", "llamaindex_memlayer"])
def test_every_public_name_is_in_the_api_reference(package) -> None:
    module = pytest.importorskip(package, reason=f"{package} is not installed")
    pages = "".join(text for page, text in PAGES.items() if page.startswith("docs/api/"))
    listed = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    assert {name for name in module.__all__ if f"{package}.{name}" not in listed} <= {"MemlayerError"}


@pytest.mark.slow
def test_the_site_is_built_strictly_and_loads_nothing_from_the_network(tmp_path) -> None:
    command = [Path(sys.executable).parent / "mkdocs", "build", "--strict", "-d", tmp_path / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    site = {page.relative_to(tmp_path / "site"): page.read_text() for page in tmp_path.rglob("*.html")}
    listed = (tmp_path / "site" / "llms.txt").read_text()
    for page in PAGES:
        place = "index.html" if page == "README.md" else page.removeprefix("docs/").replace(".md", ".html")
        assert Path(place) in site, page
        assert f"]({place})" in listed, page
    loads = r"<(?:script|img|iframe|source)[^>]*https?://|<link[^>]*stylesheet[^>]*https?://"
    for page, text in site.items():
        assert not re.search(loads, text), page
    assert "Called after each page" in site[Path("api/core.html")]  # the docstrings are there


@pytest.mark.requirement("F07")
def test_the_concepts_name_the_limit_that_suits_most_chats() -> None:
    assert "four to ten rounds suit most chats" in " ".join(PAGES["docs/concepts.md"].split())


# The README


def test_the_two_commands_of_the_readme_make_their_own_environment() -> None:
    commands = re.findall(r"^```\n(python3 .*)\n```$", README, re.MULTILINE)
    assert [command.split("/")[-1] for command in commands] == ["memlayer demo", "pytest"]
    for command in commands:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e '.[")


def test_each_of_the_readmes_five_numbers_is_in_the_full_tables() -> None:
    table = README[README.index("## Measured") : README.index("## When not to use it")]
    rows = [line for line in table.splitlines() if "docs/measuring.md#" in line]
    assert len(rows) == 5
    for row in rows:
        for number in re.findall(r"[\d.]+", row.rstrip("| ").rpartition("|")[2]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", PAGES["docs/measuring.md"]), row


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 120


# The page about commands


@pytest.mark.slow
def test_the_examples_of_the_page_about_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", COMMAND_PAGE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", *["sh"] * 4]
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "cli.md", "exec"), {})
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            shown = run(*arguments)
            assert program == "memlayer"
            assert shown.exit_code == 0, f"{line}: {shown.output}"
            assert shown.stdout, line


def test_the_table_of_commands_and_the_readme_have_each_command() -> None:
    table = "".join(re.findall(r"^\| (`.*?`) \|", COMMAND_PAGE, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", table)) == COMMANDS
    listed = re.search(r"`memlayer --help`\s+lists the commands: (.*?)\.", README, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == COMMANDS


def test_the_exit_codes_of_the_page_are_those_of_the_help() -> None:
    codes = re.findall(r"^\| (\d+) \|", COMMAND_PAGE, re.MULTILINE)
    assert codes == re.findall(r"(\d+)(?=[: ])(?!%)", EXIT_CODES)
