"""A node's part of the placement policy that its deployment names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inferway.deployment.policies import HINDSIGHT
from inferway.live.control.peers import Peers
from inferway.live.node.demand import LocalDemand
from inferway.live.node.placement import NodePlacement
from inferway.live.node.placement_messages import PlacementMessages
from inferway.live.node.plan import NodePlan
from inferway.live.node.slots import SlotClock
from inferway.live.node.state import NodeState
from inferway.live.site import Site
from inferway.placement.local import LocalPolicy, local_policy
from inferway.placement.table import expected_batches, policy_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# Slots that a policy in hindsight is told of.
_FORESEEN: Final = 100


def node_placement(
    deployment: Deployment,
    plan: NodePlan,
    peers: Peers,
    demand: LocalDemand,
    memory: NodeState,
    *,
    sites: Mapping[str, Site],
    running: Callable[[], Mapping[tuple[str, str], int]],
    wanted: Callable[[dict[tuple[str, str], int]], None],
    log: Any,
) -> NodePlacement:
    """Join the placement policy to what carries its messages and measures for it.

    Parameters
    ----------
    deployment
        Names the policy, and how long slots are.
    peers
        Carries messages, where the policy has some; not open yet.
    plan, demand, memory, sites, running, wanted, log
        As of `NodePlacement`.
    """
    network, expected = plan.deployed
    spec, name = deployment.placement, policy_of(deployment)
    options = {} if spec is None else {k: v for k, v in spec.options.items() if v is not None}
    slot_s = float(options.pop("slot", network.slot_s))
    make = partial(
        local_policy,
        name,
        network,
        plan.number,
        seed=deployment.seed,
        batches=expected_batches(expected, _FORESEEN) if name in HINDSIGHT else None,
        deployment=deployment,
        data=plan.data,
        **options,
    )
    policy = make()
    _rehearse(make(), plan)
    clock, post = SlotClock(slot_s), None
    if policy.agent is not None:
        post = PlacementMessages(policy.agent, peers, network.nodes, slot=clock.last)
    return NodePlacement(
        plan,
        policy,
        post,
        demand,
        clock,
        memory,
        sites=sites,
        running=running,
        wanted=wanted,
        log=log,
    )


def _rehearse(spare: LocalPolicy, plan: NodePlan) -> None:
    """Have a policy do once what it does in a slot: a first slot must not wait for its compiler."""
    # Also where nothing enters: letters about what passes must not wait for it either.
    one = dict.fromkeys(plan.data.crossings, 1.0)
    spare.close_slot(one, one, {}, slot=1)
    spare.step()
