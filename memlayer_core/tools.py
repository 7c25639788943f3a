"""The functions of an agent's memory tools. The adapters wrap them in their framework's tool class.

The application says whose memory they read and write; no argument of a tool names a user, a tenant or a session.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from memlayer_core.chat import Chat, recall_flow
from memlayer_core.errors import ConfigurationError, InputError, InvalidRecordError, repr_of
from memlayer_core.facts import flow as assertions
from memlayer_core.facts.check import CONCLUDED
from memlayer_core.facts.model import Record, RecordFilter, RecordSource
from memlayer_core.message import RELOAD, RELOAD_TOOL
from memlayer_core.messages.render import block, changed_on, quote_line, value_of
from memlayer_core.recall.model import Hit, Hits, RecallFilter
from memlayer_core.runtime import Asking, drive
from memlayer_core.scope import Scope
from memlayer_core.storage.terms import index_terms

# How an agent reads a memory, and the arguments of its tools as a model sees them.
#
# They are short, since every call of a model has them.

Mode: TypeAlias = Literal["STATIC", "AGENT", "BOTH"]
"""How an agent reads the memory: `"STATIC"`, by recall; `"AGENT"`, by tools; or `"BOTH"`."""


def _shorten(schema: dict[str, Any]) -> None:
    """Remove from a schema what does not help a model: titles, defaults, and the class's own docstring."""
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
        field.pop("default", None)


def check_mode(mode: object) -> None:
    """Check how an agent reads the memory.

    Raises:
        ConfigurationError: It is not a `Mode`.
    """
    if mode not in get_args(Mode):
        modes = ", ".join(map(repr, get_args(Mode)))
        raise ConfigurationError(f"unknown mode {repr_of(mode)}", hint=f"Use one of {modes}.")


class _Arguments(BaseModel):
    model_config = ConfigDict(json_schema_extra=_shorten)

    @classmethod
    def shown(cls) -> dict[str, Any]:
        """Return the schema that a model sees in each call; if it forgets an argument, the tool's answer says so."""
        return {"type": "object", "properties": cls.model_json_schema()["properties"]}


def _fields(fact: object) -> object:
    """Return a fact as an object: it, its JSON, or any other text as a whole sentence.

    Numbers are texts here, None is an empty field, and a quote is the text if there is no other.
    """
    if isinstance(fact, str):
        fields = value_of(fact)
        fact = fields if isinstance(fields, dict | list) else {"text": fact}
    if not isinstance(fact, dict):
        return fact
    named = {name: one for name, one in fact.items() if one is not None}
    texts = {name: str(one) for name, one in named.items() if isinstance(one, int | float)}
    return {**({"text": named["quote"]} if named.get("quote") else {}), **named, **texts}


Fact: TypeAlias = Annotated[
    assertions.Assertion, BeforeValidator(_fields), WithJsonSchema({"type": "string"})
]


class RecordArguments(_Arguments):
    """Arguments of the record tool. Thinking helps the model alone. A fact is a sentence, or an object, or its JSON."""

    thinking: str = ""
    content: list[Fact]


class RetrieveArguments(_Arguments):
    """Arguments of the retrieve tool."""

    keywords: list[str]


class CorrectArguments(_Arguments):
    """Arguments of the correct tool. Texts that are empty are not arguments."""

    memory_id: str
    text: str
    reason: str
    value: str = ""
    quote: str = ""


class ForgetArguments(_Arguments):
    """Arguments of the forget tool. A quote that is empty is not arguments."""

    memory_ids: list[str]
    quote: str = ""


class ReloadArguments(_Arguments):
    """Arguments of the reload tool: the id that a preview names, and how many characters to pass over."""

    id: str = Field(description="msg-17")
    offset: int = 0


ToolError: TypeAlias = Callable[[str], Exception]
Functions: TypeAlias = tuple[Callable[..., str], Callable[..., Awaitable[str]]]

_FOUND = 10  # hits of one call
_SEARCHED = 200  # newest records that are looked through for such facts


@dataclass(frozen=True, slots=True)
class Call:
    """Whose memory a tool reads and writes: the application says it.

    Attributes:
        chat: A conversation of the user.
        token_limit: Token limit of the agent's context; None: `Settings.max_tokens`.
        filter: What may be found; None: everything.
    """

    chat: Chat
    token_limit: int | None = None
    filter: RecallFilter | None = None


A = TypeVar("A", bound=_Arguments)


@dataclass(frozen=True, slots=True)
class AgentTool(Generic[A]):
    """A tool for agents, whatever the framework.

    Attributes:
        name: Its name for the model.
        description: Its description for the model.
        arguments: The schema of its arguments.
        verb: What it does. It returns the answer for the model, or a flow that returns it.
        writes: Whether it changes the memory.
    """

    name: str
    description: str
    arguments: type[A]
    verb: Callable[[Call, A], Asking[str] | str]
    writes: bool = True

    def functions(
        self, chat: Chat, token_limit: int | None, error: ToolError, recall_filter: RecallFilter | None = None
    ) -> Functions:
        """Return its function and its coroutine function, which take the tool's arguments.

        Args:
            chat: A conversation of the user whose memory it reads and writes.
            token_limit: Token limit of the agent's context; None: `Settings.max_tokens`.
            error: Makes the error that the framework shows to the model, from a text.
            recall_filter: What may be found; None: everything.
        """
        call = Call(chat, token_limit, recall_filter)

        def flow(values: Sequence[Any], more: Mapping[str, Any]) -> Asking[str]:
            arguments = {**dict(zip(self.arguments.model_fields, values, strict=False)), **more}
            try:
                answer = self.verb(call, self.arguments.model_validate(arguments))
                return answer if isinstance(answer, str) else (yield from answer)
            except InputError as problem:
                raise error(f"{problem}. {problem.hint}") from problem
            except ValidationError as problem:
                raise error(wrong_call(self.name, problem)) from problem

        def run(*values: Any, **more: Any) -> str:
            return drive(flow(values, more))

        async def arun(*values: Any, **more: Any) -> str:
            return await chat.memory.runtime.threads.drive(flow(values, more), writes=self.writes)

        run.__name__, arun.__name__ = self.name, f"a{self.name}"
        return run, arun


def _record(call: Call, arguments: RecordArguments) -> str:
    """Record what an agent asserts: with at most 0.6 of confidence, and it never outranks what the user said.

    A quote is believed only if a message of the user in this session has these words; the words are then the record.
    """
    reports: list[assertions.AssertionReport] = []
    try:
        for one in arguments.content:
            report = assertions.assert_fact(call.chat.memory.runtime, call.chat.scope, one)
            reports.append(report)
    except InputError as problem:
        done = f" Recorded before that: {_ids(reports)}." if _ids(reports) else ""
        raise InvalidRecordError(str(problem), hint=f"{problem.hint}{done}") from problem
    notes = filter(None, map(_note, arguments.content, reports))
    recorded = [f"Recorded: {_ids(reports)}"] if _ids(reports) else []
    return "\n".join([*recorded, *notes]) or "Nothing was recorded: `content` is empty."


def _correct(call: Call, arguments: CorrectArguments) -> str:
    rt, scope = call.chat.memory.runtime, call.chat.scope
    words = arguments.text, arguments.value or None, arguments.reason, arguments.quote or None
    record = assertions.correct(rt, scope, arguments.memory_id, *words)
    return f"Corrected: {record.memory_id} is now version {record.version}, {_SAYS[record.source]}: {record.text}"


def _forget(call: Call, arguments: ForgetArguments) -> str:
    """Delete records: the only tool that does."""
    if not arguments.memory_ids:
        return "Nothing was forgotten: `memory_ids` is empty."
    rt, scope = call.chat.memory.runtime, call.chat.scope
    assertions.forget(rt, scope, arguments.memory_ids, arguments.quote or None)
    return f"Forgotten for good: {', '.join(dict.fromkeys(arguments.memory_ids))}"


def _reload(call: Call, arguments: ReloadArguments) -> str:
    return call.chat.reload_text(arguments.id, offset=arguments.offset, token_limit=call.token_limit)


def _retrieve(call: Call, arguments: RetrieveArguments) -> Asking[str]:
    """Look up what is relevant to some words, within a quarter of the agent's context.

    Each line says when it was said, by whom, and where: in this conversation or another one, or in which record. Without a
    filter, facts whose key or words are asked for are listed, too. The answer is signed, so that no later one quotes it.
    """
    chat, wanted = call.chat, " ".join(arguments.keywords)
    reach, rt, sign = chat.scope.reach(), chat.memory.runtime, chat.memory.runtime.sign(chat.scope)
    if not wanted.strip():
        return "Nothing was looked up: there is no word to look for."
    most = max(1, (call.token_limit or rt.settings.max_tokens) // 4 - rt.tokens.text(block([""], sign)))
    hits: Hits = yield from recall_flow(chat, wanted, limit=_FOUND, token_limit=most, filter=call.filter)
    known: Sequence[Record] = ()
    if call.filter is None and reach.session_id is None:
        known = assertions.records(rt, reach, RecordFilter(limit=_SEARCHED), ())  # about anybody
    quoted = [(hit.created_at, hit.speaker, hit.text, hit.role, _origin_of(hit, chat.scope)) for hit in hits]
    quoted += [
        (fact.date, fact.type, rt.redact(fact.text), "user", _record_origin(fact, chat.scope))
        for fact in _facts_about(known, wanted, hits)
    ]
    lines: list[str] = []
    for one in quoted:
        line = quote_line(*one)
        most -= rt.tokens.text(line)
        if most < 0:
            break
        lines.append(line)
    return block(lines, sign) or "Nothing was found."


def wrong_call(name: str, problem: ValidationError) -> str:
    """Say what is wrong with the arguments of a tool's call."""
    places = ((".".join(map(str, error["loc"])), error["msg"]) for error in problem.errors())
    wrong = "; ".join(f"`{place}`: {message}" for place, message in places)
    return f"{name} cannot be called like this: {wrong}"


def _ids(reports: Sequence[assertions.AssertionReport]) -> str:
    return ", ".join(one.record_id for one in reports if one.record_id is not None)


def _note(assertion: assertions.Assertion, report: assertions.AssertionReport) -> str | None:
    """Say what a model must know about something that it recorded; None: nothing."""
    if report.record_id is None:
        return f"Not recorded: {report.reason}."
    if report.reason:
        return f"{report.record_id} is recorded as your conclusion, and not as said by the user: {report.reason}."
    if assertion.quote is not None:
        return f"{report.record_id} is recorded in the user's own words."
    return None


_HOW_TO_RECORD = "Facts, or JSON {text,key,value,quote,valid_from}"
_TOOLS: tuple[AgentTool[Any], ...] = (
    AgentTool("record_to_memory", _HOW_TO_RECORD, RecordArguments, _record),
    AgentTool("retrieve_from_memory", "Search memory", RetrieveArguments, _retrieve, writes=False),
    AgentTool("correct_memory", "Fix; quote the user", CorrectArguments, _correct),
    AgentTool("forget_memory", "Delete; quote the user", ForgetArguments, _forget),
    AgentTool(RELOAD_TOOL, RELOAD, ReloadArguments, _reload, writes=False),
)
AGENT_TOOLS = {one.name: one for one in _TOOLS}
"""The tools by their names."""


# Says where each hit of a search comes from, for a model that looks something up.

_FACTS = 5
"""Facts besides the hits of one search."""
_SAYS: dict[RecordSource, str] = {
    "explicit_user_input": "said by the user",
    "corrected_memory": "said by the user",
    "implicit_inference": CONCLUDED,
    "system_generated": "written by memory",
    "external_data": "from elsewhere",
}
"""Who says a record, by its source."""


def _origin_of(hit: Hit, scope: Scope) -> str:
    """Return where a hit comes from (this session, another one, a record or an item), and whether it has changed.

    Args:
        hit: The hit.
        scope: The session that asks.
    """
    if hit.record is not None:
        return _record_origin(hit.record, scope)
    if hit.item is not None:
        return hit.item.address
    place = "this conversation" if hit.session_id == scope.session_id else "another conversation"
    return ", ".join(filter(None, [place, changed_on(hit.changed_at)]))


def _record_origin(record: Record, scope: Scope) -> str:
    """Return the id of a record and who says it; no id if it is another user's."""
    if record.user_id != scope.user_id:
        return "shared by somebody else"
    return f"{record.memory_id}, {_SAYS[record.source]}"


def _facts_about(records: Sequence[Record], query: str, hits: Hits) -> list[Record]:
    """Return facts that are not hits, but have something of the query in their key or their words."""
    asked = set(index_terms(query))
    seen = {hit.record.memory_id for hit in hits if hit.record is not None}
    others = [one for one in records if one.key is not None and one.memory_id not in seen]
    about = [one for one in others if not asked.isdisjoint(index_terms(f"{one.key} {one.value} {one.text}"))]
    return about[:_FACTS]
