"""The application of the page: its routes, who may ask, and what a form changes."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.authentication import AuthenticationError
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from memlayer_core.errors import (
    InputError,
    MemlayerError,
    UnknownRecordError,
)
from memlayer_core.guards import AddressGuard, TokenBackend
from memlayer_core.memory import Memory
from memlayer_core.show import visible
from memlayer_core.ui.addresses import (
    Query,
    address,
    choice,
    names_of,
    offset_in,
    reach_in,
    record_in,
    session_in,
)
from memlayer_core.ui.page import MissingPageError, Page
from memlayer_core.ui.pages import Pages, SessionPart, State, UserPart

__all__ = ["ui_app"]

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # with none at all, a browser hides the origin of its forms
    "X-Content-Type-Options": "nosniff",
}
_ADVICE = "This page opens with the address that `memlayer ui` printed, with its token: http://…/?token=…"
_FORM = 2_000_000  # bytes of a form at the most
_CHUNK = 65_536  # characters of an export that are sent at a time
_DONE = {
    "corrected": "It is corrected. The version before is below.",
    "unchanged": "Nothing was changed: it says that already.",
    "merged": "They are merged.",
    "forgotten": "It is forgotten, for good.",
}


def ui_app(
    memory: Memory,
    *,
    token: str,
    port: int,
    hosts: Sequence[str],
    other_hosts: Sequence[str] = (),
    writes: bool = False,
) -> Starlette:
    """Return an application with pages to look through a memory.

    A browser opens it with `/?token=…`, and keeps the token in a cookie. A request without the token is refused with 401, one
    to a `Host` of another name with 421, and one of a web page of another `Origin`, or a form that is not the page's own,
    with 403.

    Args:
        memory: The memory. All its tenants and users are shown to whoever has the token.
        token: The token.
        port: The port that it listens at.
        hosts: Names and addresses of this machine.
        other_hosts: Names by which others reach it, such as that of a proxy; with a port, or without one.
        writes: Whether a record can be corrected, merged and forgotten, a session and a user forgotten, and a user exported.

    Raises:
        MissingExtraError: The extra `ui` is not installed; raised when this module is imported.
    """
    cookie = f"memlayer_ui_{port}"  # browsers send a cookie to all ports of a machine
    door = _Door(memory, token=token, cookie=cookie, writes=writes)

    def token_in(connection: HTTPConnection) -> str:
        known = hmac.compare_digest(
            connection.cookies.get(cookie, "").encode(), _seal(token, "cookie").encode()
        )
        at_door = connection.query_params.get("token") if connection.url.path == "/" else None
        return at_door or (token if known else "")

    def get(path: str, page: Callable[[Mapping[str, str]], Page]) -> Route:
        return Route(path, partial(door.show, page), methods=["GET"])

    def post(path: str, change: Callable[[Mapping[str, str]], Response]) -> Route:
        return Route(path, partial(door.change, change), methods=["POST"])

    return Starlette(
        routes=[
            Route("/", door.enter, methods=["GET"]),
            get("/user", door.user),
            get("/record", door.record),
            get("/session", door.session),
            post("/correct", door.correct),
            post("/merge", door.merge),
            post("/forget", door.forget),
            post("/export", door.export),
            Mount("/static", StaticFiles(packages=[("memlayer_core.ui", "static")])),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(AddressGuard, port=port, hosts=hosts, other_hosts=other_hosts),
            Middleware(
                AuthenticationMiddleware, backend=TokenBackend(token, token_in, _ADVICE), on_error=_refuse
            ),
        ],
        exception_handlers={
            MemlayerError: door.tell_error,
            MissingPageError: door.tell_missing,
            HTTPException: door.tell_refusal,
        },
    )


class _Headers:
    """Sets the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_more)


def _seal(token: str, purpose: str) -> str:
    """Return what only somebody with the token can make, for one purpose."""
    return hmac.new(token.encode(), f"memlayer ui {purpose}".encode(), sha256).hexdigest()


def _refuse(_: HTTPConnection, problem: AuthenticationError) -> Response:
    return PlainTextResponse(str(problem), 401)


class _Door:
    """Answers requests that have the token."""

    def __init__(self, memory: Memory, *, token: str, cookie: str, writes: bool) -> None:
        self._memory = memory
        self._pages = Pages(memory)
        self._token = token
        self._cookie = cookie
        self._writes = writes
        self._stamp = _seal(token, "form")
        self._templates = Environment(
            loader=PackageLoader("memlayer_core.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_legible,
        )
        self._templates.globals.update(writes=writes, stamp=self._stamp, verbatim=_verbatim)

    def enter(self, request: Request) -> Response:
        """Take the token from the address into a cookie; show the users."""
        if "token" in request.query_params:
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, _seal(self._token, "cookie"), httponly=True, samesite="strict")
            return answer
        return self.show(self.users, request)

    def show(self, page: Callable[[Query], Page], request: Request) -> Response:
        """Answer with a page."""
        return self._render(
            "page.html", 200, page=page(request.query_params), done=_done(request.query_params)
        )

    async def change(self, change: Callable[[Query], Response], request: Request) -> Response:
        """Let one of the page's own forms change the memory."""
        if not self._writes:
            raise HTTPException(
                403, "This page only shows the memory. `memlayer ui --write` changes it, too."
            )
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM:
                raise HTTPException(413, "This is too long.")
        pairs = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=50)
        form = {name: values[-1].replace("\r\n", "\n") for name, values in pairs.items()}
        if not hmac.compare_digest(form.get("stamp", "").encode(), self._stamp.encode()):
            raise HTTPException(
                403, "This form is not of this page, or of an earlier start. Open the page anew."
            )
        return await run_in_threadpool(change, form)

    # --- pages

    def users(self, query: Query) -> Page:
        """Return the page of all users."""
        return self._pages.users(query.get("find", "").strip(), offset_in(query))

    def user(self, query: Query) -> Page:
        """Return a page of a user."""
        part, state = choice(query, "part", UserPart), choice(query, "state", State)
        return self._pages.user(reach_in(query), part, offset_in(query), query.get("kind", ""), state)  # type: ignore[arg-type]

    def record(self, query: Query) -> Page:
        """Return the page of a record."""
        return self._pages.record(reach_in(query), record_in(query))

    def session(self, query: Query) -> Page:
        """Return a page of a session."""
        part = choice(query, "part", SessionPart)
        return self._pages.session(session_in(query), part, offset_in(query))  # type: ignore[arg-type]

    # --- changes

    def correct(self, form: Query) -> Response:
        """Store another version of a record."""
        reach, record_id = reach_in(form), record_in(form)
        record = self._current(form)
        text, summary, value = (form.get(name, "").strip() for name in ("text", "summary", "value"))
        changes: dict[str, Any] = {}
        if text not in {"", record.raw.strip()}:
            changes["text"] = text
        if record.summary is not None and (changes or summary != record.summary.strip()):
            changes["summary"] = summary or None
        if record.key is not None and value not in {"", record.value}:
            changes["value"] = value
        if changes and record.is_inferred:  # a person vouches for it now
            changes["source"] = "corrected_memory"
        if changes:
            self._memory.chat_of(reach).revise(record_id, **changes)
        return _to_record(form, "corrected" if changes else "unchanged")

    def merge(self, form: Query) -> Response:
        """Merge other records into a record."""
        self._current(form)
        others = form.get("others", "").replace(",", " ").split()
        if not others:
            raise InputError("no record was named to merge", hint="Give the ids of records of this user.")
        self._memory.chat_of(reach_in(form)).revise(record_in(form), merge=others)
        return _to_record(form, "merged")

    def forget(self, form: Query) -> Response:
        """Delete a record, a session, or everything of a user."""
        reach, forget = reach_in(form), self._memory.forget
        tenant, agent = reach.tenant_id, reach.agent_id
        match form.get("what"):
            case "record":
                forget(reach.user_id, record_id=record_in(form), tenant_id=tenant, agent_id=agent)
                back = address("/user", **names_of(reach), part="records", done="forgotten")
                return RedirectResponse(back, 303)
            case "session":
                session_id = session_in(form).session_id
                forget(reach.user_id, session_id=session_id, tenant_id=tenant, agent_id=agent)
            case "user":
                forget(reach.user_id, session_id=reach.session_id, tenant_id=tenant, agent_id=agent)
            case other:
                raise InputError(
                    f"there is no {other!r:.40} to forget", hint="A record, a session or a user."
                )
        return RedirectResponse(address("/", done="forgotten"), 303)

    def export(self, form: Query) -> Response:
        """Send everything of a user as JSON lines."""
        reach = reach_in(form)
        file = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (it is sent, and then closed)
        self._memory.export(file, user_id=reach.user_id, tenant_id=reach.tenant_id)
        file.seek(0)
        named = {"Content-Disposition": 'attachment; filename="memlayer-export.jsonl"'}
        return StreamingResponse(
            iter(partial(file.read, _CHUNK), ""),
            media_type="application/x-ndjson",
            headers=named,
            background=BackgroundTask(file.close),
        )

    def _current(self, form: Query) -> Any:
        """Return the record that a form is about, if nobody changed it since the form was made."""
        reach = reach_in(form)
        whose = {"user_id": reach.user_id, "tenant_id": reach.tenant_id, "agent_id": reach.agent_id}
        record = self._memory.why(record_in(form), **whose).record  # type: ignore[arg-type]
        if str(record.version) != form.get("version"):
            raise HTTPException(409, "The record was changed meanwhile. Look at it again, then decide.")
        return record

    # --- problems

    def tell_error(self, _: Request, problem: Exception) -> Response:
        """Tell an error of memlayer's with its hint."""
        assert isinstance(problem, MemlayerError)
        status = (
            404
            if isinstance(problem, UnknownRecordError)
            else 400
            if isinstance(problem, InputError)
            else 503
        )
        return self._problem(status, str(problem), problem.hint)

    def tell_missing(self, _: Request, problem: Exception) -> Response:
        """Tell that there is no such page."""
        return self._problem(404, str(problem))

    def tell_refusal(self, _: Request, problem: Exception) -> Response:
        """Tell why a request is refused."""
        assert isinstance(problem, HTTPException)
        return self._problem(problem.status_code, problem.detail)

    def _problem(self, status: int, text: str, hint: str = "") -> Response:
        return self._render("problem.html", status, text=text[:1].upper() + text[1:], hint=hint)

    def _render(self, template: str, status: int, **values: object) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(**values), status)


def _legible(value: object) -> object:
    """Return what a template prints with escapes for what controls the direction of writing."""
    return visible(value) if type(value) is str else value


def _verbatim(text: str) -> Markup:
    """Return a text for a form, where it must stay as it is, but for what no page can hold."""
    return escape(text.encode("utf-8", "replace").decode())


def _done(query: Query) -> str:
    return _DONE.get(query.get("done", ""), "")


def _to_record(form: Query, outcome: str) -> Response:
    reach = reach_in(form)
    return RedirectResponse(address("/record", **names_of(reach), record=record_in(form), done=outcome), 303)
