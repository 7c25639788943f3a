"""A chat model of LangChain that says what a script says, middleware that changes things, and short words for both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from blockbuster import blockbuster_ctx
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from tests.conftest import OURS

Script = Callable[[list[BaseMessage]], AIMessage | str]


class Scripted(BaseChatModel):
    """A model that says what a function makes of its messages, word by word in a stream, and remembers them."""

    script: Script = lambda _: "ok"
    seen: list[list[BaseMessage]] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def shown(self) -> list[str]:
        """The texts that it was shown last."""
        return texts(self.seen[-1])

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        self.tools[:] = [convert_to_openai_tool(one)["function"]["name"] for one in tools]
        return self.bind()

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append(list(messages))
        said = self.script(messages)
        answer = AIMessage(said) if isinstance(said, str) else said.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any):
        said = self._generate(messages).generations[0].message
        for at, word in enumerate(str(said.content).split(" ")):
            yield ChatGenerationChunk(message=AIMessageChunk(word if not at else f" {word}"))
        calls = [
            {"name": call["name"], "args": json.dumps(call["args"]), "id": call["id"], "index": at}
            for at, call in enumerate(said.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))


def then(*answers: AIMessage | str | Exception) -> Script:
    """Say one thing after the other, or fail."""
    left = iter(answers)

    def say(_: list[BaseMessage]) -> AIMessage | str:
        if isinstance(answer := next(left), Exception):
            raise answer
        return answer

    return say


def says(*answers: AIMessage | str) -> Scripted:
    """Return a model that says one thing after the other."""
    return Scripted(script=then(*answers))


def calling(*calls: tuple[str, dict[str, Any]], text: str = "", first: int = 0) -> AIMessage:
    """Return an answer that calls tools."""
    made = [{"name": name, "args": args, "id": f"c{at}"} for at, (name, args) in enumerate(calls, first)]
    return AIMessage(text, tool_calls=made)


def texts(messages: Sequence[AnyMessage]) -> list[str]:
    return [message.text for message in messages]


def contents(messages: Sequence[BaseMessage]) -> list[Any]:
    return [message.content for message in messages]


def kinds(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.type for message in messages]


def in_thread(thread: str = "t", **more: Any) -> dict[str, Any]:
    """Return the config of a run of an agent."""
    return {"configurable": {"thread_id": thread, **more}}


def in_session(session_id: str = "s1", **more: Any) -> dict[str, Any]:
    """Return the config of a call of a chain."""
    return {"configurable": {"session_id": session_id, **more}}


def ask(do: Any, agent: Any, said: Any, thread: str = "t", **more: Any) -> Any:
    """Run an agent with a text, or with messages of which each may be one. Returns its state."""
    given = {"messages": [HumanMessage(said)]} if isinstance(said, str) else said
    return do(agent, "invoke", given, in_thread(thread), **more)


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"{city}: rain"


VERBS = ["invoke", "stream", "ainvoke", "astream"]


def pieces(runnable: Any, verb: str, given: Any, config: Any, **more: Any) -> list[Any]:
    """Return what a runnable gives, in pieces if it is streamed; nothing may block the loop if it is awaited."""

    async def awaited() -> list[Any]:
        if verb == "ainvoke":
            return [await runnable.ainvoke(given, config, **more)]
        return [piece async for piece in runnable.astream(given, config, **more)]

    if verb == "invoke":
        return [runnable.invoke(given, config, **more)]
    if verb == "stream":
        return list(runnable.stream(given, config, **more))
    with blockbuster_ctx(OURS):
        return asyncio.run(awaited())


class Edits(AgentMiddleware):
    """Changes the state's messages before each call of the model, or after it."""

    def __init__(self, before: Any = lambda _: [], after: Any = lambda _: []) -> None:
        self._before, self._after = before, after

    def before_model(self, state, runtime):
        return {"messages": self._before(state["messages"])}

    async def abefore_model(self, state, runtime):
        return self.before_model(state, runtime)

    def after_model(self, state, runtime):
        return {"messages": self._after(state["messages"])}

    async def aafter_model(self, state, runtime):
        return self.after_model(state, runtime)


class Wraps(AgentMiddleware):
    """Changes the request of each call of the model, asks it so many times, and changes what comes of it."""

    def __init__(
        self, request: Any = lambda given: given, response: Any = lambda _, made: made, times: int = 1
    ) -> None:
        self._request, self._response, self._times = request, response, times

    def wrap_model_call(self, request, handler):
        for _ in range(self._times):
            made = handler(self._request(request))
        return self._response(request, made)

    async def awrap_model_call(self, request, handler):
        for _ in range(self._times):
            made = await handler(self._request(request))
        return self._response(request, made)


class Heard(BaseCallbackHandler):
    """Notes each run as it begins: what began, inside which, with its tags and metadata; and which errors ended some."""

    def __init__(self) -> None:
        self.runs: list[SimpleNamespace] = []
        self.errors: list[type[BaseException]] = []

    def of(self, kind: str) -> list[SimpleNamespace]:
        return [run for run in self.runs if run.kind == kind]

    def above(self, run: SimpleNamespace) -> list[str]:
        """Return the names of the runs above one, the nearest first."""
        found = [one for one in self.runs if one.id == run.parent]
        return [name for one in found for name in (one.name, *self.above(one))]

    def _begin(self, kind: str, given: object, serialized: Any, **of: Any) -> None:
        name = of.get("name") or (serialized or {}).get("name")
        more = {
            "tags": set(of["tags"] or ()),
            "metadata": of["metadata"] or {},
            "parent": of.get("parent_run_id"),
        }
        self.runs.append(SimpleNamespace(kind=kind, given=given, id=of["run_id"], name=name, **more))

    def on_chain_start(self, serialized, inputs, **of):
        self._begin("chain", inputs, serialized, **of)

    def on_chat_model_start(self, serialized, messages, **of):
        self._begin("model", "\n".join(texts(messages[0])), serialized, **of)

    def on_llm_start(self, serialized, prompts, **of):
        self._begin("model", prompts[0], serialized, **of)

    def on_retriever_start(self, serialized, query, **of):
        self._begin("retriever", query, serialized, **of)

    def on_chain_error(self, error, **of):
        self.errors.append(type(error))

    on_retriever_error = on_chain_error


def mountains(model: Scripted, **options: Any) -> Any:
    """Return an executor of langchain-classic whose model asks after two mountains, and then answers."""
    from langchain_classic.agents import AgentExecutor, create_tool_calling_agent

    @tool
    def height(of: str) -> str:
        """Tell how high a mountain is."""
        return f"{of} has 2469 metres"

    def script(messages: list[BaseMessage]) -> AIMessage | str:
        if messages[-1].type == "tool":
            return f"It says: {messages[-1].text}"
        return calling(*(("height", {"of": one}) for one in "ab"), first=2 * len(messages))

    model.script, model.disable_streaming = script, True
    prompt = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("history"), ("human", "{question}"), MessagesPlaceholder("agent_scratchpad")]
    )
    agent = create_tool_calling_agent(model, [height], prompt)
    return AgentExecutor(agent=agent, tools=[height], **options)
