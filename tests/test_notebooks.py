"""Every notebook runs from top to bottom without a network, and shows what is committed with it.

`MEMLAYER_TEST_REFRESH=1 pytest -n 0 -m slow tests/test_notebooks.py` runs them and writes their outputs.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from offline import Offline

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REFRESH = "MEMLAYER_TEST_REFRESH" in os.environ
VARIES = {
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b": "uuid",
    r"\b[0-9a-f]{8}-[0-9a-f]{3}…": "uuid…",
    r"\b[0-9a-f]{32}\b": "hex",
    r"\bmsg_\w{12,}|\brun-+[\w-]+|\bcall_\w{12,}|\bat 0x[0-9a-f]+": "id",
    r"\b[\d,.]+ (?:ms|seconds)\b": "time",
    r"\b20\d\d-(?:09|1\d)-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?|\b202[7-9]-[\d-]+(?: \d\d:\d\d)?": "day",
}
"""What is of another run. Times that a notebook chooses are before September 2026, so they are compared."""

ONE_KEY = """
from memlayer_core.runtime import Runtime

Runtime._key = lambda *_: "0123abcd"
"""
"""Makes all blocks bear one key: how many tokens a random one costs is random, too, and so would be each sum with it."""


def text_of(outputs: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a cell shows as text, without what varies by nature; of a picture, that there is one."""
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        shown = {"text/plain": output["text"]} if "text" in output else dict(output.get("data", {}))
        if any("widget" in kind for kind in shown):
            continue  # a progress bar, where a machine is slow
        if "text/html" in shown or "image/png" in shown:
            shown.pop("text/plain", None)
        for kind, said in sorted(shown.items()):
            text = "" if kind.startswith("image/") else "".join(said)
            for pattern, name in VARIES.items():
                text = re.sub(pattern, name, text)
            yield f"{kind}: {text}"


def shown(cells: list[Mapping[str, Any]]) -> list[str]:
    """Return what each cell shows; neighbouring prints are one, as they may come in any portions."""
    return ["\n".join(text_of(cell.get("outputs", []))).replace("\ntext/plain: ", "") for cell in cells]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs_offline_and_shows_what_is_committed(path, tmp_path) -> None:
    import llama_index.core  # it brings a table of tokens, so that all machines count alike
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    before = shown([cell for cell in notebook.cells if cell.cell_type == "code"])
    offline = Offline(tmp_path)
    startup = tmp_path / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "one_key.py").write_text(ONE_KEY)
    environment = {
        **offline.environment,
        "PYTHONPATH": os.pathsep.join([offline.environment["PYTHONPATH"], str(ROOT)]),
        "TIKTOKEN_CACHE_DIR": str(Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"),
    }
    client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)
    assert offline.tried == []
    if REFRESH:
        for cell in notebook.cells:
            cell.metadata = nbformat.NotebookNode()  # when it ran is nobody's business
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, path)
    else:
        stale = f"the outputs are stale; look at them, and run: {(__doc__ or '').split('`')[1]}"
        assert shown([cell for cell in notebook.cells if cell.cell_type == "code"]) == before, stale


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_lesson_with_outputs_of_no_machine(path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert cells[0]["cell_type"] == "markdown"
    assert len(code) >= 6
    assert max(len(cell["source"]) for cell in code) <= 32
    assert sum(bool(cell["outputs"]) for cell in code) >= 5
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert "error" not in kinds
    assert not [output for cell in code for output in cell["outputs"] if output.get("name") == "stderr"]
    banned = r"(?:^|[\s'\"(=])/(?:home|root|Users|tmp|work|private|var)/|site-packages|\x1b\["
    assert not re.search(banned, "\n".join(shown(code)))


def test_the_lessons_are_there() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{at:02}" for at, _ in enumerate(NOTEBOOKS, 1)]
