"""Items of a tenant: values under keys in folders. Each verb has an async twin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from memlayer_core.drive import Drive, both
from memlayer_core.flows import items as flows
from memlayer_core.records.item import ItemOp
from memlayer_core.records.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.memory import Memory

__all__ = ["HasItems", "Items"]


class Items:
    """What an application keeps for a tenant under keys, in folders. Made by `Memory.items`; cheap, and stateless.

    Items are the application's own: no user is known here, so `Memory.forget` of a user leaves them, and recall in
    conversations does not find them. `forget` deletes a folder with everything inside it. An export of a whole
    tenant has them, one of a single user has not.
    """

    def __init__(self, memory: Memory, tenant_id: str = "default", *, omit_expired: bool = False) -> None:
        Scope("anybody", tenant_id=tenant_id)  # checks the id
        self.memory = memory
        self.tenant_id = tenant_id
        self.omit_expired = omit_expired

    def embeds_with(self, embedder: Any) -> bool:
        """Tell whether an embedder, as `Memory.open` takes it, is the one that items are found with.

        Raises:
            ConfigurationError: It is no embedder.
        """
        from memlayer_core.models.embed import resolve_embedder  # noqa: PLC0415  (numpy)

        world = self.memory._world()  # noqa: SLF001
        own = world.embedder.identity
        asked = resolve_embedder(embedder, recorded=own, settings=world.settings, tell=lambda _: None)
        return asked.identity == own

    async def _batch(self, drive: Drive, ops: Iterable[ItemOp]) -> list[flows.Answer]:
        """Do several operations at once: all of them, or none.

        Reads see what was there before the writes; of several writes to one key the last one counts. Everything
        written is durable, and found by words and by meaning, when this returns.

        Args:
            ops: `GetItem`, `PutItem`, `DropItem`, `FindItems` and `ListFolders`, see `memlayer_core.records.item`.

        Returns:
            What each of them answers, None for writes.

        Raises:
            InvalidItemError: One of them cannot be done; nothing was.
            InvalidLimitError: A number in one of them cannot be used; nothing was done.
        """
        world, omit = self.memory._world(), self.omit_expired  # noqa: SLF001
        return await flows.batch(world, drive, self.tenant_id, ops, omit_expired=omit)

    batch, abatch = both(_batch)

    async def _sweep(self, drive: Drive) -> int:
        """Delete the items that have expired. Returns how many."""
        return await flows.sweep(self.memory._world(), drive, self.tenant_id)  # noqa: SLF001

    sweep, asweep = both(_sweep)

    async def _forget(self, drive: Drive, labels: Iterable[str] = ()) -> int:
        """Delete everything in a folder and inside it for good, with all that it can be found by.

        Args:
            labels: The folder; all items of the tenant without any.

        Returns:
            How many items.

        Raises:
            InvalidItemError: A label cannot be used.
        """
        return await flows.forget(self.memory._world(), drive, self.tenant_id, labels)  # noqa: SLF001

    forget, aforget = both(_forget)


class HasItems:
    """The part of a `Memory` that keeps items."""

    def items(self, *, tenant_id: str = "default", omit_expired: bool = False) -> Items:
        """Return a tenant's items: values under keys in folders, which belong to no user. Nothing is written yet.

        Args:
            tenant_id: Items of different tenants have nothing to do with each other, whatever their folders.
            omit_expired: Whether items that have expired are hidden before they are swept.

        Raises:
            InvalidScopeError: The id cannot be stored.
        """
        return Items(cast("Memory", self), tenant_id, omit_expired=omit_expired)
