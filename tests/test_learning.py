"""The sentences that `benchmarks/learning.py` reads, and what it tells."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from memlayer_core.records.facts import MODALITIES
from memlayer_core.records.rules.keys import known_keys

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SENTENCES = json.loads((BENCHMARKS / "data" / "facts.json").read_text("utf-8"))
CLASSES = {
    "plain",
    "hedged",
    "hypothetical",
    "negated",
    "quoted",
    "question",
    "assistant",
    "irony",
    "third",
    "chatter",
}


def test_the_sentences_are_many_in_both_languages_and_of_every_class() -> None:
    assert min(Counter(row["language"] for row in SENTENCES).values()) >= 150
    for language in ("en", "zh"):
        assert {row["class"] for row in SENTENCES if row["language"] == language} >= CLASSES
    assert len({row["id"] for row in SENTENCES}) == len(SENTENCES)


def test_every_label_has_a_known_key_and_modality() -> None:
    for fact in (fact for row in SENTENCES for fact in row["facts"]):
        assert fact["key"] is None or fact["key"].partition(":")[0] in known_keys()
        assert fact.get("modality", "states") in MODALITIES


def test_what_is_not_stated_has_no_facts() -> None:
    silent = {"hedged", "hypothetical", "quoted", "question", "assistant", "irony", "chatter"}
    assert [row["id"] for row in SENTENCES if row["class"] in silent and row["facts"]] == []


def test_the_benchmark_tells_precision_and_what_becomes_of_contradicted_facts(tmp_path) -> None:
    facts = [
        f"Ina Bloom {does}."
        for does in ("paints boats", "sings in a choir", "was born in Cork", "owns a mill")
    ]
    cases = [
        ("Ina Bloom was born in Oslo.", facts, [2]),
        ("Odo Farr was born in Bath.", [fact.replace("Ina Bloom", "Odo Farr") for fact in facts], [2]),
        *(
            (f"Person{n} sold a mill.", [f"Person{n} sings.", f"Person{n} owns a mill."], [1])
            for n in range(12)
        ),
    ]
    path = tmp_path / "updates.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(
                {"agent_args": {"extra": {"contradicting_fact": s, "facts": f, "supporting_fact_indices": r}}}
            )
            for s, f, r in cases
        ),
        "utf-8",
    )
    script = [sys.executable, str(BENCHMARKS / "learning.py"), "--updates", str(path), "--json"]
    result = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert result["sentences"]["en"]["precision"] >= 0.95
    assert sum(half["cases"] for half in result["updates"].values()) == len(cases)
    assert {"goal", "measured", "met"} <= result["goals"][0].keys()
