"""Carrying conversations from one store to another. Each verb has an async twin."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from memlayer_core.drive import Drive, both
from memlayer_core.flows import transfer
from memlayer_core.stores.files import Incoming, Outgoing

if TYPE_CHECKING:
    from memlayer_core.ports import World

__all__ = ["Transfers"]


class Transfers:
    """The part of a `Memory` that writes users to files, and reads them back."""

    if TYPE_CHECKING:

        def _world(self) -> World: ...

    async def _export(
        self,
        drive: Drive,
        target: str | os.PathLike[str] | IO[str],
        *,
        user_id: str | None = None,
        tenant_id: str = "default",
        progress: transfer.Progress | None = None,
    ) -> int:
        """Write everything that a user said or was told, and is remembered by, as lines of JSON, page by page.

        Args:
            target: A path, where the file appears when it is complete, or an open text file.
            user_id: Whose; without it, every user's of the tenant, and the tenant's items.
            tenant_id: The user's tenant.
            progress: Called after each page with the messages that are done and those that are expected.

        Returns:
            How many messages were written.

        Raises:
            StoreUnavailableError: The target cannot be written; a file that was there is as it was.
        """
        world, out = self._world(), Outgoing(target)
        return await transfer.export(
            world.journal,
            drive,
            out,
            tenant_id=tenant_id,
            user_id=user_id,
            now=world.now(),
            progress=progress,
        )

    export, aexport = both(_export)

    async def _import_from(
        self,
        drive: Drive,
        source: str | os.PathLike[str] | Iterable[str | bytes],
        *,
        tenant_id: str | None = None,
        progress: transfer.Progress | None = None,
    ) -> transfer.Imported:
        """Store what `export` wrote, page by page. Doing it again changes nothing.

        Sessions keep their ids, their times, and the messages that they have here already; what is new comes
        to their end, and a message of a known id is replaced by the export's. Items take the place of older ones.

        Args:
            source: A path, an open file, or any lines.
            tenant_id: The tenant to import into; without it, the one that the export is from.
            progress: Called after each page with the messages that are done and those that are expected.

        Raises:
            ImportStoppedError: A line cannot be read. What stands before it was imported.
        """
        world, lines = self._world(), Incoming(source)
        return await transfer.import_from(world, drive, lines, tenant_id=tenant_id, progress=progress)

    import_from, aimport_from = both(_import_from)
