"""Who may see the page: hosts, sites, keys and sessions, before anything is answered."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferway.live.applying import is_loopback
from inferway.live.security.keys import Denied, Guard, Role

COOKIE: Final = "inferway-session"
_SESSION_S: Final = 12 * 3600.0
_SESSIONS: Final = 1024
_LONGEST_FORM: Final = 4096
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    # Not less: a form that says nothing of where it comes from has the origin `null`.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Of every answer: nothing runs and nothing is fetched but what this process serves."""
REFUSED: Final = {
    "wrong": "That key is not known here.",
    "role": "That key may not read: it needs the role read.",
    "slow": "Too many wrong keys came from this address: wait a minute.",
}
"""What the door says after a key that does not open it, by the question in its URL."""
_OPEN: Final = ("/enter", "/static/page.css", "/static/icon.svg")
"""Paths that need no session."""


class Entrance:
    """Stands before the page, and lets in who may see it.

    A page of another site is refused, whatever it asks for; so is a name that another machine gave
    this one, where no key is asked for. Where there are keys, one with the role `read` opens a
    session of twelve hours, whose cookie no script can read.

    Parameters
    ----------
    application
        What answers those who may.
    host
        At which it listens.
    guard
        Looks at keys; None lets in whoever reaches it.
    secure
        Whether it is reached over TLS.
    """

    def __init__(
        self, application: ASGIApp, host: str, guard: Guard | None = None, *, secure: bool = False
    ) -> None:
        self._application, self._host, self._guard = application, host, guard
        self._secure = secure
        # Roles and end of each session, by its token.
        self._sessions: dict[str, tuple[int, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope, receive)
        answer = self._refused(request) or await self._door(request)
        await (answer or self._application)(scope, receive, headed)

    def _refused(self, request: Request) -> Response | None:
        headers = request.headers
        name = _name(headers.get("host", ""))
        if self._guard is None and name != self._host and not is_loopback(name):
            return _refusal(403, f"the request is for host {name[:64]!r}, not for this one")
        if other := _other_site(headers, request):
            return _refusal(403, other)
        return None

    async def _door(self, request: Request) -> Response | None:
        """Answer who has to show a key first; None where the request may go on."""
        path = request.url.path
        if self._guard is None:
            return RedirectResponse("/", 303) if path == "/enter" else None
        if path == "/enter" and request.method == "POST":
            return await self._enter(request, self._guard)
        if path in _OPEN:
            return None
        if roles := self._roles(request):
            if request.method == "POST" and path == "/trial" and not roles & Role.INFER:
                return _refusal(403, "to send a request needs a key with the role infer")
            return None
        if path == "/":
            return RedirectResponse("/enter", 303)
        return _refusal(401, "show a key first, at /enter")

    async def _enter(self, request: Request, guard: Guard) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_FORM:
                return _refusal(413, "the form is too long")
        given = parse_qs(body.decode("latin-1")).get("key", [""])[0].strip()
        client = request.client
        found = guard.look(
            f"Bearer {given}", Role.READ, lambda: client.host if client is not None else ""
        )
        if isinstance(found, Denied):
            why = "slow" if found.status == 429 else "role" if found.status == 403 else "wrong"
            return RedirectResponse(f"/enter?{why}", 303)
        now_s = time.monotonic()
        self._sessions = {
            token: (roles, end_s)
            for token, (roles, end_s) in self._sessions.items()
            if end_s > now_s
        }
        while len(self._sessions) >= _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(32)
        self._sessions[token] = found, now_s + _SESSION_S
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            token,
            max_age=int(_SESSION_S),
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )
        return answer

    def _roles(self, request: Request) -> int:
        roles, end_s = self._sessions.get(request.cookies.get(COOKIE, ""), (0, 0.0))
        return roles if end_s > time.monotonic() else 0


def _name(host: str) -> str:
    return host[1:].partition("]")[0] if host[:1] == "[" else host.partition(":")[0]


def _other_site(headers: Headers, request: Request) -> str:
    """Say why a request that another site's page has made is refused; empty for any other."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return "a page of another site may not ask here"
    site = headers.get("sec-fetch-site", "none")
    followed = (
        request.method == "GET"
        and request.url.path in ("/", "/enter")
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if site not in ("same-origin", "none") and not followed:
        return "a page of another site may not ask here"
    return ""


def _refusal(status: int, reason: str, headers: Mapping[str, Any] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)
