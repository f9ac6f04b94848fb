"""Nodes that listen elsewhere than they are reached: as behind a router, or in a container."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import onnx
import pytest
from certificates import issue
from onnx import TensorProto, helper, numpy_helper
from test_node import free

from inferway.cli import main as inferway
from inferway.lab import Emulation, EmulationError, NodeProcess, State
from inferway.live import Addresses
from inferway.network import Topology

pytest.importorskip("zenoh")

LIMIT_S = 120.0
T = TypeVar("T")
FILE = """\
tasks: {digits: {variants: {tiny: {model: tiny.onnx, accuracy: 0.8, service: {mean: 1 ms}}}}}
nodes: {cloud: {repository: true}, edge: {}}
network: {links: [{between: [cloud, edge], rtt: 4 ms}]}
placement: {policy: repository-only}
workload: {digits: {arrivals: {process: poisson, rate: 10/s}, entries: {nodes: [edge]}}}
"""
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
).encode()
# Inside a namespace each network has all ports for itself.
PORTS: Final = {"cloud": range(8100, 8104), "edge": range(8200, 8204)}
ADMIN: Final = {name: f"127.0.0.1:{ports[3]}" for name, ports in PORTS.items()}
HOSTS = """\
127.0.0.1 localhost
::1 localhost
127.0.0.2 cloud.test
127.0.0.3 edge.test
127.0.0.4 both.test
::1 both.test
"""


class Inside(NamedTuple):
    """A network of one machine, and the names that are known there."""

    machine: Emulation
    hosts: Path

    def command(self, command: list[str]) -> list[str]:
        named = 'mount --bind "$0" /etc/hosts && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", named, str(self.hosts), *command]
        return self.machine.command("machine", words)

    def within(self, work: Callable[[], T]) -> T:
        return self.machine.within("machine", work)


def write(file: Path, addresses: dict[str, Addresses]) -> None:
    file.write_bytes(msgspec.json.encode(addresses))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "tiny.onnx"))
    path = tmp_path / "net.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture(params=[False, True], ids=["plain", "certificates"])
def certs(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    if not request.param:
        return None
    pytest.importorskip("cryptography")
    folder = tmp_path / "certs"
    issue(("cloud", "edge"), folder)
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Inside]:
    """Make a network of one machine, with a loopback and names of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("listening at every address is tested in a network namespace, as root")
    (tmp_path / "hosts").write_text(HOSTS)
    alone = Topology(("machine",), np.empty((0, 2), np.int64), np.empty(0))
    try:
        machine = Emulation(alone)
    except EmulationError as error:
        pytest.skip(str(error))
    with machine:
        yield Inside(machine, tmp_path / "hosts")


def needs_ipv6(inside: Inside) -> None:
    def bind() -> None:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))

    try:
        inside.within(bind)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")


class Pair:
    """Both nodes, each a process."""

    def __init__(
        self, file: Path, addresses: dict[str, Addresses], certs: Path | None, inside: Inside | None
    ) -> None:
        self.folder = file.parent
        self.changed = threading.Condition()
        write(self.folder / "addresses.json", addresses)
        self.base = [sys.executable, "-m", "inferway", "node", str(file), "--drain-delay", "0"]
        self.base += ["--addresses", str(self.folder / "addresses.json"), "--grace", "1"]
        if certs is not None:
            self.base += ["--certs", str(certs)]
        if inside is not None:
            self.base = inside.command(self.base)
        self.processes: list[NodeProcess] = []

    def start(self, name: str, *options: str) -> None:
        command = [*self.base, "--name", name, "--state", str(self.folder / name), *options]
        one = NodeProcess(
            name,
            command,
            self.folder / f"{name}.log",
            os.environ,
            restart=False,
            changed=self.changed,
            told=lambda _: None,
        )
        one.start()
        self.processes.append(one)

    def ready(self) -> list[str]:
        """Wait until all are; returns what each says then."""
        settled = (State.READY, State.ENDED)
        with self.changed:
            assert self.changed.wait_for(
                lambda: all(one.state in settled for one in self.processes), LIMIT_S
            )
        for one in self.processes:
            assert one.state is State.READY, one.last_words()
        lines = [line for one in self.processes for line in one.log.read_text().splitlines()]
        return [line for line in lines if line.startswith("ready ")]

    def close(self) -> None:
        for one in self.processes:
            one.send(signal.SIGTERM)
        with self.changed:
            assert self.changed.wait_for(lambda: all(one.over for one in self.processes), LIMIT_S)


def asked(url: str) -> str:
    """Ask the edge until the cloud has answered; returns the way there."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        with suppress(urllib.error.HTTPError):
            request = urllib.request.Request(f"{url}/v2/models/digits/infer", BODY)
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                assert json.load(answer)["outputs"][0]["data"] == [10, 10, 10]
                return str(answer.headers["Inferway-Path"])
        assert time.monotonic() < end_s
        time.sleep(0.05)


def reached(host: str, ports: range) -> None:
    """Connect to all but the admin listener."""
    for port in ports[:3]:
        socket.create_connection((host, port), LIMIT_S).close()


def test_nodes_are_reached_by_name_and_listen_at_an_address(file: Path, certs: Path | None) -> None:
    ports = [int(free().rpartition(":")[2]) for _ in range(8)]
    addresses = {
        name: Addresses(*(f"localhost:{one}" for one in mine[:3]), f"127.0.0.1:{mine[3]}")
        for name, mine in (("cloud", ports[:4]), ("edge", ports[4:]))
    }
    with closing(Pair(file, addresses, certs, None)) as pair:
        for name in addresses:
            pair.start(name, "--bind", "127.0.0.1")
        assert pair.ready() == [
            f"ready {name} http=127.0.0.1:{one} peer=127.0.0.1:{two} admin=127.0.0.1:{four}"
            for name, (one, two, _, four) in (("cloud", ports[:4]), ("edge", ports[4:]))
        ]
        assert asked(f"http://127.0.0.1:{ports[4]}") == "edge,cloud"


@pytest.mark.parametrize(
    ("cloud", "edge", "bind", "certs"),
    [
        pytest.param("cloud.test", "127.0.0.3", ("0.0.0.0", "0.0.0.0"), True, id="ipv4"),
        pytest.param(
            "127.0.0.2", "edge.test", ("::", "[::]"), False, id="both", marks=pytest.mark.slow
        ),
        pytest.param(
            "[::1]", "[::1]", ("::", "localhost"), True, id="ipv6", marks=pytest.mark.slow
        ),
    ],
    indirect=["certs"],
)
def test_nodes_listen_at_every_address(
    file: Path, certs: Path | None, inside: Inside, cloud: str, edge: str, bind: tuple[str, str]
) -> None:
    if "::" in bind:
        needs_ipv6(inside)
    addresses = {
        name: Addresses(*(f"{host}:{port}" for port in PORTS[name][:3]), ADMIN[name])
        for name, host in (("cloud", cloud), ("edge", edge))
    }
    with closing(Pair(file, addresses, certs, inside)) as pair:
        for name, host in zip(addresses, bind, strict=True):
            pair.start(name, "--bind", host)
        lines = pair.ready()
        at = "0.0.0.0" if bind[0] == "0.0.0.0" else "[::]"
        assert lines[0] == f"ready cloud http={at}:8100 peer={at}:8101 admin=127.0.0.1:8103"
        # Reached at the loopback only, it can be reached from elsewhere.
        warned = "without certificates" in (file.parent / "cloud.log").read_text()
        assert warned == (certs is None)

        def look() -> str:
            reached("127.0.0.77" if cloud != "[::1]" else "::1", PORTS["cloud"])
            reached("127.0.0.1", PORTS["edge"])
            for name in PORTS:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.77", PORTS[name][3]), LIMIT_S)
            return asked("http://127.0.0.1:8200")

        assert inside.within(look) == "edge,cloud"


@pytest.mark.slow
def test_a_name_of_several_addresses_is_listened_at_with_all(file: Path, inside: Inside) -> None:
    needs_ipv6(inside)
    addresses = {
        "cloud": Addresses("both.test:8100", "both.test:8101", "both.test:8102"),
        "edge": Addresses("edge.test:8200", "edge.test:8201", "edge.test:8202"),
    }
    with closing(Pair(file, addresses, None, inside)) as pair:
        pair.start("cloud")
        assert len(pair.ready()) == 1
        for host in ("127.0.0.4", "::1"):
            inside.within(lambda host=host: reached(host, PORTS["cloud"]))


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ("203.0.113.7", "node edge cannot listen at 203.0.113.7: this machine has no such address"),
        ("edge.invalid", "node edge cannot listen at edge.invalid: no address of that name"),
        ("127.0.0.1:8000", "--bind takes a host and no port, such as 0.0.0.0, and was given 127.0"),
    ],
)
def test_where_it_cannot_listen_is_said(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], bind: str, said: str
) -> None:
    addresses = {name: Addresses(f"{name}:1", f"{name}:2", f"{name}:3") for name in PORTS}
    write(tmp_path / "addresses.json", addresses)
    command = ["node", str(file), "--name", "edge", "--state", str(tmp_path / "state")]
    command += ["--addresses", str(tmp_path / "addresses.json"), "--bind", bind]
    assert inferway(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("listener", ["http", "peer", "admin"])
def test_a_port_that_is_taken_is_said(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], listener: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        at = {name: Addresses(free(), free(), free(), free()) for name in PORTS}
        at["edge"] = msgspec.structs.replace(at["edge"], **{listener: f"127.0.0.1:{port}"})
        write(tmp_path / "addresses.json", at)
        command = ["node", str(file), "--name", "edge", "--state", str(tmp_path / "state")]
        assert inferway([*command, "--addresses", str(tmp_path / "addresses.json")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"node edge cannot listen: the {listener} listener cannot have port {port}" in said
    assert "something listens there already. Nodes of one machine" in said
