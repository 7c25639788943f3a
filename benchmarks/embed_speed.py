"""Texts a second of memlayer's MiniLM and hashing embedders beside Chroma's default function, on chat messages.

With `--turns` instead what embedding costs in a conversation: the three English ones of `data/talks` are replayed message by message,
with a context after each question and a `flush` after each answer. Told are the texts that MiniLM embeds in a turn, and the
milliseconds of processor time in all threads, for that and for everything; one thread for BLAS.

Usage: python benchmarks/embed_speed.py [--texts 96] [--rounds 3] [--turns] [--json]
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy starts its threads

import numpy as np
from talks import read_talks

from memlayer_core import Memory, Message
from memlayer_core.models import minilm
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM, folder, is_present

TALKS = Path(__file__).parent / "data" / "talks"

SENTENCES = (
    "I moved to Lisbon in March and I am still looking for a good bakery near the river.",
    "My sister is allergic to peanuts, so please keep that in mind for the dinner on Friday.",
    "What was the name of the book that you recommended last week?",
    "Thanks, that helps a lot!",
    "The meeting with the landlord went well and we can keep the dog.",
    "Could you draft a short reply which says that I need two more days for the report?",
    "Here are three options: take the early train, rent a car, or stay one more night.",
    "I have been learning the cello since I was nine, and I practise before breakfast.",
    "Sure.",
    "The invoice number is 2024-118 and the amount was 430 euros, paid on the second of May.",
)


def messages(count, seed=7):
    chance = random.Random(seed)
    made = {}
    while len(made) < count:  # a text that comes again is not embedded again
        made[" ".join(chance.choices(SENTENCES, k=chance.choice((1, 1, 2, 2, 3))))] = None
    return list(made)


def rate(embed, texts, rounds):
    embed(texts[:4])
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        embed(texts)
        seconds.append(time.perf_counter() - start)
    return len(texts) / statistics.median(seconds)


def replayed():
    """Return what a turn of the English conversations costs: texts, and milliseconds of embedding and of everything."""
    spent, embed = Counter(), minilm._Model.embed  # noqa: SLF001

    def counted(self, texts):
        began = time.process_time()
        vectors = embed(self, texts)
        spent.update(texts=len(texts), embedding=time.process_time() - began)
        return vectors

    for talk in (one for one in read_talks(TALKS) if one.language == "en"):
        with (
            tempfile.TemporaryDirectory() as directory,
            Memory.open(directory, embedder="minilm", tokenizer="estimate") as memory,
        ):
            memory.chat(user_id="warm", session_id="up").add("user", "Hello")
            memory.flush()
            minilm._Model.embed, began = counted, time.process_time()  # noqa: SLF001  (what is embedded, and not known)
            for turn in talk.turns:
                chat = memory.chat(user_id="ada", session_id=turn.session)
                chat.add_messages([Message(turn.role, turn.text, created_at=turn.at)])
                if turn.role == "user":
                    chat.context()
                    spent["turns"] += 1
                else:
                    memory.flush()
            spent["all"] += time.process_time() - began
            minilm._Model.embed = embed  # noqa: SLF001
    turns = spent["turns"]
    per_turn = {name: round(1000 * spent[name] / turns, 1) for name in ("embedding", "all")}
    return {"turns": turns, "texts": round(spent["texts"] / turns, 2), **per_turn}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", action="store_true", help="measure turns of conversations instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    asked = parser.parse_args()
    if not is_present(folder()):
        sys.exit(
            f"The MiniLM model is not in {folder()}. Fetch it first, e.g. by opening a memory with "
            'embedder="minilm" while online.'
        )

    if asked.turns:
        print(json.dumps(replayed()))
        return
    texts = messages(asked.texts)
    ours, hashed = MiniLM(folder()), HashingEmbedder()
    mine = rate(lambda some: MiniLM(folder()).embed(some), texts, asked.rounds)  # a new one knows no text
    fast = rate(hashed.embed, texts, asked.rounds)

    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    chroma = ONNXMiniLM_L6_V2()
    theirs = rate(chroma, texts, asked.rounds)
    cosine = float(min((np.stack(ours.embed(texts)) * np.stack(chroma(texts))).sum(axis=1)))

    result = {
        "texts": len(texts),
        "words_mean": round(statistics.mean(len(text.split()) for text in texts), 1),
        "cores": os.cpu_count(),
        "chroma_texts_per_second": round(theirs, 1),
        "minilm_texts_per_second": round(mine, 1),
        "hashing_texts_per_second": round(fast, 1),
        "minilm_times_chroma": round(mine / theirs, 1),
        "lowest_cosine_to_chroma": round(cosine, 7),
    }
    if asked.json:
        print(json.dumps(result))
        return
    print(f"{result['texts']} messages, {result['words_mean']} words each; {result['cores']} cores\n")
    print("| embedder | texts a second | times Chroma |")
    print("|---|--:|--:|")
    for name, speed in (("Chroma's default", theirs), ("memlayer MiniLM", mine), ("memlayer hashing", fast)):
        print(f"| {name} | {speed:,.0f} | {speed / theirs:,.1f} |")
    print(f"\nLowest cosine between memlayer's MiniLM vectors and Chroma's: {cosine:.7f}")


if __name__ == "__main__":
    main()
