"""A deployment's network on one machine: a network namespace per node, and real delays between.

- `Emulation`: makes the nodes of a topology, changes links while it runs, removes everything.
- `Controls`: changes a network that another process made.
- `Counts`, `Passed`: what went over the links.
- `obstacle`: why it cannot be done here; `remove_leftovers`: of runs that were killed.
- `EmulationError`: what could not be done, in a sentence.
"""

from inferway.live.emulation.controls import Controls, Counts, Passed
from inferway.live.emulation.error import EmulationError
from inferway.live.emulation.network import Emulation, obstacle
from inferway.live.emulation.record import remove_leftovers

__all__ = [
    "Controls",
    "Counts",
    "Emulation",
    "EmulationError",
    "Passed",
    "obstacle",
    "remove_leftovers",
]
