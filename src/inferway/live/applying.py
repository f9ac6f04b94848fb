"""The page that has a running server serve another deployment: ``POST /apply``."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferway.live.aside import aside
from inferway.live.http.exchange import JSON, Exchange
from inferway.live.http.message import encode
from inferway.live.http.refusal import RefusalError
from inferway.live.instance import WarmUpError
from inferway.runtime.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /apply``: a file of this machine, or what would be in one."""

    path: str | None = None
    content: str | None = None


class Applying:
    """Answers ``POST /apply``.

    Parameters
    ----------
    apply
        Serves a deployment from now on; returns the variants of each task.
    broken
        Told of errors that are not the file's.
    host
        Address of the listener.
    guarded
        Whether requests have shown a key before they come here.
    allowed
        Whether they may come without one.
    """

    def __init__(
        self,
        apply: Callable[[Deployment], Awaitable[dict[str, list[str]]]],
        broken: Callable[[BaseException], None],
        *,
        host: str,
        guarded: bool,
        allowed: bool,
    ) -> None:
        self._apply, self._broken = apply, broken
        self._host, self._guarded, self._allowed = host, guarded, allowed
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        """Check who asks, and see to it."""
        if not self._guarded:
            if not self._allowed:
                reason = "a server without keys applies nothing unless it was started to allow it"
                exchange.refuse(403, reason)
                return
            # A page in a browser can give loopback a name of its own; the browser says which.
            name = _host_name(exchange.host)
            if name != self._host and not is_loopback(name):
                reason = f"the request is for host {name!r}, not for this one"
                exchange.refuse(403, reason)
                return
        task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            tasks = await self._apply(await aside(_deployment, exchange))
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except (ValueError, WarmUpError) as error:
            exchange.refuse(400, str(error))
        except Exception as error:
            self._broken(error)
            exchange.refuse(500, "the server failed to apply the file; it goes on as before")
        else:
            exchange.respond(200, encode({"schema": 1, "tasks": tasks}))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: bytes) -> str:
    """The host that a Host header names, without its port and an address's brackets."""
    text = header.decode("latin-1").strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _deployment(exchange: Exchange) -> Deployment:
    """Load the deployment that is asked for; takes seconds.

    Raises
    ------
    RefusalError
        When the request does not say which.
    ValueError
        When the file is not valid.
    """
    from inferway.deployment import load, measured

    # A page in somebody's browser can send forms to loopback, but no JSON unasked.
    kind = (exchange.content_type or b"").partition(b";")[0].strip().lower()
    if kind != JSON:
        raise RefusalError(415, "send the request as Content-Type: application/json")
    assert isinstance(exchange.body, bytes)
    try:
        asked = msgspec.json.decode(exchange.body, type=Asked)
    except UNREADABLE as error:
        raise RefusalError(400, f"the request is not valid: {fault(error)}") from None
    if (asked.path is None) == (asked.content is None):
        raise RefusalError(400, 'give {"path": FILE} or {"content": TEXT}, and not both')
    if asked.path is not None:
        path = Path(asked.path)
        if not path.is_absolute():
            raise RefusalError(400, f"path is {asked.path}; give an absolute one")
        try:
            return measured(load(path))
        except OSError as error:
            raise RefusalError(400, f"{path} cannot be read: {error.strerror or error}") from None
    assert asked.content is not None
    with tempfile.TemporaryDirectory(prefix="inferway-") as folder:
        path = Path(folder) / "content.yaml"
        path.write_text(asked.content, encoding="utf-8")
        return measured(load(path))
