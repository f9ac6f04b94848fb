"""The live server: listeners, sites, signals."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from inferway.live import grpc
from inferway.live.admin import admin_routes, asked_deployment, host_name
from inferway.live.assembly import ServeError, check_served, sites_of
from inferway.live.certificate import Certificate
from inferway.live.http.exchange import Exchange
from inferway.live.http.limits import Limits
from inferway.live.http.listener import Listener
from inferway.live.http.message import encode
from inferway.live.http.refusal import RefusalError
from inferway.live.http.routes import Handler, Routes, inference_routes
from inferway.live.instance import WarmUpError
from inferway.live.keys import Keys, keys_from
from inferway.live.log import logger
from inferway.live.site import Site
from inferway.live.succession import inherit, retire
from inferway.live.tracing import Tracer, tracer_from_environment

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.live.grpc.endpoint import Endpoint

HTTP_PORT = 8000
ADMIN_PORT = 8002
DRAIN_DELAY_S = 2.0
"""Long enough for load balancers that look every second to see that the server is not ready."""
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
    grpc_port
        Port of the inference listener for gRPC, likewise; None offers no gRPC. It needs the extra
        ``grpc``.
    admin_host
        Address of the admin listener; without keys it must be loopback.
    keys
        Who may use all listeners, health apart; None lets everybody in.
    allow_apply
        Whether ``POST /apply`` is answered without keys too: whoever has an account on this
        machine can then have the server run a policy file of theirs.
    certificate
        For TLS on the inference listeners, HTTP and gRPC, and on an admin listener that is not at
        loopback; None for plain connections.
    drain_delay_s
        How long the server says that it is not ready, and serves, before it accepts nothing more.
    grace_s
        How long `stop` waits for requests in flight.
    limits
        Caps on requests.
    record
        A folder where every task's events and random words are written down, for
        `inferway.dispatch.replay`; None writes nothing. For deployments only.
    tracer
        Makes spans of the requests; None makes none. The server closes it.
    times
        A file that keeps measured service times from one run to the next; None keeps nothing.
    log_level
        The least that is logged: ``debug``, ``info``, ``warning`` or ``error``.

    Raises
    ------
    ServeError
        When the deployment asks for what the live server does not run, or gRPC is not installed.
    """

    def __init__(
        self,
        deployment: Deployment | Sequence[Site],
        *,
        host: str = "127.0.0.1",
        http_port: int = HTTP_PORT,
        grpc_port: int | None = None,
        admin_port: int = ADMIN_PORT,
        admin_host: str = "127.0.0.1",
        keys: Keys | None = None,
        allow_apply: bool = False,
        certificate: Certificate | None = None,
        drain_delay_s: float = DRAIN_DELAY_S,
        grace_s: float = GRACE_S,
        limits: Limits | None = None,
        record: Path | None = None,
        times: Path | None = None,
        tracer: Tracer | None = None,
        log_level: str = "info",
    ) -> None:
        if keys is None and not _is_loopback(admin_host):
            raise ServeError(
                f"the admin listener at {admin_host} would be open to the network: give keys, or "
                "keep it at 127.0.0.1"
            )
        self._load: Callable[[], Sequence[Site]]
        if isinstance(deployment, Sequence):
            given = deployment
            self._load = lambda: given
        else:
            check_served(deployment)
            self._load = partial(sites_of, deployment, times)
        self.host = host
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.admin_port = admin_port
        self.admin_host = admin_host
        self._guarded, self._allow_apply = keys is not None, allow_apply
        self.drain_delay_s = drain_delay_s
        self.grace_s = grace_s
        self.limits = limits or Limits()
        self.record = record
        self._tracer = tracer
        self.times = times
        self.ready = False
        self.sites: Sequence[Site] = ()
        self._retiring: dict[Site, asyncio.Task[None]] = {}
        self._applying = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.log = logger(log_level)
        self._tls = None if certificate is None else certificate.context()
        allowed = None if keys is None else keys.allow
        starting = _starting_routes()
        self._routes, self._admin_routes = starting, starting
        self._http = Listener(
            lambda method, target: self._routes.find(method, target),
            self._broken,
            self.limits,
            allowed,
        )
        self._admin = Listener(
            lambda method, target: self._admin_routes.find(method, target),
            self._broken,
            allowed=allowed,
        )
        self._grpc: Endpoint | None = None
        if grpc_port is not None:
            self._grpc = grpc.endpoint_class()(
                self._is_ready,
                self._broken,
                self.limits,
                allowed=allowed,
                certificate=None if certificate is None else certificate.pem(),
            )
        self._ending, self._undelayed = asyncio.Event(), asyncio.Event()
        self._hurried = False
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
            await self._http.start(self.host, self.http_port, **self._tls_options())
            self.http_port = self._http.port
            if self._grpc is not None:
                assert self.grpc_port is not None
                await self._grpc.start(self.host, self.grpc_port)
                self.grpc_port = self._grpc.port
            local = _is_loopback(self.admin_host)
            secured = {} if local else self._tls_options()
            await self._admin.start(self.admin_host, self.admin_port, **secured)
            self.admin_port = self._admin.port
            self.sites = await asyncio.to_thread(self._load)
            if self.record is not None:
                for site in self.sites:
                    try:
                        site.record(self.record / site.task)
                    except (ValueError, OSError) as error:
                        raise ServeError(f"nothing can be recorded: {error}") from error
            self._route(self.sites)
            await self._warm_up(self.sites)
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        self.ready = True
        self._announce()
        self.log.info(
            "ready",
            http=f"{self.host}:{self.http_port}",
            grpc=None if self.grpc_port is None else f"{self.host}:{self.grpc_port}",
            admin=f"{self.admin_host}:{self.admin_port}",
            tasks={site.task: list(site.variants) for site in self.sites},
        )

    def _tls_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls, "ssl_handshake_timeout": float(self.limits.receive_s)}

    def _route(self, sites: Sequence[Site]) -> None:
        self.sites = sites
        self._routes = inference_routes(sites, self._is_ready, self.limits)
        self._admin_routes = admin_routes(sites, self._is_ready, self._answer_apply)
        if self._grpc is not None:
            self._grpc.serve(sites)

    async def _warm_up(self, sites: Sequence[Site]) -> None:
        for site in sites:
            if self._tracer is not None:
                site.traced = self._tracer.request
            for name in await site.start():
                self.log.warning("not warmed up: free input axes", instance=name)

    async def apply(self, deployment: Deployment) -> None:
        """Serve another deployment from now on; no request is lost.

        What is new is loaded and warmed up beside what serves; then it takes over, and the old
        instances end when they have answered what they have.

        Raises
        ------
        ServeError, WarmUpError
            When it cannot be served; nothing has changed then.
        """
        async with self._applying:
            if not self.ready:
                raise ServeError("the server is starting or ending; nothing can be applied now")
            check_served(deployment)
            for site in self.sites:
                await site.remember()
            sites = await asyncio.to_thread(sites_of, deployment, self.times)
            try:
                await self._warm_up(sites)
                if self._ending.is_set() or self._stopped:
                    raise ServeError("the server is ending; nothing has been applied")
            except BaseException:
                for site in sites:
                    await site.stop()
                raise
            # From here to the new routes nothing waits: every request finds the old or the new.
            heirs = {site.task: site for site in sites}
            for old in self.sites:
                heir = heirs.get(old.task)
                if heir is not None:
                    inherit(heir, old)
            if self.record is not None:
                self._record_on(sites)
            retired, self.sites = self.sites, sites
            self._route(sites)
            for old in retired:
                self._retiring[old] = asyncio.create_task(self._retire(old))
            self.log.info("applied", tasks={site.task: list(site.variants) for site in sites})

    async def _retire(self, old: Site) -> None:
        await retire(old)
        del self._retiring[old]

    def _record_on(self, sites: Sequence[Site]) -> None:
        # A recording has one fleet and one policy: what is new gets a folder of its own.
        assert self.record is not None
        for site in sites:
            number = 2
            while (folder := self.record / f"{site.task}.{number}").exists():
                number += 1
            try:
                site.record(folder)
            except OSError as error:
                self.log.error("no longer recording", task=site.task, reason=str(error))

    def _answer_apply(self, exchange: Exchange) -> None:
        if not self._guarded:
            if not self._allow_apply:
                reason = "a server without keys applies nothing unless it was started to allow it"
                exchange.refuse(403, reason)
                return
            # A page in a browser can give loopback a name of its own; the browser says which.
            name = host_name(exchange.host)
            if name != self.admin_host and not _is_loopback(name):
                reason = f"the request is for host {name!r}, not for this one"
                exchange.refuse(403, reason)
                return
        task = asyncio.get_running_loop().create_task(self._apply(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apply(self, exchange: Exchange) -> None:
        try:
            deployment = await asyncio.to_thread(asked_deployment, exchange)
            await self.apply(deployment)
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except (ValueError, WarmUpError) as error:
            exchange.refuse(400, str(error))
        except Exception as error:
            self._broken(error)
            exchange.refuse(500, "the server failed to apply the file; it goes on as before")
        else:
            tasks = {site.task: list(site.variants) for site in self.sites}
            exchange.respond(200, encode({"schema": 1, "tasks": tasks}))

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept no more, finish what is in flight within the grace period, close."""
        if self._stopped:
            return
        self._stopped = True
        self.ready = False
        self._announce()
        self._http.close()
        loop = asyncio.get_running_loop()
        grace_s = self.grace_s if grace_s is None else grace_s
        deadline = loop.time() + grace_s
        calls = []
        if self._grpc is not None:
            calls.append(asyncio.create_task(self._grpc.stop(0.0 if self._hurried else grace_s)))
        while self._http.connections and not self._hurried and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        await asyncio.gather(*calls)
        retiring, sites = list(self._retiring.values()), [*self.sites, *self._retiring]
        for task in retiring:
            task.cancel()
        if retiring:
            await asyncio.wait(retiring)
        unfinished = sum(site.in_flight for site in sites)
        self._http.abort()
        self._admin.close()
        for site in sites:
            left_s = 0.0 if self._hurried else deadline - loop.time()
            await site.stop(max(0.1, left_s))
        self._admin.abort()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self.sites:
            self.log.info("stopped", unfinished=unfinished)

    def end(self, *, delay: bool = True) -> None:
        """Ask the server to end, as signals do; each further call moves on to the next stage.

        The stages: not ready but serving, for the drain delay; accepting nothing more and finishing
        what is in flight, for the grace period; gone. To be called on the event loop.

        Parameters
        ----------
        delay
            False goes to the second stage at once.
        """
        if not self._ending.is_set():
            self._ending.set()
            if not delay:
                self._undelayed.set()
        elif not self._undelayed.is_set():
            self._undelayed.set()
        else:
            self._hurried = True
            self._http.abort()  # with no connection left, `stop` goes on at once
            if self._grpc is not None:
                self._grpc.abort()

    async def ended(self) -> None:
        """Serve until `end` is called, then drain and stop."""
        await self._ending.wait()
        self.ready = False
        self._announce()
        if not self._undelayed.is_set():
            self.log.info("draining", delay_s=self.drain_delay_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._undelayed.wait(), self.drain_delay_s)
        self._undelayed.set()
        await self.stop()

    def run(self, ready: Callable[[Server], None] | None = None) -> None:
        """Serve until SIGTERM, which drains first, or SIGINT, which does not wait for that.

        A second signal ends the drain delay, and another one does not wait for requests in flight.

        Parameters
        ----------
        ready
            Called once, when the server is ready.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run(ready))

    async def _run(self, ready: Callable[[Server], None] | None) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.end)
        loop.add_signal_handler(signal.SIGINT, partial(self.end, delay=False))
        waiting = asyncio.create_task(self._ending.wait())
        starting = asyncio.create_task(self.start())
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return
        waiting.cancel()
        starting.result()
        # What stands now stays: the collector need not look at it again during requests.
        gc.collect()
        gc.freeze()
        if ready is not None:
            ready(self)
        await self.ended()

    def _announce(self) -> None:
        if self._grpc is not None:
            self._grpc.announce()

    def _is_ready(self) -> bool:
        return self.ready

    def _broken(self, error: BaseException) -> None:
        self.log.error("a request handler failed", exc_info=error)


def serve(
    deployment: Deployment,
    *,
    host: str = "127.0.0.1",
    http_port: int = HTTP_PORT,
    grpc_port: int | None = None,
    admin_port: int = ADMIN_PORT,
    admin_host: str = "127.0.0.1",
    keys: Path | None = None,
    allow_apply: bool = False,
    certificate: Certificate | None = None,
    limits: Limits | None = None,
    drain_delay_s: float = DRAIN_DELAY_S,
    grace_s: float = GRACE_S,
    record: Path | None = None,
    times: Path | None = None,
    log_level: str = "info",
    ready: Callable[[Server], None] | None = None,
) -> None:
    """Serve a deployment until SIGINT or SIGTERM; see `Server.run`.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    host
        Address to listen on.
    http_port, admin_port
        Ports, 0 for a free one.
    grpc_port
        Port for gRPC, likewise; None offers none.
    admin_host
        Address of the admin listener; without keys it must be loopback.
    keys
        A file with one bearer key a line; None takes the environment's `INFERWAY_KEYS`, and lets
        everybody in without it.
    allow_apply
        Whether another deployment may be applied without a key; see `Server`.
    certificate
        For TLS; see `Server`.
    limits
        Caps on requests.
    drain_delay_s
        After SIGTERM the server says that it is not ready, and serves, for so long; then it
        accepts nothing more.
    grace_s
        How long it waits then for requests in flight.
    record
        A folder where every task's events and random words are written down; None: nowhere.
    times
        A file that keeps measured service times from one run to the next; None keeps nothing.
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
        grpc_port=grpc_port,
        admin_port=admin_port,
        admin_host=admin_host,
        keys=keys_from(keys),
        allow_apply=allow_apply,
        certificate=certificate,
        limits=limits,
        drain_delay_s=drain_delay_s,
        grace_s=grace_s,
        record=record,
        times=times,
        tracer=tracer_from_environment(),
        log_level=log_level,
    )
    server.run(ready)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _starting_routes() -> Routes:
    def refuse(exchange: Exchange) -> None:
        exchange.refuse(503, "the server is starting", b"Retry-After: 1\r\n")

    def otherwise(_method: bytes, _target: bytes) -> Handler:
        return refuse

    routes = Routes(lambda _: "", otherwise)
    routes.read("/v2/health/live", lambda exchange: exchange.respond(200))
    routes.read("/v2/health/ready", lambda exchange: exchange.respond(503))
    return routes
