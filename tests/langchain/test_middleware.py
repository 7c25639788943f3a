"""An agent of LangChain with a memory: its state keeps everything, its model is shown what matters."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from clock import set_ahead
from hypothesis import example, given, strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelRequest, ModelRetryMiddleware
from langchain_core import messages as lc
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, Field
from refusals import refused
from scripted_reader import reads
from tuned import Tuned

from examples import examples
from langchain_memlayer import (
    MemlayerChatMessageHistory,
    MemlayerMiddleware,
    create_memory_tools,
    middleware,
    to_core,
    with_memory,
)
from memlayer_core import MaxRounds, Memory, Message, errors
from memlayer_core.events import MessagesStored
from memlayer_core.tools import AGENT_TOOLS
from tests.conftest import OURS, PROMPT, taken_out
from tests.langchain.running import contents, in_session, in_thread, texts
from tests.langchain.scripted_model import Edits, Scripted, Wraps, calling, says, weather

RECORD = calling(("record_to_memory", {"thinking": "", "content": ["Ada plays chess."]}))
LOOK = calling(("weather", {"city": "Oslo"}))
memory_first = pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last"])


def agent_of(memory, model, tools=(), *others, first=True, saver=None, prompt=None, answer=None, **options):
    """Return an agent with a memory, ada's if nobody else is named, in front of other middleware or behind it."""
    ours = MemlayerMiddleware(memory, **{"user_id": "ada", **options})
    every = [ours, *others] if first else [*others, ours]
    more = {"checkpointer": saver, "system_prompt": prompt, "response_format": answer}
    return create_agent(model, tools, middleware=every, **more)


def saved_agent(memory: Memory, model: Any, *more: Any, **options: Any) -> Any:
    """Return an agent that keeps its threads in checkpoints."""
    return agent_of(memory, model, *more, saver=InMemorySaver(), **options)


def counts() -> Scripted:
    """Return a model that counts its answers."""
    made = Scripted()
    made.script = lambda _: f"answer {len(made.seen)}"
    return made


def kept(memory: Memory, session: str = "t", user: str = "ada") -> list[Message]:
    return memory.chat(user_id=user, session_id=session).history()


def history(memory: Memory, session: str = "t") -> list[str]:
    return [f"{message.role}: {message.text}" for message in kept(memory, session)]


def ids(messages: Sequence[Any]) -> list[str | None]:
    return [message.id for message in messages]


def said_before(memory: Memory, user: str = "ada") -> None:
    chat = memory.chat(user_id=user, session_id="in-may")
    chat.add("user", f"{user} moved to Tokyo, and is allergic to nuts.")
    chat.add("assistant", "No nuts in Tokyo, noted.")


# What the model is shown, and what the state keeps


@pytest.mark.trap("langchain", 11)
@pytest.mark.requirement("J15")
@pytest.mark.parametrize("place", ["user", "system"])
def test_what_was_said_in_another_session_is_shown_and_the_state_is_not_touched(run, place) -> None:
    with Memory.in_memory(settings=PROMPT.replace(recall_placement=place)) as memory:
        said_before(memory)
        model, asked = says("No nuts."), "What should I not eat in Tokyo?"
        out = run(agent_of(memory, model, [weather], prompt="Be brief."), asked)
        [(system, question)] = model.seen
        assert system.text.startswith("Be brief.")
        for shown, here in ((system, "system"), (question, "user")):
            assert ("allergic to nuts" in shown.text) == (place == here), here
        assert question.text.split("\n\n")[-1] == asked
        assert texts(out["messages"]) == [asked, "No nuts."]
        assert history(memory) == [f"user: {asked}", "assistant: No nuts."]


@pytest.mark.requirement("A13", "A15")
@pytest.mark.parametrize(
    ("mode", "tools"), [("STATIC", []), ("AGENT", [*AGENT_TOOLS]), ("BOTH", [*AGENT_TOOLS])]
)
def test_the_mode_decides_who_looks_and_whether_the_profile_is_told(once, memory, mode, tools) -> None:
    said_before(memory)
    for user, fact in (("ada", "Likes pears."), ("bob", "Likes plums.")):
        memory.chat(user_id=user).remember(fact, type="profile")
    model, is_told = says("No nuts.", "Fine."), mode != "AGENT"
    agent = agent_of(memory, model, prompt="Be brief.", mode=mode)
    once(agent, "What should I not eat in Tokyo?")
    assert model.tools == tools
    assert ("allergic to nuts" in model.shown[-1]) == is_told
    once(agent, "How are you?")

    for system, first, *others in model.seen:
        assert system == SystemMessage("Be brief.")
        assert ("Likes pears." in first.text) == is_told
        assert "Likes pears." not in str(others)
        assert "plums" not in first.text + str(others)


@pytest.mark.trap("langchain", 21)
def test_the_limit_is_kept_with_the_system_prompt_and_the_tools_counted(once, memory) -> None:
    model = Scripted(script=lambda _: "so it is " * 20)
    agent = saved_agent(memory, model, [weather], prompt="Be brief. " * 10, token_limit=1300, mode="BOTH")
    for number in range(20):
        out = once(agent, f"question {number} " + "about pears " * 10)["messages"]

    every = [weather, *MemlayerMiddleware(memory, user_id="ada", mode="BOTH").tools]
    tools = sum(memory.tokens.text(str(convert_to_openai_tool(one))) for one in every)
    shown = [sum(memory.tokens.message(to_core(one)) for one in seen) for seen in model.seen]
    assert tools > 300
    assert max(shown) + tools <= 1300
    assert shown[-1] < sum(map(memory.tokens.message, kept(memory)))
    assert ids(out) == ids(kept(memory)), "the state is as long as the history"


@pytest.mark.trap("langchain", 18)
def test_tools_and_schemas_without_room_are_told_with_numbers_and_a_mode_that_has_none(once, memory) -> None:
    class Long(BaseModel):
        """An answer."""

        text: str = Field(description="Told with many words. " * 100)

    class Short(BaseModel):
        """An answer."""

        text: str

    with pytest.raises(errors.InvalidLimitError, match=r"need \d+ of 50 tokens") as raised:
        once(agent_of(memory, Scripted(), token_limit=50, mode="BOTH"), "hi", "small")
    assert 'mode="STATIC"' in raised.value.hint
    once(agent_of(memory, Scripted(), token_limit=50), "hi", "small")
    with pytest.raises(errors.InvalidLimitError):
        once(agent_of(memory, Scripted(), answer=Long, token_limit=400), "hi", "long")
    agent = agent_of(memory, says(calling(("Short", {"text": "yes"}))), answer=Short, token_limit=400)
    out = once(agent, "hi")

    assert out["structured_response"].text == "yes"
    assert ids(kept(memory)) == ids(out["messages"])
    assert [message.role for message in kept(memory)] == ["user", "assistant", "tool"]


def test_all_tools_together_cost_a_call_at_most_350_tokens() -> None:
    with Memory.in_memory() as memory:
        tools = MemlayerMiddleware(memory, user_id="ada", mode="BOTH").tools
        written = [json.dumps(convert_to_openai_tool(tool), ensure_ascii=False) for tool in tools]

        assert len(tools) == 5
        assert memory.tokens.name == "o200k_base"
        assert sum(map(memory.tokens.text, written)) <= 350


def test_an_agent_that_blocks_an_event_loop_is_told_to_be_awaited(open_at) -> None:
    agent = agent_of(open_at(), Scripted())

    async def block() -> None:
        with blockbuster_ctx(OURS):
            agent.invoke({"messages": [("human", "hi")]}, in_thread())

    with pytest.raises(errors.StoreError, match=r"called in an event loop: .*Blocking call") as raised:
        asyncio.run(block())
    assert "`ainvoke`" in raised.value.hint


# Storing


def test_messages_are_stored_as_they_come_in_their_order_and_once_also_a_last_result(run, memory) -> None:
    during: list[list[str]] = []

    @tool
    def look() -> str:
        """Look what is stored."""
        during.append(history(memory))
        return "seen"

    @tool(return_direct=True)
    def last() -> str:
        """End."""
        return "the end"

    model = says(calling(("look", {}), text="a moment"), "done", calling(("last", {}), first=1))
    agent = saved_agent(memory, model, [look, last])
    run(agent, "go")
    out = run(agent, "go")["messages"]

    assert during == [["user: go", "assistant: a moment"]]
    assert ids(kept(memory)) == ids(out)
    assert history(memory)[4:] == ["user: go", "assistant: ", "tool: the end"]


@pytest.mark.trap("langchain", 3, 7, 19)
def test_a_question_is_kept_when_the_model_fails_and_is_not_repeated_after_that(run, memory) -> None:
    def script(messages: list[BaseMessage]) -> str:
        if len(model.seen) % 3:
            raise ConnectionError("away")
        return "here"

    model = Scripted(script=script)
    agent, said = saved_agent(memory, model), ["hello?", "are you there?", "now?"]
    for number in (1, 2):
        with pytest.raises(ConnectionError):
            run(agent, said[number - 1])
        assert history(memory) == [f"user: {one}" for one in said[:number]]
    run(agent, "now?")
    assert history(memory) == [*(f"user: {one}" for one in said), "assistant: here"]

    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    for thread, first in (("first", True), ("last", False)):
        run(agent_of(memory, model, [], retry, first=first), "hello?", thread)
        assert history(memory, thread) == ["user: hello?", "assistant: here"]
    with pytest.raises(errors.StoreClosedError):  # a store that fails fails the run
        run(agent_of(memory, Scripted(script=lambda _: memory.close() or "ok")), "hello?")


@pytest.mark.trap("langchain", 2)
def test_a_question_that_comes_while_another_is_prepared_stands_beside_it(once, memory) -> None:
    """Runs of one thread without checkpoints overlap: the history alone knows of both."""
    others = ["And the plums?"]

    def meanwhile(event: Any) -> None:
        if isinstance(event, MessagesStored) and others:
            memory.chat(user_id="ada", session_id="t").add("user", others.pop())

    memory.listen(meanwhile)
    model = says("They are ripe.")
    once(agent_of(memory, model), "How are the pears?")

    assert model.shown == ["How are the pears?"]
    said = ["user: How are the pears?", "user: And the plums?", "assistant: They are ripe."]
    assert history(memory) == said


def censored(messages: list[BaseMessage]) -> list[BaseMessage]:
    return [messages[-1].model_copy(update={"content": messages[-1].text.replace("damn", "dear")})]


def reminded(request: ModelRequest) -> ModelRequest:
    """Append to the list of the request itself, which LangChain keeps in the state."""
    request.messages.append(HumanMessage(f"be brief, {len(request.messages)}"))
    return request


def anew(request: ModelRequest) -> ModelRequest:
    return ModelRequest(model=request.model, messages=request.messages, system_prompt="Be brief.")


GUESS = calling(("weather", {"city": "Oslo"}), text="my damn guess")
OTHERS = {
    "throws an answer away": (Wraps(times=2), ["no", "yes", "nor", "fine"], ["go", "yes", "and?", "fine"]),
    "edits answers": (
        Edits(after=censored),
        [GUESS, "damn rain", "fine"],
        ["go", "my dear guess", "Oslo: rain", "dear rain", "and?", "fine"],
    ),
    "puts messages into the state": (
        Wraps(reminded),
        [LOOK, "rain", "fine"],
        ["go", "be brief, 1", "", "Oslo: rain", "be brief, 4", "rain", "and?", "be brief, 7", "fine"],
    ),
    "makes the request anew": (Wraps(anew), ["hello", "fine"], ["go", "hello", "and?", "fine"]),
}


@memory_first
@pytest.mark.parametrize(("other", "answers", "said"), OTHERS.values(), ids=OTHERS)
def test_memory_and_state_agree_whatever_middleware_does(once, memory, other, answers, said, first) -> None:
    model = says(*answers)
    agent = saved_agent(memory, model, [weather], other, first=first)
    once(agent, "go")
    out = once(agent, "and?")["messages"]
    by_langchain, by_us = ([m for m in every if "be brief" not in m.text] for every in (out, kept(memory)))
    assert ids(by_us) == ids(by_langchain)  # what is put in may get its id from LangChain behind us
    assert [message.text for message in kept(memory)] == texts(out) == said
    assert [text for text in model.shown if text != "Be brief."] == said[:-1]


def test_turns_without_the_memory_are_stored_in_their_place_when_it_is_there(once, memory) -> None:
    saver, model = InMemorySaver(), counts()
    for number, is_remembered in enumerate([True, False, False, True]):
        middleware = [MemlayerMiddleware(memory, user_id="ada")] if is_remembered else []
        out = once(create_agent(model, middleware=middleware, checkpointer=saver), f"question {number}")

    assert ids(kept(memory)) == ids(out["messages"])
    assert model.shown == texts(out["messages"][:-1])


KEEPS = {"texts alone": lambda own, _: None, "own ids": lambda own, _: own, "our ids": lambda _, ours: ours}


@pytest.mark.trap("langchain", 7)
@pytest.mark.parametrize(
    ("door", "keeps"),
    [("agent", "texts alone"), ("agent", "our ids"), *(("with_memory", one) for one in KEEPS)],
)
@given(
    st.lists(st.sampled_from(["ask", "ask", "again", "edit", "back"]), max_size=7),
    st.lists(st.sampled_from(["ok", "Which museums are there?", "hi"]), min_size=10, max_size=10),
    st.booleans(),
    st.booleans(),
)
@example(["again", "again"], ["I plan a trip to Oslo in June"] * 10, False, True)
@examples(20)
def test_a_history_follows_a_list_that_a_client_keeps(door, keeps, steps, questions, is_same, looks) -> None:
    """It knows nothing of the calls of tools, and its instructions name the time."""

    def script(shown: list[BaseMessage]) -> AIMessage | str:
        if looks and shown[-1].type == "human":
            return calling(("weather", {"city": "Oslo"}), first=len(model.seen))
        return "ok" if is_same else f"answer {len(model.seen)}"

    def spoken(messages: Sequence[Any]) -> list[str]:
        return [m.text for m in messages if m.text and "rain" not in m.text and "It is" not in m.text]

    keys = {"input_messages_key": "messages", "output_messages_key": "messages"}
    with Memory.in_memory(settings=Tuned(index_delay=3600.0), tokenizer="estimate") as memory:
        model = Scripted(script=script)
        agent, config = agent_of(memory, model, [weather]), in_thread()
        if door == "with_memory":
            config = in_session("t")
            agent = with_memory(create_agent(model, [weather]), memory, user_id="ada", **keys)
        talk, named = list[BaseMessage](), KEEPS[keeps]
        for number, (step, said) in enumerate(zip(["ask", "ask", *steps], questions, strict=False)):
            question = f"{said} {number}"  # an equal one may be any of them
            if step == "ask":
                talk.append(HumanMessage(question, id=named(question, question)))
            elif step == "edit":
                talk[-2:] = [HumanMessage(f"{question}, in June", id=named(question, question))]
            else:
                del talk[-3 if step == "back" and len(talk) > 4 else -1 :]
            told = [SystemMessage(f"It is {number}:00"), *deepcopy(talk)]
            answer = agent.invoke({"messages": told}, config)["messages"][-1]
            assert spoken(model.seen[-1]) == texts(talk)
            talk.append(AIMessage(answer.text, id=named(f"answer {number}", answer.id)))
            assert spoken(kept(memory)) == texts(talk)
            assert sum(one.role == "tool" for one in kept(memory)) == looks * len(talk) // 2


def test_a_thread_that_goes_back_in_front_of_its_window_takes_its_history_along(once, memory) -> None:
    model = counts()
    agent = saved_agent(memory, model, policy=MaxRounds(1))
    for number in range(4):
        once(agent, f"question {number}")
    states = [one for one in agent.get_state_history(in_thread()) if one.next == ("model",)]
    agent.invoke(None, states[-1].config)

    assert model.shown == ["question 0"]
    assert history(memory) == ["user: question 0", "assistant: answer 5"]
    left = [text for number in range(1, 4) for text in (f"question {number}", f"answer {number + 1}")]
    assert taken_out(memory.chat(user_id="ada", session_id="t")) == [["answer 1", *left]]
    once(agent, "question 1 again")
    assert model.shown[-1].endswith("question 1 again")
    assert history(memory)[-2:] == ["user: question 1 again", "assistant: answer 6"]
    assert len(memory.sessions(user_id="ada")) == 1


def test_instructions_and_hidden_ones_at_the_end_are_no_question_and_there_may_be_none(once, memory) -> None:
    model = Scripted()
    card = AIMessage("a card", additional_kwargs={"model_visible": False})
    talk = [HumanMessage("hi"), AIMessage("hello"), HumanMessage("and?")]
    said = [SystemMessage("Be good."), *talk, card, SystemMessage("Be kind.")]
    once(agent_of(memory, model), {"messages": said})
    assert model.shown == ["Be kind.", "hi", "hello", "and?"]
    assert [message.text for message in kept(memory)] == [*texts(said), "ok"]

    once(agent_of(memory, model, prompt="Say hello."), {"messages": []}, "empty")
    assert model.seen[-1] == [SystemMessage("Say hello.")]
    assert history(memory, "empty") == ["assistant: ok"]


def test_a_call_translates_only_what_is_new_however_long_the_thread_is(once, memory, monkeypatch) -> None:
    translated: list[Any] = []
    monkeypatch.setattr(middleware, "to_core", lambda one: translated.append(one) or to_core(one))
    agent = saved_agent(memory, Scripted())
    for number in range(12):
        before = len(translated)
        out = once(agent, f"question {number}")["messages"]
    assert len(out) == 24
    assert len(translated) - before == 5  # answer, question, answer and question in front of the new answer


# Tools


@pytest.mark.parametrize("mode", ["STATIC", "BOTH"])
def test_a_preview_names_the_tool_that_reads_on_where_the_agent_has_it(once, memory, mode) -> None:
    model, result = Scripted(), ToolMessage("word " * 6000, tool_call_id="c0")
    said = [HumanMessage("Look."), calling(("look", {})), result]
    once(agent_of(memory, model, mode=mode, token_limit=5000), {"messages": said})
    assert len(model.shown[-1]) < len(result.text)
    assert ("context_reload" in model.shown[-1]) == (mode == "BOTH")


@pytest.mark.parametrize("saver", [None, InMemorySaver], ids=["stateless", "checkpoints"])
def test_answers_of_one_id_are_kept_in_the_state_and_in_the_memory(once, memory, saver) -> None:
    """Some servers give each answer the same id, and LangGraph's state replaces messages by their ids."""
    model = says(*(AIMessage(f"answer {number}", id="same") for number in range(3)))
    agent = agent_of(memory, model, saver=saver and saver())
    for number in range(3):
        out = once(agent, f"question {number}")["messages"]

    told = [f"{kind} {number}" for number in range(3) for kind in ("question", "answer")]
    assert [one.text for one in kept(memory)] == told
    assert texts(out) == (told if saver else told[-2:])


def test_a_model_of_the_middleware_is_the_memorys_and_another_one_is_refused_by_its_name(memory) -> None:
    def small(prompt: str) -> str:
        return prompt

    def large(prompt: str) -> str:
        return prompt

    for _ in range(2):
        MemlayerMiddleware(memory, user_id="ada", model=small)
    status = memory.admin.status()
    assert "small" in status.summarizer == status.extractor
    with pytest.raises(errors.ConfigurationError, match=r"small'.*large'"):
        MemlayerMiddleware(memory, user_id="ada", model=large)


# Interrupts


@memory_first
def test_an_interrupted_run_goes_on_and_the_history_follows_it(run, memory, first) -> None:
    edited = {"name": "weather", "args": {"city": "Rome"}}
    for decided, result in (
        ({"type": "approve"}, "Oslo: rain"),
        ({"type": "edit", "edited_action": edited}, "Rome: rain"),
        ({"type": "reject", "message": "not now"}, "not now"),
    ):
        person, thread = HumanInTheLoopMiddleware({"weather": True}), decided["type"]
        agent = saved_agent(memory, says(LOOK, "take a coat"), [weather], person, first=first)
        assert "__interrupt__" in run(agent, "How is it outside?", thread)
        assert history(memory, thread) == ["user: How is it outside?", "assistant: "]
        out = run(agent, Command(resume={"decisions": [decided]}), thread)["messages"]
        assert ids(kept(memory, thread)) == ids(out)
        assert [message.text for message in kept(memory, thread)] == texts(out)
        assert result in out[2].text


# Whose conversation


@dataclass
class Visitor:
    user_id: str | None


@dataclass
class Login:
    identity: str


@pytest.mark.trap("langchain", 22)
async def test_two_users_on_one_object_at_once_never_meet(memory) -> None:
    for user in ("ada", "bob"):
        await asyncio.to_thread(said_before, memory, user)
    model, middleware = Scripted(script=lambda _: "no nuts"), MemlayerMiddleware(memory)
    agent = create_agent(model, middleware=[middleware], context_schema=Visitor, checkpointer=InMemorySaver())

    async def asks(user: str, number: int) -> None:
        asked = HumanMessage(f"I am {user}, what should I not eat in Tokyo?")
        await agent.ainvoke({"messages": [asked]}, in_thread(f"{user}-{number}"), context=Visitor(user))

    await asyncio.gather(*(asks(user, number) for number in range(4) for user in ("ada", "bob")))

    assert len(model.seen) == 8
    for (question,) in model.seen:
        mine, other = ("ada", "bob") if "I am ada" in question.text else ("bob", "ada")
        assert f"{mine} moved to Tokyo" in question.text
        assert other not in question.text
    sessions = [await memory.asessions(user_id=user) for user in ("ada", "bob")]
    assert [*map(len, sessions)] == [5, 5]


def test_an_id_a_function_a_context_or_a_config_names_the_user(memory) -> None:
    for number, (whose, context, config) in enumerate(
        [
            ("ada", None, {}),
            (lambda runtime: runtime.context.user_id, Visitor("ada"), {}),
            (None, Visitor("ada"), {}),
            (None, {"user_id": "ada"}, {"user_id": "not her"}),
            (None, Visitor(None), {"user_id": "ada"}),
        ]
    ):
        ours = MemlayerMiddleware(memory, user_id=whose, mode="BOTH")
        more = {"middleware": [ours], "context_schema": type(context) if context else None}
        noted = calling(("record_to_memory", {"thinking": "", "content": [f"Ada plays game {number}."]}))
        agent = create_agent(says(noted, "ok"), **more)
        agent.invoke({"messages": [HumanMessage("hi")]}, in_thread(str(number), **config), context=context)
        assert history(memory, str(number))[0] == "user: hi"
        assert len(memory.records(user_id="ada")) == number + 1


@pytest.mark.parametrize(
    ("login", "place", "named"),
    [
        ({"langgraph_auth_user": {"identity": "ada"}}, "configurable", "bob"),
        ({"langgraph_auth_user": Login("ada")}, "context", "bob"),
        ({"langgraph_auth_user_id": "ada"}, "context", None),
        ({"langgraph_auth_user": Login("ada")}, "configurable", "ada"),
    ],
)
def test_who_logged_in_to_a_server_is_the_user_and_nobody_else(memory, login, place, named) -> None:
    names = {} if named is None else {"user_id": named}
    config = in_thread(**login, **(names if place == "configurable" else {}))
    agent = agent_of(memory, says(RECORD, "ok"), user_id=None, mode="BOTH")
    in_chain, factory = in_session("c", **login, **names), MemlayerChatMessageHistory.factory(memory)
    reads_itself = RunnableLambda(lambda _: factory(named, "c"))  # as LangChain's class does
    hi, context = {"messages": [("human", "hi")]}, names if place == "context" else None
    with_tools = create_agent(says(RECORD, "ok"), create_memory_tools(memory))
    for call in (
        lambda: agent.invoke(hi, config, context=context),
        lambda: with_tools.invoke(hi, config, context=context),
        lambda: [*with_memory(lambda _: "ok", memory).stream("hi", in_chain)],
        lambda: reads_itself.invoke("hi", in_chain).add_user_message("hi"),
    ):
        with pytest.raises(errors.InvalidScopeError, match="logged in") if named == "bob" else nullcontext():
            call()
    assert len(memory.records(user_id="ada")) == (named != "bob")
    sessions = {one.scope.session_id: one.messages for one in memory.sessions(user_id="ada")}
    assert sessions == ({} if named == "bob" else {"t": 4, "c": 3})
    assert not memory.sessions(user_id="bob")


def test_a_thread_of_one_user_is_refused_to_another(run, memory) -> None:
    saver, person = InMemorySaver(), HumanInTheLoopMiddleware({"record_to_memory": True})
    model = says("noted", RECORD, "ok")

    def asks(user: str | None, said: Any, thread: str) -> Any:
        return run(agent_of(memory, model, [], person, user_id=user, mode="BOTH", saver=saver), said, thread)

    asks("ada", "My order is ORD-7", "said")
    asks("ada", "Note that I play chess", "interrupted")
    resumed = Command(resume={"decisions": [{"type": "approve"}]})
    for other in ("bob", None):
        for thread, said in (("said", "Hello"), ("interrupted", resumed)):
            refused(errors.InvalidScopeError, f"'{thread}'", asks, other, said, thread)
    assert {one.user_id for one in memory.users()} == {"ada"}
    assert not memory.records(user_id="ada")
    asks("ada", "Hello", "said")
    told = ["user: My order is ORD-7", "assistant: noted", "user: Hello", "assistant: ok"]
    assert history(memory, "said") == told, "nothing of what was refused"


def test_questions_that_a_state_keeps_without_ids_are_told_and_stored(memory) -> None:
    deep = pytest.importorskip("deepagents", reason="deepagents is not installed: pip install deepagents")
    model, ours = Scripted(), MemlayerMiddleware(memory, token_limit=20_000)
    agent = deep.create_deep_agent(model, middleware=[ours], checkpointer=InMemorySaver())
    for user, text in (("ada", "I live in Riga."), ("bob", "I am Bob."), ("ada", "Hello"), ("ada", "Hello")):
        with pytest.raises(errors.InvalidScopeError) if user == "bob" else nullcontext():
            agent.invoke({"messages": [("human", text)]}, in_thread(user_id=user))
    said = ["I live in Riga.", "ok", "Hello", "ok", "Hello"]
    assert [message.text for message in kept(memory)] == [*said, "ok"]
    assert [message.text for message in model.seen[-1] if message.type != "system"] == said


def test_a_run_without_user_stands_alone_and_one_without_thread_or_of_nobody_is_refused(once, memory) -> None:
    model, hi = Scripted(), {"messages": [HumanMessage("hi")]}
    assert "thread_id" in refused(errors.InvalidScopeError, None, agent_of(memory, model).invoke, hi)
    refused(errors.InvalidScopeError, None, once, agent_of(memory, model, user_id=lambda runtime: None), hi)
    assert (memory.users(), model.seen) == ([], [])
    agent_of(memory, model, session_id=lambda runtime: "mine").invoke(hi)
    assert history(memory, "mine") == ["user: hi", "assistant: ok"]

    agent = agent_of(memory, model, user_id=None)
    once(agent, "My cat is called Tiger, and he eats fish.", "one")
    once(agent, "What is my cat called, and what does he eat?", "two")
    assert model.shown == ["What is my cat called, and what does he eat?"]


def tool_of(agent: Any, config: Any = None) -> StructuredTool:
    """Return a tool by which an agent gives a task to another one."""

    def find(description: str, subagent_type: str = "") -> str:
        return agent.invoke({"messages": [("user", description)]}, config)["messages"][-1].text

    async def afind(description: str, subagent_type: str = "") -> str:
        return (await agent.ainvoke({"messages": [("user", description)]}, config))["messages"][-1].text

    return StructuredTool.from_function(find, afind, name="task", description="Find something.")


def test_agents_that_tools_call_at_once_have_sessions_of_their_own(run, memory) -> None:
    below = Scripted(script=lambda messages: f"found {messages[-1].text}")
    both = calling(("task", {"description": "pears"}), ("task", {"description": "plums"}))
    out = run(saved_agent(memory, says(both, "done"), [tool_of(agent_of(memory, below))]), "go")["messages"]

    told = ["go", "", "found pears", "found plums", "done"]
    assert [message.text for message in kept(memory)] == texts(out) == told
    others = [s.scope.session_id for s in memory.sessions(user_id="ada") if s.scope.session_id != "t"]
    assert [one.partition(":")[0] for one in others] == ["t/tools"] * 2
    assert sorted(history(memory, one)[0] for one in others) == ["user: pears", "user: plums"]


ASKED = "I live in Rome and I am allergic to nuts. Which restaurant is good?"


def calls_an_agent(inner: Any, model: Any, memory: Memory, how: str) -> Any:
    """Return an agent that gives a task to another one."""
    if how == "deepagents":
        helper = {"name": "helper", "description": "Finds restaurants.", "runnable": inner}
        deep = pytest.importorskip("deepagents", reason="deepagents is not installed: pip install deepagents")
        ours = MemlayerMiddleware(memory, user_id="ada")
        return deep.create_deep_agent(model, subagents=[helper], middleware=[ours])
    own = in_thread("restaurants") if how == "a thread of its own" else None
    outer = agent_of(memory, model, [tool_of(inner, own)])
    if how != "inside a graph":
        return outer
    return StateGraph(MessagesState).add_node("desk", outer).add_edge(START, "desk").compile()


@pytest.mark.parametrize("how", ["a tool", "a thread of its own", "inside a graph", "deepagents"])
def test_what_an_agent_asks_another_one_is_nothing_that_the_user_said(once, how) -> None:
    settings = Tuned(index_delay=0.0, extraction_turns=1, episode_messages=1, session_idle_days=1)
    models = {"extractor": reads(), "summarizer": lambda _: "They talked of restaurants."}
    quote = {"thinking": "", "content": [{"text": "Nuts.", "quote": "I am allergic to nuts"}]}
    below = says(calling(("record_to_memory", quote)), "In Rome: Da Enzo.")
    above = says(calling(("task", {"description": ASKED, "subagent_type": "helper"})), "Enjoy it.", "ok")
    with Memory.in_memory(settings=settings, embedder="hashing", **models) as memory:
        outer = calls_an_agent(agent_of(memory, below, mode="BOTH"), above, memory, how)
        once(outer, "My friend Carla visits me, where shall we eat in Rome?")
        memory.flush()
        once(outer, "Which restaurant in Rome is good, and who is allergic to nuts?", "other")
        set_ahead(memory, 3)
        memory.flush()

        assert ASKED in str(below.seen[-1])
        told = [one.text for shown in above.seen for one in shown if one.type == "human"]
        assert not any(ASKED in text or "Enzo" in text for text in told)
        assert [record.source for record in memory.records(user_id="ada")] == ["implicit_inference"]
        assert ASKED in {hit.text for hit in memory.search("allergic to nuts", user_id="ada")}
        read = {one.session_id for one in memory.ledger(user_id="ada") if one.task != "record"}
        [apart] = {one.scope.session_id for one in memory.sessions(user_id="ada")} - read
        assert history(memory, str(apart))[0] == f"user: {ASKED}"
        memory.forget("ada")
        assert not memory.sessions(user_id="ada")


def test_an_agent_that_is_a_node_of_a_graph_goes_on_in_one_session(once, memory) -> None:
    graph = StateGraph(MessagesState).add_node("helper", agent_of(memory, counts()))
    compiled = graph.add_edge(START, "helper").add_edge("helper", END).compile(checkpointer=InMemorySaver())
    once(compiled, "one")
    once(compiled, "two")

    said = ["user: one", "assistant: answer 1", "user: two", "assistant: answer 2"]
    assert (history(memory, "t/helper"), len(memory.sessions(user_id="ada"))) == (said, 1)
    once(compiled, "My boat is called Petrel.")
    memory.flush()
    assert "Petrel" in memory.chat(user_id="ada", session_id="u").context("What is my boat called?").recall


# Other middleware


@memory_first
def test_what_another_middleware_tells_or_hides_once_is_shown_so_and_not_stored(once, memory, first) -> None:
    def changed(request: ModelRequest) -> ModelRequest:
        [said] = request.messages
        hidden = said.model_copy(update={"content": said.text.replace("secret", "[hidden]")})
        return request.override(messages=[HumanMessage("first, a hint"), hidden, HumanMessage("and another")])

    model = Scripted()
    out = once(agent_of(memory, model, [], Wraps(changed), first=first), "my secret plan")["messages"]

    assert model.shown == ["first, a hint", "my [hidden] plan", "and another"]
    assert texts(out) == ["my secret plan", "ok"]
    assert history(memory) == ["user: my secret plan", "assistant: ok"]


def test_a_copy_of_what_the_state_has_does_not_hide_what_the_memory_says_by_now(once, memory) -> None:
    model = Scripted()
    copies = Wraps(lambda request: request.override(messages=deepcopy(request.messages)))
    agent = saved_agent(memory, model, [], copies, first=False)
    for question in "I live in Oslo.", "And now?", "And then?":
        once(agent, question)
        memory.chat(user_id="ada", session_id="t").edit(0, "I live in Rome.")
    assert model.shown[0] == "I live in Rome."


# The object


def test_wrong_arguments_are_refused_at_once(memory) -> None:
    for wrong, problem in (
        ({"memory": "./memory"}, errors.ConfigurationError),
        ({"mode": "AUTO"}, errors.ConfigurationError),
        ({"policy": "newest"}, errors.InvalidLimitError),
        ({"user_id": 5}, errors.InvalidScopeError),
        ({"agent_id": ""}, errors.InvalidScopeError),
        ({"roles": "admin"}, errors.InvalidRecordError),
    ):
        refused(problem, None, MemlayerMiddleware, **{"memory": memory, "user_id": "ada", **wrong})


def block_of(kind: str, **fields: object) -> dict[str, object]:
    return {"type": kind, **fields}


FORMS = {
    "computer_call": (
        AIMessage([block_of("computer_call", id="cu", call_id="c1", action={"type": "screenshot"})]),
        ToolMessage([block_of("input_image", image_url="data:image/png;base64,AA")], tool_call_id="c1"),
    ),
    "local_shell_call, answered by its own id": (
        AIMessage([block_of("local_shell_call", id="lsh", call_id="c1", action={"command": ["ls"]})]),
        HumanMessage([block_of("local_shell_call_output", id="lsh", output="a.py")]),
    ),
    "older calls of OpenAI": (
        AIMessage("", additional_kwargs={"function_call": {"name": "look", "arguments": "{}"}}),
        lc.FunctionMessage("found", name="look"),
    ),
    "calls in what an integration adds": (
        AIMessage("I look.", additional_kwargs={"tool_outputs": [block_of("computer_call", call_id="c1")]}),
        ToolMessage("found", tool_call_id="c1"),
    ),
    "an approval": (
        AIMessage([block_of("mcp_approval_request", id="ar", name="roll", arguments="{}", server_label="d")]),
        HumanMessage([block_of("mcp_approval_response", approval_request_id="ar", approve=True)]),
    ),
    "two results of a user": (
        AIMessage([block_of("tool_use", id=one, name="look", input={}) for one in ("t1", "t2")]),
        HumanMessage([block_of("tool_result", tool_use_id=one, content="found") for one in ("t2", "t1")]),
    ),
    "Bedrock": (
        AIMessage([{"toolUse": {"toolUseId": "t1", "name": "look", "input": {}}}]),
        HumanMessage([{"toolResult": {"toolUseId": "t1", "content": [{"text": "found"}]}}]),
    ),
    "Gemini, without an id": (
        AIMessage([{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "x"}]),
        HumanMessage([{"functionResponse": {"name": "look", "response": {"found": 1}}}]),
    ),
    "a search of the provider, continued": (
        AIMessage([block_of("server_tool_use", id="s1", name="web_search", input={})]),
        AIMessage([block_of("web_search_tool_result", tool_use_id="s1", content=[])]),
    ),
    "equal ids": (
        AIMessage("", tool_calls=[{"id": "look", "name": "look", "args": {}}] * 2),
        *(ToolMessage(found, tool_call_id="look") for found in ("found", "found more")),
    ),
    "no ids": (
        AIMessage("", tool_calls=[{"id": None, "name": "look", "args": {}}] * 2),
        *(ToolMessage(found, tool_call_id="") for found in ("found", "found more")),
    ),
}


@pytest.mark.requirement("A19", "L13")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_call_of_any_form_and_its_result_stay_together_and_no_turn_is_lost(memory, form) -> None:
    model = Scripted(script=lambda _: "Done.")
    agent = saved_agent(memory, model)
    said = [HumanMessage("My name is Ada."), AIMessage("Hello, Ada."), HumanMessage("Look."), *form]
    agent.invoke({"messages": said}, in_thread())
    assert contents(model.seen[-1]) == contents(said)
    agent.invoke({"messages": [HumanMessage("And now?")]}, in_thread())
    assert contents(model.seen[-1])[3:] == [*contents(form), "Done.", "And now?"]

    history = MemlayerChatMessageHistory(memory, user_id="ada", session_id="without results")
    history.add_messages([HumanMessage("Look."), form[0], HumanMessage("Stop."), *form[1:]])
    assert contents(history.context())[:2] == ["Look.", form[0].content]


# A provider takes four marks of a prompt cache: a prompt has the newest ones, whatever the history has.


MARK = {"cache_control": {"type": "ephemeral"}}


@tool(extras=MARK)
def look(for_what: str) -> str:
    """Look for something."""
    return for_what


def test_a_prompt_has_four_marks_at_the_most_with_those_of_instructions_and_the_tools(once, memory) -> None:
    model, system = Scripted(), SystemMessage([{"type": "text", "text": "Be brief.", **MARK}])
    agent = saved_agent(memory, model, [look], prompt=system)
    for number in range(7):
        asked = HumanMessage([{"type": "text", "text": f"question {number}", **MARK}])
        once(agent, {"messages": [asked]})
    marked = ["cache_control" in str(one.content) for one in model.seen[-1] if one.type != "ai"]
    assert marked == [True, *[False] * 5, *[True] * 2], "and the tool's"


# Streams, batches, roles


@pytest.mark.trap("langchain", 6)
def test_a_streamed_answer_is_stored_whole_and_one_that_is_left_early_keeps_its_question(memory) -> None:
    agent = saved_agent(memory, says("it is raining in Oslo", "still raining", "and again"))

    def stream(said: str) -> Any:
        return agent.stream({"messages": [HumanMessage(said)]}, in_thread(), stream_mode="messages")

    parts = [part.text for part, _ in stream("weather?")]
    assert len(parts) >= 5
    assert "".join(parts) == "it is raining in Oslo"
    whole = ["user: weather?", "assistant: it is raining in Oslo"]
    assert (history(memory), kept(memory)[-1].raw.dump["type"]) == (whole, "ai")

    left = stream("and now?")
    next(left)
    left.close()
    assert history(memory)[:3] == [*whole, "user: and now?"]
    [*stream("and then?")]
    assert history(memory)[:3] == [*whole, "user: and now?"]
    assert history(memory)[-2:] == ["user: and then?", "assistant: and again"]


@pytest.mark.parametrize("roles", [lambda runtime: ["doctor"], ()])
def test_what_others_share_with_a_role_is_told_to_that_role_alone(once, memory, roles) -> None:
    ada = memory.chat(user_id="ada", session_id="s")
    ada.remember("Ada is allergic to nuts.", visibility="share", allowed_roles=["doctor"])
    model = says(calling(("retrieve_from_memory", {"keywords": ["Ada", "allergic"]})), "ok")
    once(agent_of(memory, model, user_id="bob", roles=roles, mode="AGENT"), "hi")

    assert ("allergic to nuts" in model.shown[-1]) == bool(roles)
