"""A filter decides before anything is ranked: a search is as if nothing else were stored."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tuned import Tuned

from memlayer_core import Memory, Message, RecallFilter, errors

pytestmark = pytest.mark.each_database

MAY = datetime(2026, 5, 1, tzinfo=UTC)
QUIET = Tuned(index_delay=3600, durability="normal", episodes=False)
NAMES = ("Ada", "Bob", None)
ROLES = ("user", "assistant")
SESSIONS = ("spring", "summer", "autumn")
TYPES = ("semantic", "preference", "procedural")
TAGS = ("work", "home")


@dataclass(frozen=True)
class Text:
    """A text of the store, and all that a filter can ask of it."""

    text: str
    kind: str
    at: datetime
    session: str
    tags: frozenset[str] = frozenset()
    speakers: frozenset[str] = frozenset()
    metadata: dict[str, Any] = field(default_factory=dict)


def messages() -> Iterator[Text]:
    for number in range(45):
        whose = frozenset({ROLES[number % 2], *filter(None, [NAMES[number % 5 % 3]])})
        project = "apollo" if number % 4 else "gemini"
        metadata = {"project": project, "score": number % 7} if number % 3 else {}
        at, session = MAY + timedelta(days=number), SESSIONS[number % 3]
        yield Text(f"kayak {number}", "message", at, session, speakers=whose, metadata=metadata)


def records() -> Iterator[Text]:
    tags = [frozenset(TAGS[:number]) for number in range(3)]
    for number in range(50, 77):
        kind, at = TYPES[number % 3], MAY + timedelta(days=number)
        yield Text(f"kayak {number}", kind, at, SESSIONS[number % 2], tags[number // 3 % 3])


STORED = [*messages(), *records()]  # all have a word in common


def fill(memory: Memory) -> None:
    for one in STORED:
        chat = memory.chat(user_id="ada", session_id=one.session)
        if one.kind == "message":
            role = next(role for role in ROLES if role in one.speakers)
            name = next((name for name in NAMES if name in one.speakers), None)
            chat.add_messages([Message(role, one.text, name=name, created_at=one.at, metadata=one.metadata)])
        else:
            chat.remember(one.text, type=one.kind, tags=one.tags, occurred_at=one.at)
    memory.chat(user_id="eve", session_id="spring").add("user", "kayak of somebody else")
    memory.chat(user_id="eve").remember("kayak of us all", visibility="public", tags=["work"])
    memory.flush()


def passing(one: Text, wanted: RecallFilter) -> bool:
    is_record = one.kind != "message"
    return (
        (not wanted.kinds or one.kind in wanted.kinds or (is_record and "record" in wanted.kinds))
        and (set(wanted.tags) <= one.tags)
        and (not wanted.speakers or bool(one.speakers & set(wanted.speakers)))
        and (not wanted.sessions or one.session in wanted.sessions)
        and (wanted.since is None or one.at >= wanted.since)
        and (wanted.until is None or one.at < wanted.until)
        and (not wanted.metadata or (not is_record and meets(one.metadata, wanted.metadata)))
    )


def meets(metadata: dict[str, Any], conditions: Any) -> bool:
    project, score = conditions.get("project"), conditions.get("score", {}).get("$gte")
    is_of_project = project is None or metadata.get("project") == project
    return is_of_project and (score is None or metadata.get("score", -1) >= score)


def some(values: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.just([]) | st.lists(st.sampled_from(values), max_size=2)


BOTH = {"project": "gemini", "score": {"$gte": 2}}
moments = st.none() | st.integers(0, 80).map(lambda days: MAY + timedelta(days=days))
filters = st.builds(
    RecallFilter,
    kinds=some(("message", "record", *TYPES)),
    tags=some(TAGS),
    speakers=some(("Ada", "Bob", *ROLES)),
    sessions=some(SESSIONS),
    since=moments,
    until=moments,
    metadata=st.sampled_from([{}, {}, {"project": "apollo"}, {"score": {"$gte": 3}}, BOTH]),
).filter(lambda one: one.since is None or one.until is None or one.since < one.until)


POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(scope="module", params=["scan", "index", POSTGRES])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """Return a store that compares vectors one by one, one that asks Chroma, and one in PostgreSQL."""
    limits = QUIET.replace(exact_scan_limit=5) if request.param == "index" else QUIET
    at: Any = {"path": tmp_path_factory.mktemp("store")}
    if request.param == "postgres":
        at = {"database_url": request.getfixturevalue("_shared_postgres")[0]}
    with Memory.open(**at, embedder="hashing", settings=limits) as memory:
        fill(memory)
        yield memory


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(wanted=filters)
def test_with_a_filter_what_passes_is_found_and_told_and_nothing_else(full, wanted) -> None:
    every = {one.text for one in STORED if passing(one, wanted)}
    shared = not (wanted.sessions or wanted.speakers or wanted.metadata or "home" in wanted.tags) and (
        not wanted.kinds or not {"record", "semantic"}.isdisjoint(wanted.kinds)
    )
    of_all = full.search("us all", user_id="ada", limit=1, filter=RecallFilter(kinds=["record"]))
    written = of_all[0].created_at
    if shared and (wanted.since or written) <= written and (wanted.until is None or written < wanted.until):
        every.add("kayak of us all")
    assert {hit.text for hit in full.search("kayak", user_id="ada", limit=100, filter=wanted)} == every
    chat = full.chat(user_id="ada", session_id="new")
    assert {hit.text for hit in chat.recall("Which kayak is it?", limit=50, filter=wanted)} <= every
    pieces = {piece.text for piece in chat.context("Which kayak is it?", filter=wanted).pieces}
    assert {text.rpartition(": ")[2] for text in pieces} <= {*every, ""}


@pytest.mark.slow
@pytest.mark.parametrize("scan", [1, 1000])
def test_three_hundred_nearer_texts_that_do_not_pass_take_nobodys_place(tmp_path: Any, scan: int) -> None:
    def nearness(texts: list[str]) -> list[list[float]]:
        return [[1.0, 1.0 if "mango" in text else 0.5 if "plum" in text else 0.0] for text in texts]

    with Memory.open(tmp_path, embedder=nearness, settings=QUIET.replace(exact_scan_limit=scan)) as memory:
        chat = memory.chat(user_id="ada")
        chat.add_messages([Message("user", f"plum {number}") for number in range(300)])
        chat.add_messages([Message("assistant", f"mango {number}") for number in range(20)])
        memory.flush()
        wanted = RecallFilter(speakers=["assistant"])
        hits = memory.search("what?", user_id="ada", limit=10, filter=wanted)
        assert [hit.role for hit in hits] == ["assistant"] * 10


def test_a_common_word_of_a_thousand_newer_texts_takes_nobodys_place(open_with: Any) -> None:
    memory, jam = open_with(QUIET), "apricot and cranberry jam"
    memory.chat(user_id="ada", session_id="old").add("user", jam)
    new = memory.chat(user_id="ada", session_id="new")
    new.add_messages([Message("user", f"apricot cranberry {number}") for number in range(1100)])
    wanted = RecallFilter(sessions=["old"])
    hits = memory.search("apricot cranberry", user_id="ada", limit=5, filter=wanted)
    assert [hit.text for hit in hits] == [jam]


def test_an_empty_filter_is_none_and_one_of_another_user_finds_nothing_of_theirs(full: Memory) -> None:
    every = full.search("kayak", user_id="ada", limit=100)
    assert full.search("kayak", user_id="ada", limit=100, filter=RecallFilter()) == every
    hits = full.search("kayak", user_id="eve", filter=RecallFilter(sessions=["spring"]))
    assert [hit.text for hit in hits] == ["kayak of somebody else"]


def test_a_filter_that_cannot_be_used_is_refused_with_what_to_do(memory) -> None:
    chat = memory.chat(user_id="ada")
    for wrong, named in (
        ({"kinds": ["record"]}, "`filter` must be a `RecallFilter`"),
        (RecallFilter(kinds=["fact"]), "`kinds` has 'fact', which is not a kind"),
        (RecallFilter(tags="work"), "`tags` must be a list of texts"),
        (RecallFilter(sessions=[3]), "`sessions` has 3"),
        (RecallFilter(since="May"), "`since` must be a datetime"),
        (RecallFilter(since=MAY, until=MAY), "nothing is both"),
        (RecallFilter(metadata={"score": {"$near": 3}}), "Unsupported operator: '$near'"),
        (RecallFilter(metadata=["apollo"]), "`metadata` must be a mapping"),
    ):
        for verb in (partial(memory.search, user_id="ada"), chat.recall, chat.context):
            with pytest.raises(errors.InvalidFilterError) as refused:
                verb("kayak?", filter=wrong)
            assert named in str(refused.value)
            assert refused.value.hint
