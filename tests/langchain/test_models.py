"""LangChain's models work for the memory: what they are asked in the background belongs to no user's run."""

from itertools import cycle
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.stores import InMemoryByteStore
from refusals import refused
from tuned import Tuned

from langchain_memlayer import MemlayerMiddleware
from memlayer_core import Chat, Memory, Message, errors
from tests.langchain.running import Heard, in_thread, pieces
from tests.langchain.scripted_model import Scripted

TOLD = "The user told of Anna and Bela, who took 2 cats to the old quarter of Lisbon, where trams are loud."
SHORT = Tuned(max_tokens=600, index_delay=0, durability="normal", recall_tokens=0, episodes=False)
OPTIONS: dict[str, Any] = {"settings": SHORT, "tokenizer": "estimate"}


CHEAP: dict[str, Any] = {"tags": ["cheap"], "metadata": {"team": "memory"}}


def pending(**fields: Any) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=cycle([AIMessage(TOLD)]), **fields)


def summaries(heard: Heard) -> list[Any]:
    return [run for run in heard.of("model") if "keep the memory of a conversation" in run.given]


def said_much(chat: Chat) -> None:
    for name in ("Anna and Bela", "Caro"):
        said = f"{name} took 2 cats to the old quarter of Lisbon. " + "The trams are loud. " * 40
        chat.add_messages([Message("user", said), Message("assistant", "I see.")])


def summed_up(memory: Memory) -> str:
    """Let turns leave a window, and return what stands for them."""
    chat = memory.chat(user_id="ada", session_id="t")
    said_much(chat)
    chat.add("user", "And then?")
    chat.context()
    memory.flush(10)
    [summary] = chat.summary()
    return summary.text


# Chat models


WRAPPED = {
    "texts": lambda more: FakeListLLM(responses=[TOLD], **more),
    "chat": lambda more: pending(**more),
    "with_config": lambda more: pending().with_config(**more),
    "a chain": lambda more: (pending() | StrOutputParser()).with_config(**more),
    "with_fallbacks": lambda more: pending().with_fallbacks([pending()]).with_config(**more),
}


@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
def test_a_summary_in_the_background_is_a_run_of_its_own_marked_as_the_memorys(make) -> None:
    heard = Heard()
    with Memory.in_memory(**OPTIONS, summarizer=make({"callbacks": [heard], **CHEAP})) as memory:
        assert summed_up(memory) == TOLD

    [run] = summaries(heard)
    assert {"cheap", "nostream"} <= run.tags
    assert run.metadata == {**run.metadata, "team": "memory", "lc_source": "memlayer"}
    assert "memlayer" not in heard.above(run)


@pytest.mark.trap("langchain", 21)
@pytest.mark.parametrize("verb", ["stream", "astream"])
def test_a_summary_written_during_a_run_is_neither_in_its_stream_nor_in_its_trace(open_at, verb) -> None:
    of_the_run, of_the_model = Heard(), Heard()
    before = open_at(**OPTIONS)
    said_much(before.chat(user_id="ada", session_id="t"))
    before.flush(10)
    before.close()
    memory = open_at(**OPTIONS, summarizer=pending(callbacks=[of_the_model]))  # works from the run on

    def answers_late(_: Any) -> str:
        memory.flush(10)
        return "Good day."

    ours = MemlayerMiddleware(memory, user_id="ada", mode="STATIC")
    agent = create_agent(Scripted(script=answers_late), middleware=[ours])
    config = {**in_thread(), "callbacks": [of_the_run]}
    streamed = pieces(agent, verb, {"messages": [("human", "And then?")]}, config, stream_mode="messages")

    assert "".join(chunk.text for chunk, _ in streamed) == "Good day."
    assert len(summaries(of_the_model)) == 1
    assert (summaries(of_the_run), len(of_the_run.of("model"))) == ([], 1)


# Embeddings


def test_a_store_knows_its_model_of_embeddings_also_behind_a_cache(open_at) -> None:
    class Model(DeterministicFakeEmbedding):
        model: str
        size: int = 2

    def cached(model: str) -> CacheBackedEmbeddings:
        options = {"namespace": model, "key_encoder": "sha256"}
        return CacheBackedEmbeddings.from_bytes_store(Model(model=model), InMemoryByteStore(), **options)

    memory = open_at(embedder=Model(model="one"))
    memory.chat(user_id="ada").add("user", "Some pears.")
    memory.flush(10)
    memory.close()

    open_at(embedder=cached("one")).close()
    for other in (Model(model="two"), cached("two"), DeterministicFakeEmbedding(size=2)):
        refused(errors.EmbedderMismatchError, None, open_at, embedder=other)
