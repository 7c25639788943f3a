"""A model reads facts in what users say: in few calls, in the background, and nothing that no message says."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clock import set_ahead
from hypothesis import given, strategies as st
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from scripted import speaking
from tuned import Tuned
from waiting import wait_for

from memlayer_core import Memory, Message, RecallFilter
from memlayer_core.chat import UserMemory
from memlayer_core.facts.model import Operation
from memlayer_core.facts.operations import AnswerError, is_cut, operations_in
from memlayer_core.storage import jobs
from memlayer_core.tools import AGENT_TOOLS

MAY = datetime(2026, 5, 4, 12, tzinfo=UTC)
QUICK = Tuned(index_delay=0, durability="normal", job_backoff=0)


class Reader:
    """An extractor that finds what a test tells it to wherever its words are said, and keeps the prompts that it got."""

    def __init__(self, *operations: dict[str, Any]) -> None:
        self.operations = list(operations)
        self.prompts: list[str] = []
        self.instructions: list[str] = []

    def __call__(self, instructions: str, text: str) -> str:
        self.prompts.append(text)
        self.instructions.append(instructions)
        said = text.rsplit("Conversation:", maxsplit=1)[-1]
        numbers = {line.split("] ")[0][1:]: line for line in said.splitlines() if line.startswith("[")}
        found = []
        for one in self.operations:
            numbered = [int(number) for number, line in numbers.items() if one["quote"] in line]
            if numbered:
                found.append({"op": "add", "messages": numbered[:1], "value": one["quote"], **one})
        return json.dumps({"operations": found}, ensure_ascii=False)


@pytest.fixture
def opened(open_with: Callable[..., Memory]) -> Callable[..., Memory]:
    """Return a function that opens the test's memory with an extractor, on SQLite and on PostgreSQL."""
    return lambda extractor=None, settings=QUICK, **more: open_with(settings, extractor=extractor, **more)


def say(memory: Memory, *texts: str, session: str = "s", user: str = "louis", start: datetime = MAY) -> Any:
    """Say something each day, each time with an answer, and wait until all is learned."""
    chat = memory.chat(user_id=user, session_id=session)
    said: list[Message] = []
    for day, text in enumerate(texts):
        at = start + timedelta(days=day)
        said += Message("user", text, created_at=at), Message("assistant", "I see.", created_at=at)
    chat.add_messages(said)  # at once: all are read together
    memory.flush(30)
    return chat


def known(memory: Memory, user: str = "louis", **more: Any) -> dict[tuple[str, str | None], str]:
    found = memory.records(user_id=user, **more)
    return {(one.subject, one.key): one.value for one in found if one.subject is not None}


def ledger(memory: Memory, user: str = "louis") -> list[tuple[str, str]]:
    return [(entry.outcome, entry.reason) for entry in reversed(memory.ledger(user_id=user))]


@pytest.mark.requirement("J20", "M01", "M08")
def test_a_fact_is_known_with_its_quote_its_time_and_its_model_which_is_shown_no_secret(opened) -> None:
    quote = "the shop on Elm Street, which Ada and I opened last year"
    model = Reader({"quote": quote, "key": "shop", "value": "Elm Street", "since": "2025"})
    memory = opened(model, redactor=lambda text: text.replace("hunter22", "[secret]"))
    chat = say(memory, f"The code is hunter22, and business is slow at {quote}.")
    assert "hunter22" not in str(model.prompts)
    record = memory.profile("louis")["shop"]
    assert (record.subject, record.value, record.source) == ("user", "Elm Street", "explicit_user_input")
    assert record.valid_from == datetime(2025, 1, 1, tzinfo=UTC)
    (words,) = memory.why(record.memory_id, user_id="louis").evidence
    assert (words.quote, words.role, words.said_at, words.session_id) == (quote, "user", MAY, "s")
    assert chat.history()[0].text[words.start : words.end] == quote
    assert chat.history()[0].id == words.message_id
    (cost,) = memory.admin.costs(user_id="louis")
    assert (cost.kind, cost.model, cost.calls, cost.facts) == ("learn", words.model, 1, 1)
    assert cost.tokens_in > 100


@pytest.mark.trap("layered", 6)
@pytest.mark.requirement("J22")
def test_a_model_updates_ends_and_confirms_what_is_known(opened) -> None:
    model = Reader({"quote": "our shop is on Elm Street", "key": "shop", "value": "Elm Street"})
    memory = opened(model)
    say(memory, "You know, our shop is on Elm Street.")
    moved = "The shop is on Oak Road since Monday"
    model.operations = [{"op": "update", "fact": 1, "quote": moved, "value": "Oak Road"}]
    say(memory, f"{moved}.", start=MAY + timedelta(days=7))
    assert known(memory)["user", "shop"] == "Oak Road"
    assert known(memory, as_of=MAY + timedelta(days=1))["user", "shop"] == "Elm Street"
    model.operations = [{"op": "confirm", "fact": 1, "quote": "The shop on Oak Road"}]
    say(memory, "The shop on Oak Road does well.", start=MAY + timedelta(days=14))
    (shop,) = memory.records(user_id="louis")
    assert shop.mentions == 2
    model.operations = [{"op": "end", "fact": 1, "quote": "We closed the shop on Oak Road"}]
    say(memory, "We closed the shop on Oak Road.", start=MAY + timedelta(days=21))
    assert known(memory) == {}
    assert [outcome for outcome, _ in ledger(memory)] == ["stored"] * 4
    why = memory.why(shop.memory_id, user_id="louis")
    assert [one.kind for one in why.evidence] == ["said", "confirmed", "ended"]


PERIODS = {"2026-05-06": 6, "2026-W19": 10, "2026W20": 17, "2026-05": 31, "2026-06-01T09:00": 32, "2026": 245}
"""What a model may say of an end, and the last day that is meant, from the last of April on."""


def test_a_recalled_message_that_is_not_true_any_more_comes_with_what_is_true_now(opened) -> None:
    then, now = "I work as a nurse at Mercy", "I start at Elmwood"
    model = Reader(
        {"quote": then, "key": "job", "value": "nurse", "text": "Ada works at Mercy Hospital."},
        {"quote": now, "key": "job", "value": "Elmwood", "text": "Ada works at Elmwood Clinic."},
    )
    with opened(model) as memory:
        chat = memory.chat(user_id="ada", session_id="a")
        chat.add("user", f"{then}, on the night shift.", created_at=MAY)
        chat.add("assistant", "Sleep well.", created_at=MAY)
        chat.end()
        memory.flush()
        asked = memory.chat(user_id="ada", session_id="b")
        assert "What is remembered" not in asked.context("Where do I work as a nurse?").recall
        chat.add("user", f"Big news! {now}.", created_at=MAY + timedelta(days=9))
        chat.end()
        memory.flush()
        told = asked.context("Where do I work as a nurse?")
        assert "- [2026-05-13 semantic] Ada works at Elmwood Clinic." in told.recall
        assert f"- [2026-05-04 user, changed on 2026-05-13] {then}" in told.recall, "an old line says so"
        assert told.recall.count("changed on") == 1
        hits = memory.search("A nurse, or do I start at Elmwood?", user_id="ada")
        ends = {hit.text: hit.changed_at for hit in hits}
        assert ends[f"{then}, on the night shift."] == MAY + timedelta(days=9)
        assert ends[f"Big news! {now}."] is None
        assert "changed on 2026-05-13" in UserMemory(asked).retrieve("Where do I work as a nurse?")
        assert "Mercy Hospital" not in told.recall
        assert "current" in {reason.code for piece in told.pieces for reason in piece.reasons}
        both = asked.context("Do I work as a nurse, or do I start at Elmwood? Big news!").recall
        assert then in both
        assert now in both
        assert "Elmwood Clinic" not in both, "a fact is told once, by its own message"
        alone = asked.context("Where do I work as a nurse?", filter=RecallFilter(kinds=["message"]))
        assert "Elmwood Clinic" not in alone.recall


def test_what_was_past_when_it_was_said_or_holds_again_is_not_told_as_changed(opened) -> None:
    lines = ["I lived in Rome until 2019", "I live in Bilbao", "We moved to Turin", "I am back in Bilbao"]
    past = {"quote": lines[0], "key": "home", "value": "Rome", "until": "2019", "text": "Ada lived in Rome."}
    places = {line: line.split()[-1] for line in lines[1:]}
    homes = (
        {"quote": line, "key": "home", "value": place, "text": f"Of Ada: {line}."}  # in other words each time
        for line, place in places.items()
    )
    with opened(Reader(past, *homes)) as memory:
        chat = memory.chat(user_id="ada", session_id="a")
        for day, line in enumerate(lines):
            chat.add("user", f"{line}.", created_at=MAY + timedelta(days=day))
            chat.end()
            memory.flush()
        hits = memory.search("Where did I live: Rome, Bilbao, Turin?", user_id="ada")
        assert {hit.text: hit.changed_at for hit in hits if hit.record is None} == {
            f"{lines[0]}.": None,
            f"{lines[1]}.": None,
            f"{lines[2]}.": MAY + timedelta(days=3),
            f"{lines[3]}.": None,
        }


def test_a_period_ends_with_its_last_day_and_what_has_ended_in_it_when_that_was_said(opened) -> None:
    stays = ({"quote": "in Porto", "key": f"stay_{last}", "until": until} for until, last in PERIODS.items())
    model = Reader(*stays)
    memory = opened(model)
    say(memory, "I am in Porto for now.")
    for last in PERIODS.values():
        behind = datetime(2026, 4, 30, tzinfo=UTC) + timedelta(days=last + 1)
        assert ("user", f"stay_{last}") in known(memory, as_of=behind - timedelta(hours=1))
        assert ("user", f"stay_{last}") not in known(memory, as_of=behind)
    model.operations = [{"quote": "in Faro", "key": "stay"}]
    say(memory, "I am in Faro.", user="ada")
    model.operations = [{"op": "end", "fact": 1, "quote": "I left Faro this month", "until": "2026-05"}]
    say(memory, "I left Faro this month.", user="ada", start=MAY + timedelta(days=7))
    assert known(memory, "ada", as_of=MAY + timedelta(days=6)) == {("user", "stay"): "in Faro"}
    assert known(memory, "ada", as_of=MAY + timedelta(days=8)) == {}


LEEDS = (-9, "I live in Leeds", {"confidence": 0.9})
TURIN = (-5, "soon we move to Turin", {"op": "update", "fact": 1, "since": 30})
LATER = (-1, "later to Turin", {"op": "update", "fact": 2, "since": 50})
PLAN = (-90, "we plan York", {"modality": "plans"})
ROME, YORK = (-90, "it is Rome", {}), (-50, "it is York", {})
UPDATE, END = {"op": "update", "fact": 1}, {"op": "end", "fact": 1}
STORIES: list[tuple[list[Any], dict[int, str]]] = [
    ([LEEDS, (-5, "perhaps soon in York", {"confidence": 0.4})], {-1: "Leeds"}),
    ([LEEDS, (-5, "perhaps I leave Leeds", {**END, "confidence": 0.3})], {-1: "Leeds"}),
    ([LEEDS, (-5, "as a child in Leeds", {"since": -6000, "until": -4000})], {-1: "Leeds", -2000: ""}),
    ([LEEDS, (-12, "my home is York", UPDATE)], {-1: "Leeds", -10: "York"}),
    ([LEEDS, TURIN, (-1, "we stay, and not Turin", {"op": "end", "fact": 2})], {40: "Leeds"}),
    ([LEEDS, TURIN, LATER], {40: "Leeds", 60: "Turin"}),
    ([LEEDS, (-1, "a month in Leeds", {"op": "confirm", "fact": 1, "until": 30})], {20: "Leeds", 40: ""}),
    ([LEEDS, (-1, "for years in Leeds", {"op": "confirm", "fact": 1, "since": -2500})], {-1000: "Leeds"}),
    ([LEEDS, (-1, "from Leeds to York", UPDATE, END)], {-5000: ""}),
    ([(-1, "in Leeds and in York", {"value": "Leeds"}, {})], {0: "Leeds York"}),
    ([PLAN, YORK], {-95: "", -70: "York?", 0: "York"}),
    ([ROME, (-50, "lately York", {"since": -20})], {-60: "Rome", 0: "York"}),
    ([ROME, (-50, "a while in Rome", {**END, "until": 30}), (-10, "Rome", {})], {0: "Rome", 60: "Rome"}),
    ([ROME, YORK, (-40, "never York", {**END, "correction": True})], {-45: "Rome", 0: "Rome"}),
    ([ROME, YORK, (-40, "no, Bonn", {**UPDATE, "correction": True})], {-60: "Rome", -45: "Bonn", 0: "Bonn"}),
    ([ROME, YORK, (-30, "long in York", {"since": -70})], {-80: "Rome", -60: "York"}),
    ([ROME, (-50, "soon Turin", {"since": 30}), (-10, "York", {})], {-20: "Rome", 0: "York", 40: "Turin"}),
    ([(-50, "Rome", {}), (-300, "long in Rome", {"since": -400})], {-350: "Rome", 0: "Rome"}),
    ([ROME, (-30, "still Rome", {}), (-60, "it is York", {})], {0: "Rome"}),
    ([PLAN, (-50, "Rome", {}), (-70, "it is York", {})], {-60: "York York?", 0: "Rome York?"}),
]
"""What is said on which day, counted from today, with what a model makes of it; and the homes on some days. A plan has a `?`."""


@pytest.mark.requirement("J21")
@pytest.mark.parametrize(("said", "homes"), STORIES)
def test_what_was_true_is_known_for_every_moment_whatever_the_model_makes_of_it(opened, said, homes) -> None:
    model = Reader()
    memory, today = opened(model), datetime.now(UTC)

    def dated(made: dict[str, Any]) -> dict[str, Any]:
        days = {edge: today + timedelta(days=made[edge]) for edge in ("since", "until") if edge in made}
        return made | {edge: f"{day:%Y-%m-%d}" for edge, day in days.items()}

    for number, (day, text, *made) in enumerate(said):
        fields = {"quote": text, "key": "home", "value": text.split()[-1]}
        model.operations = [fields | dated(one) for one in made]
        say(memory, f"{text}.", session=f"s{number}", start=today + timedelta(days=day))
    for day, values in homes.items():
        found = memory.records(user_id="louis", as_of=today + timedelta(days=day))
        sure = [f"{one.value}{'?' * (one.modality == 'plans')}" for one in found if one.confidence > 0.5]
        assert " ".join(sorted(sure)) == values, day


def test_what_is_denied_is_told_in_its_own_words_and_is_still_denied_when_it_is_said_again(opened) -> None:
    denied = {"quote": "I never eat pork", "key": "eats", "value": "pork", "modality": "denies"}
    model = Reader({**denied, "always": True})
    memory = opened(model)
    say(memory, "I never eat pork.")
    model.operations = [{"op": "confirm", "fact": 1, "quote": "still no pork"}]
    say(memory, "As I said, still no pork.", start=MAY + timedelta(days=1))
    told = memory.chat(user_id="louis", session_id="t").context("Hi").messages[0].text
    assert "eats: pork" not in told
    assert "it is not so] I never eat pork" in told
    assert memory.profile("louis") == {}


def test_a_fact_that_is_deleted_while_a_model_repeats_it_does_not_come_back(opened) -> None:
    def forget(_prompt: str) -> str:
        memory.forget(user_id="louis", record_id="louis_mem_001")
        said = {"op": "confirm", "fact": 1, "quote": "the same boat", "messages": [1]}
        return json.dumps({"operations": [said]})

    memory = opened(Replies(GOOD, forget))
    say(memory, "I own a red boat.")
    say(memory, "I still own the same boat.", session="t")
    assert known(memory, every=True) == {}


def test_what_an_agent_corrects_by_the_words_of_a_message_goes_with_that_message(opened) -> None:
    memory = opened(Reader({"quote": "I live in Leeds", "key": "home", "value": "Leeds"}))
    chat = say(memory, "I live in Leeds.", "No, my address is 12 Elm Street.")
    correct, _ = AGENT_TOOLS["correct_memory"].functions(chat, None, ValueError)
    correct("louis_mem_001", "Elm", "said so", "12 Elm Street", "my address is 12 Elm Street")
    assert [(one.value, one.always) for one in memory.records(user_id="louis")] == [("12 Elm Street", False)]
    chat.withdraw([chat.history()[2].id])
    assert memory.records(user_id="louis", every=True) == []


def test_an_end_is_seen_in_old_messages_and_goes_with_the_message_that_says_it(opened) -> None:
    ate = ("I eat anything", "anything"), ("I eat vegan food", "vegan")
    model = Reader(*({"quote": quote, "key": "diet", "value": value} for quote, value in ate))
    memory, today = opened(model), datetime.now(UTC)
    say(memory, "I eat anything.", "These days I eat vegan food.", start=today - timedelta(days=10))
    until = f"{today + timedelta(days=30):%Y-%m-%d}"
    model.operations = [{"op": "end", "fact": 1, "quote": "till next month", "until": until}]
    chat = say(memory, "Only till next month.", session="t", start=today - timedelta(days=5))
    assert memory.records(user_id="louis")[0].valid_until is not None
    chat.withdraw([chat.history()[0].id])
    assert [(one.value, one.valid_until) for one in memory.records(user_id="louis")] == [("vegan", None)]
    model.operations = [{"op": "end", "fact": 1, "quote": "not any more"}]
    say(memory, "I do not, not any more.", session="u", start=today - timedelta(days=1))
    assert [one.value for one in memory.records(user_id="louis", every=True)] == ["vegan"]
    assert "changed on" in memory.chat(user_id="louis").context("Do I eat vegan food these days?").recall


def test_a_model_does_not_read_what_memory_said_before(opened) -> None:
    model = Reader({"quote": "allergic to nuts", "key": "allergy", "value": "nuts", "always": True})
    memory = opened(model)
    say(memory, "I am allergic to nuts.")
    chat = memory.chat(user_id="louis", session_id="t")
    chat.add("assistant", f"{chat.context('What?').messages[0].text} That is all.")
    say(memory, "Thanks for that.", session="t")
    assert "assistant: That is all." in model.prompts[-1]


FORMS = [
    ("Ich wohne in Mu\u0308nchen.", "wohne in M\u00fcnchen", True),
    ("\u6211\u5728Google\u5de5\u4f5c", "\u6211\u5728 Google \u5de5\u4f5c", True),
    ("\u042f \u043d\u0435\u0436\u0435\u043d\u0430\u0442.", "\u0436\u0435\u043d\u0430\u0442", False),
]


@pytest.mark.parametrize(("text", "quote", "is_there"), FORMS)
def test_a_quote_may_have_another_form_and_is_never_a_part_of_a_word(opened, text, quote, is_there) -> None:
    memory = opened(lambda _prompt: json.dumps({"operations": [{**BOAT, "quote": quote}]}))
    say(memory, text)
    assert bool(known(memory)) is is_there


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quote": "a parrot called Rio"}, "its quote stands in no message that it names"),
    ({"quote": "wo rabbit"}, "its quote stands in no message that it names"),
    ({"quote": "home = 'Berlin'"}, "its quote stands in no message that it names"),
    ({"quote": "I live in Oslo"}, "its quote stands in no message that it names"),
    ({"quote": "I see."}, "the user did not say it, the assistant did"),
    ({"messages": [7]}, "it names a message that there is not"),
    ({"messages": []}, "it names a message that there is not"),
    ({"op": "update", "fact": 9}, "it names no fact that is known"),
    ({"op": "end"}, "it names no fact that is known"),
    ({"since": "last year"}, "a date in it is not an ISO 8601"),
    ({"since": "2026", "until": "2025-W02"}, "it ends before"),
    ({"modality": "used_to", "until": "2027"}, "it was so in the past, and ends in the future"),
    ({"value": " "}, "it has no value"),
    ({"key": "pets / <b>"}, "its key is not a short noun"),
    ({"modality": "swears"}, "its form is wrong"),
]


def test_what_no_message_supports_is_refused_with_the_reason_and_nothing_is_learned(opened) -> None:
    """A block of code and a quotation in a message support nothing, either."""
    plain = {"op": "add", "quote": "two rabbits", "value": "two", "messages": [2]}
    said = [*({**plain, **wrong} for wrong, _ in REFUSED), {**plain, "key": "animals"}]
    memory = opened(lambda _prompt: json.dumps({"operations": said}))
    pasted = "```py\nhome = 'Berlin'\n```\n> I live in Oslo now\nAt home we have two rabbits and a garden."
    say(memory, "Hello there, how was your day?", pasted)
    (entry,) = memory.ledger(user_id="louis")
    for refused, (_, reason) in zip(entry.refusals, REFUSED, strict=True):
        assert refused.startswith(reason)
    assert known(memory) == {("user", "animals"): "two"}


def test_ten_turns_are_one_call_and_fewer_wait_until_their_user_begins_another_session(opened) -> None:
    model = Reader()
    memory = opened(model, QUICK.replace(extraction_idle_seconds=600, backlog_limit=1))
    chat = memory.chat(user_id="louis", session_id="s")
    for number in range(9):
        chat.add("user", f"Yesterday I read page {number} of the book.")
        chat.add("assistant", "What was on it?")
    until_queued(memory, 9)
    wait_for(lambda: memory.admin.status().problems == {})  # they are not a backlog
    assert model.prompts == []
    chat.add("user", "And then I put it away.")
    wait_for(lambda: len(model.prompts) == 1)
    assert "[10] " in model.prompts[0]
    assert "page 0" in model.prompts[0]
    until_queued(memory, 0)
    chat.add("user", "Please be concise.")
    memory.chat(user_id="eve", session_id="s").add("user", "Hello.")
    until_queued(memory, 2)
    assert len(model.prompts) == 1
    memory.chat(user_id="louis", session_id="t").add("user", "Hello again.")
    wait_for(lambda: len(model.prompts) == 2)
    assert "be concise" in model.prompts[1]
    assert "Hello" not in model.prompts[1]


def test_three_turns_are_read_when_nobody_says_more_and_fewer_when_the_session_ends(opened) -> None:
    model = Reader()
    memory = opened(model, QUICK.replace(extraction_idle_seconds=0.2))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "I read a book about owls.")
    chat.add("user", "It was long.")
    until_queued(memory, 2)
    time.sleep(0.5)
    assert model.prompts == []
    chat.add("user", "And heavy.")
    wait_for(lambda: model.prompts)
    chat.add("user", "I gave it away.")
    chat.end()
    wait_for(lambda: len(model.prompts) == 2)


@pytest.mark.requirement("J28")
def test_a_prompt_has_a_limit_and_shows_some_of_each_message_and_the_facts_that_bear_on_it(opened) -> None:
    model = Reader()
    memory = opened(model, QUICK.replace(extraction_tokens=2000, extraction_idle_seconds=600))
    louis = memory.chat(user_id="louis", session_id="s")
    louis.remember("The shop is on Elm Street.", key="shop", value="Elm Street")
    for number in range(30):
        louis.remember(f"Room {number} has {'a blue door, ' * 9}", key=f"room_{number}", value="blue " * 20)
    say(memory, *(f"Number {number}: late at the shop. {'I walked. ' * 600}" for number in range(10)))
    (prompt,) = model.prompts
    assert memory.runtime.tokens.text(model.instructions[0] + prompt) <= 2000
    assert all(f"Number {number}: late at the shop." in prompt for number in range(10))
    facts = prompt.split("Known facts:")[1].split("Conversation:")[0]
    assert "shop = Elm Street" in facts
    assert facts.count("\n") <= 22


def test_users_do_not_meet_in_a_prompt_and_facts_are_in_the_language_of_the_talk(opened) -> None:
    model = Reader({"quote": "在榆树街开了一家书店", "key": "书店", "value": "榆树街"})
    memory = opened(model)
    memory.chat(user_id="ada", session_id="a").remember("On Elm Street.", key="shop", value="Elm Street")
    say(memory, "I was at the shop.", user="ada", session="a")
    say(memory, "我和小美去年在榆树街开了一家书店。", user="louis", session="b")
    told = [("Elm Street" in prompt, "小美" in prompt) for prompt in model.prompts]
    assert told == [(True, False), (False, True)]
    assert known(memory) == {("user", "书店"): "榆树街"}
    assert known(memory, "ada") == {("user", "shop"): "Elm Street"}


def test_what_somebody_deleted_does_not_come_back_from_the_model(opened) -> None:
    model = Reader({"quote": "I live in Graz", "key": "town", "value": "Graz"})
    memory = opened(model, QUICK.replace(extraction_idle_seconds=600))
    chat = memory.chat(user_id="louis", session_id="s")
    chat.add("user", "By the way, I live in Graz.")
    until_queued(memory, 1)
    record, _ = AGENT_TOOLS["record_to_memory"].functions(chat, None, ValueError)
    said = {"text": "x", "key": "town", "value": "Graz", "asserted_by": "user", "quote": "I live in Graz"}
    record("why", [said])
    memory.forget(user_id="louis", record_id=memory.records(user_id="louis")[0].memory_id)
    memory.flush(30)
    assert known(memory) == {}
    assert model.prompts == []


@pytest.mark.parametrize("session", ["s", None])
def test_what_is_forgotten_while_the_model_thinks_leaves_nothing(opened, session) -> None:
    def model(_prompt: str) -> str:
        memory.forget(user_id="louis", session_id=session)
        return json.dumps({"operations": [BOAT, {**BOAT, "value": "purple", "quote": "purple"}]})

    memory = opened(model)
    say(memory, "You know that I own a red boat.")
    assert memory.records(user_id="louis", every=True) == []
    assert memory.ledger(user_id="louis") == []


def test_a_process_without_the_model_leaves_the_work_to_one_that_has_it(opened) -> None:
    model = Reader({"quote": "a red boat", "key": "boat", "value": "red"})
    first = opened(model, QUICK.replace(extraction_idle_seconds=600))
    first.chat(user_id="louis", session_id="s").add("user", "You know that I own a red boat.")
    wait_for(lambda: first.runtime.db.read(jobs.count_kinds) == {"learn": 1})
    first.close()
    without = opened()
    without.runtime.db.write(jobs.hurry, without.runtime.now())
    without.chat(user_id="ada", session_id="a").add("user", "Here is a red boat.")
    without.flush(30)
    assert known(without) == {}
    assert without.admin.status().backlog.queued == 2
    opened(model).flush(30)
    assert known(without) == known(without, "ada") == {("user", "boat"): "red"}


@pytest.mark.each_database
@pytest.mark.parametrize(("days", "boats"), [(0, {"green"}), (30, {"green", "red"})])
def test_a_model_that_is_given_later_reads_as_far_back_as_a_setting_says(opened, days, boats) -> None:
    colours = ("old", "red", "green")
    model = Reader(*({"quote": f"the {one} boat", "key": f"{one}_boat", "value": one} for one in colours))
    before = opened(None)
    chat = before.chat(user_id="louis", session_id="s")
    for one, age in (("old", 3000), ("red", 3)):
        chat.add("user", f"I own the {one} boat.", created_at=before.runtime.now() - timedelta(days=age))
    before.flush(30)
    assert before.admin.status().backlog.queued == 0
    memory = opened(model, QUICK.replace(learn_back_days=days))
    memory.chat(user_id="louis", session_id="s").add("user", "I own the green boat.")
    memory.flush(30)
    assert set(known(memory).values()) == boats


@pytest.mark.each_database
def test_what_is_over_the_limit_of_a_day_is_read_on_the_next_one(opened) -> None:
    model = Reader()
    memory = opened(model, QUICK.replace(extraction_daily_calls=1))
    say(memory, "I own a red boat.")
    say(memory, "I own a blue boat. My name is Louis.")
    say(memory, "I own a green boat.", user="ada")
    assert len(model.prompts) == 2, "each user has a limit of their own"
    reason = "the user's limit of today is reached: `Settings.extraction_daily_calls` is 1"
    assert ledger(memory)[1] == ("waits", reason)
    set_ahead(memory, 1)
    memory.flush()
    assert "I own a blue boat." in model.prompts[-1]


def test_two_memories_never_read_one_batch_twice(opened) -> None:
    model = Reader({"quote": "a red boat", "key": "boat", "value": "red"})
    first, second = opened(model), opened(model)
    for number in range(3):
        say(first, f"I own a red boat, and this is day {number}.", session=f"s{number}")
    second.flush(30)
    assert len(model.prompts) == 3
    (record,) = first.records(user_id="louis")
    assert record.mentions == 3


class ToolCaller(GenericFakeChatModel):
    """A chat model of LangChain that can be held to a schema."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        assert [tool.__name__ for tool in tools] == ["Operations"]
        return self


BOAT = {"op": "add", "key": "boat", "value": "red", "quote": "a red boat", "messages": [1]}


TOLD = {"operations": [BOAT]}
GOOD = json.dumps(TOLD)
CALL = {"name": "Operations", "args": TOLD, "id": "1", "type": "tool_call"}
IN_LANGCHAIN = AIMessage("", tool_calls=[CALL])
CALL_BLOCK = ToolCallBlock(tool_call_id="1", tool_name="Operations", tool_kwargs=TOLD)
IN_LLAMAINDEX = ChatMessage(role="assistant", blocks=[CALL_BLOCK])
MODELS: dict[str, Callable[[], Any]] = {
    "LangChain's, held to the schema": lambda: ToolCaller(messages=iter([IN_LANGCHAIN])),
    "LangChain's, asked in words": lambda: GenericFakeChatModel(messages=iter([AIMessage(GOOD)])),
    "LlamaIndex's, held to the schema": lambda: speaking(lambda _: IN_LLAMAINDEX),
    "LlamaIndex's, asked in words": lambda: speaking(lambda _: ChatMessage(GOOD, role="assistant")),
}


class RefusedFormError(Exception):
    """What a client raises that a server answers with a status code."""

    def __init__(self, status_code: int) -> None:
        super().__init__("response_format.type: json_schema is not supported")
        self.status_code = status_code


class Picky(GenericFakeChatModel):
    """A chat model of LangChain whose server refuses forms of an answer, and notes what it was asked for."""

    refusals: dict[str, int]
    asked: list[str]

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def with_structured_output(self, schema: Any, *, method: str = "json_schema", **_: Any) -> Any:
        def answer(_: Any) -> Any:
            self.asked.append(method)
            if method in self.refusals:
                raise RefusedFormError(self.refusals[method])
            return {"raw": AIMessage(GOOD), "parsed": None}

        return RunnableLambda(answer)


def test_a_server_that_refuses_a_schema_is_asked_for_json_and_then_in_words() -> None:
    both = ["json_schema", "json_mode"]
    neither = {"json_schema": 422, "json_mode": 400}
    for refusals, second in (({"json_schema": 400}, both[1:]), ({"json_schema": 500}, both), (neither, [])):
        words = [AIMessage(GOOD) for _ in range(2)]
        model = Picky(messages=iter(words), refusals=refusals, asked=[])
        with Memory.in_memory(settings=QUICK, extractor=model) as memory:
            say(memory, "I own a red boat.")
            assert (known(memory)["user", "boat"], model.asked) == ("red", both)
            say(memory, "As I said, I own a red boat.")
            assert model.asked == both + second
            assert memory.admin.status().problems == {}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_a_framework_is_held_to_the_schema_or_asked_in_words(opened, model) -> None:
    memory = opened(MODELS[model]())
    say(memory, "I own a red boat.")
    assert known(memory)["user", "boat"] == "red"
    assert memory.admin.status().problems == {}


def until_queued(memory: Memory, count: int) -> None:
    wait_for(lambda: memory.admin.status().backlog.queued == count)


# Models answer badly in many ways: no fact is lost, none is made up, and every turn ends in a state


class Replies:
    """A model that gives replies, the last one again and again, and keeps the prompts that it got."""

    def __init__(self, *replies: str | Callable[[str], str]) -> None:
        self.replies = list(replies)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(prompt) if callable(reply) else reply


def hang(_prompt: str) -> str:
    threading.Event().wait(1)
    return GOOD


def fail(_prompt: str) -> str:
    raise ConnectionError("the model is not there")


READABLE = [
    f"Sure, here is what I found: {GOOD} I hope this helps!",
    f"```json\n{GOOD}\n```",
    f"<think>The user has {{a boat}}, so [1] …</think>\n{GOOD}",
    GOOD[: GOOD.index('"messages"') + len('"messages": [1')],
    json.dumps([BOAT]),
    json.dumps(BOAT),
    str(TOLD),
    json.dumps({"operations": [{**BOAT, "messages": ["1"], "fact": None}]}),
    GOOD + " " + "and so on " * 50_000,
]
DEEP = [f'{{"operations": {inside}' for inside in ("[" * 600, '[{"a":' * 3000, "[" * 9000)]
UNUSABLE: list[str | Callable[[str], str]] = [
    "",
    "I'm sorry, but I cannot help with that.",
    json.dumps({"facts": "a red boat"}),
    json.dumps({"operations": [{"op": 3, "value": ["x"]}, "boat", None]}),
    "<think>Let me think about it",
    *DEEP,
    hang,
    fail,
]


def test_fences_and_thoughts_that_a_user_wrote_are_part_of_a_quote() -> None:
    text = "My script is ```run()``` and <think>so</think> it ends."
    answer = json.dumps({"operations": [{**BOAT, "quote": text}]})
    (found,) = operations_in(f"Here:\n```json\n{answer}\n```\nDone.")
    assert isinstance(found, Operation)
    assert found.quote == text


@contextmanager
def learned(model: Callable[[str], str], *texts: str, **changes: Any) -> Iterator[Memory]:
    """Give a memory whose user said something, after a model was asked about it."""
    with Memory.in_memory(extractor=model, settings=QUICK.replace(model_timeout=0.3, **changes)) as memory:
        said = [Message("user", text) for text in texts or ("You see, I own a red boat.",)]
        memory.chat(user_id="louis", session_id="s").add_messages(said)
        memory.flush(30)
        yield memory


def boats(memory: Memory) -> list[str | None]:
    return [one.value for one in memory.records(user_id="louis") if one.key == "boat"]


def test_what_can_be_read_is_read() -> None:
    for reply in READABLE:
        with learned(Replies(reply)) as memory:
            assert boats(memory) == ["red"], reply[:80]
            assert sum(one.calls for one in memory.admin.costs(user_id="louis")) == 1


def test_after_a_bad_answer_the_model_heals_and_nothing_is_lost() -> None:
    for reply in UNUSABLE:
        model = Replies(reply, GOOD)
        with learned(model) as memory:
            assert boats(memory) == ["red"], reply
            assert len(model.prompts) == 2
            assert ("could not be used" in model.prompts[1]) is not callable(reply), "the error is quoted"
            assert "gave up" not in {entry.outcome for entry in memory.ledger(user_id="louis")}
            assert memory.admin.status().problems == {}


def test_an_answer_that_stays_bad_is_paid_for_a_few_times_and_the_ledger_says_so() -> None:
    for reply in (UNUSABLE[0], UNUSABLE[3], DEEP[-1]):
        model = Replies(reply)
        with learned(model, *(f"My locker {number} has a green door." for number in range(4))) as memory:
            assert len(model.prompts) == 4, "one, a second try, and one for each half"
            (entry,) = memory.ledger(user_id="louis")
            assert entry.outcome == "gave up"
            assert "could not be read" in entry.reason
            backlog = memory.admin.status().backlog
            assert (backlog.queued, backlog.dead) == (0, 0)


def test_half_of_a_batch_is_learned_though_the_other_half_cannot_be_read() -> None:
    def model(prompt: str) -> str:
        return "no" if "poison" in prompt else GOOD

    said = ("I own a red boat.", "It is mine.", "Behind our shed grows poison ivy.", "We go.")
    with learned(model, *said) as memory:
        assert boats(memory) == ["red"]
        (entry,) = memory.ledger(user_id="louis")
        assert entry.outcome == "stored"
        assert "2 message(s) could not be read" in entry.reason


class LengthFinishReasonError(Exception):
    """What OpenAI's client raises in place of a cut answer."""


@pytest.mark.parametrize("raises", [False, True])
def test_an_answer_that_is_cut_at_its_length_is_asked_for_in_halves(raises) -> None:
    def short(prompt: str) -> str:
        names = [line[-4:] for line in prompt.splitlines() if line.startswith("[")]
        made = [{**BOAT, "key": one, "quote": one, "messages": [at]} for at, one in enumerate(names, 1)]
        answer = json.dumps({"operations": made})
        if raises and len(answer) > 130:
            raise LengthFinishReasonError
        return answer[:130]

    with learned(short, "see Anna", "see Bert", "see Cleo", "see Dora") as memory:
        assert {key for _, key in known(memory)} == {"anna", "bert", "cleo", "dora"}


def test_calls_that_fail_count_against_the_limit_of_a_day_and_the_ledger_has_each() -> None:
    model = Replies(fail)
    with learned(model, job_attempts=9, extraction_daily_calls=2) as memory:
        assert len(model.prompts) == memory.admin.costs()[0].calls == 2
        assert [outcome for outcome, _ in ledger(memory)] == ["waits"] * 3


def test_a_model_that_is_away_for_long_is_asked_again_when_it_is_back() -> None:
    with learned(Replies(fail, fail, GOOD), job_attempts=2) as memory:
        status = memory.admin.status()
        assert status.backlog.dead == 1, "it waits for somebody who looks"
        assert "did not answer" in status.problems["learning"]
        memory.admin.retry_dead()
        memory.flush(30)
        assert boats(memory) == ["red"]
        assert memory.admin.status().problems == {}


def test_deep_brackets_are_named_and_neither_they_nor_long_numbers_stop_the_look_whether_it_is_cut() -> None:
    for answer in DEEP:
        with pytest.raises(AnswerError, match="nested too deep"):
            operations_in(answer)
    for answer in (*DEEP, '{"operations": [{"fact": ' + "1" * 5000):
        assert is_cut(answer) in {True, False}


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["operations", "op", "value", "messages", "x"]), inner, max_size=4),
    max_leaves=12,
).map(json.dumps))  # fmt: skip
def test_any_answer_is_operations_or_an_error_that_says_what_is_wrong(answer: Any) -> None:
    try:
        found = operations_in(answer)
    except AnswerError as problem:
        found = [str(problem)]
    assert all(one and isinstance(one, Operation | str) for one in found)
