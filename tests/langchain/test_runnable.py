"""`with_memory`: a runnable that is told what was said before, and whose answers are stored with their questions."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core import messages as lc, runnables
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from refusals import refused
from waiting import heard

from langchain_memlayer import MemlayerChatMessageHistory, to_core, with_memory
from langchain_memlayer.runnable import STEPS, join_chunks
from memlayer_core import MaxRounds, Memory, errors
from memlayer_core.events import MessagesStored
from tests.langchain.running import VERBS, Heard, contents, in_session as at, in_thread, kinds, pieces, texts
from tests.langchain.scripted_model import Edits, Scripted, calling, says, weather

PARROT = "My parrot is called Grillparzer"
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "be kind"), MessagesPlaceholder("history"), ("human", "Say: {question}")]
)
KEYS = {"input_messages_key": "question", "history_messages_key": "history"}


def told_in(given: Any) -> list[BaseMessage]:
    """Return the messages in what a runnable is given, whatever the mode; a text is the user's."""
    said = given["question"] if isinstance(given, dict) else getattr(given, "messages", given)
    return [HumanMessage(said)] if isinstance(said, str) else said


def echo() -> Scripted:
    """Return a model that answers with the last message and how many there were."""
    return Scripted(script=lambda messages: f"{messages[-1].text} ({len(messages)})")


def kept(memory: Memory, session_id: str = "s1", user_id: str = "ada") -> list[BaseMessage]:
    return MemlayerChatMessageHistory(memory, session_id=session_id, user_id=user_id).messages


def knows_the_parrot(memory: Memory, user_id: str = "ada") -> None:
    MemlayerChatMessageHistory(memory, session_id="past", user_id=user_id).add_user_message(PARROT)
    memory.flush()


def words(text: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(text)]))


# What goes in, and what comes out


@pytest.mark.requirement("M03")
def test_whatever_a_runnable_takes_is_told_with_what_was_said_before_and_kept(do, memory) -> None:
    for number, said in enumerate(
        [
            "hi",
            HumanMessage("hi"),
            (HumanMessage("hi"),),
            [("human", "hi")],
            [{"role": "user", "content": "hi"}],
            {"question": "hi"},
            {"question": [HumanMessage("hi")]},
            ChatPromptTemplate.from_messages([("human", "hi")]).invoke({}),
        ]
    ):
        model, session = echo(), f"s{number}"
        chain = with_memory(model, memory, user_id=str(number))
        assert [do(chain, "invoke", said, at(session)).content for _ in range(2)] == ["hi (1)", "hi (3)"]
        assert contents(model.seen[1]) == ["hi", "hi (1)", "hi"]
        stored = kept(memory, session, str(number))
        assert (contents(stored), stored[0]) == (["hi", "hi (1)", "hi", "hi (3)"], HumanMessage("hi"))


@pytest.mark.trap("langchain", 22)
def test_a_prompt_has_history_apart_with_the_users_recall_and_its_words_are_not_stored(do, memory) -> None:
    knows_the_parrot(memory)
    model = echo()
    chain = with_memory(PROMPT | model | StrOutputParser(), memory, **KEYS)
    for user, question in (("ada", "my parrot?"), ("ada", "really?"), ("bob", "my parrot?")):
        do(chain, "invoke", {"question": question}, at(user_id=user))

    first, second, of_bob = model.seen
    assert kinds(first) == ["system", "human", "human"]
    assert "Grillparzer" in first[1].text
    assert first[2].text == "Say: my parrot?"
    assert kinds(second) == ["system", "human", "ai", "human"]
    assert second[1].text.endswith("\n\nmy parrot?")  # with what bears on the newest question and this round
    assert texts(of_bob) == ["be kind", "Say: my parrot?"]
    assert contents(kept(memory)) == ["my parrot?", "Say: my parrot? (3)", "really?", "Say: really? (4)"]


@pytest.mark.trap("langchain", 7)
def test_instructions_in_the_input_are_told_and_stored_once(do, memory) -> None:
    """A `SystemMessage` in every input is stored with every turn by LangChain's own wrapper."""
    model, said = Scripted(), [lc.SystemMessage("be kind"), HumanMessage("hi")]
    apart = MessagesPlaceholder("history") + MessagesPlaceholder("question") | model
    for session, chain, given in (
        ("s1", with_memory(model, memory, user_id="ada"), said),
        ("apart", with_memory(apart, memory, user_id="ada", **KEYS), {"question": said}),
    ):
        for _ in range(3):
            do(chain, "invoke", given, at(session))
        assert sorted(kinds(model.seen[-1])) == ["ai"] * 2 + ["human"] * 3 + ["system"]
        assert kinds(kept(memory, session)) == ["system", *["human", "ai"] * 3]


def test_an_answer_that_echoes_the_question_and_one_beside_other_steps_are_answers(memory) -> None:
    chain = with_memory(lambda messages: messages[-1], memory, user_id="ada")
    chain.invoke("hi", at())
    chain.invoke([HumanMessage("hi", id="m1")], at("s2"))
    assert (contents(kept(memory)), contents(kept(memory, "s2"))) == (["hi", "hi"], ["hi"])
    for steps in (None, 7, [("a step", "done"), 7], [()]):  # no calls of tools
        chain = with_memory(lambda _, steps=steps: {"output": "42", STEPS: steps}, memory, user_id="ada")
        chain.invoke("hi", at("s3"))
    assert contents(kept(memory, "s3")) == ["hi", "42"] * 4


@pytest.mark.trap("langchain", 8, 20)
def test_the_messages_of_the_caller_stay_as_they_are(do, memory) -> None:
    knows_the_parrot(memory)
    said = HumanMessage("my parrot?")
    answer = AIMessage("Grillparzer")

    def model(messages: list[BaseMessage]) -> AIMessage:
        for one in messages:
            one.id = "given by a graph"
        return answer

    do(with_memory(model, memory, user_id="ada"), "invoke", [said], at())

    assert said == HumanMessage("my parrot?")
    assert kept(memory) == [said, answer]


@pytest.mark.trap("langchain", 5)
def test_a_wrapped_model_keeps_messages_of_every_class(do, memory) -> None:
    """LangChain's own wrapper loads what a model got from JSON: a `ChatMessage` there costs the whole turn."""
    said = [
        lc.ChatMessage("hello", role="critic"),
        lc.FunctionMessage("42", name="answer"),
        HumanMessage("hi", mood="bad"),
        calling(("height", {})),
        ToolMessage("42", tool_call_id="c0", artifact=Document("page", metadata={"n": 1})),
        HumanMessage("hi", additional_kwargs={"client": object()}),
    ]

    do(with_memory(echo(), memory, user_id="ada"), "invoke", said, at())

    assert kept(memory)[:5] == said[:5]
    assert contents(kept(memory))[5:] == ["hi", "hi (5)"], "the result that names no call is not told"


async def test_a_node_of_a_graph_in_a_graph_has_the_thread_as_its_session(memory) -> None:
    """A custom graph calls its model in a node, in a loop with tools; a person decides about their calls."""

    def decide(state: MessagesState) -> dict[str, list[BaseMessage]]:
        call = state["messages"][-1].tool_calls[0]
        return {"messages": [ToolMessage(interrupt("May I?"), tool_call_id=call["id"])]}

    def following(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    answers = iter([calling(("look", {})), AIMessage("It is red."), AIMessage("Bye now")])
    model = GenericFakeChatModel(messages=answers)
    inner = StateGraph(MessagesState).add_edge(START, "model").add_edge("tools", "model")
    inner.add_node("model", with_memory(model, memory) | (lambda answer: {"messages": [answer]}))
    inner.add_node("tools", decide).add_conditional_edges("model", following, ["tools", END])
    outer = StateGraph(MessagesState).add_node("inner", inner.compile()).add_edge(START, "inner")
    agent = await asyncio.to_thread(outer.compile, checkpointer=InMemorySaver())
    thread = in_thread(7, user_id="ada")
    await agent.ainvoke({"messages": [("human", "Which colour?")]}, thread)
    await agent.ainvoke(Command(resume="red"), thread)
    stream = agent.astream({"messages": [("human", "Bye")]}, thread, stream_mode="messages", subgraphs=True)
    told = [chunk.text async for _, (chunk, _) in stream if isinstance(chunk, AIMessageChunk)]

    assert "".join(told) == "Bye now"
    said = await asyncio.to_thread(kept, memory, "7")
    assert contents(said) == ["Which colour?", "", "red", "It is red.", "Bye", "Bye now"]


@pytest.mark.trap("langchain", 4)
def test_an_input_that_nobody_can_read_is_refused_before_anybody_is_asked(do, memory) -> None:
    """LangChain's own wrapper answers to a dict without a key for it, and stores nothing, silently."""
    model = Scripted()
    for keys, said in (
        ({}, {"question": "hi", "tone": "kindly"}),
        ({}, 7),
        ({}, [7]),
        ({"input_messages_key": "question"}, {"asked": "hi"}),
        (KEYS, "hi"),
    ):
        chain = with_memory(model, memory, user_id="ada", **keys)
        refused(errors.InvalidMessageError, None, do, chain, "invoke", said, at())
    assert model.seen == memory.sessions(user_id="ada") == []


@pytest.mark.trap("langchain", 4)
def test_an_answer_is_found_as_langchain_finds_it_or_stored_as_json(memory) -> None:
    """LangChain's own wrapper raises when the model has answered."""

    class Joke(BaseModel):
        setup: str = "Why?"

    for number, (output, text) in enumerate(
        [
            ((AIMessage("42"),), "42"),
            ({"output": "42", "steps": 3}, "42"),
            ({"anything": AIMessage("42")}, "42"),
            ({"a": "x", "b": "y"}, '{"a":"x","b":"y"}'),
            (None, "null"),
            ({"output": 7}, "7"),
            (Joke(), '{"setup":"Why?"}'),
            ([AIMessage("x"), object()], None),
        ]
    ):
        config = at(str(number))
        assert with_memory(lambda _, out=output: out, memory, user_id="ada").invoke("hi", config) is output
        [question, answer] = kept(memory, str(number))
        assert question == HumanMessage("hi")
        assert answer == AIMessage(answer.text if text is None else text)
    for written in ('{"a": "Why?", "b": [1, 23]}', '[{"a": "Why?"}, {"b": [1, 23]}]', "17"):
        model = FakeListChatModel(responses=[written] * 2) | JsonOutputParser()
        for verb in ("invoke", "astream"):  # a parser says again and again what it has so far
            chain = with_memory(model, memory, user_id="ada")
            assert pieces(chain, verb, "A joke.", at("parsed"))[-1] == json.loads(written)
            assert json.loads(kept(memory, "parsed")[-1].text) == json.loads(written)


@pytest.mark.requirement("L05", "F06")
def test_what_is_told_and_what_is_said_keep_the_limit_together(do, memory) -> None:
    model = echo()
    chain = with_memory(model, memory, user_id="ada", token_limit=300)
    for turn in range(12):
        do(chain, "invoke", f"question {turn} " * 15, at())
    assert len(model.seen[-1]) < 24
    do(with_memory(model, memory, user_id="ada", policy={"max_rounds": 2}), "invoke", "and now?", at())

    costs = [sum(memory.tokens.message(to_core(one)) for one in seen) for seen in model.seen[:-1]]
    assert max(costs) <= 300
    assert len(model.seen[-1]) == 3
    assert len(kept(memory)) == 26


# What is stored, and when


@pytest.mark.trap("langchain", 19, 20)
@pytest.mark.requirement("M03")
def test_question_and_answer_are_stored_at_once_and_a_call_that_fails_stores_nothing(do, memory) -> None:
    def script(_: list[BaseMessage]) -> str:
        during.append(kept(memory))
        if len(model.seen) < 3:
            raise TimeoutError
        return "42"

    model, during, events = Scripted(script=script), [], heard(memory, MessagesStored)
    chain = with_memory(model, memory, user_id="ada")
    with pytest.raises(TimeoutError):
        do(chain, "invoke", "hi", at())
    do(chain.with_retry(wait_exponential_jitter=False), "invoke", "hi", at())
    removes = with_memory(lambda _: [AIMessage("42"), lc.RemoveMessage(id="m1")], memory, user_id="ada")
    refused(errors.InvalidMessageError, "RemoveMessage", do, removes, "invoke", "hi", at())

    assert during == [[]] * 3
    assert [event.stored for event in events] == [2]
    assert [texts(seen) for seen in model.seen] == [["hi"]] * 3
    assert contents(kept(memory)) == ["hi", "42"]


@pytest.mark.trap("langchain", 3)
@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_the_store_is_raised_also_when_a_stream_is_closed(memory, verb) -> None:
    """LangChain's own wrapper stores in a callback, whose errors are logged and forgotten."""
    stream = with_memory(words("one two"), memory, user_id="ada").stream("count", at())
    next(stream)
    chain = with_memory(lambda _: memory.close() or "42", memory, user_id="ada")
    refused(errors.StoreClosedError, None, pieces, chain, verb, "hi", at())
    refused(errors.StoreClosedError, None, stream.close)


# Streams


@pytest.mark.trap("langchain", 6)
@pytest.mark.parametrize("verb", ["stream", "astream"])
def test_a_stream_is_passed_on_piece_by_piece_and_kept_whole(memory, verb) -> None:
    answers = PROMPT | words("one two three") | StrOutputParser()
    sources = RunnablePassthrough.assign(context=lambda _: ["a source"])
    named = {"output_messages_key": "answer", **KEYS}
    of_model = with_memory(words("one two three"), memory, user_id="ada")
    chain = with_memory(sources | RunnablePassthrough.assign(answer=answers), memory, user_id="ada", **named)

    heard = [contents(pieces(of_model, verb, "count", at()))]
    told = pieces(chain, verb, {"question": "count"}, at())
    heard.append([piece["answer"] for piece in told if "answer" in piece])
    assert heard == [["one", " ", "two", " ", "three"]] * 2
    assert kept(memory)[2:] == [HumanMessage("count"), AIMessage("one two three")]
    assert contents(kept(memory)) == ["count", "one two three"] * 2
    assert [type(one) for one in kept(memory)] == [HumanMessage, AIMessage] * 2
    assert "interrupted" not in kept(memory)[1].response_metadata


def interrupted(memory: Memory) -> list[Any]:
    """Return what was kept, after a look at how the last message is marked."""
    history = MemlayerChatMessageHistory(memory, session_id="s1", user_id="ada")
    assert history.messages[-1].response_metadata["interrupted"] is True
    assert history.chat.history()[-1].metadata == {"interrupted": True}
    assert [type(one) for one in history.messages] == [HumanMessage, AIMessage]
    return contents(history.messages)


@pytest.mark.trap("langchain", 6)
@pytest.mark.parametrize("way", ["close", "break"])
def test_a_stream_that_is_left_early_keeps_what_was_said_and_marks_it(memory, way) -> None:
    bound = RunnablePassthrough() | words("one two three") | StrOutputParser()
    stream = with_memory(bound, memory, user_id="ada").stream("count", at())
    for number, _ in enumerate(stream):
        if number == 2:
            break
    if way == "close":
        stream.close()
    del stream
    assert interrupted(memory) == ["count", "one two"]


@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_to_a_session_that_was_forgotten_meanwhile_is_not_stored(memory, verb) -> None:
    pieces(with_memory(says("Hi."), memory, user_id="ada"), verb, "Hello!", at())
    forgets = Scripted(script=lambda _: memory.forget("ada") and "Your number is 4711.")
    pieces(with_memory(forgets, memory, user_id="ada"), verb, "My number is 4711.", at())
    assert memory.sessions(user_id="ada") == []


@pytest.mark.trap("langchain", 6)
@pytest.mark.parametrize("way", ["closed", "alone", "in a chain"])
def test_an_async_stream_that_is_left_keeps_what_was_said_when_its_loop_ends(memory, way) -> None:
    async def leave() -> None:
        chain = with_memory(words("one two three"), memory, user_id="ada")
        stream = (chain | StrOutputParser() if way == "in a chain" else chain).astream("count", at())
        await anext(stream)
        if way == "closed":
            await stream.aclose()
            assert await asyncio.to_thread(interrupted, memory) == ["count", "one"]

    asyncio.run(leave())

    assert interrupted(memory) == ["count", "one"]


def listener(memory: Memory, model: Any) -> asyncio.Task[None]:
    """Return the task of a client that hears an answer."""

    async def listen() -> None:
        async for _ in with_memory(model, memory, user_id="ada").astream("count", at()):
            pass

    return asyncio.create_task(listen())


@pytest.mark.trap("langchain", 6)
async def test_a_listener_who_goes_away_takes_no_word_along(memory) -> None:
    async def model(_: Any) -> AsyncIterator[AIMessageChunk]:
        yield AIMessageChunk("one")
        began.set()
        await asyncio.sleep(3600)

    began = asyncio.Event()
    task = listener(memory, RunnableLambda(model))
    await began.wait()
    while not task.done():  # as a server does
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert task.cancelled()
    assert await asyncio.to_thread(interrupted, memory) == ["count", "one"]


@pytest.mark.trap("langchain", 7)
def test_answers_that_have_one_id_are_all_kept(memory) -> None:
    """Some servers give each answer the same id."""
    numbers = iter(range(100))

    def model(given: Any) -> Any:
        answer = AIMessage(f"answer {next(numbers)}", id="same")
        calls = calling(("look", {})).model_copy(update={"id": "same"})
        steps = told_in(given)[-1].id == "q"
        return [calls, ToolMessage("seen", tool_call_id="c0"), answer] if steps else answer

    histories = MemlayerChatMessageHistory.factory(memory, user_id="ada")
    specs = {"history_factory_config": histories.config_specs}
    for session, chain, question_id in (
        ("ours", with_memory(model, memory, user_id="ada", policy=MaxRounds(1)), None),
        ("with calls", with_memory(model, memory, user_id="ada", policy=MaxRounds(1)), "q"),
        ("LangChain's own", RunnableWithMessageHistory(RunnableLambda(model), histories, **specs), None),
    ):
        for _ in range(6):
            chain.invoke([HumanMessage("hi", id=question_id)], at(session))
        said = [one for one in kept(memory, session) if one.type == "ai"]
        ids = [one.id for one in said if one.id is not None]
        assert len([one for one in said if one.text]) == 6
        assert len({*ids}) == len(ids) >= 6 - (session == "ours")
    edited = [kept(memory, "ours")[1].model_copy(update={"content": "changed"})]
    histories("ours").add_messages(edited)
    assert contents(kept(memory, "ours"))[1::2] == ["changed", *(f"answer {n}" for n in range(1, 6))]


def test_an_edited_list_whose_model_fails_replaces_nothing_and_its_first_message_may_change(memory) -> None:
    chain = with_memory(Scripted(), memory, user_id="ada")
    fails = with_memory(RunnableLambda(lambda shown: [][len(shown)]), memory, user_id="ada")
    begun = [("human", "A trip to Oslo"), ("ai", chain.invoke("A trip to Oslo", at()).text)]
    chain.invoke([*begun, ("human", "Museums?")], at())
    said = ["A trip to Oslo", "ok", "Museums?", "ok"]
    for asked in ("Museums?", "Food?"):
        with pytest.raises(IndexError):
            fails.invoke([*begun, ("human", asked)], at())
        assert contents(kept(memory)) == said
    chain.invoke(
        [("human", "A trip to Bergen"), begun[1], ("human", "Museums?"), begun[1], ("human", "?")], at()
    )
    assert contents(kept(memory)) == ["A trip to Bergen", *said[1:], "?", "ok"]


def test_a_node_that_runs_again_replaces_its_answer_and_brings_nothing_back(memory) -> None:
    model = Scripted()
    model.script = lambda _: f"answer {len(model.seen)}"
    bot = with_memory(model, memory, user_id="ada")

    def asks(state: MessagesState) -> dict[str, Any]:
        answer = bot.invoke(state["messages"])
        interrupt("May I send this?")
        return {"messages": [answer]}

    app = StateGraph(MessagesState).add_node("model", asks).add_edge(START, "model")
    agent, chat = app.compile(checkpointer=InMemorySaver()), memory.chat(user_id="ada", session_id="t")

    def say(text: str) -> list[str]:
        agent.invoke({"messages": [("human", text)]}, in_thread())
        agent.invoke(Command(resume=True), in_thread())
        return [one.text for one in chat.history()]

    assert say("My PIN is 4711.") == ["My PIN is 4711.", "answer 2"]
    assert model.shown == ["My PIN is 4711."]
    chat.edit(chat.history()[0].id or "", "My PIN is secret.")
    assert say("Hello") == ["My PIN is secret.", "answer 2", "Hello", "answer 4"]
    chat.delete_message(chat.history()[0].id or "")
    assert say("Bye") == ["answer 2", "Hello", "answer 4", "Bye", "answer 6"]
    memory.forget("ada", session_id="t")
    assert say("Hi") == ["Hi", "answer 8"]
    assert model.shown == ["Hi"]


def test_a_node_whose_prompt_has_the_history_apart_is_told_each_message_once(memory) -> None:
    model = echo()
    parts = ChatPromptTemplate([MessagesPlaceholder("history"), MessagesPlaceholder("messages")])
    keys = {"input_messages_key": "messages", "history_messages_key": "history"}
    node = with_memory(parts | model, memory, user_id="ada", **keys) | (lambda answer: {"messages": [answer]})
    app = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model")
    agent = app.compile(checkpointer=InMemorySaver())
    for text in ("one", "two"):
        agent.invoke({"messages": [("human", text)]}, in_thread())
    assert model.shown == ["one", "one (1)", "two"]


async def test_a_listener_who_goes_away_at_the_last_word_takes_nothing_along(memory, monkeypatch) -> None:
    """All of the answer was heard; the task is cancelled while it is made ready to be stored, in a thread."""
    began, loop, added = asyncio.Event(), asyncio.get_running_loop(), threading.Event()

    def slowly(chunks: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        assert threading.current_thread() is not threading.main_thread()
        assert added.wait(30)
        return join_chunks(chunks)

    monkeypatch.setattr("langchain_memlayer.runnable.join_chunks", slowly)

    task = listener(memory, words("one two"))
    await began.wait()
    task.cancel()
    added.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    assert task.cancelled()
    assert contents(await asyncio.to_thread(kept, memory)) == ["count", "one two"]


@pytest.mark.trap("langchain", 6)
def test_a_stream_that_fails_keeps_what_was_said_and_nothing_before(memory, caplog) -> None:
    def fails(*given: Any) -> RunnableLambda:
        def model(_: Any) -> Iterator[Any]:
            yield from given
            raise TimeoutError

        return RunnableLambda(model)

    begins = AIMessageChunk("")  # providers begin like this
    documents, node = {"documents": ["d"]}, {"node": {"messages": []}}
    for model, more in (
        (fails(begins), {}),
        (fails(documents), {"output_messages_key": "answer"}),
        (fails(node), {}),
        (fails(begins, AIMessageChunk("one "), AIMessageChunk("two")), {}),
    ):
        assert kept(memory) == []
        with pytest.raises(TimeoutError):
            list(with_memory(model, memory, user_id="ada", **more).stream("count", at()))
    assert interrupted(memory) == ["count", "one two"]
    assert "nothing of it is stored" in caplog.text

    def nothing(_: Any) -> Iterator[str]:
        yield from ()

    with pytest.raises(errors.MessageTypeError):
        list(with_memory(RunnableLambda(nothing), memory, user_id="ada").stream("hi", at("empty")))
    assert kept(memory, "empty") == []


def test_a_call_of_a_tool_that_was_cut_off_is_kept_and_told_to_nobody(memory) -> None:
    def model(messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        shown.append(messages)
        chunk = {"name": "height", "args": '{"of": "Gald', "id": "c1", "index": 0, "type": "tool_call_chunk"}
        yield AIMessageChunk("", tool_call_chunks=[chunk])
        yield AIMessageChunk("never heard")

    shown: list[list[BaseMessage]] = []
    chain = with_memory(RunnableLambda(model), memory, user_id="ada")
    for said in ("how tall?", "again"):
        stream = chain.stream(said, at())
        next(stream)
        stream.close()

    assert [len(one.tool_calls) for one in kept(memory)[1::2]] == [1, 1]
    assert contents(shown[1]) == ["how tall?", "again"]


# Whose conversation it is


@pytest.mark.parametrize("verb", ["invoke", "astream"])
def test_a_call_that_names_nobody_or_somebody_else_is_refused_before_anybody_is_asked(memory, verb) -> None:
    model, heard = Scripted(), Heard()
    for named, missing, fixed in (
        ({}, "user_id", {}),
        ({"session_id": "s1", "user_id": None}, "user_id", {}),
        ({"user_id": "ada"}, "session_id", {}),
        ({"session_id": "s1", "user_id": "bob"}, "bob", {"user_id": "louis"}),
    ):
        config = {"configurable": named, "callbacks": [heard]}
        chain = with_memory(model, memory, **fixed)
        refused(errors.InvalidScopeError, missing, pieces, chain, verb, "hi", config)
    assert heard.errors == [errors.InvalidScopeError] * 4
    assert model.seen == []

    own = with_memory(model, memory, user_id="ada", configurable=["thread_id"])
    pieces(own, verb, "one", in_thread("s1"))
    both = at("s2", thread_id="s1", user_id="ada")  # a session that a call names comes before its thread
    pieces(with_memory(model, memory, user_id="ada"), verb, "two", both)
    assert [contents(kept(memory, one)) for one in ("s1", "s2")] == [["one", "ok"], ["two", "ok"]]


@pytest.mark.parametrize("verb", VERBS)
def test_a_thread_of_a_graph_is_refused_to_another_user(memory, verb) -> None:
    bot = with_memory({"answer": echo()}, memory, output_messages_key="answer")

    def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        first, *more = (one["answer"] for one in pieces(bot, verb, state["messages"], config))
        return {"messages": [sum(more, first)]}

    app = StateGraph(MessagesState).add_node("model", model).add_edge(START, "model")
    agent = app.compile(checkpointer=InMemorySaver())
    said, thread = {"messages": [("human", "My code is 4711.")]}, in_thread("shared", user_id="ada")
    for _ in range(2):
        agent.invoke(said, thread)
    refused(errors.InvalidScopeError, "'shared'", agent.invoke, said, in_thread("shared", user_id="bob"))
    assert {one.user_id for one in memory.users()} == {"ada"}
    assert len(memory.chat(user_id="ada", session_id="shared").history(all_versions=True)) == 4


def test_an_answer_does_not_hold_the_input_that_a_chain_gives_back(memory, caplog) -> None:
    chain = RunnablePassthrough.assign(answer=RunnableLambda(lambda _: "fish"))
    for asked, answer in (
        (chain, "fish"),
        (RunnablePassthrough.assign(docs=lambda _: 1) | chain, '{"docs":1,"answer":"fish"}'),
    ):
        keys = {"input_messages_key": "question", "history_messages_key": "history"}
        with_memory(asked, memory, user_id="ada", **keys).invoke({"question": "what?"}, at())
        assert kept(memory)[-1].content == answer
    assert "output_messages_key" in caplog.text


async def test_histories_may_be_made_by_an_async_function_or_as_langchain_makes_them(memory) -> None:
    """LangChain's own wrapper takes no async function."""

    def named(user_id: str, session_id: str) -> MemlayerChatMessageHistory:
        return MemlayerChatMessageHistory(memory, session_id=session_id, user_id=user_id, token_limit=40)

    async def later(user_id: str, session_id: str) -> MemlayerChatMessageHistory:
        await asyncio.sleep(0)
        return named(user_id, session_id)

    ids = [runnables.ConfigurableFieldSpec(id=name, annotation=str) for name in ("user_id", "session_id")]
    of_one = with_memory(echo(), later, history_factory_config=ids)
    with pytest.raises(errors.ConfigurationError, match="async"):
        await asyncio.to_thread(of_one.invoke, "hi", at(user_id="ada"))
    model = echo()
    for chain in (
        of_one,
        with_memory(model, lambda session_id: named("ada", session_id)),
        with_memory(model, lambda: named("ada", "s1")),
        with_memory(model, MemlayerChatMessageHistory.factory(memory, token_limit=40)),
    ):
        for _ in range(3):
            await chain.ainvoke("hello, hello, hello", at(user_id="ada"))
    assert len(await asyncio.to_thread(kept, memory)) == 24
    assert max(map(len, model.seen)) < 9, "the history's own limit holds"


def test_what_does_not_go_together_is_refused(do, memory) -> None:
    ids = [runnables.ConfigurableFieldSpec(name, str) for name in ("a", "c")]
    for given, more in (
        ("./memory", {}),
        (lambda session_id: None, {"policy": {"max_rounds": 2}, "roles": ["staff"], "configurable": []}),
        (lambda a, b: None, {"history_factory_config": ids}),
        (memory, {"history_factory_config": []}),
        (memory, {"configurable": ["user_id", "session_id"], "user_id": "ada"}),
    ):
        refused(errors.ConfigurationError, None, with_memory, Scripted(), given, **more)
    refused(errors.InvalidLimitError, None, with_memory, Scripted(), memory, token_limit=0)
    with pytest.raises(errors.ConfigurationError, match="MemlayerChatMessageHistory"):
        do(with_memory(Scripted(), lambda session_id: [session_id]), "invoke", "hi", at())


# Being a part of LangChain


@pytest.mark.parametrize("verb", ["invoke", "astream"])
def test_a_trace_is_one_tree_with_the_callers_tags_wherever_a_runnable_goes(memory, verb) -> None:
    heard = Heard()
    bot = with_memory(PROMPT | Scripted(), memory, user_id="ada", name="bot", **KEYS).bind(stop=["."])
    config = {**at(), "callbacks": [heard], "tags": ["mine"], "metadata": {"deal": 7}}
    chain = RunnablePassthrough() | bot.with_config(run_name="bound") | StrOutputParser()

    assert "".join(pieces(chain, verb, {"question": "hi"}, config)) == "ok"
    [model] = heard.of("model")
    assert model.name == "Scripted"
    assert heard.above(model)[0] == heard.above(model)[-1] == "RunnableSequence"
    assert all("mine" in run.tags and run.metadata["deal"] == 7 for run in heard.runs)
    assert chain.batch([{"question": "ho"}], at()) == ["ok"]
    assert contents(kept(memory)) == ["hi", "ok", "ho", "ok"]


@pytest.mark.trap("langchain", 7, 10)
@pytest.mark.requirement("A11")
def test_a_graph_that_is_streamed_in_any_mode_keeps_what_its_agent_said(memory, caplog) -> None:
    modes: Any = ["updates", "values", "messages", "debug", ["values", "messages"], ["messages", "updates"]]
    for number, mode in enumerate(modes):
        model = says(calling(("weather", {"city": "Oslo"})), "It is wet.")
        trims = Edits(after=lambda said: [lc.RemoveMessage(id=REMOVE_ALL_MESSAGES), *said])
        agent = create_agent(model, [weather], middleware=[trims])
        chain = with_memory(agent, memory, user_id="ada", input_messages_key="messages")
        more = {"version": "v2"} if number == 2 else {"subgraphs": number % 2 == 1}
        list(chain.stream({"messages": "How is it?"}, at(), stream_mode=mode, **more))
        assert contents(kept(memory)) == ["How is it?", "", "Oslo: rain", "It is wet."] * (number + 1)
        assert len(kept(memory)[-3].tool_calls) == 1
    chain = with_memory(RunnableLambda(lambda _: ("custom", {"progress": 1})), memory, user_id="ada")
    list(chain.stream("hi", at("progress")))
    assert kept(memory, "progress") == []
    assert "nothing of it is stored" in caplog.text


def test_it_tells_its_schemas_its_fields_and_its_name(memory) -> None:
    model = Scripted().configurable_fields(name=ConfigurableField(id="model_name"))
    chain = with_memory(PROMPT | model | StrOutputParser(), memory, **KEYS)
    configurable = chain.get_config_jsonschema()["$defs"]["Configurable"]["properties"]

    assert [spec.id for spec in chain.config_specs] == ["model_name", "session_id", "user_id"]
    assert set(chain.get_input_jsonschema()["properties"]) == {"question"}
    assert chain.get_output_jsonschema()["type"] == "string"
    assert chain.OutputType is str
    assert {"session_id", "user_id"} < set(configurable)
    assert with_memory(model, memory).get_input_jsonschema()["anyOf"][0] == {"type": "string"}

    assert chain.get_name() == "RunnableWithMemory"
    assert with_memory(model, memory, name="bot").get_name() == "bot"
    assert repr(chain).startswith("RunnableWithMemory(")
