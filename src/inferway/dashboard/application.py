"""The page's own server: a document, its style and modules, and what is new as events."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from inferway.dashboard.changes import Change, ChangeError, applied, written
from inferway.dashboard.entrance import REFUSED, Entrance
from inferway.dashboard.question import Question, WhatIfError
from inferway.dashboard.reader import Reader
from inferway.dashboard.rehearsals import Rehearsals, choices, fleet_of
from inferway.dashboard.trial import LONGEST, PageRequest, TrialError, digit, taken, tried
from inferway.dashboard.twin import SupersededError
from inferway.dashboard.view import present_rate
from inferway.dashboard.watched import UnreadError
from inferway.live.errors import listening
from inferway.live.security.keys import Guard
from inferway.loadgen.access import DriveError
from inferway.look import style
from inferway.protocol.address import joined
from inferway.unreadable import UNREADABLE, fault

T = TypeVar("T")

HOST: Final = "127.0.0.1"
PORT: Final = 8004
_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# So that a connection that nobody reads is noticed.
_BEAT_S: Final = 15.0
# For answers that a busy machine is slow with; pages are told to go at once.
_GRACE_S: Final = 5


def statics() -> dict[str, bytes]:
    """Read the files of the page, by name; its style comes after that of all pages."""
    folder = files("inferway.dashboard") / "static"
    found = {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in _KINDS
    }
    return found | {"page.css": style().encode() + found["page.css"]}


def application(
    reader: Reader,
    host: str,
    guard: Guard | None,
    *,
    secure: bool = False,
    folder: str | None = None,
) -> Any:
    """Make the application that shows what a reader reads.

    Parameters
    ----------
    reader
        Begins with the application, and ends with it.
    host
        At which it listens.
    guard
        Looks at the keys of who wants to see the page; None lets in whoever reaches it.
    secure
        Whether it is reached over TLS.
    folder
        Of the deployment that is shown, whose policies the twin may run; None where it is not this
        machine's.
    """
    content, rehearsals = statics(), Rehearsals(reader, folder)

    def file(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_: Request) -> Response:
            return Response(content[name], media_type=_KINDS[name.rpartition(".")[2]])

        return answer

    async def door(request: Request) -> Response:
        why = REFUSED.get(request.url.query, "").encode()
        page = content["enter.html"].replace(b"<!-- why -->", why)
        return Response(page, media_type=_KINDS["html"])

    async def events(_: Request) -> Response:
        return StreamingResponse(_events(reader), media_type="text/event-stream")

    async def explanation(request: Request) -> Response:
        asked = request.query_params
        try:
            found = await reader.explanation(
                *(asked.get(name, "") for name in ("server", "task", "request"))
            )
        except UnreadError as error:
            return JSONResponse({"error": str(error)}, 404)
        return JSONResponse(found)

    async def possible(request: Request) -> Response:
        asked = request.query_params
        return await _told(
            lambda: taken(reader.source(asked.get("server", "")), asked.get("task", ""))
        )

    async def image(request: Request) -> Response:
        number = request.query_params.get("number", "")
        return await _told(lambda: digit(int(number) if number.isdecimal() else -1))

    # More at a time would keep the reader from its questions.
    trials = asyncio.Semaphore(2)

    async def trial(request: Request) -> Response:
        asked = await _posted(request, PageRequest)
        if isinstance(asked, Response):
            return asked
        async with trials:
            return await _told(lambda: tried(reader.source(asked.server), asked))

    async def settings(request: Request) -> Response:
        asked = request.query_params
        return await _told(
            lambda: choices(reader.source(asked.get("server", "")), asked.get("task", ""))
        )

    async def what_if(request: Request) -> Response:
        question = await _posted(request, Question)
        if isinstance(question, Response):
            return question
        try:
            # Of one page, a newer question takes the place of an older one.
            page = request.headers.get("inferway-page", "")[:64]
            return JSONResponse(await rehearsals.ask(page, question))
        except SupersededError as error:
            return JSONResponse({"error": str(error)}, 409)
        except WhatIfError as error:
            return JSONResponse({"error": str(error)}, 400)
        except UnreadError as error:
            return JSONResponse({"error": str(error)}, 404)

    async def as_file(request: Request) -> Response:
        question = await _posted(request, Question)
        if isinstance(question, Response):
            return question

        def text() -> dict[str, Any]:
            source = reader.source(question.server)
            fleet, deployed = fleet_of(source, question.task), source.told("/deployment")
            rate_per_s = present_rate(source, question.task)
            return {"text": written(deployed, fleet, question, rate_per_s)}

        return await _told(text)

    changing = asyncio.Semaphore(1)

    async def change(request: Request) -> Response:
        asked = await _posted(request, Change)
        if isinstance(asked, Response):
            return asked
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else ""
        async with changing:
            return await _told(lambda: applied(reader.source(asked.server), asked, given))

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        reader.begin()
        rehearsals.begin()
        yield
        await rehearsals.end()
        await reader.end()

    routes = [
        Route("/", file("page.html")),
        Route("/enter", door),
        Route("/events", events),
        Route("/explanation", explanation),
        Route("/trial", possible, methods=["GET"]),
        Route("/trial", trial, methods=["POST"]),
        Route("/trial/digit", image),
        Route("/what-if", settings, methods=["GET"]),
        Route("/what-if", what_if, methods=["POST"]),
        Route("/what-if/file", as_file, methods=["POST"]),
        Route("/apply", change, methods=["POST"]),
        *(Route(f"/static/{name}", file(name)) for name in content if not name.endswith("html")),
    ]
    return Entrance(Starlette(routes=routes, lifespan=life), host, guard, secure=secure)


async def _posted(request: Request, kind: type[T]) -> T | Response:
    """Read what a page sends; an answer that says what is wrong where it is none."""
    # Forms of other sites can send other kinds without being asked first.
    if request.headers.get("content-type") != "application/json":
        return JSONResponse({"error": "a request is sent as application/json"}, 415)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST:
            return JSONResponse({"error": "the request is larger than 1 MiB"}, 413)
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        return JSONResponse({"error": f"the request cannot be read: {fault(error)}"}, 400)


async def _told(ask: Callable[[], dict[str, Any]]) -> Response:
    """Answer with what is found in a thread, or say in a sentence why nothing is."""
    try:
        return JSONResponse(await asyncio.to_thread(ask))
    except (TrialError, WhatIfError) as error:
        return JSONResponse({"error": str(error)}, 400)
    except ChangeError as error:
        return JSONResponse({"error": str(error)}, error.status)
    except (UnreadError, DriveError) as error:
        return JSONResponse({"error": str(error)}, 404)


async def _events(reader: Reader) -> AsyncIterator[bytes]:
    async with aclosing(reader.messages()) as messages:
        pending: asyncio.Task[bytes] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(anext(messages))
                done, _ = await asyncio.wait((pending,), timeout=_BEAT_S)
                if not done:
                    yield b": nothing new\n\n"
                    continue
                try:
                    message, pending = pending.result(), None
                except StopAsyncIteration:
                    return
                yield b"data: " + message + b"\n\n"
        finally:
            if pending is not None:
                pending.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await pending


class _PageServer(uvicorn.Server):
    """Tells the pages that it ends before it waits for them."""

    leaving: Callable[[], None]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what pages wait for, and then as every server."""
        self.leaving()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """Listen at a host and a port, 0 for a free one; PortError where that cannot be."""
    with listening("dashboard", host, port):
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """Write the URL of the page of who listens there."""
    return f"{'https' if secure else 'http'}://{joined(*listener.getsockname()[:2])}/"


async def show(
    reader: Reader,
    listener: socket.socket,
    guard: Guard | None = None,
    certificate: tuple[Path, Path] | None = None,
    *,
    ended: Awaitable[None] | None = None,
    folder: str | None = None,
) -> None:
    """Show servers and nodes on a page until SIGINT or SIGTERM.

    Parameters
    ----------
    reader
        Of what is shown.
    listener
        From `bind`.
    guard
        Looks at the keys of who wants to see the page; None lets in whoever reaches it.
    certificate
        Files of the chain and its key, for TLS.
    ended
        Another reason to end, such as the end of whoever has started this.
    folder
        Of the deployment that is shown, where it is this machine's: the twin runs policies of it.
    """
    host = listener.getsockname()[0]
    chain, key = certificate or (None, None)
    server = _PageServer(
        uvicorn.Config(
            application(reader, host, guard, secure=certificate is not None, folder=folder),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=chain,
            ssl_keyfile=key,
        )
    )
    server.leaving = reader.leave

    async def watch(reason: Awaitable[None]) -> None:
        await reason
        server.should_exit = True

    watching = None if ended is None else asyncio.create_task(watch(ended))
    await server.serve(sockets=[listener])
    if watching is not None:
        watching.cancel()
