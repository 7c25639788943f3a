"""A session's memory keeps to LlamaIndex's contract, and to what its users rely on."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.memory import InsertMethod
from llama_index.core.schema import QueryBundle
from llama_index.core.storage.chat_store.base_db import MessageStatus
from scripted import speaking

from llamaindex_memlayer import MemlayerMemory
from memlayer_core.errors import (
    ConfigurationError,
    InvalidLimitError,
    InvalidScopeError,
)
from memlayer_core.seams import MaxRounds
from tests.conftest import taken_out
from tests.llamaindex.conftest import talk, texts


def turn(number, words="something"):
    return talk(f"{words} {number}", f"answer {number}")


def test_all_messages_are_active_and_none_is_archived(session, do):
    """`Memory` has two statuses, and its users ask for one of them."""
    do(session, "put_messages", turn(1))

    assert do(session, "get_all", status=MessageStatus.ACTIVE) == turn(1)
    assert do(session, "get_all", status=MessageStatus.ARCHIVED) == []
    do(session, "reset", status=MessageStatus.ARCHIVED)
    assert do(session, "get_all", status=None) == turn(1)
    do(session, "reset", status=MessageStatus.ACTIVE)
    assert do(session, "get_all") == []
    with pytest.raises(ValueError, match="gone"):
        do(session, "get_all", status="gone")


@pytest.mark.trap("llamaindex", 9, 10)
def test_what_the_prompt_has_spent_is_taken_from_the_window_and_more_is_refused(memory, do):
    session = MemlayerMemory.from_defaults(memory, user_id="ada", token_limit=400)
    do(session, "put_messages", [m for n in range(50) for m in turn(n)])

    assert len(do(session, "get", initial_token_count=300)) < len(do(session, "get"))
    assert do(session, "context", initial_token_count=300).token_limit == 100
    with pytest.raises(InvalidLimitError, match=r"401 tokens.*400") as raised:
        do(session, "get", initial_token_count=401)
    assert "token_limit" in raised.value.hint
    assert isinstance(raised.value, ValueError)
    for count in (-5, "5"):
        with pytest.raises(InvalidLimitError, match="initial_token_count"):
            do(session, "get", initial_token_count=count)


@pytest.mark.trap("llamaindex", 9)
def test_get_takes_what_engines_and_agents_pass(session, do):
    """Callers of old passed the tokens of their prompt in the place of the question."""
    do(session, "put", ChatMessage("hello"))

    asked = {"input": ChatMessage("hello"), "initial_token_count": 3, "more": 1}
    assert do(session, "get", "hello") == do(session, "get", **asked) == [ChatMessage("hello")]
    assert do(session, "get", 5) == [ChatMessage("hello")]


@pytest.mark.trap("llamaindex", 10)
def test_the_tokenizer_answers_with_something_that_has_a_length(session):
    assert len(session.tokenizer_fn("")) == 0
    assert 3 <= len(session.tokenizer_fn("one two three four")) <= 6


@pytest.mark.trap("llamaindex", 16)
@pytest.mark.requirement("J11", "L07")
@pytest.mark.parametrize(
    "given", [None, "", "which pet?", ChatMessage("which pet?"), ChatMessage(), QueryBundle("which pet?")]
)
def test_the_same_users_other_sessions_are_recalled_and_nobody_elses(session, remembers, do, given):
    """The question is given in any form, or is the newest stored one."""
    do(session, "put", ChatMessage("which pet do I have?"))

    asked = do(session, "get", given)[-1]

    assert asked.role == "user"
    assert "my pet is a parrot" in asked.content
    assert asked.content.endswith("which pet do I have?")
    assert "ferret" not in asked.content
    assert do(session, "get_all") == [ChatMessage("which pet do I have?")]


@pytest.mark.trap("llamaindex", 17)
@pytest.mark.requirement("J14", "A14")
@pytest.mark.parametrize("method", ["system", InsertMethod.SYSTEM, "user", InsertMethod.USER, None])
def test_recalled_text_goes_where_the_insert_method_says_and_stays_only_beside_the_question(
    memory, remembers, do, method
):
    session = MemlayerMemory.from_defaults(memory, user_id="ada", insert_method=method)
    picture = ImageBlock(image=b"\x89PNG\xff")
    asked = ChatMessage(blocks=[picture, TextBlock(text="which pet?")])
    do(session, "put_messages", [ChatMessage("be short", role="system"), asked])

    system, user = do(session, "get")

    in_system = method in {"system", InsertMethod.SYSTEM}
    where, elsewhere = (system, user) if in_system else (user, system)
    assert "parrot" in where.content
    assert "parrot" not in elsewhere.content
    assert user.blocks[0] == picture
    assert system.content.startswith("be short")
    do(session, "put", ChatMessage("a parrot", role="assistant"))
    assert ("recalled_memory" in do(session, "get")[1].content) != in_system


@pytest.mark.trap("llamaindex", 8)
def test_an_engine_or_agent_may_make_one_from_its_own_arguments():
    class Small(MockLLM):
        @property
        def metadata(self):
            return super().metadata.model_copy(update={"context_window": 1000})

    assert MemlayerMemory.from_defaults(llm=Small()).token_limit == 750
    assert MemlayerMemory.from_defaults(llm=Small(), token_limit=5).token_limit == 5
    assert MemlayerMemory.from_defaults(chat_history=turn(1), token_limit=99).get_all() == turn(1)


def test_an_empty_history_erases_nothing(session, memory):
    session.put_messages(turn(1))
    again = MemlayerMemory.from_defaults(memory, chat_history=[], user_id="ada", session_id="monday")

    assert again.get_all() == turn(1)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"llm": "gpt"}, ConfigurationError, "`llm` must be"),
        ({"session_id": ""}, InvalidScopeError, "session_id"),
        *(({"token_limit": limit}, InvalidLimitError, "token_limit") for limit in (0, -5, 1.5, True)),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(memory, wrong, error, says):
    """An application whose session id is missing would begin a new talk at every turn."""
    with pytest.raises(error, match=says):
        MemlayerMemory.from_defaults(memory, user_id="ada", **wrong)


def test_a_session_cannot_be_changed_under_its_memory_nor_be_kept_nowhere(session):
    with pytest.raises(ValueError, match="frozen"):
        session.session_id = "another"
    with pytest.raises(ConfigurationError, match="directory"):
        MemlayerMemory.from_defaults(path="", user_id="ada")


def test_without_a_session_id_every_memory_is_a_new_session(memory):
    made = {MemlayerMemory.from_defaults(memory).session_id for _ in range(5)}

    assert len(made) == 5


def test_an_embedding_model_of_llamaindex_and_a_tokenizer_are_used():
    session = MemlayerMemory.from_defaults(embed_model=MockEmbedding(embed_dim=8), tokenizer_fn=str.split)

    assert "MockEmbedding" in session.memory.admin.status().embedder
    assert len(session.tokenizer_fn("one two three")) == 3
    session.memory.close()


# Limits, and what is not kept or not told


def test_a_policy_of_ones_own_holds_and_is_not_dumped(memory):
    class Even:
        def allows(self, portion):
            return portion.rounds <= 2

    session = MemlayerMemory.from_defaults(memory, chat_history=talk(*"0123456789"), policy=Even())
    assert texts(session.get()) == ["6", "7", "8", "9"]
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        session.to_dict()


@pytest.mark.requirement("F01")
def test_a_policy_survives_a_dump_as_json(memory):
    session = MemlayerMemory(memory, policy=["max_messages", MaxRounds(3), MaxRounds(4)])

    again = MemlayerMemory.from_string(session.to_string())

    assert again.policy == session.to_dict()["policy"] == {"max_messages": 10, "max_rounds": 3}


# Histories that are set: engines and agents pass their own each time


def model():
    return speaking(lambda messages: ChatMessage(f"answer to {messages[-1].content}", role="assistant"))


def turns(first, last):
    return [one for n in range(first, last + 1) for one in talk(f"question {n}", f"answer to question {n}")]


def superseded(memory):
    every = (memory.chat_of(one.scope) for one in memory.sessions(user_id="ada"))
    return [some for chat in every for some in taken_out(chat)]


@pytest.mark.trap("llamaindex", 26)
@pytest.mark.requirement("L09", "L02")
async def test_an_agent_that_is_given_its_trimmed_history_each_time_loses_and_repeats_nothing(
    session, memory
):
    agent = FunctionAgent(llm=model(), tools=[])
    history = []
    for n in range(1, 7):
        await agent.run(f"question {n}", chat_history=history[-4:], memory=session)
        history += turns(n, n)

    assert await session.aget_all() == turns(1, 6)
    assert await asyncio.to_thread(superseded, memory) == []


async def test_a_question_that_is_asked_again_after_a_failure_is_kept_once(session):
    """The caller's history has no trace of the run that failed."""

    def fails(messages):
        raise ConnectionError("away")

    history = turns(1, 1)
    with pytest.raises(ConnectionError):
        await FunctionAgent(llm=speaking(fails)).run("question 2", chat_history=history, memory=session)
    await FunctionAgent(llm=model()).run("question 2", chat_history=history, memory=session)

    assert await session.aget_all() == turns(1, 2)


@pytest.mark.requirement("F19")
def test_a_dump_names_the_memory_that_it_goes_on_in(tmp_path, memory):
    session = MemlayerMemory.from_defaults(path=tmp_path / "old", user_id="ada", session_id="monday")
    first = session.memory
    session.put(ChatMessage("old"))
    session.set_memory(memory)
    session.put(ChatMessage("new"))

    assert texts(MemlayerMemory.from_dict(session.to_dict()).get_all()) == ["new"]
    first.close()
