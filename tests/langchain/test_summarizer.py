"""memlayer writes the summaries of LangChain's own middleware: all of them, none made up, none in a user's stream."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import Any
from uuid import UUID

import pytest
from blockbuster import blockbuster_ctx
from conftest import OURS
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memlayer import create_summarizer, summarizer as home
from memlayer_core import Memory, Settings
from memlayer_core.errors import ConfigurationError, InvalidLimitError, MessageTypeError, ModelError

takes_one = pytest.mark.skipif(
    "summarizer" not in inspect.signature(SummarizationMiddleware).parameters,
    reason="before langchain 1.4.5 its middleware takes no summarizer",
)

TOLD = (
    "The user counted 40, 41 and then 42 pears in Lisbon, where 3 cats live; "
    "the assistant said each time that they are fine."
)
PREFACE = "Here is a summary of the conversation to date:\n\n"


def pending(*texts: str) -> GenericFakeChatModel:
    """Return a model that says these texts in turn, word by word where it is streamed."""
    return GenericFakeChatModel(messages=cycle([AIMessage(text) for text in texts]))


def talk(turns: int = 3) -> list[BaseMessage]:
    said: list[BaseMessage] = []
    for number in range(turns):
        said += [
            HumanMessage(f"I counted {number + 40} pears in Lisbon, where I have 3 cats. " * 8),
            AIMessage("They are fine. " * 20),
        ]
    return [*said, HumanMessage("And now?")]


@pytest.fixture
def opened() -> Iterator[Callable[..., Memory]]:
    with ExitStack() as stack:

        def open_memory(summarizer: object) -> Memory:
            settings = Settings(durability="normal")
            return stack.enter_context(Memory.in_memory(settings=settings, summarizer=summarizer))

        yield open_memory


def agent_of(memory: Memory, *, token_limit: int | None = 80, **options: Any) -> Any:
    model = pending("Good day.")
    options = {
        "trigger": ("messages", 5),
        "keep": ("messages", 1),
        "trim_tokens_to_summarize": None,
        **options,
    }
    middleware = SummarizationMiddleware(
        model, summarizer=create_summarizer(memory, token_limit=token_limit), **options
    )
    return create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())


def run(agent: Any, messages: list[BaseMessage], *, awaits: bool, **config: Any) -> list[BaseMessage]:
    given, told = {"messages": messages}, {"configurable": {"thread_id": "t"}, **config}
    if not awaits:
        return agent.invoke(given, told)["messages"]
    with blockbuster_ctx(OURS):
        return asyncio.run(agent.ainvoke(given, told))["messages"]


def both_ways(test: Any) -> Any:
    return takes_one(pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])(test))


@pytest.mark.trap("langchain", 11, 21)
@both_ways
@pytest.mark.requirement("A22")
def test_an_agents_older_messages_become_a_summary_that_the_memory_wrote(opened, awaits) -> None:
    memory = opened(pending(TOLD))

    said = run(agent_of(memory), talk(), awaits=awaits)

    assert [m.text for m in said] == [PREFACE + TOLD, "And now?", "Good day."]
    assert [cost.kind for cost in memory.admin.costs()] == ["summarize"]


def test_without_a_model_it_is_not_made() -> None:
    with Memory.in_memory() as memory, pytest.raises(ConfigurationError) as refused:
        create_summarizer(memory)
    assert "model=" in refused.value.hint


@pytest.mark.trap("langchain", 21)
@both_ways
def test_a_model_that_is_away_leaves_no_placeholder_and_loses_no_message(opened, awaits) -> None:
    """Stock summaries become an error, or a sentence that says nothing."""
    answers = [TimeoutError(), TOLD]

    def model(_: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    agent = agent_of(opened(model))
    with pytest.raises(ModelError):
        run(agent, talk(), awaits=awaits)
    kept = agent.get_state({"configurable": {"thread_id": "t"}}).values["messages"]
    assert [m.text for m in kept] == [m.text for m in talk()]
    said = run(agent, [], awaits=awaits)
    assert [m.text for m in said] == [PREFACE + TOLD, "And now?", "Good day."]


@both_ways
def test_the_next_summary_goes_on_from_the_one_before_and_takes_it_for_no_words_of_the_user(
    opened, awaits
) -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return TOLD

    memory = opened(model)
    agent = agent_of(memory)
    run(agent, talk(), awaits=awaits)
    run(agent, talk(), awaits=awaits)

    assert f"<summary_so_far>\n{TOLD}\n</summary_so_far>" in asked[1]
    assert "summary_so_far" not in asked[0].split("<conversation>")[1]
    assert all(PREFACE.strip() not in prompt for prompt in asked)


@pytest.mark.trap("langchain", 21)
@both_ways
def test_a_long_run_of_tools_is_summed_up_although_no_user_speaks_in_it(opened, awaits) -> None:
    """The stock trimming finds no question in its 4,000 tokens, and says the conversation was too long."""
    calls: list[BaseMessage] = []
    for number in range(12):
        calls.append(
            AIMessage("", tool_calls=[{"name": "count", "args": {"at": number}, "id": f"c{number}"}])
        )
        calls.append(ToolMessage(f"pears in garden {number}: many. " * 200, tool_call_id=f"c{number}"))
    said = [SystemMessage("Be kind."), HumanMessage("How many pears?"), *calls, HumanMessage("And now?")]

    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return (
            "The assistant counted the pears in twelve gardens one after the other, and found many in all of them. "
            * 2
        )

    trimmed = run(agent_of(opened(model), trim_tokens_to_summarize=4000), said[2:], awaits=awaits)
    assert "too long to summarize" in trimmed[0].text
    assert asked == []
    whole = run(agent_of(opened(model)), said, awaits=awaits)
    assert "twelve gardens" in whole[0].text
    assert all(f"garden {number}:" in " ".join(asked) for number in range(11))
    assert "Be kind." not in " ".join(asked)


@both_ways
def test_a_limit_below_one_is_told_to_who_runs_the_agent(opened, awaits) -> None:
    with pytest.raises(InvalidLimitError):
        run(agent_of(opened(pending(TOLD)), token_limit=0), talk(), awaits=awaits)


def test_it_is_not_made_without_a_memory() -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        create_summarizer(pending(TOLD))


@takes_one
@pytest.mark.parametrize("given", ["a text", [{"role": "user", "content": "x"}]])
def test_what_is_no_message_is_not_summed_up(opened, given) -> None:
    with pytest.raises(MessageTypeError):
        create_summarizer(opened(pending(TOLD)))(given)


def test_where_langchains_middleware_would_pass_it_over_it_is_not_made(opened, monkeypatch) -> None:
    class Older:
        """The middleware before langchain 1.4.5: it takes any argument, and knows nothing of summarisers."""

        def __init__(
            self, model: Any, *, trim_tokens_to_summarize: int = 4000, **deprecated: Any
        ) -> None: ...

    monkeypatch.setattr(home, "SummarizationMiddleware", Older)

    with pytest.raises(ConfigurationError) as raised:
        create_summarizer(opened(pending(TOLD)))

    assert "langchain>=1.4.5" in raised.value.hint


# Streams and traces


def chunks(agent: Any, *, awaits: bool) -> list[str]:
    given, config = {"messages": talk()}, {"configurable": {"thread_id": "t"}}

    async def astream() -> list[str]:
        return [chunk.text async for chunk, _ in agent.astream(given, config, stream_mode="messages")]

    if awaits:
        return asyncio.run(astream())
    return [chunk.text for chunk, _ in agent.stream(given, config, stream_mode="messages")]


@pytest.mark.trap("langchain", 21)
@both_ways
def test_what_a_model_writes_for_the_memory_is_in_no_users_stream(opened, awaits) -> None:
    """Summary tokens leak into streams unless the call is tagged."""
    streamed = chunks(agent_of(opened(pending(TOLD))), awaits=awaits)

    assert [text for text in streamed if text not in {"", PREFACE + TOLD}] == ["Good", " ", "day."]


@pytest.mark.trap("langchain", 21)
@takes_one
def test_nor_in_the_stream_of_events(opened) -> None:
    agent = agent_of(opened(pending(TOLD)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph calls this protocol experimental
        run = agent.stream_events({"messages": talk()}, {"configurable": {"thread_id": "t"}}, version="v3")
        streamed = [str(message.text) for message in run.messages]

    assert TOLD not in streamed
    assert "Good day." in streamed


class Trace(BaseCallbackHandler):
    """Keeps the tree of a run."""

    def __init__(self) -> None:
        self.parents: dict[UUID, UUID | None] = {}
        self.names: dict[UUID, str] = {}
        self.models: list[tuple[UUID, list[str], dict[str, Any], str]] = []

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, name=None, **kwargs):
        self.parents[run_id], self.names[run_id] = parent_run_id, name or ""

    def on_chat_model_start(
        self, serialized, messages, *, run_id, parent_run_id=None, tags=None, metadata=None, **kwargs
    ):
        self.parents[run_id] = parent_run_id
        self.models.append((run_id, tags or [], metadata or {}, messages[0][-1].text))

    def above(self, run_id: UUID) -> list[str]:
        """Return the names of the runs above one, the nearest first."""
        found = []
        while (parent := self.parents[run_id]) is not None:
            run_id = parent
            found.append(self.names[run_id])
        return found


@both_ways
def test_a_trace_shows_the_summarys_call_in_the_tree_of_the_turn_that_waits_for_it(opened, awaits) -> None:
    trace = Trace()
    agent = agent_of(opened(pending(TOLD)))

    run(agent, talk(), awaits=awaits, callbacks=[trace], tags=["mine"], metadata={"request": "r1"})

    [(summary, tags, metadata, prompt), (_, told_tags, _, _)] = trace.models
    assert "<conversation>" in prompt
    assert trace.above(summary)[0] == "memlayer_summarizer"
    assert trace.above(summary)[-1] == "LangGraph"
    assert {"nostream", "mine"} <= set(tags)
    assert "nostream" not in told_tags
    assert metadata.items() >= {"request": "r1", "lc_source": "memlayer"}.items()
