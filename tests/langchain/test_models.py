"""LangChain's models work for the memory: what they are asked in the background belongs to no user's run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import Any
from uuid import UUID

import pytest
from langchain.agents import create_agent
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.language_models import FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryByteStore
from tuned import Tuned

from langchain_memlayer import MemlayerMiddleware, MemlayerRetriever
from memlayer_core import Chat, Memory, Message
from memlayer_core.errors import EmbedderMismatchError

TOLD = (
    "The user told of Anna and of Bela, who took 2 cats to the old quarter of Lisbon, where trams are loud."
)

SHORT = Tuned(max_tokens=600, index_delay=0, durability="normal", recall_tokens=0, episodes=False)


class Heard(BaseCallbackHandler):
    """Hears what chat models are asked, and by which run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, UUID | None, set[str], dict[str, Any]]] = []

    def on_chat_model_start(
        self, serialized, messages, *, run_id, parent_run_id=None, tags=None, metadata=None, **kwargs
    ):
        self.calls.append((messages[0][0].text, parent_run_id, set(tags or ()), metadata or {}))

    def on_llm_start(
        self, serialized, prompts, *, run_id, parent_run_id=None, tags=None, metadata=None, **kwargs
    ):
        self.calls.append((prompts[0], parent_run_id, set(tags or ()), metadata or {}))

    @property
    def summaries(self) -> list[tuple[UUID | None, set[str], dict[str, Any]]]:
        return [told for said, *told in self.calls if "keep the memory of a conversation" in said]


def pending(text: str, **fields: Any) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=cycle([AIMessage(text)]), **fields)


@pytest.fixture
def opened() -> Iterator[Callable[..., Memory]]:
    with ExitStack() as stack:

        def open_memory(**options: Any) -> Memory:
            return stack.enter_context(
                Memory.in_memory(**{"settings": SHORT, "tokenizer": "estimate", **options})
            )

        yield open_memory


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


def test_a_summary_in_the_background_is_a_run_of_its_own_marked_as_the_memorys(opened) -> None:
    heard = Heard()
    memory = opened(summarizer=pending(TOLD, callbacks=[heard], tags=["cheap"], metadata={"team": "memory"}))

    assert summed_up(memory) == TOLD

    [(parent, tags, metadata)] = heard.summaries
    assert parent is None
    assert tags == {"cheap", "nostream"}
    assert metadata.items() >= {"team": "memory", "lc_source": "memlayer"}.items()


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda model, heard: model.with_config(
            callbacks=[heard], tags=["cheap"], metadata={"team": "memory"}
        ),
        lambda model, heard: (model | StrOutputParser()).with_config(
            callbacks=[heard], tags=["cheap"], metadata={"team": "memory"}
        ),
        lambda model, heard: model.with_fallbacks([model]).with_config(
            callbacks=[heard], tags=["cheap"], metadata={"team": "memory"}
        ),
    ],
    ids=["with_config", "a chain", "with_fallbacks"],
)
def test_a_configured_model_keeps_its_callbacks_tags_and_metadata(opened, wrapped) -> None:
    heard = Heard()

    assert summed_up(opened(summarizer=wrapped(pending(TOLD), heard))) == TOLD

    [(_, tags, metadata)] = heard.summaries
    assert {"cheap", "nostream"} <= tags
    assert metadata.items() >= {"team": "memory", "lc_source": "memlayer"}.items()


def test_a_model_with_retries_is_asked_again_before_anything_else_takes_its_place(opened) -> None:
    calls = []

    def once_away(_: Any) -> AIMessage:
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError
        return AIMessage(TOLD)

    retrying = RunnableLambda(once_away).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)

    assert summed_up(opened(summarizer=retrying)) == TOLD
    assert len(calls) == 2


def test_an_llm_of_plain_texts_is_marked_as_well(opened) -> None:
    heard = Heard()

    assert summed_up(opened(summarizer=FakeListLLM(responses=[TOLD], callbacks=[heard]))) == TOLD

    [(_, tags, metadata)] = heard.summaries
    assert "nostream" in tags
    assert metadata["lc_source"] == "memlayer"


@pytest.mark.trap("langchain", 21)
@pytest.mark.parametrize("awaits", [False, True], ids=["stream", "astream"])
def test_a_summary_written_while_an_agent_runs_is_neither_in_its_stream_nor_in_its_trace(
    open_at, awaits
) -> None:
    of_the_run, of_the_model = Heard(), Heard()
    before = open_at(settings=SHORT, tokenizer="estimate")
    said_much(before.chat(user_id="ada", session_id="t"))
    before.flush(10)
    before.close()
    summarizer = pending(TOLD, callbacks=[of_the_model])
    memory = open_at(
        settings=SHORT, tokenizer="estimate", summarizer=summarizer
    )  # works from within the run on

    class Waiting(GenericFakeChatModel):
        """Answers when the memory has been summed up."""

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            memory.flush(10)
            return super()._generate(*args, **kwargs)

    agent = create_agent(
        Waiting(messages=cycle([AIMessage("Good day.")])),
        middleware=[MemlayerMiddleware(memory, user_id="ada", mode="STATIC")],
    )
    given = {"messages": [("human", "And then?")]}
    config = {"configurable": {"thread_id": "t"}, "callbacks": [of_the_run]}

    async def astream() -> list[str]:
        return [chunk.text async for chunk, _ in agent.astream(given, config, stream_mode="messages")]

    if awaits:
        streamed = asyncio.run(astream())
    else:
        streamed = [chunk.text for chunk, _ in agent.stream(given, config, stream_mode="messages")]

    assert "".join(streamed) == "Good day."
    assert len(of_the_model.summaries) == 1
    assert of_the_run.summaries == []
    assert len(of_the_run.calls) == 1


# Embeddings


class Counting(Embeddings):
    """Puts fruit near fruit, and remembers which way it was asked."""

    def __init__(self, model: str = "counting-1") -> None:
        self.model = model
        self.ways: list[str] = []
        self.threads: set[threading.Thread] = set()

    def _vector(self, text: str) -> list[float]:
        fruit = any(word in text for word in ("pear", "plum", "fruit"))
        return [1.0, 0.1] if fruit else [0.1, 1.0]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.ways.append("embed_documents")
        return [self._vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.ways.append("embed_query")
        self.threads.add(threading.current_thread())
        return self._vector(text)


class Awaiting(Counting):
    async def aembed_query(self, text: str) -> list[float]:
        self.ways.append("aembed_query")
        await asyncio.sleep(0)
        return self._vector(text)


@pytest.mark.parametrize("awaits", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", [Counting, Awaiting])
def test_embeddings_of_langchain_find_by_meaning(opened, kind, awaits) -> None:
    embeddings = kind()
    memory = opened(embedder=embeddings)
    chat = memory.chat(user_id="ada")
    chat.add_messages([Message("user", "Some pears."), Message("user", "Two trams.")])
    memory.flush(10)
    retriever = MemlayerRetriever(memory, user_id="ada", k=1)

    found = asyncio.run(retriever.ainvoke("fruit")) if awaits else retriever.invoke("fruit")

    assert [document.page_content for document in found] == ["Some pears."]
    assert embeddings.ways == [
        *("embed_documents", "embed_documents"),  # the second time to measure its scale
        "aembed_query" if awaits and kind is Awaiting else "embed_query",
    ]
    assert threading.current_thread() not in embeddings.threads


def test_a_store_knows_its_model_of_embeddings_also_behind_a_cache(open_at) -> None:
    def cached(model: str) -> CacheBackedEmbeddings:
        return CacheBackedEmbeddings.from_bytes_store(
            Counting(model), InMemoryByteStore(), namespace=model, key_encoder="sha256"
        )

    memory = open_at(embedder=Counting("one"))
    memory.chat(user_id="ada").add("user", "Some pears.")
    memory.flush(10)
    memory.close()

    open_at(embedder=cached("one")).close()
    for other in (Counting("two"), cached("two"), DeterministicFakeEmbedding(size=2)):
        with pytest.raises(EmbedderMismatchError):
            open_at(embedder=other)
