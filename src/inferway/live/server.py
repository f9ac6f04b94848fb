"""The live server: listeners, sites, signals."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from inferway.deployment import Deployment, Task, load, measured
from inferway.deployment.overhead import MeasuredOverhead, overhead_key
from inferway.dispatch import drift_alarm
from inferway.dispatch.joint import told_targets
from inferway.dispatch.recording import Losses
from inferway.live import grpc
from inferway.live.admin import admin_routes
from inferway.live.answers import AnswerBook, ServedModel, noting
from inferway.live.applying import Applying, is_loopback
from inferway.live.assigned import DeviceAssignment
from inferway.live.build import check_served, pools_of, stated_models, would_serve
from inferway.live.errors import ServeError, listening
from inferway.live.front import (
    decisions_page,
    explanation_page,
    front_page,
    history_page,
)
from inferway.live.gate import DeviceGate
from inferway.live.headroom import Bodies, Growths, Headroom
from inferway.live.history import History
from inferway.live.http.connection import Listener
from inferway.live.http.exchange import Handler, Limits
from inferway.live.http.routes import Routes, inference_routes, lay_out
from inferway.live.in_force import deployment_page, fleet_page
from inferway.live.log import logger
from inferway.live.options import ServerOptions
from inferway.live.overhead import OverheadMeter
from inferway.live.pool import Pool
from inferway.live.process import Pauses, descriptor_watch, settle, tidy
from inferway.live.recent import RecentRequests, recent_page
from inferway.live.security.keys import ANYBODY, Guard, Keys, Role, keys_from
from inferway.live.shadow import shadowing
from inferway.live.site import TaskSite
from inferway.live.targets import SharedTargets, shared_targets
from inferway.live.threads import run_detached
from inferway.live.tracing import tracer_from_environment
from inferway.placement.assign import Key
from inferway.protocol.address import joined
from inferway.runtime.growth import give_back

if TYPE_CHECKING:
    # It needs an extra.
    from inferway.live.grpc.endpoint import Endpoint

_POLL_S = 0.01
_NEWS = 0.01  # Change of a variant's measured accuracy from which on it is said


class Server:
    """Serves a deployment's tasks on this machine.

    Parameters
    ----------
    deployment
        From `inferway.load`; or the sites themselves, made by hand. They may have no fleet yet,
        where `replace` brings one.
    options
        How; after `start`, `http_port`, `grpc_port` and `admin_port` hold the actual ports.
    pages
        More pages of the admin listener, by path, for whose key may read.

    Attributes
    ----------
    sites
        By task, what answers its requests, or says that nothing can now.
    scheme
        ``https`` where the inference listener has a certificate, else ``http``.
    hurried
        Whether nothing is waited for any more.
    deployment
        In force; None where the sites were made by hand and nobody has said it.
    meter
        Measures what requests take besides models, once it has been begun.
    passed
        Counts requests that have gone on through this process, and are of no task here.
    dashboard
        Where a page shows this server, as the admin listener's root says; empty where none does.

    Raises
    ------
    ServeError
        When the deployment asks for what the live server does not run, or gRPC is not installed.
    """

    def __init__(
        self,
        deployment: Deployment | Sequence[TaskSite],
        options: ServerOptions | None = None,
        pages: Mapping[str, Handler] | None = None,
    ) -> None:
        self.options = options = options or ServerOptions()
        if options.complete is not None and isinstance(deployment, Deployment):
            deployment = options.complete(deployment)
        self.host, self.admin_host = options.host, options.admin_host
        self.http_port, self.admin_port, self.grpc_port = (
            options.http_port,
            options.admin_port,
            options.grpc_port,
        )
        check_admin(self.admin_host, options.keys)
        self.deployment = self._loads = None if isinstance(deployment, Sequence) else deployment
        self._recent = RecentRequests()
        sites, limits, folders = [], Limits(), list[Path]()
        if isinstance(deployment, Sequence):
            sites = list(deployment)
        else:
            check_served(deployment)
            path = deployment.path
            (node,) = deployment.nodes.values()
            limits = Limits.of(node.limits)
            if path is not None:  # a file may be a link, and those beside either be meant
                folders = [path.absolute().parent, path.resolve().parent]
        self.limits = options.limits or limits
        self.bodies = Bodies(self.limits.bodies_bytes)
        self.log, self._pauses = logger(options.log_level), Pauses()
        # `_over`: all sites are being stopped, and nobody takes over any more.
        self.ready = self.hurried = self._settles = self._stopped = self._over = False
        self.headroom = Headroom(self.limits.memory_bytes)
        self._tidying: asyncio.Task[None] | None = None
        # By task and variant, the measured accuracy that was said last.
        self._corrected: dict[tuple[str, str], float | None] = {}
        self._made = partial(
            pools_of,
            options=options,
            headroom=self.headroom,
            growths=Growths(options.times, self.log, self.limits.memory_bytes),
            log=self.log,
        )
        self.sites = {site.task: self._watched(site) for site in sites}
        self.dashboard = ""
        self._targets: SharedTargets | None = None
        self._gate = DeviceGate()
        # Gives devices out anew; None where the file does not ask for it.
        self.assignment: DeviceAssignment | None = None
        self._history = History(lambda: list(self.sites.values()), log=self.log)
        # The file whose models are named, and their name.
        self._named: tuple[Deployment | None, str] = None, ""
        self.meter = OverheadMeter(
            self._spent, self._predict_with, options.times, self._serves, self.log
        )
        self.passed: Callable[[], int] = lambda: 0
        # Of tasks that are served no more, while requests of them are on their way.
        self._dropped: dict[asyncio.Task[None], TaskSite] = {}
        # Of tasks that keep no answers any more.
        self._closing: set[asyncio.Task[None]] = set()
        # By task, what could not be recorded, of whatever fleet.
        self._losses: dict[str, Losses] = {}
        self._changing = asyncio.Lock()
        allowed = folders if options.apply_from is None else options.apply_from
        self._applying = Applying(
            self._apply, lambda: self.deployment, self._broken, options, allowed, self.log
        )
        certificate = options.certificate
        self._tls = None if certificate is None else certificate.context()
        self.scheme = "http" if certificate is None else "https"
        self._secured: dict[str, Any] = {}
        if self._tls is not None:
            seconds = float(self.limits.receive_s)
            self._secured = {"ssl": self._tls, "ssl_handshake_timeout": seconds}
        self._admin_secured = {} if is_loopback(self.admin_host) else self._secured
        self.guard = None if options.keys is None else Guard(options.keys, self.log)
        self._renewing: asyncio.Task[None] | None = None
        self._renew_again = False
        self._routes = _starting_routes()
        self._pages = pages or {}
        self._http, self._admin = (
            Listener(
                self._routes.find,
                self._broken,
                self.limits,
                self.guard,
                self._routes.role,
                bodies=self.bodies,
                beat=beat,
            )
            for beat in (descriptor_watch(self.log), None)
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
                await self._http.start(self.host, self.http_port, **self._secured)
            self.http_port = self._http.port
            if self._grpc is not None and self.grpc_port is not None:
                with listening("grpc", self.host, self.grpc_port):
                    await self._grpc.start(self.host, self.grpc_port)
                self.grpc_port = self._grpc.port
            with listening("admin", self.admin_host, self.admin_port):
                await self._admin.start(self.admin_host, self.admin_port, **self._admin_secured)
            self.admin_port = self._admin.port
            await self._load()
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        if self._settles:
            settle()
        self._pauses.begin()
        self._tidying = asyncio.create_task(tidy())
        self._history.begin()
        if self._settles:
            self.meter.begin()
        self.ready = True
        if self.assignment is not None:
            self.assignment.begin(lambda: self.sites, self._reassign)
        self._announce()
        self.log.info(
            "ready",
            http=f"{self.host}:{self.http_port}",
            grpc=None if self.grpc_port is None else f"{self.host}:{self.grpc_port}",
            admin=f"{self.admin_host}:{self.admin_port}",
            tasks=self._variants(),
        )

    async def _load(self) -> None:
        if self._loads is not None:
            self.assignment = await self._assigning(self._loads)
            others = await run_detached(_told, self._loads)
            pools = await run_detached(self._made, _placed(self._loads, self.assignment))
            self._targets = shared_targets(pools, None, others)
            for pool in pools:
                self.sites[pool.task] = self._watched(TaskSite.of(pool))
            self.sites |= self._bare(self._loads, self.sites)
        for site in self.served():
            site.pool.servers.share(self._gate)
        if self.options.record is not None:
            try:
                for site in self.served():
                    self._record(site, self.options.record)
            except (ValueError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                folder = self.options.record
                raise ServeError(f"nothing can be recorded in {folder}: {reason}") from error
        pages = admin_routes(
            self.served,
            self._is_ready,
            self._applying,
            self._pauses,
            self.guard,
            self.bodies,
            lambda: self.assignment,
            self.overhead,
        )
        own = {
            "/": front_page(self),
            "/history": history_page(self._history),
            "/decisions": decisions_page(lambda: self.sites, lambda: self.assignment),
            "/deployment": deployment_page(lambda: self.deployment),
        }
        for path, page in (own | dict(self._pages)).items():
            pages.read(path, page, Role.READ)
        below = {
            "/decisions": explanation_page(lambda: self.sites),
            "/deployment": fleet_page(lambda: self.deployment, lambda: self.sites),
            "/requests": recent_page(self._recent, lambda: self.sites),
        }
        for path, page_below in below.items():
            pages.read_below(path, page_below, Role.READ)
        self._admin.find, self._admin.role = pages.find, pages.role
        self._serve()
        for site in self.served():
            await self._prepare(site, site.pool)
            self._keep_answers(site, await self._book_of(site, site.pool))
            if site.pool.held_variants is None:
                site.begin()
        await self._gate.hold_fastest()
        for site in self.served():
            site.begin()
        for site in self.sites.values():
            if site.present is None and site.node is None and self._loads is not None:
                await self.go_on_with_answers(site, self._loads.tasks[site.task])

    async def _assigning(self, deployment: Deployment) -> DeviceAssignment | None:
        """Make what gives out the devices of a deployment; None where nothing is to."""
        if not deployment.assigns:
            return None
        return await run_detached(
            DeviceAssignment,
            deployment,
            self.assignment,
            self.options,
            self.log,
            self.meter.estimate.measured,
        )

    def _bare(self, deployment: Deployment, sites: Mapping[str, TaskSite]) -> dict[str, TaskSite]:
        """Make sites for the tasks that have no fleet, and may get one."""
        return {
            name: self.sites.get(name)
            or self._watched(
                TaskSite(name, task.accuracy_target, now=self.options.now, measured=task.measured)
            )
            for name, task in deployment.tasks.items()
            if deployment.assigns and name not in sites
        }

    @property
    def url(self) -> str:
        """URL to which requests go."""
        return f"{self.scheme}://{joined(self.host, self.http_port)}"

    def served(self) -> list[TaskSite]:
        """List the tasks that a fleet answers now."""
        return [site for site in self.sites.values() if site.present is not None]

    def _serves(self) -> str:
        """Name the models of the file, as they were when it came; empty without a file."""
        deployment = self.deployment
        if deployment is not None and deployment is not self._named[0]:
            self._named = deployment, overhead_key(deployment.tasks)
        return self._named[1]

    def overhead(self) -> dict[str, Any]:
        """Tell what a request takes of the node's cores besides its model, and who says so.

        Nothing while nobody knows it.
        """
        estimate, served = self.meter.estimate, self._loads is not None
        told = {"measured_s": estimate.seconds, "intervals": estimate.intervals}
        node = None
        if served and self.deployment is not None:
            (node,) = self.deployment.nodes.values()
        if node is not None and node.overhead_s is not None:
            return {"seconds": node.overhead_s, "by": "file", **told}
        if estimate.seconds is not None:
            return {"seconds": estimate.seconds, "by": "measured", **told}
        kept = None if node is None or self.options.times is None else node.measured_overhead
        if kept is None:
            return {}
        return {"seconds": kept.own_s, "by": "earlier run", **told}

    def _spent(self) -> tuple[dict[int, float], dict[int, float], int, int]:
        """Count CPU time of models, and beyond profiles, requests that have ended and in flight."""
        sites = self._all_sites()
        run_cpu_s = {key: took_s for site in sites for key, took_s in site.run_cpu_s.items()}
        return (
            run_cpu_s,
            {key: took_s for site in sites for key, took_s in site.stretched_s.items()},
            sum(site.stats.all_ended for site in sites) + self.passed(),
            sum(site.in_flight for site in sites),
        )

    def threads_cpu_s(self) -> float:
        """CPU time of this server's threads, s: the event loop's, which asks, and the instances'.

        It is for a process that does other work as well.
        """
        return time.thread_time() + sum(site.thread_cpu_s for site in self._all_sites())

    def _all_sites(self) -> list[TaskSite]:
        """List the sites of all tasks, also of those that are served no more."""
        return [*dict.fromkeys([*self.sites.values(), *self._dropped.values()])]

    def _predict_with(self, measured: MeasuredOverhead) -> None:
        """Have all fleets predict with what requests are measured to take besides models.

        What gives devices out weighs copies with it, and with what models take beyond profiles.
        """
        for site in self.sites.values():
            for pool in site.pools:
                pool.set_overhead(measured.own_s)
        if self.assignment is not None:
            self.assignment.set_overhead(measured)

    def _variants(self) -> dict[str, list[str]]:
        return {
            site.task: list(dict.fromkeys(site.pool.dispatcher.fleet.names))
            for site in self.served()
        }

    def _site_of(self, pool: Pool) -> TaskSite:
        options = pool.options
        return TaskSite(pool.task, options.target, now=self.options.now, measured=options.measured)

    def _watched(self, site: TaskSite) -> TaskSite:
        if self.options.tracer is not None:
            site.trace(self.options.tracer.request)
        site.note(self._recent.of(site.task))
        site.told = self._tell
        return site

    def _tell(self, instance: str, healthy: bool, reason: str) -> None:
        if healthy:
            self.log.info("healthy again", instance=instance)
        else:
            self.log.warning("unhealthy", instance=instance, reason=reason)
        self._announce()

    async def _book_of(self, site: TaskSite, pool: Pool) -> AnswerBook | None:
        """Find or open what keeps the answers of a fleet, which is not the site's yet."""
        if pool.options.feedback is None:
            return None
        return await self.open_answers(site, watch=pool.options.watched)

    async def open_answers(self, site: TaskSite, *, watch: bool) -> AnswerBook:
        """Open what keeps a task's answers, or find it; it may watch for drift.

        Raises
        ------
        ServeError
            When it cannot be used.
        """
        if watch:
            await run_detached(drift_alarm.prepare)
        if site.answers is not None:
            return site.answers
        folder, task = self.options.answers, site.task
        path = None if folder is None else folder / f"{task}.sqlite"
        return await asyncio.to_thread(AnswerBook, path, task, self.log)

    async def go_on_with_answers(self, site: TaskSite, kind: Task) -> None:
        """Go on with a task's answers and labels of the run before, whatever answers now.

        Raises
        ------
        ServeError
            When they cannot be used.
        """
        if kind.feedback is None:
            return
        models = await run_detached(stated_models, kind)
        site.answers = book = await self.open_answers(site, watch=kind.watched)
        served = {name: ServedModel(*one) for name, one in models.items()}
        book.follow(kind.feedback, served, watch=kind.watched)
        book.begin()

    def _keep_answers(self, site: TaskSite, book: AnswerBook | None) -> None:
        """Have the answers of the fleet that is there now kept, or none."""
        before, site.answers = site.answers, book
        if book is not None:
            pool = site.pool
            models = pool.options.models
            served = {
                name: ServedModel(models.get(name, ("", None))[0], accuracy)
                for name, accuracy in zip(pool.dispatcher.fleet.names, pool.grades, strict=True)
            }
            known = served
            # What another node offers, and copies where devices are given out anew, come and go,
            # and have labels.
            if site.node is not None or self.assignment is not None:
                known = {name: ServedModel(*one) for name, one in models.items()}
            assert pool.options.feedback is not None
            canary = pool.canary
            told = pool.options.measured or canary is not None
            book.told = partial(self._measured, site, book) if told else None
            book.follow(pool.options.feedback, known, watch=pool.options.watched)
            if pool.options.measured:
                self._correct(site, book)
            if canary is not None and (outcome := book.outcome(canary.terms)) is not None:
                canary.settle(outcome)
            noted = noting(book, known, self._recent.of(site.task), pool.signature)
            if (shadow := pool.options.shadow) is not None:
                noted = shadowing(pool, book, served, shadow.share, noted)
            site.note(noted)
            book.begin()
        elif before is not None:
            site.note(self._recent.of(site.task))
            before.told = None  # it writes for a moment yet, and the fleet has no feedback
            closing = asyncio.create_task(before.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _measured(self, site: TaskSite, book: AnswerBook) -> None:
        """Have a task's fleet go by what feedback has measured."""
        pool = site.present
        if pool is None:
            return
        if pool.options.measured:
            self._correct(site, book)
        canary = pool.canary
        if canary is None:
            return
        name = canary.terms.variant
        known = book.measured[name]
        if (outcome := canary.judge(known.recent, known.mean)) is not None:
            canary.settle(outcome)
            book.decided(canary.terms, outcome)
            said = {"task": site.task, "variant": name, "reason": outcome.reason}
            if outcome.state == "promoted":
                self.log.info("canary promoted", **said)
            else:
                self.log.warning("canary taken back", **said)

    def _correct(self, site: TaskSite, book: AnswerBook) -> None:
        """Have a task's fleet count what feedback has measured; it is said where that is news."""
        pool = site.present
        if pool is None:
            return
        names = [name for name, _ in pool.names]
        before = dict(zip(names, pool.accuracy, strict=True))
        pool.correct(book.estimates)
        book.counted = now = dict(zip(names, pool.accuracy, strict=True))
        for name, accuracy in now.items():
            told = self._corrected.get((site.task, name), book.profile(name))
            if accuracy != before[name] and abs((accuracy or 0.0) - (told or 0.0)) >= _NEWS:
                self._corrected[site.task, name] = accuracy
                labels = book.measured[name].labels
                said = {"accuracy": round(accuracy or 0.0, 4), "profile": book.profile(name)}
                self.log.info(
                    "accuracy measured", task=site.task, variant=name, labels=labels, **said
                )

    async def _prepare(self, site: TaskSite, pool: Pool) -> None:
        pool.servers.share(self._gate)
        if site.present is not None and site.present is not pool:
            pool.expect_loads(site.present)
        for name in await site.prepare(pool):
            self.log.warning("not warmed up: free input axes", instance=name)

    def _serve(self) -> None:
        self._routes = routes = inference_routes(self.sites, self._is_ready, self.limits)
        self._http.find, self._http.role = routes.find, routes.role
        self._serve_grpc()

    def _serve_grpc(self) -> None:
        if self._grpc is not None:
            bare = [site for site in self.sites.values() if site.present is None]
            self._grpc.serve(self.served(), bare)

    async def apply(self, deployment: Deployment) -> None:
        """Serve another deployment from now on; no request is lost.

        What is new is loaded and warmed up beside what serves; then it takes over, and the old
        instances end when they have answered what they have.

        Raises
        ------
        ServeError, WarmUpError
            When it cannot be served; nothing has changed then.
        """
        async with self._changing:
            if not self.ready or self._ending.is_set():
                raise ServeError("the server is starting or ending; nothing can be applied now")
            deployment = self._completed(deployment)
            check_served(deployment)
            for site in self.served():
                await site.pool.remember()
            assignment = await self._assigning(deployment)
            others = await run_detached(_told, deployment)
            pools = await run_detached(self._made, _placed(deployment, assignment))
            books: dict[str, AnswerBook | None] = {}
            sites = {
                pool.task: self.sites.get(pool.task) or self._watched(self._site_of(pool))
                for pool in pools
            }
            try:
                for pool in pools:
                    await self._prepare(sites[pool.task], pool)
                    books[pool.task] = await self._book_of(sites[pool.task], pool)
                if not self.ready or self._ending.is_set():
                    raise ServeError("the server is ending; nothing has been applied")
                if self._settles:
                    settle()
            except BaseException:
                for pool in pools:
                    await pool.close(1.0)
                for task, book in books.items():
                    if book is not None and book is not sites[task].answers:
                        await book.close()
                raise
            # From here to the new routes nothing waits: every request finds the old or the new.
            if self.assignment is not None:
                self.assignment.retire()
            self.assignment = assignment
            self._targets = shared_targets(pools, self._targets, others)
            for pool in pools:
                self._swap(sites[pool.task], pool)
                self._keep_answers(sites[pool.task], books[pool.task])
            sites |= (bare := self._bare(deployment, sites))
            for task in self.sites.keys() - (sites.keys() - bare.keys()):
                gone = self.sites[task]
                # Without a fleet, feedback on the answers of before still comes.
                if task not in bare or deployment.tasks[task].feedback is None:
                    self._keep_answers(gone, None)
                if (leaving := gone.swap(None)) is not None:
                    self._dropped[leaving] = gone
                    leaving.add_done_callback(self._dropped.pop)
            self.sites, self.deployment = sites, deployment
            for site in sites.values():
                site.log.moves.begin_anew(site.now())
            self._serve()
            if assignment is not None:
                assignment.begin(lambda: self.sites, self._reassign)
            self.log.info("applied", tasks=self._variants())

    async def _reassign(
        self, by: DeviceAssignment, task: str, copies: Mapping[Key, int]
    ) -> asyncio.Task[None] | None:
        """Let these copies answer a task from now on, or none, as devices are given out anew.

        As `replace`, with the models of the fleet before, as far as they are the same.
        """
        async with self._changing:
            self._check_reassigned(by)
            site, pool = self.sites[task], None
            if copies:
                (pool,) = await run_detached(
                    partial(self._made, by.deployment(copies), instead=site.present, task=task)
                )
                if self._targets is not None:
                    self._targets.join([pool])
            return await self._take_over(site, pool, partial(self._check_reassigned, by))

    def _check_reassigned(self, by: DeviceAssignment) -> None:
        if by is not self.assignment or self._ending.is_set() or self._over:
            raise ServeError("the server is ending, or goes by another file; nothing has moved")

    async def replace(self, task: str, pool: Pool | None) -> asyncio.Task[None] | None:
        """Let another fleet answer one task from now on, or none; no request is lost.

        Parameters
        ----------
        task
            One of `sites`.
        pool
            Not started yet; None where nothing can answer the task any more.

        Returns
        -------
        asyncio.Task or None
            Ends when the fleet before has answered all that it has and is gone; None where there
            was none.

        Raises
        ------
        ServeError, WarmUpError
            When the new one cannot be run, or the server is ending; nothing has changed then.
        """
        async with self._changing:
            return await self._take_over(self.sites[task], pool, self._check_serving)

    def _check_serving(self) -> None:
        if self._over:
            raise ServeError("the server is ending; nothing has been replaced")

    async def _take_over(
        self, site: TaskSite, pool: Pool | None, check: Callable[[], None]
    ) -> asyncio.Task[None] | None:
        """Start a pool and let it answer the site's task; where `check` raises, it is closed."""
        book = None
        if pool is not None:
            try:
                await self._prepare(site, pool)
                book = await self._book_of(site, pool)
                check()
            except BaseException:
                await pool.close(1.0)
                if book is not None and book is not site.answers:
                    await book.close()
                raise
        before = site.versions
        leaving = self._swap(site, pool)
        if pool is not None:  # without a fleet, feedback on the answers of before still comes
            self._keep_answers(site, book)
        lay_out(self._routes, site, self._is_ready, self.limits, before)
        self._serve_grpc()
        return leaving

    def _swap(self, site: TaskSite, pool: Pool | None) -> asyncio.Task[None] | None:
        before = site.present
        seconds = self.meter.estimate.seconds
        if pool is not None and seconds is not None:
            pool.set_overhead(seconds)
        leaving = site.swap(pool)
        if before is not None and pool is not None:
            pool.go_on_trying(before)
        if pool is not None and self.options.record is not None:
            # A recording has one fleet and one policy: what is new gets a folder of its own.
            self._record(site, self.options.record, following=True)
        return leaving

    def _record(self, site: TaskSite, folder: Path, *, following: bool = False) -> None:
        task = site.task
        site.pool.record(
            _following(folder, task) if following else folder / task,
            self.log,
            following=lambda: _following(folder, task),
            losses=self._losses.setdefault(task, Losses()),
            patient=following,
        )

    def _completed(self, deployment: Deployment) -> Deployment:
        complete = self.options.complete
        return deployment if complete is None else complete(deployment)

    async def _apply(self, deployment: Deployment, dry_run: bool) -> dict[str, list[str]]:
        if any(site.node is not None for site in self.sites.values()):
            raise ServeError(
                "a node of a network runs what its file says and placement decides: change the "
                "file, and start its nodes again one by one"
            )
        if dry_run:
            completed = self._completed(deployment)
            check_served(completed)
            assignment = await self._assigning(completed)
            return await run_detached(would_serve, _placed(completed, assignment))
        await self.apply(deployment)
        return self._variants()

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
        guard, read_keys = self.guard, self.options.read_keys
        certificate, context = self.options.certificate, self._tls
        if guard is not None and read_keys is not None:

            def take_keys() -> None:
                guard.keys = read_keys() or guard.keys

            self.again("keys", take_keys)
        if certificate is not None and context is not None:

            def take_certificate() -> None:
                certificate.renew(context)
                if self._grpc is not None:
                    self._grpc.renew(certificate.pem())

            self.again("certificate", take_certificate)
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

    async def stop(self, grace_s: float | None = None) -> None:
        """Accept no more, finish what is in flight within the grace period, close."""
        if self._stopped:
            return
        self._stopped = True
        self._decline()
        self._http.close()
        loop = asyncio.get_running_loop()
        grace_s = self.options.grace_s if grace_s is None else grace_s
        deadline, calls = loop.time() + grace_s, list[asyncio.Task[None]]()
        if self._grpc is not None:
            calls.append(asyncio.create_task(self._grpc.stop(0.0 if self.hurried else grace_s)))
        while self._http.connections and not self.hurried and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        await asyncio.gather(*calls)
        # One that waits for a fleet may have one that goes.
        sites = self._all_sites()
        self._over = True
        if self.assignment is not None:
            self.assignment.retire()
        unfinished = sum(site.in_flight for site in sites)
        self._http.abort()
        self._admin.close()
        for site in sites:
            left_s = 0.0 if self.hurried else deadline - loop.time()
            await site.stop(max(0.1, left_s))
        if self.assignment is not None:
            await self.assignment.ended(max(0.1, deadline - loop.time()))
        books = [site.answers.close() for site in sites if site.answers is not None]
        await asyncio.gather(*self._closing, *books)
        self._admin.abort()
        if self.options.tracer is not None:
            await asyncio.to_thread(self.options.tracer.close)
        self._pauses.end()
        self._history.end()
        await self.meter.end()
        if self._tidying is not None:
            self._tidying.cancel()
        if self.served():
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
            self.hurried = True
            self._http.abort()  # with no connection left, `stop` goes on at once
            if self._grpc is not None:
                self._grpc.abort()

    async def told(self) -> None:
        """Wait until `end` is called."""
        await self._ending.wait()

    async def ended(self) -> None:
        """Serve until `end` is called, then drain and stop."""
        await self._ending.wait()
        self._decline()
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
        # Only where the process is this server's own: it holds for all that is in it.
        self._settles = True
        if await self.started(self.start(), self.renew):
            if ready is not None:
                ready(self)
            await self.ended()

    async def started(self, start: Coroutine[Any, Any, None], renew: Callable[[], None]) -> bool:
        """Start, heeding signals from now on; False when the end has been asked for meanwhile."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.end)
        loop.add_signal_handler(signal.SIGINT, partial(self.end, delay=False))
        loop.add_signal_handler(signal.SIGHUP, renew)
        give_back()
        starting = asyncio.create_task(start)
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            return False
        ending.cancel()
        starting.result()
        return True

    def _decline(self) -> None:
        self.ready = False
        self._announce()
        for site in self.sites.values():
            site.flush()

    def _announce(self) -> None:
        if self._grpc is not None:
            self._grpc.announce()

    def _is_ready(self) -> bool:
        # One task that nothing can answer must not cost the others their clients.
        return self.ready and any(site.ready for site in self.sites.values())

    def _broken(self, error: BaseException) -> None:
        self.log.error("a request handler failed", exc_info=error)


def serve(
    deployment: Deployment,
    keys: Path | None = None,
    *,
    ready: Callable[[Server], None] | None = None,
    **options: Any,
) -> None:
    """Serve a deployment until SIGINT or SIGTERM; see `Server.run`.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    keys
        A file with one bearer key a line, which is read anew on SIGHUP; None takes the
        environment's `INFERWAY_KEYS`, and lets everybody in without it.
    ready
        Called once with the server, when it is ready.
    options
        Others of `ServerOptions`; without a `read_deployment`, SIGHUP has the deployment's file
        read anew, where it has one.

    Raises
    ------
    ServeError, WarmUpError
        When the deployment, a model or a policy cannot be served.
    PortError
        When a port is taken or an address is not this machine's.
    """
    path = deployment.path

    usual: dict[str, Any] = {
        "keys": keys_from(keys),
        "read_keys": partial(keys_from, keys),
        "read_deployment": None if path is None else lambda: measured(load(path)),
        "tracer": tracer_from_environment(),
    }
    Server(deployment, ServerOptions(**usual | options)).run(ready)


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


def _placed(deployment: Deployment, assignment: DeviceAssignment | None) -> Deployment:
    """The deployment with the copies that devices are given out to, where they are."""
    return deployment if assignment is None else assignment.deployment()


def _told(deployment: Deployment) -> list[dict[str, Any]]:
    """Tell of the targets of tasks that may get a fleet later, as devices are given out anew."""
    try:
        return told_targets(deployment) if deployment.assigns else []
    except ValueError as error:
        raise ServeError(f"{deployment.path}: {error}") from error


def _following(folder: Path, task: str) -> Path:
    number = 2
    while (own := folder / f"{task}.{number}").exists():
        number += 1
    return own


def _starting_routes() -> Routes:
    routes = Routes(lambda _: "the server is starting", 503)
    routes.read("/v2/health/live", lambda exchange: exchange.respond(200), ANYBODY)
    routes.read("/v2/health/ready", lambda exchange: exchange.respond(503), ANYBODY)
    return routes
