"""The live server: listeners, sites, signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from inferway.live import grpc
from inferway.live.admin import admin_routes
from inferway.live.applying import Applying, is_loopback
from inferway.live.assembly import check_served
from inferway.live.bodies import Bodies
from inferway.live.bounds import Bounds
from inferway.live.descriptors import Descriptors
from inferway.live.errors import ServeError
from inferway.live.growths import Growths
from inferway.live.guard import Guard
from inferway.live.headroom import Headroom
from inferway.live.http.exchange import Exchange
from inferway.live.http.limits import Limits
from inferway.live.http.listener import Listener
from inferway.live.http.routes import Handler, Routes, inference_routes
from inferway.live.keys import ANYBODY, Keys, Role
from inferway.live.log import logger
from inferway.live.options import ServerOptions
from inferway.live.pauses import Pauses, settle
from inferway.live.pool import Pool
from inferway.live.port import listening
from inferway.live.roster import Roster
from inferway.live.site import Site
from inferway.live.threads import run_detached
from inferway.live.tidying import Tidying
from inferway.runtime.allocator import give_back

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.live.grpc.endpoint import Endpoint

_POLL_S = 0.01


class Server:
    """Serves a deployment's tasks on this machine.

    Parameters
    ----------
    deployment
        From `inferway.load`; or the sites themselves, made by hand: none, where `replace` brings
        them.
    options
        How; after `start`, `http_port`, `grpc_port` and `admin_port` hold the actual ports.
    expected
        Tasks that are not unknown where no site serves them: nothing can answer them now.
    pages
        More pages of the admin listener, by path, for whose key may read.

    Raises
    ------
    ServeError
        When the deployment asks for what the live server does not run, or gRPC is not installed.
    """

    def __init__(
        self,
        deployment: Deployment | Sequence[Site],
        options: ServerOptions | None = None,
        *,
        expected: Iterable[str] = (),
        pages: Mapping[str, Handler] | None = None,
    ) -> None:
        self.options = options = options or ServerOptions()
        check_admin(options.admin_host, options.keys)
        if not isinstance(deployment, Sequence):
            check_served(deployment)
        self._deployment = deployment
        self.host, self.admin_host = options.host, options.admin_host
        self.http_port, self.admin_port = options.http_port, options.admin_port
        self.grpc_port = options.grpc_port
        self.limits = options.limits or _limits_of(deployment)
        self.bodies = Bodies(self.limits.bodies_bytes)
        self._expected, self._pages = tuple(expected), dict(pages or {})
        self._routes_by_pool: dict[Pool, Routes] = {}
        self.ready = False
        self.log = logger(options.log_level)
        self._pauses = Pauses()
        self._settles = False
        self.headroom = Headroom(self.limits.memory_bytes)
        self._tidying = Tidying()
        self._roster = Roster(
            self._route,
            self._announce,
            self._settle,
            self.log,
            options,
            headroom=self.headroom,
            growths=Growths(options.times, self.log, self.limits.memory_bytes),
        )
        self._applying = Applying(
            self._apply,
            self._broken,
            host=options.admin_host,
            guarded=options.keys is not None,
            allowed=options.allow_apply,
            bounds=Bounds(
                _folders_of(deployment) if options.apply_from is None else options.apply_from
            ),
            log=self.log,
        )
        self._certificate = certificate = options.certificate
        self._tls = None if certificate is None else certificate.context()
        self.guard = None if options.keys is None else Guard(options.keys, self.log)
        self._renewing: asyncio.Task[None] | None = None
        self._renew_again = False
        starting = _starting_routes()
        self._routes, self._admin_routes = starting, starting
        self._http = Listener(
            lambda method, target: self._routes.find(method, target),
            self._broken,
            self.limits,
            self.guard,
            lambda target: self._routes.role(target),
            bodies=self.bodies,
            beat=Descriptors(self.log).look,
        )
        self._admin = Listener(
            lambda method, target: self._admin_routes.find(method, target),
            self._broken,
            self.limits,
            self.guard,
            lambda target: self._admin_routes.role(target),
            bodies=self.bodies,
        )
        self._grpc: Endpoint | None = None
        if options.grpc_port is not None:
            self._grpc = grpc.endpoint_class()(
                self._is_ready,
                self._broken,
                self.limits,
                bodies=self.bodies,
                guard=self.guard,
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
        PortError
            When a port is taken or an address is not this machine's.
        """
        try:
            with listening("http", self.host, self.http_port):
                await self._http.start(self.host, self.http_port, **self._tls_options())
            self.http_port = self._http.port
            if self._grpc is not None:
                assert self.grpc_port is not None
                with listening("grpc", self.host, self.grpc_port):
                    await self._grpc.start(self.host, self.grpc_port)
                self.grpc_port = self._grpc.port
            local = is_loopback(self.admin_host)
            secured = {} if local else self._tls_options()
            with listening("admin", self.admin_host, self.admin_port):
                await self._admin.start(self.admin_host, self.admin_port, **secured)
            self.admin_port = self._admin.port
            await self._roster.start(self._deployment)
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        self._settle()
        self._pauses.begin()
        self._tidying.begin()
        self.ready = True
        self._announce()
        self.log.info(
            "ready",
            http=f"{self.host}:{self.http_port}",
            grpc=None if self.grpc_port is None else f"{self.host}:{self.grpc_port}",
            admin=f"{self.admin_host}:{self.admin_port}",
            tasks={site.task: list(site.pool.variants) for site in self.sites},
        )

    @property
    def sites(self) -> Sequence[Site]:
        """The sites that requests go to, one per task."""
        return self._roster.sites

    @property
    def scheme(self) -> str:
        """``https`` where the inference listener has a certificate, else ``http``."""
        return "http" if self._tls is None else "https"

    def _tls_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls, "ssl_handshake_timeout": float(self.limits.receive_s)}

    def _route(self, sites: Sequence[Site]) -> None:
        self._routes = inference_routes(sites, self._is_ready, self.limits, self._routes_by_pool)
        served = {site.task for site in sites}
        for task in self._expected:
            if task not in served:
                self._routes.post(f"/v2/models/{task}/infer", _unserved(task), Role.INFER)
                self._routes.read(f"/v2/models/{task}/ready", _unserved(task), Role.INFER)
        self._admin_routes = admin_routes(
            sites, self._is_ready, self._applying, self._pauses, self.guard, self.bodies
        )
        for path, page in self._pages.items():
            self._admin_routes.read(path, page, Role.READ)
        if self._grpc is not None:
            self._grpc.serve(sites)

    async def apply(self, deployment: Deployment) -> None:
        """Serve another deployment from now on; no request is lost.

        What is new is loaded and warmed up beside what serves; then it takes over, and the old
        instances end when they have answered what they have.

        Raises
        ------
        ServeError, WarmUpError
            When it cannot be served; nothing has changed then.
        """
        await self._roster.apply(deployment, lambda: not self.ready or self._ending.is_set())

    async def replace(
        self, task: str, pool: Pool | None
    ) -> tuple[Site | None, asyncio.Task[None] | None]:
        """Let another fleet serve one task from now on, or none; see `Roster.replace`."""
        return await self._roster.replace(task, pool)

    async def _apply(self, deployment: Deployment) -> dict[str, list[str]]:
        if self._expected:
            raise ServeError(
                "a node of a network runs what its file says and placement decides: change the "
                "file, and start its nodes again one by one"
            )
        await self.apply(deployment)
        return {site.task: list(site.pool.variants) for site in self.sites}

    def renew(self) -> None:
        """Read keys, certificate and deployment anew, as SIGHUP asks; to be called on the loop.

        What is wrong is logged, and the old goes on. While the server starts, that comes first;
        once it ends, nothing is read.
        """
        if self._renewing is not None and not self._renewing.done():
            self._renew_again = True
        elif not self._ending.is_set():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def again(self, what: str, read: Callable[[], object]) -> None:
        """Read something anew now, or say why the old goes on."""
        try:
            read()
        except (ServeError, OSError, ValueError) as error:
            self.log.error("not read anew", what=what, reason=str(error))
        else:
            self.log.info("read anew", what=what)

    async def _renew(self) -> None:
        if self.guard is not None and self.options.read_keys is not None:
            self.again("keys", self._take_keys)
        if self._certificate is not None:
            self.again("certificate", self._take_certificate)
        while not self.ready and not self._ending.is_set():
            await asyncio.sleep(_POLL_S)
        if self.options.read_deployment is not None and not self._ending.is_set():
            try:
                await self.apply(await run_detached(self.options.read_deployment))
            except Exception as error:  # whatever is wrong with the file, the server goes on
                self.log.error("not read anew", what="deployment", reason=str(error))
        if self._renew_again:
            self._renew_again = False
            await self._renew()

    def _take_keys(self) -> None:
        assert self.options.read_keys is not None
        assert self.guard is not None
        keys = self.options.read_keys()
        if keys is not None:
            self.guard.keys = keys

    def _take_certificate(self) -> None:
        assert self._certificate is not None
        assert self._tls is not None
        self._certificate.renew(self._tls)
        if self._grpc is not None:
            self._grpc.renew(self._certificate.pem())

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept no more, finish what is in flight within the grace period, close."""
        if self._stopped:
            return
        self._stopped = True
        self.ready = False
        self._announce()
        self._flush()
        self._http.close()
        loop = asyncio.get_running_loop()
        grace_s = self.options.grace_s if grace_s is None else grace_s
        deadline = loop.time() + grace_s
        calls = []
        if self._grpc is not None:
            calls.append(asyncio.create_task(self._grpc.stop(0.0 if self._hurried else grace_s)))
        while self._http.connections and not self._hurried and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        await asyncio.gather(*calls)
        sites = await self._roster.all()
        unfinished = sum(site.in_flight for site in sites)
        self._http.abort()
        self._admin.close()
        for site in sites:
            left_s = 0.0 if self._hurried else deadline - loop.time()
            await site.stop(max(0.1, left_s))
        self._admin.abort()
        if self.options.tracer is not None:
            await asyncio.to_thread(self.options.tracer.close)
        self._pauses.end()
        self._tidying.end()
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

    @property
    def hurried(self) -> bool:
        """Whether nothing is waited for any more."""
        return self._hurried

    async def told(self) -> None:
        """Wait until `end` is called."""
        await self._ending.wait()

    async def ended(self) -> None:
        """Serve until `end` is called, then drain and stop."""
        await self._ending.wait()
        self.ready = False
        self._announce()
        self._flush()
        if not self._undelayed.is_set():
            self.log.info("draining", delay_s=self.options.drain_delay_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._undelayed.wait(), self.options.drain_delay_s)
        self._undelayed.set()
        await self.stop()

    def run(self, ready: Callable[[Server], None] | None = None) -> None:
        """Serve until SIGTERM, which drains first, or SIGINT, which does not wait for that.

        A second signal ends the drain delay, and another one does not wait for requests in flight.
        SIGHUP is `renew`.

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
        loop.add_signal_handler(signal.SIGHUP, self.renew)
        self._settles = True
        give_back()
        waiting = asyncio.create_task(self._ending.wait())
        starting = asyncio.create_task(self.start())
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return
        waiting.cancel()
        starting.result()
        if ready is not None:
            ready(self)
        await self.ended()

    def _settle(self) -> None:
        # Only where the process is this server's own: it holds for all that is in it.
        if self._settles:
            settle()

    def _flush(self) -> None:
        for site in self.sites:
            site.flush()

    def _announce(self) -> None:
        if self._grpc is not None:
            self._grpc.announce()

    def _is_ready(self) -> bool:
        # One task that nothing can answer must not cost the others their clients.
        return self.ready and any(site.ready for site in self.sites)

    def _broken(self, error: BaseException) -> None:
        self.log.error("a request handler failed", exc_info=error)


def check_admin(host: str, keys: Keys | None) -> None:
    """Refuse an admin listener that the network can reach, where there are no keys.

    Raises
    ------
    ServeError
        With what would be right.
    """
    if keys is None and not is_loopback(host):
        raise ServeError(
            f"the admin listener at {host} would be open to the network: give keys, or keep it at "
            "127.0.0.1"
        )


def _limits_of(deployment: Deployment | Sequence[Site]) -> Limits:
    if isinstance(deployment, Sequence):
        return Limits()
    (node,) = deployment.nodes.values()
    return Limits.of(node.limits)


def _folders_of(deployment: Deployment | Sequence[Site]) -> Sequence[Path]:
    path = None if isinstance(deployment, Sequence) else deployment.path
    # A file may be a link, and those beside either be meant.
    return () if path is None else (path.absolute().parent, path.resolve().parent)


def _unserved(task: str) -> Handler:
    reason = f"nothing that can answer task {task!r} is within reach now"
    return lambda exchange: exchange.refuse(503, reason, b"Retry-After: 1\r\n")


def _starting_routes() -> Routes:
    def refuse(exchange: Exchange) -> None:
        exchange.refuse(503, "the server is starting", b"Retry-After: 1\r\n")

    def otherwise(_method: bytes, _target: bytes) -> Handler:
        return refuse

    routes = Routes(lambda _: "", otherwise)
    routes.read("/v2/health/live", lambda exchange: exchange.respond(200), ANYBODY)
    routes.read("/v2/health/ready", lambda exchange: exchange.respond(503), ANYBODY)
    return routes
