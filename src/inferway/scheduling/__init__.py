"""Schedulers: what changes the routing of requests once a slot.

- `SiteController`, `Routing`, `Signal`, `UNKNOWN`: the contract.
- `Controller`, `ForOneTask`: what worlds run, for a list of tasks, of one as a rule.
- `SCHEDULERS`: the names that deployment files use; `controller_of` makes one for `Conditions`.
- `steer`: writes what a controller says into the memory of the dispatch policy.
"""

from inferway.scheduling.contract import (
    SCHEDULERS,
    UNKNOWN,
    Conditions,
    Controller,
    ForOneTask,
    Routing,
    Signal,
    SiteController,
    controller_of,
    steer,
)

__all__ = [
    "SCHEDULERS",
    "UNKNOWN",
    "Conditions",
    "Controller",
    "ForOneTask",
    "Routing",
    "Signal",
    "SiteController",
    "controller_of",
    "steer",
]
