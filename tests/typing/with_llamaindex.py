"""What a program with LlamaIndex writes. Nothing here is run: type checkers read it."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.memory import Memory as FrameworkMemory
from llama_index.core.schema import NodeWithScore
from llama_index.core.tools import FunctionTool
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.core.workflow import Context

from llamaindex_memlayer import (
    MemlayerAsyncChatStore,
    MemlayerChatStore,
    MemlayerMemory,
    MemlayerMemoryBlock,
    MemlayerRetriever,
    MemlayerToolSpec,
    acall_with_retry,
    call_with_retry,
    from_core,
    reload_tool,
    to_core,
)
from memlayer_core import Memory, Message, RecallFilter


class Polite(MemlayerMemory):
    """A memory that begins each context with a greeting."""

    greeting: str = "Be polite."

    def get(self, *args: Any, **kwargs: Any) -> list[ChatMessage]:
        return [ChatMessage(self.greeting, role="system"), *super().get(*args, **kwargs)]


class Spy(MemlayerToolSpec):
    """Tools that are counted."""

    count = 0

    def to_tool_list(self, *arguments: Any, **more: Any) -> list[FunctionTool]:
        tools = super().to_tool_list(*arguments, **more)
        self.count += len(tools)
        return tools


def engines(memory: Memory, llm: LLM) -> str:
    session = MemlayerMemory.from_defaults(memory, user_id="ada", session_id="monday", token_limit=3000)
    polite: Polite = Polite.from_defaults(memory, user_id="ada", greeting="Hello.")
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=session)
    SimpleChatEngine.from_defaults(llm=llm, memory=polite)
    messages: list[ChatMessage] = session.get("Where do I live?")
    session.put(ChatMessage("Hello", role="user"))
    session.set([ChatMessage("Hello", role="user")])

    def turn(memory: MemlayerMemory) -> str:
        return f"{SimpleChatEngine.from_defaults(llm=llm, memory=memory).chat('Hello')}"

    again: str = call_with_retry(session, turn)
    core: Message = to_core(messages[0])
    return f"{engine.chat('Where do I live?')} {again} {from_core(core).content}"


async def agents(memory: Memory, llm: FunctionCallingLLM) -> str:
    session = MemlayerMemory.from_defaults(memory, user_id="ada", mode="AGENT", insert_method="system")
    tools: list[FunctionTool] = [*MemlayerToolSpec(session).to_tool_list(), reload_tool(session)]
    agent = FunctionAgent(llm=llm, tools=session.tools)
    await agent.run(user_msg="Where do I live?", memory=session)
    await agent.run(user_msg="And since when?", ctx=Context(agent), memory=session)
    other = FunctionAgent(llm=llm, tools=[*tools])
    await AgentWorkflow(agents=[agent, other]).run(user_msg="Where?", memory=session)
    AgentWorkflow.from_tools_or_functions(session.tools, llm=llm)

    async def turn(memory: MemlayerMemory) -> str:
        return f"{await agent.run(user_msg='Where?', memory=memory)}"

    await session.aput(ChatMessage("Hello", role="user"))
    return f"{await acall_with_retry(session, turn)} {await session.aget('Where?')}"


async def parts(memory: Memory, embedding: BaseEmbedding) -> list[str]:
    wanted = RecallFilter(tags=["food"])
    retriever = MemlayerRetriever(memory, user_id="ada", similarity_top_k=3, filters=wanted)
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="record")])
    MemlayerRetriever(memory, user_id="ada", filters=filters)
    nodes: Sequence[NodeWithScore] = await retriever.aretrieve("nuts")
    spy = Spy(memory, user_id="ada", filter=RecallFilter(kinds=["record"]))
    block = MemlayerMemoryBlock(memory, user_id="ada")
    FrameworkMemory.from_defaults(session_id="monday", memory_blocks=[block])
    store = MemlayerChatStore(memory, user_id="ada")
    store.add_message("monday", ChatMessage("Hello", role="user"))
    later = MemlayerAsyncChatStore(memory, user_id="ada")
    await later.add_message("monday", ChatMessage("Hello", role="user"))
    Memory.in_memory(embedder=embedding)
    return [node.get_content() for node in nodes] + [str(spy.count)]


def models(llm: LLM) -> Memory:
    return Memory.open("./memory", summarizer=llm, extractor=llm)
