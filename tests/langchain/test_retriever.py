"""The retriever finds what one user said, was told and is remembered by, and says how well it fits."""

from typing import Any

import pytest
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_memlayer import MemlayerRetriever
from memlayer_core import Memory, Message, errors
from tests.doors.test_search import WHERE, full
from tests.langchain.running import Heard

__all__ = ["full"]


class TestTheStandardOfLangChain(RetrieversIntegrationTests):
    retriever_constructor = MemlayerRetriever
    retriever_query_example = WHERE

    @pytest.fixture(autouse=True)
    def opened(self, full: Memory) -> None:
        self.full = full

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.full, "user_id": "ada"}


def test_a_filter_finds_what_passes_it_however_far_behind_it_stands(do, full) -> None:
    chat = full.chat(user_id="ada", session_id="s0")
    chat.add_messages(Message("assistant", f"Fruit grows in Lisbon, note {number}.") for number in range(30))
    chat.remember("In Lisbon grow quinces", type="semantic")
    full.flush()

    def found(wanted: Any, **more: Any) -> list[str]:
        retriever = MemlayerRetriever(full, user_id="ada", k=2, filter=wanted, **more)
        return [document.page_content for document in do(retriever, "invoke", WHERE)]

    assert found({"kind": "record"}) == ["In Lisbon grow quinces"]
    for number in range(0, 30, 5):  # as good as all the others, so most of them stand far behind
        note = f"Fruit grows in Lisbon, note {number}."
        assert found(lambda document, note=note: document.page_content == note) == [note]
        assert found(lambda document, note=note: document.page_content == note, token_limit=3) == []
    assert found({"kind": "record", "speaker": "user"}) == found({"no such field": None}) == []


def test_a_config_may_tell_the_user_and_a_trace_shows_the_search_below_its_chain(do, full) -> None:
    heard, field = Heard(), ConfigurableField(id="user_id")
    of_anybody = MemlayerRetriever(full, user_id="nobody", tags=["memory"], metadata={"step": 1})
    chain = RunnableLambda(lambda question: question) | of_anybody.configurable_fields(user_id=field)
    assert do(chain, "invoke", WHERE, {}) == []
    config = {"callbacks": [heard], "tags": ["mine"], "configurable": {"user_id": "bob"}}
    assert do(chain, "invoke", WHERE, config)[0].page_content.endswith("plums.")

    [run] = heard.of("retriever")
    assert run.given == WHERE
    assert heard.above(run) == ["RunnableSequence"]
    assert {"memory", "mine"} <= run.tags
    assert run.metadata == {**run.metadata, "step": 1, "ls_retriever_name": "memlayer"}


def test_what_no_search_can_do_is_told_to_the_caller_and_to_the_trace(do, full) -> None:
    heard = Heard()
    for query, wrong in ((7, {}), (WHERE, {"token_limit": 0, "filter": {"kind": "record"}})):
        with pytest.raises(errors.InputError):
            do(MemlayerRetriever(full, user_id="ada", **wrong), "invoke", query, {"callbacks": [heard]})
    assert heard.errors == [errors.InvalidMessageError, errors.InvalidLimitError]
