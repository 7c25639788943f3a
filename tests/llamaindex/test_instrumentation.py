"""LlamaIndex's dispatcher hears what a memory does, and its spans stand around the memory's verbs."""

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from pydantic import PrivateAttr
from refusals import refused
from scripted import answers

from llamaindex_memlayer import MemlayerMemory
from llamaindex_memlayer.events import MemoryEvent, MemoryReadEvent
from memlayer_core import Memory, errors
from memlayer_core.events import MessagesIndexed, MessagesStored
from tests.llamaindex.conftest import talk


class Spans(SimpleSpanHandler):
    """Notes the memory's spans."""

    def ends(self):
        """How they ended, by verb, with their parents."""
        ways = {"done": self.completed_spans, "failed": self.dropped_spans}
        ended = [(span, end) for end, spans in ways.items() for span in spans]
        mine = [(span, end) for span, end in ended if span.id_.startswith("MemlayerMemory.")]
        return [(span.id_.partition(".")[2].partition("-")[0], end, span.parent_id) for span, end in mine]


class Heard(BaseEventHandler):
    _events: list = PrivateAttr(default_factory=list)
    _spans: Spans = PrivateAttr(default_factory=Spans)

    @property
    def spans(self):
        return self._spans

    @classmethod
    def class_name(cls):
        return "Heard"

    def handle(self, event, **kwargs):
        if isinstance(event, MemoryEvent | MemoryReadEvent):
            self._events.append(event)

    def of(self, kind):
        return [event for event in self._events if isinstance(event, kind)]

    def happened(self, kind):
        return [event for event in self.of(MemoryEvent) if isinstance(event.event, kind)]


@pytest.fixture
def heard():
    dispatcher, handler = get_dispatcher(), Heard()
    before = list(dispatcher.event_handlers), list(dispatcher.span_handlers)
    dispatcher.add_event_handler(handler)
    dispatcher.add_span_handler(handler.spans)
    yield handler
    dispatcher.event_handlers, dispatcher.span_handlers = before


def test_the_dispatcher_hears_what_is_stored_and_what_is_read(session, remembers, heard):
    session.put_messages(talk("a secret", "a secret too"))
    session.get("which pet do I have?")

    stored = heard.happened(MessagesStored)[-1]
    assert (stored.kind, stored.store_id) == ("MessagesStored", session.memory.store_id)
    assert (stored.event.session_id, stored.event.stored) == ("monday", 2)
    (read,) = heard.of(MemoryReadEvent)
    assert (read.session_id, read.namespace) == ("monday", stored.event.namespace)
    assert read.pieces == {"window": 2, "recall": 1}
    assert 0 < read.tokens <= read.token_limit == 3000
    assert "secret" not in str([event.model_dump() for event in heard._events])
    assert {event.model_dump()["class_name"] for event in heard._events} == {"MemoryEvent", "MemoryReadEvent"}


def test_each_event_is_heard_once_also_of_the_background_and_of_a_memory_a_session_goes_on_in(memory, heard):
    sessions = [MemlayerMemory.from_defaults(memory, user_id="ada", session_id=str(n)) for n in range(3)]
    for session in sessions:
        session.put(ChatMessage("x"))
    assert [event.event.session_id for event in heard.happened(MessagesStored)] == list("012")
    session.chat.remember("The user's pet is a parrot.")
    memory.flush()
    assert heard.happened(MessagesIndexed)[-1].span_id is None

    with Memory.in_memory() as other:
        session.set_memory(other)
        session.put(ChatMessage("x"))
        assert [event.store_id for event in heard.happened(MessagesStored)][3:] == [other.store_id]


def test_every_verb_has_its_span_its_events_stand_in_it_and_one_that_fails_drops_it(session, heard, do):
    for verb, given in (("put", ChatMessage("x")), ("put_messages", []), ("set", [ChatMessage("y")])):
        do(session, verb, given)
    for verb in ("get", "get_all", "reset"):
        do(session, verb)
    refused(errors.InvalidLimitError, None, do, session, "get", initial_token_count=5000)

    a = "a" if do.awaits else ""
    verbs = ["put", "put_messages", "set", "get", "get_all", "reset"]
    ends = [(verb, end) for verb, end, _ in heard.spans.ends()]
    assert ends == [*((a + verb, "done") for verb in verbs), (f"{a}get", "failed")]
    assert heard.of(MemoryReadEvent)[0].span_id.startswith(f"MemlayerMemory.{a}get-")
    assert heard.happened(MessagesStored)[0].span_id.startswith(f"MemlayerMemory.{a}put-")


async def test_an_agents_run_has_the_memory_in_its_trace(session, heard):
    await FunctionAgent(llm=answers("yes")).run(user_msg="hello", memory=session)

    assert [verb for verb, *_ in heard.spans.ends()] == ["aput", "aget", "aput_messages", "aget"]
    assert all(parent is not None for *_, parent in heard.spans.ends())


def test_a_handler_that_raises_disturbs_nothing(session, heard):
    class Raising(Heard):
        def handle(self, event, **kwargs):
            raise RuntimeError("no")

    get_dispatcher().add_event_handler(Raising())
    session.put(ChatMessage("x"))
    assert session.get_all() == [ChatMessage("x")]
