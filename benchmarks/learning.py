"""What is learned without a model: facts from sentences, and which fact a new statement contradicts.

Sentences: `data/facts.json` has 407 English and Chinese sentences, written for this project before any pattern was, each
with the facts that it states, or none: plain ones, hedges, hypotheses, quotations, jokes, questions, words of an
assistant, third persons, chatter. A fact is right if its subject, key, value, modality and end are. Precision and recall
are told by language and by class. Every third sentence was not looked at while patterns were written: "held back".

Updates: with `--updates`, a file in the form of Letta's core-memory update set: ten facts, a statement that contradicts
one of them, and which. Cases with the same facts stay together; thresholds were chosen on the cases of every second set
of facts ("first half"), and the others were only measured. Told are how often the contradicted fact is the first or
among the first three, and how often the right fact, or a wrong one, is superseded or marked as a conflict. Negatives are
each statement against its own facts without the contradicted ones, and against the facts of five other cases.
"Always the first" is a rule that closes the best candidate in every case; it must miss the goals.

Usage: python benchmarks/learning.py [--updates FILE] [--quick] [--json] [--check]
"""

import json
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from goals import goal, options, tell

from memlayer_core.records.rules.contradictions import contradicts
from memlayer_core.records.rules.extract import extract_facts

SENTENCES = Path(__file__).parent / "data" / "facts.json"
SAID_AT = datetime(2026, 3, 10, 9, tzinfo=UTC)
OTHERS = 5


def facts_of(row):
    """Return the facts that a row states, and those that are read in it."""
    stated = {
        (
            one.get("subject", "user"),
            one["key"],
            one["value"].casefold(),
            one.get("modality", "states"),
            one.get("ends", False),
        )
        for one in row["facts"]
    }
    found = extract_facts(row["text"], SAID_AT, role=row.get("role", "user"))
    return stated, {(one.subject, one.key, one.value.casefold(), one.modality, one.ends) for one in found}


def extraction(rows):
    """Return precision, recall and counts of some sentences."""
    right = found = stated = 0
    for row in rows:
        expected, read = facts_of(row)
        right, found, stated = right + len(expected & read), found + len(read), stated + len(expected)
    return {
        "sentences": len(rows),
        "stated": stated,
        "found": found,
        "right": right,
        "precision": round(right / found, 3) if found else 1.0,
        "recall": round(right / stated, 3) if stated else 1.0,
    }


def sentences():
    """Return what is read in the sentences: by language, by what is held back, and by class."""
    rows = json.loads(SENTENCES.read_text("utf-8"))
    tables = {}
    for language in ("en", "zh"):
        own = [row for row in rows if row["language"] == language]
        held = [row for row in own if int(row["id"][-3:]) % 3 == 0]
        tables[language] = extraction(own)
        tables[f"{language}, held back"] = extraction(held)
        for name in dict.fromkeys(row["class"] for row in own):
            tables[f"{language}, {name}"] = extraction([row for row in own if row["class"] == name])
    return tables


def cases_of(path):
    """Return (statement, facts, places of the contradicted ones) of each case, and the two halves by sets of facts."""
    rows = [json.loads(line)["agent_args"]["extra"] for line in path.read_text("utf-8").splitlines()]
    cases = [(row["contradicting_fact"], row["facts"], set(row["supporting_fact_indices"])) for row in rows]
    order = {facts: place for place, facts in enumerate(sorted({tuple(facts) for _, facts, _ in cases}))}
    return [[case for case in cases if order[tuple(case[1])] % 2 == half] for half in (0, 1)]


def updates(cases):
    """Return the shares of cases in which the right or a wrong fact is first, superseded or marked."""
    count = Counter()
    chance = random.Random(5)
    for statement, facts, right in cases:
        ranked = contradicts(statement, facts)
        which = "right" if ranked[0].place in right else "wrong"
        count[f"{which} first"] += 1
        count["right among three"] += any(one.place in right for one in ranked[:3])
        count[f"{which} {ranked[0].verdict}"] += 1
        rest = [fact for place, fact in enumerate(facts) if place not in right]
        count[f"own {contradicts(statement, rest)[0].verdict}"] += 1
        strangers = [other for _, other, _ in cases if other != facts]
        for other in chance.sample(strangers, OTHERS):
            count[f"other {contradicts(statement, other)[0].verdict}"] += 1 / OTHERS
    names = (
        "right first", "wrong first", "right among three", "right supersede", "right conflict", "wrong supersede",
        "wrong conflict", "own supersede", "own conflict", "other supersede", "other conflict",
    )  # fmt: skip
    return {"cases": len(cases), **{name: round(count[name] / len(cases), 4) for name in names}}


def goals_of(result):
    found = result["sentences"]
    goals = [goal(f"precision, {lang}", found[lang]["precision"], at_least=0.95) for lang in ("en", "zh")]
    for name, shares in result["updates"].items():
        marked = shares["right supersede"] + shares["right conflict"]
        goals += [
            goal(f"{name}: contradicted fact among three", shares["right among three"], at_least=0.985),
            goal(f"{name}: right fact superseded or marked", marked, at_least=0.9),
            goal(f"{name}: wrong fact superseded", shares["wrong supersede"], at_most=0.01),
            goal(f"{name}: wrong fact marked", shares["wrong conflict"], at_most=0.05),
            goal(f"{name}: superseded without a contradicted fact", shares["own supersede"], at_most=0.01),
            goal(f"{name}: superseded in facts of others", shares["other supersede"], at_most=0.01),
            goal(f"{name}: wrong fact closed by 'always the first'", shares["wrong first"], at_least=0.0101),
        ]
    return goals


def show(result):
    print(f"{'sentences':>24}{'number':>10}{'stated':>10}{'found':>10}{'precision':>12}{'recall':>10}")
    for name, one in result["sentences"].items():
        cells = f"{one['sentences']:>10}{one['stated']:>10}{one['found']:>10}"
        print(f"{name:>24}{cells}{one['precision']:>12.3f}{one['recall']:>10.3f}")
    for name, shares in result["updates"].items():
        print(f"\nupdates, {name}: {shares['cases']} cases")
        for share, value in shares.items():
            if share != "cases":
                print(f"{share:>24}{value:>10.2%}")


def main():
    parser = options(__doc__, "50 cases of each half")
    parser.add_argument("--updates", type=Path, help="cases in the form of Letta's core-memory update set")
    asked = parser.parse_args()
    halves = [] if asked.updates is None else cases_of(asked.updates)
    names = ("first half", "second half")
    result = {
        "sentences": sentences(),
        "updates": {
            name: updates(cases[:50] if asked.quick else cases)
            for name, cases in zip(names, halves, strict=False)
        },
    }
    result["goals"] = goals_of(result)
    tell(result, asked, show)


if __name__ == "__main__":
    main()
