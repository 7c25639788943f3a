"""Spans and metrics of OpenTelemetry, named by its conventions for generative AI.

`traced` goes around a flow, `Telemetry.job` around background work, and `Telemetry.model_call` around a call of a
language model. Nothing is imported: an application that wants spans has imported `opentelemetry` and set a provider.
Without one, an operation costs a look into `sys.modules`.

An attribute is a number, a name from the code, or the id of a session or an agent. Ids of users and tenants, and texts,
are given only with the parts `"ids"` and `"text"` of `Settings.telemetry`. Of an error, only the type is given, since
its text may quote a message.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from memlayer_core.errors import RedactorError
from memlayer_core.events import Event
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from memlayer_core.settings import Settings


P = ParamSpec("P")
T = TypeVar("T")
OperationName = Literal["create_memory", "update_memory", "upsert_memory", "search_memory", "delete_memory"]
Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]
"""Attributes by their names; None: it has no such attribute."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a span says of an operation that succeeded.

    Attributes:
        count: How many messages, records or hits it stored, found or deleted.
        attributes: Numbers and names, under `memlayer.`.
        session_id: The session, if the operation's scope does not name it.
        record_id: The record, which bears the user's id: for the part `"ids"`.
        query: What was searched for: for the part `"text"`.
        contents: What was stored or found: for the part `"text"`.
        pieces: What a model sees, each piece as JSON: for the part `"text"`.
    """

    count: int | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    session_id: str | None = None
    record_id: str | None = None
    query: str | None = None
    contents: Callable[[], Iterable[str]] = tuple
    pieces: Callable[[], Sequence[Mapping[str, object]]] = tuple


def traced(
    operation: OperationName, verb: str, describe: Callable[..., Outcome]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Put a span around a flow, whose first argument is the runtime, and measure how long it takes.

    Args:
        operation: What it does, by the conventions.
        verb: The verb of memlayer.
        describe: Gets the result and the flow's arguments, without the runtime.
    """

    def decorate(flow: Callable[P, T]) -> Callable[P, T]:
        is_generator = isgeneratorfunction(flow)

        @wraps(flow)
        def operate(*args: P.args, **kwargs: P.kwargs) -> T:
            telemetry: Telemetry = cast("Any", args[0]).telemetry
            if not telemetry.is_on:
                return flow(*args, **kwargs)
            if is_generator:
                return cast("T", ask(telemetry, *args, **kwargs))
            with telemetry.operation(operation, verb, args) as span:
                result = flow(*args, **kwargs)
                span.end_with(describe(result, *args[1:], **kwargs))
                return result

        def ask(telemetry: Telemetry, *args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with telemetry.operation(operation, verb, args) as span:
                result = yield from cast("Generator[Any, Any, Any]", flow(*args, **kwargs))
                span.end_with(describe(result, *args[1:], **kwargs))
                return result

        return operate

    return decorate


class Telemetry:
    """What a memory sends to OpenTelemetry.

    Args:
        settings: `telemetry` says what is sent.
        store_id: The store's id.
        redact: Returns a text as it may be sent.
    """

    def __init__(self, settings: Settings, store_id: str, redact: Callable[[str], str]) -> None:
        self.parts = frozenset(settings.telemetry)
        self.ids, self.text = "ids" in self.parts, "text" in self.parts
        self.store_id, self._redact = store_id, redact

    @property
    def is_on(self) -> bool:
        """Whether somebody reads spans or metrics."""
        return any(map(self._reader, _READERS))

    def operation(
        self, operation: OperationName, verb: str, args: Sequence[object]
    ) -> AbstractContextManager[Operation]:
        """Return the span of an operation on the memory, as a context manager."""
        labels = {"gen_ai.operation.name": operation, "memlayer.verb": verb}
        start: dict[str, Value | None] = {"gen_ai.memory.store.id": self.store_id}
        scope = next((one for one in args if isinstance(one, Scope)), None)
        if scope is not None:
            start |= {"gen_ai.conversation.id": scope.session_id, "gen_ai.agent.id": scope.agent_id}
        if scope is not None and self.ids:
            start |= {"user.id": scope.user_id, "memlayer.tenant.id": scope.tenant_id}
        return self._span(operation, labels, start, "memlayer.operation.duration")

    def job(self, kind: str, jobs: int) -> AbstractContextManager[object]:
        """Return the span of background work, as a context manager. It is the first of its trace."""
        start: Attributes = {"memlayer.job.count": jobs, "gen_ai.memory.store.id": self.store_id}
        return self._span(f"memlayer.job {kind}", {"memlayer.job.kind": kind}, start, "memlayer.job.duration")

    def model_call(self, name: str, work: str) -> AbstractContextManager[Operation]:
        """Return the span of a call of a language model, as a context manager.

        Args:
            name: The model's name, such as `"ChatOpenAI:gpt-5-mini"`.
            work: The kind of work that it is asked for.
        """
        provider, _, model = name.partition(":") if ":" in name else ("function", "", name)
        labels = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
        labels["gen_ai.request.model"] = model
        start = {"memlayer.job.kind": work}
        return self._span(f"chat {model}", labels, start, "gen_ai.client.operation.duration", "CLIENT")

    def hear(self, event: Event) -> None:
        """Count an event: this is the memory's own listener."""
        if self._reader("metrics") is None:
            return
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        about = {"memlayer.job.kind": "kind", "memlayer.problem.source": "source"}
        of = {attribute: getattr(event, field, None) for attribute, field in about.items()}
        self.record("memlayer.events", 1, {"memlayer.event": name, **of})

    def record(self, name: str, value: float, attributes: Attributes) -> None:
        """Record one value of a metric."""
        instruments = self._reader("metrics")
        if instruments is not None:
            write = instruments[name].add if name == "memlayer.events" else instruments[name].record
            write(value, _given(attributes))

    def quote(self, text: str) -> str:
        """Return a text as it may be sent, and as an exporter can encode it; nothing if the redactor fails."""
        try:
            return self._redact(text).encode("utf-8", "replace").decode()
        except RedactorError:  # a problem in `memory.admin.status`
            return ""

    @contextmanager
    def _span(
        self, name: str, labels: Mapping[str, str], start: Attributes, duration: str, kind: str = "INTERNAL"
    ) -> Iterator[Operation]:
        """Open a span. It is the parent of what starts inside.

        Args:
            name: The span's name.
            labels: The attributes of the span and of its metrics: few values each.
            start: Further attributes of the span.
            duration: The metric of its seconds.
            kind: The name of a kind of span.
        """
        opened: AbstractContextManager[Span | None] = nullcontext()
        if (tracer := self._reader("spans")) is not None:
            opened = tracer.start_as_current_span(
                name,
                kind=sys.modules["opentelemetry.trace"].SpanKind[kind],
                attributes=_given({**labels, **start}),
                record_exception=False,
                set_status_on_exception=False,
            )
        began = time.perf_counter()
        with opened as span:
            operation = Operation(self, span, {**labels})
            try:
                yield operation
            except BaseException as error:
                operation.fail(error)
                raise
            finally:
                operation.measure(duration, time.perf_counter() - began)

    def _reader(self, part: str) -> Any:
        """Return the tracer (`"spans"`) or the metrics of the provider that the application has set; None if it has set none."""
        module, getter, make = _READERS[part]
        if part not in self.parts or not hasattr(sys.modules.get(module), getter):
            return None  # the module may be imported at the moment
        provider = getattr(sys.modules[module], getter)()
        is_set = type(provider).__name__ not in {"ProxyTracerProvider", "_ProxyMeterProvider"}
        return make(provider) if is_set else None


@lru_cache(maxsize=1)
def _make_tracer(provider: Any) -> Any:
    return sys.modules["opentelemetry.trace"].get_tracer("memlayer_core", tracer_provider=provider)


@lru_cache(maxsize=1)
def _make_instruments(provider: Any) -> Mapping[str, Any]:
    meter = sys.modules["opentelemetry.metrics"].get_meter("memlayer_core", meter_provider=provider)
    forms = {
        "memlayer.operation.duration": ("s", _SECONDS, "Duration of an operation on the memory"),
        "memlayer.context.tokens": ("{token}", _TOKENS, "Tokens of a context"),
        "memlayer.job.duration": ("s", _SECONDS, "Duration of background work"),
        "gen_ai.client.operation.duration": ("s", _SECONDS, "Duration of a call of a language model"),
        "gen_ai.client.token.usage": ("{token}", _TOKENS, "Tokens that a language model reads or writes"),
    }
    made = {
        name: meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=bounds)
        for name, (unit, bounds, about) in forms.items()
    }
    about = "What `memory.listen` tells, by its kind"
    return {**made, "memlayer.events": meter.create_counter("memlayer.events", "{event}", about)}


_READERS: Mapping[str, tuple[str, str, Callable[[Any], Any]]] = {
    "spans": ("opentelemetry.trace", "get_tracer_provider", _make_tracer),
    "metrics": ("opentelemetry.metrics", "get_meter_provider", _make_instruments),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, or a call of a language model, with its span.

    Attributes:
        telemetry: What is sent.
        span: The span; None if nobody reads it.
        labels: The attributes of its metrics: few values each.
    """

    telemetry: Telemetry
    span: Span | None
    labels: dict[str, str]

    def tell(self, attributes: Attributes) -> None:
        """Add attributes to the span."""
        if self.span is not None and self.span.is_recording():
            self.span.set_attributes(_given(attributes))

    def measure(self, metric: str, value: float, **more: str) -> None:
        """Record a value of a metric."""
        self.telemetry.record(metric, value, {**self.labels, **more})

    def fail(self, error: BaseException) -> None:
        """Add that it failed."""
        self.labels["error.type"] = type(error).__name__
        self.tell({"error.type": type(error).__name__})
        if self.span is not None:
            trace = sys.modules["opentelemetry.trace"]
            words = self.telemetry.quote(str(error)) if self.telemetry.text else None
            self.span.set_status(trace.Status(trace.StatusCode.ERROR, words))

    def end_with(self, outcome: Outcome) -> None:
        """Add what came of the operation."""
        tokens = outcome.attributes.get("memlayer.context.tokens")
        if isinstance(tokens, int):
            self.measure("memlayer.context.tokens", tokens)
        self.tell(
            {
                **outcome.attributes,
                "gen_ai.memory.record.count": outcome.count,
                "gen_ai.conversation.id": outcome.session_id,
                "gen_ai.memory.record.id": outcome.record_id if self.telemetry.ids else None,
            }
        )
        if self.telemetry.text and self.span is not None and self.span.is_recording():
            quote = self.telemetry.quote
            records = [{"content": quote(one)} for one in outcome.contents()]
            pieces = [{**one, "text": quote(str(one["text"]))} for one in outcome.pieces()]
            self.tell(
                {
                    "gen_ai.memory.records": _as_json(records),
                    "memlayer.context.pieces": _as_json(pieces),
                    "gen_ai.memory.query.text": quote(outcome.query) if outcome.query else None,
                }
            )

    def end_with_reply(
        self, instructions: str, text: str, reply: str, tokens_in: int, tokens_out: int
    ) -> None:
        """Add what a model read and wrote. The texts are added only with the part `"text"`."""
        for kind, tokens in (("input", tokens_in), ("output", tokens_out)):
            self.measure("gen_ai.client.token.usage", tokens, **{"gen_ai.token.type": kind})
            self.tell({f"gen_ai.usage.{kind}_tokens": tokens})
        if self.telemetry.text:
            system, asked, said = (
                {"type": "text", "content": self.telemetry.quote(one)} for one in (instructions, text, reply)
            )
            answer = {"role": "assistant", "parts": [said], "finish_reason": "stop"}
            self.tell(
                {
                    "gen_ai.system_instructions": _as_json([system]),
                    "gen_ai.input.messages": _as_json([{"role": "user", "parts": [asked]}]),
                    "gen_ai.output.messages": _as_json([answer]),
                }
            )


def _given(attributes: Attributes) -> dict[str, Value]:
    return {name: one for name, one in attributes.items() if one is not None}


def _as_json(value: Sequence[object]) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None
