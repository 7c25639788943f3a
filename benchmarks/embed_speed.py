"""Texts a second of memlayer's MiniLM and hashing embedders beside Chroma's default function, on chat messages.

Usage: python benchmarks/embed_speed.py [--texts 96] [--rounds 3] [--json]
"""

import argparse
import json
import os
import random
import statistics
import sys
import time

import numpy as np

from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM, folder, is_present

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
    return [" ".join(chance.choices(SENTENCES, k=chance.choice((1, 1, 2, 2, 3)))) for _ in range(count)]


def rate(embed, texts, rounds):
    embed(texts[:4])
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        embed(texts)
        seconds.append(time.perf_counter() - start)
    return len(texts) / statistics.median(seconds)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    asked = parser.parse_args()
    if not is_present(folder()):
        sys.exit(
            f"The MiniLM model is not in {folder()}. Fetch it first, e.g. by opening a memory with "
            'embedder="minilm" while online.'
        )

    texts = messages(asked.texts)
    ours, hashed = MiniLM(folder()), HashingEmbedder()
    mine = rate(ours.embed, texts, asked.rounds)
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
