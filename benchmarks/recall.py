"""Which share of a question's evidence a search brings back. No model judges anything.

Takes files in LoCoMo's format and folders in BEAM's (`talks.py` says what they look like); none is part of the
project. Each conversation is stored as one user's, a chat a session, under the dates and names that the file has;
then each of its questions is searched for, in a store that holds nothing else. In percent, as the mean over all
questions:

- `first 10`: the evidence turns among the first ten (of a search for twenty);
- `1,024 t`: those among the turns that fit into 1,024 tokens, when the first 200 are packed in their order and
  what does not fit is passed over; a turn costs the cl100k tokens of "speaker: text" and one for its line;
- `as packed`: those in what `search(limit=200, token_limit=1024)` returns, which counts the date as well.

Of memlayer also what a model is shown: through `chat.context(question)` with its defaults, in a fresh session of the
same user, at token limits of 2,000, 4,000 and 8,000: the evidence in it, the tokens of recall, the share of questions
for which nothing is recalled, of recalled tokens whose line repeats another text of the context, and of recalled turns
that are evidence; and the evidence at 8,000 by kinds.

memlayer is measured with MiniLM and with the hashing embedder, as far as MiniLM is at hand; beside it Chroma alone
and, with `--peers`, what else is installed of `searchers.py`. All of them are given the same vectors, those of
memlayer's MiniLM. Each turn is stored as "speaker: text" and searched for by the question as it is. `--ablation`
adds memlayer with each of the ingredients of its order (`memlayer_core/recall/rank.py`) left out in turn, and
with one vector for a text, however long it is.

Goals: in the first ten and in 1,024 tokens, memlayer finds at least 1.1 times what the best of the others finds. With
MiniLM a context has at least 88 % of LoCoMo's evidence at 8,000 tokens and 82 % at 2,000, and 62 % of BEAM's.

Usage: python benchmarks/recall.py FILE… [--peers] [--ablation] [--only NAME…] [--conversations N]
       [--quick] [--json] [--check]
"""

import statistics
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from unittest import mock

import contexts
from goals import goal, options, tell
from searchers import PEERS, Chroma, Memlayer
from talks import read_talks

from memlayer_core import MemlayerError, Settings
from memlayer_core.index import flow as index_flow
from memlayer_core.models import minilm
from memlayer_core.models.embed import resolve_embedder
from memlayer_core.models.tokens import token_counter
from memlayer_core.recall import search as recall_search
from memlayer_core.recall.rank import WEIGHTS

USER = "somebody"
FIRST, RANKED, WIDE = 10, 20, 200
TOKENS = 1024
COUNT = token_counter("cl100k_base")
COLUMNS = {"first_10": "first 10", "in_1024": "1,024 t", "as_packed": "as packed"}
REMARK = partial(print, file=sys.stderr)
GOAL = 1.1
LOCOMO_GOALS, BEAM_GOALS = {"2000": 82, "8000": 88}, {"8000": 62}
QUICK = 20  # questions
WHOLE = "without parts"


class Vectors:
    """Embeds texts, each of them once."""

    def __init__(self, name):
        self.model = resolve_embedder(name, store_identity=None, settings=Settings(), emit=REMARK)
        self.known = {}

    def __call__(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        self.known.update(zip(new, (vector.tolist() for vector in self.model.embed(new)), strict=True))
        return [self.known[text] for text in texts]


def participants(embedders, peers, only):
    """Return how each participant is made, by its name, and why others cannot be."""
    vectors = Vectors(embedders[0])
    made = {f"{Memlayer.name}, {name}": partial(Memlayer, embed=name) for name in embedders}
    skipped = {f"{Memlayer.name}, minilm": "the model is not at hand"} if "minilm" not in embedders else {}
    for peer in (Chroma, *(PEERS if peers else ())):
        if reason := peer.missing():
            skipped[peer.name] = reason
        else:
            made[peer.name] = partial(peer, embed=vectors)

    def wanted(name):
        return not only or any(word.lower() in name.lower() for word in only)

    return (
        {name: make for name, make in made.items() if wanted(name)},
        {name: reason for name, reason in skipped.items() if wanted(name)},
    )


def asked_of(who, make, talks):
    """Return what all conversations' questions found. Says who is at it, as some take long."""
    REMARK(f"{who} …")
    found, told = [], {limit: [] for limit in contexts.LIMITS}
    for talk in talks:
        with stored(make, talk) as searcher:
            found += answers(searcher, talk)
            if isinstance(searcher, Memlayer):
                for limit, rows in told.items():
                    told[limit] = rows + contexts.measured(searcher.memory, USER, talk.questions, limit)
    return found, told


def ablated(make, talks):
    """Return what the questions found with every ingredient of the order, and without each of them."""
    weights = {"with all": WEIGHTS} | {
        f"without {one.name}": replace(WEIGHTS, **{one.name: 0.0}) for one in fields(WEIGHTS)
    }
    REMARK("memlayer, each ingredient left out …")
    found = {name: [] for name in (*weights, WHOLE)}
    for talk in talks:
        with stored(make, talk) as searcher:
            for name, chosen in weights.items():
                with mock.patch.object(recall_search, "rank", partial(recall_search.rank, weights=chosen)):
                    found[name] += answers(searcher, talk)
        with mock.patch.object(index_flow, "parts", lambda text: [text]), stored(make, talk) as searcher:
            found[WHOLE] += answers(searcher, talk)
    return {name: means(some) for name, some in found.items()}


@contextmanager
def stored(make, talk):
    """Give a participant that has one conversation, in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="memlayer-bench-", ignore_cleanup_errors=True) as folder:
        searcher = make(Path(folder))
        try:
            searcher.store(USER, talk.turns)
            searcher.ready()
            yield searcher
        finally:
            searcher.close()


def answers(searcher, talk):
    """Return the shares of each question's evidence that are found."""
    costs = {turn.id: COUNT.text(turn.line) + 1 for turn in talk.turns}
    return [answer(searcher, asked, costs) for asked in talk.questions]


def answer(searcher, asked, costs):
    first = list(dict.fromkeys(searcher.search(USER, asked.text, RANKED)))[:FIRST]
    wide = dict.fromkeys(searcher.search(USER, asked.text, WIDE))
    found = {
        "kind": asked.kind,
        "first_10": share(first, asked),
        "in_1024": share(packed(wide, costs), asked),
    }
    if isinstance(searcher, Memlayer):
        found["as_packed"] = share(searcher.search(USER, asked.text, WIDE, token_limit=TOKENS), asked)
    return found


def packed(turns, costs):
    room, taken = TOKENS, []
    for turn in turns:
        if costs[turn] <= room:
            room -= costs[turn]
            taken.append(turn)
    return taken


def share(turns, asked):
    return len(asked.evidence.intersection(turns)) / len(asked.evidence)


def summary(found, told):
    kinds = sorted({one["kind"] for one in found})
    last = told[contexts.LIMITS[-1]]
    shown = {str(limit): contexts.means(rows) for limit, rows in told.items() if rows}
    by_kind = {kind: contexts.means([one for one in last if one["kind"] == kind]) for kind in kinds if last}
    return {
        **means(found),
        "contexts": shown,
        "contexts_by_kind": {kind: one["evidence"] for kind, one in by_kind.items()},
        "kinds": {kind: means([one for one in found if one["kind"] == kind]) for kind in kinds},
    }


def means(found):
    columns = [column for column in COLUMNS if column in found[0]]
    shares = {column: round(100 * statistics.mean(one[column] for one in found), 1) for column in columns}
    return {"questions": len(found), **shares}


def judged(data):
    """Compare memlayer, with the best embedder that is at hand, with the best of the others."""
    goals = []
    for name, told in data.items():
        ours = next((found for who, found in told["found"].items() if who.startswith(Memlayer.name)), None)
        others = [found for who, found in told["found"].items() if not who.startswith(Memlayer.name)]
        for column in ("first_10", "in_1024") if ours and others else ():
            best = max(found[column] for found in others)
            goals.append(
                goal(
                    f"{name}, {COLUMNS[column]}: times the best of the others",
                    ours[column] / max(best, 0.1),
                    at_least=GOAL,
                )
            )
        shown = told["found"].get(f"{Memlayer.name}, minilm", {}).get("contexts", {})
        least = BEAM_GOALS if Path(name).is_dir() else LOCOMO_GOALS
        goals += [
            goal(
                f"{name}: % of the evidence in a context of {limit}", shown[limit]["evidence"], at_least=share
            )
            for limit, share in least.items()
            if limit in shown
        ]
    return goals


def show(result):
    for name, told in result["data"].items():
        print(
            f"\n{name}: {told['conversations']} conversation(s), {told['turns']:,} turns, "
            f"{told['questions']} questions; % of the evidence found; vectors: {result['vectors']}"
        )
        kinds = list(next(iter(told["found"].values()))["kinds"])
        print(f"{'':>32}" + "".join(f"{title:>11}" for title in COLUMNS.values()))
        for who, found in told["found"].items():
            print(f"{who:>32}" + "".join(f"{found.get(column, '-'):>11}" for column in COLUMNS))
        print(f"\n{'first 10, by kind':>32}" + "".join(f"{kind[:12]:>14}" for kind in kinds))
        for who, found in told["found"].items():
            print(f"{who:>32}" + "".join(f"{found['kinds'][kind]['first_10']:>14}" for kind in kinds))
        show_contexts(told["found"])
        if "ablation" in told:
            print(
                f"\n{'memlayer, ' + result['vectors']:>32}"
                + "".join(f"{title:>11}" for title in COLUMNS.values())
            )
        for which, found in told.get("ablation", {}).items():
            print(f"{which:>32}" + "".join(f"{found[column]:>11}" for column in COLUMNS))
    print()
    for who, reason in result["skipped"].items():
        print(f"{who}: SKIPPED, {reason}")


def show_contexts(found):
    titles = ("evidence", "tokens", "empty", "repeated", "precision")
    print(f"\n{'in a context of … tokens':>32}" + "".join(f"{title:>11}" for title in titles))
    for who, one in found.items():
        for limit, told in one["contexts"].items():
            print(f"{f'{who}, {int(limit):,}':>32}" + "".join(f"{told[title]:>11}" for title in titles))
        for kind, evidence in one["contexts_by_kind"].items():
            print(f"{kind:>32}{evidence:>11}")


def main():
    parser = options(__doc__, f"the first conversation and {QUICK} questions of each file")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="LoCoMo's format, or BEAM's folder"
    )
    parser.add_argument(
        "--peers", action="store_true", help="other memories too, as far as they are installed"
    )
    parser.add_argument(
        "--ablation", action="store_true", help="memlayer without each of its ingredients, too"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose name holds one of these words")
    parser.add_argument("--conversations", type=int, metavar="N", help="the first N of each file")
    asked = parser.parse_args()
    embedders = ["minilm", "hashing"] if minilm.is_present(minilm.folder()) else ["hashing"]
    made, skipped = participants(embedders, asked.peers, asked.only)
    if not made:
        sys.exit(f"Nobody is left to measure: {skipped or 'no name holds ' + ' or '.join(asked.only)}")
    data = {}
    for file in asked.files:
        try:
            talks = read_talks(file)
        except MemlayerError as problem:
            sys.exit(f"{problem}\n{problem.hint}")
        talks = talks[: 1 if asked.quick else asked.conversations]
        if asked.quick:
            talks = [replace(talk, questions=talk.questions[:QUICK]) for talk in talks]
        data[str(file)] = {
            "conversations": len(talks),
            "turns": sum(len(talk.turns) for talk in talks),
            "questions": sum(len(talk.questions) for talk in talks),
            "found": {who: summary(*asked_of(who, make, talks)) for who, make in made.items()},
        }
        if asked.ablation:
            data[str(file)]["ablation"] = ablated(partial(Memlayer, embed=embedders[0]), talks)
    tell(
        {"vectors": embedders[0], "data": data, "skipped": skipped, "goals": judged(data)},
        asked,
        show,
    )


if __name__ == "__main__":
    main()
