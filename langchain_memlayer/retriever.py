"""A retriever of what a user said, was told, and is remembered by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from memlayer_core.drive import AWAITING, BLOCKING, Drive, step
from memlayer_core.flows.widen import widened
from memlayer_core.memory import Memory
from memlayer_core.records.context import Hit

__all__ = ["MemlayerRetriever"]


class MemlayerRetriever(BaseRetriever):
    """Finds turns and records of one user, the best first.

    One object serves one user: make one for each, it costs nothing, or let the run's config tell the user, with
    `retriever.configurable_fields(user_id=ConfigurableField(id="user_id"))`.

    A document's `page_content` is what was said, its `id` the message's or the record's. Its metadata has `score`
    (larger is better, comparable within one search), `kind` (`"message"` or `"record"`), `speaker`, `created_at`
    (ISO 8601), `session_id`, `tokens` and `reasons`, all of them JSON; a record's also has `type`, `importance`,
    `confidence` and `tags`.

    Args:
        memory: Where it looks.
        user_id: Whose memory is searched.
        tenant_id: The user's tenant.
        agent_id: Only sessions with this agent.
        session_id: Only what was said in this session.
        roles: The roles in which the user asks: records of others may be shown to one of them.
        k: How many documents at the most; a call may say another number, `invoke(query, k=3)`.
        token_limit: Tokens that the documents may cost together, each shown in one line.
        filter: What a document's metadata must be, `{"kind": "record"}`, or a function that tells whether to keep a
            document. Where few pass, more hits are looked at, up to 64 times as many; of those that pass, what is
            too long for the token limit is passed over.

    Raises:
        ValidationError: `memory` is no `Memory`, or an argument is missing, unknown or of another type.
        InvalidScopeError: On a search: an id is empty or cannot be stored.
        InvalidLimitError: On a search: `k` or `token_limit` is below one.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")  # a `tenant` would be passed over

    memory: Memory
    user_id: str
    tenant_id: str = "default"
    agent_id: str | None = None
    session_id: str | None = None
    roles: tuple[str, ...] = ()
    k: int = 10
    token_limit: int | None = None
    filter: dict[str, Any] | Callable[[Document], bool] | None = None

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002  (no run is begun below this one)
        k: int | None = None,
    ) -> list[Document]:
        return step(self._found(BLOCKING, query, self.k if k is None else k))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
    ) -> list[Document]:
        return await self._found(AWAITING, query, self.k if k is None else k)

    async def _found(self, drive: Drive, query: str, k: int) -> list[Document]:
        def search(most: int, token_limit: int | None) -> Awaitable[Sequence[Hit]]:
            return drive.ask(
                self.memory.search,
                self.memory.asearch,
                query,
                user_id=self.user_id,
                tenant_id=self.tenant_id,
                agent_id=self.agent_id,
                session_id=self.session_id,
                roles=self.roles,
                k=most,
                token_limit=token_limit,
            )

        return await widened(search, _document, _passing(self.filter), k, self.token_limit)


def _passing(asked: dict[str, Any] | Callable[[Document], bool] | None) -> Callable[[Document], bool] | None:
    if asked is None or callable(asked):
        return asked
    return lambda document: asked.items() <= document.metadata.items()


def _document(hit: Hit) -> Document:
    record = hit.record
    told: dict[str, Any] = {
        "score": hit.score,
        "kind": hit.kind,
        "speaker": hit.speaker,
        "created_at": hit.created_at.isoformat(),
        "session_id": hit.session_id,
        "tokens": hit.tokens,
        "reasons": [str(reason) for reason in hit.reasons],
    }
    if record is None:
        return Document(hit.text, id=hit.message_ids[0], metadata=told)
    told |= {
        "type": record.type,
        "importance": record.importance,
        "confidence": record.confidence,
        "tags": list(record.tags),
    }
    return Document(hit.text, id=record.memory_id, metadata=told)
