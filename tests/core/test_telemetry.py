"""OpenTelemetry is told what a memory does, and by default neither what somebody said nor who."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_reader import reads
from tuned import Tuned

from examples import examples
from memlayer_core import Memory, errors
from memlayer_core.telemetry import TracedOperation

ASKS_OTHERS = True  # whose async methods an async verb awaits: tests of both

QUIET = Tuned(index_delay=0, durability="normal")
PARROT = "My parrot is called Coco."


class Told:
    """What the real SDK has been told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exporter, self.tracers = InMemorySpanExporter(), TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.application = self.tracers.get_tracer("application")
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: self.tracers)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [one for one in self.exporter.get_finished_spans() if name in {None, one.name}]

    def operations(self) -> list[ReadableSpan]:
        return [one for one in self.spans() if "memlayer.verb" in one.attributes]

    def verbs(self) -> list[str]:
        return [one.attributes["memlayer.verb"] for one in self.operations()]

    def asked(self) -> list[ReadableSpan]:
        """The calls of models."""
        return [one for one in self.spans() if one.attributes.get("gen_ai.operation.name") == "chat"]

    def everything(self) -> str:
        """All that a backend would get, as one text."""
        return "\n".join(one.to_json() for one in self.spans())


@pytest.fixture
def told(monkeypatch) -> Told:
    return Told(monkeypatch)


@pytest.fixture
def opened() -> Iterator[Callable[..., Memory]]:
    memories: list[Memory] = []

    def open_memory(*parts: str, **options: Any) -> Memory:
        changed = {"telemetry": parts} if parts else {}
        chosen = options.pop("settings", QUIET).replace(**changed)
        memories.append(Memory.in_memory(settings=chosen, **{"embedder": "hashing", **options}))
        return memories[-1]

    yield open_memory
    for one in memories:
        one.close()


NAMES = {
    "add": "create_memory",
    **dict.fromkeys(("context", "recall", "search"), "search_memory"),
    "remember": "upsert_memory",
    "revise": "update_memory",
    **dict.fromkeys(("delete_message", "clear", "forget"), "delete_memory"),
}


def test_each_verb_is_a_span_named_by_the_conventions(do, told, opened) -> None:
    memory = opened()
    chat = memory.chat(user_id="ada", session_id="monday")
    do(chat, "add", "user", PARROT)
    do(chat, "context")
    do(chat, "recall", "parrot")
    do(memory, "search", "parrot", user_id="ada")
    record = do(chat, "remember", "Coco is green.")
    do(chat, "revise", record.memory_id, text="Coco is blue.")
    do(chat, "delete_message", 0)
    do(chat, "clear")
    do(memory, "forget", "ada")
    memory.flush(30)
    operations = told.operations()
    assert dict(zip(told.verbs(), [one.name for one in operations], strict=True)) == NAMES
    for verb, one in zip(NAMES, operations, strict=True):
        assert one.attributes["gen_ai.operation.name"] == one.name
        assert one.attributes["gen_ai.memory.store.id"] == memory.admin.status().store_id
        session = None if verb in {"search", "forget"} else "monday"
        assert one.attributes.get("gen_ai.conversation.id") == session
        assert one.kind is trace.SpanKind.INTERNAL
        assert one.status.is_unset
    assert operations[0].attributes["gen_ai.memory.record.count"] == 1
    assert operations[1].attributes["memlayer.context.tokens"] > 0


def test_a_span_is_the_child_of_its_callers_span_and_the_parent_of_what_runs_inside(do, told, opened) -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        with told.application.start_as_current_span("embed"):
            return [[1.0, float(len(text))] for text in texts]

    memory = opened(embedder=embed)
    memory.chat(user_id="ada", session_id="monday").add("user", PARROT)
    memory.flush(30)
    told.exporter.clear()
    with told.application.start_as_current_span("request") as request:
        do(memory, "search", "What is my parrot called?", user_id="ada")
    (search,), embeddings = told.spans("search_memory"), told.spans("embed")
    assert search.parent.span_id == request.get_span_context().span_id
    assert embeddings
    for one in embeddings:
        assert one.parent.span_id == search.context.span_id
        assert one.context.trace_id == request.get_span_context().trace_id
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_requests_at_the_same_time_keep_their_own_traces(told, opened) -> None:
    memory = await asyncio.to_thread(opened)

    async def serve(user: str) -> None:
        chat = memory.chat(user_id=user, session_id=f"of-{user}")
        with told.application.start_as_current_span(f"request of {user}"):
            await chat.aadd("user", "Hello!")
            await chat.acontext()

    await asyncio.gather(*(serve(f"user{number}") for number in range(12)))
    requests = {one.context.span_id: one.name for one in told.spans() if one.name.startswith("request")}
    inside = [one for one in told.spans() if "gen_ai.conversation.id" in one.attributes]
    assert len(inside) == 24
    for one in inside:
        user = one.attributes["gen_ai.conversation.id"].removeprefix("of-")
        assert requests[one.parent.span_id] == f"request of {user}"


async def test_a_cancelled_verb_ends_its_span_and_leaves_no_trace_behind(told, opened, caplog) -> None:
    class Waiting(DeterministicFakeEmbedding):
        async def aembed_query(self, text: str) -> list[float]:
            await asyncio.sleep(60)

    memory = await asyncio.to_thread(opened, embedder=Waiting(size=2))
    chat = memory.chat(user_id="ada", session_id="monday")
    await chat.aadd("user", PARROT)
    await asyncio.to_thread(memory.flush, 30)
    searching = asyncio.create_task(memory.asearch("a parrot?", user_id="ada"))
    await asyncio.sleep(0.3)
    assert not told.spans("search_memory")
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    await asyncio.to_thread(memory.close)
    (search,) = told.spans("search_memory")
    assert search.attributes["error.type"] == "CancelledError"
    assert [one.message for one in caplog.records if "detach" in one.message] == []


def let_turns_leave(memory: Memory) -> None:
    """Say more turns than the window has, so that a model sums them up."""
    chat = memory.chat(user_id="ada", session_id="monday")
    for number in range(12):
        chat.add("user", f"I took train {number} to Kyoto.")
        chat.add("assistant", "Have a good journey!")
    chat.remember("Ada likes trains.")
    chat.context()
    memory.flush(30)


SMALL = QUIET.replace(max_messages=2, episodes=False)


def test_work_in_the_background_has_traces_of_its_own_and_model_calls_are_in_them(told, opened) -> None:
    memory = opened(settings=SMALL, summarizer=lambda prompt: "They spoke of trains and of journeys.")
    with told.application.start_as_current_span("request"):
        let_turns_leave(memory)
    jobs = {one.name: one for one in told.spans() if one.name.startswith("memlayer.job")}
    assert {"memlayer.job index", "memlayer.job summarize"} <= set(jobs)
    assert all(one.parent is None for one in jobs.values())
    asked = told.asked()
    assert asked
    summarizing = {one.context.span_id for one in told.spans("memlayer.job summarize")}
    for one in asked:
        assert one.kind is trace.SpanKind.CLIENT
        assert one.parent.span_id in summarizing
        assert one.attributes["memlayer.job.kind"] == "summarize"
    (cost,) = memory.admin.costs()
    assert cost.calls == len(asked)
    for kind, tokens in {"input": cost.tokens_in, "output": cost.tokens_out}.items():
        assert sum(one.attributes[f"gen_ai.usage.{kind}_tokens"] for one in asked) == tokens


def test_a_model_that_fails_is_an_error_of_its_call_and_of_its_job_is_none_of_the_users(told, opened) -> None:
    def fails(prompt: str) -> str:
        raise ConnectionError("refused: train 0 to Kyoto")

    let_turns_leave(opened(settings=QUIET.replace(max_messages=2, job_attempts=1), summarizer=fails))
    assert told.asked()
    for one in told.asked():
        assert one.attributes["error.type"] == "ModelError"
        assert one.status.status_code is trace.StatusCode.ERROR
    assert "Kyoto" not in told.everything()


def test_an_error_is_the_status_of_the_span_by_its_type_alone(do, told, opened) -> None:
    chat = opened().chat(user_id="ada", session_id="monday")
    with pytest.raises(errors.MemlayerError) as raised:
        do(chat, "delete_message", "a secret of ada")
    (span,) = told.spans("delete_memory")
    assert span.attributes["error.type"] == type(raised.value).__name__
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, None)
    assert list(span.events) == []
    assert "secret" in str(raised.value)
    assert "secret" not in told.everything()


WORDS = st.text(st.characters(categories=("Lu", "Ll", "Lo")), min_size=6, max_size=30)


def test_no_text_and_no_id_of_a_user_is_told_by_default(monkeypatch) -> None:
    @examples(10, deadline=None)
    @given(texts=st.lists(WORDS, min_size=5, max_size=5, unique=True), user=WORDS, tenant=WORDS)
    def claim(texts: list[str], user: str, tenant: str) -> None:
        marks = [f"{mark}{number}{mark}" for number, mark in enumerate([*texts, user, tenant])]
        said, answer, asked, known, changed, user, tenant = marks
        with pytest.MonkeyPatch.context() as patch:
            told, settings = Told(patch), QUIET.replace(max_messages=1)
            models = {"summarizer": lambda prompt: prompt, "extractor": reads()}
            with Memory.in_memory(settings=settings, **models) as memory:
                chat = memory.chat(user_id=user, tenant_id=tenant, session_id="monday")
                for _ in range(11):
                    chat.add("user", f"My name is {said}.", name=said)
                    chat.add("assistant", answer)
                chat.context(asked)
                memory.search(asked, user_id=user, tenant_id=tenant)
                record = chat.remember(known, tags=[known])
                chat.revise(record.memory_id, text=changed)
                with pytest.raises(errors.MemlayerError):
                    chat.delete_message(said)
                memory.flush(30)
                memory.forget(user, tenant_id=tenant, record_id=record.memory_id)
                memory.forget(user, tenant_id=tenant)
            everything = told.everything()
            assert {"context", "forget", "revise"} <= set(told.verbs())
            for mark in marks:
                assert mark not in everything
                assert json.dumps(mark)[1:-1] not in everything

    claim()


def test_texts_and_ids_are_told_when_asked_for_but_as_the_redactor_leaves_them(do, told, opened) -> None:
    redact = {"redactor": lambda text: text.replace("hunter2", "[secret]")}
    memory = opened("spans", "ids", "text", summarizer=lambda prompt: "A parrot.", **redact)
    chat = memory.chat(user_id="ada", tenant_id="acme", session_id="monday")
    do(chat, "add", "user", f"{PARROT} My password is hunter2.")
    memory.flush(30)
    friday = memory.chat(user_id="ada", tenant_id="acme", session_id="friday")
    do(friday, "context", "What is my parrot called? \ud800")
    record = do(chat, "remember", "Coco is green.")
    with pytest.raises(errors.MemlayerError) as raised:
        do(chat, "delete_message", "nothing")
    added, context, remembered, failed = told.operations()
    said = f"{PARROT} My password is [secret]."
    assert json.loads(added.attributes["gen_ai.memory.records"]) == [{"content": said}]
    assert "hunter2" not in told.everything()
    assert context.attributes["gen_ai.memory.query.text"] == "What is my parrot called? ?"
    assert "Coco" in json.loads(context.attributes["gen_ai.memory.records"])[0]["content"]
    (piece,) = json.loads(context.attributes["memlayer.context.pieces"])
    assert (piece["kind"], piece["text"]) == ("recall", said)
    assert piece["score"] > 0
    assert piece["tokens"] > 0
    assert "meaning" in piece["reasons"] or "words" in piece["reasons"]
    assert remembered.attributes["gen_ai.memory.record.id"] == record.memory_id
    assert (added.attributes["user.id"], added.attributes["memlayer.tenant.id"]) == ("ada", "acme")
    assert failed.status.description == str(raised.value)


OLLAMA = ("ChatOllama:qwen3:8b", "ChatOllama", "qwen3:8b")


@pytest.mark.parametrize(("name", "provider", "model"), [OLLAMA, ("summarize", "function", "summarize")])
def test_a_model_is_named_as_its_provider_names_it(name, provider, model, told, opened) -> None:
    with opened().runtime.telemetry.model_call(name, "summarize"):
        pass
    (span,) = told.spans(f"chat {model}")
    assert span.attributes["gen_ai.provider.name"] == provider
    assert span.attributes["gen_ai.request.model"] == model


def test_prompts_and_answers_of_models_are_told_with_text(told, opened) -> None:
    let_turns_leave(opened("spans", "text", settings=SMALL, summarizer=lambda _, text: "Of Kyoto."))
    asked = told.asked()[0]
    (prompt,) = json.loads(asked.attributes["gen_ai.input.messages"])
    assert "train 0 to Kyoto" in prompt["parts"][0]["content"]
    (answer,) = json.loads(asked.attributes["gen_ai.output.messages"])
    assert answer["parts"] == [{"type": "text", "content": "Of Kyoto."}]
    assert "user.id" not in asked.attributes


@pytest.mark.parametrize("parts", [(), ("ids", "text"), ("spans",)])
def test_what_is_switched_off_is_not_told(parts, told, opened) -> None:
    memory = opened(settings=QUIET.replace(telemetry=parts))
    memory.chat(user_id="ada", session_id="monday").add("user", "Hello!")
    memory.flush(30)
    assert bool(told.spans()) == ("spans" in parts)


def test_without_a_provider_nothing_is_made(monkeypatch, opened) -> None:
    made = []
    monkeypatch.setattr(TracedOperation, "__init__", lambda self, *_: made.append(self))
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    memory = opened()
    chat = memory.chat(user_id="ada", session_id="monday")
    chat.add("user", "Hello!")
    chat.context()
    assert memory.runtime.telemetry.is_on is False
    assert made == []
