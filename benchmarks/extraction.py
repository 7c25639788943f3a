"""What becomes of what a language model says about messages: a scripted model stands in for it, right and wrong.

Updates (`--updates`, the form of Letta's core-memory update set): a user says ten facts, and later a statement that contradicts
one of them. The model proposes each fact, and then names the fact that the statement replaces: the right one; and, in another
run, in every tenth case a wrong one. Told are how often the right fact is closed, and how often a wrong one is.

Talks (`--talks`, a folder in BEAM's format): the model proposes every sentence of every user turn, without a key. Told are calls
(without the one for the last few turns of a talk) and tokens per 100 turns; of the questions about knowledge that changed, how often the newer statement is in the context, and the
older one is not, or stands there with an earlier date; of those about contradictions, how often both statements are there, and how
often they are marked as a conflict in the ledger. Where more than two turns are named, two of them must be there.

Usage: python benchmarks/extraction.py [--updates FILE] [--talks FOLDER] [--embedder NAME] [--quick] [--json] [--check]
"""

import json
import random
import re
from collections import Counter
from pathlib import Path

from goals import goal, options, tell
from learning import SAID_AT, cases_of
from talks import read_talks

from memlayer_core import Memory, Message, Settings
from memlayer_core.storage.terms import sentences

EVERY = 10
TURNS = Settings().extraction_turns
SETTINGS = Settings(index_delay=0, durability="normal", episodes=False, extraction_turns=20)
NUMBERED = re.compile(r"^\[(\d+)\] \d{4}-\d\d-\d\d user: (.*)$", re.MULTILINE)
FACT = re.compile(r'^(\d+)\. .*? "(.*)"$', re.MULTILINE)


def numbered(prompt):
    """Return the numbered lines of a prompt."""
    return [(int(number), text) for number, text in NUMBERED.findall(prompt)]


def reply(operations):
    return json.dumps({"operations": operations}, ensure_ascii=False)


class Judge:
    """Proposes each fact that is said; of a statement that is known, says which fact it replaces."""

    def __init__(self, cases, wrong_every):
        self.targets = {}
        chance = random.Random(7)
        self.is_wrong = set()
        for number, (statement, facts, right) in enumerate(cases):
            places = sorted(right)
            if wrong_every and number % wrong_every == 0:
                places = [chance.choice([place for place in range(len(facts)) if place not in right])]
                self.is_wrong.add(number)
            self.targets[one_line(statement)] = [one_line(facts[place]) for place in places]

    def __call__(self, prompt):
        known = {text: int(number) for number, text in FACT.findall(prompt)}
        found = []
        for number, text in numbered(prompt):
            operation = {"op": "add", "value": text, "quote": text, "messages": [number]}
            targets = [known[one[:80]] for one in self.targets.get(text, ()) if one[:80] in known]
            found.append(operation | ({"op": "update", "fact": targets[0]} if targets else {}))
        return reply(found)


def one_line(text):
    return " ".join(text.split())


def updates(cases, wrong_every=0):
    """Return the shares of cases in which the right fact, or a wrong one, is closed or marked."""
    judge, count = Judge(cases, wrong_every), Counter()
    with Memory.in_memory(extractor=judge, settings=SETTINGS) as memory:
        for step in (0, 1):
            for number, (statement, facts, _) in enumerate(cases):
                said = [statement] if step else facts
                chat = memory.chat(user_id=f"user {number}", session_id=f"{number}-{step}")
                at = SAID_AT.replace(year=SAID_AT.year + step)
                chat.add_messages([Message("user", one_line(text), created_at=at) for text in said])
            memory.flush()
        for number, (_, facts, right) in enumerate(cases):
            every = memory.records(user_id=f"user {number}", limit=1000)
            there = {record.raw.rstrip(".") for record in every}
            kind = "wrong judge" if number in judge.is_wrong else "right judge"
            gone = {place for place, fact in enumerate(facts) if one_line(fact).rstrip(".") not in there}
            outcomes = {entry.outcome for entry in memory.ledger(user_id=f"user {number}")}
            count[kind] += 1
            count[f"{kind}: right fact closed"] += bool(gone & right)
            count[f"{kind}: wrong fact closed"] += bool(gone - right)
            count[f"{kind}: closed or marked"] += bool(gone & right) or "conflict" in outcomes
    wrong = sum(value for name, value in count.items() if name.endswith("wrong fact closed"))
    shares = {
        name: round(value / count[name.partition(":")[0]], 4) for name, value in count.items() if ":" in name
    }
    return shares | {"wrong fact closed": round(wrong / len(cases), 4), "cases": len(cases)}


def every_sentence(prompt):
    """Propose every sentence of every numbered line, as far as it is shown."""
    return reply(
        [
            {"op": "add", "value": shown, "quote": shown, "messages": [number]}
            for number, text in numbered(prompt)
            for sentence in sentences(text)
            if (shown := sentence.strip("… "))
        ]
    )


def talk_result(talk, embedder):
    """Return the calls, tokens and counts of one talk."""
    count = Counter()
    settings = Settings(index_delay=0, durability="normal")
    with Memory.in_memory(extractor=every_sentence, embedder=embedder, settings=settings) as memory:
        chat = memory.chat(user_id="user", session_id="talk")
        ids = {}
        for start in range(0, len(talk.turns), 20):
            some = talk.turns[start : start + 20]
            receipt = chat.add_messages([Message(one.role, one.text, created_at=one.at) for one in some])
            ids |= {turn.id: name for turn, name in zip(some, receipt.ids, strict=True)}
            memory.flush()
        costs = [cost for cost in memory.costs(user_id="user") if cost.kind == "learn" and cost.calls]
        count["turns"] = sum(turn.role == "user" for turn in talk.turns)
        count["calls"] = sum(cost.calls for cost in costs) - (count["turns"] % TURNS > 0)
        count["tokens"] = sum(cost.tokens_in + cost.tokens_out for cost in costs)
        at = {ids[turn.id]: turn.at for turn in talk.turns}
        marked = conflicting(memory)
        for asked in talk.questions:
            if asked.kind not in {"knowledge_update", "contradiction_resolution"}:
                continue
            count[asked.kind] += 1
            fresh = memory.chat(user_id="user", session_id="a fresh one")
            shown = [piece for piece in fresh.context(asked.text).pieces if piece.kind == "recall"]
            told = {one for piece in shown for one in piece.message_ids}
            evidence = sorted((ids[one] for one in asked.evidence), key=lambda one: (at[one], one))
            if asked.kind == "knowledge_update":
                newest = max(at[one] for one in evidence)
                newer = {one for one in evidence if at[one] == newest}
                older = set(evidence) - newer
                count["newer told"] += bool(newer & told)
                count["older not told, or with its date"] += not older & told or bool(newer & told)
            else:
                count["both told"] += len(told.intersection(evidence)) >= min(2, len(evidence))
                count["marked"] += bool(set(evidence) & marked)
    return count


def conflicting(memory):
    """Return the ids of the messages whose statements are in conflict."""
    entries = memory.ledger(user_id="user", limit=100_000)
    return {one.evidence.message_id for one in entries if one.outcome == "conflict" and one.evidence}


def talks(every, embedder):
    total = sum((talk_result(talk, embedder) for talk in every), Counter())
    hundreds = total["turns"] / 100
    changed, contradicted = total["knowledge_update"], total["contradiction_resolution"]
    return {
        "turns": total["turns"],
        "calls per 100 turns": round(total["calls"] / hundreds, 1),
        "tokens per 100 turns": round(total["tokens"] / hundreds),
        "newer told": round(total["newer told"] / max(1, changed), 3),
        "older not told, or with its date": round(
            total["older not told, or with its date"] / max(1, changed), 3
        ),
        "both told": round(total["both told"] / max(1, contradicted), 3),
        "marked": round(total["marked"] / max(1, contradicted), 3),
    }


def goals_of(result):
    goals = []
    for name, shares in result["updates"].items():
        goals.append(goal(f"{name}: wrong fact closed", shares["wrong fact closed"], at_most=0.01))
    if told := result.get("talks"):
        goals += [
            goal("calls per 100 turns", told["calls per 100 turns"], at_most=10),
            goal("tokens per 100 turns", told["tokens per 100 turns"], at_most=25_000),
            goal("newer told", told["newer told"], at_least=0.95),
            goal("older not told, or dated", told["older not told, or with its date"], at_least=0.85),
            goal("both of a contradiction told", told["both told"], at_least=0.85),
            goal("contradiction marked", told["marked"], at_least=0.85),
        ]
    return goals


def show(result):
    for name, shares in result["updates"].items():
        print(f"updates, {name}")
        for share, value in shares.items():
            print(f"{share:>40}{value:>10}")
    for share, value in result.get("talks", {}).items():
        print(f"{share:>40}{value:>10}")


def main():
    parser = options(__doc__, "30 cases of each half, one talk")
    parser.add_argument("--updates", type=Path, help="a file in the form of Letta's core-memory update set")
    parser.add_argument("--talks", type=Path, help="a folder in BEAM's format")
    parser.add_argument("--embedder", default="auto", help="what makes the vectors (default: auto)")
    asked = parser.parse_args()
    result = {"updates": {}}
    if asked.updates is not None:
        for name, cases in zip(("first half", "second half"), cases_of(asked.updates), strict=True):
            some = cases[:30] if asked.quick else cases
            result["updates"][f"{name}, always right"] = updates(some)
            result["updates"][f"{name}, wrong in every tenth"] = updates(some, EVERY)
    if asked.talks is not None:
        every = read_talks(asked.talks)
        result["talks"] = talks(every[:1] if asked.quick else every, asked.embedder)
    result["goals"] = goals_of(result)
    tell(result, asked, show)


if __name__ == "__main__":
    main()
