"""Choice of the server that answers each request: a file for each family of policies, the bound,
and what binds them to a site.

- `Dispatcher`: a site and its policy, one call per event.
- `POLICIES`: the names that deployment files use.
- `recordings`: what a served or simulated folder holds for `inferway.replay`.
- `bound`, `max_rate`, `solve`, `relaxed`: the LP and its closed forms; `waterfill`,
  `routing_tuples`.
"""

from inferway.dispatch.bounds import (
    Bound,
    Filling,
    Optimum,
    RoutingTuple,
    bound,
    max_rate,
    relaxed,
    routing_tuples,
    solve,
    waterfill,
)
from inferway.dispatch.contract import POLICIES, DispatchPolicy, build_policy, policy_class
from inferway.dispatch.dispatcher import Dispatcher, PolicyError
from inferway.dispatch.replay import recordings

__all__ = [
    "POLICIES",
    "Bound",
    "DispatchPolicy",
    "Dispatcher",
    "Filling",
    "Optimum",
    "PolicyError",
    "RoutingTuple",
    "bound",
    "build_policy",
    "max_rate",
    "policy_class",
    "recordings",
    "relaxed",
    "routing_tuples",
    "solve",
    "waterfill",
]
