"""A program that emulates a network, starts a program on a node, and waits to be ended."""

from __future__ import annotations

import signal
import subprocess

import numpy as np

from inferway.lab import Emulation
from inferway.network import Topology

if __name__ == "__main__":
    with Emulation(Topology(("a", "b"), np.array([[0, 1]]), np.array([0.01]))) as network:
        command = ["sh", "-c", "echo inside; exec sleep 1000"]
        with subprocess.Popen(
            network.command("b", command), stdout=subprocess.PIPE, start_new_session=True
        ) as inside:
            assert inside.stdout is not None
            inside.stdout.readline()
            try:
                print(network.name, network.relay_pid, inside.pid, flush=True)
                signal.pause()
            except KeyboardInterrupt:
                network.close()
