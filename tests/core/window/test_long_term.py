"""A user's memory as text in and text out; and another service that stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tuned import Tuned

from memlayer_core import Memory, Message, RecallFilter, Scope, ToolCall
from memlayer_core.chat import UserMemory
from memlayer_core.errors import ConfigurationError, MessageTypeError

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both

NOW = Tuned(index_delay=0, durability="normal", job_attempts=2, job_backoff=0.01, long_term_timeout=0.5)


ASKED = "What is my parrot called?"
RIO = ["The parrot is called Rio."]


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
    return Service()


@pytest.fixture(params=["blocking", "async"])
def memory(request: Any, service: Service) -> Iterator[Memory]:
    one = OfUser if request.param == "blocking" else Awaited
    with Memory.in_memory(settings=NOW, long_term_memory=lambda scope: one(service, scope)) as opened:
        yield opened


# Our own


@pytest.mark.requirement("A12", "A16")
def test_what_is_recorded_of_user_and_assistant_is_retrieved_in_another_session(store: Memory) -> None:
    said = [
        Message("system", "You are terse."),
        Message("user", "My parrot is called Coco."),
        Message("assistant", "", tool_calls=[ToolCall("c1", "look", "{}")]),
        Message("tool", "a parrot", tool_call_id="c1"),
        Message("assistant", "A fine name for a parrot."),
    ]
    ours = UserMemory(store.chat(user_id="louis", session_id="past"))
    for _ in range(2):
        ours.record(said)
    store.flush()
    assert [one.role for one in ours.chat.history()] == ["user", "assistant"]

    later = UserMemory(store.chat(user_id="louis", session_id="now"))
    told = later.retrieve(Message("user", ASKED))
    assert "My parrot is called Coco." in told
    assert later.retrieve(ASKED) == told
    assert UserMemory(store.chat(user_id="bob")).retrieve(ASKED) == ""


def test_what_is_no_message_is_refused(store: Memory) -> None:
    with pytest.raises(MessageTypeError):
        UserMemory(store.chat(user_id="louis")).record(["hello"])


# Another service


@pytest.mark.requirement("A12", "A13")
def test_the_service_stands_in_for_what_memory_knows_of_other_sessions(memory, service) -> None:
    memory.chat(user_id="louis", session_id="past").add("user", "My parrot is called Coco.")
    memory.chat(user_id="louis", session_id="past").remember("The parrot Coco is green.")
    memory.flush()
    service.known["default", "louis"] = RIO
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("user", ASKED)

    context = chat.context()
    assert "- [long-term memory] The parrot is called Rio." in context.messages[-1].text
    assert "Coco" not in context.messages[-1].text
    assert service.asked == [("louis", ASKED)]
    assert context.tokens <= context.token_limit
    [piece] = [one for one in context.pieces if one.kind == "recall"]
    assert piece.speaker == "long-term memory"
    assert sum(one.tokens for one in context.pieces) == context.tokens


def test_its_text_stays_with_its_question_and_it_is_asked_once(memory, service) -> None:
    service.known["default", "louis"] = RIO
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("user", ASKED)
    chat.context()
    chat.add("assistant", "", tool_calls=[ToolCall("c1", "look", "{}")])
    chat.add("tool", "a parrot", tool_call_id="c1")
    service.known.clear()
    assert "called Rio" in chat.context().messages[0].text
    assert service.asked == [("louis", ASKED)]


def test_a_question_that_is_not_stored_yet_is_asked_for_too(memory, service) -> None:
    service.known["default", "louis"] = RIO
    chat = memory.chat(user_id="louis", session_id="now")
    question = Message("user", ASKED)
    assert "called Rio" in chat.context(pending=[question]).messages[-1].text
    chat.add_messages([question, Message("assistant", "Rio.")])
    assert "called Rio" in chat.context().messages[0].text


@pytest.mark.requirement("A13", "A16")
def test_each_round_is_recorded_once_and_in_the_background(memory, service) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    first = [Message("user", "Hello."), Message("assistant", "Hi.")]
    chat.add_messages([Message("system", "Be terse."), *first])
    chat.add("user", "Look!")
    chat.add("assistant", "I look.", tool_calls=[ToolCall("c1", "look", "{}")])
    chat.add("tool", "a parrot", tool_call_id="c1")
    chat.add("assistant", "A parrot.")
    chat.add("user", "Not answered yet.")
    memory.flush()
    assert service.recorded == [
        ("louis", [("user", "Hello."), ("assistant", "Hi.")]),
        ("louis", [("user", "Look!"), ("assistant", "I look."), ("assistant", "A parrot.")]),
    ]


def test_tenants_and_users_never_share_a_service(memory, service) -> None:
    service.known["default", "louis"] = RIO
    for user, tenant in (("bob", "default"), ("louis", "other")):
        chat = memory.chat(user_id=user, session_id="now", tenant_id=tenant)
        chat.add("user", ASKED)
        assert "Rio" not in chat.context().messages[-1].text


def test_without_a_question_from_outside_it_is_not_asked(memory, service) -> None:
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("user", "Hello.")
    chat.context("")
    assert service.asked == []
    filtered = chat.context(filter=RecallFilter(kinds=["record"]))
    assert service.asked == []
    assert "long_term_filtered" in {one.code for one in filtered.reasons}


def test_a_service_that_fails_costs_its_recall_and_nothing_else(memory, service) -> None:
    service.problem = RuntimeError("no route")
    chat = memory.chat(user_id="louis", session_id="now")
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


def test_what_was_forgotten_before_is_not_recorded(open_with: Callable[..., Memory], service) -> None:
    settings = NOW.model_copy(update={"index_delay": 3600})
    with Memory.in_memory(settings=settings, long_term_memory=service.of) as memory:
        chat = memory.chat(user_id="louis", session_id="now")
        chat.add_messages([Message("user", "Hello."), Message("assistant", "Hi.")])
        memory.forget("louis")
        memory.flush()
    assert service.recorded == []


def test_a_large_answer_is_cut_to_the_share_of_recall(memory, service) -> None:
    service.known["default", "louis"] = [f"The parrot number {number} is Rio." for number in range(500)]
    chat = memory.chat(user_id="louis", session_id="now")
    chat.add("user", ASKED)
    context = chat.context(token_limit=300)
    assert 0 < context.tokens <= 300
    assert "Rio" in context.recall


def test_what_is_no_function_is_refused(service) -> None:
    with pytest.raises(ConfigurationError, match="long_term_memory"):
        Memory.in_memory(long_term_memory=service)
