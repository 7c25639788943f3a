"""The memory of langchain-classic's chains: it tells what they need, and keeps everything."""

from typing import Any

import pytest
from langchain_classic.chains import ConversationChain, LLMChain
from langchain_classic.memory.buffer import ConversationBufferMemory
from langchain_classic.memory.buffer_window import ConversationBufferWindowMemory
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import PromptTemplate
from pydantic import ValidationError
from refusals import refused

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerConversationMemory, to_core, with_memory
from memlayer_core import MaxRounds, Memory, errors
from tests.conftest import PROMPT
from tests.langchain.running import contents, in_session, kinds
from tests.langchain.scripted_model import Scripted, mountains, then

HI, YES = {"input": "hi"}, {"output": "yes"}
FOOD = "What should I not eat in Tokyo?"


@pytest.fixture
def history(memory: Memory) -> MemlayerChatMessageHistory:
    return MemlayerChatMessageHistory(memory, session_id="today", user_id="ada")


@pytest.fixture
def classic(history: MemlayerChatMessageHistory) -> MemlayerConversationMemory:
    return MemlayerConversationMemory(chat_memory=history)


def talk_of(classic: MemlayerConversationMemory, script: Any = lambda _: "fine") -> ConversationChain:
    return ConversationChain(llm=Scripted(script=script), memory=classic)


def styled(classic: MemlayerConversationMemory) -> LLMChain:
    """Return a chain of two inputs."""
    prompt = PromptTemplate.from_template("In {style}:\n{history}\n{question}")
    return LLMChain(llm=Scripted(), prompt=prompt, memory=classic)


# Drop-in


@pytest.mark.trap("langchain", 11)
@pytest.mark.requirement("J15")
def test_a_chain_remembers_and_recalls_for_the_input_alone(do, memory, history, classic, in_may) -> None:
    chain = talk_of(classic)
    do(chain, "invoke", {"input": "I am Ada."})
    answer = do(chain, "invoke", {"input": FOOD})

    assert answer["response"] == "fine"
    assert f"I am Ada.\nAI: fine\nHuman: {FOOD}" in chain.llm.shown[0]
    assert "] I moved to Tokyo, and I am allergic to nuts." in chain.llm.shown[0]
    assert "fish" not in chain.llm.shown[0], "it is another user's"
    assert "allergic" not in chain.llm.seen[0][0].text + classic.buffer + str(history.messages)
    assert contents(history.messages) == ["I am Ada.", "fine", FOOD, "fine"]
    alone = MemlayerConversationMemory(chat_memory=MemlayerChatMessageHistory(memory, session_id="by itself"))
    assert do(alone, "load_memory_variables", {"input": FOOD}) == {"history": ""}


OPTIONS = [{"return_messages": True}, {"human_prefix": "User", "ai_prefix": "Bot", "memory_key": "chat"}]
OPTIONS += [{"input_key": "question", "output_key": "answer", "k": 2}, {"k": 2, "return_messages": True}]


@pytest.mark.trap("langchain", 8)
@pytest.mark.requirement("L04")
@pytest.mark.parametrize("options", OPTIONS)
def test_a_conversation_is_told_as_by_langchains_memories_and_all_of_it_kept(do, history, options) -> None:
    ours = MemlayerConversationMemory(chat_memory=history, **options)
    theirs = (ConversationBufferWindowMemory if "k" in options else ConversationBufferMemory)(**options)
    empty = do(ours, "load_memory_variables", {})
    assert empty == theirs.load_memory_variables({})

    for turn in range(4):
        said = {"question": f"question {turn}"}, {"answer": f"answer {turn}"}
        do(ours, "save_context", *said)
        theirs.save_context(*said)
        asked = {} if "k" in options else {"question": "and now?"}  # else older turns are recalled
        assert do(ours, "load_memory_variables", asked) == theirs.load_memory_variables(asked)

    assert empty == {ours.memory_key: [] if ours.return_messages else ""}, "it was told so, and stays so"
    for name in ("memory_variables", "buffer", "buffer_as_str", "buffer_as_messages"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert history.messages == theirs.chat_memory.messages
    of = {"session_id": "today", "user_id": "ada", "policy": MaxRounds(1)}
    own = MemlayerConversationMemory(chat_memory=MemlayerChatMessageHistory(history.chat.memory, **of))
    assert own.buffer == "Human: question 3\nAI: answer 3", "the history's own limit"
    do(ours, "clear")
    assert do(ours, "load_memory_variables", {}) == empty
    assert history.messages == []


# Long conversations: the summary-buffer memory


TOLD = "The user counted pears in Lisbon, one after the other, and was told each time what that makes. " * 2


@pytest.mark.trap("langchain", 23)
@pytest.mark.requirement("A21", "J34")
def test_it_prunes_itself_asks_no_model_while_a_chain_waits_and_outlives_a_restart(open_at) -> None:
    """langchain-classic's prune pops from a list that a persistent history made for it alone: nothing goes."""
    asked: list[str] = []
    settings = PROMPT.replace(index_delay=3600, max_tokens=600)
    options = {"settings": settings, "tokenizer": "estimate"}
    limits = {"max_token_limit": 400, "return_messages": True, "memory_key": "chat"}

    def opened() -> MemlayerConversationMemory:
        memory = open_at(**options, summarizer=lambda prompt: asked.append(prompt) or TOLD)
        history = MemlayerChatMessageHistory(memory, session_id="long", user_id="ada")
        return MemlayerConversationMemory(chat_memory=history, **limits)

    classic = opened()
    memory = classic.chat_memory.chat.memory
    for turn in range(25):
        question = f"I counted {turn} pears in Lisbon. " * 4
        told = classic.load_memory_variables({"input": question})["chat"]
        assert sum(memory.tokens.message(to_core(message)) for message in told) <= 400
        classic.save_context({"input": question}, {"output": f"That makes {turn}."})
    assert asked == []
    memory.flush(20)
    assert 0 < len(asked) < 25, "what left the window is summed up in steps, and each part once"
    before = classic.load_memory_variables({})
    assert TOLD.strip() in before["chat"][0].text
    memory.close()

    again = opened()
    assert (again.load_memory_variables({}), len(again.chat_memory.messages)) == (before, 50)


# Recall: the vector store memory


@pytest.fixture
def in_may(memory) -> None:
    for user, food in (("ada", "nuts"), ("bob", "fish")):
        chat = memory.chat(user_id=user, session_id="in-may")
        chat.add("user", f"I moved to Tokyo, and I am allergic to {food}.")
        chat.add("assistant", f"No {food} in Tokyo, noted.")


# Keys


@pytest.mark.trap("langchain", 24)
def test_a_chain_of_several_inputs_names_the_users_or_fails_at_once(do, history, in_may, classic) -> None:
    """langchain-classic's memories notice several inputs when the model has been paid."""
    chain, given = styled(classic), {"style": "short", "question": FOOD}
    with pytest.raises(ValueError, match="One input key expected") as raised:
        do(chain, "invoke", given)
    assert isinstance(raised.value, errors.InputError)
    assert "input_key" in raised.value.hint
    assert chain.llm.seen == history.messages == []

    chain = styled(MemlayerConversationMemory(chat_memory=history, input_key="question"))
    do(chain, "invoke", given)
    assert "allergic to nuts" in chain.llm.shown[0]
    assert contents(history.messages) == [FOOD, "ok"]


@pytest.mark.trap("langchain", 24)
def test_what_nobody_can_read_is_refused_and_nothing_is_stored(do, history) -> None:
    for keys, inputs, outputs, problem, says in (
        ({}, {"a": "hi", "b": "you"}, YES, errors.InputError, "One input key"),
        ({}, HI, {"text": "yes", "score": "1"}, errors.InputError, "multiple output keys"),
        ({"input_key": "nobody"}, HI, YES, errors.InputError, "'nobody'"),
        ({}, "hi", YES, errors.MessageTypeError, "`inputs` must be a mapping"),
        ({}, HI, {"output": {"text": "yes"}}, errors.MessageTypeError, "output"),
        ({}, HI, {"output": [1]}, errors.MessageTypeError, "output"),
    ):
        classic = MemlayerConversationMemory(chat_memory=history, **keys)
        refused(problem, says, do, classic, "save_context", inputs, outputs)
    assert history.messages == []
    with pytest.warns(UserWarning, match="multiple output keys"):  # "output" is the answer, as in LangChain
        do(classic, "save_context", HI, {**YES, "score": "1"})
    assert classic.buffer == "Human: hi\nAI: yes"


# Messages


@pytest.mark.trap("langchain", 24)
def test_inputs_and_outputs_may_be_messages_and_are_kept_equal(do, memory) -> None:
    """langchain-classic's memories raise a ValidationError for messages, once the model has been paid."""
    answer = AIMessage("hello", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})
    blocks = [{"type": "text", "text": "hi"}]
    named, both = HumanMessage("hi", name="ada"), [SystemMessage("be kind"), HumanMessage("hi")]
    for number, (given, kept) in enumerate(
        [(named, [named]), (both, both), (blocks, [HumanMessage(blocks)])]
    ):
        history = MemlayerChatMessageHistory(memory, session_id=str(number))
        classic = MemlayerConversationMemory(chat_memory=history, return_messages=True)
        do(classic, "load_memory_variables", {"input": given})
        do(classic, "save_context", {"input": given}, {"output": answer})
        assert do(classic, "load_memory_variables", {})["history"] == history.messages == [*kept, answer]


# Agents


@pytest.mark.trap("langchain", 10)
@pytest.mark.parametrize("door", ["its memory", "with_memory"])
def test_an_agent_executor_remembers_with_its_tool_calls_if_it_returns_them(do, memory, door) -> None:
    """Tool calls are lost where a memory stores an agent's output alone, and the next turn lacks what tools told."""
    for steps in (True, False):
        config = in_session(f"steps: {steps}")
        history = MemlayerChatMessageHistory(memory, user_id="ada", **config["configurable"])
        model, classic = Scripted(), MemlayerConversationMemory(chat_memory=history, return_messages=True)
        inside = {"memory": classic} if door == "its memory" else {}
        chain = mountains(model, return_intermediate_steps=steps, **inside)
        if not inside:
            keys = {"input_messages_key": "question", "history_messages_key": "history"}
            chain = with_memory(chain, memory, user_id="ada", **keys)
        do(chain, "invoke", {"question": "How high?"}, config)
        answer = do(chain, "invoke", {"question": "Again?"}, config)

        assert answer["output"] == "It says: b has 2469 metres"
        turn = ["human", *(["ai", "tool", "tool"] if steps else []), "ai"]
        assert kinds(history.messages) == turn * 2
        assert kinds(model.seen[-1]) == [*turn, "human", "ai", "tool", "tool"]
        asked = [call["id"] for one in history.messages for call in getattr(one, "tool_calls", ())]
        assert asked == [one.tool_call_id for one in history.messages if one.type == "tool"]


# Beside other memories, and in trouble


@pytest.mark.trap("langchain", 3, 19)
@pytest.mark.requirement("M03")
def test_a_failed_model_leaves_no_half_turn_and_a_failed_store_fails_it(do, memory, history, classic) -> None:
    with pytest.raises(TimeoutError):
        do(talk_of(classic, then(TimeoutError())), "invoke", HI)
    assert history.messages == []
    with pytest.raises(errors.StoreClosedError):
        do(talk_of(classic, lambda _: memory.close() or "yes"), "invoke", HI)


# Made wrongly


def test_what_it_cannot_be_made_of_is_refused(history) -> None:
    theirs = ConversationBufferMemory().chat_memory
    for wrong, problem in (
        ({"llm": Scripted()}, errors.ConfigurationError),
        ({"k": 0}, errors.InvalidLimitError),
        ({"max_token_limit": 0}, errors.InvalidLimitError),
        ({"chat_memory": theirs}, ValidationError),
        ({"max_tokens": 3}, ValidationError),
    ):
        with pytest.raises(problem):
            MemlayerConversationMemory(**{"chat_memory": history, **wrong})
