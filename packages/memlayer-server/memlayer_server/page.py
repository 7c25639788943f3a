"""The page: its routes, who may ask, what each part shows, and what a form changes."""

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memlayer_core import Memory, Record, Scope
from memlayer_core.errors import InputError, MemlayerError, UnknownRecordError
from memlayer_server.http import NEAR, Guard, is_same

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # with none at all, a browser hides the origin of its forms
    "X-Content-Type-Options": "nosniff",
}
_ADVICE = "This page opens with the address that `memlayer-ui` printed, with its token: http://…/?token=…"
_SIZE = 50  # rows of one page
_FORM, _FIELDS = 2_000_000, 50  # bytes and fields of a form at most
_DIGITS = 9  # of an offset at most
_WHOLE = 20_000  # characters of one text
_PARTS = ("records", "sessions", "search")
_DONE = {
    "corrected": "It is corrected. The version before is below.",
    "unchanged": "Nothing was changed: it says that already.",
    "forgotten": "It is forgotten, for good.",
    "nothing": "There was nothing to forget.",
}
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except line break and tab, characters that change the direction of writing, lone surrogates."""

Query = Mapping[str, str]


def ui_app(
    memory: Memory,
    *,
    token: str,
    port: int,
    hosts: Sequence[str] = NEAR,
    other_hosts: Sequence[str] = (),
    writes: bool = False,
) -> Starlette:
    """Return an application with pages to look through a memory.

    A browser opens it with `/?token=…`, and keeps a cookie. A request without the token is refused with 401, one to a `Host`
    of another name with 421, and one of a web page of another `Origin`, or a form that is not the page's own, with 403.

    Args:
        memory: The memory. All its tenants and users are shown to everybody who has the token.
        token: The token.
        port: The port that it listens at.
        hosts: Names and addresses of this machine.
        other_hosts: Names by which others reach it, such as that of a proxy; with a port, or without one.
        writes: Whether a record can be corrected, and a record, a session or a user forgotten.
    """
    cookie = f"memlayer_ui_{port}"  # browsers send a cookie to all ports of a machine
    page = _Page(memory, cookie, _seal(token, "cookie"), _seal(token, "form"), writes=writes)

    def knows(asked: HTTPConnection) -> bool:
        if asked.url.path == "/" and "token" in asked.query_params:
            return is_same(asked.query_params["token"], token)
        return is_same(asked.cookies.get(cookie, ""), _seal(token, "cookie"))

    app = Starlette(
        routes=[
            Route("/", page.users),
            Route("/user", page.user),
            Route("/record", page.record),
            Route("/session", page.session),
            Route("/correct", partial(page.change, page.correct), methods=["POST"]),
            Route("/forget", partial(page.change, page.forget), methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("memlayer_server", "static")])),
        ],
        exception_handlers={MemlayerError: page.tell_error, HTTPException: page.tell_refusal},
    )
    app.add_middleware(
        Guard, port=port, hosts=hosts, other_hosts=other_hosts, knows=knows, advice=_ADVICE, headers=_HEADERS
    )
    return app


class _Page:
    """Answers requests that have the token."""

    def __init__(self, memory: Memory, cookie: str, seal: str, stamp: str, *, writes: bool) -> None:
        self._memory, self._writes = memory, writes
        self._cookie, self._seal, self._stamp = cookie, seal, stamp
        self._templates = Environment(
            loader=PackageLoader("memlayer_server"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=lambda value: visible(value) if type(value) is str else value,
        )
        self._templates.filters["verbatim"] = _verbatim
        self._templates.globals.update(
            writes=writes, stamp=stamp, address=address, of_user=_of_user, name_of=_name_of
        )

    # --- pages

    def users(self, request: Request) -> Response:
        """Take the token from the address into a cookie; show the users."""
        query = request.query_params
        if "token" in query:
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, self._seal, httponly=True, samesite="strict")
            return answer
        find, offset = query.get("find", "").strip(), _offset(query)
        rows = self._memory.users(find=find, limit=_SIZE + 1, offset=offset)
        place = str(self._memory.path or f"store {self._memory.store_id}")
        return self._list("users.html", request, rows, offset, {"find": find}, place=place)

    def user(self, request: Request) -> Response:
        """Show the records or the sessions of a user, or what is found."""
        query = request.query_params
        reach, offset = _reach(query), _offset(query)
        part, find, every = query.get("part") or _PARTS[0], query.get("find", "").strip(), query.get("every")
        whose: Any = _whose(reach)
        rows: Sequence[Any] = ()
        match part:
            case "records":
                whole: Any = dict.fromkeys(("every", "all_versions"), bool(every))
                rows = self._memory.records(**whose, **whole, about=None, limit=_SIZE + 1, offset=offset)
            case "sessions":
                rows = self._memory.sessions(**whose, limit=_SIZE + 1, offset=offset)
            case "search":
                if find:
                    rows = self._memory.search(find, **whose, session_id=reach.session_id, limit=_SIZE)
            case _:
                raise InputError(f"there is no part {part!r:.40}", hint=f"There are {', '.join(_PARTS)}.")
        if not rows and not self._is_known(whose):
            raise HTTPException(404, f"Nothing is kept of {_name_of(reach)}.")
        more = {**_names(reach), "part": part, "every": every, "find": find}
        return self._list("user.html", request, list(rows), offset, more, reach=reach, choices=_PARTS)

    def record(self, request: Request) -> Response:
        """Show a record with its versions, and what it rests on."""
        reach, record_id = _reach(request.query_params), request.query_params.get("record", "")
        why = self._memory.why(record_id, **_whose(reach))
        one = why.record
        source = Scope(one.user_id, one.session_id, one.agent_id, one.tenant_id)
        talk = self._memory.chat_of(source).history(0, 1) if one.session_id is not None else []
        more: Any = {"names": _names(reach), "reach": reach, "why": why, "record": one, "talk": talk}
        return self._render("record.html", request.query_params, **more)

    def session(self, request: Request) -> Response:
        """Show the messages of a session, and the summary that is in force."""
        scope, offset = _session(request.query_params), _offset(request.query_params)
        chat = self._memory.chat_of(scope)
        rows = chat.history(offset, _SIZE + 1)
        if not rows and not offset:
            raise HTTPException(404, f"There is no session {scope.session_id}.")
        more = {"reach": scope, "summaries": [] if offset else chat.summary()}
        return self._list("session.html", request, rows, offset, _names(scope), **more)

    def _is_known(self, of: Any) -> bool:
        return bool(self._memory.sessions(**of, limit=1) or self._memory.records(**of, every=True, limit=1))

    # --- changes

    async def change(self, change: Callable[[Query], Response], request: Request) -> Response:
        """Let one of the page's own forms change the memory."""
        if not self._writes:
            raise HTTPException(
                403, "This page only shows the memory. `memlayer-ui --write` changes it, too."
            )
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM:
                raise HTTPException(413, "This is too long.")
        try:
            pairs = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS)
        except ValueError:
            raise HTTPException(400, f"A form of this page has at most {_FIELDS} fields.") from None
        form = {name: values[-1].replace("\r\n", "\n") for name, values in pairs.items()}
        if not is_same(form.get("stamp", ""), self._stamp):
            raise HTTPException(
                403, "This form is not of this page, or of an earlier start. Open the page again."
            )
        return await run_in_threadpool(change, form)

    def correct(self, form: Query) -> Response:
        """Store another version of a record, if nobody changed it since the form was made."""
        reach, record_id = _reach(form), form.get("record", "")
        record = self._memory.why(record_id, **_whose(reach)).record
        if str(record.version) != form.get("version"):
            raise HTTPException(409, "The record was changed meanwhile. Look at it again, then decide.")
        changes = _changes(record, form)
        if changes:
            self._memory.chat_of(reach).revise(record_id, **changes)
        done = "corrected" if changes else "unchanged"
        return RedirectResponse(address("/record", **_names(reach), record=record_id, done=done), 303)

    def forget(self, form: Query) -> Response:
        """Delete a record, a session, or everything of a user."""
        reach, whose = _reach(form), _whose(_reach(form))
        match form.get("what"):
            case "record":
                self._memory.forget(record_id=form.get("record", ""), **whose)
                return RedirectResponse(address("/user", **_names(reach), done="forgotten"), 303)
            case "session" | "user" as what:
                session = _session(form) if what == "session" else reach
                gone = self._memory.forget(session_id=session.session_id, **whose)
            case other:
                raise InputError(f"there is no {other!r:.40}", hint="A record, a session or a user.")
        done = "forgotten" if gone.sessions or gone.records or gone.items else "nothing"
        return RedirectResponse(address("/", done=done), 303)

    # --- problems

    def tell_error(self, request: Request, problem: Exception) -> Response:
        """Answer with an error of memlayer and its hint."""
        assert isinstance(problem, MemlayerError)
        found = {UnknownRecordError: 404, InputError: 400, MemlayerError: 503}
        status = next(code for kind, code in found.items() if isinstance(problem, kind))
        text = str(problem)
        return self._render("problem.html", {}, status, title=text[:1].upper() + text[1:], hint=problem.hint)

    def tell_refusal(self, request: Request, problem: Exception) -> Response:
        """Answer with the reason why a request is refused."""
        assert isinstance(problem, HTTPException)
        return self._render("problem.html", {}, problem.status_code, title=problem.detail, hint="")

    # --- answers

    def _list(
        self,
        template: str,
        request: Request,
        rows: list[Any],
        offset: int,
        names: Mapping[str, Any],
        **more: Any,
    ) -> Response:
        path = request.url.path
        before = address(path, **{**names, "offset": max(0, offset - _SIZE)}) if offset else None
        after = address(path, **{**names, "offset": offset + _SIZE}) if len(rows) > _SIZE else None
        more |= {"rows": rows[:_SIZE], "names": names, "before": before, "after": after}
        return self._render(template, request.query_params, **more)

    def _render(self, template: str, query: Query, status: int = 200, **values: Any) -> Response:
        done = _DONE.get(query.get("done", ""), "")
        return HTMLResponse(self._templates.get_template(template).render(done=done, **values), status)


def address(path: str, **query: Any) -> str:
    """Return the address of a page; what is None, 0 or empty is left out."""
    named = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(named)}" if named else path


def visible(text: str) -> str:
    """Return a text for people, cut if it is very long, with escapes for what controls the direction of writing."""
    text = text if len(text) <= _WHOLE else text[: _WHOLE - 1] + "…"
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def _verbatim(text: str | None) -> Markup:
    """Return a text for a form, unchanged except for characters that no page can contain."""
    return escape((text or "").encode("utf-8", "replace").decode())


def _seal(token: str, purpose: str) -> str:
    """Return a digest that only somebody with the token can make, for one purpose."""
    return hmac.new(token.encode(), f"memlayer ui {purpose}".encode(), sha256).hexdigest()


def _changes(record: Record, form: Query) -> dict[str, Any]:
    text, value = form.get("text", "").strip(), form.get("value", "").strip()
    changes = {"text": text} if text not in {"", record.raw.strip()} else {}
    if record.key is not None and value not in {"", record.value}:
        changes["value"] = value
    if changes and record.is_inferred:  # a person vouches for it now
        changes["source"] = "corrected_memory"
    return changes


def _reach(query: Query) -> Scope:
    """Return the user that an address names."""
    user, tenant, agent = query.get("user", ""), query.get("tenant") or "default", query.get("agent") or None
    return Scope.of_user(user, tenant_id=tenant, agent_id=agent)


def _session(query: Query) -> Scope:
    """Return the session that an address names."""
    reach = _reach(query)
    session_id = query.get("session") or reach.session_id
    if session_id is None:
        raise InputError("no session was named", hint="A user's page lists the sessions.")
    return Scope(reach.user_id, session_id, reach.agent_id, reach.tenant_id)


def _names(scope: Scope) -> dict[str, str]:
    """Return what an address says of a scope."""
    named = {name: getattr(scope, f"{name}_id") for name in ("tenant", "user", "agent", "session")}
    return {name: value for name, value in named.items() if value is not None}


def _of_user(scope: Scope) -> dict[str, str]:
    """Return what an address says of the user of a session, with all agents."""
    return {"tenant": scope.tenant_id, "user": scope.user_id}


def _name_of(scope: Scope) -> str:
    """Return a user for people; a session without a user is called by its id."""
    session = scope.session_id
    is_alone = session is not None and Scope.alone(session).user_id == scope.user_id
    return f"session {session}" if is_alone else scope.user_id


def _whose(reach: Scope) -> Any:
    return {"user_id": reach.user_id, "tenant_id": reach.tenant_id, "agent_id": reach.agent_id}


def _offset(query: Query) -> int:
    text = query.get("offset") or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InputError(
            f"`offset` must be a whole number, got {text!r:.40}", hint="Begin at the first page."
        )
    return int(text)
