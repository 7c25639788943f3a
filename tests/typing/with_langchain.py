"""What a program with LangChain writes. Nothing here is run: type checkers read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentState
from langchain.chat_models import init_chat_model
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime

from langchain_memlayer import (
    MemlayerChatMessageHistory,
    MemlayerConversationMemory,
    MemlayerMiddleware,
    MemlayerRetriever,
    MemlayerStore,
    RunnableWithMemory,
    create_memory_tools,
    from_core,
    reload_tool,
    to_core,
    with_memory,
)
from memlayer_core import MaxRounds, Memory, Message, RecallFilter


@dataclass
class Caller:
    user: str


def user_of(runtime: Runtime[Caller]) -> str:
    return runtime.context.user


class Bounded(MemlayerChatMessageHistory):
    """A history that refuses long messages."""

    def add_messages(self, messages: Sequence[BaseMessage], **more: Any) -> None:
        super().add_messages([one for one in messages if len(one.text) < 1000], **more)


class Quiet(MemlayerMiddleware):
    """A middleware with a hook of its own."""

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        print(len(state["messages"]))
        return None


class Friendly(MemlayerRetriever):
    greeting: str = "Found"


def agents(memory: Memory, model: BaseChatModel) -> object:
    ours = MemlayerMiddleware(memory, user_id="ada", token_limit=3000, policy=MaxRounds(4), mode="STATIC")
    agent = create_agent(model, middleware=[ours], store=MemlayerStore(memory))
    config: RunnableConfig = {"configurable": {"thread_id": "monday"}}
    state = agent.invoke({"messages": [HumanMessage("Where do I live?")]}, config)
    tools = [*create_memory_tools(memory, user_id=user_of), reload_tool(memory.chat(user_id="ada"))]
    both = MemlayerMiddleware(memory, user_id=user_of, mode="BOTH")
    of_context = create_agent(model, tools=tools, middleware=[both], context_schema=Caller)
    create_agent(model, middleware=[Quiet(memory, user_id="ada")])
    return state, of_context


def chains(memory: Memory, model: BaseChatModel) -> str:
    prompt = ChatPromptTemplate([MessagesPlaceholder("history"), ("human", "{question}")])
    bot: RunnableWithMemory = with_memory(
        prompt | model, memory, user_id="ada", input_messages_key="question", history_messages_key="history"
    )
    config: RunnableConfig = {"configurable": {"session_id": "monday"}}
    answer = bot.invoke({"question": "Where do I live?"}, config)

    def count(messages: list[BaseMessage]) -> str:
        return f"{len(messages)} messages"

    with_memory(RunnableLambda(count), memory, configurable=["user_id", "conversation_id"])
    with_memory(model, Bounded.factory(memory, user_id="ada"))
    of_theirs = RunnableWithMessageHistory(
        prompt | model,
        MemlayerChatMessageHistory.factory(memory, user_id="ada"),
        input_messages_key="question",
        history_messages_key="history",
    )
    return f"{answer} {of_theirs.invoke({'question': 'And you?'}, config)}"


async def histories(memory: Memory) -> list[str]:
    history = Bounded(memory, session_id="monday", user_id="ada", roles=["editor"])
    history.add_user_message("Hello")
    history.add_messages([HumanMessage("I live in Riga.")])
    await history.aadd_messages([HumanMessage("And I like it.")])
    prompt: list[BaseMessage] = history.context("Where?", token_limit=1000)
    classic = MemlayerConversationMemory(chat_memory=history, k=5)
    retriever = MemlayerRetriever(memory, user_id="ada", k=3, filter=RecallFilter(kinds=["record"]))
    Friendly(memory=memory, filter=lambda document: "Riga" in document.page_content)
    chosen = retriever.configurable_fields(user_id=ConfigurableField(id="user_id"))
    documents: list[Document] = await retriever.ainvoke("Riga")
    core: Message = to_core(HumanMessage("Hello"))
    return (
        [one.text for one in [*prompt, *history.messages, from_core(core)]]
        + [document.page_content for document in [*documents, *chosen.invoke("Riga")]]
        + classic.memory_variables
    )


def stores(memory: Memory) -> None:
    store = MemlayerStore(memory, user_namespace=("memories", "{user_id}"))
    store.put(("memories", "ada"), "home", {"town": "Riga"})
    for item in store.search(("memories",), query="where", filter={"town": "Riga"}, limit=3):
        print(item.key, item.value, item.score)


mini = init_chat_model("openai:gpt-5-mini")
memory_of_all = Memory.open("./memory", summarizer=mini, extractor=mini)
tools: list[BaseTool] = create_memory_tools(memory_of_all)
