"""What the control plane of a live network sends in a slot, against what the paper's rule asks for.

::

    python benchmarks/control.py [FILE] [--slots 10] [--json]
    python benchmarks/control.py [FILE] --beside DIR [--turns 7] [--slots 4] [--json]

All nodes of FILE (`examples/delivery-network.yaml` if not given) run on this machine under the
file's own load. By the rule of [SiSalem23], Sec. IV-B, each request type asked for in a slot
sends one letter up, hop by hop, until the worst needed option is found after h hops, and one back:
2 h letters. So many are expected from INFIDA's agents in one process, which get the slots' requests
as the slot twin serves them. Menus, the offers that requests are forwarded by (Sec. III-E: what
changes is put when it changes, and every 2 s it is said that the rest still holds), come on top and
have no counterpart there; their bytes are compared with those of all of INFIDA's letters.

With ``--beside DIR``, another checkout's nodes take turns with this one's: the ratio of CPU time in
a slot of all nodes together and of the agents in one process, and of a whole run from its start to
its end, with its interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from beside import add_options, add_turn, compare

import inferway
from inferway.deployment import Deployment
from inferway.lab import LocalCluster
from inferway.network.layout import deployed
from inferway.placement.contract import Observation
from inferway.placement.serving import serve

FILE = Path(__file__).parents[1] / "examples" / "delivery-network.yaml"
ASKED = ("needed", "worst")
INFIDA = ("floor", *ASKED, "offers")


def measured(deployment: Deployment, slots: int) -> tuple[dict[str, Any], float]:
    """Letters and bytes sent in a slot, by kind, and CPU seconds, of all live nodes together."""
    slot_s = deployed(deployment).network.slot_s
    with LocalCluster(deployment) as up:
        # Whole slots only, which end when the wall clock says so.
        time.sleep(slot_s - time.time() % slot_s)
        before, before_s = count(up), cpu_s(up)
        drive(deployment, up, slots * slot_s)
        after, after_s = count(up), cpu_s(up)
    letters = {
        kind: {
            "letters": (after[kind, "letters"] - before[kind, "letters"]) / slots,
            "bytes": (after[kind, "bytes"] - before[kind, "bytes"]) / slots,
        }
        for kind in sorted({kind for kind, _ in after})
    }
    return letters, (after_s - before_s) / slots


def drive(deployment: Deployment, up: LocalCluster, duration_s: float) -> None:
    """Send the file's load, as a user does: what this takes is not the nodes'."""
    command = [sys.executable, "-m", "inferway", "drive", str(deployment.path), "--json"]
    command += ["--addresses", str(up.addresses_file), "--duration", str(duration_s)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_s(up: LocalCluster) -> float:
    """CPU time that all nodes have used."""
    used_s = 0.0
    for node in up.nodes.values():
        top = psutil.Process(node.pid)
        for process in (top, *top.children(recursive=True)):
            used = process.cpu_times()
            used_s += used.user + used.system
    return used_s


def count(up: LocalCluster) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for node in up.nodes:
        for kind, one in up.admin(node)["control"]["sent"].items():
            found.update({(kind, what): number for what, number in one.items()})
    return found


def expected(deployment: Deployment, slots: int) -> dict[str, float]:
    """Letters and bytes in a slot between agents of one process, floors and offers left out."""
    network, demand = deployed(deployment)
    # Of the checkout that is measured.
    sys.path.insert(0, str(Path(inferway.__file__).parents[2] / "tests" / "theory"))
    from agent_exchange import Exchange

    exchange = Exchange(network, seed=deployment.seed)
    sums: Counter[str] = Counter()
    for slot in range(slots):
        requests = demand.counts(slot).astype(np.float64)
        load = np.empty(len(network.options.pair))
        serve(network, requests, exchange.allocation, out=load)
        exchange.step(Observation(requests, load))
        sums.update({"letters": exchange.asked.messages, "bytes": exchange.asked.size})
    return {what: number / slots for what, number in sums.items()}


def turn(deployment: Deployment, slots: int) -> dict[str, float]:
    """CPU seconds of a slot, of the nodes and of the agents; these run so many times as often."""
    expected(deployment, 2)
    times = 25
    began_s = time.thread_time()
    expected(deployment, times * slots)
    agents_s = (time.thread_time() - began_s) / (times * slots)
    _, nodes_s = measured(deployment, slots)
    return {"all nodes, a slot": nodes_s, "agents in one process, a slot": agents_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    add_options(parser)
    add_turn(parser)
    given = parser.parse_args()
    if given.beside is not None:
        compare(__file__, [str(given.file.resolve()), "--slots", str(given.slots)], given)
        return
    deployment = inferway.load(given.file)
    if given.turn:
        print(json.dumps(turn(deployment, given.slots)))
        return
    # Here, as a checkout of another time that is measured beside may not have it.
    from inferway.machine import machine

    rule = expected(deployment, given.slots)
    live, _ = measured(deployment, given.slots)
    asked = {what: sum(live.get(kind, {}).get(what, 0.0) for kind in ASKED) for what in rule}
    menus = live["menu"]["bytes"] / sum(live.get(kind, {}).get("bytes", 0.0) for kind in INFIDA)
    if given.json:
        found = {"live": live, "asked": asked, "rule": rule, "menus_over_infida": menus}
        print(json.dumps({"machine": machine(), **found}))
        return
    print(machine())
    print(f"{'kind':<10}{'letters/slot':>14}{'bytes/slot':>12}")
    for kind, one in live.items():
        print(f"{kind:<10}{one['letters']:>14.1f}{one['bytes']:>12.0f}")
    print(f"{'by rule':<10}{rule['letters']:>14.1f}{rule['bytes']:>12.0f}  (needed and worst)")
    print(
        f"live over rule: letters {asked['letters'] / rule['letters']:.2f}, "
        f"bytes {asked['bytes'] / rule['bytes']:.2f}"
    )
    print(f"menus over INFIDA's letters: bytes {menus:.2f}")


if __name__ == "__main__":
    main()
