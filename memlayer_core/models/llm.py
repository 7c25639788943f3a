"""Calls a language model: one of LangChain, one of LlamaIndex, or a function; counts its tokens, and recognizes that a prompt is too long."""

import asyncio
import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel

from memlayer_core.errors import ConfigurationError, ModelContextError, ModelError, repr_of
from memlayer_core.events import ContextOverflowed, Event
from memlayer_core.models.foreign import finish, has, in_thread
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.seams import LanguageModel, Reply
from memlayer_core.storage.jobs import Cost
from memlayer_core.storage.terms import searchable

# Recognizes a model's answer that a prompt is longer than it can read, and says how long the second prompt may be.

RETRY_SHARE = 0.6
"""The second call gets this share of the token limit, or of the refused prompt if that was smaller."""

_WHAT = r"(?<![a-z])(?:prompt|input|message|request|sequence|conversation)s?(?![a-z])"
_TOO_LONG = re.compile(
    # the window by its name
    r"(?:context|prompt)[ _-]?(?:length|size|window|limit)|(?:model|input|seq|sequence)[ _-]?len(?:gth)?\b|maximum context"
    r"|context the overflows|max(?:imum)? input|maxLength: \d+, actual|current length is \d+ while limit|reduce the length"
    # tokens, of which a prompt has too many
    r"|too many (?:input |prompt )?tokens|tokens?[ _](?:limit[ _](?:is[ _])?)?(?:exceed|reached)|tokens_limit_reached"
    r"|max(?:imum)? tokens of \d+ exceed|exceed\w*[^.\n]{0,40}(?:token limit|message tokens|number of tokens)"
    # the prompt, and that it is too large
    rf"|{_WHAT}[^.\n]{{0,80}}(?:too[ _-](?:long|large)\b|exceed|longer than|string too long|only supports? up to"
    r"|must (?:be|have) (?:<=|less|no more|at most|shorter)[^.\n]{0,20}\d{3})"
    r"|messages\[\d+\]\.content\S* string too long|(?:payload|content|body|entity)[ _]too[ _]large"
    # codes: of HTTP, of Zhipu, of Baidu
    r"|(?:code|status|http)\W{0,4}(?:413|1261|336007)\b|\b413 (?:request|payload|content)",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"\A(?!.*request[ _]too[ _]large).*(?:rate.?limit|per[ _](?:sec|min|hour|day)|please wait|throttl|quota|requests\b"
    r"|request limit|deadline|timed? ?out|max(?:imum)? (?:allowed number of )?(?:output|completion)|at most \d+ completion)",
    re.IGNORECASE | re.DOTALL,
)
"""Limits of a rate, of a time, and of the answer's length. A request that is too large by itself can be made smaller."""
_TYPES = frozenset({"ContextOverflowError", "ContextWindowExceededError"})
_FIELDS = ("code", "type", "status_code", "status", "body", "error", "message", "response", "text")
_Schema = type[BaseModel] | None
_DEPTH = 5  # errors of which one is the cause of the next


def is_overflow(problem: BaseException) -> bool:
    """Return whether an error says that a prompt is longer than a model can read.

    It is known by its type, as in LangChain and LiteLLM, by its code or HTTP status, as of OpenAI, or by the words of
    providers' interfaces; its causes count, too.
    """
    return any(_says_so(one) for one in _causes(problem))


def retry_limit(
    emit: Callable[[Event], None], scope: Scope, problem: Exception, *, token_limit: int, tokens: int
) -> int:
    """Return the token limit for a second call of a model, and emit the event.

    Args:
        emit: Passes the event on.
        scope: The conversation.
        problem: What the model raised. Anything but an overflow is raised again.
        token_limit: The token limit of the call that failed.
        tokens: Tokens of that call.

    Raises:
        Exception: `problem`, if it says anything else.
    """
    if not is_overflow(problem):
        raise problem
    limit = max(1, int(RETRY_SHARE * min(token_limit, tokens)))
    reason = f"the model refused it: {type(problem).__name__}"  # its text may quote a message
    emit(ContextOverflowed(scope.namespace, scope.session_id or "", tokens, limit, reason))
    return limit


def _causes(problem: BaseException | None, depth: int = _DEPTH) -> Iterator[BaseException]:
    if problem is not None and depth:
        yield problem
        yield from _causes(problem.__cause__ or problem.__context__, depth - 1)


def _says_so(problem: BaseException) -> bool:
    if isinstance(problem, ModelContextError) or _TYPES & {made.__name__ for made in type(problem).__mro__}:
        return True
    text = "\n".join((str(problem), *_fields(problem), *_fields(getattr(problem, "response", None))))
    return _TOO_LONG.search(text) is not None and _OTHER.search(text) is None


def _fields(answer: object) -> Iterator[str]:
    """Yield the codes and the words in an error, or in the HTTP response behind it, as `code: 413`."""
    for name in _FIELDS:
        value = None
        with suppress(Exception):  # a response that is streamed raises
            value = getattr(answer, name, None)
        if isinstance(value, str | int | Mapping):
            yield f"{name.removesuffix('_code')}: {value}"


# Counts the calls and tokens of a language model while it is asked.


class ModelUsage:
    """Counts the calls and tokens of one model: `costs` has an entry for each call.

    Args:
        rt: Counts the tokens if the provider does not report them.
        model: The model to ask.
        kind: The kind of work that the calls are counted for.
    """

    def __init__(self, rt: Runtime, model: LanguageModel, kind: str = "summarize") -> None:
        self._rt = rt
        self._kind = kind
        self.model = model
        self.costs: list[Cost] = []

    def ask(self, text: str, instructions: str, schema: _Schema = None) -> str:
        """Ask the model, and note the costs of the call, also if it fails. See `LanguageModel.ask`."""
        count = self._rt.tokens.text
        sent, written = count(f"{instructions}\n{text}"), 0
        try:
            with self._rt.telemetry.model_call(self.model.name, self._kind) as call:
                reply = self.model.ask(instructions, searchable(text), schema)
                sent = sent if reply.tokens_in is None else reply.tokens_in
                written = count(reply.text) if reply.tokens_out is None else reply.tokens_out
                call.end_with_reply(instructions, text, reply.text, sent, written)
        finally:
            self.costs.append(Cost(self._kind, self.model.name, 1, sent, written))
        return reply.text


# Calls a language model: one of LangChain, one of LlamaIndex, or a function.
#
# Models of frameworks are recognised by their methods: nothing of a framework is imported.

logger = logging.getLogger("memlayer")

_LONGEST = 100_000  # characters of an answer that are read
_TAG = r"think(?:ing)?|thoughts?|reasoning"
_THOUGHTS = re.compile(
    rf"\A\s*(?:<(?:{_TAG})\b[^>]*>.*?(?:</(?:{_TAG})>\s*|\Z))+|\A(?:(?!<(?:{_TAG})\b).)*?^</(?:{_TAG})>[ \t]*\n\s*",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
"""Matches what local models think in front of an answer. Of some, the first tag is part of the prompt."""
Ask = Callable[[str, str, type[BaseModel] | None], Reply]
_INTERNAL = {"tags": ["nostream"], "metadata": {"lc_source": "memlayer"}}
"""LangGraph shows a call with this tag in no user's stream; traces show where it comes from."""


class ForeignModel:
    """A model that answers a prompt with a text.

    Args:
        name: The model's name in summaries and errors.
        ask: Function of instructions, a text, and the form of the answer or None.
        seconds: How long a call may take; None: as long as it likes.
    """

    def __init__(self, name: str, ask: Ask, *, seconds: float | None = None) -> None:
        self.name = name
        self._ask = ask
        self._seconds = seconds

    def ask(self, instructions: str, text: str, schema: _Schema = None) -> Reply:
        """Send a prompt to the model, and wait for the answer. Of an endless answer, the beginning is returned.

        What a model thinks aloud in front of its answer, as in `<think>…</think>`, is left out.

        Args:
            instructions: What it is to do.
            text: What it is to read.
            schema: The form of the answer, for a model that can be held to one: it then answers with JSON of that form.

        Raises:
            ModelContextError: The prompt is longer than the model can read, or its answer longer than it may be.
            ModelError: It did not answer: it is not reachable, is overloaded, refused the call, or is late.
        """
        answer = in_thread(lambda: self._ask(instructions, text, schema))
        try:
            reply = answer.result(self._seconds)
            return replace(reply, text=searchable(_THOUGHTS.sub("", reply.text)[:_LONGEST]))
        except ModelError:
            raise
        except Exception as problem:
            if isinstance(problem, TimeoutError) and not answer.done():
                raise ModelError(
                    f"{self.name} did not answer within {self._seconds:g} seconds",
                    hint="It is asked again later; `Settings.model_timeout` says how long a call may take.",
                ) from None
            # What it said may quote a message, or a key: only the cause says it.
            error_type = type(problem).__name__
            if is_overflow(problem) or error_type == "LengthFinishReasonError":  # its answer was cut
                raise ModelContextError(
                    f"{self.name} cannot read or answer so long a prompt: {error_type}",
                    hint="It is asked again with half of it.",
                ) from problem
            raise ModelError(
                f"{self.name} did not answer: {error_type}",
                hint="It is asked again later; `memory.admin.status()` shows the problem.",
            ) from problem


def language_model(model: Any, seconds: float | None = None, task: str = "`model`") -> ForeignModel | None:
    """Return the language model for a memory's `model`, `summarizer` or `extractor`.

    Args:
        model: None for no model; a LangChain chat model or LLM; a LlamaIndex LLM; a `seams.LanguageModel`; or a function of
            a prompt, blocking or async, that returns a text. A function of two arguments gets the instructions and the
            text separately.
        seconds: How long a call may take; None: as long as it likes.
        task: What it is for, for the error.

    Raises:
        ConfigurationError: It is none of these.
    """
    if model is None or isinstance(model, ForeignModel):
        return model
    if not isinstance(model, type):
        if has(model, "ask") and isinstance(getattr(model, "name", None), str):
            return ForeignModel(model.name, model.ask, seconds=seconds)
        if has(model, "invoke"):
            return ForeignModel(_name(model), partial(_langchain, model, _Ways()), seconds=seconds)
        if has(model, "complete"):
            return ForeignModel(_name(model), partial(_llamaindex, model, _Ways()), seconds=seconds)
        if callable(model):
            return ForeignModel(_name(model), _function(model), seconds=seconds)
    raise ConfigurationError(
        f"{task} must be a model or a function, not {repr_of(model, 100)}",
        hint='Pass a made model: `init_chat_model("openai:gpt-5-mini")`, a LlamaIndex `LLM`, or a function of a prompt '
        "that returns a text.",
    )


def _name(model: Any) -> str:
    for attribute in ("model_name", "model", "model_id", "deployment_name"):
        found = getattr(model, attribute, None)
        if isinstance(found, str) and found:
            return f"{type(model).__name__}:{found}"
    return getattr(model, "__qualname__", None) or type(model).__name__


_REFUSALS = frozenset({400, 404, 405, 415, 422, 500, 501})
"""HTTP status codes with which servers refuse a form of the answer that they do not know."""


class _Ways:
    """Ways to ask a model, the strictest form of the answer first. A form that the server refuses is not asked for again."""

    def __init__(self) -> None:
        self._refused = 0

    def ask(self, ways: Sequence[Callable[[], Any]]) -> Any:
        """Return the answer of the first way that the server accepts. The last one asks for no form."""
        for number in range(self._refused, len(ways) - 1):
            try:
                return ways[number]()
            except Exception as problem:
                status = _status_of(problem)
                is_odd = isinstance(problem, NotImplementedError | TypeError | ValueError)
                if is_overflow(problem) or not (is_odd or status in _REFUSALS):
                    raise
                logger.info("a form of the answer is refused: %s", type(problem).__name__)
                if status is not None and status < 500:  # noqa: PLR2004  (a server's fault may pass)
                    self._refused = number + 1
        return ways[-1]()


def _status_of(problem: BaseException) -> int | None:
    """Return the HTTP status code that an error has, or its cause."""
    places = (problem, getattr(problem, "response", None), problem.__cause__, problem.__context__)
    codes = (getattr(one, "status_code", None) for one in places)
    return next((code for code in codes if isinstance(code, int)), None)


def _langchain(model: Any, ways: _Ways, instructions: str, text: str, schema: _Schema) -> Reply:
    prompt = [("system", instructions), ("human", text)]

    def held(**how: Any) -> Any:
        return model.with_structured_output(schema, include_raw=True, **how).invoke(prompt, config=_INTERNAL)

    def free() -> Any:
        return {"raw": model.invoke(prompt, config=_INTERNAL), "parsed": None}

    is_held = schema is not None and _calls_tools(model)
    found = ways.ask([held, partial(held, method="json_mode"), free] if is_held else [free])
    answer, parsed = found["raw"], found["parsed"]
    if isinstance(answer, str):
        return Reply(answer)
    kinds = ("tool_calls", "invalid_tool_calls") if is_held else ()
    calls = [one for kind in kinds for one in getattr(answer, kind, ())]
    if parsed is not None:
        said = parsed.model_dump_json()
    elif calls:
        arguments = calls[0]["args"]
        said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    else:
        said = answer.text
        said = said() if callable(said) and not isinstance(said, str) else str(said)
    usage = getattr(answer, "usage_metadata", None) or {}
    return Reply(said, usage.get("input_tokens"), usage.get("output_tokens"))


def _calls_tools(model: Any) -> bool:
    """Return whether a chat model of LangChain can be held to a schema: its class says how tools are bound."""
    bind = getattr(type(model), "bind_tools", None)
    return bind is not None and getattr(bind, "__qualname__", "") != "BaseChatModel.bind_tools"


def _llamaindex(model: Any, ways: _Ways, instructions: str, text: str, schema: _Schema) -> Reply:
    metadata = getattr(model, "metadata", None)
    calls_tools = getattr(metadata, "is_function_calling_model", False)
    types = sys.modules.get("llama_index.core.base.llms.types")  # the framework's own models load it
    is_chat = types is not None and (calls_tools or getattr(metadata, "is_chat_model", False))

    def call(asked: Any) -> Any:
        if types is None or not is_chat:
            return _either(asked.complete, asked.acomplete, f"{instructions}\n\n{text}")
        messages = [types.ChatMessage(instructions, role="system"), types.ChatMessage(text, role="user")]
        return _either(asked.chat, asked.achat, messages)

    held, free = lambda: call(model.as_structured_llm(schema)), partial(call, model)
    answer = ways.ask([held, free] if schema is not None and calls_tools else [free])
    usage = {**(answer.additional_kwargs or {}), **_raw_usage(answer.raw)}
    return Reply(
        (answer.message.content if is_chat else answer.text) or "",
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
    )


def _either(call: Callable[..., Any], acall: Callable[..., Any], asked: Any) -> Any:
    try:
        return call(asked)
    except NotImplementedError:  # some have the async half alone
        return asyncio.run(acall(asked))


def _raw_usage(raw: Any) -> dict[str, Any]:
    usage = raw.get("usage") if isinstance(raw, dict) else getattr(raw, "usage", None)
    found = usage if isinstance(usage, dict) else vars(usage) if usage else {}
    return {name: value for name, value in found.items() if isinstance(value, int)}


def _function(function: Callable[..., Any]) -> Ask:
    apart = False
    with suppress(ValueError):  # a built-in one has no signature
        try:
            inspect.signature(function).bind("")
        except TypeError:
            apart = True

    # It is asked in words alone, whatever the form of the answer is to be.
    def ask(instructions: str, text: str, _: type[BaseModel] | None) -> Reply:
        answer = finish(function(instructions, text) if apart else function(f"{instructions}\n\n{text}"))
        if not isinstance(answer, str):
            raise TypeError(f"it returned {type(answer).__name__} and no text")
        return Reply(answer)

    return ask
