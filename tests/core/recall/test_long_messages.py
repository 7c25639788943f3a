"""A sentence of a long message is found by its meaning, wherever it stands; it goes with its message, and its part is told."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from projection import in_chroma, in_journal
from tuned import Tuned

from memlayer_core import Chat, Memory, Message
from memlayer_core.recall.pack import excerpt, shares
from memlayer_core.storage.tables import namespaces, texts
from memlayer_core.storage.terms import passages, question_terms
from tests.conftest import PROMPT

TOPICS = ("weather|rain|sun", "train|station|platform", "soup|bread|lunch", "bees|honey|insects", "door|key")
FILLER = (
    "The weather was grey at first, and later the rain came down on all of us.",
    "Our train stood at the station for an hour, on the wrong platform as always.",
    "For lunch we had soup with bread, which was not as warm as it might have been.",
    "We took the next train, which left the station earlier than anybody had hoped.",
    "In the evening the sun came out, and the weather was better than the day before.",
    "There was bread for lunch again, and some more of the soup of the other day.",
    "On the platform somebody asked us for the train to the mountains, as they do.",
)
FACT = "My sister keeps bees on her roof."
LONG = " ".join([*FILLER, *FILLER, FACT])
QUESTION = "Which insects does somebody look after?"
OTHERS = ("The key is under the door.", "We had soup.", "The train is late.")


def by_topic(some: Sequence[str]) -> list[list[float]]:
    """Embed texts by how often they name each topic. A text of many topics is near none of them."""

    def times(topic: str, text: str) -> float:
        return float(len(re.findall(topic, text, re.IGNORECASE)) * (3 if "bees" in topic else 1))

    own = (np.random.default_rng(list(text.encode())).normal(size=200) / 14 for text in some)  # of length 1
    return [[*rest, *(times(topic, text) for topic in TOPICS)] for text, rest in zip(some, own, strict=True)]


def signs(some: Sequence[str]) -> list[list[float]]:
    """Embed texts by vectors whose bytes are nobody else's."""
    return [np.random.default_rng(list(text.encode())).normal(size=16).tolist() for text in some]


def stored_bytes(memory: Memory, text: str) -> list[bytes]:
    return [
        np.asarray(vector / np.linalg.norm(vector), dtype="<f2").astype(precision).tobytes()
        for vector in map(np.asarray, signs(passages(text)))
        for precision in ("<f2", "<f4")  # of the journal and of Chroma
    ]


def counted(memory: Memory) -> list[tuple[int, int]]:
    """Return how many vectors and texts are counted, for each namespace; and those that there are must be as many."""

    def read(connection: Any) -> list[tuple[int, int]]:
        rows = connection.execute(namespaces.select().order_by(namespaces.c.namespace)).all()
        every = connection.execute(texts.select().where(texts.c.vectors.is_not(None))).all()
        for row in rows:
            own = [one.vectors for one in every if one.namespace == row.namespace]
            assert (row.vectors, row.texts) == (sum(own), len(own))
        return [(row.vectors, row.texts) for row in rows]

    return memory.runtime.db.read(read)


def in_index(memory: Memory) -> dict[int, int]:
    """Return how many vectors of each text Chroma has; they must be those of the journal."""
    here = in_chroma(memory)
    assert here == in_journal(memory)
    return here


@pytest.fixture(params=[10_000, 0], ids=["compared", "chroma"])
def settings(request: pytest.FixtureRequest) -> Tuned:
    return PROMPT.replace(exact_scan_limit=request.param)


def said(memory: Memory, *texts: str) -> Chat:
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add_messages([Message("user", text) for text in texts])
    memory.flush(60)
    return chat


def told(memory: Memory, question: str) -> str:
    context = memory.chat(user_id="louis", session_id="now").context(question, token_limit=4000)
    return "".join(piece.text for piece in context.pieces if piece.kind == "recall" and FACT in piece.text)


def test_a_fact_behind_fourteen_sentences_is_found_by_its_meaning(open_at, settings) -> None:
    """Long records are found by their parts, too; an old text gets them when everything is embedded again."""
    memory = open_at(embedder=by_topic, settings=settings)
    said(memory, *OTHERS, LONG)
    assert memory.search(QUESTION, user_id="louis", limit=2)[0].text == LONG
    assert memory.search(QUESTION, user_id="eve") == ()
    assert memory.search(QUESTION, user_id="louis", agent_id="another") == ()
    assert told(memory, QUESTION)  # no word of the question is in it
    assert LONG not in told(memory, QUESTION)
    assert memory.admin.verify() == []
    memory.chat(user_id="mia").remember(LONG)
    memory.flush(60)
    (hit, *_) = memory.search(QUESTION, user_id="mia")
    assert (hit.kind, hit.text) == ("record", LONG)
    (record,) = memory.records(user_id="mia")
    assert record.embedding.vector.shape == (200 + len(TOPICS),)
    memory.close()
    sizes: list[int] = []

    def embed(some: Sequence[str]) -> list[list[float]]:
        sizes.append(len(some))
        return signs(some)

    again = open_at(how=Memory.reembed, embedder=embed, settings=settings.replace(index_batch=2))
    again.flush(60)
    number = len(passages(LONG))
    assert sorted(counted(again)) == [(number, 1), (number + 3, 4)]
    assert again.admin.verify() == []
    assert max(size for size in sizes if size < 100) < 2 + number, "a batch at a time; its scale takes more"


WAYS: dict[str, Callable[[Memory, Chat], Any]] = {
    "edit": lambda memory, chat: chat.edit(0, content="Nothing."),
    "edit to a long one": lambda memory, chat: chat.edit(0, content=" ".join(reversed(FILLER * 2))),
    "delete": lambda memory, chat: chat.delete_message(0),
    "clear": lambda memory, chat: chat.clear(),
    "forget": lambda memory, chat: memory.forget(user_id="louis"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_all_parts_go_with_their_message(open_at, tmp_path: Path, way: str) -> None:
    memory = open_at(embedder=signs, settings=PROMPT.replace(exact_scan_limit=0))
    memory.chat(user_id="eve", session_id="s").add("user", "Something else.")
    chat = said(memory, LONG)
    number = len(passages(LONG))
    assert number > 2
    assert sorted(in_index(memory).values()) == [1, number]
    assert sorted(counted(memory)) == [(1, 1), (number, 1)]
    WAYS[way](memory, chat)
    memory.flush(60)
    in_index(memory)
    counted(memory)
    assert memory.admin.verify() == []
    memory.close()
    gone = stored_bytes(memory, LONG)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if any(one in path.read_bytes() for one in gone)]


def test_copies_moves_and_another_store_have_the_parts_too(open_at, tmp_path, settings) -> None:
    asked: list[str] = []

    def embed(some: Sequence[str]) -> list[list[float]]:
        asked.extend(some)
        return by_topic(some)

    memory = open_at(embedder=embed, settings=settings)
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "The door is open.", id="first")
    chat.add("user", LONG, id="long")
    memory.flush(60)
    before = len(asked)
    chat.fork(session_id="copy")
    said = {"first": "The door is open.", "between": "A key.", "long": LONG}
    chat.resync([Message("user", text, id=one) for one, text in said.items()])
    memory.flush(60)
    assert {text for text in asked[before:] if text in passages(LONG)} == set()  # no model is asked again
    number = len(passages(LONG))
    assert counted(memory) == [(2 * number + 3, 5)]
    if settings.exact_scan_limit == 0:
        assert sorted(in_index(memory).values()) == [1, 1, 1, number, number]
    assert [hit.text for hit in memory.search(QUESTION, user_id="louis", limit=1)] == [LONG]
    memory.export(tmp_path / "all.jsonl", user_id="louis")
    other = open_at("other", embedder=by_topic, settings=settings)
    other.import_from(tmp_path / "all.jsonl")
    other.flush(60)
    assert counted(other) == [(2 * number + 3, 5)]
    assert other.search(QUESTION, user_id="louis", limit=2)[0].text == LONG


# It is told by the part of it that bears on the question.

PARTS = [f"Then there was part {number} of the talk, which went on." for number in range(80)]
TALK = " ".join([*PARTS[:40], "Her cat is named Pixel.", *PARTS[41:]])
SPOKEN = ["I moved.", "猫叫皮皮。", "Why not?", "word " * 40 + "ends.", "```x = 1```", "\n"]


def part_told(text: str, asked: str, room: int, *cosines: float) -> str:
    """Return the excerpt of a text for a question. A token is a character."""
    return excerpt(text, question_terms(asked), room, len, cosines)


@given(st.lists(st.sampled_from(SPOKEN)).map(" ".join), st.integers(1, 400))
def test_an_excerpt_keeps_its_room_and_is_one_part_of_what_was_said(text, room) -> None:
    part = part_told(text, "word 猫", room)
    assert len(part) <= room
    if len(text) <= room:
        assert part == text
    bare = "".join(part.removeprefix("… ").removesuffix("…").split())
    assert bare in "".join(text.split())


def test_the_sentence_that_was_asked_for_is_in_it_with_what_stands_around_it() -> None:
    part = part_told(TALK, "What is the name of her cat?", 200)
    assert "Her cat is named Pixel." in part
    assert "part 41" in part
    assert (part[:6], part[-2:]) == ("… Then", " …")
    assert part_told(TALK, "", 100).startswith("Then there was part 0")
    cut = part_told("pineapple " * 100, "pineapple", 55)
    assert len(cut) <= 55
    assert set(cut.removesuffix("…").split()) == {"pineapple"}, "a sentence that is too long is cut at a word"
    fillers = {"and then we went on ": "Bonnet is my doctor ", '"a":1,': '"doctor":2,', "猫": "医生叫李"}
    for filler, said in fillers.items():
        part = part_told(filler * 90 + said + filler * 90, "doctor 医生", 150)
        assert said.strip() in part
        assert (part[:2], part[-2:]) == ("… ", " …")


def test_where_words_do_not_tell_the_part_that_is_nearest_in_meaning_is_told() -> None:
    pieces = passages(TALK)
    for place, piece in enumerate(pieces):
        near = [0.5 if other == place else 0.1 for other in range(len(pieces))]
        room = len(piece) + 20
        assert piece.strip() in part_told(TALK, "", room, *near)
        assert "Pixel" in part_told(TALK, "cat named Pixel", room, *near)
    assert part_told(TALK, "", 100, 0.1, 0.5).startswith("Then there was part 0")  # of another text


@pytest.mark.requirement("J34")
def test_a_long_answer_is_recalled_in_short_and_displaces_nothing(memory) -> None:
    chat = memory.chat(user_id="u", session_id="then")
    chat.add("assistant", TALK)
    chat.add("user", "Pixel sleeps all day.")
    memory.chat(user_id="huge").add("user", TALK + " And so on." * 200_000)
    memory.flush()
    found = (memory.search("named cat", user_id="u", **more) for more in ({}, {"token_limit": 200}))
    whole, short = (next(hit for hit in hits if hit.speaker == "assistant") for hits in found)
    assert whole.text == TALK
    assert "Her cat is named Pixel." in short.text
    assert short.tokens <= 100 + 20
    assert "excerpt" in {reason.code for reason in short.reasons}
    context = memory.chat(user_id="u", session_id="now").context("What is her cat named?", token_limit=800)
    recalled = [piece for piece in context.pieces if piece.kind == "recall"]
    assert sum(piece.tokens for piece in recalled) <= 200
    (line,) = [piece for piece in recalled if "Her cat is named Pixel." in piece.text]
    assert (line.text[0], line.text[-1], line.message_ids) == ("…", "…", (chat.history()[0].id,))
    assert line.tokens <= 120
    assert chat.history()[0].text == TALK
    (hit,) = memory.search("named cat", user_id="huge", token_limit=200)
    assert "Her cat is named Pixel." in hit.text
    assert hit.text.endswith("…")


def test_of_a_text_that_is_far_too_long_little_is_counted() -> None:
    for text in ("x" * 1_000_000, "Her cat is named Pixel. " + "y" * 1_000_000):
        counted: list[str] = []
        assert len(excerpt(text, ("cat",), 100, lambda part: counted.append(part) or len(part))) <= 100  # noqa: B023
        assert sum(map(len, counted)) < 20_000


@given(st.integers(0, 10_000), st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_lines_share_all_tokens_of_their_block_in_proportion(total, weights) -> None:
    parts = shares(total, weights)
    assert sum(parts) == total
    assert all(abs(part - total * one / sum(weights)) <= 1 for part, one in zip(parts, weights, strict=True))
