"""A test bench on one machine: all nodes of a deployment as processes, and links between them.

- `LocalCluster`: starts the nodes, tells where and how they are, kills and starts single ones,
  stops them all; `ClusterError`: why they cannot be run, in a sentence.
- `NodeProcess`: one node's process, over all its starts, and its `State`.
- `StatusPoller`: how all of them are, a `NodeStatus` each at a time.
- `Emulation`: a network namespace per node of a topology, and real delays between; changes links
  while it runs, removes everything.
- `Controls`: changes a network that another process made; `Counts`, `Passed`: what went over links.
- `obstacle`: why it cannot be done here; `remove_leftovers`: of runs that were killed.
- `EmulationError`: what could not be done, in a sentence.
"""

from inferway.lab.cluster import ClusterError, LocalCluster, NodeStatus, StatusPoller
from inferway.lab.emulation import Controls, Counts, Emulation, Passed, obstacle
from inferway.lab.process import NodeProcess, State
from inferway.lab.record import EmulationError, remove_leftovers

__all__ = [
    "ClusterError",
    "Controls",
    "Counts",
    "Emulation",
    "EmulationError",
    "LocalCluster",
    "NodeProcess",
    "NodeStatus",
    "Passed",
    "State",
    "StatusPoller",
    "obstacle",
    "remove_leftovers",
]
