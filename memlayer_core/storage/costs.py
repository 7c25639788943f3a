"""What learning and the models' work cost and brought, by user, kind of work and model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Connection, case, delete, exists, func, select

from memlayer_core.show import Tabular, View
from memlayer_core.storage.statements import dialect_insert
from memlayer_core.storage.tables import costs, namespaces

__all__ = ["Cost", "ledger", "make_anonymous", "spend", "spent_on_day"]

_COUNTS = ("calls", "tokens_in", "tokens_out", "facts")


@dataclass(frozen=True, slots=True)
class Cost(Tabular):
    """The total cost of one model for one kind of work, and the facts that it brought.

    Attributes:
        kind: Kind of work, such as `"summarize"`, `"episode"` or `"learn"`.
        model: Name of the model; `"rules"` if none was called.
        calls: Number of its answers.
        tokens_in: Tokens that it read, counted by the provider, or by memlayer if the provider did not tell.
        tokens_out: Tokens that it wrote, counted likewise.
        facts: Facts that were new.
    """

    kind: str
    model: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    facts: int = 0

    @classmethod
    def _table(cls, values: Sequence[Self]) -> View:
        return View(
            columns=("work", "model", "calls", "tokens in", "tokens out", "facts"),
            rows=tuple(
                (one.kind, one.model, one.calls, one.tokens_in, one.tokens_out, one.facts) for one in values
            ),
        )


def spend(
    connection: Connection, model_costs: Sequence[Cost], namespace: str = "", now: datetime | None = None
) -> None:
    """Add to the costs of a user; of nobody without a namespace, and if the user was forgotten meanwhile.

    A transaction locks this last, after sessions, owners and records.

    Args:
        connection: In a transaction that writes.
        model_costs: What is added.
        namespace: The user's.
        now: The present, where the costs of a day are limited; None: they are not.
    """
    if not model_costs:
        return
    here = select(namespaces.c.namespace).where(namespaces.c.namespace == namespace)
    whose = connection.scalar(here.with_for_update(read=True)) or ""
    for cost in model_costs:
        counts = {name: getattr(cost, name) for name in _COUNTS}
        tokens = cost.tokens_in + cost.tokens_out
        counts |= {"day": _day(now), "day_calls": cost.calls, "day_tokens": tokens} if now is not None else {}
        noted = dialect_insert(connection.dialect.name, costs).values(
            namespace=whose, kind=cost.kind, model=cost.model, **counts
        )
        added = {name: costs.c[name] + noted.excluded[name] for name in _COUNTS}
        if now is not None:
            same = costs.c.day == noted.excluded.day
            sums = ("day_calls", "day_tokens")
            added |= {name: case((same, costs.c[name]), else_=0) + noted.excluded[name] for name in sums}
            added["day"] = noted.excluded.day
        connection.execute(
            noted.on_conflict_do_update(index_elements=["namespace", "kind", "model"], set_=added)
        )


def spent_on_day(connection: Connection, namespace: str, kind: str, now: datetime) -> tuple[int, int]:
    """Return the calls and tokens of a user's models for a kind of work on the present day, in UTC."""
    sums = [func.coalesce(func.sum(costs.c[name]), 0) for name in ("day_calls", "day_tokens")]
    today = costs.c.namespace == namespace, costs.c.kind == kind, costs.c.day == _day(now)
    calls, tokens = connection.execute(select(*sums).where(*today)).one()
    return int(calls), int(tokens)


def _day(now: datetime) -> int:
    return now.date().toordinal()


def make_anonymous(connection: Connection, names: Collection[str]) -> None:
    """Turn costs into those of nobody where their user is forgotten."""
    here = exists().where(namespaces.c.namespace == costs.c.namespace)
    theirs = delete(costs).where(costs.c.namespace.in_(names), ~here)
    gone = connection.execute(theirs.returning(costs)).all()
    spend(connection, [_cost_of(row) for row in gone])


def ledger(connection: Connection, namespace: str | None = None) -> list[Cost]:
    """Return the costs by kind of work and model: of one user, or of everybody together."""
    totals = [func.sum(costs.c[name]).label(name) for name in _COUNTS]
    by = (costs.c.kind, costs.c.model)
    query = select(*by, *totals).group_by(*by).order_by(*by)
    if namespace is not None:
        query = query.where(costs.c.namespace == namespace)
    return [_cost_of(row) for row in connection.execute(query)]


def _cost_of(row: Any) -> Cost:
    counts = {name: int(getattr(row, name)) for name in _COUNTS}  # PostgreSQL's sums are decimals
    return Cost(row.kind, row.model, **counts)
