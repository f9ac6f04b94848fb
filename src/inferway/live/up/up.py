"""All nodes of a deployment on this machine."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from inferway.deployment import Deployment
from inferway.live.control.control import check_extra
from inferway.live.control.credentials import Credentials, file_name
from inferway.live.errors import ServeError
from inferway.live.node.addresses import (
    ADMIN_PORT,
    CONTROL_PORT,
    HTTP_PORT,
    PEER_PORT,
    Addresses,
    write,
)
from inferway.live.up.alone import alone
from inferway.live.up.error import UpError
from inferway.live.up.ports import on_loopback
from inferway.live.up.process import NodeProcess, State
from inferway.live.up.question import asked, told
from inferway.network import Topology, entries_of, topology_of

if TYPE_CHECKING:
    from inferway.live.emulation import Emulation

GRACE_S: Final = 15.0
"""Longer than a node's drain delay and grace period together."""
_OWN_TIME_S: Final = 15.0
"""A start that takes longer no longer holds up the next: it may wait for just that."""

_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 2.0

Command = Callable[[str, Path, Addresses], list[str]]
Ready = Callable[[list[str]], None]


class Up:
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
        `Up` at a time. A new one among the temporary files if not given.
    record
        Folder for what the nodes decide, a folder each; None: they record nothing.
    restart
        Whether a node that ends unasked is started again.
    tell
        Called with a sentence when a node ends unasked, from any thread.
    command
        What runs a node, from its name, the file of addresses and its own ones, instead of
        ``inferway node``.

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
    UpError
        If the file is none of a network, nodes cannot run here, or (when it begins) another `Up`
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
        tell: Callable[[str], None] | None = None,
        command: Command | None = None,
    ) -> None:
        if reasons := deployment.unserved_at_node():
            raise UpError("\n".join(f"{deployment.path}: {reason}" for reason in reasons))
        try:
            check_extra(secured=certs is not None)
        except ServeError as error:
            raise UpError(str(error)) from None
        self.deployment = deployment
        self.topology = topology_of(deployment)
        self.entries = entries_of(deployment, self.topology)
        self.certs = None if certs is None else certs.resolve()
        _check_certificates(self.topology, self.certs)
        if netns:
            _check_namespaces()
        self._netns, self._restart = netns, restart
        self._tell = tell if tell is not None else lambda sentence: None
        self._beginning = True
        self._command = command if command is not None else self._node
        if run is None:
            run = Path(tempfile.mkdtemp(prefix="inferway-up-"))
        self.run = run.resolve()
        self.state = self.run / "state" if state is None else state.resolve()
        self.record = None if record is None else record.resolve()
        self.addresses_file = self.run / "addresses.json"
        self.addresses: dict[str, Addresses] = {}
        self.nodes: dict[str, NodeProcess] = {}
        self.emulation: Emulation | None = None
        self._changed = threading.Condition()
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        UpError
            With the last words of the node that is not ready.
        """
        try:
            self._prepare()
            deadline_s = time.monotonic() + patience_s
            started: list[NodeProcess] = []
            for name in self._order():
                self._wait_for_room(started, deadline_s, ready)
                started.append(self.nodes[name])
                started[-1].start()
            self._wait_ready(started, deadline_s, ready)
            self._beginning = False
            self.settle(max(0.0, deadline_s - time.monotonic()))
        except BaseException:
            self.stop()
            raise

    def settle(self, patience_s: float = 60.0) -> None:
        """Wait until every node that runs answers for all tasks, itself or by others.

        Raises
        ------
        UpError
            If one does not in time.
        """
        deadline_s = time.monotonic() + patience_s
        for name, process in self.nodes.items():
            left = list(self.deployment.named())
            while process.state is State.READY and (why := self._unsettled(name, left)):
                if time.monotonic() >= deadline_s:
                    raise UpError(f"node {name} does not answer for task {left[-1]}: {why}")
                with self._changed:
                    self._changed.wait(_LOOK_S)

    def url(self, node: str) -> str:
        """Tell where clients reach a node; with `netns`, from inside its namespace."""
        return self._addresses(node).url

    def admin(self, node: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """Ask a node how it is: its admin listener's ``/v2/node``.

        Raises
        ------
        UpError
            If it does not answer.
        """
        return told(node, self._addresses(node).admin, self._wire(node), timeout_s)

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
        UpError
            If it does not become ready in time.
        """
        process = self._process(node)
        process.start()
        if wait:
            self._wait_ready([process], time.monotonic() + patience_s)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop all nodes: each is asked, and killed if it has not ended after `grace_s`."""
        try:
            self._end(self.nodes.values(), signal.SIGTERM, grace_s)
        except BaseException:  # a second Ctrl-C: no more patience
            self._end(self.nodes.values(), signal.SIGKILL, grace_s)
            raise
        finally:
            if self.emulation is not None:
                self.emulation.close()
                self.emulation = None
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no node runs or is to run, and tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(one.over for one in self.nodes.values()), timeout_s
            )

    def command_at(self, node: str, *command: str) -> list[str]:
        """Give the command that runs a command where it reaches a node."""
        self._process(node)
        if self.emulation is None:
            return list(command)
        return self.emulation.command(node, command)

    def _prepare(self) -> None:
        """Make folders, network and addresses."""
        names = self.topology.nodes
        try:
            self.run.mkdir(parents=True, exist_ok=True)
            self._lock = alone(self.run)
            for name in names:
                (self.state / file_name(name)).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UpError(
                f"{error.filename or self.run} cannot be made: {error.strerror}"
            ) from None
        if self._netns:
            from inferway.live.emulation import Emulation, EmulationError

            try:
                self.emulation = Emulation(self.topology, seed=self.deployment.seed)
            except EmulationError as error:
                raise UpError(str(error)) from None
            self.addresses = {
                name: Addresses(
                    http=f"{host}:{HTTP_PORT}",
                    peer=f"{host}:{PEER_PORT}",
                    control=f"{host}:{CONTROL_PORT}",
                    admin=f"127.0.0.1:{ADMIN_PORT}",
                )
                for name, host in self.emulation.addresses.items()
            }
        else:
            self.addresses = on_loopback(names)
        write(self.addresses_file, self.addresses)
        environment = {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            **os.environ,
            "PYTHONUNBUFFERED": "1",
        }
        for name in names:
            command = self._command(name, self.addresses_file, self.addresses[name])
            if self.emulation is not None:
                command = self.emulation.command(name, command)
            self.nodes[name] = NodeProcess(
                name,
                command,
                self.run / f"{file_name(name)}.log",
                environment,
                restart=self._restart,
                changed=self._changed,
                told=self._ended,
            )

    def _node(self, name: str, addresses_file: Path, addresses: Addresses) -> list[str]:
        command = [sys.executable, "-m", "inferway", "node", str(self.deployment.path.resolve())]
        command += ["--name", name, "--addresses", str(addresses_file)]
        command += ["--state", str(self.state / file_name(name))]
        if self.record is not None:
            command += ["--record", str(self.record / file_name(name))]
        if self.certs is not None:
            command += ["--certs", str(self.certs)]
        return command if self._netns else [*command, "--emulate-rtt"]

    def _wire(self, node: str) -> socket.socket:
        return socket.socket() if self.emulation is None else self.emulation.open_socket(node)

    def _unsettled(self, node: str, tasks: list[str]) -> str:
        """Take from the tasks those that the node answers for, and say why it is not all."""
        address = self.addresses[node].http
        try:
            while tasks:
                path = f"/v2/models/{quote(tasks[-1])}/ready"
                status, _ = asked(node, address, path, self._wire(node), _PATIENCE_S)
                if status != 200:
                    return self.admin(node).get("degraded") or f"see {self.nodes[node].log}"
                tasks.pop()
        except UpError as error:
            return str(error)
        return ""

    def _order(self) -> list[str]:
        """Repositories first: all the others lean on them."""
        pairs = zip(self.topology.repository, self.topology.nodes, strict=True)
        return [name for _, name in sorted(pairs, key=lambda pair: not pair[0])]

    def _wait_for_room(
        self, started: list[NodeProcess], deadline_s: float, ready: Ready | None
    ) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self._wait_until(
            lambda: sum(one.state is State.STARTING for one in started) < cores,
            started,
            min(deadline_s, time.monotonic() + _OWN_TIME_S),
            ready,
        )

    def _wait_ready(
        self, processes: list[NodeProcess], deadline_s: float, ready: Ready | None = None
    ) -> None:
        def done() -> bool:
            return all(one.state is State.READY for one in processes)

        if not self._wait_until(done, processes, deadline_s, ready):
            late = next(one for one in processes if one.state is not State.READY)
            raise UpError(f"node {late.name} is not ready after a long while{_words(late)}")

    def _wait_until(
        self,
        done: Callable[[], bool],
        processes: list[NodeProcess],
        deadline_s: float,
        ready: Ready | None,
    ) -> bool:
        """Wait until something is so, and tell whether it is; UpError when one has ended."""
        before = 0
        while True:
            with self._changed:
                names = [one.name for one in processes if one.state is State.READY]
                ended = [one for one in processes if one.state is State.ENDED]
                if not ended and len(names) == before and not done():
                    self._changed.wait(max(0.0, deadline_s - time.monotonic()))
                    names = [one.name for one in processes if one.state is State.READY]
                    ended = [one for one in processes if one.state is State.ENDED]
            for one in ended:
                raise UpError(f"node {one.name} {one.ending()}{_words(one)}")
            if ready is not None and len(names) > before:
                ready(names)
            before = len(names)
            if done() or time.monotonic() >= deadline_s:
                return done()

    def _ended(self, process: NodeProcess) -> None:
        if self._beginning and process.state is State.ENDED:  # `begin` says so
            return
        again = "" if process.state is State.ENDED else "; it is started again"
        self._tell(f"node {process.name} {process.ending()}{again}; its log is {process.log}")

    def _end(self, processes: Iterable[NodeProcess], number: int, grace_s: float) -> None:
        running = list(processes)
        for one in running:
            one.send(number)
        with self._changed:
            if self._changed.wait_for(lambda: all(one.over for one in running), grace_s):
                return
        for one in running:
            one.send(signal.SIGKILL)
        with self._changed:  # but one that the kernel holds would not end even so
            self._changed.wait_for(lambda: all(one.over for one in running), GRACE_S)

    def _process(self, node: str) -> NodeProcess:
        if node not in self.nodes:
            names = ", ".join(self.topology.nodes[:20])
            raise UpError(f"there is no node {node}; there are {names}")
        return self.nodes[node]

    def _addresses(self, node: str) -> Addresses:
        self._process(node)
        return self.addresses[node]


def _words(process: NodeProcess) -> str:
    words = process.last_words()
    return f": {words}" if words else f"; see {process.log}"


def _check_certificates(topology: Topology, folder: Path | None) -> None:
    if folder is None:
        return
    for name in topology.nodes:
        try:
            Credentials.of(name, folder).check(name)
        except ServeError as error:
            raise UpError(f"{error}; `inferway certs` makes them") from None


def _check_namespaces() -> None:
    from inferway.live.emulation import obstacle

    if (reason := obstacle()) is not None:
        raise UpError(reason)
