"""What recall finds in Chinese beside English: the same two conversations, told in both languages.

`data/bilingual.json` holds a talk of two friends and one of a user with an assistant, over a year each, and
questions whose evidence is known: the ids of the turns that answer them, the same ids in both languages. Every
talk is stored as one user's, session by session, and each question is asked with `Memory.search`:

- `first_10`: the share of the evidence turns that are among the first ten hits;
- `in_1024`: the share that is among the hits that fit into 1,024 tokens (memlayer's estimate, so that the run is
  the same with any tokenizer at hand);
- `silent`: the share of the unrelated questions, which no turn answers, that bring nothing back.

A question such as "what was wrong last month?" has a `now` in the file, and is asked as if it were then.

Goal: in the first ten, Chinese is at most ten points behind English. MiniLM, which was trained on English texts,
misses it.

Usage: python benchmarks/bilingual.py [--embedder hashing|minilm] [--quick] [--json] [--check]
"""

import json
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from goals import goal, options, tell

from memlayer_core import Memory, Message, Settings
from memlayer_core.models.minilm import folder, is_present

DATA = Path(__file__).resolve().parent / "data" / "bilingual.json"
LANGUAGES = {"en": "English", "zh": "Chinese"}
WAYS = {"first_10": {"limit": 10}, "in_1024": {"limit": 200, "token_limit": 1024}}
GOAL = 0.10


def store(memory, talk):
    for session in talk["sessions"]:
        began = datetime.fromisoformat(session["at"])
        memory.chat(user_id=talk["id"], session_id=session["id"]).add_messages(
            Message(
                turn["role"],
                turn["text"],
                id=turn["id"],
                name=turn["name"],
                created_at=began + timedelta(minutes=minute),
            )
            for minute, turn in enumerate(session["turns"])
        )


def found_by(memory, talk, question, way):
    now = datetime.fromisoformat(question["now"]) if question["now"] else None
    hits = memory.search(question["question"], user_id=talk["id"], now=now, **WAYS[way])
    return {turn for hit in hits for turn in hit.message_ids}


def asked_of(memory, talk):
    """Return of each question its kind, how many turns are its evidence, and how many of them each way found."""
    answers = []
    for question in talk["questions"]:
        wanted = set(question["evidence"])
        found = {way: len(wanted & found_by(memory, talk, question, way)) for way in WAYS}
        answers.append({"kind": question["kind"], "evidence": len(wanted), **found})
    return answers


def share(answers):
    evidence = sum(answer["evidence"] for answer in answers)
    found = {way: round(sum(answer[way] for answer in answers) / evidence, 3) for way in WAYS}
    return {"questions": len(answers), **found}


def measure(talks, embedder):
    settings = Settings(index_delay=0, durability="normal")
    found, silent = {language: {} for language in LANGUAGES}, {language: [] for language in LANGUAGES}
    with (
        tempfile.TemporaryDirectory(prefix="memlayer-bench-") as where,
        Memory.open(
            where, embedder=embedder, tokenizer="estimate", summarizer=None, settings=settings
        ) as memory,
    ):
        for talk in talks:
            store(memory, talk)
        memory.flush()
        for talk in talks:
            found[talk["language"]][talk["kind"]] = asked_of(memory, talk)
            silent[talk["language"]] += [
                not memory.search(question, user_id=talk["id"], limit=10) for question in talk["unrelated"]
            ]
    return {language: told(found[language], silent[language]) for language in LANGUAGES}


def told(by_talk, silent):
    answers = [answer for some in by_talk.values() for answer in some]
    kinds = dict.fromkeys(answer["kind"] for answer in answers)
    return {
        "all": share(answers),
        "conversations": {kind: share(some) for kind, some in by_talk.items()},
        "kinds": {kind: share([one for one in answers if one["kind"] == kind]) for kind in kinds},
        "silent": {"questions": len(silent), "share": round(sum(silent) / len(silent), 3)},
    }


def rows(of_one):
    yield "all", of_one["all"]
    yield from of_one["conversations"].items()
    yield from of_one["kinds"].items()


def show(result):
    print(f"{result['embedder']}; share of the evidence turns in the first ten, and within 1,024 tokens\n")
    print(f"{'':>14}{'questions':>10}" + "".join(f"{name:>16}" for name in LANGUAGES.values()))
    by_language = [dict(rows(of_one)) for of_one in result["languages"].values()]
    for name, cell in by_language[0].items():
        cells = (f"{one[name]['first_10']:.0%}  {one[name]['in_1024']:.0%}" for one in by_language)
        print(f"{name:>14}{cell['questions']:>10}" + "".join(f"{one:>16}" for one in cells))
    unrelated = [of_one["silent"] for of_one in result["languages"].values()]
    shares = "".join(f"{one['share']:>16.0%}" for one in unrelated)
    print(f"{'unrelated':>14}{unrelated[0]['questions']:>10}{shares}  that bring nothing back")


def main():
    parser = options(__doc__, "the talk of the friends only")
    parser.add_argument("--embedder", choices=("hashing", "minilm"), default="hashing")
    asked = parser.parse_args()
    if asked.embedder == "minilm" and not is_present(folder()):
        sys.exit(f"The MiniLM model is not in {folder()}. Open a memory with it once while online.")
    talks = json.loads(DATA.read_text(encoding="utf-8"))
    languages = measure(
        [talk for talk in talks if talk["kind"] == "friends" or not asked.quick], asked.embedder
    )
    behind = languages["en"]["all"]["first_10"] - languages["zh"]["all"]["first_10"]
    result = {
        "embedder": asked.embedder,
        "languages": languages,
        "goals": [goal("how far Chinese is behind English in the first ten", behind, at_most=GOAL)],
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
