"""How true an emulated network is, and what its relay costs.

As root::

    python benchmarks/emulation.py [--seconds 4] [--json]

Round trips of 6 and 50 ms, as a kernel answers them (ICMP echo, received when the kernel says) and
as programs see them (a TCP connection between two threads here); then packets a second and the
relay's CPU time for each, few and many, and TCP throughput with packets handed over whole and cut
up; and how late the relay is while every core is busy, by its priority. Others may use the machine:
how late the relay itself was stands beside everything.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import inferway
from inferway.lab import Emulation
from inferway.machine import machine
from inferway.network import Topology

SO_TIMESTAMPNS = 35
TRIPS_S = (0.006, 0.05)
SPEED = 250.0


def echo(network: Emulation, rate: float, seconds: float) -> list[float]:
    """Seconds from the call that sends to the arrival of the kernel's answer."""
    count = min(int(rate * seconds), 60_000)
    sent, taken = [0.0] * count, []
    with network.open_socket("a", kind=socket.SOCK_RAW, protocol=socket.IPPROTO_ICMP) as probe:
        probe.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        probe.settimeout(3)

        def receive() -> None:
            while len(taken) < count:
                packet, ancillary, _, _ = probe.recvmsg(2000, 256)
                (number,) = struct.unpack_from("!H", packet, 26)
                whole, rest = struct.unpack("qq", ancillary[0][2])
                taken.append(whole + 1e-9 * rest - sent[number])

        reader = threading.Thread(target=receive)
        reader.start()
        start_s = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, start_s + number / rate - time.monotonic()))
            request = struct.pack("!BBHHH200x", 8, 0, 0xFFFF - 0x0800 - number, 0, number)
            sent[number] = time.time()
            probe.sendto(request, (network.addresses["b"], 0))
        reader.join()
    return taken


def ask(network: Emulation, rate: float, seconds: float) -> list[float]:
    """Seconds that 200 bytes take to a program and back, over one TCP connection."""
    client, server = connected(network)
    with client, server:

        def answer() -> None:
            while read := server.recv(2000):
                server.sendall(read)

        thread = threading.Thread(target=answer)
        thread.start()
        taken = []
        for _ in range(int(rate * seconds / 4)):
            start_s = time.monotonic()
            client.sendall(bytes(200))
            client.recv(2000)
            taken.append(time.monotonic() - start_s)
        client.shutdown(socket.SHUT_WR)
        thread.join()
    return taken


def flood(network: Emulation, seconds: float) -> None:
    """Send small datagrams as fast as one thread can."""
    with (
        network.open_socket("a", kind=socket.SOCK_DGRAM) as sender,
        network.open_socket("b", kind=socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind((network.addresses["b"], 0))
        sender.connect(receiver.getsockname())
        data = bytes(200)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for _ in range(100):
                sender.send(data)


def stream(network: Emulation, seconds: float) -> float:
    """Bits a second of one TCP connection."""
    client, server = connected(network)
    with client, server:
        received = 0

        def read() -> None:
            nonlocal received
            while got := server.recv_into(buffer):
                received += got

        buffer = bytearray(1 << 20)
        thread = threading.Thread(target=read)
        thread.start()
        start_s = time.monotonic()
        while time.monotonic() < start_s + seconds:
            client.sendall(bytes(1 << 18))
        client.shutdown(socket.SHUT_WR)
        thread.join()
        return 8 * received / (time.monotonic() - start_s)


def connected(network: Emulation) -> tuple[socket.socket, socket.socket]:
    with network.open_socket("b") as listener:
        listener.bind((network.addresses["b"], 0))
        listener.listen()
        client = network.open_socket("a")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.connect(listener.getsockname())
        return client, listener.accept()[0]


def watched(network: Emulation, work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Do something, and tell what the relay did meanwhile."""
    before, start_s = network.counts(), time.monotonic()
    result = work()
    after, taken_s = network.counts(), time.monotonic() - start_s
    packets = sum(one.packets for one in after.passed.values())
    packets -= sum(one.packets for one in before.passed.values())
    cpu_s = after.cpu_s - before.cpu_s
    spent = after._replace(late=after.late - before.late)
    return result, {
        "packets_per_s": packets / taken_s,
        "cpu_us_per_packet": 1e6 * cpu_s / max(packets, 1),
        "cores": cpu_s / taken_s,
        "late_p50_s": spent.late_s(0.5),
        "late_p99_s": spent.late_s(0.99),
    }


def measure(seconds: float) -> dict[str, Any]:
    """All rows, by name."""
    rows: dict[str, Any] = {}
    for rtt_s in TRIPS_S:
        with pair(rtt_s) as network:
            for name, work in (("kernel", echo), ("programs", ask)):
                taken, row = watched(network, lambda work=work: work(network, SPEED, seconds))
                quantiles = np.quantile(taken, (0.5, 0.99))
                row |= {"trips": len(taken), "min_s": min(taken)}
                row |= dict(zip(("p50_s", "p99_s"), quantiles.tolist(), strict=True))
                rows[f"{1000 * rtt_s:g} ms, {name}"] = row
    with pair(TRIPS_S[0]) as network:
        _, rows["echo, 4,000/s"] = watched(network, lambda: echo(network, 4000.0, seconds))
        _, rows["datagrams, all it can"] = watched(network, lambda: flood(network, seconds))
        for name, share in (("TCP, whole", 0.0), ("TCP, cut up", 1e-9)):
            network.lose("a", share=share)
            rate, row = watched(network, lambda: stream(network, seconds))
            rows[name] = row | {"bits_per_s": rate}
    with pair(TRIPS_S[0]) as network, busy():
        for name, urge in URGES.items():
            urge(network.relay_pid)
            _, row = watched(network, lambda: echo(network, SPEED, seconds))
            rows[f"cores busy, {name}"] = row
    for count in (5, 30):
        start_s = time.monotonic()
        network = Emulation(star(count))
        made_s = time.monotonic()
        network.close()
        rows[f"{count} nodes"] = {"start_s": made_s - start_s, "end_s": time.monotonic() - made_s}
    return rows


@contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy, as models do."""
    burn = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    burning = [subprocess.Popen(burn) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for one in burning:
            one.kill()
            one.wait()


def ordinary(process: int, nice: int) -> None:
    os.sched_setscheduler(process, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, process, nice)


URGES: dict[str, Callable[[int], None]] = {
    "real-time": lambda process: None,
    "nice -20": lambda process: ordinary(process, -20),
    "ordinary": lambda process: ordinary(process, 0),
}
"""What the relay is given before the others; real-time is what it takes itself."""


def pair(rtt_s: float) -> Emulation:
    return Emulation(Topology(("a", "b"), np.array([[0, 1]]), np.array([rtt_s])))


def star(count: int) -> Topology:
    links = np.column_stack([np.zeros(count - 1, np.int64), np.arange(1, count)])
    return Topology(tuple(f"n{k}" for k in range(count)), links, np.full(count - 1, 0.01))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each row")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    rows = measure(options.seconds)
    if options.json:
        document = {"schema": 1, "machine": machine(), "measured": rows}
        print(json.dumps(document | {"inferway": inferway.__version__}, indent=1))
        return
    heads = ("", "p50 ms", "p99 ms", "packets/s", "CPU us each", "cores", "late p50", "late p99")
    print(f"{heads[0]:24}" + "".join(f"{head:>13}" for head in heads[1:]))
    for name, row in rows.items():
        if "start_s" in row:
            print(f"{name:24} made in {row['start_s']:.2f} s, removed in {row['end_s']:.2f} s")
            continue
        trip = [f"{1000 * row[key]:.2f}" if key in row else "" for key in ("p50_s", "p99_s")]
        late = [f"< {1e6 * row[key]:.0f} us" for key in ("late_p50_s", "late_p99_s")]
        cost = [f"{row['packets_per_s']:,.0f}", f"{row['cpu_us_per_packet']:.1f}"]
        cells = [*trip, *cost, f"{row['cores']:.3f}", *late]
        rate = f"   {row['bits_per_s'] / 1e6:,.0f} Mbit/s" if "bits_per_s" in row else ""
        print(f"{name:24}" + "".join(f"{cell:>13}" for cell in cells) + rate)


if __name__ == "__main__":
    main()
