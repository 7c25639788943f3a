"""A retriever finds what its user said and is remembered by, as nodes that engines and agents can use."""

from datetime import UTC, datetime, timedelta

import pytest
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from refusals import refused
from scripted import answers

from llamaindex_memlayer import MemlayerRetriever
from memlayer_core import Message, RecallFilter, Scope, errors

AT = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


@pytest.fixture
def pets(memory):
    """What users said of their pets; both of Ada's sessions call a message `m1`."""
    for session, text in (("old", "my parrot is called Coco"), ("older", "my parrot likes nuts")):
        said = Message("user", text, id="m1", created_at=AT)
        answer = Message("assistant", "a parrot, nice", id="m2", created_at=AT + timedelta(days=1))
        memory.chat(user_id="ada", session_id=session).add_messages([said, answer])
    memory.chat(user_id="ada").remember("Ada's parrot is red.", type="profile", tags=["pets"], importance=0.8)
    memory.chat(user_id="bob", session_id="old").add("user", "my parrot is called Fred")
    memory.chat(user_id="ada", session_id="old", tenant_id="other").add("user", "my parrot is called Tom")
    memory.chat_of(Scope.alone("old")).add("user", "my parrot is called Solo")
    memory.flush()
    return memory


def found(memory, query="what is my parrot called?", **options):
    return MemlayerRetriever(memory, user_id="ada", **options).retrieve(query)


def texts(nodes):
    return [node.get_content() for node in nodes]


def where(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


@pytest.mark.trap("llamaindex", 3)
def test_messages_of_one_id_in_two_sessions_are_two_nodes_of_which_a_model_is_shown_no_id(pets):
    """The framework leaves out a second node of an id."""
    nodes = found(pets, similarity_top_k=20)
    before = [node.model_copy(deep=True) for node in nodes]
    for node in nodes:  # postprocessors of engines write into the nodes that they read
        node.node.set_content("else")
        node.node.metadata.clear()
    nodes = found(pets, similarity_top_k=20)
    assert nodes == before
    assert {"my parrot is called Coco", "my parrot likes nuts"} <= {*texts(nodes)}
    assert len({node.node_id for node in nodes}) == len(nodes)

    shown = nodes[0].get_content(MetadataMode.LLM)
    assert nodes[0].metadata["message_id"] == "m1"
    words = {"2026-05-04": True, "speaker: user": True, "m1": False, "session_id": False}
    assert {word: word in shown for word in words} == words
    assert nodes[0].get_content(MetadataMode.EMBED) == "my parrot is called Coco"
    refused(errors.InvalidMessageError, None, found, pets, QueryBundle(None))


BOTH = [MetadataFilter(key="type", value="profile"), MetadataFilter(key="session_id", value="old")]
EITHER = MetadataFilters(filters=BOTH, condition=FilterCondition.OR)
FILTERS = [
    (RecallFilter(kinds=["record"]), lambda m: m["kind"] == "record"),
    (where("session_id", "older"), lambda m: m["session_id"] == "older"),
    (where("speaker", ["user", "profile"], FilterOperator.IN), lambda m: m["speaker"] != "assistant"),
    (where("tags", "pets", FilterOperator.CONTAINS), lambda m: m["kind"] == "record"),
    (where("created_at", "2026-05-05", FilterOperator.LT), lambda m: m["created_at"] < "2026-05-05"),
    (EITHER, lambda m: m.get("type") == "profile" or m["session_id"] == "old"),
]


def test_filters_choose_among_what_is_known_of_a_node(pets):
    every = found(pets, similarity_top_k=50)
    for filters, passes in FILTERS:
        chosen = found(pets, similarity_top_k=50, filters=filters)
        assert {*texts(chosen)} == {node.get_content() for node in every if passes(node.metadata)}
        assert 0 < len(chosen) < len(every)
    assert 1 <= len(found(pets, token_limit=20, filters=where("kind", "message"))) < 4


def test_what_is_no_filter_is_refused_when_the_retriever_is_made(memory):
    for wrong in ({"kind": "record"}, "record", MetadataFilter(key="kind", value="record")):
        with pytest.raises(errors.InvalidFilterError, match="`filters` must be"):
            MemlayerRetriever(memory, user_id="ada", filters=wrong)


def test_a_query_engine_answers_from_it(pets):
    llm = answers("Coco")
    engine = RetrieverQueryEngine.from_args(MemlayerRetriever(pets, user_id="ada"), llm=llm)
    response = engine.query("what is my parrot called?")

    assert str(response) == "Coco"
    assert "my parrot is called Coco" in str(llm.last_chat_messages)
    assert "Fred" not in str(llm.last_chat_messages)
    assert response.source_nodes[0].metadata["message_id"] == "m1"
