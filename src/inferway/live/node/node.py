"""A node of an inference delivery network: it serves, forwards, learns and moves models.

To its clients it is a server like any other. Behind each task's site stand the node's own copies
and what its neighbors offer; requests for others come in by the peer port and go on from there;
offers and messages travel over the control plane; and at the end of each slot the node's part of
the placement policy says which copies are to run, which the reconciler brings about.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvloop

from inferway.live.applying import is_loopback
from inferway.live.build import check_at_node
from inferway.live.errors import ServeError, listening
from inferway.live.headroom import Growths
from inferway.live.http.connection import Listener
from inferway.live.http.exchange import Limits
from inferway.live.node.addresses import Addresses, bound
from inferway.live.node.fleets import Fleets
from inferway.live.node.models import LoadedModels
from inferway.live.node.offer_table import OfferTable
from inferway.live.node.placement import COUNTED, LocalDemand, NodePlacement
from inferway.live.node.plan import host_and_port, links_of, plan_of
from inferway.live.node.proxy import Proxy
from inferway.live.node.reconciler import Reconciler
from inferway.live.node.recordings import RecordingRotation
from inferway.live.node.state import NodeState, fingerprint
from inferway.live.options import ServerOptions
from inferway.live.pool import Pool
from inferway.live.process import settle
from inferway.live.request import InferRequest, NodeCondition
from inferway.live.security.tls import Credentials
from inferway.live.server import Server
from inferway.live.site import TaskSite
from inferway.live.store.allowed import Allowed
from inferway.live.store.store import ModelStore
from inferway.live.upstream.spans import Spans
from inferway.live.upstream.upstream import Upstream
from inferway.network.node import ClientRates
from inferway.network.offers import LOOK_S
from inferway.placement.contract import policy_of
from inferway.protocol.address import joined

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# Changes of offers that come together make sites anew together.
GATHER_S: Final = 0.05
# How long news of an offer may take beside the way itself.
TOLD_S: Final = 0.1
_POLL_S: Final = 0.01
# Of an offer in the status.
_SHOWN: Final = ("task", "variant", "node", "path", "spare_per_s", "energy")


class LiveNode:
    """One node of a deployment's network.

    Parameters
    ----------
    deployment
        A file with a `network`, from `inferway.load`.
    name
        The node's.
    addresses
        Of this node and, at least, of its neighbors.
    options
        How it serves its clients; its addresses say where.
    folder
        Where it keeps its models and its state.
    bind
        At which host it listens, as of `bound`; None for that of its addresses.
    credentials
        By folder, for TLS between nodes; None for plain connections.
    emulate_rtt
        Whether hops and messages take the file's round-trip times, for nodes on one machine.
    """

    def __init__(
        self,
        deployment: Deployment,
        name: str,
        addresses: Mapping[str, Addresses],
        options: ServerOptions | None = None,
        *,
        folder: Path,
        bind: str | None = None,
        credentials: Path | None = None,
        emulate_rtt: bool = False,
    ) -> None:
        options = options or ServerOptions()
        check_at_node(deployment)
        self.name, self.plan = name, plan_of(deployment, name)
        plan, member, self._now = self.plan, self.plan.member, options.now
        if name not in addresses:
            raise ServeError(
                f"node {name} has no address; say its `address` in the deployment file, or give a "
                "file of addresses"
            )
        at = bound(name, addresses[name], bind)
        self._peer_at = host_and_port(at.peer)
        self._mine = mine = None if credentials is None else Credentials.of(name, credentials)
        if mine is not None:
            mine.check(name)
        # Everything on disk is the node's own.
        folder.mkdir(parents=True, exist_ok=True)
        kept = member.store
        allowed = Allowed(kept.schemes, kept.hosts, kept.loopback, kept.private)
        self.store = ModelStore(folder / "models", limit_bytes=kept.limit, allowed=allowed)
        self.memory = NodeState(
            folder / "state.sqlite", fingerprint(plan.deployed.network, plan.number)
        )
        self.upstreams, self.peers = links_of(plan, addresses, mine, at.control, emulate_rtt)
        condition = NodeCondition(name)
        self.offer_table = OfferTable(
            condition,
            self.peers,
            links_s=plan.links_s,
            upstream=plan.upstream,
            changed=self._offers_changed,
            signature=lambda task: self.models.signature(task),
            now=options.now,
        )
        self.peers.on_neighbor(self._neighbor)
        for neighbor, upstream in self.upstreams.items():
            upstream.watch(partial(self._reached, neighbor))
        self.demand = demand = LocalDemand(name, plan.types)
        http, admin = host_and_port(at.http), host_and_port(at.admin)
        # What it records and traces differs from what a server alone does, and nothing is recalled.
        self.server = Server(
            [
                TaskSite(
                    task,
                    kind.accuracy_target,
                    now=options.now,
                    node=condition,
                    measured=kind.measured,
                )
                for task, kind in plan.tasks.items()
            ],
            replace(
                options,
                host=http[0],
                http_port=http[1],
                admin_host=admin[0],
                admin_port=admin[1],
                limits=options.limits or Limits.of(member.limits),
                record=None,
                tracer=None,
                times=None,
                answers=folder / "answers",
            ),
            pages={
                "/v2/node": lambda exchange: exchange.respond(
                    200, msgspec.json.encode(self.status())
                )
            },
        )
        self.server.deployment = deployment
        self.server.passed = lambda: demand.passed
        self.log = self.server.log.bind(node=name)
        if mine is None and not is_loopback(self._peer_at[0]):
            self.log.warning(
                "without certificates the peer port and the control plane believe whoever reaches "
                "them; `inferway certs` makes some"
            )
        self._tracer = tracer = options.tracer
        self._spans = None if tracer is None else Spans(tracer, condition)
        self._sections = None
        if options.record is not None:
            self._sections = RecordingRotation(options.record, self.log)
        self.models = LoadedModels(
            deployment,
            self.store,
            Growths(folder / "memory.json", self.log, self.server.limits.memory_bytes),
            self.server.headroom,
            self.log,
            plan.member.hardware,
        )
        self.fleets = Fleets(
            deployment,
            plan,
            self.server.sites,
            self._replace,
            self.models,
            self.offer_table,
            self.upstreams,
            self._spans,
        )
        for site in self.server.sites.values():
            site.trace(self.demand.ended if self._spans is None else self._ended)
        self.reconciler = Reconciler(
            self.models,
            self._run,
            sizes={
                (task, variant): float(described.size_bytes)
                for task, kind in plan.tasks.items()
                for variant, described in kind.variants.items()
                if described.size_bytes is not None
            },
            budget_bytes=plan.budget_bytes,
            pinned=self._listed(member.pinned),
            now=options.now,
            log=self.log,
        )
        limits, bodies = self.server.limits, self.server.bodies
        self.proxy = Proxy(
            condition,
            self._next_hop,
            limits=limits,
            passed=self.demand.came,
            spans=self._spans,
            now=options.now,
        )
        self._listener = Listener(
            self.proxy.find,
            lambda error: self.log.error("a hop failed", exc_info=error),
            limits,
            bodies=bodies,
            hops=True,
        )
        self._peer_tls = {} if mine is None else {"ssl": mine.context(server=True)}
        self.policy_name = policy_of(deployment)
        self.placement = NodePlacement(
            deployment,
            plan,
            self.peers,
            self.demand,
            self.memory,
            self.fleets,
            self.log,
            self._round_trips_s,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._aims = 0
        # Tasks whose sites are to be made anew.
        self._pending: set[str] = set()
        # Variants that are about to go, and since when nobody is offered them.
        self._leaving: dict[tuple[str, str], float] = {}
        self._rates = ClientRates(options.now())
        # Values and messages, and their bytes, since the start, by direction and kind.
        self._traffic: dict[str, dict[str, Counter[str]]] = {"sent": {}, "received": {}}
        self._begun = asyncio.Event()

    @property
    def peer(self) -> str:
        """Address at which it listens for other nodes."""
        return joined(self._peer_at[0], self._listener.port)

    async def start(self) -> None:
        """Listen, connect to the neighbors, load what is to run; returns when that was tried once.

        Raises
        ------
        ServeError, StateError
            When the node cannot run here.
        PortError
            When a port is taken.
        """
        try:
            await self._open_answers()
            await self.server.start()
            host, port = self._peer_at
            with listening("peer", host, port):
                await self._listener.start(host, port, **self._peer_tls)
            await self.peers.open()
            self.offer_table.begin()
            await self._want(await self.placement.begin())
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        for work in (self._place(), self.reconciler.persist(), self._look()):
            self._go(work)

    async def _open_answers(self) -> None:
        """Go on with the answers and labels of the run before, whatever answers now."""
        for task, kind in self.plan.tasks.items():
            await self.server.go_on_with_answers(self.server.sites[task], kind)

    async def stop(self, grace_s: float | None = None) -> None:
        """Answer what is in flight, tell nobody anything more, close."""
        self.offer_table.end()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.server.stop(grace_s)
        self._listener.close()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + (self.server.options.grace_s if grace_s is None else grace_s)
        # What others have on its way through here has its answer before the hops are closed.
        while self._listener.connections and not self.server.hurried and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
        self._listener.abort()
        for upstream in self.upstreams.values():
            upstream.close()
        await self.peers.close()
        self.models.close()
        self.store.close()
        if self._begun.is_set():
            await self.placement.save()
        self.memory.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def renew(self) -> None:
        """Read keys and certificates anew, as SIGHUP asks; what is wrong is logged.

        Connections to neighbors and from them show the new certificate from the next one on. The
        control plane's listener keeps the old one until the node starts again.
        """
        self.server.renew()
        mine = self._mine
        if mine is not None:
            secured = [upstream.tls for upstream in self.upstreams.values() if upstream.tls]
            contexts = [self._peer_tls["ssl"], *secured]
            self.server.again("certs", partial(mine.renew, self.name, contexts))

    def run(self, ready: Callable[[LiveNode], None] | None = None) -> None:
        """Run until SIGTERM, which drains first, or SIGINT, which does not wait for that."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main(ready))

    async def _main(self, ready: Callable[[LiveNode], None] | None) -> None:
        if not await self.server.started(self.start(), self.renew):
            return
        # The process is this node's own: sites come and go, and the rest is looked at no more.
        settle()
        self.server.meter.begin()
        self._begun.set()
        if ready is not None:
            ready(self)
        await self.server.told()
        # Neighbors send nothing more from now on, and what they have sent is answered.
        self.offer_table.leave()
        await self.server.ended()
        await self.stop()

    # What happens to it.

    def _offers_changed(self, tasks: set[str]) -> None:
        # What is offered no more is left out at once; sites are made anew a little later, as
        # changes come together.
        fresh = {task for task in tasks if self.fleets.heed(task)}
        if fresh and not self._pending:
            self._go(self._refresh())
        self._pending |= fresh

    def _round_trips_s(self) -> dict[str, float | None]:
        return {
            neighbor: upstream.trips.round_trip_s((neighbor,))
            for neighbor, upstream in self.upstreams.items()
        }

    def _go(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something beside; what goes wrong is said."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._gone)
        return task

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("something of the node failed", exc_info=error)

    async def _refresh(self) -> None:
        await asyncio.sleep(GATHER_S)
        tasks, self._pending = sorted(self._pending), set()
        if not self.server.ready:
            return  # it is about to go
        for task in tasks:
            try:
                await self.fleets.refresh(task)
            except Exception as error:
                self.log.error("a task's site could not be made", task=task, reason=str(error))

    def _ended(self, task: str, request: InferRequest) -> None:
        self.demand.ended(task, request)
        assert self._spans is not None
        self._spans.ended(task, request)

    def _neighbor(self, neighbor: str, alive: bool) -> None:
        self.log.info("neighbor", neighbor=neighbor, alive=alive)
        if alive:
            self.upstreams[neighbor].hasten()
        else:
            self.upstreams[neighbor].lose(f"node {neighbor} does not answer")

    def _reached(self, neighbor: str, works: bool, _reason: str) -> None:
        # Whoever says it is in the middle of something.
        asyncio.get_running_loop().call_soon(self.offer_table.reach, neighbor, works)

    def _next_hop(self, destination: str, been: Set[bytes]) -> Upstream | None:
        neighbor = self.offer_table.next_hop(destination, been)
        return None if neighbor is None else self.upstreams[neighbor]

    async def _place(self) -> None:
        async for wanted in self.placement.slots():
            self._want(wanted)

    def _want(self, wanted: dict[tuple[str, str], int]) -> asyncio.Task[bool]:
        if self.plan.repository:
            wanted = {**wanted, **self._listed(self.plan.member.instances)}
        # Neighbors go by an offer until they have heard that it is taken back, and what they have
        # sent meanwhile is on its way. So it is taken back before anything moves.
        now_s = self._now()
        staying = wanted.keys() | {copy.pair for copy in self.reconciler.moves.pinned}
        self._leaving = {
            key: self._leaving.get(key, now_s) for key in self.fleets.running if key not in staying
        }
        self._offer()
        return self._go(self._move(wanted))

    async def _move(self, wanted: dict[tuple[str, str], int]) -> bool:
        self._aims += 1
        aim = self._aims
        done = await self.reconciler.toward(wanted)
        if aim == self._aims:
            # What was to go and could not is there as before.
            self._leaving.clear()
            self._offer()
        return done

    def _listed(self, instances: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Entries of a file's list, a counted task's own name standing for all of them."""
        return {
            (name, variant): copies
            for (task, variant), copies in instances.items()
            for name, kind in self.plan.tasks.items()
            if task in (name, kind.name)
        }

    async def _replace(self, task: str, pool: Pool | None) -> asyncio.Task[None] | None:
        leaving = await self.server.replace(task, pool)
        # Since the fleet took over nothing has been waited for, so that no request is missed.
        if pool is not None and self._sections is not None:
            self._sections.begin(self.server.sites[task])
        self.proxy.serve(self.server.sites[task])
        return leaving

    async def _run(self, running: Mapping[tuple[str, str], int]) -> None:
        gone = [key for key in self.fleets.running if key not in running]
        if gone:
            # Also what goes because another came at last, long after it was said what is wanted.
            now_s = self._now()
            since_s = [self._leaving.setdefault(key, now_s) for key in gone]
            self._offer()
            await asyncio.sleep(max(0.0, max(since_s) + self.plan.reach_s + TOLD_S - now_s))
        await self.fleets.run(running)
        for key in gone:
            self._leaving.pop(key, None)
        self._offer()
        self._go(self.placement.moved())

    def _offer(self) -> None:
        self.offer_table.offer(self.fleets.spare(self._rates.per_s, but=self._leaving))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._rates.look(self._now(), self.demand.for_clients)
            self._offer()
            self._count_traffic()

    # What it says of itself.

    def status(self) -> dict[str, Any]:
        """Describe the node, for people and scripts."""
        self._count_traffic()
        budget = self.plan.budget_bytes
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "schema": 1,
            "node": self.name,
            "policy": self.policy_name,
            "ready": self.server.ready,
            "slot": self.placement.slot,
            "slots": self.placement.ended,
            "delays": self.placement.delays,
            "neighbors": list(self.plan.links_s),
            "alive": sorted(self.peers.alive),
            "degraded": self.offer_table.degraded,
            "hops": {
                neighbor: {
                    "usable": upstream.works,
                    "reason": upstream.reason,
                    "sent": upstream.sent,
                    "lost": upstream.failures,
                    "errors": upstream.errors,
                    "asked": upstream.asked,
                    "hung": upstream.hung,
                    "file_rtt_s": self.plan.links_s[neighbor],
                    "rtt_s": upstream.trips.round_trip_s((neighbor,)),
                }
                for neighbor, upstream in self.upstreams.items()
            },
            "running": {
                f"{task}/{variant}": copies
                for (task, variant), copies in sorted(self.fleets.running.items())
            },
            "offers": [{key: getattr(one, key) for key in _SHOWN} for one in self.offer_table.all],
            "budget_bytes": budget if budget < math.inf else None,
            **self.reconciler.status(),
            **{key: getattr(self.demand, key) for key in COUNTED},
            "cpu_s": used.ru_utime + used.ru_stime,
            "control": self._traffic,
        }

    def _count_traffic(self) -> None:
        traffic = self.peers.cut()
        for direction, counts in (("sent", traffic.sent), ("received", traffic.received)):
            for (_, kind), (letters, size) in counts.items():
                total = self._traffic[direction].setdefault(kind, Counter(letters=0, bytes=0))
                total.update(letters=letters, bytes=size)
