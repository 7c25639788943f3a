"""Items of a tenant: values under keys in folders. Each verb has an async twin."""

from collections.abc import Iterable, Sequence

from memlayer_core.items import flow as items
from memlayer_core.items.flow import Answer
from memlayer_core.items.model import DropItem, ItemOp, PutItem
from memlayer_core.items.rules.users import check_namespace
from memlayer_core.items.sql import users as user_items
from memlayer_core.models.foreign import EmbedderLike
from memlayer_core.runner import ASYNC, SYNC, step
from memlayer_core.scope import Scope
from memlayer_core.storage import vectors

__all__ = ["Items"]


class Items:
    """Items of a tenant: JSON values under keys, in folders. `Memory.items` makes it. It has no state of its own.

    Items belong to the application and to no user, unless their namespace is declared to be a user's
    (`declare_user_namespace`): recall in conversations does not find them, and `Memory.forget` of a user and an export of one
    leave them out. An export of a whole tenant contains them.
    """

    def __init__(
        self, memory: "memories.Memory", tenant_id: str = "default", *, omit_expired: bool = False
    ) -> None:
        Scope("anybody", tenant_id=tenant_id)  # checks the id
        self.memory = memory
        self.tenant_id = tenant_id
        self.omit_expired = omit_expired

    def declare_user_namespace(self, namespace: Sequence[str]) -> None:
        """Declare that a namespace belongs to the users: `("memories", "{user_id}")`. To do it again changes nothing.

        The items of `("memories", "ada")` and below then are ada's: `Memory.export(user_id="ada")` and `Memory.forget("ada")`
        include them, and recall in her conversations, searches and the tool `retrieve_from_memory` find them, in those 32 of
        her folders where something was put last. The store keeps the declaration, for all processes.

        Args:
            namespace: Labels, one of which is `"{user_id}"`.

        Raises:
            InvalidItemError: It is no such namespace.
        """
        labels = check_namespace(self.tenant_id, namespace)
        self.memory.runtime.db.write(user_items.declare, self.tenant_id, labels)

    async def adeclare_user_namespace(self, namespace: Sequence[str]) -> None:
        """Do `declare_user_namespace` without blocking the event loop."""
        await self.memory.runtime.threads.write(ASYNC(self.declare_user_namespace, namespace))

    def of_user(self, user_id: str) -> list[tuple[str, ...]]:
        """Return the labels of a user's folders: one in each namespace that was declared."""
        return [
            folder.labels
            for folder in self.memory.runtime.db.read(user_items.folders_of, self.tenant_id, user_id)
        ]

    async def aof_user(self, user_id: str) -> list[tuple[str, ...]]:
        """Do `of_user` without blocking the event loop."""
        return await self.memory.runtime.threads.read(ASYNC(self.of_user, user_id))

    def embeds_with(self, embedder: EmbedderLike) -> bool:
        """Return whether an embedder, in any form that `Memory.open` takes, is the one of this memory.

        Raises:
            ConfigurationError: It is no embedder.
        """
        from memlayer_core.models.embed import resolve_embedder  # numpy

        rt = self.memory.runtime
        own = rt.embedder.identity
        asked = resolve_embedder(embedder, store_identity=own, settings=rt.settings, emit=lambda _: None)
        return asked.identity == own

    def dimension(self) -> int:
        """Return the length of the memory's vectors. The embedder is asked if it has made none in this store yet.

        Raises:
            EmbedderError: The embedder does not answer.
        """
        rt = self.memory.runtime
        known = rt.db.read(vectors.layout)
        if known.dimension is not None and known.embedder == rt.embedder.identity:
            return known.dimension
        return len(rt.embedder.embed(["length"])[0])

    def batch(self, ops: Iterable[ItemOp]) -> list[Answer]:
        """Do several operations in one transaction: all of them, or none.

        Reads see the items as they were before the writes. Of several writes to one key, the last one counts. When
        this returns, everything written is durable, and queries find it.

        Args:
            ops: `GetItem`, `PutItem`, `DropItem`, `FindItems` and `ListFolders`, see `memlayer_core.items.model`.

        Returns:
            The answer of each operation; None for a write.

        Raises:
            InvalidItemError: One of them is not valid; nothing was done.
            InvalidLimitError: A number in one of them cannot be used; nothing was done.
        """
        return step(
            items.batch(self.memory.runtime, SYNC, self.tenant_id, ops, omit_expired=self.omit_expired)
        )

    async def abatch(self, ops: Iterable[ItemOp]) -> list[Answer]:
        """Do `batch` without blocking the event loop."""
        rt, ops = self.memory.runtime, list(ops)
        writes = any(isinstance(op, PutItem | DropItem) for op in ops)
        flow = items.batch(rt, ASYNC, self.tenant_id, ops, omit_expired=self.omit_expired)
        return await (rt.threads.write(flow) if writes else rt.threads.read(flow))

    def sweep(self) -> int:
        """Delete all expired items. Returns how many."""
        return step(items.sweep(self.memory.runtime, SYNC, self.tenant_id))

    async def asweep(self) -> int:
        """Do `sweep` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            items.sweep(self.memory.runtime, ASYNC, self.tenant_id)
        )

    def forget(self, labels: Sequence[str] = ()) -> int:
        """Delete all items in a folder and in the folders inside it for good, with everything that finds them.

        Args:
            labels: Labels of the folder; empty: all items of the tenant.

        Returns:
            How many items were deleted.

        Raises:
            InvalidItemError: A label cannot be used.
        """
        return step(items.forget(self.memory.runtime, SYNC, self.tenant_id, labels))

    async def aforget(self, labels: Sequence[str] = ()) -> int:
        """Do `forget` without blocking the event loop."""
        return await self.memory.runtime.threads.write(
            items.forget(self.memory.runtime, ASYNC, self.tenant_id, labels)
        )


from memlayer_core import memory as memories  # noqa: E402  (`memory` imports the class above)
