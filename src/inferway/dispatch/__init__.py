"""Choice of the server that answers each request: a file for each family of policies, the bound,
and what binds them to a site.

- `Dispatcher`: a site and its policy, one call per event.
- `POLICIES`: the names that deployment files use.
- `recordings`: what a served or simulated folder holds for `inferway.replay`.
- `escalation_bound`, `best_accuracy`, `escalation_price`: the LP where a second variant may be
  asked.
- `bound`, `max_rate`, `solve`, `relaxed`: the LP and its closed forms; `waterfill`,
  `routing_tuples`.
"""

from inferway.dispatch.bounds import (
    Bound,
    EscalationBound,
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
from inferway.dispatch.escalation_bounds import (
    best_accuracy,
    escalation_bound,
    escalation_price,
    max_escalation_rate,
    solve_escalation,
)
from inferway.dispatch.replay import recordings

__all__ = [
    "POLICIES",
    "Bound",
    "DispatchPolicy",
    "Dispatcher",
    "EscalationBound",
    "Filling",
    "Optimum",
    "PolicyError",
    "RoutingTuple",
    "best_accuracy",
    "bound",
    "build_policy",
    "escalation_bound",
    "escalation_price",
    "max_escalation_rate",
    "max_rate",
    "policy_class",
    "recordings",
    "relaxed",
    "routing_tuples",
    "solve",
    "solve_escalation",
    "waterfill",
]
