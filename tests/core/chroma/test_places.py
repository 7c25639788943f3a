"""Where Chroma is: a directory that one process owns at a time, or a server that many share."""

import logging
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_for

from memlayer_core.chroma.directory import EmbeddedChroma
from memlayer_core.chroma.index import ChromaIndex, ChromaServer
from memlayer_core.errors import ConfigurationError, IndexUnavailableError
from memlayer_core.scope import Scope
from memlayer_core.seams import IndexEntry
from memlayer_core.storage.outbox import VectorBatch

ROOT = Path(__file__).parents[3]
STORE = "5c7a2f0e-1d4b-4c3a-9e8f-0a1b2c3d4e5f"
DIMENSION = 16
LAST: dict[tuple[int, int], str] = {}


def vector(key: int) -> np.ndarray:
    made = np.random.default_rng(key).normal(size=DIMENSION).astype(np.float32)
    return made / np.linalg.norm(made)


def write(index: ChromaIndex, *keys: int, shard: int = 0) -> str:
    """Give a collection a batch. Returns its name."""
    scope = Scope("ann", session_id="s1")
    buckets = scope.user_bucket, scope.agent_bucket, scope.session_bucket
    entries = [IndexEntry(key, buckets, (vector(key),), f"hash-{key}") for key in keys]
    before = ("", LAST.get((id(index), shard), ""))
    batch = VectorBatch(shard, dict.fromkeys(keys, 1), entries, ("e", DIMENSION), before)
    index.write(batch)
    LAST[id(index), shard] = batch.name
    return batch.name


def found(index: ChromaIndex, name: str, *, shard: int = 0) -> set[int]:
    return {hit.key for hit in index.nearest(shard, None, vector(1), 1000, [name])}


START = "from tests.core.chroma.test_places import *\n"


def said(script: str, *arguments: object, ends: int = 0, env: dict[str, str] | None = None, **options: Any):
    """Return the words that a process with this file's helpers prints until nobody has its output open."""
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", START + script, *map(str, arguments)]
    options |= {"env": {**os.environ, "PYTHONPATH": path, **(env or {})}, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == ends, done.stdout + done.stderr
    return done.stdout.split()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[EmbeddedChroma]:
    made = EmbeddedChroma(tmp_path / "chroma", store_id=STORE)
    assert made.acquire()
    yield made
    made.close()


# --- a directory


def test_two_spellings_of_a_path_are_one_directory_with_one_owner(index, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "chroma")
    monkeypatch.chdir(tmp_path)
    for spelling in (Path("chroma"), Path("link"), tmp_path / "x" / ".." / "chroma"):
        second = EmbeddedChroma(spelling, store_id=STORE)
        assert second.directory == index.directory
        assert not second.acquire()
        assert not second.is_held
    index.close()
    assert second.acquire()
    second.close()


def open_files_below(directory):
    files = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            files.append(str(link.readlink()))
    return [file for file in files if str(directory) in file]


def test_close_leaves_no_open_file_but_a_seal_and_nobody_uses_what_is_not_held(index, tmp_path):
    name = write(index, *range(300))
    assert not (tmp_path / "chroma.closed").exists()
    index.close()
    assert (tmp_path / "chroma.closed").exists()
    if Path("/proc/self/fd").exists():
        wait_for(lambda: not open_files_below(tmp_path), 10)  # Chroma's own threads close them a moment later
    with pytest.raises(IndexUnavailableError, match="not held"):
        found(index, name)
    assert index.acquire()
    assert found(index, name) == {*range(300)}


FORKS = """
import time

def ended(child):
    end = time.monotonic() + 15
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < end, os.kill(child, signal.SIGKILL) or "the child hangs"
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(done[1])

index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE)
assert index.acquire()
write(index, 1)
for _ in range(2):  # the second child shows that the first one did not take the lock with it
    child = os.fork()
    if child == 0:
        assert not index.is_held
        assert not index.acquire()
        index.close()
        sys.exit(7)  # through the interpreter's end, where Chroma would wait for threads that are not there
    assert ended(child) == 7
print(*sorted(found(index, write(index, 2))), flush=True)
parent = os.getpid()
if os.fork():
    os.kill(parent, signal.SIGKILL)
end = time.monotonic() + 15
try:
    while not index.acquire():
        assert time.monotonic() < end, "the parent's lock outlives it"
        time.sleep(0.02)
except IndexUnavailableError as problem:
    print("refused", "forked" in str(problem), "spawn" in problem.hint)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_hold_nothing_end_in_peace_and_leave_the_index_to_who_can_use_it(tmp_path):
    told = said(FORKS, tmp_path / "chroma", ends=-signal.SIGKILL)
    assert told == ["1", "2", "refused", "True", "True"]
    heir = EmbeddedChroma(tmp_path / "chroma", store_id=STORE)
    assert heir.acquire()
    heir.close()


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE)
assert index.acquire()
missing, names = 0, {}
for base in (0, 10_000):
    for shard in range(40):
        names[shard] = write(index, *range(base + 10 * shard, base + 10 * shard + 5), shard=shard)
for shard in range(40):
    wanted = {base + 10 * shard + row for base in (0, 10_000) for row in range(5)}
    missing += found(index, names[shard], shard=shard) != wanted
print("missing", missing, index.capacity >= 40)
index.close()
"""


@pytest.mark.slow
def test_a_low_limit_of_open_files_is_raised_and_no_vector_is_missing(tmp_path):
    resource = pytest.importorskip("resource", reason="limits of a process are Unix only")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 320 * 40:
        pytest.skip("the hard limit is too low here")
    assert said(LIMITED, tmp_path / "chroma") == ["missing", "0", "True"]


# --- the environment that chromadb reads when it is imported


IMPORT = """
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE)
try:
    index.acquire()
    write(index, 1)
except IndexUnavailableError as problem:
    print("migrations" in str(problem), ".env" in problem.hint)
else:
    print("opened", index._client.get_settings().anonymized_telemetry)
"""


TAKEN = "MIGRATIONS=validate\nIS_PERSISTENT=false\nPERSIST_DIRECTORY=/nowhere\n"
STEERS = {"MIGRATIONS": "validate", "CHROMA_API_IMPL": "chromadb.api.fastapi.FastAPI"}


@pytest.mark.slow
def test_a_variable_that_chroma_cannot_take_is_named_and_no_other_steers_it(tmp_path):
    named = ["True", "True"]
    auto = ("MIGRATIONS=auto\n", {}, named), ("", {"MIGRATIONS": "auto"}, named)
    for file, env, told in (*auto, (TAKEN, STEERS, ["opened", "False"])):
        (tmp_path / ".env").write_text(file)
        assert said(IMPORT, tmp_path / "chroma", cwd=tmp_path, env=env) == told
        assert (tmp_path / "chroma" / "chroma.sqlite3").exists() is (told[0] == "opened")


# --- servers


def test_what_is_no_url_is_refused_without_telling_secrets():
    wrong = "localhost:8000 ftp://host:1 http:// http://host:notaport http://me:secret@host:1 chroma"
    for url in (*wrong.split(), ""):
        with pytest.raises(ConfigurationError) as caught:
            ChromaServer(url, store_id=STORE)
        assert "secret" not in str(caught.value)


def test_a_server_that_does_not_answer_is_given_up():
    for listen in (lambda _: None, socket.socket.listen):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            listen(silent)
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            index = ChromaServer(url, store_id=STORE, timeout=0.3)
            assert index.acquire()
            with pytest.raises(IndexUnavailableError, match="no Chroma server answers") as caught:
                write(index, 1)
            assert caught.value.retryable


def test_our_requests_to_a_server_are_no_lines_of_the_log_and_others_are(chroma_url, caplog):
    caplog.set_level(logging.INFO)
    index = ChromaServer(chroma_url, store_id=str(uuid.uuid4()))
    assert index.acquire()
    write(index, 1)
    assert chroma_url not in caplog.text
    logging.getLogger("httpx").info('HTTP Request: GET https://example.org "HTTP/1.1 200 OK"')
    assert "https://example.org" in caplog.text
    index.close()
    logging.getLogger("httpx").info("HTTP Request: GET %s", chroma_url)
    assert chroma_url in caplog.text
