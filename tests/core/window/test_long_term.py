"""A user's memory as text in and text out; and another service that stands in for it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from refusals import refused
from tuned import Tuned

from memlayer_core import Chat, Memory, Message, RecallFilter, Scope, ToolCall, errors
from memlayer_core.chat import UserMemory
from memlayer_core.message import TASK

NOW = Tuned(index_delay=0, durability="normal", job_attempts=2, job_backoff=0.01, long_term_timeout=0.5)


ASKED = "What is my parrot called?"


class Service:
    """A service with one list for each user. It blocks."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.recorded: list[tuple[str, list[tuple[str, str]]]] = []
        self.problem: Exception | None = None

    def of(self, scope: Scope) -> Any:
        return OfUser(self, scope)


class OfUser:
    def __init__(self, service: Service, scope: Scope) -> None:
        self.service, self.whose = service, (scope.tenant_id, scope.user_id)

    def record(self, messages: list[Message]) -> None:
        if self.service.problem is not None:
            raise self.service.problem
        self.service.recorded.append((self.whose[1], [(one.role, one.text) for one in messages]))

    def retrieve(self, message: Message) -> str:
        self.service.asked.append((self.whose[1], message.text))
        if self.service.problem is not None:
            raise self.service.problem
        return "\n".join(self.service.known.get(self.whose, ()))


class Awaited(OfUser):
    async def record(self, messages: list[Message]) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().record(messages)

    async def retrieve(self, message: Message) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().retrieve(message)


@pytest.fixture
def service() -> Service:
    made = Service()
    made.known["default", "louis"] = ["The parrot is called Rio."]
    return made


@pytest.fixture
def memory(service: Service) -> Iterator[Memory]:
    with Memory.in_memory(settings=NOW, long_term_memory=service.of) as opened:
        yield opened


@pytest.fixture
def chat(memory: Memory) -> Chat:
    return memory.chat(user_id="louis", session_id="now")


# Our own


@pytest.mark.requirement("A12", "A16")
def test_what_is_recorded_of_user_and_assistant_is_retrieved_in_another_session(store: Memory) -> None:
    call, coco = ToolCall("c1", "look", "{}"), "My parrot is called Coco."
    said = [
        *(Message("system", "You are terse."), Message("user", coco)),
        *(Message("assistant", tool_calls=[call]), Message("tool", "a parrot", tool_call_id="c1")),
        Message("assistant", "A fine name for a parrot."),
    ]
    named = ("louis", "past"), ("louis", "now"), ("bob", "now")
    ours, later, other = (UserMemory(store.chat(user_id=user, session_id=name)) for user, name in named)
    for _ in range(2):
        ours.record(said)
    store.flush()
    assert [one.role for one in ours.chat.history()] == ["user", "assistant"]
    assert coco in later.retrieve(Message("user", ASKED)) == later.retrieve(ASKED)
    assert other.retrieve(ASKED) == ""
    refused(errors.MessageTypeError, None, later.record, ["hello"])


# Another service


@pytest.mark.requirement("A12", "A13")
@pytest.mark.parametrize("one", [OfUser, Awaited], ids=["blocking", "async"])
def test_the_service_stands_in_for_what_memory_knows_of_other_sessions(service, one) -> None:
    with Memory.in_memory(settings=NOW, long_term_memory=lambda scope: one(service, scope)) as memory:
        past, chat = (memory.chat(user_id="louis", session_id=name) for name in ("past", "now"))
        past.add("user", "My parrot is called Coco.")
        past.remember("The parrot Coco is green.")
        memory.flush()
        chat.add("user", ASKED)
        context = chat.context()
        chat.add("assistant", "Rio.")
        memory.flush()
    assert "- [long-term memory] The parrot is called Rio." in context.messages[-1].text
    assert "Coco" not in context.messages[-1].text
    assert service.asked == [("louis", ASKED)]
    assert context.tokens <= context.token_limit
    [piece] = [one for one in context.pieces if one.kind == "recall"]
    assert piece.speaker == "long-term memory"
    assert sum(one.tokens for one in context.pieces) == context.tokens
    assert service.recorded == [("louis", [("user", ASKED), ("assistant", "Rio.")])]


def test_its_text_stays_with_its_question_and_it_is_asked_once(chat, service) -> None:
    question = Message("user", ASKED, id="q")
    assert "called Rio" in chat.context(pending=[question]).messages[-1].text, "it is not stored yet"
    call = Message("assistant", tool_calls=[ToolCall("c1", "look", "{}")])
    chat.add_messages([question, call, Message("tool", "a parrot", tool_call_id="c1")])
    service.known["default", "louis"] = [f"The parrot number {number} is Rio." for number in range(500)]
    assert "called Rio" in chat.context().messages[0].text
    assert service.asked == [("louis", ASKED)]
    cut = chat.context("And which number is it?", token_limit=300)
    assert "number 0 is Rio" in cut.recall
    assert cut.tokens <= 300


@pytest.mark.requirement("A13", "A16")
def test_each_round_is_recorded_once_and_in_the_background(memory, service, chat) -> None:
    first = [Message("user", "Hello."), Message("assistant", "Hi.")]
    chat.add_messages([Message("system", "Be terse."), *first])
    chat.add("user", "Look!")
    chat.add("assistant", "I look.", tool_calls=[ToolCall("c1", "look", "{}")])
    chat.add("tool", "a parrot", tool_call_id="c1")
    for role in ("user", "assistant"):
        chat.add(role, "a task of another agent", metadata={TASK: True})
    chat.add("assistant", "A parrot.")
    chat.add("user", "Not answered yet.")
    memory.flush()
    looked = [("user", "Look!"), ("assistant", "I look."), ("assistant", "A parrot.")]
    assert service.recorded == [("louis", [("user", "Hello."), ("assistant", "Hi.")]), ("louis", looked)]


def test_tenants_and_users_never_share_a_service(memory) -> None:
    for user, tenant in (("bob", "default"), ("louis", "other")):
        chat = memory.chat(user_id=user, session_id="now", tenant_id=tenant)
        chat.add("user", ASKED)
        assert "Rio" not in chat.context().messages[-1].text


def test_without_a_question_from_outside_it_is_not_asked(chat, service) -> None:
    chat.add("user", "Hello.")
    chat.context("")
    filtered = chat.context(filter=RecallFilter(kinds=["record"]))
    assert service.asked == []
    assert "long_term_filtered" in {one.code for one in filtered.reasons}
    refused(errors.ConfigurationError, "long_term_memory", Memory.in_memory, long_term_memory=service)


def test_a_service_that_fails_costs_its_recall_and_nothing_else(memory, service, chat) -> None:
    service.problem = RuntimeError("no route")
    chat.add("user", ASKED)
    context = chat.context()
    assert context.messages[-1].text == ASKED
    assert "long_term_unavailable" in {one.code for one in context.reasons}
    assert "long-term memory" in memory.admin.status().problems
    chat.add("assistant", "I do not know.")
    assert memory.flush().dead == 1, "what could not be recorded is not lost"
    service.problem = None
    memory.admin.retry_dead()
    memory.flush()
    assert [user for user, _ in service.recorded] == ["louis"]
    assert "long-term memory" not in memory.admin.status().problems


def test_what_was_forgotten_before_is_not_recorded(service) -> None:
    settings = NOW.model_copy(update={"index_delay": 3600})
    with Memory.in_memory(settings=settings, long_term_memory=service.of) as memory:
        chat = memory.chat(user_id="louis", session_id="now")
        chat.add_messages([Message("user", "Hello."), Message("assistant", "Hi.")])
        memory.forget("louis")
        memory.flush()
    assert service.recorded == []
