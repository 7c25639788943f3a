"""The embedder that is always there: words and parts of words, hashed into a vector. No file, no network.

Every word adds itself and its character 3- to 5-grams, every two neighbouring words add their pair, each at
a place and with a sign that a checksum of its spelling decides (the "hashing trick" of Weinberger et al.,
2009). Texts that share words, or parts of them, come out near each other: "allergy" finds "allergic", and a
typing error still finds the word. A paraphrase without a common word is not found; that takes a model that
was trained, such as MiniLM.

Nothing here depends on the machine, on the process or on `PYTHONHASHSEED`, so a store can be opened anywhere. If you
change what a vector looks like, give `IDENTITY` a new version.
"""

import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memlayer_core.models.foreign import BlockingEmbedder
from memlayer_core.seams import FloatVector

DIMENSION = 1024
IDENTITY = f"hashing-{DIMENSION}-v1"

# Characters of a text that are read: an answer of about 3,000 words. More words only blur the vector.
_CHARACTERS = 20_000
# Characters of a word that are cut into parts: longer words are addresses and encoded data.
_WORD_CHARACTERS = 40
_PART_LENGTHS = (3, 4, 5)
# Number of axes of a word, so that two words rarely share all of theirs.
_PLACES = 2
# A word's own weight is 1. These are the weights of its parts together, and of its pair with the next word.
_PARTS = 0.5
_PAIR = 0.25
# Share of their weight that words of grammar keep. It is not zero: "who are you" has no other words.
_DAMPED = 0.1
# Value of a text, but not of a question, on the last axis, which no word has: as if the text had five more words that
# no question has. Otherwise "Thanks, Anna!" would be the best answer to each question that names Anna, as cosine
# divides by the length ("pivoted" normalisation; Singhal et al., 1996).
_BALLAST = 2.5

_ENGLISH = """
a about after again all also am an and any are as at be because been before being but by can could did do does
doing don down each even few for from further get go going got had has have having he her here hers him his how i
if in into is it its itself just know let like ll m me more most my no nor not now of off oh ok okay on once only or
other our out over own re really s same say she should so some such t than that the their them then there these they
this those through to too under until up us ve very was we well were what when where which while who whom why will
with would yeah yes you your
"""
_CHINESE = "的 了 是 在 我 你 他 她 它 们 和 也 都 就 不 有 这 那 个 吗 呢 吧 啊 与 及 或 而 但 被 把 着 过 地 得 之 很 会 要 说"
_COMMON = frozenset(_ENGLISH.split()) | frozenset(_CHINESE.split())

# Scripts that set no spaces between words, and pictographs: each character is a word. Ranges: pictographs,
# kana, Han with its extension A, Hangul, compatibility forms of Han, pictographs, the rarer Han.
_ONES = (
    "\u2600-\u27bf\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U0001f300-\U0001faff\U00020000-\U0003ffff"
)
# Marks that belong to a word although `\w` does not know them: accents, and the vowel signs of South and
# South-East Asia.
_MARKS = "\u0300-\u036f\u0900-\u0dff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(f"[{_ONES}]|(?:(?![{_ONES}])[^\\W_]|[{_MARKS}])+")


def _code(feature: str) -> int:
    return zlib.crc32(feature.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=16_384)  # at about 0.6 kB a word no more than 10 MB
def _features(word: str) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Return the checksums of a word and of its parts, and what each weighs: two arrays of one length."""
    weight = _DAMPED if word in _COMMON else 1.0
    fenced = f"<{word[:_WORD_CHARACTERS]}>" if len(word) > 1 else ""
    parts = [fenced[at : at + long] for long in _PART_LENGTHS for at in range(len(fenced) - long + 1)]
    spelled = [f"{place} {word}" for place in range(_PLACES)] + [f"part {part}" for part in parts]
    codes = np.array([_code(feature) for feature in spelled], dtype=np.uint32)
    weights = np.full(len(codes), weight * _PARTS / math.sqrt(max(1, len(parts))))
    weights[:_PLACES] = weight / math.sqrt(_PLACES)
    return codes, weights


def _vector(text: str, ballast: float) -> FloatVector:
    words = _WORD.findall(unicodedata.normalize("NFKC", text[:_CHARACTERS]).casefold())
    pairs = Counter(pair for pair in pairwise(words) if not (pair[0] in _COMMON and pair[1] in _COMMON))
    codes = [np.array([_code(f"pair {one} {two}") for one, two in pairs], dtype=np.uint32)]
    weights = [np.array([_PAIR * (1 + math.log(often)) for often in pairs.values()])]
    for word, often in Counter(words).items():
        its_codes, its_weights = _features(word)
        codes.append(its_codes)
        weights.append(its_weights if often == 1 else its_weights * (1 + math.log(often)))
    code, weight = np.concatenate(codes), np.concatenate(weights)
    signed = np.where(code >> 31, -weight, weight)
    summed = np.bincount((code % (DIMENSION - 1)).astype(np.intp), signed, minlength=DIMENSION)
    summed[-1] = ballast
    length = math.sqrt(float(summed @ summed))
    if length < 1e-6:  # noqa: PLR2004  (a question without a word, or whose words cancel out)
        summed[-1] = length = 1.0
    unit: FloatVector = (summed / length).astype(np.float32)
    return unit


class HashingEmbedder(BlockingEmbedder):
    """Embeds texts by the words that they are made of.

    Deterministic, safe to share between threads, about 0.1 ms for a chat message. A text without a word in
    it (empty, or punctuation only) gets one fixed vector. A question's vector differs from the same text's:
    see `_BALLAST`.

    Attributes:
        identity: `"hashing-1024-v1"`: the method, its dimensions and the version of its rules.
    """

    identity = IDENTITY

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return one unit vector for each text: float32, shape (1024,)."""
        return [_vector(text, _BALLAST) for text in texts]

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question: its words alone, without the ballast of a text."""
        return _vector(text, 0.0)
