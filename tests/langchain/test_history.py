"""The chat history of LangChain on a real memory: a whole transcript, and beside it what a model is shown."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from langchain_core import messages as lc
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, message_to_dict
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from refusals import refused

from langchain_memlayer import MemlayerChatMessageHistory, with_memory
from memlayer_core import Memory, errors
from tests.conftest import PROMPT
from tests.langchain.running import contents, in_session as at
from tests.langchain.scripted_model import Scripted

TURN = [HumanMessage("How tall is Galdhøpiggen?"), AIMessage("2469 metres.")]


def history_of(memory: Memory, session_id: str = "s1", **options: Any) -> MemlayerChatMessageHistory:
    return MemlayerChatMessageHistory(memory, session_id=session_id, **{"user_id": "ada", **options})


def echo(messages: Any) -> AIMessage:
    """Answer with the last message and how many there were."""
    told = getattr(messages, "messages", messages)
    return AIMessage(f"{told[-1].text} ({len(told)})")


# The transcript


@pytest.mark.trap("langchain", 7, 8)
@pytest.mark.requirement("F02", "A11", "L09")
def test_messages_are_added_replaced_and_set_and_gain_nothing(do, memory) -> None:
    history = history_of(memory)
    history.add_message(hi := HumanMessage("hi"))
    history.add_user_message(HumanMessage("draft", id="m1"))
    ok, final = AIMessage("ok", id="m2"), HumanMessage("final", id="m1", name="ada")
    do(history, "add_messages", [hi, hi, HumanMessage("better", id="m1"), ok, final])
    assert history.messages == [hi, final, hi, hi, ok]
    assert message_to_dict(history.messages[0]) == message_to_dict(HumanMessage("hi")) == message_to_dict(hi)
    assert asyncio.run(history.aget_messages()) == history.messages
    assert str(history) == lc.get_buffer_string(history.messages)
    assert "'ada'" in repr(history)

    history.messages = [SystemMessage("be kind"), *TURN]
    assert history.messages == [SystemMessage("be kind"), *TURN]
    asyncio.run(history.aset_messages([lc.AIMessageChunk("2469 "), *TURN]))
    assert history.messages == [AIMessage("2469 "), *TURN]


# The factory


EACH = {"tenant_id": "t1", "user_id": "ada", "session_id": "s1"}
FACTORIES = [
    ({}, {"user_id": "ada", "session_id": "s1"}),
    ({"user_id": "ada", "configurable": ["conversation_id"]}, {"conversation_id": "s1"}),
    ({"configurable": ["session_id"]}, {"session_id": "s1"}),
    ({"configurable": [*EACH], "agent_id": "a1"}, EACH),
]


@pytest.mark.parametrize(("fixed", "named"), FACTORIES, ids=str)
def test_a_factory_makes_the_history_that_a_config_names(memory, fixed, named) -> None:
    histories = MemlayerChatMessageHistory.factory(memory, **fixed)
    specs = {"history_factory_config": histories.config_specs}
    theirs = RunnableWithMessageHistory(RunnableLambda(echo), histories, **specs)
    for chain in (theirs, with_memory(echo, memory, **fixed)):
        chain.invoke([HumanMessage("a")], {"configurable": named})

    ids = {**fixed, **named}
    ids.pop("configurable", None)
    ids.setdefault("session_id", ids.pop("conversation_id", "s1"))
    kept = MemlayerChatMessageHistory(memory=memory, **ids)
    assert contents(kept.messages) == ["a", "a (1)", "a", "a (3)"]
    assert histories(**named).chat.scope == kept.chat.scope
    assert {spec.id for spec in histories.config_specs} == set(named)
    for wrong in (["user_id"], ["session_id", "conversation_id"], ["session_id", "thread"], "session_id"):
        with pytest.raises(errors.ConfigurationError, match="configurable"):
            MemlayerChatMessageHistory.factory(memory, configurable=wrong)


def test_a_config_that_names_no_user_is_refused(do, memory) -> None:
    histories = MemlayerChatMessageHistory.factory(memory)
    specs = {"history_factory_config": histories.config_specs}
    with pytest.raises(ValueError, match="user_id"):
        do(RunnableWithMessageHistory(Scripted(), histories, **specs), "invoke", [HumanMessage("hi")], at())
    with pytest.raises(errors.InvalidScopeError, match="user_id") as refused:
        do(RunnableWithMessageHistory(Scripted(), histories), "invoke", [HumanMessage("hi")], at())
    assert "history_factory_config" in refused.value.hint
    with pytest.raises(errors.InvalidScopeError, match="user_id"):
        histories(user_id=None, session_id="s1")


@pytest.mark.requirement("M23")
def test_a_factory_hands_limits_and_roles_on_and_is_checked_when_it_is_made(memory) -> None:
    class Mine(MemlayerChatMessageHistory):
        pass

    limits = {"token_limit": 77, "policy": "max_rounds"}
    histories = Mine.factory(memory, user_id="ada", roles=iter(["staff"]), **limits)
    for session in ("s1", "s2"):
        history = histories(session)
        assert type(history) is Mine
        assert (history.token_limit, history.policy, history.chat.roles) == (77, "max_rounds", ("staff",))
    for wrong in ({"token_limit": 0}, {"roles": "staff"}, {"user_id": ""}, {"memory": "./memory"}):
        refused(errors.MemlayerError, None, MemlayerChatMessageHistory.factory, **{"memory": memory, **wrong})


# RunnableWithMessageHistory


@pytest.mark.trap("langchain", 1)
@pytest.mark.requirement("L02", "L08")
def test_list_mode_loses_no_question_whatever_the_memory_does_meanwhile(open_at) -> None:
    """What LangChain reads again when it has answered is as long as before: it counts from there what is new."""
    told = "The user counted pears in Lisbon again and again, and was told how many that makes. " * 2
    settings = PROMPT.replace(max_tokens=400)
    memory = open_at(settings=settings, tokenizer="estimate", summarizer=lambda _prompt: told)
    histories = MemlayerChatMessageHistory.factory(memory, user_id="ada")
    summaries: list[int] = []

    def model(messages: list[lc.BaseMessage]) -> AIMessage:
        chat = histories("s1").chat
        chat.context("How many pears did I count?")
        memory.flush(20)  # what left the window is summed up, and can be recalled
        summaries.append(len(chat.summary()))
        return AIMessage(f"That makes {len(messages)}.")

    chain = RunnableWithMessageHistory(RunnableLambda(model), histories)
    asked = [f"I counted {turn} pears in Lisbon. " * 6 for turn in range(10)]
    for text in asked:
        chain.invoke([HumanMessage(text)], at())

    kept = histories("s1")
    assert contents(kept.messages)[::2] == asked
    assert contents(kept.messages)[1::2] == [f"That makes {2 * turn + 1}." for turn in range(10)]
    assert summaries[0] == 0 < max(summaries)
    assert len(kept.context()) < len(kept.messages)


# Being a part of LangChain


# A file of LangChain's


SAID = "2023-05-01T10:00:00+02:00"
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
TALK: list[lc.AnyMessage] = [
    HumanMessage("I live in Riga.", additional_kwargs={"created_at": SAID}),
    AIMessage("One moment.", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}], usage_metadata=USAGE),
    ToolMessage("found", tool_call_id="c1", artifact={"rows": [1]}, status="error"),
    AIMessage([{"type": "text", "text": "Fine."}], id="a9", response_metadata={"model": "m"}),
]


@pytest.mark.requirement("F18")
def test_langchains_file_comes_back_equal_with_its_times(memory, tmp_path) -> None:
    path, module = tmp_path / "s1.json", "langchain_community.chat_message_histories"
    others = pytest.importorskip(module, reason="langchain-community is not installed")
    others.FileChatMessageHistory(str(path)).add_messages(TALK)
    report = memory.import_from(path, user_id="ada")
    assert memory.import_from(path, user_id="ada").stored == 0
    assert (report.source_format, report.stored, report.without_time) == ("langchain", 4, 3)
    (session,) = memory.sessions(user_id="ada")
    assert session.updated_at == datetime.fromisoformat(SAID), "what has no time is not newer"
    read = MemlayerChatMessageHistory(memory, session_id=session.scope.session_id, user_id="ada").messages
    ours, theirs = ([one.model_copy(update={"id": None}) for one in every] for every in (read, TALK))
    assert ours == theirs
    assert read[-1].id == "a9"
