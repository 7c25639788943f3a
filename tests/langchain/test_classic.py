"""The memory of langchain-classic's chains: it tells what they need, and keeps everything."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from conftest import OURS
from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_classic.chains import ConversationChain, LLMChain
from langchain_classic.memory.buffer import ConversationBufferMemory
from langchain_classic.memory.buffer_window import ConversationBufferWindowMemory
from langchain_classic.memory.combined import CombinedMemory
from langchain_classic.memory.readonly import ReadOnlySharedMemory
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.tools import tool
from pydantic import Field, ValidationError
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerConversationMemory
from memlayer_core import Memory
from memlayer_core.errors import (
    ConfigurationError,
    InputError,
    InvalidLimitError,
    MessageTypeError,
    MissingExtraError,
    StoreClosedError,
)
from memlayer_core.seams import MaxRounds

Script = Callable[[list[BaseMessage]], AIMessage]


class Scripted(BaseChatModel):
    """A model that says what a function says, and remembers what it was shown."""

    script: Script = lambda messages: AIMessage(f"answer {len(messages)}")
    seen: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any):
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])


@pytest.fixture
def memory() -> Iterator[Memory]:
    settings = Tuned(index_delay=0.0, durability="normal")
    with Memory.in_memory(settings=settings, tokenizer="estimate") as opened:
        yield opened


@pytest.fixture
def history(memory: Memory) -> MemlayerChatMessageHistory:
    return MemlayerChatMessageHistory(memory, session_id="today", user_id="ada")


def run(chain: Any, given: Any, *, awaits: bool) -> Any:
    if not awaits:
        return chain.invoke(given)
    with blockbuster_ctx(OURS):
        return asyncio.run(chain.ainvoke(given))


both_ways = pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])


@tool
def height(of: str) -> str:
    """Tell how high a mountain is."""
    return f"{of} has 2469 metres"


# Drop-in


@pytest.mark.trap("langchain", 11)
@both_ways
def test_a_conversation_chain_remembers_and_the_history_keeps_what_was_said(history, awaits) -> None:
    model = Scripted()
    chain = ConversationChain(llm=model, memory=MemlayerConversationMemory(chat_memory=history))

    run(chain, {"input": "I am Ada."}, awaits=awaits)
    answer = run(chain, {"input": "Who am I?"}, awaits=awaits)

    assert answer["response"] == "answer 1"
    assert "Human: I am Ada.\nAI: answer 1\nHuman: Who am I?" in model.seen[-1][0].text
    assert [m.text for m in history.messages] == ["I am Ada.", "answer 1", "Who am I?", "answer 1"]


@pytest.mark.trap("langchain", 8)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory_key": "chat"},
        {"return_messages": True},
        {"human_prefix": "User", "ai_prefix": "Bot", "memory_key": "chat"},
        {"input_key": "question", "output_key": "answer"},
    ],
)
def test_a_short_conversation_is_told_as_by_the_buffer_memory(do, history, options) -> None:
    ours, theirs = (
        MemlayerConversationMemory(chat_memory=history, **options),
        ConversationBufferMemory(**options),
    )
    assert do(ours, "load_memory_variables", {}) == theirs.load_memory_variables({})

    for turn in range(3):
        said = {"question": f"question {turn}"}, {"answer": f"answer {turn}"}
        do(ours, "save_context", *said)
        theirs.save_context(*said)
        asked = {"question": "and now?"}
        assert do(ours, "load_memory_variables", asked) == theirs.load_memory_variables(asked)

    assert ours.memory_variables == theirs.memory_variables
    assert ours.buffer == theirs.buffer == asyncio.run(ours.abuffer())
    assert ours.buffer_as_str == theirs.buffer_as_str == asyncio.run(ours.abuffer_as_str())
    messages = ours.buffer_as_messages
    assert messages == theirs.buffer_as_messages == asyncio.run(ours.abuffer_as_messages())
    assert history.messages == theirs.chat_memory.messages
    do(ours, "clear")
    assert do(ours, "load_memory_variables", {}) == {ours.memory_key: [] if ours.return_messages else ""}
    assert history.messages == []


@pytest.mark.parametrize("returns", [False, True])
def test_what_a_chain_was_told_stays_so_when_its_answer_is_stored(do, history, returns) -> None:
    memory = MemlayerConversationMemory(chat_memory=history, return_messages=returns)
    told = do(memory, "load_memory_variables", {})
    do(memory, "save_context", {"input": "hi"}, {"output": "hello"})

    assert told == {"history": [] if returns else ""}
    assert do(memory, "load_memory_variables", {}) != told


@pytest.mark.requirement("L04")
@pytest.mark.parametrize("returns", [False, True])
def test_k_turns_are_told_as_by_the_window_memory_and_all_of_them_kept(do, history, returns) -> None:
    ours = MemlayerConversationMemory(chat_memory=history, k=2, return_messages=returns)
    theirs = ConversationBufferWindowMemory(k=2, return_messages=returns)
    for turn in range(5):
        said = {"input": f"question {turn}"}, {"output": f"answer {turn}"}
        do(ours, "save_context", *said)
        theirs.save_context(*said)
        assert do(ours, "load_memory_variables", {}) == theirs.load_memory_variables({})

    assert len(history.messages) == 10


@pytest.mark.trap("langchain", 17)
def test_a_window_never_parts_a_tool_call_from_its_result(history) -> None:
    """The window memory of langchain-classic cuts by messages: two turns begin with an orphaned result."""
    call = AIMessage("", tool_calls=[{"name": "height", "args": {"of": "x"}, "id": "c1"}])
    turn = [HumanMessage("How high?"), call, ToolMessage("2469", tool_call_id="c1"), AIMessage("2469 m")]
    history.add_messages([*turn, HumanMessage("Thanks"), AIMessage("Gladly")])
    theirs = ConversationBufferWindowMemory(chat_memory=history, k=2, return_messages=True)
    ours = MemlayerConversationMemory(chat_memory=history, k=2, return_messages=True)

    assert [m.type for m in theirs.buffer] == ["tool", "ai", "human", "ai"]
    assert ours.buffer == history.messages


def test_the_limits_of_the_history_hold_where_the_memory_names_none(memory) -> None:
    history = MemlayerChatMessageHistory(memory, session_id="s", policy=MaxRounds(1))
    for turn in range(3):
        history.add_messages([HumanMessage(f"q{turn}"), AIMessage(f"a{turn}")])

    assert MemlayerConversationMemory(chat_memory=history).buffer == "Human: q2\nAI: a2"
    assert MemlayerConversationMemory(chat_memory=history, k=2).buffer.startswith("Human: q1\n")


# Long conversations: the summary-buffer memory


@pytest.mark.trap("langchain", 23)
@pytest.mark.requirement("A21", "J34")
def test_it_prunes_itself_and_no_model_is_asked_while_a_chain_waits(do) -> None:
    """langchain-classic's prune pops from a list that a persistent history made for it alone: nothing goes."""
    asked: list[str] = []

    def sum_up(prompt: str) -> str:
        asked.append(prompt)
        return (
            "Ada said how many pears there are, and how many apples, one after the other, and was told. " * 2
        )

    settings = Tuned(index_delay=3600, durability="normal", max_tokens=600)
    with Memory.in_memory(settings=settings, tokenizer="estimate", summarizer=sum_up) as memory:
        history = MemlayerChatMessageHistory(memory, session_id="long", user_id="ada")
        classic = MemlayerConversationMemory(
            chat_memory=history, max_token_limit=400, return_messages=True, memory_key="chat"
        )
        for turn in range(25):
            question = f"Ada counts {turn} pears and apples " * 4
            told = do(classic, "load_memory_variables", {"input": question})["chat"]
            assert sum(memory.tokens.message(history_message) for history_message in core(told)) <= 400
            do(classic, "save_context", {"input": question}, {"output": f"That makes {turn}."})
        assert asked == []
        memory.flush(20)

        assert len(history.messages) == 50
        assert 0 < len(asked) < 25, "what left the window is summed up in steps, and each part once"
        told = do(classic, "load_memory_variables", {})["chat"]
        assert "Ada said how many pears there are" in told[0].text


def core(messages: list[BaseMessage]) -> list[Any]:
    from langchain_memlayer import to_core

    return [to_core(message) for message in messages]


TOLD = "The user counted pears in Lisbon, one after the other, and was told each time how many that makes."


@pytest.mark.trap("langchain", 23)
def test_the_summary_and_the_transcript_are_there_after_a_restart(open_at) -> None:
    settings = Tuned(index_delay=0, durability="normal", max_tokens=400)

    def opened() -> tuple[Memory, MemlayerConversationMemory]:
        memory = open_at(settings=settings, tokenizer="estimate", model=lambda _: TOLD)
        history = MemlayerChatMessageHistory(memory, session_id="long", user_id="ada")
        return memory, MemlayerConversationMemory(chat_memory=history)

    memory, classic = opened()
    for turn in range(12):
        classic.save_context(
            {"input": f"I counted {turn} pears in Lisbon. " * 5}, {"output": f"That makes {turn}."}
        )
        classic.load_memory_variables({})
    memory.flush(20)
    before = classic.load_memory_variables({})
    assert "<conversation_summary key=" in before["history"]
    memory.close()

    _, again = opened()

    assert again.load_memory_variables({}) == before
    assert len(again.chat_memory.messages) == 24


# Recall: the vector store memory


@pytest.fixture
def in_may(memory) -> None:
    for user, food in (("ada", "nuts"), ("bob", "fish")):
        chat = memory.chat(user_id=user, session_id="in-may")
        chat.add("user", f"I moved to Tokyo, and I am allergic to {food}.")
        chat.add("assistant", f"No {food} in Tokyo, noted.")


@both_ways
@pytest.mark.requirement("J15")
def test_what_was_said_in_another_session_is_recalled_for_the_input_alone(
    memory, history, in_may, awaits
) -> None:
    model = Scripted()
    chain = ConversationChain(llm=model, memory=MemlayerConversationMemory(chat_memory=history))
    run(chain, {"input": "Good morning."}, awaits=awaits)
    assert "allergic" not in model.seen[-1][0].text

    run(chain, {"input": "What should I not eat in Tokyo?"}, awaits=awaits)

    assert "] I moved to Tokyo, and I am allergic to nuts." in model.seen[-1][0].text
    assert "fish" not in model.seen[-1][0].text, "it is another user's"
    assert "allergic" not in chain.memory.buffer
    assert "allergic" not in str(history.messages)
    alone = MemlayerConversationMemory(chat_memory=MemlayerChatMessageHistory(memory, session_id="by itself"))
    assert alone.load_memory_variables({"input": "What should I not eat in Tokyo?"}) == {"history": ""}


def test_a_recalled_turn_is_told_in_a_session_in_which_nothing_was_said_yet(do, history, in_may) -> None:
    classic = MemlayerConversationMemory(chat_memory=history, return_messages=True)

    [told] = do(classic, "load_memory_variables", {"input": "What should I not eat in Tokyo?"})["history"]

    assert "allergic to nuts" in told.text


# Keys


@pytest.mark.trap("langchain", 24)
@both_ways
def test_a_chain_of_several_inputs_says_which_one_the_user_says(history, in_may, awaits) -> None:
    prompt = PromptTemplate.from_template("In {style}:\n{chat}\n{question}")
    model = Scripted()
    classic = MemlayerConversationMemory(chat_memory=history, memory_key="chat", input_key="question")
    chain = LLMChain(llm=model, prompt=prompt, memory=classic)

    run(chain, {"style": "short", "question": "What should I not eat in Tokyo?"}, awaits=awaits)

    assert "allergic to nuts" in model.seen[0][0].text
    assert [m.text for m in history.messages] == ["What should I not eat in Tokyo?", "answer 1"]


@pytest.mark.trap("langchain", 24)
@both_ways
def test_where_nobody_knows_what_the_user_says_the_chain_fails_before_its_model_is_asked(
    history, awaits
) -> None:
    """langchain-classic's memories notice several inputs when the model has been paid."""
    model = Scripted()
    classic = MemlayerConversationMemory(chat_memory=history, memory_key="chat")
    prompt = PromptTemplate.from_template("In {style}:\n{chat}\n{question}")
    chain = LLMChain(llm=model, prompt=prompt, memory=classic)

    with pytest.raises(ValueError, match="One input key expected") as raised:
        run(chain, {"style": "short", "question": "hi"}, awaits=awaits)

    assert isinstance(raised.value, InputError)
    assert "input_key" in raised.value.hint
    assert model.seen == history.messages == []


@pytest.mark.trap("langchain", 24)
@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ({"a": "hi", "b": "you"}, {"output": "yes"}, "One input key"),
        ({"a": "hi"}, {"text": "yes", "score": "1"}, "multiple output keys"),
        ({}, {"output": "yes"}, "One input key"),
    ],
)
def test_keys_that_nobody_can_tell_apart_are_refused_and_nothing_is_stored(
    do, history, inputs, outputs, says
) -> None:
    classic = MemlayerConversationMemory(chat_memory=history)

    with pytest.raises(InputError, match=says):
        do(classic, "save_context", inputs, outputs)

    assert history.messages == []


@pytest.mark.trap("langchain", 24)
@pytest.mark.parametrize("wrong", ["input_key", "output_key"])
def test_a_key_that_is_not_there_is_named(do, history, wrong) -> None:
    classic = MemlayerConversationMemory(chat_memory=history, **{wrong: "nobody"})

    with pytest.raises(InputError, match="'nobody'"):
        do(classic, "save_context", {"input": "hi"}, {"output": "yes"})

    assert history.messages == []


@pytest.mark.trap("langchain", 24)
def test_of_several_outputs_the_one_called_output_is_the_answer_as_in_langchain(do, history) -> None:
    classic = MemlayerConversationMemory(chat_memory=history)

    with pytest.warns(UserWarning, match="multiple output keys"):
        do(classic, "save_context", {"input": "hi"}, {"output": "yes", "score": "1"})

    assert classic.buffer == "Human: hi\nAI: yes"


# Messages


@pytest.mark.trap("langchain", 24)
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (HumanMessage("hi", name="ada"), [HumanMessage("hi", name="ada")]),
        (
            [SystemMessage("be kind"), HumanMessage("hi")],
            [SystemMessage("be kind"), HumanMessage("hi")],
        ),
        ([{"type": "text", "text": "hi"}], [HumanMessage([{"type": "text", "text": "hi"}])]),
    ],
)
def test_inputs_and_outputs_may_be_messages_and_are_kept_equal(do, history, given, kept) -> None:
    """langchain-classic's memories raise a ValidationError for messages, once the model has been paid."""
    classic = MemlayerConversationMemory(chat_memory=history, return_messages=True)
    answer = AIMessage("hello", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})

    do(classic, "load_memory_variables", {"input": given})
    do(classic, "save_context", {"input": given}, {"output": answer})

    assert history.messages == [*kept, answer]
    assert do(classic, "load_memory_variables", {})["history"] == [*kept, answer]


@pytest.mark.parametrize("answer", [{"text": "yes"}, 7, None, [1]])
def test_an_answer_that_is_no_text_is_refused_and_nothing_is_stored(do, history, answer) -> None:
    classic = MemlayerConversationMemory(chat_memory=history)

    with pytest.raises(MessageTypeError, match="output"):
        do(classic, "save_context", {"input": "hi"}, {"output": answer})

    assert history.messages == []


@pytest.mark.parametrize(
    ("given", "name"), [(("hi", {"output": "ho"}), "inputs"), (({"input": "hi"}, "ho"), "outputs")]
)
def test_what_has_no_keys_is_refused_and_nothing_is_stored(do, history, given, name) -> None:
    classic = MemlayerConversationMemory(chat_memory=history)

    with pytest.raises(MessageTypeError, match=f"`{name}` must be a mapping"):
        do(classic, "save_context", *given)

    assert history.messages == []


# Agents


def asks_once(messages: list[BaseMessage]) -> AIMessage:
    """Call the tool for a question, and answer with its result."""
    if isinstance(messages[-1], ToolMessage):
        return AIMessage(f"It says: {messages[-1].text}")
    calls = [{"name": "height", "args": {"of": name}, "id": f"{len(messages)}-{name}"} for name in "ab"]
    return AIMessage("", tool_calls=calls)


@pytest.mark.trap("langchain", 10)
@both_ways
@pytest.mark.parametrize("steps", [True, False], ids=["with steps", "answers alone"])
def test_an_agent_executor_remembers_with_its_tool_calls_if_it_returns_them(history, awaits, steps) -> None:
    """Tool calls are lost where a memory stores an agent's output alone."""
    model = Scripted(script=asks_once)
    prompt = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("chat"), ("human", "{input}"), MessagesPlaceholder("agent_scratchpad")]
    )
    agent = create_tool_calling_agent(model, [height], prompt)
    executor = AgentExecutor(
        agent=agent,
        tools=[height],
        return_intermediate_steps=steps,
        memory=MemlayerConversationMemory(chat_memory=history, memory_key="chat", return_messages=True),
    )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(executor, {"input": "How high?"}, awaits=awaits)
        answer = run(executor, {"input": "Again?"}, awaits=awaits)

    assert answer["output"] == "It says: b has 2469 metres"
    turn = ["human", *(["ai", "tool", "tool"] if steps else []), "ai"]
    assert [m.type for m in history.messages] == turn * 2
    assert [m.type for m in model.seen[-1]] == [*turn, "human", "ai", "tool", "tool"]
    if steps:
        asked, first, second = history.messages[1:4]
        assert [call["id"] for call in asked.tool_calls] == [first.tool_call_id, second.tool_call_id]


# Beside other memories, and in trouble


def test_it_stands_beside_other_memories_and_behind_a_read_only_one(history) -> None:
    classic = MemlayerConversationMemory(chat_memory=history, input_key="input")
    together = CombinedMemory(memories=[classic, ConversationBufferMemory(memory_key="x", input_key="input")])
    together.save_context({"input": "hi"}, {"output": "yes"})
    shared = ReadOnlySharedMemory(memory=classic)
    shared.save_context({"input": "not"}, {"output": "kept"})
    shared.clear()

    assert together.load_memory_variables({"input": "?"}) == dict.fromkeys(
        ["history", "x"], "Human: hi\nAI: yes"
    )
    assert shared.load_memory_variables({"input": "?"}) == {"history": "Human: hi\nAI: yes"}


@pytest.mark.trap("langchain", 19)
@both_ways
@pytest.mark.requirement("M03")
def test_a_model_that_fails_leaves_no_half_turn(history, awaits) -> None:
    def broken(_: list[BaseMessage]) -> AIMessage:
        raise TimeoutError

    chain = ConversationChain(
        llm=Scripted(script=broken), memory=MemlayerConversationMemory(chat_memory=history)
    )

    with pytest.raises(TimeoutError):
        run(chain, {"input": "hi"}, awaits=awaits)

    assert history.messages == []


@pytest.mark.trap("langchain", 2)
@both_ways
def test_chains_that_run_at_once_on_one_session_lose_no_turn(history, awaits) -> None:
    model = Scripted(script=lambda messages: AIMessage(f"to {messages[-1].text.rsplit('Human: ')[-1][:9]}"))
    chain = ConversationChain(llm=model, memory=MemlayerConversationMemory(chat_memory=history))
    asked = [{"input": f"question {number}"} for number in range(6)]

    if awaits:
        asyncio.run(chain.abatch(asked))
    else:
        chain.batch(asked)

    said = [message.text for message in history.messages]
    assert sorted(said[::2]) == [one["input"] for one in asked]
    assert all(answer.startswith("to question") for answer in said[1::2])


@pytest.mark.trap("langchain", 3)
@both_ways
def test_a_turn_that_cannot_be_stored_fails_in_the_callers_hands(memory, history, awaits) -> None:
    def closing(_: list[BaseMessage]) -> AIMessage:
        memory.close()
        return AIMessage("yes")

    chain = ConversationChain(
        llm=Scripted(script=closing), memory=MemlayerConversationMemory(chat_memory=history)
    )

    with pytest.raises(StoreClosedError):
        run(chain, {"input": "hi"}, awaits=awaits)


# Made wrongly


def test_a_model_is_given_to_the_memory_and_not_here(history) -> None:
    with pytest.raises(ConfigurationError) as raised:
        MemlayerConversationMemory(chat_memory=history, llm=Scripted())
    assert "model=llm" in raised.value.hint


@pytest.mark.parametrize("wrong", [{"k": 0}, {"max_token_limit": 0}, {"k": -1}])
def test_a_limit_below_one_is_refused_when_it_is_made(history, wrong) -> None:
    with pytest.raises(InvalidLimitError):
        MemlayerConversationMemory(chat_memory=history, **wrong)


def test_another_history_and_an_unknown_argument_are_refused(history) -> None:
    theirs = ConversationBufferMemory().chat_memory
    for wrong in ({"chat_memory": theirs}, {}, {"chat_memory": history, "max_tokens": 3}):
        with pytest.raises(ValidationError):
            MemlayerConversationMemory(**wrong)


def test_making_one_warns_of_nothing(history) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MemlayerConversationMemory(chat_memory=history)


def test_without_langchain_classic_the_line_that_installs_it_is_told(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "langchain_memlayer.classic")
    monkeypatch.setitem(sys.modules, "langchain_classic.memory.chat_memory", None)

    with pytest.raises(MissingExtraError) as raised:
        import_module("langchain_memlayer.classic")

    assert raised.value.hint == "pip install 'memlayer-core[classic]'"
