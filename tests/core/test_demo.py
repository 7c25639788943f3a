"""The demo: a newcomer sees, without a key and without a network, what the memory does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import ParrotFakeChatModel
from langchain_core.outputs import ChatResult
from typer.testing import CliRunner, Result

from memlayer_core import Memory
from memlayer_core.cli import app
from memlayer_core.demo import child
from memlayer_core.demo.cast import playing
from memlayer_core.demo.locomo import DataFormatError, read, read_all
from memlayer_core.demo.script import STORY, USER
from memlayer_core.demo.turn import ModelFailedError, Stage

MEMLAYER = Path(sys.executable).parent / "memlayer"
NO_NETWORK = """
    import os, socket
    def refuse(self, address, *rest):
        if self.family != socket.AF_UNIX:
            with open(os.environ["TRIED"], "a") as file:
                file.write(f"{address}\\n")
            raise OSError("no network here")
    socket.socket.connect = socket.socket.connect_ex = refuse
"""


class Stand:
    """A directory with modules of our own in front of the installed ones, and the command that sees them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tried = directory / "tried"
        self.module("sitecustomize", NO_NETWORK)

    def module(self, name: str, source: str) -> None:
        file = self.directory / "modules" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(source))

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.directory / "modules"),
            "TRIED": str(self.tried),
            "COLUMNS": "160",
            "HOME": str(self.directory),
        }
        return subprocess.run(
            [MEMLAYER, "demo", *arguments],
            env=environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stand, str]:
    """Play the story once for all tests that only look at it."""
    stand = Stand(tmp_path_factory.mktemp("demo"))
    ended = stand.run("--embedder", "hashing", "--path", "kept")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return stand, ended.stdout


def test_both_frameworks_play(played: tuple[Stand, str]):
    _, shown = played
    assert re.search(r"Session 1 of 3 .* 10 weeks ago .* LangChain\b", shown)
    assert re.search(r"Session 2 of 3 .* 3 weeks ago .* LlamaIndex\b", shown)
    assert "MemlayerChatMessageHistory" in shown
    assert "SimpleChatEngine with MemlayerMemory" in shown
    assert "not installed" not in shown


def test_no_connection_is_tried(played: tuple[Stand, str]):
    stand, _ = played
    assert not stand.tried.exists(), stand.tried.read_text()


def test_the_model_is_called_scripted_and_the_way_to_a_real_one_is_named(played: tuple[Stand, str]):
    _, shown = played
    assert "The model in this demo is scripted" in " ".join(shown.split())
    assert "--model openai:" in shown
    answers = [line for line in shown.splitlines() if line.lstrip().startswith("scripted ")]
    assert len(answers) == sum(len(part.lines) for part in STORY)


def test_the_first_session_was_another_process_and_was_killed(played: tuple[Stand, str]):
    _, shown = played
    first = int(re.search(r"In a process of its own, pid (\d+)", shown)[1])
    second = int(re.search(r"This process, pid (\d+)", shown)[1])
    assert first != second
    assert f"Process {first} was killed (SIGKILL)" in shown
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert "8 messages are there" in shown


def test_the_question_is_answered_from_weeks_back_and_everything_is_accounted_for(played: tuple[Stand, str]):
    _, shown = played
    part = shown[shown.index("What the model was given for this question") :]
    recall = part[part.index("Recall, from before the window") : part.index("Window, the newest")]
    assert "Lena collects old maps" in recall
    day = datetime.fromisoformat(re.search(r"(\d{4}-\d\d-\d\d) +user +\d+ Lena collects", recall)[1])
    assert 68 <= (datetime.now() - day).days <= 72  # noqa: DTZ005  (whole weeks are meant)
    assert re.search(r"Summary slot\s+empty", part)
    assert "What did I want to bring Lena" in part[part.index("Window, the newest") :]
    tokens, limit = map(int, re.search(r"(\d+) of (\d+) tokens \(", part).groups())
    assert 0 < tokens <= limit == 800
    assert "花生过敏" in part[part.index("What was recalled for it") :]


def test_what_reached_the_model_through_the_framework_is_what_is_shown(played: tuple[Stand, str]):
    _, shown = played
    panel = shown[shown.index("that reached the model") : shown.index("╰", shown.index("that reached"))]
    assert "Lena collects old maps" in panel
    assert "What did I want to bring Lena" in panel


def test_a_named_directory_stays_and_holds_every_session_with_its_date(played: tuple[Stand, str]):
    stand, shown = played
    with Memory.open(stand.directory / "kept") as memory:
        sessions = {found.scope.session_id: found for found in memory.sessions(user_id=USER)}
        assert {name: found.messages for name, found in sessions.items()} == {
            part.session_id: 2 * len(part.lines) for part in STORY
        }
        assert memory.status().backlog.queued == 0
        for part in STORY:
            said = memory.chat(user_id=USER, session_id=part.session_id).history()
            ages = {(sessions["packing"].updated_at - message.created_at).days for message in said}
            assert ages == {7 * part.weeks_ago}
    assert "memlayer inspect kept --user maya" in shown


def test_a_directory_that_holds_a_memory_is_refused(played: tuple[Stand, str]):
    stand, _ = played
    before = (stand.directory / "kept" / "journal.sqlite3").read_bytes()
    ended = CliRunner().invoke(app, ["demo", "--path", str(stand.directory / "kept")])
    assert ended.exit_code == 2
    assert "already" in ended.stderr
    assert (stand.directory / "kept" / "journal.sqlite3").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "others"),
    [
        (["llama_index"], ["LangChain"] * 3),
        (["langchain_core"], ["LlamaIndex"] * 3),
        (["langchain_core", "llama_index"], ["plain Python"] * 3),
    ],
)
def test_without_a_framework_the_demo_says_so_goes_on_and_clears_up(
    stand: Stand, missing: list[str], others: list[str]
):
    for name in missing:
        stand.module(name, 'raise ImportError("not here")')
    ended = stand.run("--embedder", "hashing")
    assert ended.returncode == 0, ended.stderr
    for name in missing:
        extra = {"llama_index": "llamaindex", "langchain_core": "langchain"}[name]
        assert f"{extra} is not installed" in ended.stdout
        assert f"pip install 'memlayer-core[{extra}]'" in ended.stdout
    assert re.findall(r"Session \d of 3 · .*? · (\w+(?: \w+)?) ─", ended.stdout) == others
    assert "Lena collects old maps" in ended.stdout[ended.stdout.index("Recall, from before") :]
    named = Path(re.search(r"Memory: (\S+)", ended.stdout)[1])
    assert f"{named} has been removed" in ended.stdout
    assert not named.exists()


@pytest.mark.slow
def test_a_named_model_answers_and_is_not_called_scripted(stand: Stand):
    stand.module(
        "langchain_ollama",
        """
        from langchain_core.language_models.fake_chat_models import ParrotFakeChatModel

        class ChatOllama(ParrotFakeChatModel):
            model: str
        """,
    )
    ended = stand.run("--embedder", "hashing", "--model", "ollama:parrot")
    assert ended.returncode == 0, ended.stderr
    assert "answered by ollama:parrot, a real model" in ended.stdout
    assert "The LlamaIndex part stays scripted" in ended.stdout
    voices = re.findall(r"^ +(model|scripted) ", ended.stdout, re.MULTILINE)
    assert [voices.count("model"), voices.count("scripted")] == [7, 2]
    assert re.search(r"model Hi, I'm Maya\.", ended.stdout)  # the parrot, in the first process too


def test_a_model_that_raises_is_told_in_its_words(memory: Memory, monkeypatch: pytest.MonkeyPatch):
    class ChatOllama(ParrotFakeChatModel):
        model: str

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise ConnectionError("nobody answers at the model's door")

    monkeypatch.setitem(sys.modules, "langchain_ollama", SimpleNamespace(ChatOllama=ChatOllama))
    stage = Stage(memory.chat(user_id="ada"), 500, (), "ollama:mute")
    with pytest.raises(
        ModelFailedError, match=r"ollama:mute raised ConnectionError: nobody answers"
    ) as raised:
        playing("langchain").player(stage).ask("Hello?")
    assert raised.value.hint


@pytest.mark.parametrize("model", ["openai:gpt-5-mini", "nonsense"])
def test_a_model_that_cannot_be_made_is_told_before_anything_is_written(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "langchain_openai", None)
    ended = CliRunner().invoke(app, ["demo", "--model", model, "--path", str(tmp_path / "none")])
    assert ended.exit_code == 1
    assert f"the model '{model}' cannot be made" in ended.stderr
    assert "Hint:" in ended.stderr
    assert "Traceback" not in ended.output
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_what_the_first_process_told_of_is_durable_when_it_is_killed(tmp_path: Path):
    order = child.Order(str(tmp_path / "memory"), "hashing", "plain", 500, None)
    with child.begun(order) as first:
        told = [turn["question"] for turn in first.turns()]
        os.kill(first.pid, 0)  # it lives
        assert first.pid != os.getpid()
        assert first.kill() == signal.SIGKILL.name
    with Memory.open(tmp_path / "memory", embedder="hashing") as memory:
        history = memory.chat(user_id=USER, session_id=STORY[0].session_id).history()
    assert [message.text for message in history] == [line for lines in STORY[0].lines for line in lines]
    assert told == [question for question, _ in STORY[0].lines]


def test_a_first_process_that_fails_tells_why(tmp_path: Path):
    (tmp_path / "file").touch()
    order = child.Order(str(tmp_path / "file"), "hashing", "plain", 500, None)
    with (
        child.begun(order) as first,
        pytest.raises(child.FirstProcessError, match="cannot be written") as raised,
    ):
        list(first.turns())
    assert raised.value.hint


def test_a_first_process_that_vanishes_is_noticed(tmp_path: Path):
    order = child.Order(str(tmp_path / "memory"), "hashing", "no such framework", 500, None)
    with (
        child.begun(order) as first,
        pytest.raises(child.FirstProcessError, match="ended by itself: ModuleNotFoundError"),
    ):
        list(first.turns())


# --- a conversation from a file


def sample(**changes: Any) -> dict[str, Any]:
    conversation = {
        "speaker_a": "Ada",
        "speaker_b": "Bo",
        "session_2_date_time": "12:09 am on 13 September, 2023",
        "session_2": [
            {"speaker": "Ada", "dia_id": "D2:1", "text": "The kettle whistles in the kitchen."},
        ],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ada", "dia_id": "D1:1", "text": "My parrot is called Zarquon."},
            {"speaker": "Bo", "dia_id": "D1:2", "text": "Look!", "blip_caption": "a red bicycle"},
        ],
        "session_9_date_time": "1:00 pm on 9 October, 2023",
    }
    return {
        "conversation": {**conversation, **changes},
        "qa": [
            {
                "question": "What is the parrot called?",
                "answer": "Zarquon",
                "evidence": ["D1:1"],
                "category": 4,
            },
            {"question": "Of no evidence?", "answer": 7, "evidence": [], "category": 5},
        ],
    }


def write(directory: Path, content: Any) -> Path:
    file = directory / "told.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def play(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(
        app, ["demo", "--embedder", "hashing", *map(str, arguments)], catch_exceptions=False
    )


def test_a_file_is_played_with_dates_names_and_questions(tmp_path: Path):
    file = write(tmp_path, [{"conversation": "not looked at"}, sample()])
    ended = play("--data", file, "--conversation", "2", "--path", tmp_path / "kept")
    assert ended.exit_code == 0, ended.output
    shown = ended.stdout
    assert "3 turns in 2 sessions, 2023-05-08 to 2023-09-13" in shown
    assert "Ada speaks as the user, Bo as the assistant" in " ".join(shown.split())
    assert re.search(r"stored .* 3/3", shown)
    assert re.search(r"indexed .* 3/3", shown)
    assert "What is the parrot called?" in shown
    assert re.search(r"2023-05-08 +Ada +\d+ +✓ My parrot is called Zarquon\.", shown)
    assert "1 of 1 recalled" in shown
    assert "Of no evidence?" not in shown
    assert re.search(r"\d+ of 1,200 tokens", shown)
    with Memory.open(tmp_path / "kept") as memory:
        history = memory.chat(user_id="Ada", session_id="session_1").history()
        assert memory.status().backlog.queued == 0
    assert [(said.role, said.name, said.text) for said in history] == [
        ("user", "Ada", "My parrot is called Zarquon."),
        ("assistant", "Bo", "Look! [shares a picture: a red bicycle]"),
    ]
    assert {f"{said.created_at:%Y-%m-%d %H:%M %Z}" for said in history} == {"2023-05-08 13:56 UTC"}


def test_no_more_questions_are_asked_than_wanted(tmp_path: Path):
    ended = play("--data", write(tmp_path, [sample()]), "--questions", "0")
    assert ended.exit_code == 0
    assert "findable by meaning after" in ended.stdout
    assert "What is the parrot called?" not in ended.stdout


def test_sessions_come_in_their_order_and_dates_without_a_session_are_left_out(tmp_path: Path):
    told = read(write(tmp_path, [sample()]))
    assert [session.session_id for session in told.sessions] == ["session_1", "session_2"]
    assert told.sessions[1].date.hour == 0
    assert told.questions[1].answer == "7"
    assert [question.category for question in told.questions] == [4, 5]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["D1:2", "D1:1", "D1:2"], ["D1:2", "D1:1"]),
        (["D1:1; D2:1"], ["D1:1", "D2:1"]),
        (["D1:1-D1:3"], ["D1:1", "D1:2"]),
        (["D1:1-D2:1"], ["D1:1", "D2:1"]),
        (["D1:2-D1:1"], ["D1:2", "D1:1"]),
        (["D:1:01", "D 1:2."], ["D1:1", "D1:2"]),
        (["D1:99", "D", "nothing"], []),
    ],
)
def test_evidence_is_read_as_it_was_meant_and_names_turns_that_exist(
    written: list[str], meant: list[str], tmp_path: Path
):
    told = {**sample(), "qa": [{"question": "Which?", "answer": "these", "evidence": written}]}
    assert read(write(tmp_path, [told])).questions[0].evidence == tuple(meant)


def test_every_conversation_is_read_and_a_picture_is_written_as_wanted(tmp_path: Path):
    one, other = read_all(write(tmp_path, [sample(), sample(speaker_b="Bo")]), picture="[image: {}]")
    assert one == other
    assert one.sessions[0].messages[1].text == "Look! [image: a red bicycle]"


WRONG = {
    "no JSON": "{",
    "too deep": "[" * 100_000,
    "no list": "{}",
    "nothing in it": "[]",
    "a sample that is none": "[1]",
    "no conversation": [{}],
    "no speakers": [sample(speaker_b=None)],
    "a nameless user": [sample(speaker_a="")],
    "a third speaker": [sample(speaker_b="Carl")],
    "a session without a date": [sample(session_1_date_time=None)],
    "a date in another form": [sample(session_1_date_time="2023-05-08")],
    "turns that are none": [sample(session_1=["hello"])],
    "a turn without a text": [sample(session_1=[{"speaker": "Ada", "dia_id": "D1:1"}])],
    "no turns": [sample(session_1=[], session_2=[])],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_not_in_this_format_is_refused_in_words(tmp_path: Path, what: str):
    with pytest.raises(DataFormatError) as raised:
        read(write(tmp_path, WRONG[what]))
    assert "told.json" in str(raised.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data", "missing.json"],
        ["--data", "told.json"],
        ["--data", "good.json", "--conversation", "2"],
        ["--data", "good.json", "--conversation", "0"],
        ["--data", "good.json", "--model", "openai:gpt-5-mini"],
    ],
)
def test_a_file_that_cannot_be_played_ends_with_2_and_nothing_is_written(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "no json")
    (tmp_path / "good.json").write_text(json.dumps([sample()]), encoding="utf-8")
    ended = play(*arguments, "--path", "none")
    assert ended.exit_code == 2
    assert ended.stderr.startswith("Error: ")
    assert "Hint:" in ended.stderr
    assert not (tmp_path / "none").exists()
