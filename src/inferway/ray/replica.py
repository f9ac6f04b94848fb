"""The replica of Ray Serve in which the server runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from inferway.deployment import Deployment
from inferway.live import Server, ServerOptions
from inferway.live.http.exchange import REQUEST_ID
from inferway.live.request import BAD_GATEWAY
from inferway.protocol.address import ServerAddress
from inferway.ray.variant import RayRuntime, RayVariant, over_ray
from inferway.runtime import RemoteError, zeros
from inferway.runtime.server import ServerConnections

# How long the ingress waits for the variants' replicas when it starts.
START_S: Final = 60.0
_POLL_S: Final = 0.05
# Longest wait for an answer of the server in this process, which has limits of its own.
_LONGEST_S: Final = 24 * 3600.0
# Headers that are of one connection.
_HOP: Final = frozenset(
    (b"connection", b"content-length", b"host", b"keep-alive", b"transfer-encoding", b"upgrade")
)
# Of an answer also the date and the id, which Ray Serve's proxy puts there itself: the id is the
# client's, or one that it has made and the server here was told.
_OF_PROXY: Final = _HOP | {b"date", REQUEST_ID}
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class IngressReplica:
    """Serves the file's tasks over the variants' handles, as `inferway serve` does.

    Parameters
    ----------
    deployment
        The file.
    variants
        Each task and variant, what is known of it, and its handle.
    options
        Fields of `ServerOptions`.
    """

    async def __init__(  # type: ignore[misc]
        self,
        deployment: Deployment,
        variants: Sequence[tuple[tuple[str, str], RayVariant, Any]],
        options: dict[str, Any],
    ) -> None:
        behind = {
            pair: replace(one, url=f"ray:{handle.app_name}/{handle.deployment_name}", handle=handle)
            for pair, one, handle in variants
        }
        await asyncio.gather(*map(_ready, behind.values()))
        self._server = Server(
            deployment, ServerOptions(**options, complete=partial(over_ray, variants=behind))
        )
        await self._server.start()
        host = _LOOPBACK.get(self._server.host, self._server.host)
        address = ServerAddress(host, self._server.http_port, False, "")
        self._connections = ServerConnections(address, None)
        self._host = f"Host: {address.authority}\r\n".encode()

    async def __call__(self, request: Any) -> Any:
        """Answer a request that came by Ray Serve's proxy: the server here gets it as it is."""
        from starlette.responses import Response

        scope = request.scope
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"
        if query := scope.get("query_string"):
            path += "?" + query.decode("latin-1")
        body = await request.body()
        lines = b"".join(
            b"%s: %s\r\n" % (name, value) for name, value in scope["headers"] if name not in _HOP
        )
        head = b"%s %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n" % (
            *(scope["method"].encode(), _quoted(path), self._host, lines, len(body)),
        )
        try:
            due_s = time.monotonic() + _LONGEST_S
            reply = await self._connections.exchange(head, (body,), due_s)
        except RemoteError as error:
            said = msgspec.json.encode({"error": f"the server of this ingress: {error}"})
            return Response(said, BAD_GATEWAY, media_type="application/json")
        answer = Response(reply.body, reply.status)
        answer.raw_headers = [
            (b"content-length", b"%d" % len(reply.body)),
            *(one for one in reply.headers.items() if one[0] not in _OF_PROXY),
        ]
        return answer

    async def addresses(self) -> dict[str, str]:
        """Tell the addresses of the server's own listeners, on this replica's machine."""
        admin = ServerAddress(self._server.admin_host, self._server.admin_port, False, "")
        return {"http": self._server.url, "admin": admin.url}

    async def check_health(self) -> None:
        """Raise where the server has ended, so that Ray Serve starts another replica."""
        if not self._server.ready:
            raise RuntimeError("the server in this replica has ended")

    async def __del__(self) -> None:
        """Finish what is in flight; Ray Serve awaits it before the replica ends."""
        server = getattr(self, "_server", None)
        if server is not None:
            self._connections.close()
            await server.stop()


def _quoted(path: str) -> bytes:
    return quote(path, safe="/?&=%:@!$'()*+,;~-._").encode()


async def _ready(variant: RayVariant) -> None:
    """Wait until a variant's replicas run, all of them where that does not take too long."""
    runtime = RayRuntime(variant, START_S)
    ends_s = time.monotonic() + START_S
    # Ray Serve waits for the first of them. What goes wrong is told when instances warm up.
    with suppress(RemoteError):
        await runtime.infer(zeros(runtime.signature.inputs))
    while (room := runtime.room()) is not None and room < (variant.concurrency or 1):
        if time.monotonic() > ends_s:
            return
        await asyncio.sleep(_POLL_S)
