"""The page that has a running server serve another deployment: ``POST /apply``."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferway.live.bounds import OUTSIDE, Bounds
from inferway.live.errors import WarmUpError
from inferway.live.http.exchange import JSON, Exchange
from inferway.live.threads import run_detached
from inferway.protocol.messages import encode
from inferway.protocol.refusal import RefusalError
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.deployment.errors import Problem
    from inferway.deployment.source import Source


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
    bounds
        Where files may come from.
    log
        Told what is wrong with other files than the deployment's own.
    """

    def __init__(
        self,
        apply: Callable[[Deployment], Awaitable[dict[str, list[str]]]],
        broken: Callable[[BaseException], None],
        *,
        host: str,
        guarded: bool,
        allowed: bool,
        bounds: Bounds,
        log: Any,
    ) -> None:
        self._apply, self._broken = apply, broken
        self._bounds, self._log = bounds, log
        self._host, self._guarded, self._allowed = host, guarded, allowed
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> None:
        """Check who asks, and see to it."""
        if not self._guarded:
            if not self._allowed:
                reason = (
                    "a server without keys applies nothing: start it with --allow-apply, or with "
                    "keys"
                )
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
            tasks = await self._apply(await run_detached(self._deployment, exchange))
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except (ValueError, WarmUpError) as error:
            exchange.refuse(400, str(error))
        except Exception as error:
            self._broken(error)
            exchange.refuse(500, "the server failed to apply the file; it goes on as before")
        else:
            exchange.respond(200, encode({"schema": 1, "tasks": tasks}))

    def _deployment(self, exchange: Exchange) -> Deployment:
        """Load the deployment that is asked for; takes seconds.

        Raises
        ------
        RefusalError
            When the request does not say which, or it is none, or lies elsewhere.
        ValueError
            When the file is not valid.
        """
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
            if not path.is_absolute() or "\0" in asked.path:
                raise RefusalError(400, f"path is {asked.path!r}; give an absolute one")
            if not self._bounds.hold(path):
                raise RefusalError(403, f"{path} is {OUTSIDE}")
            return self._loaded(_written(path.resolve()), self._bounds)
        from inferway.deployment import DeploymentError
        from inferway.deployment.source import read

        assert asked.content is not None
        with tempfile.TemporaryDirectory(prefix="inferway-") as folder:
            path = Path(folder) / "content.yaml"
            path.write_text(asked.content, encoding="utf-8")
            try:
                return self._loaded(read(path), Bounds([*self._bounds.folders, path.parent]))
            except DeploymentError as error:
                # Where it lies meanwhile means nothing to whoever sent it.
                problems = [
                    replace(one, sentence=one.sentence.replace(f"{folder}/", ""))
                    for one in error.problems
                ]
                raise DeploymentError("content", problems) from None

    def _loaded(self, source: Source, bounds: Bounds) -> Deployment:
        from inferway.deployment import DeploymentError, measured
        from inferway.deployment.deployment import build

        files = bounds.files(source)
        try:
            return measured(build(source))
        except DeploymentError as error:
            self._log.warning("a deployment is not applied", reason=str(error))
            raise DeploymentError(
                error.path, [_unquoted(problem, files) for problem in error.problems]
            ) from None


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


def _written(path: Path) -> Source:
    """Read a deployment file; of any other file nothing is said.

    Raises
    ------
    RefusalError
        When it is none.
    """
    from inferway.deployment import DeploymentError
    from inferway.deployment.deployment import KEYS
    from inferway.deployment.source import read

    line = 0
    try:
        source = read(path)
    except DeploymentError as error:
        if not path.is_file():
            raise RefusalError(400, str(error)) from None
        line = error.problems[0].line
    else:
        strange = [source.line((key,)) for key in source.data if key not in KEYS]
        if "tasks" in source.data and not strange:
            return source
        line = min(strange, default=0)
    where = f"{path}:{line}" if line else str(path)
    known = ", ".join(KEYS)
    raise RefusalError(
        400, f"{where}: this is no deployment file: at its top there is `tasks`, and only {known}"
    )


def _unquoted(problem: Problem, files: dict[str, Path]) -> Problem:
    """Leave out of a problem what another file may have said."""
    for field, file in files.items():
        if problem.field == field or file.name in problem.sentence:
            reason = f"{file.name} is not what belongs here; the server's log says why"
            return replace(problem, sentence=reason)
    return problem
