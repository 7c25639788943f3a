"""What is public can be read: by editors, by type checkers, by builders of tools, and without running it."""

import asyncio
import functools
import importlib
import inspect
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import griffe
import pytest
from langchain_core.tools import StructuredTool
from llama_index.core.tools import FunctionTool
from message_store import DictStore
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from memlayer_core import Chat, Memory, WindowMemory
from memlayer_core.memory import Items
from memlayer_core.session_files import SessionManager

PACKAGES = ("memlayer_core", "langchain_memlayer", "llamaindex_memlayer")
WITH_VERBS = (Memory, Chat, Items, SessionManager, WindowMemory)

NO_TWIN = {  # nothing is read or written, or nothing that could wait
    "Memory": {"chat", "chat_of", "items", "listen"},
    "Chat": {"set_memory"},
    "Items": {"dimension", "embeds_with"},
    "SessionManager": {"with_session", "add_component"},
    "WindowMemory": set(),
}
OTHER_TYPES = {  # of the framework's own making: an async iterator, and a handler that is awaited
    "MemlayerMiddleware.wrap_model_call",
    "RunnableWithMemory.stream",
}
# LangChain's own class names a type that it imports for type checkers alone.
FOREIGN_HINTS = {"MemlayerMiddleware"}
# One of their arguments is a function: no model can give it.
NOT_FOR_MODELS = {"export", "import_from", "resync"}
# LangChain cannot read `**fields: Unpack[…]`, and has to be given the arguments.
FREE_FIELDS = {"remember", "revise"}


def ours(thing: object) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in PACKAGES


def named() -> dict[str, object]:
    """Everything that the packages name, and the classes that their verbs return verbs of."""
    found = {
        f"{package}.{name}": getattr(importlib.import_module(package), name)
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
    }
    return found | {"memlayer_core.memory.Items": Items}


def members(kind: type) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """The methods, properties and classmethods that a class of ours has from us, each with the class that defines it."""
    known: set[str] = set()
    for base in filter(ours, kind.__mro__):
        for name, raw in vars(base).items():
            match raw:
                case classmethod() | staticmethod():
                    function = raw.__func__
                case property():
                    function = raw.fget
                case functools.cached_property():
                    function = raw.func
                case _:
                    function = raw
            public = name == "__init__" or not name.startswith("_")
            if public and name not in known and inspect.isfunction(function) and ours(function):
                known.add(name)
                yield base, name, function


def parts(hint: object) -> Iterator[object]:
    yield hint
    for argument in typing.get_args(hint):
        for one in argument if isinstance(argument, list | tuple) else [argument]:
            yield from parts(one)


def reachable() -> dict[object, None]:
    """What is public, and every class of ours that a hint of it names, and so on."""
    waiting, found = deque(named().values()), {}
    while waiting:
        thing = waiting.popleft()
        if thing in found:
            continue
        found[thing] = None
        functions = [thing]
        if inspect.isclass(thing):
            inside = {"runtime"}  # for memlayer's own adapters
            functions += [function for _, name, function in members(thing) if name not in inside]
        for function in functions:
            if getattr(function, "__name__", "") in FOREIGN_HINTS:
                continue
            hints = typing.get_type_hints(function)
            within = [one for hint in hints.values() for one in parts(hint)]
            waiting.extend(one for one in within if inspect.isclass(one) and ours(one))
    return found


def test_the_hints_of_everything_public_can_be_asked_for() -> None:
    things = reachable()
    assert len(things) > 90
    for thing in things:
        if inspect.isfunction(thing):
            says_all(thing, thing.__name__)
        if inspect.isclass(thing):
            for _, name, function in members(thing):
                says_all(function, f"{thing.__name__}.{name}")


def says_all(function: Callable[..., Any], where: str) -> None:
    hints = typing.get_type_hints(function)
    asked = [name for name in inspect.signature(function).parameters if name not in {"self", "cls"}]
    assert [name for name in (*asked, "return") if name not in hints] == [], where


def pairs(kind: type) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    has = {name: function for _, name, function in members(kind)}
    for name, function in has.items():
        if f"a{name}" in has and isinstance(inspect.getattr_static(kind, name), types.FunctionType):
            yield name, function, has[f"a{name}"]


def test_each_async_verb_has_the_signature_of_the_blocking_one() -> None:
    seen = 0
    for kind in filter(inspect.isclass, reachable()):
        for name, verb, twin in pairs(kind):
            where, seen = f"{kind.__name__}.{name}", seen + 1
            one, other = inspect.signature(verb), inspect.signature(twin)
            if where in OTHER_TYPES:
                assert list(one.parameters) == list(other.parameters), where
            else:
                assert one == other, where
    assert seen > 70


@pytest.mark.parametrize("kind", WITH_VERBS, ids=lambda kind: kind.__name__)
def test_each_verb_has_a_twin_that_names_it(kind) -> None:
    has = {name: function for base, name, function in members(kind)}
    own = [name for name in has if isinstance(inspect.getattr_static(kind, name), types.FunctionType)]
    verbs = [name for name in own if name != "__init__" and not inspect.iscoroutinefunction(has[name])]
    without = {name for name in verbs if not inspect.iscoroutinefunction(has.get(f"a{name}"))}
    assert without == NO_TWIN[kind.__name__]
    for name in set(verbs) - without:
        assert has[f"a{name}"].__doc__ == f"Do `{name}` without blocking the event loop."
        assert has[name].__qualname__ == f"{kind.__name__}.{name}"


@pytest.fixture(scope="module")
def written() -> dict[str, griffe.Module]:
    """The packages as they are written: nothing of them is run."""
    return {name: griffe.load(name, allow_inspection=False, docstring_parser="google") for name in PACKAGES}


def at(written: dict[str, griffe.Module], thing: Any, *inside: str) -> griffe.Object:
    package, _, rest = thing.__module__.partition(".")
    found = written[package]
    for name in (*filter(None, rest.split(".")), *thing.__qualname__.split("."), *inside):
        found = found.members[name]
    return found


@pytest.mark.slow
def test_griffe_sees_everything_public_with_a_docstring_and_its_parameters(written) -> None:
    seen = 0
    for thing in named().values():
        assert at(written, thing).docstring
        if not inspect.isclass(thing):
            continue
        for base, name, function in members(thing):
            if name == "__init__" and not isinstance(vars(base).get(name), types.FunctionType):
                continue
            if name == "__init__" and function.__qualname__.startswith("__create_fn__"):
                continue  # a dataclass's
            read, where = at(written, base, name), f"{base.__name__}.{name}"
            seen += 1
            assert read.docstring or name == "__init__", where
            if isinstance(read, griffe.Function):
                names = list(inspect.signature(function).parameters)
                assert [one.name for one in read.parameters] == names, where
    assert seen > 250


@pytest.fixture
def objects() -> Iterator[list[object]]:
    with Memory.in_memory() as memory:
        chat = memory.chat(user_id="ada", session_id="monday")
        window = WindowMemory(DictStore(), "monday")
        yield [memory, chat, memory.items(), SessionManager("monday"), window]


class Remember(BaseModel):
    """What a model gives to `remember`."""

    text: str
    importance: float = 0.5


def test_builders_of_tools_accept_every_verb(objects) -> None:
    built = 0
    for one in objects:
        for name, _, _ in pairs(type(one)):
            verb, twin = getattr(one, name), getattr(one, f"a{name}")
            more = {"args_schema": Remember} if name in FREE_FIELDS else {}
            for tool in (
                StructuredTool.from_function(verb, coroutine=twin, **more),
                StructuredTool.from_function(coroutine=twin, **more),
                FunctionTool.from_defaults(verb, async_fn=twin),
                FunctionTool.from_defaults(async_fn=twin),
            ):
                built += 1
                if name in NOT_FOR_MODELS:
                    with pytest.raises(PydanticInvalidForJsonSchema):
                        described(tool)
                else:
                    assert described(tool)["type"] == "object", name
    assert built > 150


def described(tool: StructuredTool | FunctionTool) -> dict[str, Any]:
    """What a model is told of a tool's arguments."""
    if isinstance(tool, StructuredTool):
        return tool.tool_call_schema.model_json_schema()
    return tool.metadata.get_parameters_dict()


Verb = Callable[..., Any]


def of_langchain(one: object, name: str) -> tuple[Verb, Verb]:
    more = {"args_schema": Remember} if name in FREE_FIELDS else {}
    tool = StructuredTool.from_function(getattr(one, name), coroutine=getattr(one, f"a{name}"), **more)
    return (lambda **given: tool.invoke(given)), (lambda **given: asyncio.run(tool.ainvoke(given)))


def of_llamaindex(one: object, name: str) -> tuple[Verb, Verb]:
    tool = FunctionTool.from_defaults(getattr(one, name), async_fn=getattr(one, f"a{name}"))
    return (
        lambda **given: tool.call(**given).raw_output,
        lambda **given: asyncio.run(tool.acall(**given)).raw_output,
    )


@pytest.mark.parametrize("tool", [of_langchain, of_llamaindex])
def test_verbs_answer_as_tools(objects, tool) -> None:
    memory, chat = objects[:2]
    given: dict[str, Any] = {"query": "What is Ada allergic to?"}
    sought = {"query": "Tokyo", "user_id": "ada"}
    for verb, role in zip(tool(chat, "add"), ("user", "assistant"), strict=True):
        assert verb(role=role, content=[{"type": "text", "text": "I moved to Tokyo"}]).stored == 1
    if tool is of_langchain:  # which makes objects of what a model writes
        message = {"role": "user", "content": "And in May to Kyoto", "created_at": "2026-05-01T12:00:00Z"}
        assert tool(chat, "add_messages")[0](messages=[message]).stored == 1
        assert chat.history()[-1].created_at.month == 5
        given["told"], sought["now"] = [{"role": "user", "content": "hello"}], "2026-06-01T00:00:00"
    assert chat.history()[0].text == "I moved to Tokyo"
    remember, aremember = tool(chat, "remember")
    assert remember(text="Ada is allergic to nuts", importance=0.9).importance == 0.9
    assert aremember(text="Ada is allergic to nuts").mentions == 2
    memory.flush()
    assert all("nuts" in recall(**given)[0].text for recall in tool(chat, "recall"))
    assert all("Tokyo" in search(**sought)[0].text for search in tool(memory, "search"))
