"""The live server: listeners, sites, signals."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from inferway.live.admin import admin_routes
from inferway.live.assembly import check_served, sites_of
from inferway.live.http.exchange import Exchange
from inferway.live.http.limits import Limits
from inferway.live.http.listener import Listener
from inferway.live.http.routes import Handler, Routes, inference_routes
from inferway.live.log import logger
from inferway.live.site import Site

if TYPE_CHECKING:
    from inferway.deployment import Deployment

HTTP_PORT = 8000
ADMIN_PORT = 8002
GRACE_S = 10.0
_POLL_S = 0.01


class Server:
    """Serves a deployment's tasks on this machine.

    Parameters
    ----------
    deployment
        From `inferway.load`; or the sites themselves, made by hand.
    host
        Address of the inference listener.
    http_port, admin_port
        Ports, 0 for a free one; after `start` these attributes hold the actual ones.
    admin_host
        Address of the admin listener, which has no authentication: loopback.
    grace_s
        How long `stop` waits for requests in flight.
    limits
        Caps on requests.
    record
        A folder where every task's events and random words are written down, for
        `inferway.dispatch.replay`; None writes nothing. For deployments only.
    log_level
        The least that is logged: ``debug``, ``info``, ``warning`` or ``error``.

    Raises
    ------
    ServeError
        When the deployment asks for what the live server does not run.
    """

    def __init__(
        self,
        deployment: Deployment | Sequence[Site],
        *,
        host: str = "127.0.0.1",
        http_port: int = HTTP_PORT,
        admin_port: int = ADMIN_PORT,
        admin_host: str = "127.0.0.1",
        grace_s: float = GRACE_S,
        limits: Limits | None = None,
        record: Path | None = None,
        log_level: str = "info",
    ) -> None:
        self._load: Callable[[], Sequence[Site]]
        if isinstance(deployment, Sequence):
            given = deployment
            self._load = lambda: given
        else:
            check_served(deployment)
            self._load = partial(sites_of, deployment, record)
        self.host = host
        self.http_port = http_port
        self.admin_port = admin_port
        self.admin_host = admin_host
        self.grace_s = grace_s
        self.limits = limits or Limits()
        self.ready = False
        self.sites: Sequence[Site] = ()
        self.log = logger(log_level)
        starting = _starting_routes()
        self._routes, self._admin_routes = starting, starting
        self._http = Listener(
            lambda method, target: self._routes.find(method, target), self._broken, self.limits
        )
        self._admin = Listener(
            lambda method, target: self._admin_routes.find(method, target), self._broken
        )
        self._stopped = False

    async def start(self) -> None:
        """Listen, load, warm up; returns when the server is ready.

        Health can be asked for from the first moment: live at once, ready when this returns.

        Raises
        ------
        ServeError, WarmUpError
            When a model or a policy cannot be loaded or run.
        OSError
            When a port is taken.
        """
        try:
            await self._http.start(self.host, self.http_port)
            self.http_port = self._http.port
            await self._admin.start(self.admin_host, self.admin_port)
            self.admin_port = self._admin.port
            self.sites = await asyncio.to_thread(self._load)
            self._routes = inference_routes(self.sites, self._is_ready, self.limits)
            self._admin_routes = admin_routes(self.sites, self._is_ready)
            for site in self.sites:
                for name in await site.start():
                    self.log.warning("not warmed up: free input axes", instance=name)
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        self.ready = True
        self.log.info(
            "ready",
            http=f"{self.host}:{self.http_port}",
            admin=f"{self.admin_host}:{self.admin_port}",
            tasks={site.task: list(site.variants) for site in self.sites},
        )

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept no more, finish what is in flight within the grace period, close."""
        if self._stopped:
            return
        self._stopped = True
        self.ready = False
        self._http.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.grace_s if grace_s is None else grace_s)
        while self._http.connections and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        unfinished = sum(site.in_flight for site in self.sites)
        self._http.abort()
        self._admin.close()
        for site in self.sites:
            await site.stop(max(0.1, deadline - loop.time()))
        self._admin.abort()
        if self.sites:
            self.log.info("stopped", unfinished=unfinished)

    def run(self, ready: Callable[[Server], None] | None = None) -> None:
        """Serve until SIGINT or SIGTERM; a second signal does not wait for requests in flight.

        Parameters
        ----------
        ready
            Called once, when the server is ready.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run(ready))

    async def _run(self, ready: Callable[[Server], None] | None) -> None:
        loop = asyncio.get_running_loop()
        asked, hurried = asyncio.Event(), asyncio.Event()

        def end() -> None:
            (hurried if asked.is_set() else asked).set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        waiting = asyncio.create_task(asked.wait())
        starting = asyncio.create_task(self.start())
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return
        try:
            starting.result()
        finally:
            if not asked.is_set() and starting.exception() is not None:
                waiting.cancel()
        # What stands now stays: the collector need not look at it again during requests.
        gc.collect()
        gc.freeze()
        if ready is not None:
            ready(self)
        await waiting
        stopping = asyncio.create_task(self.stop())
        hurrying = asyncio.create_task(hurried.wait())
        await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            self._http.abort()  # with no connection left, `stop` goes on at once
        await stopping
        hurrying.cancel()

    def _is_ready(self) -> bool:
        return self.ready

    def _broken(self, error: BaseException) -> None:
        self.log.error("a request handler failed", exc_info=error)


def serve(
    deployment: Deployment,
    *,
    host: str = "127.0.0.1",
    http_port: int = HTTP_PORT,
    admin_port: int = ADMIN_PORT,
    record: Path | None = None,
    log_level: str = "info",
    ready: Callable[[Server], None] | None = None,
) -> None:
    """Serve a deployment until SIGINT or SIGTERM.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    host
        Address to listen on.
    http_port, admin_port
        Ports, 0 for a free one.
    record
        A folder where every task's events and random words are written down; None: nowhere.
    log_level
        The least that is logged: ``debug``, ``info``, ``warning`` or ``error``.
    ready
        Called once with the server, when it is ready.

    Raises
    ------
    ServeError, WarmUpError
        When the deployment, a model or a policy cannot be served.
    OSError
        When a port is taken.
    """
    server = Server(
        deployment,
        host=host,
        http_port=http_port,
        admin_port=admin_port,
        record=record,
        log_level=log_level,
    )
    server.run(ready)


def _starting_routes() -> Routes:
    def refuse(exchange: Exchange) -> None:
        exchange.refuse(503, "the server is starting", b"Retry-After: 1\r\n")

    def otherwise(_method: bytes, _target: bytes) -> Handler:
        return refuse

    routes = Routes(lambda _: "", otherwise)
    routes.read("/v2/health/live", lambda exchange: exchange.respond(200))
    routes.read("/v2/health/ready", lambda exchange: exchange.respond(503))
    return routes
