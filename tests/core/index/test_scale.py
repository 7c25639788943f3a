"""What memlayer knows of an embedder's cosines: measured once, kept with the store, read by every process."""

import numpy as np
import pytest

from memlayer_core import Memory, errors
from memlayer_core.index.flow import calibration_texts, scales_from
from memlayer_core.models import multilingual
from memlayer_core.models.embed import scales_of
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM, folder, is_present
from memlayer_core.models.multilingual import Multilingual
from memlayer_core.seams import OTHER_LANGUAGES, SimilarityScale

COMMON = 1.8  # what all vectors share; gives unrelated texts a cosine of about 0.78, as E5 does


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


def scale(memory, language=""):
    return memory.runtime.db.read(memory.runtime.vectors.scale, language)


def remember(memory, text="I live in Rome."):
    memory.chat(user_id="u", session_id="s").add("user", text)
    memory.flush()


def built_in(kind):
    if kind is Multilingual and not multilingual.is_present():
        pytest.skip("the extra `multilingual` is missing")
    if kind is MiniLM and not is_present(folder()):
        pytest.skip("the MiniLM model is not at hand")
    return MiniLM(folder()) if kind is MiniLM else Multilingual()


@pytest.mark.parametrize("kind", [MiniLM, Multilingual])
@pytest.mark.slow
def test_the_scales_of_built_in_embedders_are_those_that_are_measured_for_each_language(kind):
    embedder = built_in(kind)
    measured = scales_from(embedder.embed(calibration_texts()))
    given = scales_of(embedder)
    if kind is Multilingual:  # one scale stands for all languages: it reads them equally well
        *every, _ = measured.values()
        means, deviations = ([getattr(one, name) for one in every] for name in ("mean", "deviation"))
        measured = {OTHER_LANGUAGES: SimilarityScale(float(np.mean(means)), float(np.mean(deviations)))}
    else:
        assert measured["en"].mean < 0.1
        assert measured["zh"].mean > 0.5
    assert given.keys() == measured.keys() - {"en"}  # which MiniLM has under `OTHER_LANGUAGES`
    for language, one in given.items():
        assert one.mean == pytest.approx(measured[language].mean, abs=0.01)
        assert one.deviation == pytest.approx(measured[language].deviation, abs=0.005)


@pytest.mark.slow
def test_unrelated_texts_and_answers_are_told_apart_on_the_scale_of_any_embedder():
    vectors = np.stack(Crowded(built_in(Multilingual)).embed(calibration_texts()))
    german = scales_from(vectors)["de"]
    answers = (vectors[24:48:2] * vectors[25:48:2]).sum(axis=1)
    assert german.mean > 0.7
    assert 2 < (float(answers.mean()) - german.mean) / german.deviation <= 5.01


def test_a_users_embedder_is_measured_with_its_first_text_and_no_more_and_another_one_anew(open_at):
    embedder, later = Crowded(), Crowded()
    with open_at(embedder=embedder) as memory:
        assert embedder.texts == 0
        assert scale(memory) == SimilarityScale()
        remember(memory)
        assert embedder.texts == 1 + len(calibration_texts())
        remember(memory, "I was born in Turin.")
        assert embedder.texts == 2 + len(calibration_texts())
        english = scale(memory, "en")
        assert 0.7 < english.mean < 0.95
        assert english.deviation < 0.03
    with open_at(embedder=later) as memory:
        remember(memory, "More.")
        assert (later.texts, scale(memory, "en")) == (1, english)
    memory = open_at(how=Memory.reembed)
    memory.flush()
    assert scale(memory) == SimilarityScale(0.05, 0.06)


def test_a_second_embedder_of_the_same_name_is_refused_by_its_dimension(open_at):
    with open_at(embedder=lambda texts: [[1.0, 2.0]] * len(texts)) as one:
        remember(one)
    second = {"embedder": lambda texts: [[1.0, 2.0, 3.0]] * len(texts)}
    other = open_at(**second)
    with pytest.raises(errors.EmbedderMismatchError, match="2 dimensions") as refused:
        other.search("Where do I live?", user_id="u")
    with pytest.raises(errors.EmbedderMismatchError):
        other.chat(user_id="u", session_id="t").context("Where do I live?")
    other.close()
    assert "Memory.reembed" in refused.value.hint
    with open_at(how=Memory.reembed, **second) as again:
        again.flush()
        assert again.search("Where do I live?", user_id="u")
    with pytest.raises(errors.ConfigurationError, match="lambda"):
        open_at(embedder="auto")
