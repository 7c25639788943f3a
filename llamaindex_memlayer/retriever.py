"""`MemlayerRetriever`: messages and records of a user, as nodes."""

from collections.abc import Callable, Iterable
from typing import Any, Self
from urllib.parse import quote

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from memlayer_core import Hit, Memory, RecallFilter, Scope
from memlayer_core.errors import InvalidFilterError, require
from memlayer_core.integration import check, flows, registry, roles_of, search_wider

_METADATA_FOR_CODE = ["kind", "message_id", "memory_id", "session_id", "importance", "confidence", "tags"]


class MemlayerRetriever(BaseRetriever):
    """Finds messages and records of a user, and records that other users share with them.

    Each node has a score, comparable within one answer, and this metadata: `kind` (`"message"` or `"record"`),
    `speaker` (the type of a record), `created_at` (ISO 8601, UTC) and `session_id`; a message also has `message_id`, a
    record `memory_id`, `type`, `importance`, `confidence` and `tags`. A language model sees `created_at` and `speaker`.
    A copy of a retriever is the same object: workflows copy everything in their state.

    Args:
        memory: The memory to search; open one for the whole application.
        user_id: The user. Without it, `session_id` names a session that stands alone.
        session_id: Only messages of this session.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent.
        roles: The roles in which the user asks: other users may share records with a role.
        token_limit: Tokens that all nodes may cost together, each as one line.
        similarity_top_k: Maximum number of nodes (LlamaIndex's name; LangChain's is `k`).
        filters: What may be found, `RecallFilter(kinds=["record"])`, which the search itself follows. Or conditions on the
            nodes' metadata: if few nodes pass, more hits are searched, up to 64 times
            `similarity_top_k`; nodes that are too long for the token limit are then skipped.
        **kwargs: The arguments of every retriever: `callback_manager`, `verbose` and so on.

    Raises:
        ConfigurationError: `memory` is not a `Memory`.
        InvalidScopeError: Neither a user nor a session is named, or an id cannot be stored.
        InvalidLimitError: A limit is below one.
        InvalidFilterError: `filters` is neither kind; on a search: the `RecallFilter` cannot be used.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
        roles: Iterable[str] = (),
        token_limit: int | None = None,
        similarity_top_k: int = 10,
        filters: RecallFilter | MetadataFilters | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._memory = registry.memory_of(memory)
        self._scope = Scope.of_search(
            user_id=user_id, session_id=session_id, tenant_id=tenant_id, agent_id=agent_id
        )
        check.check_whole_number("similarity_top_k", similarity_top_k, minimum=1)
        if token_limit is not None:
            check.check_whole_number("token_limit", token_limit, minimum=1)
        is_right = filters is None or isinstance(filters, RecallFilter | MetadataFilters)
        what = "a `RecallFilter` or `MetadataFilters`"
        hint = 'Pass `RecallFilter(kinds=["record"])`, or conditions as `MetadataFilters(filters=[…])`.'
        require(is_right, "filters", what, filters, hint, InvalidFilterError)
        self._roles = roles_of(roles)
        self._limit = similarity_top_k
        self._token_limit = token_limit
        self._filters = filters

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return flows.drive(self._search(query_bundle.query_str))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        threads = self._memory.runtime.threads  # raises if the memory is closed
        return await threads.drive(self._search(query_bundle.query_str))

    def _search(self, query: str) -> flows.Asking[list[NodeWithScore]]:
        return search_wider(
            self._memory.runtime,
            self._scope,
            query,
            _node,
            _condition(self._filters),
            roles=self._roles,
            limit=self._limit,
            token_limit=self._token_limit,
        )


def _condition(
    filters: RecallFilter | MetadataFilters | None,
) -> RecallFilter | Callable[[NodeWithScore], bool] | None:
    if filters is None or isinstance(filters, RecallFilter):
        return filters

    def passes(node: NodeWithScore) -> bool:
        return build_metadata_filter_fn(lambda _: node.metadata, filters)(node.node_id)

    return passes


def _id(hit: Hit) -> str:
    """Return a node's id. It names the session: message ids are unique only there, and engines drop equal ids."""
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
        record = hit.record
        metadata |= {
            "memory_id": record.memory_id,
            "type": record.type,
            "importance": record.importance,
            "confidence": record.confidence,
            "tags": list(record.tags),
        }
    else:
        metadata["message_id"] = hit.message_ids[0]
    node = TextNode(
        id_=_id(hit),
        text=hit.text,
        metadata=metadata,
        excluded_llm_metadata_keys=_METADATA_FOR_CODE,
        excluded_embed_metadata_keys=list(metadata),
    )
    return NodeWithScore(node=node, score=hit.score)
