"""Schedulers: what changes the routing of requests once a slot.

- `Controller`, `Routing`, `Signal`, `UNKNOWN`: the contract.
- `SCHEDULERS`: the names that deployment files use; `controller_of` makes one for `Conditions`.
- `JointController`, `joint_controller_of`: the same of one that decides for several tasks.
- `steer`: writes what a controller says into the memory of the dispatch policy.
"""

from inferway.scheduling.contract import (
    SCHEDULERS,
    UNKNOWN,
    Conditions,
    Controller,
    JointController,
    Routing,
    Signal,
    controller_of,
    joint_controller_of,
    steer,
)

__all__ = [
    "SCHEDULERS",
    "UNKNOWN",
    "Conditions",
    "Controller",
    "JointController",
    "Routing",
    "Signal",
    "controller_of",
    "joint_controller_of",
    "steer",
]
