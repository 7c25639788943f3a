"""The page about facts that a model reads tells the truth: its examples run, and its numbers are those of the settings."""

from __future__ import annotations

import re
from pathlib import Path

from memlayer_core.settings import Settings

PAGE = (Path(__file__).parents[1] / "docs" / "learning.md").read_text(encoding="utf-8")


def test_its_examples_run() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "learning.md", "exec"), names)
        names["memory"].close()


def test_its_table_has_each_setting_with_its_default() -> None:
    listed = dict(re.findall(r"^\| (`.*?`) \| (.*?) \|", PAGE, re.MULTILINE))
    rows = {name: value for names, value in listed.items() for name in re.findall(r"`(\w+)`", names)}
    settings = Settings()
    wanted = [name for name in Settings.model_fields if name.startswith(("extraction_", "model_"))]
    assert set(rows) == set(wanted) - {"model_config"}
    for name in wanted:
        value = getattr(settings, name)
        assert rows[name] == ("no limit" if value is None else f"{value:,g}")
    assert f"{settings.job_attempts:d}" == "12"
    assert "after twelve times" in PAGE
