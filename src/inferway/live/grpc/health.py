"""The gRPC health checking protocol: the server's readiness and each task's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from inferway.live.grpc.messages import (
    INFERENCE,
    HealthCheckRequest,
    HealthCheckResponse,
    decode,
)
from inferway.protocol.refusal import RefusalError

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3


class Health:
    """Answers Check, and tells those who watch when what they watch changes.

    Parameters
    ----------
    ready
        Whether a task is ready, None where it is not known; "" is the server.
    """

    def __init__(self, ready: Callable[[str], bool | None]) -> None:
        self._ready = ready
        self._changed = asyncio.Event()
        self._ended = False

    def announce(self) -> None:
        """Have everyone who watches look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """End every watch: a stream that stays open would hold up the server's end."""
        self._ended = True
        self.announce()

    def check(self, data: bytes) -> Any:
        """Answer with the status of a service."""
        name = decode(data, HealthCheckRequest).service
        status = self._status(name)
        if status == SERVICE_UNKNOWN:
            raise RefusalError(404, f"unknown service {name!r}; there is '', and each task")
        return HealthCheckResponse(status=status)

    async def watch(self, data: bytes, context: Any) -> None:
        """Send the status now and whenever it changes; an unknown service may become known."""
        name = decode(data, HealthCheckRequest).service
        told = None
        while True:
            changed = self._changed
            status = self._status(name)
            if status != told:
                await context.write(HealthCheckResponse(status=status))
                told = status
            if self._ended:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            await changed.wait()

    def _status(self, name: str) -> int:
        ready = self._ready("" if name == INFERENCE else name)
        if ready is None:
            return SERVICE_UNKNOWN
        return SERVING if ready else NOT_SERVING
