"""Spans of OpenTelemetry, named by its conventions for generative AI.

`traced` goes around a flow, `Telemetry.job` around background work, and `Telemetry.model_call` around a call of a
language model. Nothing is imported: an application that wants spans has imported `opentelemetry` and set a provider.
Without one, an operation costs a look into `sys.modules`.

An attribute is a number, a name from the code, or the id of a session or an agent. Ids of users and tenants, and texts,
are given only with the parts `"ids"` and `"text"` of `Settings.telemetry`. Of an error, only the type is given, since
its text may quote a message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from memlayer_core.errors import RedactorError
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
    """Put a span around a flow, whose first argument is the runtime.

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
        """Whether somebody reads spans."""
        return self._tracer is not None

    def operation(
        self, operation: OperationName, verb: str, args: Sequence[object]
    ) -> AbstractContextManager[TracedOperation]:
        """Return the span of an operation on the memory, as a context manager."""
        start: dict[str, Value | None] = {
            "gen_ai.operation.name": operation,
            "memlayer.verb": verb,
            "gen_ai.memory.store.id": self.store_id,
        }
        scope = next((one for one in args if isinstance(one, Scope)), None)
        if scope is not None:
            start |= {"gen_ai.conversation.id": scope.session_id, "gen_ai.agent.id": scope.agent_id}
        if scope is not None and self.ids:
            start |= {"user.id": scope.user_id, "memlayer.tenant.id": scope.tenant_id}
        return self._span(operation, start)

    def job(self, kind: str, jobs: int) -> AbstractContextManager[object]:
        """Return the span of background work, as a context manager. It is the first of its trace."""
        start: Attributes = {
            "memlayer.job.kind": kind,
            "memlayer.job.count": jobs,
            "gen_ai.memory.store.id": self.store_id,
        }
        return self._span(f"memlayer.job {kind}", start)

    def model_call(self, name: str, work: str) -> AbstractContextManager[TracedOperation]:
        """Return the span of a call of a language model, as a context manager.

        Args:
            name: The model's name, such as `"ChatOpenAI:gpt-5-mini"`.
            work: The kind of work that it is asked for.
        """
        provider, _, model = name.partition(":") if ":" in name else ("function", "", name)
        start = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "memlayer.job.kind": work,
        }
        return self._span(f"chat {model}", start, "CLIENT")

    def quote(self, text: str) -> str:
        """Return a text as it may be sent, and as an exporter can encode it; nothing if the redactor fails."""
        try:
            return self._redact(text).encode("utf-8", "replace").decode()
        except RedactorError:  # a problem in `memory.admin.status`
            return ""

    @contextmanager
    def _span(self, name: str, start: Attributes, kind: str = "INTERNAL") -> Iterator[TracedOperation]:
        """Open a span with attributes, of a kind. It is the parent of what starts inside."""
        opened: AbstractContextManager[Span | None] = nullcontext()
        if (tracer := self._tracer) is not None:
            opened = tracer.start_as_current_span(
                name,
                kind=sys.modules["opentelemetry.trace"].SpanKind[kind],
                attributes=_given(start),
                record_exception=False,
                set_status_on_exception=False,
            )
        with opened as span:
            operation = TracedOperation(self, span)
            try:
                yield operation
            except BaseException as error:
                operation.fail(error)
                raise

    @property
    def _tracer(self) -> Any:
        """The tracer of the provider that the application has set; None if it has set none."""
        trace: Any = sys.modules.get("opentelemetry.trace")
        if "spans" not in self.parts or not hasattr(trace, "get_tracer_provider"):
            return None  # the module may be imported at the moment
        provider = trace.get_tracer_provider()
        return None if type(provider).__name__ == "ProxyTracerProvider" else _make_tracer(provider)


@lru_cache(maxsize=1)
def _make_tracer(provider: Any) -> Any:
    return sys.modules["opentelemetry.trace"].get_tracer("memlayer_core", tracer_provider=provider)


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """An operation, or a call of a language model, with its span.

    Attributes:
        telemetry: What is sent.
        span: The span; None if nobody reads it.
    """

    telemetry: Telemetry
    span: Span | None

    def tell(self, attributes: Attributes) -> None:
        """Add attributes to the span."""
        if self.span is not None and self.span.is_recording():
            self.span.set_attributes(_given(attributes))

    def fail(self, error: BaseException) -> None:
        """Add that it failed."""
        self.tell({"error.type": type(error).__name__})
        if self.span is not None:
            trace = sys.modules["opentelemetry.trace"]
            words = self.telemetry.quote(str(error)) if self.telemetry.text else None
            self.span.set_status(trace.Status(trace.StatusCode.ERROR, words))

    def end_with(self, outcome: Outcome) -> None:
        """Add what came of the operation."""
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
        self.tell({"gen_ai.usage.input_tokens": tokens_in, "gen_ai.usage.output_tokens": tokens_out})
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
