"""What the models' work cost, by kind of work and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from memlayer_core.storage.tables import costs

__all__ = ["Cost", "ledger", "spend"]


@dataclass(frozen=True, slots=True)
class Cost:
    """The total cost of one model for one kind of work.

    Attributes:
        kind: Kind of work, such as `"summarize"`.
        model: Name of the model.
        calls: Number of its answers.
        tokens_in: Tokens that it read, counted by the provider, or by memlayer if the provider did not tell.
        tokens_out: Tokens that it wrote, counted likewise.
    """

    kind: str
    model: str
    calls: int
    tokens_in: int
    tokens_out: int


def spend(connection: Connection, model_costs: Sequence[Cost]) -> None:
    """Add to what the models cost."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    for cost in model_costs:
        noted = dialect.insert(costs).values(
            kind=cost.kind,
            model=cost.model,
            calls=cost.calls,
            tokens_in=cost.tokens_in,
            tokens_out=cost.tokens_out,
        )
        counted = {
            name: costs.c[name] + noted.excluded[name] for name in ("calls", "tokens_in", "tokens_out")
        }
        connection.execute(noted.on_conflict_do_update(index_elements=["kind", "model"], set_=counted))


def ledger(connection: Connection) -> list[Cost]:
    """Return what the models cost, by kind of work and model."""
    rows = connection.execute(select(costs).order_by(costs.c.kind, costs.c.model))
    return [Cost(row.kind, row.model, row.calls, row.tokens_in, row.tokens_out) for row in rows]
