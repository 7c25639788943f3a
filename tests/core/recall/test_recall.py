"""What is told of what was said before, and how it is written."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flaky import FlakyEmbedder
from hypothesis import given, strategies as st
from tuned import Tuned

from memlayer_core import Chat, Context, Memory, Message, Scope, ToolCall
from memlayer_core.events import ProblemBegan, ProblemEnded
from memlayer_core.models import multilingual
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.recall.pack import pack
from memlayer_core.seams import recall_budget
from memlayer_core.storage.terms import index_terms, possible_names, question_terms
from memlayer_core.testing import NOON
from memlayer_core.window.model import Piece
from tests.conftest import PROMPT

DATA = Path(__file__).parents[3] / "benchmarks" / "data"
FACTS = json.loads((DATA / "languages.json").read_text(encoding="utf-8"))["en"]["facts"]


@pytest.fixture(scope="module", params=[10_000, 0], ids=["compared", "chroma"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a memory in which a user told forty facts in four sessions, with an answer to each."""
    settings = PROMPT.replace(exact_scan_limit=request.param)
    with Memory.open(tmp_path_factory.mktemp("store"), embedder="hashing", settings=settings) as memory:
        for number, row in enumerate(FACTS):
            chat = memory.chat(user_id="ada", session_id=f"s{number // 10}")
            chat.add_messages([Message("user", row["fact"]), Message("assistant", "Good to know.")])
        memory.flush()
        yield memory


def said(memory: Memory, *texts: str, session_id: str = "old", user_id: str = "ada", **fields: Any) -> Chat:
    """Let somebody say something, and have it indexed."""
    chat = memory.chat(user_id=user_id, session_id=session_id)
    chat.add_messages(Message("user", text, **fields) for text in texts)
    memory.flush()
    return chat


def recalled(context: Context) -> list[Piece]:
    return [piece for piece in context.pieces if piece.kind == "recall"]


def lines(memory: Memory, asked: str) -> list[str]:
    """Return what a context of a fresh session recalls."""
    fresh = memory.chat(user_id="ada", session_id="a fresh one")
    return [piece.text for piece in recalled(fresh.context(asked))]


def codes(hit: Any) -> set[str]:
    return {reason.code for reason in hit.reasons}


FORMS: list[Callable[[str], str]] = [
    str.lower,
    str.upper,
    lambda asked: f"please, {asked.rstrip('?')} please",
    lambda asked: asked.replace("'", "\u2019"),
    lambda asked: asked.replace("'", ""),
    lambda asked: asked.replace(" ", ", ", 1),
]


@given(st.sampled_from(FACTS), st.sampled_from(FORMS), st.integers(1, 30), st.integers(31, 200))
def test_few_hits_are_the_first_of_many_and_equal_questions_told_alike(told, row, form, few, many) -> None:
    for asked in (row["question"], row["fact"]):
        some, more = (told.search(asked, user_id="ada", limit=limit) for limit in (few, many))
        assert some == more[: len(some)]
    assert some[0].text == row["fact"]
    asked = f"{row['fact'].rstrip('.')}?"
    plain, other = lines(told, asked), lines(told, form(asked))
    assert row["fact"] in plain
    assert len(set(plain) ^ set(other)) <= 2, "a line of each that the other has not"


@pytest.mark.trap("layered", 8)
def test_a_question_that_nothing_bears_on_is_told_nothing(told) -> None:
    for asked in ("thanks!", "ok", "How are you?", "zxqv wkpt", "Why is the sky blue?"):
        assert lines(told, asked) == [], asked


def test_a_question_about_two_things_or_after_another_topic_is_told_what_it_is_about(told) -> None:
    nuts = "My sister is allergic to peanuts."
    both = lines(told, "Who plays the cello, and who is allergic to peanuts?")
    assert {nuts, *(row["fact"] for row in FACTS if "plays the cello" in row["fact"])} <= set(both)
    asked = "Is my sister allergic to peanuts?"
    new = [Message("user", "Which city is my home?"), Message("assistant", "Tokyo."), Message("user", asked)]
    assert nuts in told.chat(user_id="ada", session_id="a new one").context(pending=new).recall


def test_there_are_as_many_lines_as_the_settings_say_and_each_has_its_reason() -> None:
    endless = {"recall_lines": None, "recall_tokens": 1600}
    for most, settings in ((10, {}), (3, {"recall_lines": 3}), (40, endless)):
        with Memory.in_memory(embedder="hashing", settings=Tuned(index_delay=0, **settings)) as memory:
            said(memory, *(f"Boat {number} is moored in harbour {number}." for number in range(40)))
            new = memory.chat(user_id="ada", session_id="new")
            pieces = recalled(new.context("Which boats are moored in a harbour?"))
            assert (most // 2 if most > 3 else most) <= len(pieces) <= most
            assert all(piece.reasons and piece.tokens and piece.score for piece in pieces)


def test_a_question_that_names_nothing_is_asked_with_the_round_before_it(memory) -> None:
    walks = [f"Today I walked {number} kilometres with the dog." for number in range(12)]
    fact = "The dishwasher was repaired on Friday, Mrs. Kim took 84 euros for the pump."
    for goes_on in ("and how much was it?", "and when?", "what did she say about it"):
        said(memory, fact, *walks, user_id=goes_on)
        new = memory.chat(user_id=goes_on, session_id="new")
        assert "84 euros" not in new.context(goes_on).recall
        new.add("user", "Who repaired the dishwasher?")
        new.add("assistant", "Mrs. Kim repaired the dishwasher.")
        new.add("user", goes_on)
        assert "84 euros" in new.context().recall


@pytest.mark.parametrize("is_own", [False, True])
def test_a_message_that_needs_no_memory_recalls_nothing_and_a_word_that_asks_does(open_at, is_own) -> None:
    """What it is compared with is in English; the embedder reads the other languages."""
    if not multilingual.is_present():
        pytest.skip("the extra `multilingual` is missing")
    own = multilingual.Multilingual().embed if is_own else "multilingual"
    memory, letter = open_at(embedder=own), "Thanks for the long letter about the roof."
    said(memory, "We fly to Porto on Friday night with the dog.", letter, "The dentist pulled a tooth.")
    for idle in ("ok thanks, bye", "danke dir, bis morgen!", "谢谢你，再见", "write a poem about a letter"):
        assert lines(memory, idle) == [], idle
    assert lines(memory, "dentist?")[0] == "The dentist pulled a tooth."
    assert lines(memory, "write a poem about our trip to Porto")[0].startswith("We fly to Porto")
    assert letter in lines(memory, "who did i thank for a letter")
    asked_for = memory.chat(user_id="ada").recall("ok thanks, bye")
    assert letter in [hit.text for hit in asked_for]


def test_a_word_that_stands_everywhere_displaces_nothing(memory) -> None:
    said(memory, *(f"Take care, John, bye number {number}!" for number in range(20)))
    said(memory, "The doctor says that his blood pressure is too high.")
    best = memory.search("What did the doctor say about John?", user_id="ada", limit=3)
    assert [hit for hit in best if hit.text.startswith("The doctor")]


def test_of_words_that_are_all_frequent_a_text_needs_each_one(memory, monkeypatch) -> None:
    monkeypatch.setattr("memlayer_core.storage.words.MOST_ROWS", 5)
    both = "The lantern of the harbour."
    said(memory, *[f"The harbour {n}." for n in range(6)], *[f"The lantern {n}." for n in range(6)], both)
    hits = memory.search("harbour lantern", user_id="ada", limit=20)
    assert [hit.text for hit in hits if "words" in codes(hit)] == [both]


def test_a_name_says_who_and_not_what(memory) -> None:
    for name in ("Sam", "Will", "An", "Chloé", "李伟"):
        parts = (f"{name} is funny today, part {number}." for number in range(6))
        said(memory, *parts, "The stove is in the cellar.", name="Mei", user_id=name)
        said(memory, "The tent is in the attic.", name=name, user_id=name)
        first = memory.search(f"What did {name} say is in the attic?", user_id=name)[0]
        assert first.text == "The tent is in the attic."
        assert "named" in codes(first)


def test_what_this_store_told_stays_in_the_history_and_is_not_indexed_again(memory, tmp_path):
    said(memory, "My parrot is called Coco.")
    new = memory.chat(user_id="ada", session_id="new")
    recall = new.context("What is my parrot called?").recall
    answer = f"You told me this:\n{recall}\nSo it is a Zaire grey."
    new.add("assistant", answer)
    memory.chat(user_id="eve", session_id="hers").add("assistant", answer)
    memory.flush()
    assert new.history()[-1].text == answer
    assert memory.search("Coco", user_id="ada")[0].text == "My parrot is called Coco."
    assert memory.search("Zaire", user_id="ada")[0].text.startswith("You told me this:")
    assert not [one for one in memory.search("called Coco", user_id="ada") if "recalled_memory" in one.text]
    assert "recalled_memory" in memory.search("Coco", user_id="eve")[0].text, "to her it is just text"
    memory.export(tmp_path / "all.jsonl")
    assert memory.runtime.secret not in (tmp_path / "all.jsonl").read_text(encoding="utf-8")


def test_a_model_that_repeats_its_memory_is_told_no_more_in_the_fifth_session(memory) -> None:
    asked = "Where is my boat, and what is it called?"
    boat = ("My boat lies in Bergen since May.", "It is called Albatross, after my aunt's.")
    for way in ("whole blocks", "lines", "words"):
        said(memory, *boat, user_id=way)
        facts: list[list[str]] = []
        for number in range(5):
            chat = said(memory, asked, session_id=f"s{number}", user_id=way)
            recall = chat.context().recall
            some = [one for one in recall.splitlines() if one.startswith("- ")]
            facts.append([one for one in some if asked not in one])
            words = " ".join(one.partition("] ")[2] for one in some)
            ways = {"whole blocks": recall, "lines": "\n".join(some), "words": words}
            chat.add("assistant", ways[way] or "?")
            memory.flush()
        assert len(facts[0]) == 2
        assert facts == facts[:1] * 5


def test_records_and_messages_compete_and_are_told_under_their_headings_and_never_both(memory) -> None:
    old = said(memory, "The red boat needs new paint.", "I love ramen noodles")
    old.remember("The red boat is insured until May.")
    old.remember("I love ramen noodles.", type="preference")
    memory.flush()
    recall = memory.chat(user_id="ada", session_id="new").context("What about the red boat?").recall
    first, second = recall.index("What is remembered:"), recall.index("What was said:")
    assert first < recall.index("insured until May") < second < recall.index("needs new paint")
    assert "Earlier talks, in short:" not in recall, "there are no episodes"
    assert len(lines(memory, "Which noodles do I love?")) == 1, "the record says what the user said"


@given(st.lists(st.integers(1, 200)), st.integers(0, 1000), st.integers(1, 1_000_000))
def test_packing_keeps_to_its_share_of_the_limit_and_prefers_the_better(costs, room, limit):
    assert recall_budget(limit, 10 * room) == min(10 * room, 2 * limit // 5)
    chosen = pack(costs, room)
    assert sum(costs[place] for place in chosen) <= room
    assert chosen == sorted(set(chosen))
    assert not costs or costs[0] > room or chosen[0] == 0


def test_a_question_is_its_telling_words_and_a_message_has_its_day_and_its_speaker_too() -> None:
    written = "저는 서울에 살아요 Café \uff26\uff35\uff2c\uff2c STRASSE snake_case_name 它"
    for asked in ("서울", "cafe", "full", "straße", "case", "它"):
        assert set(question_terms(asked)) & set(index_terms(written)), asked
    asked = "When did I move to Tokyo?"
    assert question_terms(asked, ["en"]) == ("tokyo",)
    assert question_terms(asked) == ("when", "did", "i", "move", "to", "tokyo")
    words = index_terms("We won", "Li Wei", NOON)
    assert words[:5] == ("we", "won", "2026", "may", "4")
    assert {"2026", "may", "4"} < {*question_terms("What did we do on 2026-05-04?")}
    assert [word[1:] for word in words[5:]] == ["li", "wei"]
    assert set(possible_names("who is li wei?")) >= {"li", "wei"}


WORDS = st.text(st.sampled_from("ab 中文<>\n/"), max_size=60)
SAYINGS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), WORDS), min_size=1, max_size=12)


@pytest.mark.requirement("J34", "L05", "F12")
@given(SAYINGS, SAYINGS, st.integers(20, 300))
def test_a_context_keeps_its_limit_tells_nothing_twice_and_changes_nothing(past, present, limit) -> None:
    with Memory.in_memory(settings=Tuned(index_delay=60)) as memory:
        memory.chat(user_id="u", session_id="past").add_messages([Message(*one) for one in past])
        chat = memory.chat(user_id="u", session_id="now")
        chat.add_messages([Message(*one) for one in present])
        before = chat.history()
        context = chat.context("a b 中文", token_limit=limit)
        counted = sum(map(memory.runtime.tokens.message, context.messages))
        assert max(counted, context.tokens) <= limit or "newest_turn_over_limit" in codes(context)
        assert chat.history() == before
        shown = [message for piece in context.pieces for message in piece.message_ids]
        assert len(shown) == len(set(shown))


def found_by_words_alone(memory: Memory) -> list[type]:
    """Search thrice for a pineapple, by words alone. Returns of what listeners heard meanwhile."""
    heard: list[type] = []
    memory.listen(lambda event: heard.append(type(event)))
    for _ in range(3):
        (hit,) = memory.search("pineapple", user_id="ada")
        assert {"words", "embedder_failed"} <= codes(hit) - {"meaning"}
    return heard


def test_an_embedder_that_fails_leaves_recall_by_words_and_is_told_once() -> None:
    flaky = FlakyEmbedder(HashingEmbedder())
    with Memory.in_memory(embedder=flaky, settings=Tuned(index_delay=0, job_backoff=0.01)) as memory:
        said(memory, "the pineapple is ripe")
        flaky.failing = lambda _: True
        heard = found_by_words_alone(memory)
        assert heard == [ProblemBegan]
        flaky.failing = lambda _: False
        (hit,) = memory.search("pineapple", user_id="ada")
        assert codes(hit) >= {"words", "meaning"}
        assert heard[-1] is ProblemEnded
        flaky.queries.clear()
        memory.search("an apple", user_id="ada")
        memory.chat(user_id="ada", session_id="t").context("a pear")
        memory.search("a pear", user_id="ada")
        assert flaky.queries == ["an apple", "a pear"], "a search embeds once"


def test_an_embedder_that_hangs_keeps_no_search_waiting() -> None:
    answered, asked = threading.Event(), list[str]()

    class Hanging:
        identity, embed = "hanging", HashingEmbedder().embed

        def embed_query(self, text: str) -> Any:
            asked.append(text)
            answered.wait()
            return HashingEmbedder().embed_query(text)

    settings = Tuned(index_delay=0, embedder_timeout=0.2)
    with Memory.in_memory(embedder=Hanging(), settings=settings) as memory:
        said(memory, "the pineapple is ripe")
        try:
            assert found_by_words_alone(memory) == [ProblemBegan]
            assert not answered.is_set()
            assert len(asked) < 3  # the ones that follow do not wait for it again
        finally:
            answered.set()


def test_a_message_without_words_is_no_hit_and_takes_no_ones_place(memory) -> None:
    """A call is found with its turn; there is nothing of it to quote."""
    chat = said(memory, "my parrot is called Coco")
    chat.add("assistant", tool_calls=(ToolCall("c1", "look", '{"where": "my parrot"}'),))
    chat.add("tool", "my parrot is green", tool_call_id="c1")
    chat.add("user", ({"type": "image", "url": "https://example.org/parrot.png"},))
    chat.add("assistant", " \n")
    memory.flush()
    for limit in (2, 50):
        hits = memory.search("what of my parrot?", user_id="ada", limit=limit)
        assert sorted(hit.text for hit in hits) == ["my parrot is called Coco", "my parrot is green"]
    assert chat.context("what of my parrot?").recall == ""  # all of it is in the window


TRAMS = "我每天坐电车去上班，晚上回家看书。"


def test_of_a_very_long_query_its_beginning_and_its_end_are_read_and_no_more(memory) -> None:
    """Nor does a huge message cost a later context anything to speak of."""
    chat = said(memory, "My dentist is called Wilhelmina.")
    began = time.thread_time()
    for filler in ("The fox jumps over the dog near number nine. ", TRAMS):
        pasted = filler * (2_000_000 // len(filler))
        for query in (f"{pasted} What is my dentist called?", f"What is my dentist called? {pasted}"):
            assert memory.search(query, user_id="ada")[0].text == "My dentist is called Wilhelmina."
    assert time.thread_time() - began < 2  # it was three seconds for each of them
    said(memory, TRAMS * 20_000)
    chat.context()
    began = time.thread_time()
    for _ in range(3):
        chat.context()
    assert time.thread_time() - began < 1.5  # it was five seconds for each of them


@pytest.mark.requirement("F12")
def test_a_line_is_whole_although_a_message_in_the_window_with_an_ellipsis_begins_alike(memory) -> None:
    meat = "I don't eat meat, ever."
    said(memory, meat)
    chat = memory.chat(user_id="ada", session_id="today")
    for text in ("I don't … well, first of all hello :)", "hello!", "Do I eat meat?"):
        chat.add("assistant" if text == "hello!" else "user", text)
    assert [piece.text for piece in recalled(chat.context())] == [meat]


def test_who_asks_in_the_words_of_a_statement_is_shown_it_and_not_the_same_question(memory) -> None:
    nuts = "My sister is allergic to peanuts."
    said(memory, nuts, "is my sister allergic to peanuts?")
    assert lines(memory, "my sister is allergic to peanuts?") == [nuts, "is my sister allergic to peanuts?"]
    assert lines(memory, "Is my sister allergic to peanuts?") == [nuts]


def test_a_result_of_a_tool_is_recalled_in_its_own_session_alone_unless_a_setting_says_so() -> None:
    result, asked = "the zebra stands in row seven", "Where does the zebra stand?"
    for everywhere in (False, True):
        settings = Tuned(index_delay=0, recall_tool_results=everywhere)
        with Memory.in_memory(embedder="hashing", settings=settings) as memory:
            chat = said(memory, "look for the zebra please")
            chat.add("assistant", tool_calls=[ToolCall("c1", "look", '{"where": "zebra"}')])
            chat.add("tool", result, tool_call_id="c1")
            memory.flush()
            hits = [hit.text for hit in memory.chat(user_id="ada", session_id="now").recall(asked)]
            assert (result in lines(memory, asked)) is (result in hits) is everywhere
            assert result in [hit.text for hit in memory.search(asked, user_id="ada")]


# Whoever tells a model the conversation by themselves is given what is worth telling beside it, and nothing twice.

WALK = "what did my parrot do on the long Sunday walk to the harbour?"
BIT = "the parrot bit the postman"


@pytest.fixture
def chat(memory) -> Chat:
    said = BIT, "oh no", "I like tea with milk", "noted", "my sister lives in Tokyo", "nice"
    old = [Message(("user", "assistant")[place % 2], text) for place, text in enumerate(said)]
    memory.chat(user_id="ada", session_id="old").add_messages(old)
    memory.chat(user_id="bob").add("user", "my parrot likes long walks to the harbour")
    memory.flush()
    return memory.chat(user_id="ada", session_id="now")


def texts(hits) -> list[str]:
    return [hit.text for hit in hits]


def test_what_is_told_already_neither_comes_again_nor_hides_what_bears_less_on_it(chat, memory):
    assert BIT in texts(chat.recall("whom did the parrot bite?"))
    told = [Message("user", BIT), Message("user", "whom did the parrot bite?")]
    assert BIT not in texts(chat.recall(told[1].text, exclude=told)), "it is of another session"
    told = [Message("user", WALK)]
    chat.add_messages(told)
    memory.flush()
    assert texts(chat.recall(WALK))[0] == WALK
    found = texts(chat.recall(WALK, exclude=told))
    assert found[0] == BIT
    assert WALK not in found


def test_what_a_search_finds_and_is_not_worth_telling_is_left_out(chat, memory) -> None:
    for number in range(30):
        memory.chat(user_id="ada", session_id="walks").add("user", f"Route {number} to the tea shop.")
    memory.flush()
    asked = "do I like milk in my tea?"
    found = texts(chat.recall(asked, limit=40))
    assert found[0] == "I like tea with milk"
    assert (len(chat.recall(asked, limit=1)), chat.recall(asked, token_limit=1)) == (1, ())
    assert len(found) < 20 < len(memory.search(asked, user_id="ada", limit=40))
    assert chat.recall("please write a poem") == ()


def test_records_are_told_and_nothing_of_another_user_or_of_who_stands_alone(chat, memory) -> None:
    chat.remember("Ada's parrot is called Coco.")
    asked = "what is my parrot called?"
    assert "Ada's parrot is called Coco." in texts(chat.recall(asked, limit=20))
    assert "harbour" not in str(texts(chat.recall(WALK, limit=50)))
    alone, other = (memory.chat_of(Scope.alone(name)) for name in "st")
    alone.add("user", "my parrot is called Solo")
    other.add("user", "my parrot is called Tom")
    memory.flush()
    assert texts(alone.recall(asked)) == ["my parrot is called Solo"]
    told = "".join(texts(alone.context(asked).messages))
    assert ("Solo" in told, "Tom" in told) == (True, False)
