"""What was sent to a network and what came back, one row per request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.record import Record, named


@dataclass(frozen=True, kw_only=True)
class NetworkRecord(Record):
    """A network's requests in the order of their intended times; see `Record`.

    `task` of the record itself is the file's kind of task, empty where there are several.

    Attributes
    ----------
    slot_s
        Length of a slot, seconds.
    kinds
        The file's tasks, whether counted or not.
    kind
        Index of the request's, in `kinds`.
    tasks
        All tasks, as they are served: digits-0, digits-1, ...
    asked
        Index of the request's, in `tasks`.
    type
        Its request type, as an index of `inferway.network.Requests`.
    nodes
        Names of the network's nodes, and of others that answers named.
    entry
        Index of the node where the request entered.
    node
        Index of the node that answered; -1 where no answer said it.
    paths
        Paths that answers named, the entry first, as ``edge-1,metro,cloud``.
    path
        Index of the answer's; -1 where it named none.
    degradations
        Sentences with which answers said that they are degraded.
    degraded
        Index of the answer's; -1 where it is not degraded.
    began_s
        When the times of the record began, seconds since 1970.
    """

    slot_s: float
    kinds: tuple[str, ...]
    kind: NDArray[np.int32]
    tasks: tuple[str, ...]
    asked: NDArray[np.int32]
    type: NDArray[np.int32]
    nodes: tuple[str, ...]
    entry: NDArray[np.int32]
    node: NDArray[np.int32]
    paths: tuple[str, ...]
    path: NDArray[np.int32]
    degradations: tuple[str, ...]
    degraded: NDArray[np.int32]
    began_s: float = math.nan

    @property
    def slot(self) -> NDArray[np.int64]:
        """The slot in which each request was due, from 0."""
        slot: NDArray[np.int64] = np.floor(self.intended_s / self.slot_s).astype(np.int64)
        return slot

    @property
    def hops(self) -> NDArray[np.int16]:
        """Links between the entry and the node that answered; -1 where no path was named."""
        counts = np.array([*(one.count(",") for one in self.paths), -1], np.int16)
        hops: NDArray[np.int16] = counts[self.path]
        return hops

    def of_kind(self, name: str) -> NetworkRecord:
        """Return the requests for the tasks of one kind."""
        return self.only(self.kind == self.kinds.index(name))

    def entered_at(self, node: str) -> NetworkRecord:
        """Return the requests that entered at a node."""
        return self.only(self.entry == self.nodes.index(node))

    def to_frame(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, as `Record.to_frame` does; nodes and paths as names."""
        columns = super().to_frame()
        del columns["asked"], columns["kind"]
        return columns | {
            "kind": named(self.kinds, self.kind),
            "task": named(self.tasks, self.asked),
            "entry": named(self.nodes, self.entry),
            "node": named(self.nodes, self.node),
            "path": named(self.paths, self.path),
            "hops": self.hops,
            "degraded": named(self.degradations, self.degraded),
            "slot": self.slot,
        }
