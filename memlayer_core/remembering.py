"""What is remembered of a user beyond any conversation, by hand. Each verb has an async twin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from memlayer_core.drive import Drive, both
from memlayer_core.errors import InvalidScopeError
from memlayer_core.flows import records as flows
from memlayer_core.flows.sessions import forget
from memlayer_core.record_ports import RecordFilter
from memlayer_core.records.record import Record, RecordFields, RecordType
from memlayer_core.records.scope import Scope
from memlayer_core.records.session import Forgotten
from memlayer_core.rules.records import ordinal_of

if TYPE_CHECKING:
    from memlayer_core.memory import Memory
    from memlayer_core.ports import World

__all__ = ["Remembering", "Remembrance"]


class Remembering:
    """The part of a `Chat` that keeps records of its user."""

    memory: Memory
    scope: Scope
    roles: tuple[str, ...]

    async def _remember(self, drive: Drive, text: str, **fields: Unpack[RecordFields]) -> Record:
        """Remember something of the user, in every session from now on. Durable when it returns; no model is asked.

        The same words again, in whatever case and spacing, are not stored twice: the record that there is
        counts one mention more, is a little more certain, and is returned. `mentions` says so.

        Args:
            text: What is to be remembered.
            **fields: `type` (`"semantic"`; or `"episodic"`, `"procedural"`, `"preference"`, `"profile"`),
                `importance` (0.5) and `confidence` (1.0), `tags`, `expires_at` (with a time zone), `category`,
                `key`, `value`, `summary`, `structured`, `source`, `relations`, and who else may be told:
                `visibility` (`"private"`), `allowed_users`, `allowed_roles`. `Record` tells what each means.

        Raises:
            InvalidRecordError: It cannot be stored; nothing was written.
        """
        return await flows.remember(self.memory._world(), drive, self.scope, text, fields)  # noqa: SLF001

    remember, aremember = both(_remember)

    async def _revise(
        self,
        drive: Drive,
        record_id: str,
        text: str | None = None,
        *,
        merge: Iterable[str] = (),
        **fields: Unpack[RecordFields],
    ) -> Record:
        """Change a record of the user: it gets a new version, and the old one stays readable.

        Args:
            record_id: Its `memory_id`.
            text: What it says from now on; its summary goes, unless you give another.
            merge: Ids of records of the user that it takes in: their mentions, tags and ties come to it, and
                they are no longer told. Who may see it stays as it is.
            **fields: As for `remember`; what you leave out stays.

        Returns:
            The record as it is now; the same version where nothing was changed.

        Raises:
            UnknownRecordError: The user has no such record, or no longer.
            InvalidRecordError: It cannot be stored, or another record has these words; nothing was written.
        """
        world = self.memory._world()  # noqa: SLF001
        return await flows.revise(world, drive, self.scope, record_id, text, merge, fields)

    revise, arevise = both(_revise)


class Remembrance:
    """The part of a `Memory` that shows and deletes what it knows of a user."""

    if TYPE_CHECKING:

        def _world(self) -> World: ...

    async def _records(
        self,
        drive: Drive,
        *,
        user_id: str,
        tenant_id: str = "default",
        agent_id: str | None = None,
        record_id: str | None = None,
        type: RecordType | None = None,  # noqa: A002  (the field's name)
        tags: Iterable[str] = (),
        every: bool = False,
        shared: bool = False,
        roles: Iterable[str] = (),
        limit: int = 100,
        offset: int = 0,
    ) -> list[Record]:
        """Return what is remembered of a user, the last written first, however important or certain.

        Args:
            user_id: Whose records.
            tenant_id: The user's tenant.
            agent_id: Only what was remembered with this agent.
            record_id: Only this one.
            type: Only of this type.
            tags: Only with all of these.
            every: Also old versions, what was merged, and what has expired; of the user's own.
            shared: Also what other users of the tenant let this one see.
            roles: The roles in which the user asks for those.
            limit: How many at the most.
            offset: How many to pass over.
        """
        world = self._world()
        reach = Scope.of_user(user_id, tenant_id=tenant_id, agent_id=agent_id)
        reader = flows.reader_of(world, reach, roles, recalling=False)
        wanted = RecordFilter(record_id, type, tuple(tags), every, shared, limit, offset)
        return await flows.records(world, drive, reader, wanted)

    records, arecords = both(_records)

    async def _forget(
        self,
        drive: Drive,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        record_id: str | None = None,
        tenant_id: str = "default",
        agent_id: str | None = None,
    ) -> Forgotten:
        """Delete everything of a user for good: sessions, messages, records, and all they can be found by.

        Items of the tenant stay, for they name no user: `memory.items(tenant_id=…).forget(labels)` deletes those.
        Chroma's part is done in the background; until then it is in nobody's reach. `flush` waits for it.

        Args:
            user_id: Whose memory. A record's id names its user already, and a session may stand alone.
            session_id: Only this session of the user, with what other words took the place of in it, and the
                records that come from it. Without `user_id`, the session of that id that stands alone.
            record_id: Only this record, with its old versions and whatever was merged into it.
            tenant_id: The user's tenant; a user of the same id in another tenant is somebody else.
            agent_id: Only what was said to, and remembered with, this agent.

        Raises:
            InvalidScopeError: Neither a user nor a session or record is named.
            UnknownRecordError: There is no such record, or it is another user's.
        """
        world = self._world()
        if record_id is not None:
            owner = user_id if user_id is not None else ordinal_of(record_id)[0]
            reach = Scope.of_user(owner, tenant_id=tenant_id, agent_id=agent_id)
            return await flows.forget_record(world, drive, reach, record_id)
        if user_id is not None:
            return await forget(world, drive, Scope(user_id, session_id, agent_id, tenant_id))
        if session_id is None:
            raise InvalidScopeError(
                "nobody is named whose memory is to be deleted",
                hint="Pass `user_id=…`, with `session_id=…` for one session of that user, or `record_id=…`; "
                "`session_id=…` alone for a session without a user.",
            )
        return await forget(world, drive, Scope.alone(session_id, tenant_id=tenant_id, agent_id=agent_id))

    forget, aforget = both(_forget)
