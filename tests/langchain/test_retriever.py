"""The retriever finds what one user said, was told and is remembered by, and says how well it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError
from tuned import Tuned

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerRetriever
from memlayer_core import Memory, Message, RecallFilter, errors
from tests.conftest import Colour
from tests.langchain.scripted_model import Heard

QUIET = Tuned(index_delay=3600, durability="normal")
WHERE = "Which fruit grows in Lisbon?"


def told(memory: Memory) -> None:
    """Let two users of one tenant, and one of another, speak of fruit."""
    whose = (("default", "ada", "pears"), ("default", "bob", "plums"), ("other", "ada", "figs"))
    for tenant, user, fruit in whose:
        for number in range(3):
            agent = f"agent{number}" if number else None
            chat = memory.chat(user_id=user, tenant_id=tenant, session_id=f"s{number}", agent_id=agent)
            text = f"In Lisbon garden {number} grow {fruit}."
            said = datetime(2026, 5, number + 1, tzinfo=UTC)
            chat.add("user", text, id=f"{fruit}-{number}", created_at=said, name=user)


class TestTheStandardOfLangChain(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def opened(self) -> Iterator[None]:
        with Memory.in_memory(settings=QUIET) as memory:
            told(memory)
            self.memory = memory
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MemlayerRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.memory, "user_id": "ada"}

    @property
    def retriever_query_example(self) -> str:
        return WHERE


@pytest.fixture
def full() -> Iterator[Memory]:
    with Memory.in_memory(settings=QUIET) as memory:
        told(memory)
        yield memory


@pytest.fixture
def ask(do: Colour) -> Any:
    """Return a function that asks a retriever, or what it is a part of."""

    def asked(retriever: Any, query: Any = WHERE, **config: Any) -> Any:
        return do(retriever, "invoke", query, config)

    return asked


def texts(found: list[Document]) -> list[str]:
    return [document.page_content for document in found]


def test_a_filter_finds_what_passes_it_however_far_behind_it_stands(ask, full) -> None:
    chat = full.chat(user_id="ada", session_id="s0")
    chat.add_messages(Message("assistant", f"Fruit grows in Lisbon, note {number}.") for number in range(30))
    chat.remember("In Lisbon grow quinces", type="semantic")
    full.flush()

    def found(wanted: Any) -> list[str]:
        return texts(ask(MemlayerRetriever(full, user_id="ada", k=2, filter=wanted)))

    for wanted in ({"kind": "record"}, RecallFilter(kinds=["semantic"])):
        assert found(wanted) == ["In Lisbon grow quinces"]
    for number in range(0, 30, 5):  # as good as all the others, so most of them stand far behind
        note = f"Fruit grows in Lisbon, note {number}."
        assert found(lambda document, note=note: document.page_content == note) == [note]
    assert found({"kind": "record", "speaker": "ada"}) == found({"no such field": None}) == []


def test_documents_fit_a_limit_of_tokens_which_counts_only_what_passes_a_filter(ask, full) -> None:
    found = ask(MemlayerRetriever(full, user_id="ada", token_limit=40))
    assert 0 < len(found) < 3
    assert sum(document.metadata["tokens"] for document in found) <= 40

    *_, last = ask(MemlayerRetriever(full, user_id="ada"))
    limit = last.metadata["tokens"]
    only_last = {"filter": lambda one: one.page_content == last.page_content}
    assert ask(MemlayerRetriever(full, user_id="ada", token_limit=limit - 1, **only_last)) == []
    [found] = ask(MemlayerRetriever(full, user_id="ada", token_limit=limit, **only_last))
    assert found.page_content == last.page_content


def test_the_config_of_a_run_may_tell_the_user(ask, full) -> None:
    field = ConfigurableField(id="user_id")
    of_anybody = MemlayerRetriever(full, user_id="nobody").configurable_fields(user_id=field)

    assert ask(of_anybody) == []
    assert ask(of_anybody, configurable={"user_id": "bob"})[0].id.startswith("plums")


@pytest.mark.trap("langchain", 16)
def test_of_content_that_is_a_list_the_text_is_found_and_told(ask, full) -> None:
    """Blocks that are no text have no words: `str(content)` would file an image's letters."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUINCEquince"}}
    history = MemlayerChatMessageHistory(full, session_id="photos", user_id="ada")
    history.add_messages([HumanMessage(["Our medlar tree", {"type": "text", "text": "in Sintra."}, image])])
    full.flush()

    [found] = ask(MemlayerRetriever(full, user_id="ada", k=1), "Where is the medlar tree?")
    others = ask(MemlayerRetriever(full, user_id="ada", session_id="photos"), "QUINCEquince base64")

    assert found.page_content == "Our medlar tree\nin Sintra."
    assert "base64" not in str([one.page_content for one in others])
    now = MemlayerChatMessageHistory(full, session_id="now", user_id="ada")
    now.add_messages([HumanMessage([{"type": "text", "text": "Where is the medlar tree?"}])])
    assert "medlar tree in Sintra." in now.context()[0].text, "an image costs nothing where it is not told"


@pytest.mark.trap("langchain", 22)
async def test_it_serves_many_users_at_once() -> None:
    full = await asyncio.to_thread(Memory.in_memory, settings=QUIET)
    await asyncio.to_thread(told, full)
    makers = [MemlayerRetriever(full, user_id=user, k=3) for user in ("ada", "bob")] * 5
    for at, found in enumerate(await asyncio.gather(*(one.ainvoke(WHERE) for one in makers))):
        assert {document.id.split("-")[0] for document in found} == {("pears", "plums")[at % 2]}
    await full.aclose()


def test_a_trace_shows_the_search_below_its_chain_with_tags_and_metadata(ask, full) -> None:
    heard = Heard()
    retriever = MemlayerRetriever(full, user_id="ada", k=2, tags=["memory"], metadata={"step": 1})
    chain = RunnableLambda(lambda question: question) | retriever
    ask(chain, callbacks=[heard], tags=["mine"], metadata={"request": "r1"})

    [run] = heard.of("retriever")
    assert run.given == WHERE
    assert heard.above(run) == ["RunnableSequence"]
    assert {"memory", "mine"} <= run.tags
    told = {"step": 1, "request": "r1", "ls_retriever_name": "memlayer"}
    assert run.metadata == {**run.metadata, **told}


def test_what_no_search_can_do_is_told_to_the_caller_and_to_the_trace(ask, full) -> None:
    for wrong, problem in (
        ({"k": 0}, errors.InvalidLimitError),
        ({"token_limit": 0, "filter": {"kind": "record"}}, errors.InvalidLimitError),
        ({"user_id": ""}, errors.InvalidScopeError),
    ):
        heard = Heard()
        with pytest.raises(problem):
            ask(MemlayerRetriever(full, **{"user_id": "ada", **wrong}), callbacks=[heard])
        assert heard.errors == [problem]


def test_a_question_that_is_no_text_and_a_closed_memory_are_refused(ask, full) -> None:
    retriever = MemlayerRetriever(full, user_id="ada")
    with pytest.raises(errors.InvalidMessageError):
        ask(retriever, 7)
    full.close()
    with pytest.raises(errors.StoreClosedError):
        ask(retriever)


def test_it_is_not_made_without_a_memory_and_a_user_or_a_session_or_of_a_misspelled_argument(full) -> None:
    for wrong, kind in (
        ({"user_id": None}, errors.InvalidScopeError),
        ({"memory": "./memory"}, errors.ConfigurationError),
        ({"k": "many"}, ValidationError),
        ({"roles": "cook"}, errors.InvalidRecordError),
        ({"tenant": "other"}, ValidationError),  # in the place of `tenant_id`, it would search in another one
    ):
        with pytest.raises(kind):
            MemlayerRetriever(**{"memory": full, "user_id": "ada", **wrong})
