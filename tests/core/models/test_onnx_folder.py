"""What memlayer promises about a folder with an ONNX model as the embedder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from memlayer_core.errors import ConfigurationError, EmbedderError
from memlayer_core.models.embed import resolve_embedder
from memlayer_core.models.minilm import MiniLM, OnnxFolder, folder, is_present
from memlayer_core.settings import Settings

TEXT = "I moved to Tokyo in spring."


@pytest.fixture
def where(tmp_path):
    """Give a folder of its own with MiniLM's files, as sentence-transformers lays them out."""
    if not is_present(folder()):
        pytest.skip("the MiniLM model is not at hand")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").symlink_to(folder() / "model.onnx")
    shutil.copy(folder() / "tokenizer.json", tmp_path)
    return tmp_path


def configure(where, name, **values):
    path = where / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")


def test_a_folder_is_an_embedder_with_mean_pooling(where):
    embedder = resolve_embedder(where, store_identity=None, settings=Settings(), emit=print)
    assert np.allclose(embedder.embed([TEXT]), MiniLM(folder()).embed([TEXT]), atol=1e-5)
    assert embedder.embed([]) == []


def test_its_prefixes_are_put_before_questions_and_texts(where):
    configure(
        where, "config_sentence_transformers.json", prompts={"query": "query: ", "passage": "passage: "}
    )
    embedder, plain = OnnxFolder(where), MiniLM(folder())
    assert np.allclose(embedder.embed([TEXT])[0], plain.embed_query("passage: " + TEXT), atol=1e-5)
    assert np.allclose(embedder.embed_query(TEXT), plain.embed_query("query: " + TEXT), atol=1e-5)


def test_its_pooling_is_the_one_that_it_asks_for(where):
    configure(where, "1_Pooling/config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    first = OnnxFolder(where).embed_query(TEXT)
    assert np.isclose(np.linalg.norm(first), 1, atol=1e-5)
    assert first @ MiniLM(folder()).embed_query(TEXT) < 0.99


def test_another_pooling_is_refused(where):
    configure(where, "1_Pooling/config.json", pooling_mode_cls_token=False, pooling_mode_lasttoken=True)
    with pytest.raises(ConfigurationError, match="pooled"):
        OnnxFolder(where)


def test_its_identity_changes_with_its_files(where):
    before = OnnxFolder(where).identity
    assert OnnxFolder(where).identity == before
    assert before.startswith(f"onnx:{where.name}:")
    configure(where, "sentence_bert_config.json", max_seq_length=8)
    assert OnnxFolder(where).identity != before


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"model\.onnx"):
        OnnxFolder(tmp_path)


def test_a_damaged_model_is_an_error_that_names_the_folder(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EmbedderError, match=tmp_path.name):
        OnnxFolder(tmp_path).embed_query(TEXT)
