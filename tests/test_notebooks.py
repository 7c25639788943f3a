"""Every notebook runs from top to bottom, offline, and holds no output of anybody's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) == 10
    assert not any(cell.outputs or cell.execution_count for cell in code), "clear the outputs before a commit"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        "".join(
            output.get("data", {}).get("text/html", "") + output.get("text", "") for output in cell.outputs
        )
        for cell in code
    ]
    assert any("<svg" in html for html in shown)
    assert any("I am allergic to nuts" in html for html in shown)
    assert "2 hit(s)" in shown[3], "the first search finds what was said"
    assert "I am allergic to nuts" in shown[3]
    assert "0 job(s) queued" in shown[-1]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
