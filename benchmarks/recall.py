"""Which of the lines that a question needs a search brings back, and what of them a model is shown. No model judges anything.

Takes folders in our own format (`data/talks`, measured if nothing else is named), files in LoCoMo's and folders in BEAM's
(`talks.py` says what they look like). Each talk is stored as one user's, in a store that holds nothing else, under the dates and
names that the file has; then each of its questions is asked. In percent:

- `first 8`, `first 10`: the needed lines among the first hits of a search for twenty;
- `1,024 t`: those among the first 200 hits that fit into 1,024 tokens in their order; a line costs the cl100k tokens of
  "speaker: text" and one more.

Of memlayer also what a model is shown, through `chat.context` with its defaults in a fresh session of the same user, by kinds of
questions: the needed lines, what bears on the question (of a remark, that is all), the share of told lines that do (`precision`),
lines, tokens, and the share of questions for which nothing is told. A follow-up is asked behind the round before it.

Talks are measured with the embedder that a new store would have in their language, MiniLM for English and the multilingual one for others,
and with hashing; the others with MiniLM and hashing. Beside memlayer: Chroma alone, BM25 alone and, with `--peers`, what else is
installed of `searchers.py`; with `--scorer FILE` also a class `Scorer` with `index(turns)` and `search(query, k)`.

Of our talks a third was kept back while weights and bars were chosen: `--reserve` measures these alone.

Usage: python benchmarks/recall.py [PATH…] [--peers] [--scorer FILE] [--only NAME…] [--reserve | --development]
       [--embedder NAME] [--conversations N] [--quick] [--json] [--check]
"""

import statistics
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import contexts
from goals import goal, options, tell
from searchers import PEERS, Bm25, Chroma, Memlayer, scorer_of
from talks import read_talks

from memlayer_core import MemlayerError, Settings
from memlayer_core.models import minilm, multilingual
from memlayer_core.models.embed import resolve_embedder
from memlayer_core.models.tokens import token_counter

USER = "somebody"
TALKS = Path(__file__).resolve().parent / "data" / "talks"
RESERVE = ("en-giulia", "de-selin", "zh-laohan")
RANKED, WIDE, TOKENS = 20, 200, 1024
COUNT = token_counter("cl100k_base")
COLUMNS = {"first_8": "first 8", "first_10": "first 10", "in_1024": "1,024 t"}
CONTEXT = ("questions", "needed", "bears", "precision", "lines", "tokens", "silent")
QUICK = 20  # questions
GOALS = {"question": {"silent": 3}, "small_talk": {"tokens": 80}, "task": {"tokens": 150}}
REMARK = partial(print, file=sys.stderr)


@cache
def model(name):
    return resolve_embedder(name, store_identity=None, settings=Settings())


class Vectors:
    """Embeds texts, each of them once."""

    def __init__(self, name):
        self.model, self.known = model(name), {}

    def __call__(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        self.known.update(zip(new, (vector.tolist() for vector in self.model.embed(new)), strict=True))
        return [self.known[text] for text in texts]


def best_for(language):
    """Return the embedder that a new store would have; for English MiniLM, as most stores have it."""
    if language == "en" and minilm.is_present(minilm.folder()):
        return "minilm"
    return "multilingual" if multilingual.is_present() else "hashing"


def participants(asked):
    """Return how each participant is made for a talk, by its name, and why others cannot be."""
    names = [asked.embedder] if asked.embedder else ["best", "hashing"]

    def made(which, talk):
        return best_for(talk.language) if which == "best" else which

    def ours(which, talk, folder):
        return Memlayer(folder, made(which, talk))

    def peer(kind, talk, folder):
        return kind(folder, Vectors(made(names[0], talk)))

    every = {f"{Memlayer.name}, {name}": partial(ours, name) for name in names}
    others = [
        Chroma,
        Bm25,
        *(PEERS if asked.peers else ()),
        *(scorer_of(file) for file in asked.scorer or ()),
    ]
    skipped = {one.name: reason for one in others if (reason := one.missing())}
    every |= {one.name: partial(peer, one) for one in others if one.name not in skipped}
    wanted = [
        name for name in every if not asked.only or any(word.lower() in name.lower() for word in asked.only)
    ]
    return {name: every[name] for name in wanted}, skipped


@contextmanager
def stored(make, talk):
    """Give a participant that has one conversation, in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="memlayer-bench-", ignore_cleanup_errors=True) as folder:
        searcher = make(talk, Path(folder))
        try:
            searcher.store(USER, talk.turns)
            searcher.ready()
            yield searcher
        finally:
            searcher.close()


def asked_of(who, make, talks):
    """Return what all questions found, and what contexts told of them. Says who is at it, as some take long."""
    REMARK(f"{who} …")
    found, told = [], []
    for talk in talks:
        costs = {turn.id: COUNT.text(turn.line) + 1 for turn in talk.turns}
        with stored(make, talk) as searcher:
            found += [
                answer(searcher, asked, costs)
                for asked in talk.questions
                if asked.evidence and not asked.before
            ]
            if isinstance(searcher, Memlayer):
                rows = contexts.measured(searcher.memory, USER, talk.questions)
                told += [{**row, "language": talk.language} for row in rows]
    return found, told


def answer(searcher, asked, costs):
    first = list(dict.fromkeys(searcher.search(USER, asked.text, RANKED)))
    room, taken = TOKENS, []
    for turn in dict.fromkeys(searcher.search(USER, asked.text, WIDE)):
        if costs[turn] <= room:
            room -= costs[turn]
            taken.append(turn)
    turns = {"first_8": first[:8], "first_10": first[:10], "in_1024": taken}
    return {
        name: (len(asked.evidence.intersection(some)), len(asked.evidence)) for name, some in turns.items()
    }


def summary(found, told):
    """Return the mean of the questions' shares, as LoCoMo and BEAM are measured, and the share of all lines."""
    means = {
        name: round(100 * statistics.mean(got / needed for got, needed in (one[name] for one in found)), 1)
        for name in COLUMNS
    }
    lines = {
        name: round(100 * sum(one[name][0] for one in found) / sum(one[name][1] for one in found), 1)
        for name in COLUMNS
    }
    kinds = dict.fromkeys(row["kind"] for row in told)
    shown = {kind: contexts.means([row for row in told if row["kind"] == kind]) for kind in kinds}
    for language in dict.fromkeys(row["language"] for row in told):
        for kind in ("question", "follow_up"):
            rows = [row for row in told if (row["kind"], row["language"]) == (kind, language)]
            if rows:
                shown[f"{kind}, {language}"] = contexts.means(rows)
    every = {"all": contexts.means(told)} if told else {}
    return {"questions": len(found), **means, "lines": lines, "contexts": {**every, **shown}}


def judged(data):
    """Compare what memlayer tells with its goals, for our own talks."""
    goals = []
    for name, told in data.items():
        ours = next((found for who, found in told["found"].items() if who.startswith(Memlayer.name)), None)
        shown = ours["contexts"] if ours else {}
        for kind, limits in GOALS.items():
            for column, most in limits.items() if kind in shown else ():
                goals.append(goal(f"{name}, {kind}: {column}", shown[kind][column], at_most=most))
    return goals


def show(result):
    for name, told in result["data"].items():
        print(
            f"\n{name}: {told['conversations']} conversation(s), {told['turns']:,} turns; % of the needed lines, mean of "
            "the questions (of all lines)"
        )
        print(f"{'':>32}" + "".join(f"{title:>16}" for title in COLUMNS.values()))
        for who, found in told["found"].items():
            cells = (f"{found[column]} ({found['lines'][column]})" for column in COLUMNS)
            print(f"{who:>32}" + "".join(f"{cell:>16}" for cell in cells))
        print(f"\n{'in a context':>32}" + "".join(f"{title:>11}" for title in CONTEXT))
        for who, found in told["found"].items():
            for kind, one in found["contexts"].items():
                cells = ("-" if one[column] is None else one[column] for column in CONTEXT)
                print(f"{f'{who}: {kind}'[-32:]:>32}" + "".join(f"{cell:>11}" for cell in cells))
    for who, reason in result["skipped"].items():
        print(f"{who}: SKIPPED, {reason}")


def talks_of(path, asked):
    talks = read_talks(path)
    if asked.reserve or asked.development:
        talks = [talk for talk in talks if (talk.name in RESERVE) == asked.reserve]
    talks = talks[: 1 if asked.quick else asked.conversations]
    return [replace(talk, questions=talk.questions[:QUICK]) for talk in talks] if asked.quick else talks


def main():
    parser = options(__doc__, f"the first conversation and {QUICK} questions of each file")
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="our folder, LoCoMo's file, BEAM's folder"
    )
    parser.add_argument(
        "--peers", action="store_true", help="other memories too, as far as they are installed"
    )
    parser.add_argument(
        "--scorer", nargs="+", type=Path, metavar="FILE", help="a module with a class `Scorer`"
    )
    parser.add_argument("--embedder", help="memlayer with this one alone")
    parser.add_argument("--reserve", action="store_true", help="of our talks those that were kept back")
    parser.add_argument("--development", action="store_true", help="of our talks the others")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose name holds one of these words")
    parser.add_argument("--conversations", type=int, metavar="N", help="the first N of each file")
    asked = parser.parse_args()
    made, skipped = participants(asked)
    if not made:
        sys.exit(f"Nobody is left to measure: {skipped or 'no name holds ' + ' or '.join(asked.only)}")
    data = {}
    for path in asked.paths or [TALKS]:
        try:
            talks = talks_of(path, asked)
        except MemlayerError as problem:
            sys.exit(f"{problem}\n{problem.hint}")
        data[str(path)] = {
            "conversations": len(talks),
            "turns": sum(len(talk.turns) for talk in talks),
            "found": {who: summary(*asked_of(who, make, talks)) for who, make in made.items()},
        }
    tell({"data": data, "skipped": skipped, "goals": judged(data)}, asked, show)


if __name__ == "__main__":
    main()
