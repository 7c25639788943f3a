"""What memlayer promises about embedders: which one is taken, what its vectors are, and what goes wrong well."""

import asyncio
import hashlib
import http.server
import io
import math
import os
import pickle
import resource
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from chromadb import EmbeddingFunction
from chromadb.utils.embedding_functions import DefaultEmbeddingFunction, ONNXMiniLM_L6_V2
from command_line import ROOT, printed_by
from flaky import FlakyEmbedder
from growth import cost
from hypothesis import given, settings, strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.embeddings import MockEmbedding
from pydantic import Field
from refusals import refused
from tuned import Tuned
from waiting import heard, wait_for

from memlayer_core import Memory, errors
from memlayer_core.events import ProblemBegan, ProblemEnded
from memlayer_core.models import embed, multilingual
from memlayer_core.models.embed import query_vector, resolve_embedder
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.minilm import MiniLM, fetch, folder, is_present
from memlayer_core.models.multilingual import Multilingual
from memlayer_core.runtime import adrive, drive
from memlayer_core.settings import Settings

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both
REAL_MODEL = folder()
LONGER = "a longer one, to be padded: " + "the train to Porto leaves at nine. " * 5
CHAT = ["I am allergic to peanuts.", "", "word " * 600, "北京的天气怎么样", LONGER]


def resolve(choice, recorded=None, dimension=None):
    given = {"store_identity": recorded, "settings": Settings(), "dimension": dimension}
    return resolve_embedder(choice, **given)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give an empty home directory, and no way to fetch the model into it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(ONNXMiniLM_L6_V2, "MODEL_DOWNLOAD_URL", "http://127.0.0.1:9/onnx.tar.gz")
    monkeypatch.setattr(embed, "_failed", set())
    return tmp_path


@pytest.fixture
def english_only(monkeypatch):
    """Hide the multilingual embedder, as if its extra were not installed."""
    monkeypatch.setattr(multilingual, "is_present", lambda: False)


@pytest.fixture(scope="module")
def model():
    if not is_present(REAL_MODEL):
        pytest.skip(f"the MiniLM model is not in {REAL_MODEL}")
    return MiniLM(REAL_MODEL)


JSON_FILES = (f"{name}.json" for name in ("config", "special_tokens_map", "tokenizer_config", "tokenizer"))
FILES = [*JSON_FILES, "model.onnx", "vocab.txt"]


def put_minilm() -> None:
    """Put files of MiniLM where they are looked for."""
    folder().mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder() / name).touch()


def packed() -> bytes:
    """Return an archive of the model, as Chroma fetches it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name in FILES:
            member = tarfile.TarInfo(f"onnx/{name}")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    return made.getvalue()


GOOD = packed()


@pytest.fixture
def publish(monkeypatch) -> Iterator[Callable[..., list[str]]]:
    """Return a function that serves some bytes where Chroma looks for its model. It returns what is asked for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(ONNXMiniLM_L6_V2, "_MODEL_SHA256", hashlib.sha256(GOOD).hexdigest())
    with ExitStack() as stack:

        def start(content: bytes, *, promised: int | None = None, pause: float = 0) -> list[str]:
            asked: list[str] = []

            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    asked.append(self.path)
                    self.send_response(200)
                    self.send_header("Content-Length", str(promised or len(content)))
                    self.end_headers()
                    with suppress(OSError):
                        for place in range(0, len(content), 64):
                            self.wfile.write(content[place : place + 64])
                            time.sleep(pause)

                def log_message(self, *args):
                    pass

            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            address = f"http://127.0.0.1:{server.server_port}/onnx.tar.gz"
            monkeypatch.setattr(ONNXMiniLM_L6_V2, "MODEL_DOWNLOAD_URL", address)
            return asked

        yield start


@pytest.fixture
def where(tmp_path) -> Path:
    """Return the folder that the model is fetched into."""
    return tmp_path / "model" / "onnx"


DRIPS = """
import pathlib, sys
from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2 as Model
from memlayer_core.models.minilm import fetch
Model.MODEL_DOWNLOAD_URL = sys.argv[2]
fetch(pathlib.Path(sys.argv[1]), 60)
"""


class TestFetching:
    def test_several_at_once_fetch_it_once_and_show_progress(self, publish, where, capsys):
        hits = publish(GOOD, pause=0.02)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: fetch(where, 20), range(4)))
        assert is_present(where)
        assert len(hits) == 1
        assert "100%" in capsys.readouterr().err

    def test_one_that_is_too_slow_or_killed_leaves_a_model_that_counts_as_absent(self, publish, where):
        hits, slow = publish(GOOD * 100, pause=0.2), where.parent / "slow" / "onnx"
        with pytest.raises(TimeoutError):
            fetch(slow, 0.5)
        assert not is_present(slow)
        hits.clear()
        command = [sys.executable, "-c", DRIPS, str(where), ONNXMiniLM_L6_V2.MODEL_DOWNLOAD_URL]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as child:
            wait_for(lambda: hits or child.poll() is not None)
            assert child.poll() is None
            child.kill()
        assert not is_present(where)
        publish(GOOD)
        fetch(where, 20)
        assert is_present(where)

    def test_takes_an_archive_at_hand_and_completes_a_half_unpacked_folder(self, publish, where):
        where.mkdir(parents=True)
        (where / "model.onnx").write_text("half")
        (where.parent / "onnx.tar.gz").write_bytes(GOOD)
        hits = publish(b"")
        fetch(where, 20)
        assert is_present(where)
        assert (hits, (where / "model.onnx").read_bytes()) == ([], b"abc")


HASHING, MINILM = "hashing-1024-v1", "minilm-l6-v2"


@pytest.mark.usefixtures("english_only")
class TestTheChoice:
    def test_auto_fetches_minilm_where_it_can_and_does_not_try_again_if_that_failed(self, home, publish):
        hits = publish(GOOD[:100], promised=len(GOOD))
        assert {resolve("auto").identity for _ in range(3)} == {HASHING}
        assert len(hits) == 1
        embed._failed.clear()
        publish(GOOD)
        assert resolve("auto").identity == MINILM
        assert is_present(folder())

    def test_auto_without_minilm_falls_back_and_says_once_what_to_do(self, home, monkeypatch, caplog):
        for _ in range(2):
            assert resolve("auto").identity == HASHING
        (warning,) = (one.getMessage() for one in caplog.records if one.name == "memlayer")
        for way in ('embedder="hashing"', "onnx.tar.gz", "memlayer-core[multilingual]"):
            assert way in warning
        put_minilm()
        assert resolve("auto").identity == MINILM, "it appeared after the failure"

        def homeless():
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", homeless)
        assert resolve("auto").identity == HASHING

    def test_auto_keeps_what_the_store_was_built_with_and_never_replaces_or_guesses_it(self, home, caplog):
        assert resolve("auto", recorded=HASHING).identity == HASHING
        three = "go online", "onnx.tar.gz", "memlayer reindex --embedder hashing"
        for choice, recorded, ways in (("auto", MINILM, three), ("minilm", None, ['embedder="hashing"'])):
            hint = refused(errors.EmbedderError, None, resolve, choice, recorded=recorded)
            assert [way for way in ways if way not in hint] == []
        put_minilm()
        for recorded in (HASHING, MINILM):
            assert resolve("auto", recorded=recorded).identity == recorded
        hint = refused(errors.ConfigurationError, "langchain:a", resolve, "auto", recorded="langchain:a.B:c")
        assert "memlayer reindex" in hint
        assert caplog.records == []

    def test_what_is_no_embedder_is_refused(self):
        async def embed_later(texts):
            return [[1.0]] * len(texts)

        for wrong in ("openai:ada", None, HashingEmbedder, embed_later):
            refused(errors.ConfigurationError, None, resolve, wrong)

    def test_choosing_imports_neither_a_model_nor_a_framework(self):
        code = (
            "import sys; from memlayer_core.models.embed import resolve_embedder as r;"
            "from memlayer_core.settings import Settings;"
            "r('hashing', store_identity=None, settings=Settings()).embed(['a']);"
            "print([m for m in ('onnxruntime','tokenizers','chromadb','httpx','tqdm','langchain_core',"
            "'llama_index') if m in sys.modules])"
        )
        assert printed_by(code) == "[]"


def finds_the_dog(embedder, *texts: str) -> bool:
    dog, tax = embedder.embed(texts)
    query = embedder.embed_query("Does the pet enjoy the seaside?")
    return query @ dog > query @ tax + 0.2


class TestMiniLM:
    @pytest.mark.slow
    def test_gives_the_vectors_of_chromas_own_function_alone_among_others_and_in_threads(self, model):
        expected = ONNXMiniLM_L6_V2()(CHAT)
        with ThreadPoolExecutor(6) as threads:
            together = list(threads.map(lambda _: model.embed(CHAT), range(6)))
        for vectors in (model.embed(CHAT), [model.embed_query(text) for text in CHAT], *together):
            for one, other in zip(vectors, expected, strict=True):
                assert (one.dtype, one.shape) == (np.float32, (384,))
                assert float(one @ other) > 0.9999

    def test_finds_a_paraphrase_without_a_common_word_and_takes_any_text(self, model):
        assert finds_the_dog(model, "My dog loves the beach", "Tax forms are due in April")
        for text in ("\ud800 half a pair", "\x00", "\u200b", "a" * 50_000):
            assert np.isfinite(model.embed_query(text)).all()
        sentence = "The garden is full of roses. "
        assert float(model.embed_query(" " * 30_000 + sentence) @ model.embed_query(sentence)) > 0.9999

    def test_megabytes_of_text_cost_about_as_much_as_its_beginning(self, model):
        beginning = "the garden is " * 400
        text = beginning + "x y " * 1_000_000
        assert float(model.embed_query(text) @ model.embed_query(beginning)) > 0.9999
        costs = [cost(lambda one=one: model.embed_query(f"{time.time()} {one}")) for one in (text, beginning)]
        assert costs[0] < 10 * costs[1]

    def test_a_question_is_not_embedded_again_when_it_is_stored(self, model):
        asked = model.embed_query("Where are my keys?")
        assert model.embed(["On the piano.", "Where are my keys?"])[1] is asked

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_a_forked_child_loads_its_own_and_comes_to_its_end(self, model):
        code = (
            "import os, sys\n"
            "from memlayer_core.models.minilm import MiniLM, folder\n"
            "model = MiniLM(folder())\n"
            "before = model.embed(['hello there'] * 40)\n"
            "if os.fork() == 0:\n"
            "    assert not __import__('memlayer_core.models.minilm').models.minilm._models\n"
            "    after = model.embed(['Hello there'] * 40)\n"
            "    sys.exit(7 if abs(float(before[0] @ after[0]) - 1) < 1e-3 else 1)\n"
            "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        )
        assert printed_by(code) == "7"

    def test_the_runtime_is_imported_with_its_telemetry_off(self, model):
        # `_runtime` says so by a variable that the import reads, and takes back.
        code = (
            "import os, sys\n"
            "class Spy:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'onnxruntime': print(os.environ.get('ORT_DISABLE_TELEMETRY'))\n"
            "sys.meta_path.insert(0, Spy())\n"
            "os.environ.pop('ORT_DISABLE_TELEMETRY', None)\n"
            "from memlayer_core.models.minilm import MiniLM, folder\n"
            "MiniLM(folder()).embed(['a'])\n"
            "print('ORT_DISABLE_TELEMETRY' in os.environ)\n"
        )
        assert printed_by(code).split() == ["1", "False"]

    def test_damaged_files_are_an_error_that_names_the_folder_of_the_moments_home(self, home):
        put_minilm()
        with pytest.raises(errors.EmbedderError, match="cannot be run") as caught:
            resolve("minilm").embed(["a"])
        assert str(folder()) in str(caught.value)
        assert "Delete that folder" in caught.value.hint


SIMILAR = [
    ("Is she allergic to peanuts?", "Her peanut allergy is serious.", "She is the best of them all."),
    ("recieved parcel", "The parcel was received today.", "Nothing came up at the meeting."),
    ("STRASSE", "Die Straße ist lang.", "Das Haus ist alt."),
    ("北京天气", "今天北京的天气很好", "我喜欢上海的美食"),
    ("ｃａｆé", "We met in a cafe\u0301.", "We met in a library."),
    ("हिन्दी किताब", "मुझे यह किताब पसंद है", "आज मौसम अच्छा था"),
    ("Who plays in Anna's orchestra?", "Anna plays the violin in an orchestra on Sundays.", "Thanks, Anna!"),
]
"""Questions, each with a text that is meant and one that is not."""


class TestHashing:
    embedder = HashingEmbedder()

    def test_gives_unit_vectors_of_1024_of_any_text_and_one_for_all_without_a_word(self):
        first, *others = self.embedder.embed(["", "  \n", "?!", "\u200b"])
        assert all((first == other).all() for other in others)
        texts = self.embedder.embed([*CHAT, "\ud800 half", "x" * 2_000_000, "𐀀", "\x00"])
        for vector in [first, *texts, *map(self.embedder.embed_query, ("where?", "?!"))]:
            assert (vector.dtype, vector.shape) == (np.float32, (1024,))
            assert math.isclose(float(vector @ vector), 1, abs_tol=1e-5)

    def test_is_the_same_in_every_process_and_its_rules_change_only_with_its_version(self):
        # Where the strongest parts of a vector lie. Stores keep vectors: give `IDENTITY` a new version first.
        code = (
            "from memlayer_core.models.hashing import HashingEmbedder as H; import numpy as n;"
            "v = H().embed_query('peanut allergy'); print(sorted(n.argsort(-abs(v), kind='stable')[:4].tolist()));"
            "print(H().embed(['Anna likes 北京 and tea'])[0].tobytes().hex())"
        )
        (vector,) = self.embedder.embed(["Anna likes 北京 and tea"])
        told = printed_by(code, PYTHONHASHSEED="1")
        assert told == f"[194, 213, 521, 806]\n{vector.tobytes().hex()}"

    def test_finds_words_their_forms_and_their_misspellings(self):
        for query, meant, other in SIMILAR:
            near, far = self.embedder.embed([meant, other])
            vector = self.embedder.embed_query(query)
            assert vector @ near > vector @ far + 0.05, query


def both_vectors(embedder, text="a", question="?"):
    """Return the vectors of a text and of a question, which is the same for blocking and for awaiting callers."""
    pair = embedder.embed([text])[0], embedder.embed_query(question)
    assert all(vector.dtype == np.float32 for vector in pair)
    assert np.allclose(pair[1], asyncio.run(embedder.aembed_query(question)))
    return pair


class Local(BaseEmbedding):
    """An embedder of LlamaIndex whose async method only calls the blocking one. It notes its threads."""

    threads: list = Field(default_factory=list)

    def _get_text_embedding(self, text):
        self.threads.append(threading.current_thread())
        return [1.0]

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


class Secretive(DeterministicFakeEmbedding):
    model: str = "https://me:s3cret@host/model?key=s3cret"
    dimensions: int = 256
    api_key: str = "s3cret"


class Old(EmbeddingFunction):
    """A function of Chroma's of the old kind, which has no name."""

    def __init__(self):
        pass

    def __call__(self, input):
        return [np.array([3.0, 4.0], dtype=np.float32) for _ in input]


class Mine(Old):
    name = staticmethod(lambda: "mine")

    def embed_query(self, input):
        return [np.array([4.0, 3.0], dtype=np.float32) for _ in input]

    def get_config(self):
        return {"model_name": "m1", "api_key": "s3cret"}


class TestOthers:
    def test_langchain(self):
        fake = DeterministicFakeEmbedding(size=12)
        embedder = resolve(fake)
        assert embedder.identity == "langchain:langchain_core.embeddings.fake.DeterministicFakeEmbedding"
        expected = np.array(fake.embed_query("hello"))
        expected /= np.linalg.norm(expected)
        assert np.allclose(both_vectors(embedder, "hello", "hello"), [expected] * 2, atol=1e-6)
        identity = resolve(Secretive(size=2)).identity
        assert identity.endswith("Secretive:https://host/model:256"), "the model and its size, but no secret"

    async def test_llama_index_and_async_callers_ask_it_in_a_thread(self):
        embedder = resolve(MockEmbedding(embed_dim=4))
        assert embedder.identity == "llamaindex:MockEmbedding:unknown"
        assert np.allclose(await asyncio.to_thread(both_vectors, embedder), [[0.5] * 4] * 2)
        local = Local()
        assert resolve(local).identity == f"llamaindex:{__name__}.Local:unknown", "not the base class's name"
        await resolve(local).aembed_query("a")
        assert len(local.threads) == 1
        assert threading.main_thread() not in local.threads

    def test_chroma(self, model):
        embedder = resolve(DefaultEmbeddingFunction())
        assert embedder.identity == "chroma:default"
        assert float(embedder.embed_query("hello") @ model.embed_query("hello")) > 0.9999
        assert resolve(Mine()).identity == "chroma:mine:m1"
        assert np.allclose(both_vectors(resolve(Mine())), [[0.6, 0.8], [0.8, 0.6]])
        assert resolve(Old()).identity.endswith("Old")

    def test_a_function_and_a_partial_is_called_with_what_it_was_given(self):
        def scaled(factor, texts):
            return [[len(text), factor] for text in texts]

        embedder = resolve(partial(scaled, 1))
        assert (embedder.identity[:9], embedder.identity[-6:]) == ("callable:", "scaled")
        assert np.allclose(both_vectors(embedder, "abc", "abc"), [np.array([3, 1]) / math.sqrt(10)] * 2)
        broken = resolve(lambda texts: 1 / 0)
        assert broken.embed([]) == [], "no text calls nothing"
        with pytest.raises(errors.EmbedderError, match="raised ZeroDivisionError") as caught:
            broken.embed(["a"])
        assert caught.value.retryable

    def test_nonsense_is_an_error_that_names_the_embedder(self):
        class Own(HashingEmbedder):
            identity = "mine-v1"

        assert resolve(Own()).identity == "mine-v1"
        for answer, said in (
            ([[1.0]], r"shape \(1, 1\) for 2 texts"),
            ([[1.0, math.nan]] * 2, "NaN"),
            ([[0.0, 0.0]] * 2, "zeros"),
            ([[1.0], [1.0, 2.0]], "not a list of vectors of one length"),
            ([1.0, 2.0], "shape"),
            ([["a"], ["b"]], "not a list of vectors"),
            (None, "not a list of vectors"),
        ):
            wrong = SimpleNamespace(identity="wrong-v1", embed=lambda _, given=answer: given, embed_query=len)
            refused(errors.EmbedderError, f"wrong-v1.*{said}", resolve(wrong).embed, ["a", "b"])

    def test_zeros_for_an_empty_text_become_a_unit_vector_and_large_numbers_are_scaled(self):
        embedder = resolve(lambda texts: [[0.0, 0.0], [3e300, 4e300], [3e-300, 4e-300]])
        assert np.allclose(embedder.embed(["", "a", "b"]), [[1, 0], [0.6, 0.8], [0.6, 0.8]])


@pytest.mark.skipif(not multilingual.is_present(), reason="the extra `multilingual` is missing")
class TestMultilingual:
    embedder = Multilingual()

    def test_finds_a_paraphrase_in_another_language(self):
        assert finds_the_dog(self.embedder, "Mein Hund liebt den Strand", "税表は四月までに提出してください")

    @given(st.text(st.characters(exclude_categories=()), max_size=60))
    @settings(deadline=None)
    def test_any_text_has_a_unit_vector(self, text):
        (vector,) = self.embedder.embed([text])
        assert (vector.dtype, vector.shape) == (np.float32, (512,))
        assert abs(np.linalg.norm(vector) - 1) < 1e-4

    def test_a_lone_surrogate_is_mended_and_a_text_without_a_letter_or_digit_is_near_nothing(self):
        texts = ["", "?!", "👍", "I live in Rome", "I live in Rome \ud800"]
        *nothing, text, broken = self.embedder.embed(texts)
        assert broken @ text > 0.7
        assert all(np.array_equal(one, nothing[0]) for one in nothing)
        assert abs(nothing[0] @ text) < 0.15

    def test_a_text_of_megabytes_costs_as_much_as_its_beginning(self):
        words = "a train to Porto leaves at nine " * 100_000
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (long,) = self.embedder.embed([words])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
        assert np.allclose(long, self.embedder.embed_query(words[:1_200]), atol=1e-4)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    @pytest.mark.slow
    def test_a_fork_while_it_encodes_ends_and_the_child_embeds(self):
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

    def test_auto_takes_it_beside_minilm_and_without_and_a_store_keeps_its_own(self, home, monkeypatch):
        for made_with in (HASHING, MINILM):
            assert resolve("auto").identity == multilingual.IDENTITY == "use-multilingual-v3-0.2.1"
            assert resolve("auto", recorded=made_with).identity == made_with
            put_minilm()
        refused(errors.ConfigurationError, r"0\.1\.0", resolve, "auto", recorded="use-multilingual-v3-0.1.0")
        monkeypatch.setattr(multilingual, "is_present", lambda: False)
        hint = refused(errors.EmbedderError, None, resolve, "auto", recorded=multilingual.IDENTITY)
        assert "memlayer-core[multilingual]" in hint


# A question is asked once, as long as the embedder works.


@pytest.fixture
def embedder():
    return FlakyEmbedder(HashingEmbedder())


@pytest.fixture
def memory(embedder):
    with Memory.in_memory(embedder=embedder, settings=Tuned(index_delay=0.0)) as memory:
        memory.chat(user_id="ada").add("user", "my pet is a parrot")
        memory.flush()
        yield memory


def test_a_question_that_comes_again_is_not_asked_again_as_long_as_it_works(do, embedder, memory):
    def ask(*questions):
        for question in questions:
            assert do(memory, "search", question, user_id="ada") or "parrot" not in question
        return embedder.queries

    assert ask("my parrot", "my parrot") == ["my parrot"]
    vector, _ = drive(query_vector(memory.runtime, "my parrot"))
    assert np.array_equal(vector, HashingEmbedder().embed_query("my parrot"))
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1
    embedder.failing = lambda _: True
    events = heard(memory)
    ask("when?", "my parrot")  # a failure is not kept, and what was known is no sign that it works again
    assert [type(event) for event in events] == [ProblemBegan]
    embedder.failing = lambda _: False
    assert ask("my parrot", "my parrot") == ["my parrot", "when?", "my parrot", "my parrot"]
    assert [type(event) for event in events] == [ProblemBegan, ProblemEnded]
    embedder.failing = "a text".__eq__
    memory.chat(user_id="ada").add("user", "a text")  # in the background
    wait_for(lambda: memory.admin.status().problems)
    assert ask("my parrot", "my parrot")[4:] == ["my parrot"]


async def test_the_last_questions_are_kept_without_their_texts_for_every_loop(embedder, memory):
    async def ask(question):
        return await adrive(query_vector(memory.runtime, question))

    question = "a very long question \ud800" * 20_000
    before, _ = await ask(question)
    assert (await ask(question))[0] is before
    assert len(pickle.dumps(memory.runtime.questions)) < 10_000
    for number in range(300):
        await ask(str(number))
    embedder.queries.clear()
    for kept in ("299", "44", "43"):
        await asyncio.to_thread(lambda kept=kept: asyncio.run(ask(kept)))
    assert embedder.queries == ["43"]
