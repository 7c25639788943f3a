"""A killed or interrupted process loses no acknowledged message, and nothing is done twice: with real signals, on real files."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sql import stored_vectors

from memlayer_core import Memory
from tests.core.storage.crashing_child import CLEARING, POINTS, SETTINGS
from tests.core.storage.interrupted_child import LATER

kills = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
pytestmark = [pytest.mark.each_database, pytest.mark.slow, kills]

HERE = Path(__file__).parent


@pytest.fixture
def where(place, tmp_path) -> dict[str, Any]:
    return {"path": str(tmp_path / "memory"), **place}


def new_seed() -> int:
    seed = int(os.environ.get("MEMLAYER_TEST_SEED", time.time_ns() % 10_000))
    print("MEMLAYER_TEST_SEED =", seed)
    return seed


def spawn(point: str, where: dict[str, Any], first: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "crashing_child.py"), point, json.dumps(where), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def opened(where: dict[str, Any]) -> Memory:
    return Memory.open(embedder="hashing", settings=SETTINGS, **where)


def assert_whole(memory: Memory, acknowledged: list[int]) -> None:
    """Everything acknowledged is there once, is found, and is indexed; nothing else but the one in hand."""
    history = memory.chat(user_id="louis", session_id="s").history()
    there = [int(message.id[1:]) for message in history]
    assert there == sorted(set(there))
    assert set(acknowledged) <= set(there)
    assert memory.flush(60).dead == 0
    db = memory.runtime.db
    filed = [filing.key for filing in db.read(stored_vectors)]
    assert len(filed) == len(set(filed)) == len(there)
    assert memory.admin.status().index == "held"
    assert memory.admin.verify() == []
    for number in acknowledged[:3] + acknowledged[-3:]:
        best = memory.search(f"thing{number}", user_id="louis", limit=1)
        assert best[0].message_ids == (f"m{number}",)
        # among hundreds of nearly equal texts, meaning alone need not bring this one among its first fifty
        expected = {"words", "meaning"} if len(there) <= 50 else {"words"}
        assert expected <= {reason.code for reason in best[0].reasons}


@pytest.mark.parametrize("point", [*(point for point in POINTS if point != "at any moment"), *CLEARING])
def test_a_process_killed(point, where, tmp_path, request) -> None:
    if "database_url" in where and point not in CLEARING:
        where["chroma_url"] = request.getfixturevalue("chroma_url")
    child = spawn(point, where, 0)
    out, err = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, err
    acknowledged = [int(line) for line in out.splitlines()]
    with opened(where) as memory:
        assert_whole(memory, acknowledged)
        gone = memory.chat(user_id="eve").scope.user_bucket.encode()
        files = [path for path in tmp_path.glob("memory/chroma/**/*") if path.is_file()]
        assert [path for path in files if gone in path.read_bytes()] == [], "what was forgotten has left them"


def test_processes_killed_at_any_moment_one_after_the_other(where) -> None:
    chance = random.Random(new_seed())
    acknowledged: list[int] = []
    for _ in range(4):
        child = spawn("at any moment", where, (acknowledged[-1] + 2) if acknowledged else 0)
        acknowledged.append(int(child.stdout.readline()))
        time.sleep(chance.uniform(0.0, 2.0))
        child.kill()
        out, err = child.communicate(timeout=60)
        assert "Traceback" not in err, err  # a warning that a shard was built again is not a failure
        acknowledged.extend(int(line) for line in out.split("\n")[:-1])
    with opened(where) as memory:
        assert_whole(memory, acknowledged)


@pytest.fixture(params=["sqlite", "in memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def anywhere(request, tmp_path) -> dict[str, Any]:
    if request.param == "postgres":
        return {"database_url": request.getfixturevalue("new_postgres_url")}
    return {"path": str(tmp_path / "memory")} if request.param == "sqlite" else {}


@pytest.mark.parametrize(("moment", "wanted"), [("at random", 1000), ("behind the commit", 30)])
def test_interrupts_of_one_writer_among_others_harm_nobody(anywhere, moment, wanted) -> None:
    """Whatever was acknowledged is stored, once; no other thread noticed anything; every later write worked."""
    program, given = str(HERE / "interrupted_child.py"), (moment, json.dumps(anywhere), wanted, new_seed())
    command = [sys.executable, program, *map(str, given)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    assert told["raised"] >= wanted
    for number, writer in enumerate(told["writers"]):
        there, acknowledged = writer["there"], writer["acknowledged"]
        assert writer["problems"] == []
        assert len(there) == len(set(there))
        assert set(acknowledged) <= set(there)
        assert acknowledged[-LATER:] == there[-LATER:]
        if number:  # nobody interrupts it: what it was not told is stored is not
            assert there == acknowledged
