"""What every context promises, on the frameworks' own messages: each spelling of tool calls, images, hidden messages."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from promises import Line, assert_kept, assert_within, policies, talks, token_limits
from tuned import Tuned

from examples import examples
from memlayer_core import Memory, errors
from memlayer_core.seams import Limits
from memlayer_core.window.fit import limits

QUIET = Tuned(index_delay=3600, durability="normal", recall_tokens=0)
SMALL = QUIET.replace(offload_characters=250, preview_characters=40, last_keep=4)
WAYS = {"offloaded": SMALL, "truncated": SMALL.replace(truncate_messages=True, truncate_characters=100)}


@pytest.fixture(scope="module", params=WAYS, ids=WAYS.keys())
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    with Memory.in_memory(settings=WAYS[request.param], tokenizer="estimate") as opened:
        yield opened


def session_of(memory: Memory, door: Any, messages: Sequence[Any], **options: Any) -> Any:
    session = door.open(memory, str(uuid.uuid4()), user_id=None, **options)
    getattr(session, door.add)(messages)
    return session


def told(session: Any, door: Any) -> list[Any]:
    """Return what a model is told, where anything fits."""
    try:
        return getattr(session, door.context)()
    except errors.InvalidLimitError:
        assume(False)
        raise


def drawn(data: st.DataObject, door: Any) -> tuple[list[Line], list[Any]]:
    """Draw a talk, and its messages in one of a door's spellings."""
    talk = data.draw(talks(nameless=door.takes_nameless_results))
    spelling = data.draw(st.sampled_from(door.spellings))
    return talk, [door.build(line, spelling) for line in talk]


@pytest.mark.trap("langchain", 17, 19)
@pytest.mark.trap("llamaindex", 12, 13, 14, 15)
@pytest.mark.requirement("F11", "F12", "J06", "J10", "L04", "L05", "L13", "L14", "L15", "A19", "M03")
@given(data=st.data(), limit=token_limits, policy=policies)
@examples(100)
def test_a_list_of_messages_for_a_model_keeps_its_promises(memory, door, data, limit, policy) -> None:
    said, messages = drawn(data, door)
    session = session_of(memory, door, messages, token_limit=limit, policy=policy)
    shown = told(session, door)
    lines = [door.line_of(message) for message in shown]
    assert_kept(said, lines)
    codes = {one.code for one in session.chat.context(token_limit=limit, policy=policy).reasons}
    tokens = sum(memory.tokens.message(door.to_core(message)) for message in shown)
    assert_within(lines, tokens, limits(Limits(SMALL.max_tokens), policy, limit), codes)
    assert door.kept(session) == messages
    assert told(session, door) == shown
    assert getattr(session, door.context)(token_limit=limit, policy=policy) == shown


@pytest.mark.requirement("L05")
@given(data=st.data(), limit=token_limits)
@examples(50)
def test_the_window_of_a_window_is_the_window(memory, door, data, limit) -> None:
    _, messages = drawn(data, door)
    shown = told(session_of(memory, door, messages, token_limit=limit), door)
    assume(sum(memory.tokens.message(door.to_core(message)) for message in shown) <= limit)
    assert told(session_of(memory, door, shown, token_limit=limit), door) == shown
