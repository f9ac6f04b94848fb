"""Schedulers: what changes the routing of requests once a slot.

- `Controller`, `Routing`, `Signal`, `UNKNOWN`: the contract.
"""

from inferway.scheduling.contract import UNKNOWN, Controller, Routing, Signal

__all__ = ["UNKNOWN", "Controller", "Routing", "Signal"]
