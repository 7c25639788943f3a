"""`memlayer show`: a session as a model would see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from memlayer_core.cli.app import (
    Agent,
    AsJson,
    Database,
    Embedder,
    Tenant,
    User,
    Where,
    app,
    embedder_of,
    memory_to_look_at,
)
from memlayer_core.cli.terminal import json_of, note, show
from memlayer_core.errors import InputError
from memlayer_core.scope import Scope

if TYPE_CHECKING:
    from memlayer_core.window.model import Context

__all__ = ["show_context"]


@app.command("show")
def show_context(
    user: User,
    path: Where = None,
    session: Annotated[str | None, typer.Option(help="The session; else a new one of this user.")] = None,
    question: Annotated[
        str | None, typer.Option(help="What the user asks next; else the session's last question.")
    ] = None,
    tenant: Tenant = "default",
    agent: Agent = None,
    role: Annotated[list[str] | None, typer.Option(help="A role in which the user asks.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="The token limit; else MEMLAYER_MAX_TOKENS, or 8,000.")
    ] = None,
    tokenizer: Annotated[str, typer.Option(help="A model's name, an encoding, or `estimate`.")] = "auto",
    embedder: Embedder = "auto",
    as_json: AsJson = False,
    database_url: Database = None,
) -> None:
    """Show what a model would see now: each part of the context, with its tokens, its source and the reason.

    Nothing is written, and no background work is done. What other processes have queued is not there yet.
    """
    from memlayer_core.cli.views import has_session, journal_at, missing_session
    from memlayer_core.message import Message

    if session is None and question is None:
        raise InputError(
            "neither `--session` nor `--question` was given",
            hint="Name a session to see it, or a question to see what a new session would recall for it.",
        )
    scope = Scope(user, session, agent, tenant)
    with journal_at(path, database_url) as db:
        if session is not None and not has_session(db, scope):
            note(missing_session(db, scope))
            raise typer.Exit(1)
    with memory_to_look_at(path, database_url, tokenizer, embedder_of(embedder)) as memory:
        pending = [Message("user", question)] if question is not None else []
        context = memory.chat_of(scope, roles=role or ()).context(pending=pending, token_limit=tokens)
    if as_json:
        typer.echo(json_of(_data(context)))
    else:
        show(context)


def _data(context: Context) -> dict[str, Any]:
    return {
        "tokens": context.tokens,
        "token_limit": context.token_limit,
        "pieces": context.pieces,
        "reasons": context.reasons,
        "messages": context.to_openai(),
    }
