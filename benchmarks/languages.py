"""What recall finds in seven languages: short facts by paraphrased questions.

`data/languages.json` has 40 everyday facts in each language, the same ones, each with a question in other words; and
questions and small talk that nothing of it answers. Each language's facts are one user's.

- `found`: the facts that are among the first five hits of their question (`Memory.search`);
- `in_context`: those that `chat.context` tells a model that is asked their question in another session;
- `unrelated`, `small_talk`: the share of these for which the context recalls nothing.

Goals, for the multilingual embedder: in each language at least 34 of 40 facts are found and 30 told in the context, 33 on average.

Usage: python benchmarks/languages.py [--embedder NAME] [--quick] [--json] [--check]
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from goals import goal, options, tell

from memlayer_core import Memory, Message, Settings
from memlayer_core.models import multilingual
from memlayer_core.models.minilm import folder, is_present

DATA = Path(__file__).resolve().parent / "data"
EMBEDDERS = ("hashing", "minilm", "multilingual")
FACTS = json.loads((DATA / "languages.json").read_text(encoding="utf-8"))
FOUND, TOLD, MEAN = 34, 30, 33


def recalled(memory, language, question):
    """Return what a context tells of other sessions."""
    return memory.chat(user_id=language, session_id="another").context(question).recall or ""


def measure_facts(embedder, languages):
    settings = Settings(durability="normal")
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="memlayer-bench-") as where,
        Memory.open(where, embedder=embedder, tokenizer="estimate", settings=settings) as memory,
    ):
        for language in languages:
            memory.chat(user_id=language, session_id="facts").add_messages(
                Message("user", row["fact"], id=f"{language}-{number}")
                for number, row in enumerate(FACTS[language]["facts"])
            )
        memory.flush()
        for language in languages:
            found[language] = of_facts(memory, language, FACTS[language])
    return found


def of_facts(memory, language, data):
    def first(question):
        return {
            turn for hit in memory.search(question, user_id=language, limit=5) for turn in hit.message_ids
        }

    asked = list(enumerate(data["facts"]))
    silent = {
        kind: round(sum(not recalled(memory, language, text) for text in data[kind]) / len(data[kind]), 3)
        for kind in ("unrelated", "small_talk")
    }
    return {
        "found": sum(f"{language}-{number}" in first(row["question"]) for number, row in asked),
        "in_context": sum(row["fact"] in recalled(memory, language, row["question"]) for _, row in asked),
        **silent,
    }


def show(result):
    print(
        f"{result['embedder']}; of 40 facts: found in the first five, and told in the context; silent shares\n"
    )
    print(f"{'':>14}{'found':>10}{'context':>10}{'unrelated':>12}{'small talk':>12}")
    for language, of_one in result["facts"].items():
        print(
            f"{language:>14}{of_one['found']:>10}{of_one['in_context']:>10}"
            f"{of_one['unrelated']:>12.0%}{of_one['small_talk']:>12.0%}"
        )


def goals_of_facts(facts):
    told = [of_one["in_context"] for of_one in facts.values()]
    found = min(of_one["found"] for of_one in facts.values())
    yield goal("facts found in the worst language", found, at_least=FOUND)
    yield goal("facts told in the context in the worst language", min(told), at_least=TOLD)
    yield goal("facts told in the context on average", statistics.mean(told), at_least=MEAN)


def main():
    parser = options(__doc__, "two languages")
    parser.add_argument("--embedder", choices=EMBEDDERS, default="hashing")
    asked = parser.parse_args()
    if asked.embedder == "minilm" and not is_present(folder()):
        sys.exit(f"The MiniLM model is not in {folder()}. Open a memory with it once while online.")
    if asked.embedder == "multilingual" and not multilingual.is_present():
        sys.exit(f"The multilingual embedder is not installed: {multilingual.EXTRA}")
    facts = measure_facts(asked.embedder, list(FACTS)[: 2 if asked.quick else None])
    result = {
        "embedder": asked.embedder,
        "facts": facts,
        "goals": list(goals_of_facts(facts)) if asked.embedder == "multilingual" else [],
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
