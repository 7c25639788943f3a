"""What an extractive summary keeps of a conversation, beside naive choices of sentences.

Conversations in LoCoMo's format (two speakers, dated sessions, questions with the turns that their answers are
taken from) are read from the file given. Of each session's sentences a part is kept: at most 10, 20 or 30 % of
its tokens, names and dates not counted. Four ways choose them: memlayer's summariser without a model, the first
sentences, the last ones, and a random choice; each takes what still fits.

Evidence: of each turn that a question's answer is taken from, the sentence that shares most words with the
question and the answer. Told is the share of questions' evidence sentences that were kept. The mean of the
gate's score of each session's text is told beside it.

Goal: at each size, memlayer keeps at least 1.5 times the evidence that the best naive choice keeps.

Usage: python benchmarks/summary.py FILE [--quick] [--json] [--check]
"""

import random
import statistics
import sys
from pathlib import Path

from goals import goal, options, tell
from locomo import DataFormatError, read, read_all
from memlayer_core.summaries.rules.extract import Line, extract
from memlayer_core.summaries.rules.gate import Bounds, assess
from memlayer_core.summaries.rules.prompt import line_of

from memlayer_core.models.tokens import token_counter
from memlayer_core.storage.terms import content_words, sentences

SHARES = (0.1, 0.2, 0.3)
GOAL = 1.5
COUNT = token_counter("estimate").text


def ours(lines, room, _):
    return extract(lines, room, COUNT).text


def chosen(order):
    """Return a way that takes sentences in an order, as long as there is room, and writes them as ours does."""

    def choose(lines, room, chance):
        said = [(place, sentence) for place, line in enumerate(lines) for sentence in sentences(line.text)]
        kept = []
        for place, sentence in order(said, chance):
            price = COUNT(f"{sentence}\n")
            if price <= room:
                room -= price
                kept.append((place, sentence))
        return "\n".join(sentence for _, sentence in sorted(kept))

    return choose


WAYS = {
    "memlayer": ours,
    "first sentences": chosen(lambda said, _: said),
    "last sentences": chosen(lambda said, _: said[::-1]),
    "random sentences": chosen(lambda said, chance: chance.sample(said, len(said))),
}


def evidence(conversation):
    """Return the sentences that answers are taken from, by session: one for each question and turn."""
    turns = {m.id: (s.session_id, m.text) for s in conversation.sessions for m in s.messages}
    found = {}
    for question in conversation.questions:
        asked = set(content_words(f"{question.text} {question.answer}"))
        for turn in question.evidence:
            if turn in turns:
                session, text = turns[turn]
                best = max(
                    sentences(text), key=lambda one: len(asked & set(content_words(one))), default=None
                )
                if best is not None:
                    found.setdefault(session, []).append(best)
    return found


def measure(talks):
    kept = {name: {share: [] for share in SHARES} for name in WAYS}
    scores = {name: {share: [] for share in SHARES} for name in WAYS}
    chance = random.Random(7)
    for talk in talks:
        wanted = evidence(talk)
        for session in talk.sessions:
            lines = [Line("", line_of(message).text) for message in session.messages]
            source = [line.text for line in lines]
            tokens = sum(COUNT(line) for line in source)
            for name, choose in WAYS.items():
                for share in SHARES:
                    text = choose(lines, int(share * tokens), chance)
                    kept[name][share] += [one in text for one in wanted.get(session.session_id, ())]
                    verdict = assess(text, source, COUNT(text), Bounds(0, int(share * tokens) + 1, 0.0))
                    scores[name][share].append(verdict.score)
    return {
        name: {
            str(share): {
                "evidence": round(statistics.mean(kept[name][share]), 3),
                "score": round(statistics.mean(scores[name][share]), 3),
            }
            for share in SHARES
        }
        for name in WAYS
    }


def show(result):
    print(f"{result['conversations']} conversation(s), {result['evidence']} evidence sentences")
    print(f"{'evidence kept / score of the gate':>36}" + "".join(f"{share:>16.0%}" for share in SHARES))
    for name, of_one in result["kept"].items():
        cells = (f"{cell['evidence']:.2f} / {cell['score']:.2f}" for cell in of_one.values())
        print(f"{name:>36}" + "".join(f"{cell:>16}" for cell in cells))


def main():
    parser = options(__doc__, "the first conversation only")
    parser.add_argument("file", type=Path, help="conversations in LoCoMo's format")
    asked = parser.parse_args()
    try:
        talks = [read(asked.file)] if asked.quick else read_all(asked.file)
    except DataFormatError as problem:
        sys.exit(f"{problem}\n{problem.hint}")
    kept = measure(talks)
    naive = {
        share: max(of[str(share)]["evidence"] for n, of in kept.items() if n != "memlayer")
        for share in SHARES
    }
    result = {
        "conversations": len(talks),
        "evidence": sum(len(found) for talk in talks for found in evidence(talk).values()),
        "kept": kept,
        "goals": [
            goal(
                f"evidence kept in {share:.0%} of the tokens, times the best naive choice",
                kept["memlayer"][str(share)]["evidence"] / max(naive[share], 1e-9),
                at_least=GOAL,
            )
            for share in SHARES
        ],
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
