"""Reads what a model saw for earlier answers. A trace has no text: each is looked up now, and told only if it is as it was."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from memlayer_core.errors import UnknownTraceError
from memlayer_core.items.sql.reads import find_by_key
from memlayer_core.items.sql.users import searched_folders
from memlayer_core.message import PinnedText, StoredMessage
from memlayer_core.messages.rules.check import at_least_one
from memlayer_core.messages.rules.offload import merge_messages
from memlayer_core.messages.rules.render import as_prompt, summary_block
from memlayer_core.messages.rules.traces import Code, TraceBody, TracedPiece, check_of, read_body
from memlayer_core.messages.sql import traces as traces_sql
from memlayer_core.messages.sql import transcript
from memlayer_core.recall.flow.search_scope import as_told, message_of_item, message_of_record
from memlayer_core.recall.model import Reason
from memlayer_core.recall.sql import pinned as pinned_sql
from memlayer_core.records.flow import reader_of
from memlayer_core.records.model import Reader, Record
from memlayer_core.records.sql import reads as record_reads
from memlayer_core.runner import Runner
from memlayer_core.runtime import Runtime
from memlayer_core.scope import Scope
from memlayer_core.show import ViewList
from memlayer_core.storage.keys import from_micros
from memlayer_core.storage.scores import is_item, is_message, is_record
from memlayer_core.summaries import sql as summaries_sql
from memlayer_core.summaries.model import Summary
from memlayer_core.window.flow.profile import text_of
from memlayer_core.window.model import Compaction, PieceKind
from memlayer_core.window.trace import ContextTrace, PieceState, TracePiece

if TYPE_CHECKING:
    from memlayer_core.storage.database import Connection

__all__ = ["trace", "traces"]

_ID = re.compile(r"trace-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class _Lookup:
    """What the pieces of traces come from, as far as the reader may see it now.

    Attributes:
        sources: Messages, records and items, by their keys; messages without content if no texts are wanted.
        checks: What `check_of` returns for the messages.
        records: The records among them.
        replaced_keys: Keys of records of the user that have a newer version.
        summaries: Summaries of the session, by version.
        recalls: Recalls that stay with a question, by its key.
        has_texts: Whether texts are wanted.
    """

    sources: Mapping[int, StoredMessage]
    checks: Mapping[int, int]
    records: Mapping[int, Record]
    replaced_keys: Collection[int]
    summaries: Mapping[int, Summary]
    recalls: Mapping[int, PinnedText]
    has_texts: bool


async def traces(
    rt: Runtime, run: Runner, scope: Scope, limit: int, roles: Sequence[str]
) -> list[ContextTrace]:
    """Return the traces of a session without texts, the newest first."""
    at_least_one("limit", limit)

    def read(connection: Connection) -> list[ContextTrace]:
        session = transcript.find(connection, scope)
        rows = traces_sql.newest(connection, session.number, limit) if session is not None else []
        return _read(connection, rt, scope, roles, rows, has_texts=False)

    return ViewList("Traces", await run(rt.db.read, read))


async def trace(rt: Runtime, run: Runner, scope: Scope, trace_id: str, roles: Sequence[str]) -> ContextTrace:
    """Return a trace with the texts of its pieces, as far as they are unchanged.

    Raises:
        UnknownTraceError: The session has no such trace.
    """
    number = _ID.fullmatch(trace_id) if isinstance(trace_id, str) else None

    def read(connection: Connection) -> list[ContextTrace]:
        session = transcript.find(connection, scope)
        if session is None or number is None:
            return []
        row = traces_sql.with_number(connection, session.number, int(number[1]))
        return _read(connection, rt, scope, roles, [row] if row is not None else [], has_texts=True)

    for found in await run(rt.db.read, read):
        return found
    raise UnknownTraceError(
        f"the session {scope.session_id!r} has no trace {trace_id!r:.80}",
        hint="`chat.traces()` has the ids; of a session's contexts, the last `Settings.context_traces` have one.",
    )


def _read(
    connection: Connection,
    rt: Runtime,
    scope: Scope,
    roles: Sequence[str],
    rows: Sequence[Any],
    *,
    has_texts: bool,
) -> list[ContextTrace]:
    if not rows:
        return []
    bodies = [read_body(row.body, row.session) for row in rows]
    pieces = [piece for body in bodies for piece in body.pieces]
    ends = {key for row in rows for key in (row.question, row.answer)}
    reader = reader_of(rt, scope.reach(), roles).without_thresholds()
    lookup = _look_up(connection, rt, reader, rows[0].session, pieces, ends, has_texts=has_texts)
    return [_trace(rt, row, body, lookup) for row, body in zip(rows, bodies, strict=True)]


def _look_up(
    connection: Connection,
    rt: Runtime,
    reader: Reader,
    session: int,
    pieces: Sequence[TracedPiece],
    ends: set[int],
    *,
    has_texts: bool,
) -> _Lookup:
    """Read once what all these pieces come from."""
    reach = reader.reach
    keys = ends.union(*(piece.keys for piece in pieces if piece.kind != "summary"))
    of_messages, of_records, of_items = (
        sorted(filter(kind, keys)) for kind in (is_message, is_record, is_item)
    )
    find = transcript.find_messages if has_texts else traces_sql.heads
    sources = {one.key: one for one in find(connection, reach, of_messages)}
    checks = {key: check_of(one.digest, one.message.id or "") for key, one in sources.items()}
    records = record_reads.find_records(connection, reader, of_records) if of_records else {}
    missing = [key for key in of_records if key not in records]
    folders = searched_folders(connection, reach.tenant_id, reach.user_id) if of_items else ()
    items = find_by_key(connection, [folder for folder, _ in folders], of_items, rt.now())
    sources |= {key: message_of_record(rt, key, one) for key, one in records.items()}
    sources |= {key: message_of_item(rt, reach, key, one) for key, one in items.items()}
    quoted = sorted({key for piece in pieces if piece.stays for key in piece.keys})
    summed_up = any(piece.kind == "summary" for piece in pieces)
    summaries = summaries_sql.all_versions(connection, session) if summed_up else ()
    return _Lookup(
        sources,
        checks,
        records,
        record_reads.outdated(connection, reach, missing) if missing else (),
        {one.version: one for one in summaries},
        pinned_sql.read(connection, quoted, reader) if quoted else {},
        has_texts,
    )


def _trace(rt: Runtime, row: Any, body: TraceBody, lookup: _Lookup) -> ContextTrace:
    question, answer = lookup.sources.get(row.question), lookup.sources.get(row.answer)
    return ContextTrace(
        f"trace-{row.number}",
        from_micros(row.created_at),
        question.message.id if question is not None else None,
        answer.message.id if answer is not None else None,
        body.tokens,
        body.token_limit,
        "system" if body.placement == "system" else "user",
        tuple(_piece(rt, piece, lookup) for piece in body.pieces),
        body.missing,
        tuple(map(_reason, body.reasons)),
        Compaction(*body.compaction) if body.compaction is not None else None,
    )


@lru_cache(1000)
def _reason(code: Code) -> Reason:
    name, value = code
    said = name.replace("_", " ")
    return Reason(name, said if value is None else f"{said} ({value:+g})", value)


def _piece(rt: Runtime, piece: TracedPiece, lookup: _Lookup) -> TracePiece:
    """Return a piece with what became of its text, and with the text if it is wanted."""
    there = [lookup.sources[key] for key in piece.keys if key in lookup.sources]
    ids = tuple(one.message.id or "" for one in there)
    if piece.kind == "summary":
        there, ids = [], ()
    elif piece.stays:
        recall = lookup.recalls.get(piece.keys[0])
        ids = recall.ids if recall is not None else ()
    state = _state(piece, lookup)
    text = _text(rt, piece, there, lookup) if state == "stored" and lookup.has_texts else None
    if state == "stored" and lookup.has_texts and text is None:
        state = "changed"  # it is not told any more
    said = there[0].message if len(there) == 1 else None
    return TracePiece(
        cast("PieceKind", piece.kind),
        piece.tokens,
        ids,
        state,
        piece.score,
        tuple(map(_reason, piece.reasons)),
        text,
        said.created_at if said is not None else None,
        said.speaker if said is not None and not piece.stays else "",
    )


def _state(piece: TracedPiece, lookup: _Lookup) -> PieceState:
    if not piece.keys:
        return "unstored"
    there: Collection[int] = lookup.sources
    if piece.kind == "summary":
        there = lookup.summaries
    elif piece.stays:
        there = lookup.recalls
    gone = [key for key in piece.keys if key not in there]
    if gone:
        return "changed" if lookup.replaced_keys and set(gone) <= set(lookup.replaced_keys) else "gone"
    checks = zip(piece.keys, piece.checks, strict=False)  # what is no message has none
    return "stored" if all(lookup.checks[key] == check for key, check in checks) else "changed"


def _text(rt: Runtime, piece: TracedPiece, there: Sequence[StoredMessage], lookup: _Lookup) -> str | None:
    """Return the text of a piece whose sources are unchanged; None if it is not told any more."""
    match piece.kind:
        case "summary":
            return summary_block(lookup.summaries[piece.keys[0]].text)
        case "profile":
            return text_of(rt, {key: lookup.records[key] for key in piece.keys})
        case "recall" if piece.stays:
            return lookup.recalls[piece.keys[0]].text
        case "recall":
            said = as_told(rt, there[0])
            return said.message.text if said is not None else None
        case _:
            whole = as_prompt(there[0].message)
            for other in there[1:]:
                whole = merge_messages(whole, as_prompt(other.message)) or whole
            return whole.text
