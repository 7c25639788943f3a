"""The memory's tools, in either framework: for the user that they were made for, and nobody else."""

import json
import re
from typing import Any

import pytest
from promises import Line

from memlayer_core import RecallFilter, ToolCall, errors
from memlayer_core.tools import AGENT_TOOLS
from tests.conftest import offload_id

RECORD, RETRIEVE, CORRECT, FORGET, RELOAD = AGENT_TOOLS
REPORT = "\n".join(f"{number} of pears: {number * 7919 % 1000} kilograms" for number in range(500))
PREVIEW = re.compile(r"call context_reload with id '(msg-\d+)'")
NEXT = re.compile(r"\n\[characters [\d,]+ to [\d,]+ of [\d,]+; .* offset (\d+) to read on\]$")


@pytest.fixture
def session(memory: Any, kit: Any) -> Any:
    """Return a session of Ada's, in which she and bob, in his, said what they grow."""
    for user, fruit in (("ada", "pears"), ("bob", "plums")):
        memory.chat(user_id=user, session_id="monday").add("user", f"I grow {fruit}.")
    return kit.door.open(memory, token_limit=4000)


@pytest.fixture
def tools(session: Any, kit: Any) -> dict[str, Any]:
    return kit.tools(session)


@pytest.mark.requirement("A15")
def test_a_model_sees_what_to_give_and_nothing_of_whose_memory_it_is(kit, tools) -> None:
    shown = {name: kit.parameters(tool) for name, tool in tools.items()}
    assert {name: set(fields) for name, fields in shown.items()} == {
        RECORD: {"thinking", "content"},
        RETRIEVE: {"keywords"},
        CORRECT: {"memory_id", "text", "reason", "value", "quote"},
        FORGET: {"memory_ids", "quote"},
        RELOAD: {"id", "offset"},
    }
    assert [*tools] == [*AGENT_TOOLS]
    assert shown[RECORD]["content"]["type"] == "array"
    assert "msg-17" in shown[RELOAD]["id"]["description"]
    assert "ada" not in str(shown)
    assert "session" not in str(shown)


@pytest.mark.requirement("A12", "A15")
def test_what_an_agent_records_another_one_finds_in_another_session(do, kit, memory, tools) -> None:
    def records(results: list[str]) -> Any:
        return "noted" if results else (RECORD, {"thinking": "it matters", "content": ["Ada loves figs."]})

    def looks(results: list[str]) -> Any:
        return "found" if results else (RETRIEVE, {"keywords": ["loves"]})

    assert kit.agent(do, [*tools.values()], records) == (["Recorded: ada_mem_001"], "noted")
    later = kit.tools(memory, user_id="ada", session_id="tuesday")
    [found], _ = kit.agent(do, [*later.values()], looks)
    assert "Ada loves figs." in found
    [kept] = memory.records(user_id="ada")
    assert (kept.session_id, kept.source) == ("monday", "implicit_inference")


@pytest.mark.requirement("A10", "A15", "M23")
def test_no_model_reaches_another_user_or_session_by_naming_one(do, kit, memory, session, tools) -> None:
    memory.chat(user_id="bob").remember("Bob's pear is blue.")
    other = kit.door.open(memory, "other")
    getattr(other, kit.door.add)([kit.door.message("user", "my secret")])
    forged = {"user_id": "bob", "tenant_id": "default", "session_id": "other", "token_limit": 10**6}
    forged |= {"config": {"configurable": forged}, "runtime": {"context": forged}, "kwargs": forged}
    for named in ({}, forged):
        found, _ = kit.use(do, tools[RETRIEVE], keywords=["grow", "pear"], **named)
        assert "pears" in found
        assert not any(word in found for word in ("plums", "blue"))
        kit.use(do, tools[RECORD], thinking="x", content=["Ada loves figs."], **named)
        secret = offload_id(other.chat, 0)
        for tool, own in ((tools[RELOAD], session), (kit.reload_tool(session), session)):
            answer, is_error = kit.use(do, tool, id=secret, **named)
            assert f"no message '{secret}'" in answer
            assert is_error
            assert kit.use(do, tool, id=offload_id(own.chat, 0), **named) == ("I grow pears.", False)
    assert [one.text for one in memory.records(user_id="bob")] == ["Bob's pear is blue."]


def test_what_a_tool_found_is_quoted_by_no_later_search(do, kit, memory, session, tools) -> None:
    for _ in range(2):
        found, _ = kit.use(do, tools[RETRIEVE], keywords=["grow"])
        session.chat.add("assistant", tool_calls=[ToolCall("c", RETRIEVE, "{}")])
        session.chat.add("tool", found, name=RETRIEVE, tool_call_id="c")
        memory.flush()
        assert found.count("pears") == 1


def test_they_are_made_of_a_memory_and_ids_or_of_a_conversation(do, kit, memory, session) -> None:
    memory.chat(user_id="bob").remember("Bob grows quinces.", visibility="share", allowed_roles=["cook"])
    ids = {"user_id": "ada", "session_id": "monday"}
    only_records = RecallFilter(kinds=["record"])
    for tools, finds in (
        (kit.tools(session), {"pears"}),
        (kit.tools(session.chat), {"pears"}),
        (kit.tools(memory, **ids), {"pears"}),
        (kit.tools(memory, **ids, roles=iter(["cook"])), {"pears", "quinces"}),
        (kit.tools(memory, **{**ids, "user_id": "bob"}), {"plums", "quinces"}),
        (kit.tools(session, filter=only_records), set()),
        (kit.tools(memory, **ids, filter=only_records), set()),
        (kit.tools(memory, **ids, tenant_id="other"), set()),
        (kit.tools(memory, **ids, agent_id="clerk"), set()),
    ):
        for _ in range(2):
            found, _ = kit.use(do, tools[RETRIEVE], keywords=["grow", "grows"])
            assert {fruit for fruit in ("pears", "plums", "quinces") if fruit in found} == finds
        assert bool(finds) == (found != "Nothing was found.")
    for source in (session, session.chat):
        with pytest.raises(errors.ConfigurationError, match="its own ids"):
            kit.tools(source, user_id="ada")
    with pytest.raises(errors.ConfigurationError, match=r"[Mm]emory"):
        kit.tools("./memory", user_id="ada")
    with pytest.raises(errors.InvalidLimitError):
        kit.tools(memory, user_id="ada", token_limit=0)
    for whole in (memory, "./memory", None):
        with pytest.raises(errors.ConfigurationError, match="one conversation") as refused:
            kit.reload_tool(whole)
        assert re.search(r"memory\.chat\(|create_memory_tools\(memory\)", refused.value.hint)


BROKEN = "\0\udc80"


@pytest.mark.trap("langchain", 15)
@pytest.mark.requirement("A10")
def test_a_wrong_call_is_told_as_an_error_and_the_agent_goes_on(do, kit, memory, session, tools) -> None:
    session.chat.add("user", "a card for people", model_visible=False)
    for name, given, says in (
        (RECORD, {"thinking": "x"}, "content"),
        (RECORD, {"thinking": "x", "content": "a text"}, "valid list"),  # not letter by letter
        (RECORD, {"thinking": "x", "content": []}, "Nothing was recorded"),
        (RECORD, {"thinking": "x", "content": ['{"key": "fruit", "value": ["pear"]}']}, ".text"),
        (RECORD, {"thinking": BROKEN, "content": [f"a pear{BROKEN}"]}, "`text`"),
        (RECORD, {"thinking": "x", "content": [{"text": "x", "valid_from": "soon"}]}, "ISO date"),
        (RETRIEVE, {"words": "pears"}, "keywords"),
        (RETRIEVE, {"keywords": "pears"}, "valid list"),
        (RETRIEVE, {"keywords": [" "]}, "Nothing was looked up"),
        (RELOAD, {"id": offload_id(session.chat, 1)}, "this session has no message"),
        (RELOAD, {"id": "msg-99"}, "this session has no message 'msg-99'. The id of an offloaded message is"),
        (
            RELOAD,
            {"id": f"msg-{BROKEN}"},
            "is not an id of an offloaded message. Use an id as a preview shows it",
        ),
        (RELOAD, {"id": "msg-1", "offset": 10**7}, "`offset` must be a whole number from 0 to"),
        (RELOAD, {"id": "msg-1", "offset": -1}, "`offset` must be a whole number from 0 to"),
        (RELOAD, {"id": "msg-1", "offset": "behind"}, "offset"),
    ):
        answer, is_error = kit.use(do, tools[name], **given)
        assert says in answer
        assert is_error or answer.startswith("Nothing was"), (name, given)
    assert memory.records(user_id="ada") == []
    assert "pears" in kit.use(do, tools[RETRIEVE], keywords=[f"{BROKEN} grow {BROKEN}"])[0]

    def wrong(results: list[str]) -> Any:
        return f"sorry, {results[0]}" if results else (RELOAD, {"id": "msg-99"})

    [result], said = kit.agent(do, [tools[RELOAD]], wrong)
    assert said == f"sorry, {result}"


@pytest.mark.requirement("A15")
@pytest.mark.parametrize("written", [lambda fact: fact, json.dumps], ids=["as it is", "as text"])
def test_an_agent_records_corrects_and_forgets_what_it_may(do, kit, memory, session, tools, written) -> None:
    def known() -> dict[str, Any]:
        return {one.text: one.valid_from for one in memory.records(user_id="ada")}

    session.chat.add("user", "My locker is 17.")
    locker = {"key": "locker", "value": 17, "quote": "My locker is 17", "valid_from": None}
    facts = [{**locker, "asserted_by": "user"}, {"text": "Ada has a dog.", "valid_from": "2021-02-03"}]
    kit.use(do, tools[RECORD], thinking="", content=[*map(written, facts)])
    assert f"{known()['Ada has a dog.']:%Y-%m-%d}" == "2021-02-03"
    change = {"memory_id": "ada_mem_002", "text": "Ada has a cat.", "reason": "it meows"}
    assert "version 2" in kit.use(do, tools[CORRECT], **change)[0]
    locked = {"memory_ids": ["ada_mem_001"]}
    answer, is_error = kit.use(do, tools[FORGET], **locked)
    assert is_error
    assert "what the user said" in answer
    assert {*known()} == {"My locker is 17", "Ada has a cat."}
    session.chat.add("user", "Forget my locker, please.")
    assert not kit.use(do, tools[FORGET], **locked, quote="forget my locker")[1]
    assert {*known()} == {"Ada has a cat."}


# What a context shows a preview of


@pytest.fixture
def reported(kit: Any, memory: Any) -> Any:
    """Return a session in which a tool reported more than a model is shown."""
    door = kit.door
    made = door.open(memory, "reports", token_limit=4000, **door.previews)
    calls = door.build(Line((), "assistant", "", calls=("c1",)))
    getattr(made, door.add)([calls, door.message("tool", REPORT, answers="c1")])
    return made


def preview(kit: Any, message: Any) -> str:
    """Return the id that a preview names."""
    return PREVIEW.search(kit.door.line_of(message).text)[1]


@pytest.mark.requirement("A08", "A10", "A11", "A21")
def test_an_agent_reads_all_of_a_huge_result_that_it_sees_a_preview_of(do, kit, memory, reported) -> None:
    shown = do(reported, kit.door.context)[-1]
    place = preview(kit, shown)

    def reads_on(results: list[str]) -> Any:
        following = NEXT.search(results[-1]) if results else None
        if results and not following:
            return "read"
        return RELOAD, {"id": place} | ({"offset": int(following[1])} if following else {})

    parts, said = kit.agent(do, [kit.reload_tool(reported)], reads_on)
    assert len(kit.door.line_of(shown).text) < len(REPORT)
    assert "".join(NEXT.sub("", part) for part in parts) == REPORT
    assert max(memory.tokens.text(part) for part in parts) <= 1000, "a quarter of the limit"
    assert len(parts) > 2
    assert said == "read"
    assert kit.door.line_of(kit.door.kept(reported)[-1]).text == REPORT
    whole = kit.reload_tool(reported.chat, token_limit=10**6)
    assert kit.use(do, whole, id=place) == (REPORT, False)
    part, _ = kit.use(do, kit.tools(reported.chat, token_limit=400)[RELOAD], id=place)
    assert memory.tokens.text(part) <= 100


@pytest.mark.requirement("A08", "A10")
def test_what_was_read_again_is_told_whole_while_older_results_shrink(do, kit, reported) -> None:
    door, tool = kit.door, kit.reload_tool(reported)
    place = preview(kit, do(reported, door.context)[-1])
    for number in range(5):
        part, _ = kit.use(do, tool, id=place, offset=0)
        calls = door.build(Line((), "assistant", "", calls=(f"r{number}",)))
        do(reported, door.add, [calls, door.message("tool", part, answers=f"r{number}")])
    told = do(reported, door.context)
    assert told[-1] == door.kept(reported)[-1]
    assert preview(kit, told[-9]) != place, "it is the first part's own"
    assert reported.chat.context(token_limit=4000).tokens <= 4000
