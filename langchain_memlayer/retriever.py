"""A retriever of a user's messages and records."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict, Unpack

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from memlayer_core import Hit, Memory, RecallFilter, Scope
from memlayer_core.integration import flows, registry, roles_of, search_wider
from memlayer_core.message import JSON


class RetrieverOptions(TypedDict, total=False):
    """The options of a `MemlayerRetriever`: see its attributes."""

    user_id: str | None
    session_id: str | None
    tenant_id: str
    agent_id: str | None
    roles: Iterable[str]
    token_limit: int | None
    k: int
    filter: RecallFilter | dict[str, JSON] | Callable[[Document], bool] | None
    tags: list[str] | None
    metadata: dict[str, Any] | None


class MemlayerRetriever(BaseRetriever):
    """Finds messages and records of a user, and records that other users share with them, the best first.

    One object serves one user. Make one for each user (it is cheap), or let the run's config name the user:
    `retriever.configurable_fields(user_id=ConfigurableField(id="user_id"))`.

    A document's `page_content` is the text of the message or record, its `id` that of the message or record. Its
    metadata is JSON: `score` (larger is better, comparable within one search), `kind` (`"message"` or `"record"`),
    `speaker`, `created_at` (ISO 8601), `session_id`, `tokens` and `reasons`; a record also has `type`, `importance`,
    `confidence` and `tags`.

    Args:
        memory: The memory to search; open one for the whole application.
        **options: The attributes below by their names, and `tags` and `metadata` for traces, as every retriever has them.

    Attributes:
        user_id: The user. Without it, `session_id` names a session that stands alone.
        session_id: Only messages of this session.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent.
        roles: The roles in which the user asks: other users may share records with a role.
        token_limit: Tokens that all documents may cost together, each as one line.
        k: Maximum number of documents (LangChain's name; LlamaIndex's is `similarity_top_k`); a call may have its own,
            `invoke(query, k=3)`.
        filter: What may be found, `RecallFilter(kinds=["record"])`, which the search itself follows. Or required metadata of
            documents, `{"kind": "record"}`, or a function that returns whether to keep a document: if few
            documents pass, more hits are searched, up to 64 times `k`; documents that are too long for the token
            limit are then skipped.

    Raises:
        ConfigurationError: `memory` is not a `Memory`.
        ValidationError: An argument is unknown or of another type.
        InvalidScopeError: Neither a user nor a session is named; on a search: an id is empty or cannot be stored.
        InvalidRecordError: `roles` is not a list of texts.
        InvalidLimitError: On a search: `k` or `token_limit` is below one.
        InvalidFilterError: On a search: the `RecallFilter` cannot be used.
    """

    # Without "forbid", a misspelled `tenant` would be ignored.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    memory: Memory
    user_id: str | None = None
    session_id: str | None = None
    tenant_id: str = "default"
    agent_id: str | None = None
    roles: tuple[str, ...] = ()
    token_limit: int | None = None
    k: int = 10
    filter: RecallFilter | dict[str, JSON] | Callable[[Document], bool] | None = None

    def __init__(self, memory: Memory, **options: Unpack[RetrieverOptions]) -> None:
        # pydantic's own constructor would not take `memory` by position, and would read an iterator of roles once
        roles = roles_of(options.get("roles", ()))
        super().__init__(memory=registry.memory_of(memory), **{**options, "roles": roles})
        if self.user_id is None and self.session_id is None:
            self._scope()  # raises, and says what to name; other ids are checked by each search

    def _scope(self) -> Scope:
        return Scope.of_search(
            user_id=self.user_id, session_id=self.session_id, tenant_id=self.tenant_id, agent_id=self.agent_id
        )

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return flows.drive(self._search(query, k))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return await self.memory.runtime.threads.drive(self._search(query, k))

    def _search(self, query: str, k: int | None) -> flows.Asking[list[Document]]:
        wanted, limit = self.filter, self.k if k is None else k
        keep = (lambda one: wanted.items() <= one.metadata.items()) if isinstance(wanted, dict) else wanted
        options: Any = {"roles": self.roles, "limit": limit, "token_limit": self.token_limit}
        return search_wider(self.memory.runtime, self._scope(), query, _document, keep, **options)


def _document(hit: Hit) -> Document:
    record = hit.record
    names = ("score", "kind", "speaker", "session_id", "tokens")
    metadata: dict[str, Any] = {name: getattr(hit, name) for name in names}
    metadata |= {"created_at": hit.created_at.isoformat(), "reasons": [*map(str, hit.reasons)]}
    if record is None:
        return Document(hit.text, id=hit.message_ids[0], metadata=metadata)
    metadata |= {name: getattr(record, name) for name in ("type", "importance", "confidence")}
    metadata["tags"] = [*record.tags]
    return Document(hit.text, id=record.memory_id, metadata=metadata)
