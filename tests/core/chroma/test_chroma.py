"""The index in Chroma, against real Chroma: a directory, and a server."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memlayer_core
from memlayer_core.chroma import ChromaServer, EmbeddedChroma
from memlayer_core.errors import (
    ConfigurationError,
    IndexCorruptError,
    IndexUnavailableError,
)
from memlayer_core.scope import Scope
from memlayer_core.seams import IndexEntry, Sample

STORE = "5c7a2f0e-1d4b-4c3a-9e8f-0a1b2c3d4e5f"
OTHER = "11111111-2222-4333-8444-555555555555"
DIMENSION = 16


def vector(key: int, dimension: int = DIMENSION) -> np.ndarray:
    made = np.random.default_rng(key).normal(size=dimension).astype(np.float32)
    return made / np.linalg.norm(made)


def filing(key: int, *, shard: int = 0, user: str = "ann", session: str = "s1", dimension: int = DIMENSION):
    scope = Scope(user, session_id=session)
    lanes = (scope.user_lane, scope.agent_lane, scope.session_lane)
    return IndexEntry(key, shard, lanes, vector(key, dimension), f"hash-{key}")


def sample(filings: list[IndexEntry], shard: int = 0) -> Sample:
    return Sample(shard, len(filings), len(filings), tuple(filings[:2] + filings[-2:]))


def found(index, shard: int = 0, *, near: int = 1, lane: str | None = None, limit: int = 1000) -> set[int]:
    return {hit.key for hit in index.nearest(shard, lane, vector(near), limit)}


def python(script: str, *arguments: object, **options) -> subprocess.Popen[str]:
    """Start a process that has this file's helpers and runs `script`."""
    here = Path(__file__).resolve()
    start = (
        "import importlib.util, os, signal, sys, time\n"
        f"spec = importlib.util.spec_from_file_location('claims', {str(here)!r})\n"
        "claims = importlib.util.module_from_spec(spec); sys.modules['claims'] = claims\n"
        "spec.loader.exec_module(claims)\n"
        "from claims import *\n"
    )
    root = str(Path(memlayer_core.__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": root, **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-c", start + script, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        **options,
    )


def said(process: subprocess.Popen[str], *, seconds: float = 60) -> list[str]:
    """Return the lines that a process printed, once it has ended well."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the process hangs; it said {out!r} {err!r}")
    assert process.returncode == 0, (process.returncode, out, err)
    return out.split()


@pytest.fixture
def open_index(tmp_path: Path) -> Iterator:
    opened = []

    def make(name: str = "chroma", *, acquire: bool = True, **options) -> EmbeddedChroma:
        index = EmbeddedChroma(tmp_path / name, **{"store_id": STORE, "shards": 4, **options})
        opened.append(index)
        if acquire:
            assert index.acquire()
        return index

    yield make
    for index in opened:
        index.close()


@pytest.fixture(params=["directory", "server"])
def index(request: pytest.FixtureRequest, open_index):
    if request.param == "directory":
        yield open_index()
        return
    made = ChromaServer(request.getfixturevalue("chroma_url"), store_id=str(uuid.uuid4()), shards=4)
    assert made.acquire()
    yield made
    for shard in range(4):
        made.reset(shard)
    made.close()


# --- what an index does, in a directory and on a server


@pytest.mark.slow
def test_the_nearest_come_first_with_their_cosine(index):
    filings = [filing(key) for key in range(1, 31)]
    index.upsert(filings)
    hits = index.nearest(0, None, vector(7), 5)
    exact = sorted(((float(vector(7) @ row.vector), row.key) for row in filings), reverse=True)[:5]
    assert [hit.key for hit in hits] == [key for _, key in exact]
    assert [hit.similarity for hit in hits] == pytest.approx([cosine for cosine, _ in exact], abs=1e-5)


def test_upserting_twice_is_upserting_once(index):
    index.upsert([filing(1), filing(2)])
    index.upsert([filing(1), filing(2), filing(2)])
    assert index.audit([sample([filing(1), filing(2)])]) == []
    assert len(index.nearest(0, None, vector(1), 10)) == 2


def test_the_last_of_two_filings_of_a_key_counts(index):
    index.upsert([filing(1), replace(filing(1), vector=vector(99))])
    assert index.nearest(0, None, vector(99), 1)[0].similarity == pytest.approx(1, abs=1e-5)


def test_a_message_that_moves_to_other_lanes_leaves_the_old_ones(index):
    index.upsert([filing(1, session="old")])
    index.upsert([filing(1, session="new")])
    old, new = filing(1, session="old").lanes[2], filing(1, session="new").lanes[2]
    assert found(index, lane=old) == set()
    assert found(index, lane=new) == {1}


def test_more_than_a_chunk_is_written_and_removed_in_chunks(index):
    filings = [filing(key) for key in range(1, 251)]
    index.upsert(filings)
    assert index.audit([sample(filings)]) == []
    index.remove(0, [*range(1, 241), 5, 9999])
    assert found(index) == set(range(241, 251))
    index.remove(3, [1])  # a shard that nobody wrote to


def test_a_shard_that_nobody_wrote_to_is_empty(index):
    assert index.nearest(2, None, vector(1), 5) == []
    assert index.audit([Sample(2, 0, 0, ())]) == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_finds_nothing(index, limit):
    index.upsert([filing(1)])
    assert index.nearest(0, None, vector(1), limit) == []


def test_a_limit_beyond_the_count_finds_all(index):
    index.upsert([filing(1), filing(2)])
    assert found(index, limit=10**9) == {1, 2}


def test_reset_empties_one_shard_only(index):
    index.upsert([filing(1), filing(2, shard=1)])
    index.reset(0)
    index.reset(3)
    assert found(index, 0) == set()
    assert found(index, 1) == {2}
    index.upsert([filing(3)])
    assert found(index, 0) == {3}


def test_audit_reports_too_few_too_many_and_strangers(index):
    index.upsert([filing(1), filing(2, shard=1), filing(3, shard=1), filing(4, shard=2)])
    samples = [
        sample([filing(1), filing(9)], 0),
        sample([filing(2, shard=1)], 1),
        Sample(2, 0, 0, ()),
        sample([filing(5, shard=3)], 3),
    ]
    assert index.audit(samples) == [0, 1, 2, 3]


def test_audit_reports_another_vector_and_other_lanes_under_a_key(index):
    index.upsert([filing(1), filing(2, shard=1)])
    assert index.audit([Sample(0, 1, 1, (replace(filing(1), vector=vector(50)),))]) == [0]
    assert index.audit([Sample(1, 1, 1, (filing(2, shard=1, session="else"),))]) == [1]
    assert index.audit([sample([filing(1)]), sample([filing(2, shard=1)], 1)]) == []


def test_equal_texts_are_no_damage(index):
    same = [replace(filing(key), vector=vector(1)) for key in range(1, 60)]
    index.upsert(same)
    assert index.audit([Sample(0, len(same), len(same), tuple(same))]) == []


def test_a_vector_of_another_dimension_is_refused_and_harms_nothing(index):
    index.upsert([filing(1)])
    with pytest.raises(IndexCorruptError, match="dimension 16, got one of 8"):
        index.nearest(0, None, vector(1, 8), 1)
    with pytest.raises(IndexCorruptError, match="dimension 16, got one of 8"):
        index.upsert([filing(2, dimension=8)])
    assert found(index) == {1}


def test_no_document_is_stored(index):
    index.upsert([filing(1)])
    collection = index._shards.collections[0]
    assert collection.get(include=["documents"])["documents"] == [None]
    assert collection.configuration["embedding_function"] is None


def test_before_acquire_and_after_close_it_says_that_it_is_not_held(open_index):
    index = open_index(acquire=False)
    assert not index.held
    with pytest.raises(IndexUnavailableError, match="not held"):
        index.nearest(0, None, vector(1), 1)
    index.close()
    assert index.acquire()
    assert index.acquire()
    index.close()
    assert not index.held
    with pytest.raises(IndexUnavailableError, match="not held"):
        index.upsert([filing(1)])


USERS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=12)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=USERS)
def test_a_lane_never_answers_with_another_lanes_messages(open_index, tmp_path, owners):
    index = open_index(str(uuid.uuid4()))
    index.upsert([filing(key, user=user, session=s) for key, (user, s) in enumerate(owners)])
    for user, s in set(owners):
        lanes = filing(0, user=user, session=s).lanes
        theirs = {key for key, owner in enumerate(owners) if owner[0] == user}
        assert found(index, lane=lanes[0]) == theirs
        assert found(index, lane=lanes[1]) == theirs
        assert found(index, lane=lanes[2]) == {key for key, owner in enumerate(owners) if owner == (user, s)}
    index.close()


def test_searches_and_writes_of_many_threads_do_not_disturb_each_other(index):
    index.upsert([filing(1)])
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                index.upsert([filing(1000 * number + step)])
                assert 1 in found(index)
        except BaseException as problem:
            wrong.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(found(index)) == 31


# --- collections that are not what they should be


def test_another_embedder_means_rebuilding(open_index):
    known = ("minilm", DIMENSION)
    index = open_index(embedder=lambda: known)
    index.upsert([filing(1)])
    assert index.audit([sample([filing(1)])]) == []
    index.close()

    known = ("hashing", DIMENSION)
    assert index.acquire()
    assert index.audit([sample([filing(1)])]) == [0]
    with pytest.raises(IndexCorruptError, match="'minilm' with dimension 16, not for 'hashing'"):
        index.nearest(0, None, vector(1), 1)
    index.reset(0)
    index.upsert([filing(1)])
    assert index.audit([sample([filing(1)])]) == []
    assert index.repaired is None


def test_another_dimension_means_rebuilding(open_index):
    known = ("minilm", 8)
    index = open_index(embedder=lambda: known)
    index.upsert([filing(1, dimension=8)])
    index.close()
    known = ("minilm", DIMENSION)
    assert index.acquire()
    assert index.audit([sample([filing(1)])]) == [0]
    index.reset(0)
    index.upsert([filing(1)])
    assert index.audit([sample([filing(1)])]) == []


def test_a_collection_of_another_space_is_not_taken_for_ours(open_index):
    index = open_index()
    index.upsert([filing(2, shard=1)])
    index._shards.client().create_collection(
        index._shards.name(0),
        embedding_function=None,
        configuration={"hnsw": {"space": "l2"}},
        metadata={"memlayer": 1, "embedder": "", "dimension": DIMENSION},
    )
    with pytest.raises(IndexCorruptError, match="space 'l2'"):
        index.upsert([filing(1)])
    assert index.audit([Sample(0, 0, 0, ())]) == [0]
    index.reset(0)
    index.upsert([filing(1)])
    assert found(index) == {1}


# --- one owner


def test_two_spellings_of_a_path_are_one_directory_with_one_owner(open_index, tmp_path, monkeypatch):
    first = open_index()
    (tmp_path / "link").symlink_to(tmp_path / "chroma")
    monkeypatch.chdir(tmp_path)
    for spelling in (Path("chroma"), Path("link"), tmp_path / "x" / ".." / "chroma"):
        second = EmbeddedChroma(spelling, store_id=STORE, shards=4)
        assert second.directory == first.directory
        assert not second.acquire()
        assert not second.held
    first.close()
    assert second.acquire()
    second.close()


def test_an_owner_that_was_forgotten_lets_go(open_index, tmp_path):
    index = EmbeddedChroma(tmp_path / "chroma", store_id=STORE, shards=4)
    assert index.acquire()
    index.upsert([filing(1)])
    del index
    gc.collect()
    heir = open_index()
    assert heir.repaired is None
    assert found(heir) == {1}


def open_files_below(directory):
    files = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            files.append(str(link.readlink()))
    return [file for file in files if str(directory) in file]


def test_close_leaves_no_open_file_and_no_marker(open_index, tmp_path):
    index = open_index(sync_threshold=10)
    index.upsert([filing(key) for key in range(50)])
    assert (tmp_path / "chroma.open").exists()
    index.close()
    assert not (tmp_path / "chroma.open").exists()
    if Path("/proc/self/fd").exists():
        deadline = time.monotonic() + 10
        while open_files_below(tmp_path):  # Chroma's own threads close them a moment later
            assert time.monotonic() < deadline, open_files_below(tmp_path)
            time.sleep(0.05)
    assert index.acquire()
    assert index.audit([sample([filing(key) for key in range(50)])]) == []


HOLD = """
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE, shards=4)
assert index.acquire()
index.upsert([filing(1)])
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_second_process_waits_until_the_first_is_gone_and_then_takes_over(open_index, tmp_path):
    owner = python(HOLD, tmp_path / "chroma")
    try:
        assert owner.stdout.readline() == "held\n"
        index = open_index(acquire=False)
        assert index.acquire() is False
        assert index.held is False
    finally:
        owner.kill()
        owner.communicate()
    assert index.acquire()
    assert index.repaired is None
    assert index.audit([sample([filing(1)])]) == []


FORK = """
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE, shards=4)
assert index.acquire()
index.upsert([filing(1)])
for _ in range(2):  # the second child shows that the first one did not take the lock with it
    child = os.fork()
    if child == 0:
        assert not index.held
        assert not index.acquire()
        index.close()
        sys.exit(7)  # through the interpreter's end, where Chroma would wait for threads that are not there
    end = time.monotonic() + 15
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < end, os.kill(child, signal.SIGKILL) or "the child hangs"
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(done[1]) == 7, done
index.upsert([filing(2)])
print(*sorted(found(index)))
index.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_holds_nothing_ends_in_peace_and_leaves_the_parent_its_lock(tmp_path):
    assert said(python(FORK, tmp_path / "chroma")) == ["1", "2"]


ORPHAN = """
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE, shards=4)
assert index.acquire()
index.upsert([filing(1)])
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
def test_a_forked_child_leaves_its_dead_parents_index_to_processes_that_can_use_it(open_index, tmp_path):
    process = python(ORPHAN, tmp_path / "chroma")
    out, err = process.communicate(timeout=60)  # ends when the child has closed its output
    assert out.split() == ["refused", "True", "True"], err
    index = open_index()
    assert index.repaired is None
    assert found(index) == {1}


# --- open files


LIMITED = """
import resource
shards, hard = int(sys.argv[2]), int(sys.argv[3])
before = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, before)))
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE, shards=shards)
try:
    index.acquire()
except IndexUnavailableError as problem:
    print("refused", problem.retryable, "ulimit" in problem.hint)
    sys.exit()
for base in (0, 10_000):
    for shard in range(shards):
        index.upsert([filing(base + 10 * shard + row, shard=shard) for row in range(5)])
missing = 0
for shard in range(shards):
    wanted = {base + 10 * shard + row for base in (0, 10_000) for row in range(5)}
    try:
        missing += found(index, shard) != wanted
    except IndexCorruptError:
        missing += 1
print("missing", missing)
index.close()
"""


def _limits() -> int:
    resource = pytest.importorskip("resource", reason="limits of a process are Unix only")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


@pytest.mark.slow
def test_a_low_limit_of_open_files_is_raised_and_no_vector_is_missing(tmp_path):
    if _limits() < 320 * 40:
        pytest.skip("the hard limit is too low here")
    assert said(python(LIMITED, tmp_path / "chroma", 40, 2**30)) == ["missing", "0"]


@pytest.mark.slow
def test_a_limit_that_cannot_be_raised_is_refused_with_a_hint(tmp_path):
    _limits()
    assert said(python(LIMITED, tmp_path / "chroma", 16, 5000)) == ["refused", "True", "True"]


def test_the_stores_of_a_process_share_its_descriptors(monkeypatch):
    from memlayer_core.chroma import places

    monkeypatch.setattr(places, "_raise_limit", lambda needed: 5120)
    places.make_room(16, 0)
    places.make_room(16, 900)
    with pytest.raises(IndexUnavailableError, match="1000 more"):
        places.make_room(16, 1000)
    with pytest.raises(IndexUnavailableError):
        places.make_room(17, 0)


# --- damage


def _fill(open_index, **options) -> tuple[EmbeddedChroma, list[Sample], Path]:
    """Return a closed index with two persisted shards, what it holds, and the first one's files."""
    index = open_index(sync_threshold=20, **options)
    filings = [[filing(1000 * shard + row, shard=shard) for row in range(60)] for shard in range(2)]
    segments = []
    for rows in filings:
        index.upsert(rows)
        segments += [path for path in index.directory.iterdir() if path.is_dir() and path not in segments]
    index.close()
    return index, [sample(rows, shard) for shard, rows in enumerate(filings)], segments[0]


def _rebuild(index: EmbeddedChroma, shards: list[int]) -> None:
    for shard in shards:
        index.reset(shard)
        index.upsert([filing(1000 * shard + row, shard=shard) for row in range(60)])


@pytest.mark.slow
@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("index_metadata.pickle", 0),
        ("index_metadata.pickle", 300),
        ("data_level0.bin", 5000),
        ("link_lists.bin", 100),
        ("link_lists.bin", 10**12),
        ("length.bin", 40),
        ("header.bin", 20),
        ("header.bin", 0),
    ],
)
def test_torn_files_are_noticed_before_chroma_reads_them(open_index, tmp_path, name, size, unclean):
    index, samples, segment = _fill(open_index)
    os.truncate(segment / name, size)
    if unclean:
        (tmp_path / "chroma.open").touch()
    assert index.acquire()
    assert "torn" in index.repaired
    assert index.audit(samples) == [0, 1]
    _rebuild(index, [0, 1])
    assert index.audit(samples) == []


def test_an_index_whose_last_persist_was_not_finished_is_begun_anew(open_index, tmp_path):
    index, samples, segment = _fill(open_index)
    later = time.time() + 5
    os.utime(segment / "data_level0.bin", (later, later))
    assert index.acquire()
    assert index.repaired is None  # a clean close: ages may come from a backup
    index.close()
    (tmp_path / "chroma.open").touch()
    assert index.acquire()
    assert "not finished" in index.repaired
    assert index.audit(samples) == [0, 1]


@pytest.mark.slow
def test_what_looks_whole_and_is_not_is_tried_out_in_another_process(open_index, tmp_path):
    index, samples, segment = _fill(open_index)
    pickled = segment / "index_metadata.pickle"
    kept = pickled.stat().st_size
    pickled.write_bytes(b"\x00" * (kept - 1) + b".")
    (tmp_path / "chroma.open").touch()
    assert index.acquire()
    assert "trying it out" in index.repaired
    assert index.audit(samples) == [0, 1]
    _rebuild(index, [0, 1])
    assert index.audit(samples) == []


@pytest.mark.parametrize("left", ["closed", "open", "without a seal"])
def test_noise_in_a_graph_kills_a_child_and_not_this_process(open_index, tmp_path, left):
    """Whoever left the files: the sizes are right, and the times are old."""
    index, samples, segment = _fill(open_index)
    graph = segment / "data_level0.bin"
    written, noise = graph.stat().st_mtime_ns, bytearray(graph.read_bytes())
    noise[len(noise) // 20 : len(noise) // 2] = b"\xa5" * (len(noise) // 2 - len(noise) // 20)
    graph.write_bytes(noise)
    os.utime(graph, ns=(written, written))
    if left == "open":
        (tmp_path / "chroma.open").touch()
    if left == "without a seal":
        (tmp_path / "chroma.closed").unlink()
    assert index.acquire()
    assert "trying it out" in index.repaired
    _rebuild(index, [0, 1])
    assert index.audit(samples) == []
    index.repaired = None
    index.close()
    assert index.acquire()
    assert index.repaired is None, "what was closed and is as it was is not tried out"


def test_trying_out_has_an_end(open_index, tmp_path):
    index, samples, _ = _fill(open_index, probe_seconds=0.01)
    (tmp_path / "chroma.open").touch()
    assert index.acquire()
    assert "0.01 seconds" in index.repaired
    assert index.audit(samples) == [0, 1]


@pytest.mark.slow
def test_an_unclean_death_that_did_no_harm_costs_nothing(open_index, tmp_path):
    index, samples, _ = _fill(open_index)
    (tmp_path / "chroma.open").touch()
    assert index.acquire()
    assert index.repaired is None
    assert index.audit(samples) == []


@pytest.mark.parametrize("offset", [0, 3 * 4096])
def test_a_broken_database_is_begun_anew(open_index, tmp_path, offset):
    index, samples, _ = _fill(open_index)
    with (tmp_path / "chroma" / "chroma.sqlite3").open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 4096 * 20)
    assert index.acquire()
    assert index.repaired is not None
    assert index.audit(samples) == [0, 1]
    _rebuild(index, [0, 1])
    assert index.audit(samples) == []


def test_files_that_vanish_are_noticed_by_audit(open_index):
    index, samples, segment = _fill(open_index)
    for path in segment.iterdir():
        path.unlink()
    segment.rmdir()
    assert index.acquire()
    assert index.audit(samples) == [0, 1]  # all is thrown away, and filled again
    _rebuild(index, [0, 1])
    assert index.audit(samples) == []


def test_damage_that_shows_while_in_use_is_left_alone_until_reset(open_index):
    index, samples, segment = _fill(open_index)
    assert index.acquire()
    (segment / "index_metadata.pickle").write_bytes(b"")
    with pytest.raises(IndexCorruptError, match="pickle"):
        index.nearest(0, None, vector(1), 3)
    with pytest.raises(IndexCorruptError, match="must be rebuilt"):
        index.upsert([filing(1)])
    assert 1001 in found(index, 1)
    assert index.audit(samples) == [0]
    _rebuild(index, [0])
    assert index.audit(samples) == []
    assert index.repaired is None


def test_reset_begins_the_whole_directory_anew_when_nothing_else_helps(open_index, monkeypatch):
    index, samples, _ = _fill(open_index)
    assert index.acquire()
    from chromadb.errors import InternalError

    def broken(name):
        raise InternalError("error returned from database: (code: 11) database disk image is malformed")

    monkeypatch.setattr(index._shards.client(), "delete_collection", broken)
    index.reset(0)
    assert "malformed" in index.repaired
    with pytest.raises(IndexCorruptError, match="must be rebuilt"):
        index.nearest(1, None, vector(1), 3)  # it is empty now, and must not pass for complete
    assert index.audit(samples) == [0, 1]
    _rebuild(index, [0, 1])
    assert index.audit(samples) == []


def test_beginning_anew_touches_nothing_that_chroma_did_not_make(open_index, tmp_path):
    index, _, segment = _fill(open_index)
    note = tmp_path / "chroma" / "note.txt"
    note.write_text("mine")
    (segment / "header.bin").write_bytes(b"")
    assert index.acquire()
    assert index.repaired
    assert index.still_there()
    assert note.read_text() == "mine"


def test_files_of_deleted_collections_are_swept_away(open_index):
    index, samples, segment = _fill(open_index)
    assert index.acquire()
    index.reset(0)
    index.close()
    assert segment.exists()
    assert index.acquire()
    assert not segment.exists()
    assert index.audit(samples) == [0]


def test_a_locked_database_is_no_damage(open_index, tmp_path, monkeypatch):
    from chromadb.errors import InternalError

    index = open_index()
    index.upsert([filing(1)])

    def locked(**_):
        raise InternalError("error returned from database: (code: 5) database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(index._shards.collections[0], "upsert", locked)
        with pytest.raises(IndexUnavailableError, match="locked"):
            index.upsert([filing(2)])
    index.upsert([filing(2)])
    assert found(index) == {1, 2}


def test_a_panic_of_chromas_native_part_is_damage(open_index, monkeypatch):
    class PanicException(BaseException):
        pass

    index = open_index()
    index.upsert([filing(1)])

    def panic(**_):
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(index._shards.collections[0], "query", panic)
    with pytest.raises(IndexCorruptError, match="unwrap"):
        index.nearest(0, None, vector(1), 1)
    index.reset(0)
    assert found(index) == set()


KILLED = """
directory, log = Path(sys.argv[1]), Path(sys.argv[2])
index = EmbeddedChroma(directory, store_id=STORE, shards=1, sync_threshold=20)
assert index.acquire()
written = int(log.read_text()) if log.exists() else 0
rows = [filing(key) for key in range(written)]
truth = Sample(0, written, written, tuple(rows[:3] + rows[-20:]))
outcome = "whole"
try:
    index.upsert(rows[-25:])  # the job of a process that vanished runs again
    damaged = index.audit([truth])
except IndexCorruptError:
    damaged = [0]
if damaged:
    outcome = "rebuilt"
    index.reset(0)
    index.upsert(rows)
assert index.audit([truth]) == [], index.repaired
assert all(index.nearest(0, None, row.vector, 1)[0].similarity > 0.999 for row in rows[-50:])
print(outcome, flush=True)
while True:
    written += 25
    log.with_suffix(".new").write_text(str(written))
    log.with_suffix(".new").replace(log)  # the journal comes first
    index.upsert([filing(key) for key in range(written - 25, written)])
"""


@pytest.mark.slow
def test_an_index_killed_while_it_writes_comes_back_right(tmp_path):
    chance = random.Random(20)
    outcomes = []
    for _ in range(4):
        process = python(KILLED, tmp_path / "chroma", tmp_path / "log")
        try:
            outcomes.append(process.stdout.readline().strip())
            time.sleep(chance.uniform(0.1, 0.5))
        finally:
            process.kill()
            _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        assert outcomes[-1] in {"whole", "rebuilt"}, err


# --- the environment that chromadb reads when it is imported


IMPORT = """
index = EmbeddedChroma(Path(sys.argv[1]), store_id=STORE, shards=4)
try:
    index.acquire()
    index.upsert([filing(1)])
except IndexUnavailableError as problem:
    print("MIGRATIONS" in problem.hint, ".env" in problem.hint)
else:
    print("opened")
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "variable"])
def test_a_variable_that_chroma_cannot_take_is_named(tmp_path, place):
    env = {"MIGRATIONS": "auto"} if place == "variable" else {}
    if place == "file":
        (tmp_path / ".env").write_text("MIGRATIONS=auto\n")
    assert said(python(IMPORT, tmp_path / "chroma", cwd=tmp_path, env=env)) == ["True", "True"]


@pytest.mark.slow
def test_variables_that_chroma_takes_do_not_steer_the_index(tmp_path):
    (tmp_path / ".env").write_text("MIGRATIONS=validate\nIS_PERSISTENT=false\nPERSIST_DIRECTORY=/nowhere\n")
    env = {"MIGRATIONS": "validate", "CHROMA_API_IMPL": "chromadb.api.fastapi.FastAPI"}
    assert said(python(IMPORT, tmp_path / "chroma", cwd=tmp_path, env=env)) == ["opened"]
    assert (tmp_path / "chroma" / "chroma.sqlite3").exists()


def test_telemetry_is_off(index):
    index.upsert([filing(1)])
    assert index._shards.client().get_settings().anonymized_telemetry is False


def test_importing_the_module_does_not_import_chroma(tmp_path):
    script = "import memlayer_core.chroma\nprint('chromadb' in sys.modules)"
    assert said(python(script)) == ["False"]


# --- servers


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://host:1",
        "",
        "http://",
        "http://host:notaport",
        "http://me:secret@host:1",
        "chroma",
    ],
)
def test_what_is_no_url_is_refused_without_telling_secrets(url):
    with pytest.raises(ConfigurationError) as caught:
        ChromaServer(url, store_id=STORE, shards=4)
    assert "secret" not in str(caught.value)


def test_a_store_id_must_be_a_uuid(tmp_path):
    with pytest.raises(ConfigurationError, match="UUID"):
        EmbeddedChroma(tmp_path, store_id="mine", shards=4)


def test_an_unreachable_server_says_so_at_once():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        index = ChromaServer(f"http://127.0.0.1:{closed.getsockname()[1]}", store_id=STORE, shards=4)
        began = time.monotonic()
        with pytest.raises(IndexUnavailableError, match="no Chroma server answers") as caught:
            index.acquire()
    assert time.monotonic() - began < 4
    assert caught.value.retryable
    assert not index.held


def test_a_server_that_accepts_and_says_nothing_is_given_up(chroma_url):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        index = ChromaServer(url, store_id=STORE, shards=4, timeout=0.3)
        began = time.monotonic()
        with pytest.raises(IndexUnavailableError):
            index.acquire()
        assert time.monotonic() - began < 4


def test_a_server_that_goes_away_is_unavailable_and_no_damage(chroma_url):
    index = ChromaServer(chroma_url, store_id=str(uuid.uuid4()), shards=4, timeout=0.3)
    assert index.acquire()
    index.upsert([filing(1)])
    session = index._shards.client()._server._session
    index._shards.client()._server._api_url = "http://127.0.0.1:1/api/v2"
    with pytest.raises(IndexUnavailableError):
        index.nearest(0, None, vector(1), 1)
    with pytest.raises(IndexUnavailableError):
        index.audit([sample([filing(1)])])
    assert session.timeout.connect == 0.3
    index.close()


def test_our_requests_to_a_server_are_no_lines_of_the_log_and_others_are(chroma_url, caplog):
    caplog.set_level(logging.INFO)
    index = ChromaServer(chroma_url, store_id=str(uuid.uuid4()), shards=4)
    assert index.acquire()
    index.upsert([filing(1)])
    assert chroma_url not in caplog.text
    logging.getLogger("httpx").info('HTTP Request: GET https://example.org "HTTP/1.1 200 OK"')
    assert "https://example.org" in caplog.text
    index.close()
    logging.getLogger("httpx").info("HTTP Request: GET %s", chroma_url)
    assert chroma_url in caplog.text


def test_stores_on_one_server_do_not_see_each_other(chroma_url):
    ours, theirs = (ChromaServer(chroma_url, store_id=store, shards=4) for store in (STORE, OTHER))
    assert ours.acquire()
    assert theirs.acquire()
    ours.upsert([filing(1)])
    theirs.upsert([filing(2)])
    assert found(ours) == {1}
    assert found(theirs) == {2}
    ours.reset(0)
    assert found(theirs) == {2}
    assert theirs.audit([sample([filing(2)])]) == []
    ours.close()
    theirs.close()


def test_processes_on_one_server_follow_each_others_resets(chroma_url):
    store = str(uuid.uuid4())
    first, second = (ChromaServer(chroma_url, store_id=store, shards=4) for _ in range(2))
    assert first.acquire()
    assert second.acquire()
    first.upsert([filing(1)])
    assert found(second) == {1}
    first.reset(0)
    assert found(second) == set()
    first.upsert([filing(2)])
    assert found(second) == {2}
    second.reset(0)
    first.upsert([filing(3)])
    assert found(second) == {3}
    first.close()
    second.close()


def test_chroma_keeps_the_rows_of_no_deleted_collection(open_index, tmp_path):
    index = open_index()
    index.upsert([filing(key) for key in range(40)])
    index.reset(0)
    index.close()
    connection = sqlite3.connect(tmp_path / "chroma" / "chroma.sqlite3")
    rows = connection.execute("SELECT count(*) FROM embeddings_queue").fetchone()
    connection.close()
    assert rows == (0,)
