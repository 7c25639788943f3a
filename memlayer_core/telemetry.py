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
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import wraps
from inspect import isgeneratorfunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, cast

from memlayer_core.errors import RedactorError
from memlayer_core.events import Event, JobDead, JobFailed
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from memlayer_core.settings import Settings


P = ParamSpec("P")
T = TypeVar("T")
OperationName = Literal["create_memory", "update_memory", "upsert_memory", "search_memory", "delete_memory"]
Value = str | bool | int | float | Sequence[str]

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


class _HasTelemetry(Protocol):
    @property
    def telemetry(self) -> Telemetry: ...


R = TypeVar("R", bound=_HasTelemetry)


def traced(
    operation: OperationName, verb: str, describe: Callable[..., Outcome]
) -> Callable[[Callable[Concatenate[R, P], T]], Callable[Concatenate[R, P], T]]:
    """Put a span around a flow, and measure how long it takes.

    Args:
        operation: What it does, by the conventions.
        verb: The verb of memlayer.
        describe: Gets the result and the flow's arguments, without the runtime.
    """

    def decorate(flow: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
        @wraps(flow)
        def operate(rt: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
            telemetry = rt.telemetry
            if not telemetry.is_on:
                return flow(rt, *args, **kwargs)
            with telemetry.operation(operation, verb, args) as span:
                result = flow(rt, *args, **kwargs)
                span.end_with(describe(result, *args, **kwargs))
                return result

        @wraps(flow)
        def ask(rt: R, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            telemetry, asking = rt.telemetry, cast("Generator[Any, Any, Any]", flow(rt, *args, **kwargs))
            if not telemetry.is_on:
                return (yield from asking)
            with telemetry.operation(operation, verb, args) as span:
                result = yield from asking
                span.end_with(describe(result, *args, **kwargs))
                return result

        return ask if isgeneratorfunction(flow) else operate

    return decorate


class Telemetry:
    """What a memory sends to OpenTelemetry.

    Args:
        settings: `telemetry` says what is sent; None: nothing is.
        store_id: The store's id.
        redact: Returns a text as it may be sent.
    """

    def __init__(
        self, settings: Settings | None = None, store_id: str = "", redact: Callable[[str], str] = str
    ) -> None:
        parts = settings.telemetry if settings is not None else ()
        self.spans, self.metrics = "spans" in parts, "metrics" in parts
        self.ids, self.text = "ids" in parts, "text" in parts
        self.store_id, self._redact = store_id, redact
        self._meters: tuple[object, dict[str, Any]] = (None, {})
        self._tracers: tuple[object, Any] = (None, None)

    @property
    def is_on(self) -> bool:
        """Whether somebody reads spans or metrics."""
        return self._tracer() is not None or bool(self._instruments())

    def operation(self, operation: OperationName, verb: str, args: Sequence[object]) -> Operation:
        """Return the span of an operation on the memory, as a context manager."""
        labels = {"gen_ai.operation.name": operation, "memlayer.verb": verb}
        scope = next((one for one in args if isinstance(one, Scope)), None)
        start: dict[str, Value] = {**labels, "gen_ai.memory.store.id": self.store_id}
        start |= self._ids_of(scope)
        return Operation(self, operation, start, labels, "memlayer.operation.duration")

    def job(self, kind: str, jobs: int) -> AbstractContextManager[object]:
        """Return the span of background work, as a context manager. It is the first of its trace."""
        if not self.is_on:
            return nullcontext()
        labels = {"memlayer.job.kind": kind}
        start: dict[str, Value] = {**labels, "memlayer.job.count": jobs}
        start["gen_ai.memory.store.id"] = self.store_id
        return Operation(self, f"memlayer.job {kind}", start, labels, "memlayer.job.duration")

    def model_call(self, name: str, work: str) -> ModelCall:
        """Return the span of a call of a language model, as a context manager.

        Args:
            name: The model's name, such as `"ChatOpenAI:gpt-5-mini"`.
            work: The kind of work that it is asked for.
        """
        provider, _, model = name.partition(":") if ":" in name else ("function", "", name)
        labels = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
        }
        start = {**labels, "memlayer.job.kind": work}
        return ModelCall(self, f"chat {model}", start, labels, "gen_ai.client.operation.duration")

    def hear(self, event: Event) -> None:
        """Count an event: this is the memory's own listener."""
        if not self._instruments():
            return
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        attributes = {"memlayer.event": name}
        if isinstance(event, JobFailed | JobDead):
            attributes["memlayer.job.kind"] = event.kind
        self.record("memlayer.events", 1, attributes)

    def record(self, name: str, value: float, attributes: Mapping[str, Value]) -> None:
        """Record one value of a metric."""
        instrument = self._instruments().get(name)
        if instrument is not None:
            (instrument.add if name == "memlayer.events" else instrument.record)(value, attributes)

    def quote(self, text: str) -> str:
        """Return a text as it may be sent, and as an exporter can encode it; nothing if the redactor fails."""
        try:
            return self._redact(text).encode("utf-8", "replace").decode()
        except RedactorError:  # a problem in `memory.admin.status`
            return ""

    def start_span(self, name: str, kind: str, attributes: Mapping[str, Value]) -> Span | None:
        """Start a span; None if nobody reads it."""
        tracer = self._tracer()
        if tracer is None:
            return None
        kinds = sys.modules["opentelemetry.trace"].SpanKind
        span: Span = tracer.start_span(name, kind=kinds[kind], attributes=attributes)
        return span

    def _ids_of(self, scope: Scope | None) -> dict[str, Value]:
        if scope is None:
            return {}
        ids = {"gen_ai.conversation.id": scope.session_id, "gen_ai.agent.id": scope.agent_id}
        if self.ids:
            ids |= {"user.id": scope.user_id, "memlayer.tenant.id": scope.tenant_id}
        return {name: one for name, one in ids.items() if one is not None}

    def _tracer(self) -> Any:
        """Return the tracer of the provider that the application has set; None if it has set none."""
        trace: Any = sys.modules.get("opentelemetry.trace") if self.spans else None
        provider = getattr(trace, "get_tracer_provider", lambda: None)()  # it may be imported at the moment
        if provider is None or isinstance(provider, trace.ProxyTracerProvider):
            return None
        if self._tracers[0] is not provider:
            self._tracers = provider, trace.get_tracer("memlayer_core", tracer_provider=provider)
        return self._tracers[1]

    def _instruments(self) -> dict[str, Any]:
        """Return the metrics of the provider that the application has set; empty if it has set none."""
        metrics: Any = sys.modules.get("opentelemetry.metrics") if self.metrics else None
        provider = getattr(metrics, "get_meter_provider", lambda: None)()
        if provider is None or type(provider).__name__ == "_ProxyMeterProvider":
            return {}
        if self._meters[0] is not provider:
            meter = metrics.get_meter("memlayer_core", meter_provider=provider)
            self._meters = provider, _make_instruments(meter)
        return self._meters[1]


def _make_instruments(meter: Any) -> dict[str, Any]:
    forms = {
        "memlayer.operation.duration": ("s", _SECONDS, "Duration of an operation on the memory"),
        "memlayer.context.tokens": ("{token}", _TOKENS, "Tokens of a context"),
        "memlayer.job.duration": ("s", _SECONDS, "Duration of background work"),
        "gen_ai.client.operation.duration": ("s", _SECONDS, "Duration of a call of a language model"),
        "gen_ai.client.token.usage": ("{token}", _TOKENS, "Tokens that a language model reads or writes"),
    }
    made = {
        name: meter.create_histogram(
            name, unit=unit, description=description, explicit_bucket_boundaries_advisory=bounds
        )
        for name, (unit, bounds, description) in forms.items()
    }
    made["memlayer.events"] = meter.create_counter(
        "memlayer.events", unit="{event}", description="What `memory.listen` tells, by its kind"
    )
    return made


class Operation:
    """The span of one operation, as a context manager. It is the parent of what starts inside.

    Args:
        telemetry: What is sent.
        name: The span's name.
        attributes: What is known at its beginning.
        labels: The attributes of its metrics: few values each.
        duration: The metric of its seconds.
    """

    kind = "INTERNAL"

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        attributes: Mapping[str, Value],
        labels: dict[str, str],
        duration: str,
    ) -> None:
        self.telemetry = telemetry
        self.span: Span | None = None
        self._name, self._attributes, self._duration = name, attributes, duration
        self._labels: dict[str, Value] = {**labels}
        self._use: AbstractContextManager[object] = nullcontext()
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self.span = self.telemetry.start_span(self._name, self.kind, self._attributes)
        if self.span is not None:
            use = sys.modules["opentelemetry.trace"].use_span
            self._use = use(
                self.span, end_on_exit=True, record_exception=False, set_status_on_exception=False
            )
        self._use.__enter__()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error_type is not None:
            self._labels["error.type"] = error_type.__name__
            self.tell({"error.type": error_type.__name__})
            if self.span is not None:
                trace = sys.modules["opentelemetry.trace"]
                words = self.telemetry.quote(str(error)) if self.telemetry.text else None
                self.span.set_status(trace.Status(trace.StatusCode.ERROR, words))
        self.measure(self._duration, time.perf_counter() - self._began)
        self._use.__exit__(None, None, None)

    def tell(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes to the span."""
        if self.span is not None and self.span.is_recording():
            self.span.set_attributes(attributes)

    def measure(self, metric: str, value: float, **more: str) -> None:
        """Record a value of a metric."""
        self.telemetry.record(metric, value, {**self._labels, **more})

    def end_with(self, outcome: Outcome) -> None:
        """Add what came of the operation."""
        told = dict(outcome.attributes)
        tokens = told.get("memlayer.context.tokens")
        if isinstance(tokens, int):
            self.measure("memlayer.context.tokens", tokens)
        if self.span is None or not self.span.is_recording():
            return
        if outcome.count is not None:
            told["gen_ai.memory.record.count"] = outcome.count
        if outcome.session_id is not None:
            told["gen_ai.conversation.id"] = outcome.session_id
        if self.telemetry.ids and outcome.record_id is not None:
            told["gen_ai.memory.record.id"] = outcome.record_id
        if self.telemetry.text:
            quote = self.telemetry.quote
            records = [{"content": quote(one)} for one in outcome.contents()]
            told |= {"gen_ai.memory.records": _as_json(records)} if records else {}
            pieces = [{**one, "text": quote(str(one["text"]))} for one in outcome.pieces()]
            told |= {"memlayer.context.pieces": _as_json(pieces)} if pieces else {}
            told |= {"gen_ai.memory.query.text": quote(outcome.query)} if outcome.query else {}
        self.tell(told)


class ModelCall(Operation):
    """The span of a call of a language model."""

    kind = "CLIENT"

    def end_with_reply(
        self, instructions: str, text: str, reply: str, tokens_in: int, tokens_out: int
    ) -> None:
        """Add what the model read and wrote. The texts are added only with the part `"text"`."""
        self.measure("gen_ai.client.token.usage", tokens_in, **{"gen_ai.token.type": "input"})
        self.measure("gen_ai.client.token.usage", tokens_out, **{"gen_ai.token.type": "output"})
        told: dict[str, Value] = {
            "gen_ai.usage.input_tokens": tokens_in,
            "gen_ai.usage.output_tokens": tokens_out,
        }
        if self.telemetry.text:
            system, asked, said = (
                {"type": "text", "content": self.telemetry.quote(one)} for one in (instructions, text, reply)
            )
            answer = {"role": "assistant", "parts": [said], "finish_reason": "stop"}
            told["gen_ai.system_instructions"] = _as_json([system])
            told["gen_ai.input.messages"] = _as_json([{"role": "user", "parts": [asked]}])
            told["gen_ai.output.messages"] = _as_json([answer])
        self.tell(told)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
