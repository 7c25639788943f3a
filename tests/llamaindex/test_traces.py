"""What LlamaIndex's model was sent, asked afterwards."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.chat_engine import SimpleChatEngine
from scripted import answers, said

from llamaindex_memlayer import MemlayerMemory

CAT = "My cat is called Solomon."


@pytest.mark.parametrize("awaits", [False, True], ids=["chat", "achat"])
def test_an_engines_answers_have_traces(memory, session, awaits) -> None:
    past = memory.chat(user_id="ada", session_id="old")
    past.add("user", CAT, id="cat")
    memory.flush()
    llm = answers("Solomon.")
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=session)
    for question in ("What is my cat called?", "What is the name of my cat, again?"):
        asyncio.run(engine.achat(question)) if awaits else engine.chat(question)
    chat = memory.chat(user_id="ada", session_id="monday")
    found = [chat.trace(one.id) for one in reversed(chat.traces())]
    history = chat.history()
    assert [one.question_id for one in found] == [history[0].id, history[2].id]
    assert [one.answer_id for one in found] == [history[1].id, history[3].id]
    assert [one.pieces[0].message_ids for one in found] == [("cat",), ("cat",)]
    sent = "\n".join(text or "" for _, text in said(llm.last_chat_messages))
    for piece in found[-1].pieces:
        assert piece.state == "stored"
        assert (piece.text or "") in sent
    other = MemlayerMemory.from_defaults(memory, user_id="bob", session_id="monday")
    SimpleChatEngine.from_defaults(llm=llm, memory=other).chat("What is my cat called?")
    assert [one.id for one in chat.traces()] == ["trace-2", "trace-1"]
    assert CAT not in str(memory.chat(user_id="bob", session_id="monday").trace("trace-1"))
