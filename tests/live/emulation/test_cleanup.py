"""Nothing is left however a run ends, and nothing of others' is touched."""

from __future__ import annotations

import itertools
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from inferway.lab import (
    Emulation,
    EmulationError,
    obstacle,
    remove_leftovers,
)
from inferway.network import Topology

STATE, NAMESPACES, HOSTS = Path("/run/inferway"), Path("/run/netns"), Path("/etc/netns")
PAIR = Topology(("a", "b"), np.array([[0, 1]]), np.array([0.01]))


class Owner(NamedTuple):
    """A process that emulates a network, its relay, and a program on a node."""

    process: subprocess.Popen[str]
    name: str
    relay: int
    inside: int

    def ended(self, *processes: int) -> None:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process)
            except ProcessLookupError:
                continue
            assert select.select([descriptor], [], [], 30)[0], f"{process} still runs"
            os.close(descriptor)


@pytest.fixture
def owner(network: Emulation) -> Iterator[Owner]:
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("owner.py"))],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        name, relay, inside = process.stdout.readline().split()
        yield Owner(process, name, int(relay), int(inside))
        process.kill()
    remove_leftovers()


def left(name: str) -> list[Path]:
    """What is there of a network."""
    found = [path for top in (NAMESPACES, HOSTS) for path in top.glob(f"inferway-{name}-*")]
    return [*found, *STATE.glob(name)]


def made(path: Path) -> None:
    """Make a namespace with a name, as another program may."""
    path.touch()
    bind = ["unshare", "--net", "mount", "--bind", "/proc/self/ns/net", str(path)]
    subprocess.run(bind, check=True)


def removed(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True)
    path.unlink()


def outside() -> dict[str, Any]:
    """What a network could change on the machine."""
    return {
        "devices": [name for _, name in socket.if_nameindex()],
        "routes": Path("/proc/net/route").read_text(),
        "hosts": Path("/etc/hosts").read_text(),
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
    }


def test_nothing_outside_changes_and_nothing_is_left(network: Emulation) -> None:
    before = outside()
    with Emulation(PAIR) as other:
        assert len(left(other.name)) == 5
        assert outside() == before
    assert left(other.name) == []
    assert outside() == before
    assert not other.alive
    with pytest.raises(EmulationError, match="closed"):
        other.command("a", ["true"])
    other.close()  # again


def test_two_at_once_do_not_meet(network: Emulation, connect_s: Callable[..., list[float]]) -> None:
    with Emulation(PAIR, name="other") as other:
        assert set(other.addresses.values()) < set(network.addresses.values())
        network.cut("edge", "office")
        assert connect_s(other, "a", "b")[0] < 1
        with pytest.raises(EmulationError, match="other is being emulated already"):
            Emulation(PAIR, name="other")
        assert other.alive
    network.heal()
    assert connect_s(network, "edge", "office")[0] < 1


def test_a_killed_relay_is_noticed_and_removed(network: Emulation) -> None:
    with Emulation(PAIR) as other:
        os.kill(other.relay_pid, signal.SIGKILL)
        descriptor = os.pidfd_open(other.relay_pid)
        select.select([descriptor], [], [], 30)
        os.close(descriptor)
        assert not other.alive
        with pytest.raises(EmulationError, match="does not answer"):
            other.cut("a")
        with other.open_socket("a") as client, pytest.raises(OSError, match="unreachable"):
            client.connect((other.addresses["b"], 80))
    assert left(other.name) == []
    assert network.alive


def test_a_killed_owner_is_cleaned_up_after(owner: Owner) -> None:
    owner.process.kill()
    owner.ended(owner.process.pid, owner.relay, owner.inside)
    assert left(owner.name) == []


def test_ctrl_c_ends_everything(owner: Owner) -> None:
    assert os.getpgid(owner.relay) == owner.relay  # the owner may go on after Ctrl-C
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.process.wait(30) == 0
    owner.ended(owner.relay, owner.inside)
    assert left(owner.name) == []


def test_leftovers_of_killed_runs_are_removed_and_what_runs_is_not(
    owner: Owner, network: Emulation, connect_s: Callable[..., list[float]]
) -> None:
    os.kill(owner.relay, signal.SIGSTOP)  # it must not hear of its owner's end
    owner.process.kill()
    owner.process.wait()
    assert remove_leftovers() == []  # the relay still holds it
    os.kill(owner.relay, signal.SIGKILL)
    owner.ended(owner.relay)
    assert len(left(owner.name)) == 5
    with Emulation(PAIR) as other:
        assert left(owner.name) == []
        assert connect_s(other, "a", "b")[0] < 1
    owner.ended(owner.inside)
    assert connect_s(network, "edge", "office")[0] < 1


def test_names_left_by_a_power_failure(network: Emulation) -> None:
    ours, others = HOSTS / "inferway-gone-a", HOSTS / "inferway-theirs-a"
    for folder in (ours, others):
        folder.mkdir()
    (ours / "hosts").write_text(
        "# Made by inferway for the emulated network gone, and removed with it.\n"
    )
    (others / "hosts").write_text("127.0.0.1 localhost\n")
    try:
        assert remove_leftovers() == ["gone"]
        assert not ours.exists()
        assert (others / "hosts").exists()
    finally:
        (others / "hosts").unlink()
        others.rmdir()


def test_what_others_called_alike_stays(network: Emulation) -> None:
    path = NAMESPACES / "inferway-mine-b"
    made(path)
    theirs = path.stat().st_ino
    try:
        with pytest.raises(EmulationError, match="not known to be inferway's"):
            Emulation(PAIR, name="mine")
        assert path.stat().st_ino == theirs
        assert left("mine") == [path]
    finally:
        removed(path)
    with Emulation(PAIR, name="mine"):
        removed(path)
        made(path)
        theirs = path.stat().st_ino
    assert path.stat().st_ino == theirs
    removed(path)


def test_a_network_that_fails_on_the_way_leaves_nothing(network: Emulation) -> None:
    links = np.array([[k, k + 1] for k in range(39)])
    many = Topology(tuple(f"n{k}" for k in range(40)), links, np.full(39, 0.01))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel refuses the device of one of the nodes.
    taken = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    free = (one for one in itertools.count() if one not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, 30, None)), hard))
    try:
        with pytest.raises(EmulationError, match=r"cannot be emulated: .*Too many open files.*; "):
            Emulation(many, name="broken")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert left("broken") == []


HIDDEN = """
libc = ctypes.CDLL(None)
assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
libc.mount(b"", b"/", None, 0x84000, None)
libc.mount(b"none", b"/dev/net", b"tmpfs", 0, None)
"""


@pytest.mark.parametrize(
    ("become", "sentence"),
    [
        ("os.setuid(65534)", "needs root, to make network namespaces: run it with sudo"),
        (HIDDEN, "needs /dev/net/tun, which is not there: load the kernel module `tun`"),
    ],
    ids=["not root", "no device"],
)
def test_what_stands_in_the_way_is_said(network: Emulation, become: str, sentence: str) -> None:
    program = f"import ctypes, os\nfrom inferway.lab import obstacle\n{become}\nprint(obstacle())"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert sentence in told.stdout


def test_nothing_stands_in_the_way_here(network: Emulation) -> None:
    assert obstacle() is None


def test_what_does_not_end_when_asked_is_killed(network: Emulation) -> None:
    command = ["sh", "-c", "trap '' TERM; echo inside; while :; do sleep 60; done"]
    with Emulation(PAIR) as other:
        stubborn = subprocess.Popen(other.command("a", command), stdout=subprocess.PIPE)
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
    with stubborn:
        assert stubborn.wait(30) == -signal.SIGKILL
    assert left(other.name) == []
