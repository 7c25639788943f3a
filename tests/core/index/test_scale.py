"""What memlayer knows of an embedder's cosines: measured once, kept with the store, read by every process."""

from __future__ import annotations

import numpy as np
import pytest
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import EmbedderMismatchError
from memlayer_core.index.flow import calibration_texts, scales_from
from memlayer_core.models import multilingual
from memlayer_core.models.embed import scales_of
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM, folder, is_present
from memlayer_core.models.multilingual import Multilingual
from memlayer_core.seams import OTHER_LANGUAGES, SimilarityScale

SETTINGS = Tuned(index_delay=0)
COMMON = (
    1.8  # length of what all vectors have in common; gives unrelated texts a cosine of about 0.78, as E5 does
)


class Crowded:
    """An embedder of one's own whose cosines are all high, as those of E5 are."""

    identity = "crowded"

    def __init__(self, embedder=None):
        self.embedder = embedder or HashingEmbedder()
        self.texts = 0

    def embed(self, texts):
        self.texts += len(texts)
        return [self._crowd(vector) for vector in self.embedder.embed(texts)]

    def embed_query(self, text):
        return self._crowd(self.embedder.embed_query(text))

    def _crowd(self, vector):
        moved = np.append(vector, COMMON)
        return moved / np.linalg.norm(moved)


def remember(memory, text="I live in Rome."):
    memory.chat(user_id="u", session_id="s").add_messages([Message("user", text)])
    memory.flush()


def built_in(kind):
    if kind is not MiniLM and not multilingual.is_present():
        pytest.skip("the extra `multilingual` is missing")
    if kind is not Multilingual and not is_present(folder()):
        pytest.skip("the MiniLM model is not at hand")
    return MiniLM(folder()) if kind is MiniLM else Multilingual()


@pytest.mark.parametrize("kind", [MiniLM, Multilingual])
@pytest.mark.slow
def test_the_scales_of_built_in_embedders_are_those_that_are_measured(kind):
    embedder = built_in(kind)
    measured = scales_from(embedder.embed(calibration_texts()))
    given = scales_of(embedder)
    if kind is Multilingual:  # one scale stands for all languages: it reads them equally well
        *every, _ = measured.values()
        means, deviations = ([getattr(one, name) for one in every] for name in ("mean", "deviation"))
        measured = {OTHER_LANGUAGES: SimilarityScale(float(np.mean(means)), float(np.mean(deviations)))}
    assert given.keys() == measured.keys() - {"en"}  # which MiniLM has under `OTHER_LANGUAGES`
    for language, scale in given.items():
        true = measured[language]
        assert scale.mean == pytest.approx(true.mean, abs=0.01)
        assert scale.deviation == pytest.approx(true.deviation, abs=0.005)


@pytest.mark.slow
def test_unrelated_texts_and_answers_are_told_apart_on_the_scale_of_any_embedder():
    if not multilingual.is_present():
        pytest.skip("the extra `multilingual` is missing")
    vectors = np.stack(Crowded(Multilingual()).embed(calibration_texts()))
    scale = scales_from(vectors)["de"]
    answers = (vectors[24:48:2] * vectors[25:48:2]).sum(axis=1)
    assert scale.mean > 0.7
    assert 2 < (float(answers.mean()) - scale.mean) / scale.deviation <= 5.01


def test_a_users_embedder_is_measured_with_its_first_text_and_no_more(tmp_path):
    embedder = Crowded()
    with Memory.open(tmp_path, embedder=embedder, settings=SETTINGS) as memory:
        assert embedder.texts == 0
        assert memory.runtime.db.read(memory.runtime.similarity_scale, "") == SimilarityScale()
        remember(memory)
        first = embedder.texts
        remember(memory, "I was born in Turin.")
        assert (first, embedder.texts) == (1 + len(calibration_texts()), first + 1)
        scale = memory.runtime.db.read(memory.runtime.similarity_scale, "en")
    assert 0.7 < scale.mean < 0.95
    assert scale.deviation < 0.03
    with Memory.open(tmp_path, embedder=Crowded(), settings=SETTINGS) as again:
        assert again.runtime.db.read(again.runtime.similarity_scale, "en") == scale


@pytest.mark.slow
def test_each_language_has_its_own_scale(tmp_path):
    if not is_present(folder()):
        pytest.skip("the MiniLM model is not at hand")

    class Own(MiniLM):
        identity = "own"

    scales = scales_from(Own(folder()).embed(calibration_texts()))
    assert scales["en"].mean < 0.1
    assert scales["zh"].mean > 0.5


def test_the_first_measurement_stays(tmp_path):
    with Memory.open(tmp_path, embedder=Crowded(), settings=SETTINGS) as memory:
        remember(memory)
        before = memory.runtime.db.read(memory.runtime.similarity_scale, "")
    with Memory.open(tmp_path, embedder=Crowded(), settings=SETTINGS) as memory:
        remember(memory, "More.")
        assert memory.runtime.db.read(memory.runtime.similarity_scale, "") == before


def test_another_embedder_is_measured_anew(tmp_path):
    with Memory.open(tmp_path, embedder=Crowded(), settings=SETTINGS) as memory:
        remember(memory)
    with Memory.open(tmp_path, embedder="hashing", reembed=True, settings=SETTINGS) as memory:
        memory.flush()
        assert memory.runtime.db.read(memory.runtime.similarity_scale, "") == SimilarityScale(0.05, 0.06)


def test_a_second_embedder_of_the_same_name_is_refused_by_its_dimension(tmp_path):
    with Memory.open(tmp_path, embedder=lambda texts: [[1.0, 2.0]] * len(texts), settings=SETTINGS) as one:
        remember(one)
    with Memory.open(
        tmp_path, embedder=lambda texts: [[1.0, 2.0, 3.0]] * len(texts), settings=SETTINGS
    ) as other:
        with pytest.raises(EmbedderMismatchError, match="2 dimensions"):
            other.search("Where do I live?", user_id="u")
        with pytest.raises(EmbedderMismatchError):
            other.chat(user_id="u", session_id="t").context("Where do I live?")
