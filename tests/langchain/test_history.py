"""The chat history of LangChain on a real memory: a whole transcript, and beside it what a model is shown."""

from __future__ import annotations

import asyncio
import logging
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from clock import set_ahead
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    get_buffer_string,
    message_to_dict,
    trim_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableFieldSpec, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, history as historys, to_core, with_memory
from memlayer_core import Memory, ToolCall
from memlayer_core.errors import (
    ConfigurationError,
    InvalidLimitError,
    InvalidScopeError,
    MemlayerError,
    MessageTypeError,
    StoreClosedError,
)
from memlayer_core.models.tokens import token_counter

TURN = [HumanMessage("How tall is Galdhøpiggen?"), AIMessage("2469 metres.")]
CALL = {"name": "height", "args": {"of": "Galdhøpiggen"}, "id": "call_1", "type": "tool_call"}


class Echo(BaseChatModel):
    """Answers with the number of messages that it was shown."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = f"{messages[-1].text} ({len(messages)})"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer))])


@pytest.fixture
def history(memory: Memory) -> MemlayerChatMessageHistory:
    return MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada")


def contents(messages: list[BaseMessage]) -> list[Any]:
    return [message.content for message in messages]


def in_list_mode(memory: Memory, model: Any) -> RunnableWithMessageHistory:
    return RunnableWithMessageHistory(
        model, lambda session_id: MemlayerChatMessageHistory(memory, session_id=session_id)
    )


def in_key_mode(memory: Memory, model: Any) -> RunnableWithMessageHistory:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "be kind"), MessagesPlaceholder("history"), ("human", "{question}")]
    )
    return RunnableWithMessageHistory(
        prompt | model,
        lambda user_id, session_id: MemlayerChatMessageHistory(
            memory, session_id=session_id, user_id=user_id
        ),
        input_messages_key="question",
        history_messages_key="history",
        history_factory_config=[
            ConfigurableFieldSpec(id="user_id", annotation=str),
            ConfigurableFieldSpec(id="session_id", annotation=str),
        ],
    )


def at(session_id: str, **more: str) -> dict[str, Any]:
    return {"configurable": {"session_id": session_id, **more}}


# The transcript


@pytest.mark.requirement("F02", "A11")
def test_messages_are_kept_in_their_order_and_equal(do: Any, history: MemlayerChatMessageHistory) -> None:
    call = AIMessage("", tool_calls=[CALL])
    result = ToolMessage("2469", tool_call_id="call_1", artifact={"metres": 2469})
    do(history, "add_messages", [TURN[0], call, result])
    do(history, "add_messages", [AIMessage("2469 metres.")])

    assert history.messages == [TURN[0], call, result, AIMessage("2469 metres.")]
    assert asyncio.run(history.aget_messages()) == history.messages
    assert str(history) == get_buffer_string(history.messages)


def test_one_message_can_be_added_as_such_or_as_text(history: MemlayerChatMessageHistory) -> None:
    history.add_message(TURN[0])
    history.add_ai_message("2469 metres.")
    history.add_user_message(HumanMessage("Thanks", name="ada"))

    assert history.messages == [*TURN, HumanMessage("Thanks", name="ada")]


@pytest.mark.trap("langchain", 8)
def test_a_message_gains_no_id_no_name_and_no_metadata(do: Any, history: MemlayerChatMessageHistory) -> None:
    given = HumanMessage("hi")
    do(history, "add_messages", [given])

    [out] = history.messages

    assert message_to_dict(out) == message_to_dict(HumanMessage("hi")) == message_to_dict(given)
    assert history.context() == [given]
    [beside] = history.chat.history()
    assert beside.id
    assert beside.created_at


@pytest.mark.trap("langchain", 7)
def test_two_equal_messages_without_ids_are_two_messages(
    do: Any, history: MemlayerChatMessageHistory
) -> None:
    do(history, "add_messages", [HumanMessage("hi"), HumanMessage("hi")])
    do(history, "add_messages", [HumanMessage("hi")])

    assert contents(history.messages) == ["hi", "hi", "hi"]


@pytest.mark.trap("langchain", 7)
def test_an_id_that_is_there_already_is_replaced_in_place(
    do: Any, history: MemlayerChatMessageHistory
) -> None:
    do(history, "add_messages", [HumanMessage("draft", id="m1"), AIMessage("ok", id="m2")])
    do(history, "add_messages", [HumanMessage("final", id="m1"), AIMessage("ok", id="m2")])

    assert history.messages == [HumanMessage("final", id="m1"), AIMessage("ok", id="m2")]


@pytest.mark.trap("langchain", 7)
def test_an_id_that_comes_twice_at_once_is_one_message(do: Any, history: MemlayerChatMessageHistory) -> None:
    do(
        history,
        "add_messages",
        [HumanMessage("draft", id="m1"), AIMessage("ok", id="m2"), HumanMessage("final", id="m1")],
    )

    assert history.messages == [HumanMessage("final", id="m1"), AIMessage("ok", id="m2")]


@pytest.mark.trap("langchain", 9)
@pytest.mark.requirement("F12", "L12")
def test_every_reading_is_a_plain_list_of_its_own(history: MemlayerChatMessageHistory) -> None:
    history.add_messages([HumanMessage(["hi"])])
    taken = history.messages
    copied = history.messages.copy()
    copied += [AIMessage("more")]
    taken[0].content.append("changed")
    taken.pop()
    for more in (asyncio.run(history.aget_messages()), history.context()):
        more[0].content.append("changed")
        more.pop()

    assert type(history.messages) is type(asyncio.run(history.aget_messages())) is list
    assert history.messages == history.context() == [HumanMessage(["hi"])]


@pytest.mark.requirement("L09")
def test_setting_messages_makes_the_transcript_exactly_these(history: MemlayerChatMessageHistory) -> None:
    history.add_messages([*TURN, HumanMessage("forget this")])

    history.messages = [SystemMessage("be kind"), *TURN]

    assert history.messages == [SystemMessage("be kind"), *TURN]


async def test_messages_can_be_set_in_async_code(history: MemlayerChatMessageHistory) -> None:
    await history.aadd_messages([*TURN, HumanMessage("forget this")])
    await history.aset_messages([AIMessageChunk("2469 "), *TURN])

    assert await history.aget_messages() == [AIMessage("2469 "), *TURN]


@pytest.mark.requirement("L10")
def test_clearing_empties_this_session_alone(do: Any, memory: Memory) -> None:
    cleared, other = (MemlayerChatMessageHistory(memory, session_id=name, user_id="ada") for name in "ab")
    cleared.add_messages(TURN)
    other.add_messages(TURN)

    do(cleared, "clear")

    assert cleared.messages == []
    assert other.messages == TURN


@pytest.mark.requirement("L08", "L12")
def test_an_unknown_session_is_empty_and_reading_writes_nothing(do: Any, memory: Memory) -> None:
    history = MemlayerChatMessageHistory(memory, session_id="nobody", user_id="ada")

    assert history.messages == []
    assert do(history, "context") == []
    assert memory.sessions(user_id="ada") == []


def test_no_messages_are_no_error(do: Any, history: MemlayerChatMessageHistory) -> None:
    do(history, "add_messages", [])

    assert history.messages == []


@pytest.mark.parametrize(
    "given",
    [
        "hello",
        b"hello",
        HumanMessage("hello"),
        {"role": "user"},
        7,
        None,
        [HumanMessage("fine"), "hello"],
        [HumanMessage("fine"), ("human", "hello")],
    ],
    ids=repr,
)
def test_what_is_no_list_of_messages_is_refused_before_anything_is_written(
    do: Any, history: MemlayerChatMessageHistory, given: Any
) -> None:
    with pytest.raises(TypeError) as refused:
        do(history, "add_messages", given)

    assert isinstance(refused.value, MessageTypeError)
    assert refused.value.hint
    assert history.messages == []


def test_messages_of_the_core_and_of_langchain_stand_in_one_transcript(
    history: MemlayerChatMessageHistory,
) -> None:
    history.add_messages(TURN)
    history.chat.add("user", "And in feet?", name="ada", id="m3")
    history.chat.add("assistant", tool_calls=[ToolCall("c", "convert", '{"metres": 2469}')], id="m4")

    assert history.messages == [
        *TURN,
        HumanMessage("And in feet?", name="ada", id="m3"),
        AIMessage("", id="m4", tool_calls=[{"name": "convert", "args": {"metres": 2469}, "id": "c"}]),
    ]
    assert [message.role for message in history.chat.history()] == ["user", "assistant", "user", "assistant"]


@pytest.mark.requirement("L02", "F18")
def test_the_whole_transcript_survives_reopening(open_at: Callable[..., Memory]) -> None:
    said = [message for turn in range(40) for message in (HumanMessage(f"{turn}?"), AIMessage(f"{turn}!"))]
    said += [AIMessage("", tool_calls=[CALL]), ToolMessage("x", tool_call_id="call_1", artifact={1: b"\0"})]
    memory = open_at()
    MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada").add_messages(said)
    memory.close()

    again = MemlayerChatMessageHistory(open_at(), session_id="s1", user_id="ada")

    assert again.messages == said
    assert len(again.context(token_limit=100)) < len(said)
    assert again.messages == said


# Whose it is


@pytest.mark.requirement("L07")
def test_one_session_id_is_another_session_for_each_user_tenant_and_agent(memory: Memory) -> None:
    whose: list[dict[str, Any]] = [
        {},
        {"user_id": "ada"},
        {"user_id": "bob"},
        {"user_id": "ada", "tenant_id": "t2"},
        {"user_id": "ada", "agent_id": "a1"},
        {"tenant_id": "t2"},
        {"agent_id": "a1"},
    ]
    histories = [MemlayerChatMessageHistory(memory, session_id="s1", **names) for names in whose]
    for number, history in enumerate(histories):
        history.add_messages([HumanMessage(str(number))])

    assert [contents(history.messages) for history in histories] == [[str(n)] for n in range(len(whose))]


def test_two_users_never_see_each_other(do: Any, memory: Memory) -> None:
    for user in ("ada", "bob"):
        earlier = MemlayerChatMessageHistory(memory, session_id="earlier", user_id=user)
        earlier.add_messages([HumanMessage(f"my parrot is called {user}-bird"), AIMessage("lovely")])
    memory.flush()

    prompt = do(
        MemlayerChatMessageHistory(memory, session_id="now", user_id="ada"),
        "context",
        "what is my parrot called?",
    )

    assert "ada-bird" in str(contents(prompt))
    assert "bob-bird" not in str(contents(prompt))


def test_a_session_without_a_user_stands_alone(do: Any, memory: Memory) -> None:
    for session in ("one", "two"):
        history = MemlayerChatMessageHistory(memory, session_id=session)
        history.add_messages([HumanMessage(f"my parrot is called {session}-bird"), AIMessage("lovely")])
    memory.flush()
    alone = MemlayerChatMessageHistory(memory, session_id="one")

    prompt = do(alone, "context", "what is my parrot called?")

    assert contents(prompt) == ["my parrot is called one-bird", "lovely"]
    assert do(MemlayerChatMessageHistory(memory, session_id="three"), "context", "parrot") == []


@pytest.mark.parametrize("session_id", ["", None, 7, "a\0b"], ids=repr)
@pytest.mark.parametrize("user_id", [None, "ada"])
def test_a_session_without_a_proper_id_is_refused(memory: Memory, session_id: Any, user_id: Any) -> None:
    with pytest.raises(InvalidScopeError, match="session_id"):
        MemlayerChatMessageHistory(memory, session_id=session_id, user_id=user_id)


@pytest.mark.parametrize("user_id", ["", "memlayer:session:s2"])
def test_a_user_who_cannot_be_one_is_refused(memory: Memory, user_id: str) -> None:
    with pytest.raises(InvalidScopeError, match="user_id"):
        MemlayerChatMessageHistory(memory, session_id="s1", user_id=user_id)


@pytest.mark.parametrize("given", ["./memory", None, object()], ids=["path", "none", "object"])
def test_a_memory_that_is_none_is_refused_with_the_way_to_make_one(given: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MemlayerChatMessageHistory(given, session_id="s1")

    assert 'Memory.open("./memory")' in refused.value.hint


@pytest.mark.requirement("M23")
def test_a_user_is_shown_what_others_share_with_a_role_of_theirs(do: Any, memory: Memory) -> None:
    memory.chat(user_id="bob").remember("The parrot of the office is Grillparzer", allowed_roles=["staff"])
    memory.flush()
    shown = [
        str(
            do(
                MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada", roles=roles),
                "context",
                "parrot",
            )
        )
        for roles in ([], ["staff"])
    ]

    assert ["Grillparzer" in one for one in shown] == [False, True]


# The factory


@pytest.mark.parametrize(
    ("fixed", "named"),
    [
        ({}, {"user_id": "ada", "session_id": "s1"}),
        ({"user_id": "ada"}, {"session_id": "s1"}),
        ({"configurable": ["session_id"]}, {"session_id": "s1"}),
        (
            {"configurable": ["tenant_id", "user_id", "session_id"], "agent_id": "a1"},
            {"tenant_id": "t1", "user_id": "ada", "session_id": "s1"},
        ),
    ],
    ids=str,
)
def test_a_factory_makes_the_history_that_a_config_names(
    do: Any, memory: Memory, fixed: dict[str, Any], named: dict[str, str]
) -> None:
    histories = MemlayerChatMessageHistory.factory(memory, **fixed)
    chain = RunnableWithMessageHistory(
        RunnableLambda(Echo().invoke), histories, history_factory_config=histories.config_specs
    )
    for text in ("a", "b"):
        do(chain, "invoke", [HumanMessage(text)], {"configurable": named})

    own = {name: value for name, value in fixed.items() if name != "configurable"}
    kept = MemlayerChatMessageHistory(memory=memory, **named, **own)
    assert contents(kept.messages) == ["a", "a (1)", "b", "b (3)"]
    assert histories(**named).chat.scope == kept.chat.scope
    assert {spec.id for spec in histories.config_specs} == set(named)


@pytest.mark.parametrize("names", [["user_id", "conversation_id"], ["conversation_id"]], ids=str)
def test_a_session_may_be_called_a_conversation_as_in_the_tutorials(
    do: Any, memory: Memory, names: list[str]
) -> None:
    fixed = {} if "user_id" in names else {"user_id": "ada"}
    histories = MemlayerChatMessageHistory.factory(memory, configurable=names, **fixed)
    chain = RunnableWithMessageHistory(
        RunnableLambda(Echo().invoke),
        histories,
        history_factory_config=[
            ConfigurableFieldSpec(
                id=name,
                annotation=str,
                name=name,
                description="Unique identifier.",
                default="",
                is_shared=True,
            )
            for name in names
        ],
    )
    own = with_memory(RunnableLambda(Echo().invoke), memory, configurable=names, **fixed)
    for number, one in enumerate((chain, own)):
        config = {"configurable": dict(zip(names[::-1], (str(number), "ada"), strict=False))}
        for text in ("a", "b"):
            do(one, "invoke", [HumanMessage(text)], config)
        history = MemlayerChatMessageHistory(memory, session_id=str(number), user_id="ada")
        assert contents(history.messages)[::2] == ["a", "b"]
    for wrong in (["user_id"], ["session_id", "conversation_id"]):
        with pytest.raises(ConfigurationError, match="configurable"):
            MemlayerChatMessageHistory.factory(memory, configurable=wrong)


def test_a_factory_keeps_users_apart_in_one_batch(do: Any, memory: Memory) -> None:
    histories = MemlayerChatMessageHistory.factory(memory)
    chain = RunnableWithMessageHistory(Echo(), histories, history_factory_config=histories.config_specs)
    users = ["ada", "bob", "cy"]
    do(chain, "batch", [[HumanMessage(user)] for user in users], [at("s1", user_id=user) for user in users])

    for user in users:
        assert contents(histories(user_id=user, session_id="s1").messages) == [user, f"{user} (1)"]


def test_a_config_that_names_no_user_is_refused(do: Any, memory: Memory) -> None:
    histories = MemlayerChatMessageHistory.factory(memory)
    specified = RunnableWithMessageHistory(Echo(), histories, history_factory_config=histories.config_specs)
    with pytest.raises(ValueError, match="user_id"):
        do(specified, "invoke", [HumanMessage("hi")], at("s1"))
    with pytest.raises(InvalidScopeError, match="user_id") as refused:
        do(RunnableWithMessageHistory(Echo(), histories), "invoke", [HumanMessage("hi")], at("s1"))
    assert "history_factory_config" in refused.value.hint
    with pytest.raises(InvalidScopeError, match="user_id"):
        histories(user_id=None, session_id="s1")


def test_a_factory_hands_limits_and_roles_on_and_is_checked_when_it_is_made(memory: Memory) -> None:
    histories = MemlayerChatMessageHistory.factory(
        memory, user_id="ada", token_limit=77, policy="max_rounds", roles=iter(["staff"])
    )
    for session in ("s1", "s2"):
        history = histories(session)
        assert (history.token_limit, history.policy, history.chat.roles) == (77, "max_rounds", ("staff",))
    for wrong in ({"token_limit": 0}, {"roles": "staff"}, {"user_id": ""}, {"configurable": ["thread"]}):
        with pytest.raises(MemlayerError):
            MemlayerChatMessageHistory.factory(memory, **wrong)
    with pytest.raises(ConfigurationError, match="memory"):
        MemlayerChatMessageHistory.factory("./memory")  # type: ignore[arg-type]


def test_a_subclass_makes_its_own_kind(memory: Memory) -> None:
    class Mine(MemlayerChatMessageHistory):
        pass

    assert type(Mine.factory(memory, user_id="ada")("s1")) is Mine


# What a model is shown


@pytest.mark.requirement("L02", "A11")
def test_the_context_brings_a_turn_of_an_earlier_session_and_keeps_the_limit(do: Any, memory: Memory) -> None:
    earlier = MemlayerChatMessageHistory(memory, session_id="earlier", user_id="ada")
    earlier.add_messages([HumanMessage("My parrot is called Grillparzer"), AIMessage("A fine name.")])
    earlier.add_messages(
        message
        for number in range(60)
        for message in (HumanMessage(f"Tell me about topic {number}"), AIMessage("Well, " * 20))
    )
    memory.flush()
    now = MemlayerChatMessageHistory(memory, session_id="now", user_id="ada")
    now.add_messages([SystemMessage("be kind"), HumanMessage("Which name has my parrot?")])

    prompt = do(now, "context", "Which name has my parrot?", token_limit=400)

    counter = token_counter("auto")
    assert [message.type for message in prompt] == ["system", "human"]
    assert "Grillparzer" in prompt[-1].text
    assert prompt[-1].text.endswith("Which name has my parrot?")
    assert sum(counter.message(to_core(message)) for message in prompt) <= 400
    assert contents(now.messages) == ["be kind", "Which name has my parrot?"]


def test_recalled_text_can_stand_in_the_system_message(do: Any) -> None:
    with Memory.in_memory(settings=Tuned(index_delay=0.0, recall_placement="system")) as memory:
        earlier = MemlayerChatMessageHistory(memory, session_id="earlier", user_id="ada")
        earlier.add_messages([HumanMessage("My parrot is called Grillparzer")])
        memory.flush()
        now = MemlayerChatMessageHistory(memory, session_id="now", user_id="ada")

        [alone] = do(now, "context", "parrot")
        now.add_messages([SystemMessage([{"type": "text", "text": "be kind"}]), HumanMessage("My parrot?")])
        [system, asked] = do(now, "context")

    assert isinstance(alone, SystemMessage)
    assert "Grillparzer" in alone.text
    assert system.content[0] == {"type": "text", "text": "be kind"}
    assert "Grillparzer" in system.content[1]["text"]
    assert asked == HumanMessage("My parrot?")


def test_an_image_beside_the_question_stays_when_text_is_put_in_front(do: Any, memory: Memory) -> None:
    MemlayerChatMessageHistory(memory, session_id="earlier", user_id="ada").add_messages(
        [HumanMessage("My parrot is called Grillparzer")]
    )
    memory.flush()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    question = HumanMessage([{"type": "text", "text": "Is this my parrot?"}, image], id="m1")
    now = MemlayerChatMessageHistory(memory, session_id="now", user_id="ada")
    now.add_messages([question])

    [asked] = do(now, "context")

    assert "Grillparzer" in asked.content[0]["text"]
    assert asked.content[1:] == question.content
    assert asked.id == "m1"


@pytest.mark.trap("langchain", 17)
@pytest.mark.requirement("L05", "A19")
def test_the_context_never_parts_a_call_from_its_result(history: MemlayerChatMessageHistory) -> None:
    for number in range(30):
        call = {**CALL, "id": f"call_{number}"}
        history.add_messages(
            [
                HumanMessage(f"question {number}"),
                AIMessage("", tool_calls=[call]),
                ToolMessage("result " * (number % 7 + 1), tool_call_id=call["id"]),
                AIMessage(f"answer {number}"),
            ]
        )

    for limit in range(60, 600, 45):
        shown = history.context(token_limit=limit)
        called = [
            call["id"] for message in shown if isinstance(message, AIMessage) for call in message.tool_calls
        ]
        answered = [message.tool_call_id for message in shown if isinstance(message, ToolMessage)]
        assert called == answered
        assert shown[0].type == "human"


@pytest.mark.trap("langchain", 17)
@pytest.mark.parametrize("limit", [20, 60, 150, 400])
def test_in_a_long_run_of_tools_the_window_begins_with_the_question_and_ends_with_the_newest_result(
    do: Any, history: MemlayerChatMessageHistory, limit: int
) -> None:
    """Cut by messages, what is left begins with a tool's result; begun with a question, nothing is left."""
    history.add_messages(
        [HumanMessage("an older one"), AIMessage("done"), HumanMessage("How tall are they?")]
    )
    for number in range(25):
        ids = [f"{number}-{place}" for place in range(2)]
        history.add_messages([AIMessage("", tool_calls=[{**CALL, "id": one} for one in ids])])
        history.add_messages([ToolMessage(f"2469 of {one}", tool_call_id=one) for one in reversed(ids)])
    said = history.messages
    cut = {"max_tokens": 60, "token_counter": "approximate"}
    assert trim_messages(said, **cut)[0].type == "tool"
    assert trim_messages(said, **cut, start_on="human") == []

    shown = do(history, "context", token_limit=limit)

    assert (shown[0].type, shown[0].text) == ("human", "How tall are they?")
    assert shown[-1].text.startswith("2469 of 24-0")
    assert [one.type for one in shown[1:]] == ["ai", "tool", "tool"] * ((len(shown) - 1) // 3)


@pytest.mark.trap("langchain", 17)
def test_a_call_of_several_that_is_answered_in_part_is_not_shown(history: MemlayerChatMessageHistory) -> None:
    asked = AIMessage("", tool_calls=[{**CALL, "id": one} for one in ("a", "b")])
    history.add_messages(
        [HumanMessage("one?"), asked, ToolMessage("1", tool_call_id="a"), HumanMessage("two?")]
    )

    assert contents(history.context()) == ["one?", "two?"]

    history.messages = [HumanMessage("one?"), asked, ToolMessage("1", tool_call_id="a")]
    assert history.context() == history.messages, "the other result may still come"


@pytest.mark.trap("langchain", 19)
def test_results_that_came_late_are_shown_directly_behind_their_calls(
    do: Any, history: MemlayerChatMessageHistory
) -> None:
    """Providers refuse a call that something else follows, and with it every later turn of the session."""
    asked = AIMessage("", tool_calls=[{**CALL, "id": one} for one in ("a", "b")])
    first, second = (ToolMessage(f"2469 {one}", tool_call_id=one) for one in ("b", "a"))
    said = [HumanMessage("one?"), asked, first, HumanMessage("are you there?"), second, AIMessage("2469")]
    do(history, "add_messages", [*said, HumanMessage("thanks")])

    shown = do(history, "context")

    assert contents(shown) == ["one?", "", "2469 b", "2469 a", "are you there?", "2469", "thanks"]
    assert history.messages == [*said, HumanMessage("thanks")], "the transcript keeps its order"


@pytest.mark.trap("langchain", 19)
def test_after_a_turn_that_failed_nobody_is_shown_two_questions_in_a_row(do: Any, memory: Memory) -> None:
    asked: list[Any] = []

    def model(given: Any) -> AIMessage:
        asked.append(given)
        if len(asked) == 1:
            raise TimeoutError
        return AIMessage("42")

    chain = in_list_mode(memory, RunnableLambda(model))
    with pytest.raises(TimeoutError):
        do(chain, "invoke", [HumanMessage("one?")], at("s1"))
    do(chain, "invoke", [HumanMessage("two?")], at("s1"))

    assert contents(asked[-1]) == ["two?"]


@pytest.mark.trap("langchain", 18)
def test_instructions_larger_than_the_limit_are_told_with_numbers_and_never_sent_alone(
    do: Any, history: MemlayerChatMessageHistory
) -> None:
    history.add_messages([SystemMessage("be kind " * 200), HumanMessage("hi"), AIMessage("yes?")])
    assert trim_messages(history.messages, max_tokens=60, token_counter="approximate", include_system=True)

    with pytest.raises(InvalidLimitError, match=r"needs \d+ tokens, of 60"):
        do(history, "context", token_limit=60)


@pytest.mark.trap("langchain", 18)
def test_a_counter_of_ones_own_is_given_texts_one_by_one_and_never_a_conversation(do: Any) -> None:
    """A counter of lists is called with them backwards by LangChain's `trim_messages`."""
    counted: list[Any] = []

    def counter(text: str) -> int:
        counted.append(text)
        return len(text.split())

    settings = Tuned(index_delay=3600, recall_tokens=0)
    with Memory.in_memory(tokenizer=counter, settings=settings) as memory:
        history = MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada", token_limit=200)
        for number in range(30):
            do(history, "add_messages", [HumanMessage(f"question-{number} is asked"), AIMessage("yes")])
        shown = do(history, "context")

    assert 2 < len(shown) < 60
    assert all(isinstance(text, str) for text in counted)
    assert max(text.count("question-") for text in counted) == 1


def test_a_broken_call_is_shown_with_its_answer_and_not_without(history: MemlayerChatMessageHistory) -> None:
    broken = {"name": "height", "args": "{", "id": "call_1", "error": None, "type": "invalid_tool_call"}
    history.add_messages(
        [HumanMessage("one?"), AIMessage("", invalid_tool_calls=[broken]), HumanMessage("two?")]
    )
    assert contents(history.context()) == ["one?", "two?"]

    history.messages = [
        HumanMessage("one?"),
        AIMessage("", invalid_tool_calls=[broken]),
        ToolMessage("no JSON", tool_call_id="call_1"),
        HumanMessage("two?"),
    ]
    assert history.context() == history.messages


@pytest.mark.trap("langchain", 1)
@pytest.mark.requirement("L02")
def test_the_transcript_is_the_same_whatever_is_recalled(memory: Memory) -> None:
    earlier = MemlayerChatMessageHistory(memory, session_id="earlier", user_id="ada")
    earlier.add_messages([HumanMessage("My parrot is called Grillparzer")])
    now = MemlayerChatMessageHistory(memory, session_id="now", user_id="ada")
    now.add_messages([HumanMessage("My parrot?")])
    before = now.messages
    memory.flush()

    assert "Grillparzer" in str(now.context())
    assert now.messages == before == [HumanMessage("My parrot?")]


# RunnableWithMessageHistory


@pytest.mark.requirement("L08")
@pytest.mark.parametrize("wrapped", ["model", "function"])
def test_list_mode_shows_and_keeps_everything(do: Any, memory: Memory, wrapped: str) -> None:
    model = Echo()
    chain = in_list_mode(memory, model if wrapped == "model" else RunnableLambda(model.invoke))
    answers = [do(chain, "invoke", [HumanMessage(text)], at("s1")).content for text in ("a", "b", "c")]

    assert answers == ["a (1)", "b (3)", "c (5)"]
    kept = MemlayerChatMessageHistory(memory, session_id="s1").messages
    assert contents(kept) == ["a", "a (1)", "b", "b (3)", "c", "c (5)"]
    assert [message.type for message in kept] == ["human", "ai"] * 3


@pytest.mark.trap("langchain", 1)
def test_list_mode_loses_no_question_while_there_is_something_to_recall(do: Any, memory: Memory) -> None:
    chain = RunnableWithMessageHistory(
        RunnableLambda(Echo().invoke),
        lambda session_id: MemlayerChatMessageHistory(memory, session_id=session_id, user_id="ada"),
    )
    for session in ("s1", "s2"):
        for text in ("my parrot", "my parrot again"):
            do(chain, "invoke", [HumanMessage(text)], at(session))
            memory.flush()

    for session in ("s1", "s2"):
        kept = MemlayerChatMessageHistory(memory, session_id=session, user_id="ada").messages
        assert contents(kept) == ["my parrot", "my parrot (1)", "my parrot again", "my parrot again (3)"]


@pytest.mark.trap("langchain", 1)
def test_list_mode_loses_no_question_whatever_the_memory_does_meanwhile(
    do: Any, open_at: Callable[..., Memory]
) -> None:
    """What LangChain reads again when it has answered is as long as before: it counts from there what is new."""
    settings = Tuned(index_delay=0.0, durability="normal", max_tokens=400)
    told = (
        "The user counted pears in Lisbon, again and again, and was told each time how many that makes. " * 2
    )
    memory = open_at(settings=settings, tokenizer="estimate", summarizer=lambda _prompt: told)
    histories = MemlayerChatMessageHistory.factory(memory, user_id="ada")
    summaries: list[int] = []

    def model(messages: list[BaseMessage]) -> AIMessage:
        chat = histories("s1").chat
        chat.context("How many pears did I count?")
        memory.flush(20)  # what left the window is summed up, and can be recalled
        summaries.append(len(chat.summary()))
        if len(messages) == 17:
            chat.end()
        return AIMessage(f"That makes {len(messages)}.")

    chain = RunnableWithMessageHistory(RunnableLambda(model), histories)
    asked = [f"I counted {turn} pears in Lisbon. " * 6 for turn in range(10)]
    for text in asked:
        do(chain, "invoke", [HumanMessage(text)], at("s1"))

    kept = histories("s1")
    assert contents(kept.messages)[::2] == asked
    assert contents(kept.messages)[1::2] == [f"That makes {2 * turn + 1}." for turn in range(10)]
    assert summaries[0] == 0 < max(summaries)
    assert len(kept.context()) < len(kept.messages)


@pytest.mark.trap("langchain", 2)
@pytest.mark.parametrize("awaits", [False, True], ids=["batch", "abatch"])
def test_key_mode_loses_nothing_when_turns_overlap(memory: Memory, awaits: bool) -> None:
    """In list mode LangChain cuts the second question off before our history is handed anything: `with_memory`
    takes care of those."""
    together = threading.Barrier(4)

    def model(prompt: Any) -> AIMessage:
        together.wait(30)  # everybody has read before anybody writes
        return AIMessage(f"to {prompt.messages[-1].text}")

    asked = [{"question": f"{number}?"} for number in range(4)]
    chain, config = in_key_mode(memory, RunnableLambda(model)), at("s1", user_id="ada")
    if awaits:
        asyncio.run(chain.abatch(asked, config))
    else:
        chain.batch(asked, {**config, "max_concurrency": 4})

    kept = contents(MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada").messages)
    assert sorted(kept[::2]) == [one["question"] for one in asked]
    assert kept[1::2] == [f"to {question}" for question in kept[::2]]


def test_key_mode_shows_and_keeps_everything_of_its_own_user(do: Any, memory: Memory) -> None:
    chain = in_key_mode(memory, Echo())
    for user in ("ada", "bob"):
        for text in ("a", "b"):
            do(chain, "invoke", {"question": f"{user}-{text}"}, at("s1", user_id=user))

    for user in ("ada", "bob"):
        kept = MemlayerChatMessageHistory(memory, session_id="s1", user_id=user).messages
        assert contents(kept) == [f"{user}-a", f"{user}-a (2)", f"{user}-b", f"{user}-b (4)"]


@pytest.mark.trap("langchain", 6)
def test_a_streamed_answer_is_kept_whole(memory: Memory) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three"), AIMessage("four five")]))
    chain = in_list_mode(memory, model)

    pieces = list(chain.stream([HumanMessage("count")], at("s1")))
    list(chain.stream([HumanMessage("more")], at("s1")))

    kept = MemlayerChatMessageHistory(memory, session_id="s1").messages
    assert len(pieces) > 1
    assert contents(kept) == ["count", "one two three", "more", "four five"]
    assert [type(message) for message in kept] == [HumanMessage, AIMessage] * 2


@pytest.mark.trap("langchain", 6)
async def test_a_streamed_answer_is_kept_whole_in_async_code(memory: Memory) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    chain = in_key_mode(memory, model)

    pieces = [piece async for piece in chain.astream({"question": "count"}, at("s1", user_id="ada"))]

    kept = await MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada").aget_messages()
    assert len(pieces) > 1
    assert contents(kept) == ["count", "one two three"]
    assert [type(message) for message in kept] == [HumanMessage, AIMessage]


@pytest.mark.trap("langchain", 6)
async def test_a_streamed_tool_call_is_kept_as_a_call(memory: Memory) -> None:
    async def stream(given: Any) -> AsyncIterator[AIMessageChunk]:
        for args in ('{"of": ', '"it"}'):
            first = args.startswith("{")
            yield AIMessageChunk(
                content="",
                tool_call_chunks=[
                    {
                        "name": "height" if first else None,
                        "args": args,
                        "id": "c" if first else None,
                        "index": 0,
                    }
                ],
            )

    chain = in_list_mode(memory, RunnableLambda(stream))
    async for _ in chain.astream([HumanMessage("?")], at("s1")):
        pass

    [_, answer] = await MemlayerChatMessageHistory(memory, session_id="s1").aget_messages()
    assert answer == AIMessage("", tool_calls=[{"name": "height", "args": {"of": "it"}, "id": "c"}])


def test_a_batch_over_many_sessions_keeps_each_in_its_own(do: Any, memory: Memory) -> None:
    chain = in_list_mode(memory, Echo())
    sessions = [f"s{number}" for number in range(12)]

    for text in ("a", "b"):
        do(
            chain,
            "batch",
            [[HumanMessage(f"{text} of {session}")] for session in sessions],
            [at(session) for session in sessions],
        )

    for session in sessions:
        kept = MemlayerChatMessageHistory(memory, session_id=session).messages
        assert contents(kept) == [
            f"a of {session}",
            f"a of {session} (1)",
            f"b of {session}",
            f"b of {session} (3)",
        ]


@pytest.mark.trap("langchain", 7)
def test_a_graph_that_returns_its_input_does_not_double_the_transcript(do: Any, memory: Memory) -> None:
    from langgraph.graph import START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    graph.add_edge(START, "answer")
    chain = RunnableWithMessageHistory(
        graph.compile(),
        lambda session_id: MemlayerChatMessageHistory(memory, session_id=session_id),
        input_messages_key="messages",
        output_messages_key="messages",
    )

    for text in ("a", "b", "c"):
        do(chain, "invoke", {"messages": [HumanMessage(text)]}, at("s1"))

    kept = MemlayerChatMessageHistory(memory, session_id="s1").messages
    assert contents(kept) == ["a", "answer 1", "b", "answer 3", "c", "answer 5"]


@pytest.mark.trap("langchain", 10)
def test_an_agent_keeps_its_calls_and_their_results(do: Any, memory: Memory) -> None:
    steps = [HumanMessage("?"), AIMessage("", tool_calls=[CALL]), ToolMessage("42", tool_call_id="call_1")]
    agent = RunnableLambda(lambda _: {"output": "42", "messages": [*steps[1:], AIMessage("42")]})
    chain = RunnableWithMessageHistory(
        agent,
        lambda session_id: MemlayerChatMessageHistory(memory, session_id=session_id),
        input_messages_key="input",
        output_messages_key="messages",
        history_messages_key="history",
    )

    do(chain, "invoke", {"input": "?"}, at("s1"))

    assert MemlayerChatMessageHistory(memory, session_id="s1").messages == [*steps, AIMessage("42")]


@pytest.mark.trap("langchain", 3)
def test_a_write_that_fails_is_logged_by_langchain_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    """LangChain stores in a callback, whose errors it swallows: `with_memory` raises them."""
    with Memory.in_memory() as memory:
        chain = in_list_mode(memory, RunnableLambda(lambda _: memory.close() or AIMessage("42")))
        assert chain.invoke([HumanMessage("?")], at("s1")).content == "42"
    assert "this memory is closed" in caplog.text


@pytest.mark.trap("langchain", 3)
@pytest.mark.parametrize("mode", [in_list_mode, in_key_mode], ids=["list", "key"])
def test_a_history_that_cannot_be_read_fails_the_call_before_the_model_is_asked(do: Any, mode: Any) -> None:
    asked: list[Any] = []
    with Memory.in_memory() as memory:
        chain = mode(memory, RunnableLambda(lambda given: asked.append(given) or AIMessage("42")))
    said = [HumanMessage("?")] if mode is in_list_mode else {"question": "?"}

    with pytest.raises(StoreClosedError):
        do(chain, "invoke", said, at("s1", user_id="ada"))

    assert asked == []


@pytest.mark.trap("langchain", 5, 13)
def test_a_message_that_hangs_on_a_foreign_object_costs_no_turn(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    answer = AIMessage("42", additional_kwargs={"client": object()})
    chain = in_list_mode(memory, RunnableLambda(lambda _: answer))

    with caplog.at_level(logging.WARNING):
        chain.invoke([HumanMessage("?")], at("s1"))

    assert contents(MemlayerChatMessageHistory(memory, session_id="s1").messages) == ["?", "42"]
    assert "callback" not in caplog.text


# Async


@pytest.mark.trap("langchain", 11)
async def test_no_async_method_blocks_the_loop(open_at: Callable[..., Memory]) -> None:
    history = MemlayerChatMessageHistory(await asyncio.to_thread(open_at), session_id="s1", user_id="ada")

    await history.aadd_messages(
        [HumanMessage("hi"), ToolMessage("x", tool_call_id="c", artifact={b"k": (1,)})]
    )
    assert len(await history.aget_messages()) == 2
    assert await history.acontext("hi", token_limit=500)
    await history.aclear()
    assert await history.aget_messages() == []


@pytest.mark.trap("langchain", 11)
async def test_messages_are_translated_beside_the_loop(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def seen(translate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def translate_seen(message: Any) -> Any:
            threads.append(threading.current_thread())
            return translate(message)

        return translate_seen

    for name in ("to_core", "from_core"):
        monkeypatch.setattr(historys, name, seen(getattr(historys, name)))
    history = MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada")
    await history.aadd_messages(TURN)
    await history.aget_messages()
    await history.acontext()

    assert len(threads) == 6
    assert threading.current_thread() not in threads


async def test_many_tasks_write_one_session_and_nothing_is_lost(memory: Memory) -> None:
    async def speak(number: int) -> None:
        history = MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada")
        await history.aadd_messages([HumanMessage(f"{number}?"), AIMessage(f"{number}!")])

    await asyncio.gather(*(speak(number) for number in range(30)))

    history = MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada")
    kept = contents(await history.aget_messages())
    assert sorted(kept[::2]) == sorted(f"{number}?" for number in range(30))
    assert kept[1::2] == [f"{asked[:-1]}!" for asked in kept[::2]]


# Being a part of LangChain


def test_making_one_warns_of_nothing(memory: Memory) -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        MemlayerChatMessageHistory(memory, session_id="s1")


def test_its_repr_names_the_user_and_the_session(history: MemlayerChatMessageHistory) -> None:
    assert "'ada'" in repr(history)
    assert "'s1'" in repr(history)


def _python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_importing_it_loads_no_other_framework() -> None:
    loaded = _python(
        "import sys, langchain_memlayer\n"
        "from langchain_memlayer import MemlayerChatMessageHistory\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}\n"
        "    & {'langchain', 'langchain_classic', 'langgraph', 'llama_index', 'chromadb'}))"
    )

    assert loaded == "[]"


def test_importing_the_package_alone_loads_no_messages_yet() -> None:
    loaded = _python("import sys, langchain_memlayer; print('langchain_core.messages' in sys.modules)")

    assert loaded == "False"


def test_without_langchain_core_the_import_says_what_to_install() -> None:
    said = _python(
        "import sys\n"
        "sys.modules['langchain_core'] = None\n"
        "from memlayer_core.errors import MissingExtraError\n"
        "try:\n"
        "    import langchain_memlayer\n"
        "except MissingExtraError as problem:\n"
        "    print(isinstance(problem, ImportError), problem.hint)\n"
    )

    assert said == "True pip install 'memlayer-core[langchain]'"


@pytest.mark.slow
def test_it_works_without_llamaindex() -> None:
    said = _python(
        "import sys\n"
        "sys.modules['llama_index'] = None\n"
        "from langchain_memlayer import MemlayerChatMessageHistory\n"
        "from memlayer_core import Memory\n"
        "with Memory.in_memory() as memory:\n"
        "    history = MemlayerChatMessageHistory(memory, session_id='s1', user_id='ada')\n"
        "    history.add_user_message('hi')\n"
        "    print(history.context())\n"
    )

    assert "hi" in said


def test_its_public_names_can_all_be_had() -> None:
    import langchain_memlayer

    assert {getattr(langchain_memlayer, name).__name__ for name in langchain_memlayer.__all__} == set(
        langchain_memlayer.__all__
    )
    assert set(langchain_memlayer.__all__) <= set(dir(langchain_memlayer))
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = langchain_memlayer.Nonsense


@pytest.mark.requirement("F16")
def test_a_history_that_is_opened_again_after_a_week_shows_its_last_turns(history, memory, do) -> None:
    history.add_messages(TURN * 2)
    set_ahead(memory, 8)
    memory.flush()
    assert contents(do(history, "context")) == contents(TURN * 2)


def test_a_history_pickles_by_reconnecting(memory) -> None:
    """What holds a conversation can be sent to a worker; it names its store, and contains no message."""
    history = MemlayerChatMessageHistory(
        memory, user_id="ada", session_id="s", token_limit=500, policy="max_rounds"
    )
    history.add_user_message("My code is 7777.")
    pickled = pickle.dumps(history)
    again = pickle.loads(pickled)

    assert b"7777" not in pickled
    assert [one.text for one in again.messages] == ["My code is 7777."]
    assert (again.token_limit, again.chat.memory) == (500, memory)
