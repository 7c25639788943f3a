"""A chat model of LangChain that says what a script says, a tool, and middleware that changes things."""

import json
from collections.abc import Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from tests.langchain.running import texts

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


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"{city}: rain"


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

    def __init__(self, request: Any = lambda one: one, response: Any = lambda _, made: made, times=1) -> None:
        self._request, self._response, self._times = request, response, times

    def wrap_model_call(self, request, handler):
        for _ in range(self._times):
            made = handler(self._request(request))
        return self._response(request, made)

    async def awrap_model_call(self, request, handler):
        for _ in range(self._times):
            made = await handler(self._request(request))
        return self._response(request, made)


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
