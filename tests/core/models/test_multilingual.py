"""What memlayer promises about the multilingual embedder."""

from __future__ import annotations

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2
from command_line import ROOT, printed_by
from hypothesis import given, settings, strategies as st

from memlayer_core.errors import ConfigurationError, EmbedderError
from memlayer_core.models import embed, multilingual
from memlayer_core.models.embed import resolve_embedder
from memlayer_core.models.minilm import folder, is_present
from memlayer_core.models.multilingual import Multilingual
from memlayer_core.settings import Settings

LANGUAGES = json.loads((ROOT / "benchmarks" / "data" / "languages.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.skipif(not multilingual.is_present(), reason="the extra `multilingual` is missing")


def resolve(choice, recorded=None):
    return resolve_embedder(choice, store_identity=recorded, settings=Settings(), emit=lambda event: None)


@pytest.fixture
def english():
    if not is_present(folder()):
        pytest.skip("the MiniLM model is not at hand")


@pytest.fixture
def no_minilm(tmp_path, monkeypatch):
    """Give an empty home directory, and no way to fetch MiniLM into it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr(ONNXMiniLM_L6_V2, "MODEL_DOWNLOAD_URL", "http://127.0.0.1:9/onnx.tar.gz")
    monkeypatch.setattr(embed, "_failed", {})


def found(embedder, language):
    """Return how many of a language's facts are among the five nearest to their questions."""
    rows = LANGUAGES[language]["facts"]
    facts = np.stack(embedder.embed([row["fact"] for row in rows]))
    questions = np.stack([embedder.embed_query(row["question"]) for row in rows])
    best = np.argsort(-questions @ facts.T, axis=1)[:, :5]
    return sum(place in some for place, some in enumerate(best))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.slow
def test_a_paraphrase_is_found_in_each_language(language):
    assert found(Multilingual(), language) >= 37


@given(st.lists(st.text(max_size=60), max_size=5))
@settings(deadline=None)
def test_any_text_has_a_unit_vector(texts):
    vectors = Multilingual().embed(texts)
    assert [vector.shape for vector in vectors] == [(512,)] * len(texts)
    assert all(vector.dtype == np.float32 and abs(np.linalg.norm(vector) - 1) < 1e-4 for vector in vectors)


def test_a_lone_surrogate_is_mended_and_a_text_without_a_letter_or_digit_is_near_nothing():
    texts = ["", " ", "?!", "👍", "I live in Rome", "I live in Rome \ud800"]
    *nothing, text, broken = Multilingual().embed(texts)
    assert broken @ text > 0.7
    assert all(np.array_equal(one, nothing[0]) for one in nothing)
    assert abs(nothing[0] @ text) < 0.15


def test_a_text_of_megabytes_costs_as_much_as_its_beginning():
    words = "a train to Porto leaves at nine " * 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (long,) = Multilingual().embed([words])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    assert np.allclose(long, Multilingual().embed_query(words[:1_200]), atol=1e-4)


@pytest.mark.slow
def test_threads_share_it():
    texts = [f"message number {number}" for number in range(40)]
    alone = Multilingual().embed(texts)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(lambda _: Multilingual().embed(texts), range(4)):
            assert np.allclose(vectors, alone, atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
def test_a_fork_while_it_encodes_ends_and_the_child_embeds():
    code = (
        "import os, threading\n"
        "from memlayer_core.models.multilingual import Multilingual\n"
        "model, stop = Multilingual(), threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set(): model.embed(['a train to Porto leaves at nine'] * 40)\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[thread.start() for thread in threads]\n"
        "codes = []\n"
        "for _ in range(3):\n"
        "    child = os.fork()\n"
        "    if child == 0: os._exit(len(model.embed(['hello', 'there'])))\n"
        "    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "stop.set()\n"
        "print(codes)\n"
    )
    assert printed_by(code) == "[2, 2, 2]"


class TestTheChoice:
    @pytest.mark.parametrize("beside", ["english", "no_minilm"])
    def test_auto_takes_the_multilingual_one_beside_minilm_and_without(self, request, beside):
        request.getfixturevalue(beside)
        assert resolve("auto").identity == "use-multilingual-v3-0.2.1"

    @pytest.mark.parametrize("made_with", ["hashing-1024-v1", "minilm-l6-v2"])
    def test_a_store_keeps_the_embedder_that_it_was_made_with(self, english, made_with):
        assert resolve("auto", recorded=made_with).identity == made_with

    def test_a_store_of_the_multilingual_one_without_it_or_of_another_version_is_refused(self, monkeypatch):
        with pytest.raises(ConfigurationError, match=r"0\.1\.0"):
            resolve("auto", recorded="use-multilingual-v3-0.1.0")
        monkeypatch.setattr(multilingual, "is_present", lambda: False)
        with pytest.raises(EmbedderError) as caught:
            resolve("auto", recorded=multilingual.IDENTITY)
        assert "memlayer-core[multilingual]" in caught.value.hint
