"""The retriever finds what one user said, was told and is remembered by, and says how well it fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError
from tuned import Tuned

from langchain_memlayer import MemlayerRetriever
from memlayer_core import Memory, Message, RecallFilter, errors
from tests.langchain.scripted_model import Heard

QUIET = Tuned(index_delay=3600, durability="normal")
WHERE = "Which fruit grows in Lisbon?"


class TestTheStandardOfLangChain(RetrieversIntegrationTests):
    retriever_constructor = MemlayerRetriever
    retriever_query_example = WHERE

    @pytest.fixture(autouse=True)
    def opened(self, full: Memory) -> None:
        self.full = full

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.full, "user_id": "ada"}


@pytest.fixture
def full() -> Iterator[Memory]:
    """Return a memory in which two users spoke of fruit."""
    with Memory.in_memory(settings=QUIET) as memory:
        for user, fruit in (("ada", "pears"), ("bob", "plums")):
            for number in range(3):
                text, name = f"In Lisbon garden {number} grow {fruit}.", f"{fruit}-{number}"
                memory.chat(user_id=user, session_id=f"s{number}").add("user", text, id=name, name=user)
        yield memory


def test_a_filter_finds_what_passes_it_however_far_behind_it_stands(do, full) -> None:
    chat = full.chat(user_id="ada", session_id="s0")
    chat.add_messages(Message("assistant", f"Fruit grows in Lisbon, note {number}.") for number in range(30))
    chat.remember("In Lisbon grow quinces", type="semantic")
    full.flush()

    def found(wanted: Any, **more: Any) -> list[str]:
        retriever = MemlayerRetriever(full, user_id="ada", k=2, filter=wanted, **more)
        return [document.page_content for document in do(retriever, "invoke", WHERE)]

    for wanted in ({"kind": "record"}, RecallFilter(kinds=["semantic"])):
        assert found(wanted) == ["In Lisbon grow quinces"]
    for number in range(0, 30, 5):  # as good as all the others, so most of them stand far behind
        note = f"Fruit grows in Lisbon, note {number}."
        assert found(lambda document, note=note: document.page_content == note) == [note]
        assert found(lambda document, note=note: document.page_content == note, token_limit=3) == []
    assert found({"kind": "record", "speaker": "ada"}) == found({"no such field": None}) == []


def test_a_config_may_tell_the_user_and_a_trace_shows_the_search_below_its_chain(do, full) -> None:
    heard, field = Heard(), ConfigurableField(id="user_id")
    of_anybody = MemlayerRetriever(full, user_id="nobody", tags=["memory"], metadata={"step": 1})
    chain = RunnableLambda(lambda question: question) | of_anybody.configurable_fields(user_id=field)
    assert do(chain, "invoke", WHERE, {}) == []
    config = {"callbacks": [heard], "tags": ["mine"], "configurable": {"user_id": "bob"}}
    assert do(chain, "invoke", WHERE, config)[0].id.startswith("plums")

    [run] = heard.of("retriever")
    assert run.given == WHERE
    assert heard.above(run) == ["RunnableSequence"]
    assert {"memory", "mine"} <= run.tags
    assert run.metadata == {**run.metadata, "step": 1, "ls_retriever_name": "memlayer"}


def test_what_no_search_can_do_is_told_to_the_caller_and_to_the_trace(do, full) -> None:
    heard = Heard()
    config = {"callbacks": [heard]}
    for query, wrong, problem in (
        (WHERE, {"token_limit": 0, "filter": {"kind": "record"}}, errors.InvalidLimitError),
        (WHERE, {"user_id": ""}, errors.InvalidScopeError),
        (7, {}, errors.InvalidMessageError),
    ):
        with pytest.raises(problem):
            do(MemlayerRetriever(full, **{"user_id": "ada", **wrong}), "invoke", query, config)
        assert heard.errors.pop() == problem


def test_it_is_not_made_of_a_misspelled_argument(full) -> None:
    # With `tenant` instead of `tenant_id`, it would search in another one.
    for wrong in ({"k": "many"}, {"tenant": "other"}):
        with pytest.raises(ValidationError):
            MemlayerRetriever(full, user_id="ada", **wrong)
