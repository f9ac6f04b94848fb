"""All nodes of a deployment on this machine."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import msgspec

from inferway.deployment import Deployment
from inferway.files import lock
from inferway.lab.emulation import Emulation, obstacle
from inferway.lab.process import NodeProcess, State
from inferway.lab.record import EmulationError
from inferway.live.control.peers import check_extra
from inferway.live.errors import ServeError
from inferway.live.node.addresses import CONTROL_PORT, HTTP_PORT, PEER_PORT, Addresses, write
from inferway.live.security.keys import VARIABLE, Role, parted
from inferway.live.security.tls import Credentials, file_name
from inferway.network import entries_of, topology_of
from inferway.protocol.address import split
from inferway.unreadable import UNREADABLE, fault

GRACE_S: Final = 15.0  # Longer than a node's drain delay and grace period together
# A start that takes longer no longer holds up the next: it may wait for just that.
_OWN_TIME_S: Final = 15.0
_LOOK_S: Final = 0.1
_RATES: Final[tuple[str, ...]] = ("arrived", "forwarded", "served", "cpu_s")
_PATIENCE_S: Final = 2.0

_HOST: Final = "127.0.0.1"
_LOWEST: Final = 10_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

Ready = Callable[[list[str]], None]


class ClusterError(Exception):
    """Nodes that do not run, with one sentence that says why."""


class LocalCluster:
    """The nodes of a deployment file, each a process of its own, between ``with`` and its end.

    They read the file by its path, so what was changed in the deployment since does not count.
    Repositories start first, and no more nodes at once than there are cores.

    Parameters
    ----------
    deployment
        A file with `network`.
    netns
        Each node in a network namespace of its own, with the links' round-trip times between them;
        needs root. Else all listen on the loopback, and add half of a link's time themselves.
    certs
        Folder of ``inferway certs``; without it nodes believe each other.
    state
        Folder for what nodes keep from one start to the next, a folder each; in `run` if not given.
    run
        Folder for the file of addresses and the nodes' logs; made, and left there. It is for one
        cluster at a time. A new one among the temporary files if not given.
    record
        Folder for what the nodes decide, a folder each; None: they record nothing.
    restart
        Whether a node that ends unasked is started again.
    tell
        Called with a sentence when a node ends unasked, from any thread.

    Attributes
    ----------
    nodes
        Their processes by name, in the network's order.
    addresses
        Where they are reached; in namespaces with `netns`.
    addresses_file
        The same for ``inferway node`` and ``drive``.
    emulation
        The network with `netns`, to cut and slow its links; else None.
    entries
        Nodes where requests for each task enter, by the names that clients use.

    Raises
    ------
    ClusterError
        If the file is none of a network, nodes cannot run here, or (when it begins) another cluster
        runs in the same folder or a node does not become ready.
    DeploymentError
        If the network cannot be used.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        netns: bool = False,
        certs: Path | None = None,
        state: Path | None = None,
        run: Path | None = None,
        record: Path | None = None,
        restart: bool = False,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        if reasons := deployment.unserved_at_node():
            raise ClusterError("\n".join(f"{deployment.path}: {reason}" for reason in reasons))
        try:
            check_extra(secured=certs is not None)
        except ServeError as error:
            raise ClusterError(str(error)) from None
        self.deployment = deployment
        self.topology = topology_of(deployment)
        self.entries = entries_of(deployment, self.topology)
        self.certs = None if certs is None else certs.resolve()
        if self.certs is not None:
            try:
                for name in self.topology.nodes:
                    Credentials.of(name, self.certs).check(name)
            except ServeError as error:
                raise ClusterError(f"{error}; `inferway certs` makes them") from None
        if netns and (reason := obstacle()) is not None:
            raise ClusterError(reason)
        self._netns, self._restart, self._tell = netns, restart, tell
        self._beginning = True
        self.run = Path(tempfile.mkdtemp(prefix="inferway-up-") if run is None else run).resolve()
        self.state = self.run / "state" if state is None else state.resolve()
        self.record = None if record is None else record.resolve()
        self.addresses_file = self.run / "addresses.json"
        self.addresses: dict[str, Addresses] = {}
        self.nodes: dict[str, NodeProcess] = {}
        self.emulation: Emulation | None = None
        self._changed = threading.Condition()
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self, patience_s: float = 300.0, ready: Ready | None = None) -> None:
        """Start all nodes and wait until each answers for all tasks; else stop them all.

        Parameters
        ----------
        patience_s
            Seconds for all of them. A first start compiles, which takes a while.
        ready
            Called now and then with the names of those that are ready, once there is one.

        Raises
        ------
        ClusterError
            With the last words of the node that is not ready.
        """
        try:
            self._prepare()
            deadline_s = time.monotonic() + patience_s
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            started: list[NodeProcess] = []
            # Repositories first: all the others lean on them.
            repository = dict(zip(self.topology.nodes, self.topology.repository, strict=True))
            for name in sorted(repository, key=lambda name: not repository[name]):
                until_s = min(deadline_s, time.monotonic() + _OWN_TIME_S)
                self._wait(started, until_s, ready, most_busy=cores - 1)
                started.append(self.nodes[name])
                started[-1].start()
            self._wait_all(started, deadline_s, ready)
            self._beginning = False
            self.settle(max(0.0, deadline_s - time.monotonic()))
        except BaseException:
            self.stop()
            raise

    def settle(self, patience_s: float = 60.0) -> None:
        """Wait until every node that runs answers for all tasks, itself or by others.

        Raises
        ------
        ClusterError
            If one does not in time.
        """
        deadline_s = time.monotonic() + patience_s
        for name, process in self.nodes.items():
            left = list(self.deployment.named())
            while process.state is State.READY and (why := self._unsettled(name, left)):
                if time.monotonic() >= deadline_s:
                    raise ClusterError(f"node {name} does not answer for task {left[-1]}: {why}")
                with self._changed:
                    self._changed.wait(_LOOK_S)

    def url(self, node: str) -> str:
        """Tell where clients reach a node; with `netns`, from inside its namespace."""
        self._process(node)
        return self.addresses[node].url

    def admin(self, node: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """Ask a node how it is: its admin listener's ``/v2/node``.

        Raises
        ------
        ClusterError
            If it does not answer, or not so.
        """
        self._process(node)
        address = self.addresses[node].admin
        page = f"{address}/v2/node"
        status, body = self._get(node, address, "/v2/node", timeout_s)
        if status != 200:
            raise ClusterError(f"node {node} answers {status} at {page}")
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except UNREADABLE as error:
            raise ClusterError(
                f"node {node} answers what is no JSON at {page}: {fault(error)}"
            ) from None

    def kill(self, node: str) -> None:
        """End a node at once, as a failing machine would (SIGKILL), and wait until it has.

        It is not started again but by `start`.
        """
        self._end([self._process(node)], signal.SIGKILL, GRACE_S)

    def terminate(self, node: str, grace_s: float = GRACE_S) -> None:
        """Have a node drain and end (SIGTERM), and wait until it has; killed after `grace_s`."""
        self._end([self._process(node)], signal.SIGTERM, grace_s)

    def start(self, node: str, *, wait: bool = True, patience_s: float = 120.0) -> None:
        """Start a node that has ended, where it was before, and wait until it is ready.

        What it does not run itself it answers for once its neighbors have told it their offers; see
        `settle`.

        Raises
        ------
        ClusterError
            If it does not become ready in time.
        """
        process = self._process(node)
        process.start()
        if wait:
            self._wait_all([process], time.monotonic() + patience_s)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop all nodes: each is asked, and killed if it has not ended after `grace_s`."""
        try:
            self._end(self.nodes.values(), signal.SIGTERM, grace_s)
        except BaseException:  # a second Ctrl-C: no more patience
            self._end(self.nodes.values(), signal.SIGKILL, grace_s)
            raise
        finally:
            self._closing.close()
            self.emulation = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no node runs or is to run, and tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(one.over for one in self.nodes.values()), timeout_s
            )

    def command_at(self, node: str, *command: str) -> list[str]:
        """Give the command that runs a command where it reaches a node."""
        return list(command) if self.emulation is None else self.emulation.command(node, command)

    def node_command(self, name: str) -> list[str]:
        """Give the command that runs a node; a cluster of other programs replaces it."""
        command = [sys.executable, "-m", "inferway", "node", str(self.deployment.path.resolve())]
        options = {
            "--name": name,
            "--addresses": self.addresses_file,
            "--state": self.state / file_name(name),
            "--record": self.record and self.record / file_name(name),
            "--certs": self.certs,
        }
        for option, value in options.items():
            command += [] if value is None else [option, str(value)]
        return command if self._netns else [*command, "--emulate-rtt"]

    def _prepare(self) -> None:
        names = self.topology.nodes
        try:
            self.run.mkdir(parents=True, exist_ok=True)
            self._closing.callback(os.close, lock(self.run))
            for name in names:
                (self.state / file_name(name)).mkdir(mode=0o700, parents=True, exist_ok=True)
        except BlockingIOError:
            raise ClusterError(
                f"another `up` runs in {self.run}: stop it first, or name another folder with --run"
            ) from None
        except OSError as error:
            raise ClusterError(
                f"{error.filename or self.run} cannot be made: {error.strerror}"
            ) from None
        if self._netns:
            try:
                self.emulation = Emulation(self.topology, seed=self.deployment.seed)
                self._closing.callback(self.emulation.close)
            except EmulationError as error:
                raise ClusterError(str(error)) from None
            ports = {"http": HTTP_PORT, "peer": PEER_PORT, "control": CONTROL_PORT}
            self.addresses = {
                name: Addresses(**{key: f"{host}:{port}" for key, port in ports.items()})
                for name, host in self.emulation.addresses.items()
            }
        else:
            self.addresses = _on_loopback(names, self._closing)
        write(self.addresses_file, self.addresses)
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self.nodes = {
            name: NodeProcess(
                name,
                self.command_at(name, *self.node_command(name)),
                self.run / f"{file_name(name)}.log",
                threads | os.environ | {"PYTHONUNBUFFERED": "1"},
                restart=self._restart,
                changed=self._changed,
                told=self._ended,
            )
            for name in names
        }

    def _unsettled(self, node: str, tasks: list[str]) -> str:
        """Take from the tasks those that the node answers for, and say why it is not all."""
        try:
            while tasks:
                path = f"/v2/models/{quote(tasks[-1])}/ready"
                status, _ = self._get(node, self.addresses[node].http, path, _PATIENCE_S)
                if status != 200:
                    return self.admin(node).get("degraded") or f"see {self.nodes[node].log}"
                tasks.pop()
        except ClusterError as error:
            return str(error)
        return ""

    def _get(self, node: str, address: str, path: str, timeout_s: float) -> tuple[int, bytes]:
        connection = HTTPConnection(*split(address), timeout=timeout_s)
        try:
            if self.emulation is not None:  # a socket belongs where it was made
                self.emulation.within(node, connection.connect)
            connection.request("GET", path, headers=_key())
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            raise ClusterError(
                f"node {node} does not answer at {address}: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from None
        finally:
            connection.close()

    def _wait_all(
        self, processes: list[NodeProcess], deadline_s: float, ready: Ready | None = None
    ) -> None:
        for late in self._wait(processes, deadline_s, ready):
            raise ClusterError(f"node {late.name} is not ready after a long while{_words(late)}")

    def _wait(
        self,
        processes: list[NodeProcess],
        deadline_s: float,
        ready: Ready | None,
        most_busy: int = 0,
    ) -> list[NodeProcess]:
        """Wait until all but so many are ready; the others, ClusterError when one has ended."""
        names: list[str] = []

        def news() -> bool:
            states = [one.state for one in processes]
            known = states.count(State.READY)
            return known != len(names) or len(states) - known <= most_busy or State.ENDED in states

        while True:
            with self._changed:
                self._changed.wait_for(news, max(0.0, deadline_s - time.monotonic()))
                before, busy = len(names), [one for one in processes if one.state != State.READY]
                names = [one.name for one in processes if one not in busy]
            for one in busy:
                if one.state is State.ENDED:
                    raise ClusterError(f"node {one.name} {one.ending()}{_words(one)}")
            if ready is not None and len(names) > before:
                ready(names)
            if len(busy) <= most_busy or time.monotonic() >= deadline_s:
                return busy

    def _ended(self, process: NodeProcess) -> None:
        if self._beginning and process.state is State.ENDED:  # `begin` says so
            return
        again = "" if process.state is State.ENDED else "; it is started again"
        self._tell(f"node {process.name} {process.ending()}{again}; its log is {process.log}")

    def _end(self, processes: Iterable[NodeProcess], number: int, grace_s: float) -> None:
        running = list(processes)
        # One that the kernel holds does not end even when it is killed.
        for sent, patience_s in ((number, grace_s), (signal.SIGKILL, GRACE_S)):
            for one in running:
                one.send(sent)
            with self._changed:
                if self._changed.wait_for(lambda: all(one.over for one in running), patience_s):
                    return

    def _process(self, node: str) -> NodeProcess:
        if node not in self.nodes:
            raise ClusterError(
                f"there is no node {node}; there are {', '.join(self.topology.nodes[:20])}"
            )
        return self.nodes[node]


def _on_loopback(nodes: Sequence[str], claims: ExitStack) -> dict[str, Addresses]:
    """Find four free ports for each node; ClusterError if there are too few.

    They lie below those that the kernel gives to connections, so that a node which starts again
    finds its ports still free. Until `claims` is closed, a UDP socket with a port's number keeps
    other clusters away from it, also while nobody listens there; it is in no TCP server's way.
    """
    count = 4 * len(nodes)
    try:
        end = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        end = 32_768
    # Any order but a fixed one: several networks may be looking for ports at once.
    candidates = range(_LOWEST, max(end, _LOWEST + 1_000))
    free: list[str] = []
    with ExitStack() as held:
        for port in random.sample(candidates, len(candidates)):
            if len(free) == count:
                break
            one = held.enter_context(socket.socket())
            # As servers do: what is left of connections that have ended is no obstacle.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            claim = socket.socket(type=socket.SOCK_DGRAM)
            try:
                one.bind((_HOST, port))
                claim.bind((_HOST, port))
            except OSError:
                claim.close()
                continue
            claims.enter_context(claim)
            free.append(f"{_HOST}:{port}")
    if len(free) < count:
        raise ClusterError(f"{count} free ports are needed on {_HOST}, and {len(free)} were found")
    return {name: Addresses(*four) for name, *four in zip(nodes, *[iter(free)] * 4, strict=True)}


def _key() -> dict[str, str]:
    keys = [parted(word) for word in os.environ.get(VARIABLE, "").replace(",", " ").split()]
    key = next((key for roles, key in keys if roles & Role.READ), None)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _words(process: NodeProcess) -> str:
    words = process.last_words()
    return f": {words}" if words else f"; see {process.log}"


class NodeStatus(NamedTuple):
    """One node, now.

    Attributes
    ----------
    node
        Its name.
    state
        Of its process; ``silent`` where that is ready and does not answer.
    told
        What its admin listener answered; empty where it did not.
    per_s
        ``arrived``, ``forwarded`` and ``served`` requests and ``cpu_s`` per second since the last
        poll; none at the first one, or where the node has started anew.
    """

    node: str
    state: str
    told: dict[str, Any]
    per_s: dict[str, float]


class StatusPoller:
    """Asks all nodes how they are; `now` is a clock, in seconds."""

    def __init__(self, cluster: LocalCluster, now: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._now = cluster, now
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="inferway-watch")

    def poll(self) -> list[NodeStatus]:
        """Ask all of them, at once; those that are silent take a second."""
        return list(self._pool.map(self._one, self._cluster.nodes))

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(cancel_futures=True)

    def _one(self, node: str) -> NodeStatus:
        process = self._cluster.nodes[node]
        if process.state is not State.READY:
            self._last.pop(node, None)
            return NodeStatus(node, process.state.value, {}, {})
        try:
            told = self._cluster.admin(node, timeout_s=1.0)
        except ClusterError:
            state = "silent" if process.state is State.READY else process.state.value
            return NodeStatus(node, state, {}, {})
        now_s = self._now()
        last_s, last = self._last.get(node, (now_s, told))
        self._last[node] = now_s, told
        per_s = {
            key: (told[key] - last[key]) / (now_s - last_s)
            for key in _RATES
            if now_s > last_s and key in told and key in last and told[key] >= last[key]
        }
        return NodeStatus(node, process.state.value, told, per_s)
