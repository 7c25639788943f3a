"""A chain that is running may go on in another memory."""

from __future__ import annotations

import pytest
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from langchain_memlayer import MemlayerChatMessageHistory
from memlayer_core import Memory
from memlayer_core.errors import ConfigurationError, StoreClosedError

PROMPT = ChatPromptTemplate([MessagesPlaceholder("history"), ("human", "{question}")])


def texts(history: MemlayerChatMessageHistory) -> list[str]:
    return [message.text for message in history.messages]


@pytest.mark.requirement("F19")
def test_a_running_chain_goes_on_in_another_memory(memory):
    history = MemlayerChatMessageHistory(memory, session_id="monday", user_id="ada")
    told: list[int] = []
    model = RunnableLambda(lambda prompt: told.append(len(prompt.messages)) or "answer")
    chain = RunnableWithMessageHistory(
        PROMPT | model,
        lambda session_id: history,
        input_messages_key="question",
        history_messages_key="history",
    )
    config = {"configurable": {"session_id": "monday"}}
    chain.invoke({"question": "question 1"}, config)
    with Memory.in_memory() as other:
        history.set_memory(other)
        chain.invoke({"question": "question 2"}, config)
        chain.invoke({"question": "question 3"}, config)

        there = MemlayerChatMessageHistory(other, session_id="monday", user_id="ada")
        here = MemlayerChatMessageHistory(memory, session_id="monday", user_id="ada")
        assert texts(history) == texts(there) == ["question 2", "answer", "question 3", "answer"]
        assert texts(here) == ["question 1", "answer"]
        assert told == [1, 1, 3]
    with pytest.raises(StoreClosedError):
        here.set_memory(other)
    with pytest.raises(ConfigurationError, match="Memory"):
        here.set_memory("a path")
    assert texts(here) == ["question 1", "answer"]
