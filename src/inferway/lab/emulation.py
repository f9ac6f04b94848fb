"""A network of namespaces on this machine, with the round-trip times of a topology."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferway.lab import device, namespace, relay
from inferway.lab.record import STATE, EmulationError, EmulationRecord, remove_leftovers
from inferway.network.topology import Topology

_LIMIT_S: Final = 10.0


class Passed(NamedTuple):
    """Traffic that went one way over a link.

    A packet is what the sender's kernel hands over: up to 64 KB, but no more than 1,500 bytes from
    a node of whose links one has loss or a limit.
    """

    packets: int  # that arrived
    bytes: int
    lost: int  # packets that loss or a cut took
    full: int  # packets that found the queue of a limited link full


class Counts(NamedTuple):
    """Counters of the relay."""

    passed: dict[tuple[str, str], Passed]  # by the sender's and the receiver's name
    late: NDArray[np.int64]  # (B,) packets, less than 1, 2, 4, 8, ... µs late
    cpu_s: float  # that it took

    def late_s(self, share: float) -> float:
        """Tell how late this share of the packets was at most, as a power of two."""
        below = np.searchsorted(np.cumsum(self.late), share * self.late.sum())
        return float(2.0**below * 1e-6) if self.late.any() else 0.0


class Controls:
    """Changes a network while it runs, by its name; from any process of root's.

    Two names are the ends of a link, one name stands for all links of a node; with ``both=False``
    only what goes from the first to the second is changed. EmulationError from everything here, if
    the emulation does not run, or has no such node or link.
    """

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_LIMIT_S)
        try:
            self._socket.connect(str(STATE / name / "control"))
        except OSError as error:
            self._socket.close()
            raise EmulationError(
                f"there is no emulated network called {name} to talk to ({error.strerror})"
            ) from error
        self._answers = self._socket.makefile("rb")

    def cut(self, *ends: str, both: bool = True) -> None:
        """Lose everything, what is on the way too. Nobody is told: packets just do not arrive."""
        if not ends:
            raise EmulationError("name the link or the node that is to be cut off")
        self._order(do="cut", ends=ends, both=both)

    def heal(self, *ends: str, both: bool = True) -> None:
        """Make links as the file says again; without a name, all of them."""
        self._order(do="heal", ends=ends, both=both)

    def slow(self, *ends: str, rtt_s: float, both: bool = True) -> None:
        """Give links this round-trip time; half of it each way."""
        self._change(ends, both, "a round-trip time", rtt_s, delay_s=rtt_s / 2)

    def lose(self, *ends: str, share: float, both: bool = True) -> None:
        """Lose this share of the packets, each by its own luck."""
        if share > 1:
            raise EmulationError(f"a share of {share:g} cannot be lost; it is 0 to 1")
        self._change(ends, both, "a share", share, loss=share)

    def limit(self, *ends: str, bytes_per_s: float, both: bool = True) -> None:
        """Let no more bytes pass in a second, each way; 0 for as many as there are."""
        self._change(ends, both, "a limit", bytes_per_s, bytes_per_s=bytes_per_s)

    def counts(self) -> Counts:
        """Ask what passed so far."""
        counts = self._order(do="count")
        passed = {(one, other): Passed(*rest) for one, other, *rest in counts["pairs"]}
        return Counts(passed, np.array(counts["late"], np.int64), counts["cpu_s"])

    def close(self) -> None:
        """Say no more; what was changed stays."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change(
        self, ends: tuple[str, ...], both: bool, what: str, value: float, **change: float
    ) -> None:
        if not (value >= 0 and np.isfinite(value)):
            raise EmulationError(f"{what} is 0 or more, not {value:g}")
        if not ends:
            raise EmulationError("name the link or the node that is to be changed")
        self._order(do="change", ends=ends, both=both, **change)

    def _order(self, **order: Any) -> dict[str, Any]:
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            line = self._answers.readline()
            if not line.endswith(b"\n"):
                raise ConnectionError("it closed the connection")
        except OSError as error:
            raise EmulationError(
                f"the relay of the emulated network does not answer: {error}"
            ) from error
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmulationError(answer["error"])
        return answer


MTU: Final = 1500
# Of the first node. Namespaces have no way out, so that these may be in use elsewhere.
FIRST: Final = IPv4Address("10.77.0.1")
MOST: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,62})")
_PYTHON: Final = (sys.executable, "-I", "-S")
T = TypeVar("T")


class Wiring(NamedTuple):
    """Nodes as an emulation knows them."""

    addresses: dict[str, IPv4Address]  # by name
    # Index of one end, of the other, round-trip time in seconds; one for each two neighbors.
    links: tuple[tuple[int, int, float], ...]

    def neighbors(self, node: int) -> list[IPv4Address]:
        """Give the addresses at the other ends of a node's links."""
        # The sum of both ends less the one is the other.
        ends = [one + other - node for one, other, _ in self.links if node in (one, other)]
        return [list(self.addresses.values())[end] for end in ends]

    def hosts(self) -> str:
        """Give the lines of /etc/hosts inside: all nodes, and this machine as the loopback."""
        own = socket.gethostname()
        loopback = "localhost" if own in self.addresses else f"localhost {own}"
        nodes = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        return f"127.0.0.1 {loopback}\n::1 localhost\n{nodes}"


def wiring(topology: Topology) -> Wiring:
    """Give each node an address, and keep the fastest of parallel links.

    EmulationError if there are too many nodes, or a name cannot be a host's.
    """
    if len(topology.nodes) > MOST:
        raise EmulationError(
            f"the network has {len(topology.nodes)} nodes; at most {MOST} can be emulated"
        )
    seen: dict[str, str] = {}
    for name in topology.nodes:
        if not _NAME.fullmatch(name) or name.lower() == "localhost":
            raise EmulationError(
                f"node {name!r} cannot be emulated, as its name cannot be a host's: use letters, "
                "digits, dots, dashes and underscores, and not localhost"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise EmulationError(
                f"nodes {other} and {name} cannot be emulated together, as hosts' names do not "
                "differ by capital letters alone"
            )
    fastest: dict[tuple[int, int], float] = {}
    for (one, other), rtt_s in zip(topology.links.tolist(), topology.rtt_s.tolist(), strict=True):
        ends = min(one, other), max(one, other)
        fastest[ends] = min(rtt_s, fastest.get(ends, np.inf))
    return Wiring(
        {name: FIRST + k for k, name in enumerate(topology.nodes)},
        tuple((*ends, rtt_s) for ends, rtt_s in fastest.items()),
    )


def obstacle() -> str | None:
    """Tell in one sentence why no network can be emulated here, or None if one can."""
    if sys.platform != "linux":
        return f"emulating a network needs the network namespaces of Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "emulating a network needs root, to make network namespaces: run it with sudo"
    if not device.DEVICE.exists():
        return (
            f"emulating a network needs {device.DEVICE}, which is not there: load the kernel "
            "module `tun`, or give a container --device /dev/net/tun"
        )
    try:
        os.close(os.open(device.DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"emulating a network needs {device.DEVICE}, which does not open: {error.strerror}"
    try:
        namespace.aside(namespace.leave)
    except OSError as error:
        return (
            "emulating a network needs to make network namespaces, which this root may not "
            f"({error.strerror}): give a container --cap-add SYS_ADMIN --cap-add NET_ADMIN"
        )
    return None


class Emulation(Controls):
    """Nodes in namespaces of their own, joined by the topology's links and by nothing else.

    A node reaches its neighbors, as a node of a deployment does, at half the link's round-trip time
    each way. To all others there is no route, and a program that tries is told so at once: were
    nodes joined along shortest paths, whatever went past a neighbor by mistake would work here, and
    the emulation would route around a cut link in the nodes' place.

    What earlier runs left is removed first. It ends by `close`, or with this process, however that
    ends: the relay notices and cleans up.

    Parameters
    ----------
    topology
        Nodes, links and their round-trip times.
    name
        Letters and digits; made up if not given. Namespaces are called inferway-NAME-NODE.
    seed
        Of which packets are lost.
    queue_s
        Seconds that a packet waits at most for a link with a limit.

    Attributes
    ----------
    name
        Its name.
    addresses
        Of the nodes, by name. Inside, names are known, too.

    Raises
    ------
    EmulationError
        If this machine cannot (see `obstacle`), or a name cannot be used.
    """

    def __init__(
        self, topology: Topology, *, name: str | None = None, seed: int = 0, queue_s: float = 0.1
    ) -> None:
        if (reason := obstacle()) is not None:
            raise EmulationError(reason)
        if name is not None and not re.fullmatch("[A-Za-z0-9]{1,32}", name):
            raise EmulationError(
                f"a network cannot be called {name!r}; use up to 32 letters and digits"
            )
        plan = wiring(topology)
        self.addresses = {node: str(address) for node, address in plan.addresses.items()}
        remove_leftovers()
        self._record = EmulationRecord.begun(name, topology.nodes)
        self.name = self._record.name
        try:
            self._relay = _started(self._record, plan, seed, queue_s)
        except BaseException as error:
            self._record.remove()
            if isinstance(error, OSError):
                remedy = "; raise the limit with ulimit -n" if error.errno == errno.EMFILE else ""
                raise EmulationError(f"the network cannot be emulated: {error}{remedy}") from error
            raise
        self._end = weakref.finalize(self, _ended, self._relay, self._record, os.getpid())
        try:
            super().__init__(self.name)
            self.counts()
        except BaseException:
            self._end()
            raise

    @property
    def relay_pid(self) -> int:
        """The relay's process."""
        return self._relay.pid

    @property
    def alive(self) -> bool:
        """Tell whether packets pass; if the relay was killed, the nodes have no devices any
        more.
        """
        return self._end.alive and self._relay.poll() is None

    def namespace(self, node: str) -> Path:
        """Tell where a node's namespace is, for `ip netns` and `nsenter --net=`."""
        if node not in self.addresses:
            names = list(self.addresses)
            raise EmulationError(
                f"there is no node {node}; there are {', '.join(names[:5])}"
                + (", ..." if len(names) > 5 else "")
            )
        if not self._end.alive:
            raise EmulationError("the network is closed")
        return self._record.namespace(node)

    def command(self, node: str, command: Sequence[str]) -> list[str]:
        """Give the command that runs a command on a node, knowing the nodes by name.

        It becomes the command itself: same process, standard streams and exit status. What still
        runs on a node at the end is terminated, and killed 2 s later.
        """
        folders = self.namespace(node), self._record.hosts(node)
        return [*_PYTHON, namespace.__file__, *map(str, folders), *command]

    def within(self, node: str, work: Callable[[], T]) -> T:
        """Call a function in a thread on a node; sockets that it makes remain the node's."""
        return namespace.within(self.namespace(node), work)

    def open_socket(
        self,
        node: str,
        family: int = socket.AF_INET,
        kind: int = socket.SOCK_STREAM,
        protocol: int = 0,
    ) -> socket.socket:
        """Give a socket on a node, to be used from here; names are not known here."""
        return self.within(node, partial(socket.socket, family, kind, protocol))

    def close(self) -> None:
        """End all that runs on the nodes, and remove everything that was made."""
        super().close()
        self._end()


def _started(
    record: EmulationRecord, plan: Wiring, seed: int, queue_s: float
) -> subprocess.Popen[str]:
    """Make the namespaces and start the relay; only it keeps the devices."""
    namespace.FOLDER.mkdir(exist_ok=True)
    with ExitStack() as closing:
        devices: list[int] = []
        for index, (node, address) in enumerate(plan.addresses.items()):
            prepare = partial(device.opened, address, plan.neighbors(index), mtu=MTU)
            devices.append(record.make(node, plan.hosts(), prepare))
            closing.callback(os.close, devices[-1])
        control = closing.enter_context(socket.socket(socket.AF_UNIX))
        control.bind(str(STATE / record.name / "control"))
        control.listen()
        passed = [*devices, control.fileno(), record.descriptor]
        process = subprocess.Popen(
            [*_PYTHON, relay.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,  # Ctrl-C is for its owner
            text=True,
        )
        assert process.stdin is not None
        settings = {
            "nodes": list(plan.addresses),
            "devices": devices,
            "addresses": [one.packed.hex() for one in plan.addresses.values()],
            "links": plan.links,
            "seed": seed,
            "queue_s": queue_s,
            "control": control.fileno(),
            "descriptors": passed,
            "owner": os.getpid(),
            "remove": [sys.executable, "-m", "inferway.lab", record.name],
            "environment": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        }
        try:
            with process.stdin:
                json.dump(settings, process.stdin)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return process


def _ended(process: subprocess.Popen[str], record: EmulationRecord, owner: int) -> None:
    """Remove everything; the relay last, as what ends in an orderly way may need it."""
    if os.getpid() != owner:  # a fork of the owner's ends
        return
    record.end_residents()
    process.kill()
    process.wait()
    record.remove()
