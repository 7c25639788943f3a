"""memlayer writes the summaries of LangChain's own middleware: all of them, none made up, none in a user's stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memlayer import create_summarizer, summarizer as home
from memlayer_core import Memory, Settings
from memlayer_core.errors import ConfigurationError, MessageTypeError, ModelError
from tests.langchain.scripted_model import Heard, calling, in_thread, pieces, texts

pytestmark = pytest.mark.skipif(
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
        said.append(HumanMessage(f"I counted {number + 40} pears in Lisbon, where I have 3 cats. " * 8))
        said.append(AIMessage("They are fine. " * 20))
    return [*said, HumanMessage("And now?")]


@pytest.fixture
def opened() -> Iterator[Callable[[object], Memory]]:
    with ExitStack() as stack:
        settings = Settings(durability="normal")
        yield lambda model: stack.enter_context(Memory.in_memory(settings=settings, summarizer=model))


def agent_of(memory: Memory, *, token_limit: int | None = 80, **options: Any) -> Any:
    stock = {"trigger": ("messages", 5), "keep": ("messages", 1), "trim_tokens_to_summarize": None}
    ours, model = create_summarizer(memory, token_limit=token_limit), pending("Good day.")
    middleware = SummarizationMiddleware(model, summarizer=ours, **{**stock, **options})
    return create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())


SUMMED_UP = [PREFACE + TOLD, "And now?", "Good day."]


@pytest.mark.trap("langchain", 11, 21)
@pytest.mark.requirement("A22")
def test_older_messages_become_a_summary_and_a_model_that_is_away_loses_no_message(run, opened) -> None:
    """Stock summaries become an error, or a sentence that says nothing."""
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        if len(asked) == 1:
            raise TimeoutError
        return TOLD

    memory = opened(model)
    agent = agent_of(memory)
    with pytest.raises(ModelError):
        run(agent, {"messages": talk()})
    assert texts(agent.get_state(in_thread()).values["messages"]) == texts(talk())
    assert texts(run(agent, {"messages": []})["messages"]) == SUMMED_UP
    assert [cost.kind for cost in memory.admin.costs()] == ["summarize"]

    run(agent, {"messages": talk()})
    assert f"<summary_so_far>\n{TOLD}\n</summary_so_far>" in asked[-1]
    assert "summary_so_far" not in asked[1].split("<conversation>")[1]
    assert all(PREFACE.strip() not in prompt for prompt in asked), "these are not words of the user"


@pytest.mark.trap("langchain", 21)
def test_a_long_run_of_tools_is_summed_up_although_no_user_speaks_in_it(once, opened) -> None:
    """The stock trimming finds no question in its 4,000 tokens, and says the conversation was too long."""
    calls: list[BaseMessage] = []
    for number in range(12):
        calls.append(calling(("count", {"at": number}), first=number))
        calls.append(ToolMessage(f"pears in garden {number}: many. " * 200, tool_call_id=f"c{number}"))
    said = [SystemMessage("Be kind."), HumanMessage("How many pears?"), *calls, HumanMessage("And now?")]
    told = "The assistant counted the pears in twelve gardens one by one, and found many in all of them. " * 3
    asked: list[str] = []
    whole = once(agent_of(opened(lambda prompt: asked.append(prompt) or told)), {"messages": said})[
        "messages"
    ]
    assert "twelve gardens" in whole[0].text
    assert all(f"garden {number}:" in " ".join(asked) for number in range(11))
    assert "Be kind." not in " ".join(asked)


def test_it_is_not_made_without_a_memory_a_model_and_a_middleware_that_takes_it(
    memory, opened, monkeypatch
) -> None:
    class Older:
        """The middleware before langchain 1.4.5: it takes any argument, and knows nothing of summarisers."""

        def __init__(self, model: Any, **deprecated: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="memory"):
        create_summarizer(pending(TOLD))
    with pytest.raises(ConfigurationError) as refused:
        create_summarizer(memory)
    assert "model=" in refused.value.hint
    with pytest.raises(MessageTypeError):
        create_summarizer(opened(pending(TOLD)))("a text")
    monkeypatch.setattr(home, "SummarizationMiddleware", Older)
    with pytest.raises(ConfigurationError) as raised:
        create_summarizer(opened(pending(TOLD)))
    assert "langchain>=1.4.5" in raised.value.hint


# Streams and traces


@pytest.mark.trap("langchain", 21)
@pytest.mark.parametrize("verb", ["stream", "astream"])
def test_what_a_model_writes_for_the_memory_is_in_the_turns_trace_and_in_no_users_stream(
    opened, verb
) -> None:
    """Summary tokens leak into streams unless the call is tagged."""
    heard, agent = Heard(), agent_of(opened(pending(TOLD)))
    config = {**in_thread(), "callbacks": [heard], "tags": ["mine"], "metadata": {"request": "r1"}}
    streamed = pieces(agent, verb, {"messages": talk()}, config, stream_mode="messages")
    words = [chunk.text for chunk, _ in streamed if chunk.text not in {"", PREFACE + TOLD}]
    assert words == ["Good", " ", "day."]

    summary, answer = heard.of("model")
    assert "<conversation>" in summary.given
    assert heard.above(summary)[0] == "memlayer_summarizer"
    assert heard.above(summary)[-1] == "LangGraph"
    assert {"nostream", "mine"} <= summary.tags
    assert "nostream" not in answer.tags
    assert summary.metadata == {**summary.metadata, "request": "r1", "lc_source": "memlayer"}
