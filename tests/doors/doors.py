"""The doors of both frameworks to a memory, each asked in the same words."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms import types as llama
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.tools.calling import acall_tool, call_tool
from promises import IMAGE, Line, arguments, places
from scripted import speaking

import langchain_memlayer
import llamaindex_memlayer
from langchain_memlayer import MemlayerChatMessageHistory, MemlayerRetriever, create_memory_tools
from llamaindex_memlayer import MemlayerMemory, MemlayerToolSpec
from memlayer_core import Memory
from tests.langchain.scripted_model import Scripted, calling

ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}
MARK = {"cache_control": {"type": "ephemeral"}}
SAID, SEEN, WRITTEN = "I see. " * 3000, "heron " * 3000, {"path": "a.py", "text": "x = 1\n" * 4000}
"""Of a message, a result and a call that are too large to be told whole."""


class Door:
    """What keeps one session, as a list of messages. `add`, `context` and the like name its verbs."""

    add: str
    context: str
    clear: str
    add_temporary: str
    spellings: Sequence[str]
    previews: dict[str, Any]
    """What lets a model read large messages again."""
    takes_nameless_results = True
    rich: Sequence[Any]
    """Messages with all that the framework's messages may hold."""
    large: Sequence[Any]
    """An answer with `SAID`, whose call has `WRITTEN` as its arguments, and a result that is `SEEN`."""
    marked: Sequence[Any]
    """A question and an answer with a mark of a prompt cache."""

    def build(self, line: Line, spelling: str = "") -> Any:
        """Return a line as a message of the framework."""
        raise NotImplementedError

    def say(self, *words: str) -> list[Any]:
        """Return messages of the user and the assistant in turn."""
        return [self.message(("user", "assistant")[at % 2], word) for at, word in enumerate(words)]

    def message(self, role: str, text: str, **more: Any) -> Any:
        return self.build(Line((), role, text, **more))


class History(Door):
    """LangChain's chat history."""

    add, context, clear, add_temporary = "add_messages", "context", "clear", "add_temporary"
    to_core = staticmethod(langchain_memlayer.to_core)
    spellings = ("tool_calls", "additional_kwargs", "content blocks", "content alone", "user's results")
    previews: ClassVar = {"reload": True}
    takes_nameless_results = False
    rich = (
        SystemMessage("Be brief."),
        HumanMessage(
            [{"type": "text", "text": "Look:\ud800"}, {"type": "image_url", "image_url": {"url": "x"}}]
        ),
        AIMessage(
            "",
            tool_calls=calling(("weather", {"city": "Oslo"})).tool_calls,
            response_metadata={"model": "m"},
            usage_metadata={"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
            id="a1",
            name="bot",
        ),
        ToolMessage("cold", tool_call_id="c0", artifact={"rows": [1, 2], "raw": b"\0"}, status="error"),
        AIMessage("It is cold.", additional_kwargs={"mood": "calm"}),
    )
    large = (
        AIMessage(
            [
                {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAAA" * 90},
                {"type": "text", "text": SAID, "id": "msg"},
                {"type": "function_call", "call_id": "c0", "name": "look", "arguments": json.dumps(WRITTEN)},
            ],
            tool_calls=calling(("look", WRITTEN)).tool_calls,
            additional_kwargs={"reasoning_content": "I write it.", "signatures": {"c0": "U0lH"}},
            response_metadata={"model_provider": "openai"},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage(
            [{"type": "text", "text": SEEN, **MARK}],
            tool_call_id="c0",
            status="error",
            artifact={"rows": [1, 2]},
            additional_kwargs={"type": "computer_call_output"},
        ),
    )
    marked = (
        HumanMessage([{"type": "text", "text": "so?", **MARK}]),
        AIMessage([{"type": "text", "text": "yes"}, {"cachePoint": {"type": "ephemeral"}}]),
    )

    def open(self, memory: Memory, session_id: Any = "monday", **options: Any) -> MemlayerChatMessageHistory:
        return MemlayerChatMessageHistory(memory, session_id=session_id, **{"user_id": "ada", **options})

    def kept(self, session: MemlayerChatMessageHistory) -> list[BaseMessage]:
        """Return all that a session holds."""
        return session.messages

    def sync(self, session: MemlayerChatMessageHistory, messages: Sequence[BaseMessage]) -> None:
        """Give back what a model was told."""
        session.chat.resync([self.to_core(one) for one in messages])

    def build(self, line: Line, spelling: str = "tool_calls") -> BaseMessage:  # noqa: PLR0911  (one case a kind)
        more = {"additional_kwargs": {"model_visible": False}} if line.hidden else {}
        match line.role:
            case "user" if line.image:
                text = {"type": "text", "text": line.text}
                return HumanMessage([text, {"type": "image_url", "image_url": {"url": IMAGE}}], **more)
            case "user":
                return HumanMessage(line.text, **more)
            case "system":
                return SystemMessage(line.text)
            case "tool" if spelling == "user's results":
                said = {"type": "text", "text": line.text}
                return HumanMessage([{"type": "tool_result", "tool_use_id": line.answers, "content": [said]}])
            case "tool":
                return ToolMessage(line.text, tool_call_id=line.answers)
            case _ if not line.calls:
                return AIMessage(line.text, **more)
        calls = [{"id": call, "name": "look", "args": arguments(line)} for call in line.calls]
        if spelling == "tool_calls":
            return AIMessage(line.text, tool_calls=calls)
        if spelling == "additional_kwargs":
            function = {"name": "look", "arguments": json.dumps(arguments(line))}
            spelled = [{"id": call, "type": "function", "function": function} for call in line.calls]
            return AIMessage(line.text, additional_kwargs={"tool_calls": spelled})
        said = {"type": "text", "text": line.text}
        uses = [{"type": "tool_use", "id": one["id"], "name": "look", "input": one["args"]} for one in calls]
        return AIMessage([said, *uses], tool_calls=calls if spelling == "content blocks" else [])

    def line_of(self, message: BaseMessage) -> Line:
        """Return a message as a line."""
        blocks = message.content if isinstance(message.content, list) else []
        spelled = {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"}
        calls = {call["id"]: call["args"] for call in getattr(message, "tool_calls", ())}
        assert not (spelled and calls) or spelled == calls, "a call in the content, too, is the same call"
        results = [block for block in blocks if block["type"] == "tool_result"]
        text = str(message.text) + "".join(result["content"][0]["text"] for result in results)
        role = "tool" if results else ROLES[message.type]
        answers = results[0]["tool_use_id"] if results else getattr(message, "tool_call_id", None)
        image = any(block["type"] == "image_url" for block in blocks)
        return Line(places(text), role, text, tuple(calls or spelled), answers, image)


class Session(Door):
    """LlamaIndex's memory."""

    add, context, clear, add_temporary = "put_messages", "get", "reset", "put_temporary"
    to_core = staticmethod(llamaindex_memlayer.to_core)
    spellings = ("blocks", "additional_kwargs")
    previews: ClassVar = {"mode": "BOTH"}
    rich = (
        ChatMessage("Be brief.", role="system"),
        ChatMessage(blocks=[TextBlock(text="Look:\ud800"), ImageBlock(image=b"\x89PNG\xff")]),
        ChatMessage(
            role="assistant",
            blocks=[
                llama.ThinkingBlock(content="hm", num_tokens=7),
                ToolCallBlock(tool_call_id="c0", tool_name="weather", tool_kwargs={"city": "Oslo"}),
            ],
            additional_kwargs={"mood": "calm"},
        ),
        ChatMessage("cold", role="tool", additional_kwargs={"tool_call_id": "c0", "name": "weather"}),
    )
    large = (
        ChatMessage(
            role="assistant",
            blocks=[
                llama.ThinkingBlock(
                    content="heron " * 40, additional_information={"signature": "Eq==", "of": b"\0"}
                ),
                TextBlock(text=SAID),
                ToolCallBlock(tool_call_id="c0", tool_name="look", tool_kwargs=WRITTEN),
            ],
            additional_kwargs={
                "thought_signatures": ["U0lH"],
                "tool_calls": [{"id": "c0", "function": {"name": "look", "arguments": json.dumps(WRITTEN)}}],
            },
        ),
        ChatMessage(
            role="tool",
            blocks=[TextBlock(text=SEEN), llama.CachePoint(**MARK)],
            additional_kwargs={"tool_call_id": "c0", "is_error": True},
        ),
    )
    marked = (
        ChatMessage(blocks=[TextBlock(text="so?"), llama.CachePoint(**MARK)]),
        ChatMessage("yes", role="assistant", additional_kwargs=MARK),
    )

    def open(self, memory: Memory, session_id: Any = "monday", **options: Any) -> MemlayerMemory:
        return MemlayerMemory(memory, session_id=session_id, **{"user_id": "ada", **options})

    def kept(self, session: MemlayerMemory) -> list[ChatMessage]:
        """Return all that a session holds."""
        return session.get_all()

    def sync(self, session: MemlayerMemory, messages: Sequence[ChatMessage]) -> None:
        """Give back what a model was told."""
        session.set(messages)

    def build(self, line: Line, spelling: str = "blocks") -> ChatMessage:
        blocks: list[Any] = [TextBlock(text=line.text)]
        extras: dict[str, Any] = {"model_visible": False} if line.hidden else {}
        if line.image:
            blocks.append(ImageBlock(url=IMAGE))
        if line.answers is not None:
            extras["tool_call_id"] = line.answers
        if line.calls and spelling == "blocks":
            given = {"tool_name": "look", "tool_kwargs": arguments(line)}
            blocks += [ToolCallBlock(tool_call_id=call, **given) for call in line.calls]
        elif line.calls:
            function = {"name": "look", "arguments": json.dumps(arguments(line))}
            extras["tool_calls"] = [
                {"id": call, "type": "function", "function": function} for call in line.calls
            ]
        return ChatMessage(role=line.role, blocks=blocks, additional_kwargs=extras)

    def line_of(self, message: ChatMessage) -> Line:
        """Return a message as a line."""
        extras = message.additional_kwargs
        spelled = [call["id"] for call in extras.get("tool_calls", ())]
        calls = [block.tool_call_id for block in message.blocks if isinstance(block, ToolCallBlock)]
        assert not (spelled and calls), "a call is told once"
        role, text, answers = message.role.value, message.content or "", extras.get("tool_call_id")
        image = any(isinstance(block, ImageBlock) for block in message.blocks)
        return Line(places(text), role, text, tuple(calls or spelled), answers, image)


DOORS = {"LangChain's history": History(), "LlamaIndex's memory": Session()}


# Tools and searches


Call = tuple[str, dict[str, Any]]
Reply = Callable[[list[str]], Call | str]


class LangChainKit:
    """The memory's tools and its search, as LangChain calls them."""

    door = DOORS["LangChain's history"]
    reload_tool = staticmethod(langchain_memlayer.reload_tool)

    def tools(self, source: Any, **options: Any) -> dict[str, Any]:
        return {tool.name: tool for tool in create_memory_tools(source, **options)}

    def parameters(self, tool: Any) -> dict[str, Any]:
        return tool.tool_call_schema["properties"]

    def use(self, do: Any, tool: Any, **given: Any) -> tuple[str, bool]:
        """Call a tool. Returns its answer, and whether it is an error."""
        call = {"name": tool.name, "args": given, "id": "c1", "type": "tool_call"}
        answer = do(tool, "invoke", call)
        return answer.content, answer.status == "error"

    def agent(self, do: Any, tools: list[Any], reply: Reply) -> tuple[list[str], str]:
        """Run an agent whose model says what `reply` makes of the tools' answers. Returns these, and its own."""

        def script(messages: list[BaseMessage]) -> AIMessage | str:
            results = [one.text for one in messages if one.type == "tool"]
            said = reply(results)
            return said if isinstance(said, str) else calling(said, first=len(results))

        agent = create_agent(Scripted(script=script), tools)
        *messages, last = do(agent, "invoke", {"messages": [("human", "go")]})["messages"]
        return [one.text for one in messages if one.type == "tool"], last.text

    def search(self, do: Any, memory: Memory, question: Any, limit: int = 50, **options: Any) -> list[Any]:
        """Return the texts that are found, with what is known of each."""
        found = do(MemlayerRetriever(memory, k=limit, **options), "invoke", question)
        return [(one.page_content, {**one.metadata, "id": one.id}) for one in found]


class LlamaIndexKit:
    """The memory's tools and its search, as LlamaIndex calls them."""

    door = DOORS["LlamaIndex's memory"]
    reload_tool = staticmethod(llamaindex_memlayer.reload_tool)

    def tools(self, source: Any, **options: Any) -> dict[str, Any]:
        return {tool.metadata.name: tool for tool in MemlayerToolSpec(source, **options).to_tool_list()}

    def parameters(self, tool: Any) -> dict[str, Any]:
        return tool.metadata.get_parameters_dict()["properties"]

    def use(self, do: Any, tool: Any, **given: Any) -> tuple[str, bool]:
        """Call a tool. Returns its answer, and whether it is an error."""
        answer = asyncio.run(acall_tool(tool, given)) if do.awaits else call_tool(tool, given)
        return answer.content, answer.is_error

    def agent(self, do: Any, tools: list[Any], reply: Reply) -> tuple[list[str], str]:
        """Run an agent whose model says what `reply` makes of the tools' answers. Returns these, and its own."""
        seen: list[str] = []

        def script(messages: Sequence[ChatMessage]) -> ChatMessage:
            seen[:] = [one.content or "" for one in messages if one.role == "tool"]
            said = reply(list(seen))
            if isinstance(said, str):
                return ChatMessage(said, role="assistant")
            name, given = said
            call = ToolCallBlock(tool_call_id=f"c{len(seen)}", tool_name=name, tool_kwargs=given)
            return ChatMessage(role="assistant", blocks=[call])

        async def run() -> str:
            return str(await FunctionAgent(tools=tools, llm=speaking(script), streaming=False).run("go"))

        answer = asyncio.run(run())
        return seen, answer

    def search(self, do: Any, memory: Memory, question: Any, limit: int = 50, **options: Any) -> list[Any]:
        """Return the texts that are found, with what is known of each."""
        if "filter" in options:
            options["filters"] = options.pop("filter")
        retriever = llamaindex_memlayer.MemlayerRetriever(memory, similarity_top_k=limit, **options)
        found = do(retriever, "retrieve", question)
        return [(one.get_content(), {**one.metadata, "score": one.score}) for one in found]


KITS = {"LangChain": LangChainKit(), "LlamaIndex": LlamaIndexKit()}
