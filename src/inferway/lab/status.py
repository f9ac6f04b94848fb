"""The state of all nodes, one look at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from inferway.lab.cluster import ClusterError, LocalCluster
from inferway.lab.process import State

PATIENCE_S: Final = 1.0
_AT_ONCE: Final = 8
_RATES: Final[tuple[str, ...]] = ("arrived", "forwarded", "served", "cpu_s")


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
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="inferway-watch")

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
            told = self._cluster.admin(node, PATIENCE_S)
        except ClusterError:
            state = "silent" if process.state is State.READY else process.state.value
            return NodeStatus(node, state, {}, {})
        now_s = self._now()
        last_s, last = self._last.get(node, (now_s, told))
        self._last[node] = now_s, told
        gone_s = now_s - last_s
        per_s = {
            key: (told[key] - last[key]) / gone_s
            for key in _RATES
            if gone_s > 0 and key in told and key in last and told[key] >= last[key]
        }
        return NodeStatus(node, process.state.value, told, per_s)
