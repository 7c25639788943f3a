"""A session's memory keeps to LlamaIndex's contract, and tells a model what the framework's own memories get wrong."""

import asyncio

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, CompletionResponse, ImageBlock, TextBlock
from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.memory import InsertMethod
from llama_index.core.schema import QueryBundle
from llama_index.core.storage.chat_store.base_db import MessageStatus
from refusals import refused
from scripted import Library, Scripted, answers, speaking
from tuned import Tuned

from llamaindex_memlayer import MemlayerMemory, MemlayerMemoryBlock, MemlayerToolSpec
from memlayer_core import MaxRounds, Memory, errors
from memlayer_core.tools import AGENT_TOOLS
from tests.conftest import taken_out
from tests.llamaindex.conftest import calls, result, talk, texts


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
@pytest.mark.requirement("J06", "L05")
def test_what_the_prompt_has_spent_is_taken_from_the_window_and_more_is_refused(memory, do):
    session = MemlayerMemory.from_defaults(memory, user_id="ada", token_limit=400)
    session.put_messages([m for n in range(50) for m in turn(n)])

    assert len(do(session, "get", initial_token_count=300)) < len(do(session, "get"))
    assert do(session, "context", initial_token_count=300).token_limit == 100
    with pytest.raises(errors.InvalidLimitError, match=r"401 tokens.*400") as raised:
        do(session, "get", initial_token_count=401)
    assert "token_limit" in raised.value.hint
    assert isinstance(raised.value, ValueError)
    for count in (-5, "5"):
        with pytest.raises(errors.InvalidLimitError, match="initial_token_count"):
            do(session, "get", initial_token_count=count)


@pytest.mark.trap("llamaindex", 9, 16)
@pytest.mark.requirement("J11", "L07")
def test_a_question_in_any_form_recalls_the_same_users_other_sessions_and_nobody_elses(session, remembers):
    """Callers of old passed the tokens of their prompt in the place of the question; the newest stored one is asked then."""
    asked = ChatMessage("which pet do I have?")
    session.put(asked)

    forms = (None, "", "which pet?", ChatMessage("which pet?"), ChatMessage(), QueryBundle("which pet?"))
    for given in forms:
        (told,) = session.get(given, initial_token_count=3, more=1)
        assert told.role == "user"
        assert "my pet is a parrot" in told.content
        assert told.content.endswith("which pet do I have?")
        assert "ferret" not in told.content
    (told,) = session.get(5)
    assert (told, repr(told), told.model_dump()) == (asked, repr(asked), asked.model_dump())
    assert session.get_all() == [asked]


@pytest.mark.trap("llamaindex", 17, 20)
@pytest.mark.requirement("J14", "A14")
@pytest.mark.parametrize("method", [InsertMethod.SYSTEM, "user", None])
def test_a_recall_goes_where_the_method_says_and_stays_only_beside_the_question(memory, remembers, method):
    session = MemlayerMemory.from_defaults(memory, user_id="ada", insert_method=method)
    rules, picture = ChatMessage("be short", role="system"), ImageBlock(image=b"\x89PNG\xff")
    session.put(rules)
    assert session.get("") == [rules], "no question, so nothing beside the rules"
    asked = ChatMessage(blocks=[picture, TextBlock(text="which pet?")], additional_kwargs={"name": "Ada"})
    session.put(asked)

    system, user = session.get()

    in_system = method is InsertMethod.SYSTEM
    where, elsewhere = (system, user) if in_system else (user, system)
    assert "parrot" in where.content
    assert "parrot" not in elsewhere.content
    assert (user.blocks[0], len(user.blocks), user.additional_kwargs) == (picture, 2, {"name": "Ada"})
    assert system.content.startswith("be short")
    session.put(ChatMessage("a parrot", role="assistant"))
    assert ("recalled_memory" in session.get()[1].content) != in_system


@pytest.mark.trap("llamaindex", 8)
def test_an_engine_or_agent_may_make_one_from_its_own_arguments(session, memory):
    class Small(MockLLM):
        @property
        def metadata(self):
            return super().metadata.model_copy(update={"context_window": 1000})

    assert MemlayerMemory.from_defaults(llm=Small()).token_limit == 750
    assert MemlayerMemory.from_defaults(llm=Small(), token_limit=5).token_limit == 5
    first, second = (MemlayerMemory.from_defaults(chat_history=turn(1), token_limit=99) for _ in range(2))
    assert first.get_all() == second.get_all() == turn(1)
    assert first.session_id != second.session_id
    session.put_messages(turn(1))
    again = MemlayerMemory.from_defaults(memory, chat_history=[], user_id="ada", session_id="monday")
    assert again.get_all() == turn(1), "an empty history erases nothing"


@pytest.mark.trap("llamaindex", 10)
def test_an_embedding_model_of_llamaindex_and_a_tokenizer_are_used(session):
    given = {"embed_model": MockEmbedding(embed_dim=8), "tokenizer_fn": str.split}
    made = MemlayerMemory.from_defaults(**given)

    assert "MockEmbedding" in made.memory.admin.status().embedder
    assert len(made.tokenizer_fn("one two three")) == 3
    assert len(session.tokenizer_fn("")) == 0
    assert 3 <= len(session.tokenizer_fn("one two three four")) <= 6
    made.memory.close()


@pytest.mark.requirement("A13")
def test_the_mode_decides_who_looks_into_the_memory(memory):
    MemlayerMemory(memory, user_id="ada", session_id="past").put(ChatMessage("my parrot is called Coco"))
    for mode, has_tools, recalls in (("STATIC", False, True), ("AGENT", True, False), ("BOTH", True, True)):
        session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id=mode, mode=mode)
        session.put(ChatMessage(f"what is my parrot of {mode} called?"))
        told = " ".join(message.content for message in session.get())
        assert ("Coco" in told) == recalls
        assert f"what is my parrot of {mode} called?" in told
        assert [tool.metadata.name for tool in session.tools] == ([*AGENT_TOOLS] if has_tools else [])
        assert MemlayerMemory.from_dict(session.to_dict()).mode == mode

    session = MemlayerMemory.from_defaults(memory, user_id="ada")
    assert (session.mode, session.tools) == ("STATIC", [])
    assert len(MemlayerToolSpec(session).to_tool_list()) == 5, "a spec of it has tools in any mode"
    refused(errors.ConfigurationError, "unknown mode", MemlayerMemory, memory, user_id="ada", mode="static")
    with pytest.raises(errors.ConfigurationError, match="does not know `token_limits`"):
        MemlayerMemory.from_defaults(memory, user_id="ada", token_limits=100)


# Limits, and what is not kept or not told


@pytest.mark.requirement("F01")
def test_a_policy_holds_and_survives_a_dump_as_json_if_it_is_not_ones_own(memory):
    class Even:
        def allows(self, portion):
            return portion.rounds <= 2

    own = MemlayerMemory.from_defaults(memory, chat_history=talk(*"0123456789"), policy=Even())
    assert texts(own.get()) == ["6", "7", "8", "9"]
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        own.to_dict()
    session = MemlayerMemory(memory, policy=["max_messages", MaxRounds(3), MaxRounds(4)])
    again = MemlayerMemory.from_string(session.to_string())
    assert again.policy == session.to_dict()["policy"] == {"max_messages": 10, "max_rounds": 3}


# Histories that are set: engines and agents pass their own each time


@pytest.mark.trap("llamaindex", 26)
@pytest.mark.requirement("L09", "L02")
async def test_an_agent_that_is_given_a_trimmed_history_each_time_loses_and_repeats_nothing(session, memory):
    llm = speaking(lambda messages: ChatMessage(f"answer to {messages[-1].content}", role="assistant"))
    agent = FunctionAgent(llm=llm)
    history = []
    for n in range(1, 7):
        await agent.run(f"question {n}", chat_history=history[-4:], memory=session)
        history += talk(f"question {n}", f"answer to question {n}")

    assert await session.aget_all() == history
    assert await asyncio.to_thread(taken_out, session.chat) == []
    assert len(await memory.asessions(user_id="ada")) == 1


@pytest.mark.requirement("F19")
def test_a_dump_names_the_memory_that_it_goes_on_in(tmp_path, memory):
    session = MemlayerMemory.from_defaults(path=tmp_path / "old", user_id="ada", session_id="monday")
    first = session.memory
    session.put(ChatMessage("old"))
    session.set_memory(memory)
    session.put(ChatMessage("new"))

    assert texts(MemlayerMemory.from_dict(session.to_dict()).get_all()) == ["new"]
    first.close()


# What a window holds


PICTURE = ImageBlock(image=b"iVBORw0KGgo=")
SUMMARY = (
    "Ada looked for three herons in the garden, and for two, and was told each time that there are five of them; "
    "she asked for many gardens, one after the other, and the assistant looked into all of these gardens for her."
)


# What is recalled


class Noting(Scripted):
    """Notes the prompts that it completes, and which tools it is told to call."""

    def complete(self, prompt, formatted=False, **kwargs):
        self.__dict__.setdefault("prompts", []).append(prompt)
        return CompletionResponse(text=SUMMARY)

    def achat_with_tools(self, *args, tool_choice=None, **kwargs):
        self.__dict__.setdefault("chosen", []).append(tool_choice)
        return super().achat_with_tools(*args, **kwargs)


@pytest.fixture
def beside(memory, remembers):
    """Return a session whose recalled text goes behind its system message, if it has one."""
    return MemlayerMemory(memory, user_id="ada", session_id="monday", insert_method="system")


@pytest.mark.trap("llamaindex", 3, 16)
async def test_an_agent_sees_the_question_last_with_its_state_and_begins_with_a_tool_if_it_is_to(beside):
    """It looks whether the last message is the user's; a workflow writes its state into it."""

    def look(where: str) -> str:
        """Look somewhere."""
        return "a parrot"

    look_there = calls("look", where="garden")

    def reply(messages, **_):
        return ChatMessage("a parrot", role="assistant") if messages[-1].role == "tool" else look_there

    llm = Noting(response_generator=reply)
    agent = FunctionAgent(tools=[look], llm=llm, initial_tool_choice="look", streaming=False)
    agents = AgentWorkflow(agents=[agent], initial_state={"mood": "good"})
    await agents.run(user_msg="which pet do I have?", memory=beside)

    last = llm.told[0][-1]
    assert last.role == "user"
    assert "mood" in last.content
    assert "which pet do I have?" in last.content
    assert "my pet is a parrot" in str(llm.told[0])
    assert llm.__dict__["chosen"] == ["look", None]
    kept = await beside.aget_all()
    assert (kept[0], kept[-1]) == tuple(talk("which pet do I have?", "a parrot"))


@pytest.mark.trap("llamaindex", 17, 23)
def test_a_question_is_condensed_with_what_was_said_and_nothing_else(beside):
    """The engine writes roles, system messages and `additional_kwargs` into that prompt."""
    llm = Noting(response_generator=lambda *_, **__: ChatMessage("yes", role="assistant"))
    chat = CondensePlusContextChatEngine.from_defaults(
        Library(), llm=llm, memory=beside, condense_prompt="{chat_history}|{question}"
    )
    chat.chat("hello")
    chat.chat("and now?")

    assert llm.__dict__["prompts"] == ["user: hello\nassistant: yes|and now?"]


@pytest.mark.trap("llamaindex", 20)
def test_a_question_that_is_a_picture_alone_is_asked_as_it_is(beside):
    picture = ChatMessage(blocks=[PICTURE])
    beside.put(picture)

    assert beside.get() == beside.get(picture) == [picture]
    assert asyncio.run(MemlayerMemoryBlock(beside.memory, user_id="ada").aget([picture])) == ""


# What stays as it was


@pytest.mark.trap("llamaindex", 24)
def test_the_model_that_sums_up_is_given_plain_text_and_no_calls():
    """Some providers refuse calls in a talk that is sent without tools."""
    llm = answers(SUMMARY)
    quiet = Tuned(index_delay=3600, max_tokens=1000, recall_tokens=0)
    with Memory.in_memory(summarizer=llm, settings=quiet) as memory:
        session = MemlayerMemory(memory, user_id="ada", session_id="monday")
        for number in range(30):
            function = {"name": "look", "arguments": '{"where": "y"}'}
            call = {"id": f"d{number}", "type": "function", "function": function}
            asks = calls("look", f"c{number}", where="x")
            asks.additional_kwargs["tool_calls"] = [call]
            results = [result("three herons", f"c{number}"), result("two herons", f"d{number}")]
            question, answer = talk(f"are there herons in garden {number}? " * 4, "five " * 20)
            session.put_messages([question, asks, *results, answer])
        session.get()
        memory.flush(30)
        assert session.context().summary is not None

    assert {tuple(message.role.value for message in asked) for asked in llm.told} == {("system", "user")}
    prompts = [message.content for asked in llm.told for message in asked]
    assert "three herons" in prompts[1]
    assert "two herons" in prompts[1]
    for raw in ("ToolCallBlock", "tool_call", "tool_kwargs", '"function"', "c0", "d0", "None"):
        assert raw not in str(prompts)
