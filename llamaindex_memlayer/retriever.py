"""`MemlayerRetriever`: what a user said, and what is remembered of them, as nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Self
from urllib.parse import quote

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from memlayer_core.drive import AWAITING, BLOCKING, Drive, step
from memlayer_core.errors import InvalidScopeError
from memlayer_core.flows.widen import widened
from memlayer_core.memory import Memory, memory_of
from memlayer_core.records.context import Hit
from memlayer_core.records.scope import Scope
from memlayer_core.rules.check import at_least_one
from memlayer_core.rules.records import roles_of

__all__ = ["MemlayerRetriever"]

_FOR_MACHINES = ["kind", "message_id", "memory_id", "session_id", "importance", "confidence", "tags"]


class MemlayerRetriever(BaseRetriever):
    """Finds what a user said, was told, or is remembered by, and records that others share with them.

    Each node has a score, which compares within one answer, and this metadata: `kind` (`"message"` or
    `"record"`), `speaker` (a record's type), `created_at` (ISO 8601, UTC), `session_id`, and `message_id`; of a
    record `memory_id`, `type`, `importance`, `confidence` and `tags`. A language model is shown when and who.
    A copy of a retriever is itself: workflows copy what is in their state.

    Args:
        memory: Where it is kept; open one for the whole application.
        user_id: Whose memory. Without it, `session_id` is that of a session that stands alone.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent.
        session_id: Only what was said in this session.
        roles: The roles in which the user asks: records of others may be shown to one of them.
        similarity_top_k: Nodes at the most.
        token_limit: Tokens that they may cost together, each shown in one line.
        filters: What their metadata must be. Where few pass, more hits are looked at, up to sixty-four times
            as many as are wanted; of those that pass, what is too long for the token limit is passed over.
        **kwargs: What every retriever takes: `callback_manager`, `verbose` and so on.

    Raises:
        ConfigurationError: `memory` is no `Memory`.
        InvalidScopeError: Nobody is named, or an id cannot be stored.
        InvalidLimitError: A limit below one.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        roles: Iterable[str] = (),
        similarity_top_k: int = 10,
        token_limit: int | None = None,
        filters: MetadataFilters | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._memory = memory_of(memory)
        if user_id is None and session_id is None:
            raise InvalidScopeError(
                "nobody is named whose memory is to be searched",
                hint="Pass `user_id=…`, or the `session_id=…` of a session without a user.",
            )
        if session_id is not None:
            whose = {"user_id": user_id, "tenant_id": tenant_id, "agent_id": agent_id}
            self._reach = Scope.of_session(session_id, **whose)  # type: ignore[arg-type]
        else:
            self._reach = Scope(user_id, None, agent_id, tenant_id)  # type: ignore[arg-type]  # None is refused
        at_least_one("similarity_top_k", similarity_top_k)
        if token_limit is not None:
            at_least_one("token_limit", token_limit)
        self._roles = roles_of(roles)
        self._most = similarity_top_k
        self._token_limit = token_limit
        self._filters = filters

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return step(self._found(BLOCKING, query_bundle.query_str))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._found(AWAITING, query_bundle.query_str)

    async def _found(self, drive: Drive, query: str) -> list[NodeWithScore]:
        def search(most: int, token_limit: int | None) -> Awaitable[Sequence[Hit]]:
            return drive.ask(
                self._memory.search,
                self._memory.asearch,
                query,
                user_id=self._reach.user_id,
                tenant_id=self._reach.tenant_id,
                agent_id=self._reach.agent_id,
                session_id=self._reach.session_id,
                roles=self._roles,
                k=most,
                token_limit=token_limit,
            )

        return await widened(search, _node, _passing(self._filters), self._most, self._token_limit)


def _passing(filters: MetadataFilters | None) -> Callable[[NodeWithScore], bool] | None:
    if filters is None:
        return None

    def passes(node: NodeWithScore) -> bool:
        return build_metadata_filter_fn(lambda _: node.metadata, filters)(node.node_id)

    return passes


def _id(hit: Hit) -> str:
    """Return a node's id: engines leave out a second node of an id, and message ids are a session's own."""
    if hit.record is not None:
        return f"record/{quote(hit.record.memory_id, safe='')}"
    return f"message/{quote(hit.session_id, safe='')}/{quote(hit.message_ids[0], safe='')}"


def _node(hit: Hit) -> NodeWithScore:
    metadata: dict[str, Any] = {
        "created_at": hit.created_at.isoformat(),
        "speaker": hit.speaker,
        "kind": hit.kind,
        "session_id": hit.session_id,
    }
    if hit.record is not None:
        of_record = hit.record
        metadata |= {
            "memory_id": of_record.memory_id,
            "type": of_record.type,
            "importance": of_record.importance,
            "confidence": of_record.confidence,
            "tags": list(of_record.tags),
        }
    else:
        metadata["message_id"] = hit.message_ids[0]
    node = TextNode(
        id_=_id(hit),
        text=hit.text,
        metadata=metadata,
        excluded_llm_metadata_keys=_FOR_MACHINES,
        excluded_embed_metadata_keys=list(metadata),
    )
    return NodeWithScore(node=node, score=hit.score)
