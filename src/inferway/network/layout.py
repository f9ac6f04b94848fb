"""From a deployment file to its inference delivery network."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Deployment, DeploymentError, Node, Problem
from inferway.deployment.nodes import MAX_HOPS, Tier
from inferway.deployment.warnings import Caution
from inferway.deployment.workloads import PhasedArrivals, Workload
from inferway.network.catalog import Given
from inferway.network.delivery import DeliveryNetwork, delivery_network
from inferway.network.demand import Demand, TaskStream, peaks
from inferway.network.gml import load_gml
from inferway.network.options import CostFunction, Paths, Requests, ranges
from inferway.network.routes import shortest_paths
from inferway.network.targets import unplaced_energies, unreachable_entries
from inferway.network.topology import Level, NetworkError, Topology, tree

_NAMED_BYTES: Final = 32 * 1024  # of a request's headers: half of what a listener takes
# Request types, each a task and a node where it enters, that a network is laid out for.
MOST_TYPES: Final = 10_000_000
_ENTRIES = 0xE427  # tells this use of the seed from others
DEFAULT_SLOT_S = 60.0
DEFAULT_ALPHA = 1.0


class Deployed(NamedTuple):
    """A deployment's network and the requests that come to it."""

    network: DeliveryNetwork
    demand: Demand


def network_of(deployment: Deployment, *, cost: CostFunction | None = None) -> DeliveryNetwork:
    """Build the delivery network of a deployment.

    Requests are routed to the nearest repository by round-trip time. Without `entries` they enter
    at the last tier of a tree, or else at every node that is no repository.

    Parameters
    ----------
    deployment
        A file with `network` and `workload`.
    cost
        Another cost than eq. 6 with the file's `cost: {alpha: ...}` (1 if not given).

    Raises
    ------
    DeploymentError
        If the file has no network, nothing is requested, or the network cannot be used.
    """
    return deployed(deployment, cost=cost).network


def demand_of(deployment: Deployment) -> Demand:
    """Tell how many requests of each type come in each slot; errors as `network_of`."""
    return deployed(deployment).demand


def deployed(deployment: Deployment, *, cost: CostFunction | None = None) -> Deployed:
    """Build network and demand together; see `network_of`."""
    topology = topology_of(deployment)
    field = "workload"
    try:
        entries, requests, demand = _requests(deployment, topology)
        field = "network"
        repositories = np.flatnonzero(topology.repository)
        paths = shortest_paths(topology, entries, repositories)
        _check_lengths(topology, paths)
        network = delivery_network(
            list(deployment.tasks.values()),
            topology,
            paths,
            requests,
            alpha=DEFAULT_ALPHA if deployment.cost is None else deployment.cost.alpha,
            slot_s=demand.slot_s,
            cost=cost,
            pinned=_pinned(deployment, topology),
        )
    except DeploymentError:
        raise
    except ValueError as error:
        raise _refused(deployment, field, str(error)) from error
    return Deployed(network, demand)


def topology_of(deployment: Deployment) -> Topology:
    """Build the nodes and links of a deployment.

    Raises
    ------
    DeploymentError
        If it has no network, no node is a repository, or a node is described that is not there.
    """
    written = deployment.network
    if written is None:
        sentence = "the file has no `network`, and this needs one: a `tree`, `links` or `gml`"
        raise _refused(deployment, "", sentence)
    try:
        if written.tree is not None:
            plain = tree([_level(tier) for tier in written.tree], seed=deployment.seed)
        elif written.links is not None:
            ends = [link.between for link in written.links]
            names = dict.fromkeys([*deployment.nodes, *(one for two in ends for one in two)])
            index = {name: node for node, name in enumerate(names)}
            links = np.array([[index[one] for one in two] for two in ends])
            plain = Topology(tuple(names), links, np.array([link.rtt_s for link in written.links]))
        else:
            assert written.gml is not None  # held by the schema: one form is given
            plain = load_gml(written.gml).topology
        topology = _described(deployment, plain)
    except NetworkError as error:
        raise _refused(deployment, "network", str(error)) from error
    if not topology.repository.any():
        task = next(iter(deployment.tasks))
        raise _refused(
            deployment,
            "network",
            f"task {task} has no repository: say `repository: true` for some node, which must "
            "always be able to serve",
        )
    return topology


def entries_of(deployment: Deployment, topology: Topology) -> dict[str, tuple[str, ...]]:
    """Name the nodes where requests for each task enter, by the names that clients use.

    A task without a workload may enter wherever one without `entries` would.

    Parameters
    ----------
    deployment
        A file with `network`.
    topology
        Of `topology_of`.

    Raises
    ------
    DeploymentError
        If requests are to enter where there is no node.
    """
    anywhere = tuple(topology.nodes[node] for node in _places(None, topology))
    found = dict.fromkeys(deployment.named(), anywhere)
    for k, name in enumerate(deployment.workload):
        for one, nodes in zip(*_entries(deployment, topology, k, name), strict=True):
            found[one] = tuple(topology.nodes[node] for node in nodes)
    return found


def _level(tier: Tier) -> Level:
    if (told := tier.device_refusal(f"tier {tier.tier}")) is not None:
        raise NetworkError(told)
    budget = tier.budget_bytes
    return Level(
        name=tier.tier,
        nodes=tier.nodes,
        rtt_s=tier.rtt_s or 0.0,
        budget=[(part.share, part.size_bytes) for part in budget]
        if isinstance(budget, tuple)
        else budget,
        hardware=tier.hardware,
        repository=tier.repository,
    )


def _described(deployment: Deployment, plain: Topology) -> Topology:
    """Give nodes what the file says of them under `nodes`, and of all the others."""
    others = deployment.network.others if deployment.network is not None else None
    described = [one for one in (others, *deployment.nodes.values()) if one is not None]
    if not described:
        return plain
    index = {name: node for node, name in enumerate(plain.nodes)}
    for name, node in deployment.nodes.items():
        if (told := node.device_refusal(f"nodes.{name}")) is not None:
            raise NetworkError(told)
        if name not in index:
            raise NetworkError(
                f"node {name} is described under `nodes`, but the network has no such node"
            )
    kinds = tuple(dict.fromkeys([*plain.kinds, *(node.hardware for node in described)]))
    budget, repository = plain.budget.copy(), plain.repository.copy()
    hardware = plain.hardware.copy()
    for name, k in index.items():
        stated = deployment.nodes.get(name, others)
        if stated is not None:
            budget[k] = np.inf if stated.budget_bytes is None else stated.budget_bytes
            hardware[k], repository[k] = kinds.index(stated.hardware), stated.repository
    return replace(plain, budget=budget, hardware=hardware, kinds=kinds, repository=repository)


def _requests(
    deployment: Deployment, topology: Topology
) -> tuple[NDArray[np.int64], Requests, Demand]:
    """Return the entry node of each path, the request types, and the demand for them."""
    if not deployment.workload:
        raise NetworkError("nothing is requested; give each task a `workload`")
    index = {name: i for i, name in enumerate(deployment.named())}
    workloads = deployment.workload.values()
    laid = [_entries(deployment, topology, k, name) for k, name in enumerate(deployment.workload)]
    first = ranges(np.array([entries.size for _, entries in laid]))
    streams = tuple(
        TaskStream(one.arrivals, one.popularity, start + np.arange(at.size).reshape(at.shape))
        for one, (_, at), start in zip(workloads, laid, first[:-1], strict=True)
    )
    placement = deployment.placement
    slot_s = DEFAULT_SLOT_S if placement is None else float(placement.options["slot"])
    entry, path = np.unique(np.concatenate([at.ravel() for _, at in laid]), return_inverse=True)
    tasks = [np.repeat([index[one] for one in names], at.shape[1]) for names, at in laid]
    requests = Requests(
        task=np.concatenate(tasks).astype(np.int32),
        path=path.astype(np.int32),
        share=np.concatenate([np.full(at.size, 1.0 / at.shape[1]) for _, at in laid]),
        peak=peaks(streams, int(first[-1]), slot_s),
    )
    return entry, requests, Demand(streams, int(first[-1]), slot_s, deployment.seed)


def _check_lengths(topology: Topology, paths: Paths) -> None:
    """Refuse ways that nodes would take for loops, or that their headers have no room for."""
    nodes = np.diff(paths.first)
    longest = int(nodes.argmax())
    if nodes[longest] - 1 > MAX_HOPS:
        raise NetworkError(
            f"{_way(topology, paths, longest)} goes over {nodes[longest] - 1} links, and requests "
            f"go over {MAX_HOPS} at most; put a repository nearer, or add a link that shortens it"
        )
    sizes = np.array([len(quote(name)) + 1 for name in topology.nodes])
    written = np.add.reduceat(sizes[paths.node], paths.first[:-1])
    widest = int(written.argmax())
    if written[widest] > _NAMED_BYTES:
        raise NetworkError(
            f"the names of the nodes on {_way(topology, paths, widest)} take {written[widest]} "
            f"bytes, and a request has room for {_NAMED_BYTES} of them; shorten the names"
        )


def _way(topology: Topology, paths: Paths, path: int) -> str:
    one, other = paths.node[paths.first[path]], paths.node[paths.first[path + 1] - 1]
    return f"the way from {topology.nodes[one]} to the repository {topology.nodes[other]}"


def _entries(
    deployment: Deployment, topology: Topology, k: int, name: str
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the tasks of the k-th workload and, a row each, the nodes where they enter."""
    workload, arrivals = deployment.workload[name], deployment.workload[name].arrivals
    tasks = deployment.tasks[name].names if name in deployment.tasks else [name]
    per_task = None if workload.entries is None else workload.entries.per_task
    parts = arrivals.phases if isinstance(arrivals, PhasedArrivals) else (arrivals,)
    try:
        if any(getattr(part, "load", None) is not None for part in parts):
            raise NetworkError(
                "the arrivals are given as a load, but a network has no greatest feasible rate; "
                "give a rate such as 120/s"
            )
        places = _places(workload, topology)
        return tasks, assign(len(tasks), places, per_task, seed=deployment.seed + k)
    except ValueError as error:
        raise _refused(deployment, f"workload.{name}", str(error)) from error


def _places(workload: Workload | None, topology: Topology) -> NDArray[np.int64]:
    entries = None if workload is None else workload.entries
    if entries is not None and entries.tier is not None:
        return topology.of_tier(entries.tier)
    if entries is not None and entries.nodes is not None:
        index = {name: node for node, name in enumerate(topology.nodes)}
        for name in entries.nodes:
            if name not in index:
                raise NetworkError(f"requests are to enter at {name}, but there is no such node")
        return np.array([index[name] for name in dict.fromkeys(entries.nodes)])
    if len(topology.tiers) > 1:
        return topology.of_tier(topology.tiers[-1])
    others = np.flatnonzero(~topology.repository)
    return others if len(others) else np.flatnonzero(topology.repository)


def _pinned(deployment: Deployment, topology: Topology) -> Given:
    """Collect what is pinned, by node; a counted task's own name stands for all of its tasks."""
    network, tasks = deployment.network, deployment.tasks
    assert network is not None
    described = (*(network.tree or ()), network.others, *deployment.nodes.values())
    if not any(one.pinned for one in described if one is not None):
        return {}  # as most; there may be thousands of nodes
    return {
        (name, one, variant): copies
        for name, node in zip(topology.nodes, _descriptions(deployment, topology), strict=True)
        for (task, variant), copies in (() if node is None else node.pinned.items())
        for one in (tasks[task].names if task in tasks else [task])
    }


def _descriptions(deployment: Deployment, topology: Topology) -> list[Node | None]:
    """Find what the file says of each node: under `nodes`, of its tier, or of `others`."""
    network = deployment.network
    assert network is not None
    tiers = {tier.tier: tier for tier in network.tree or ()}
    of_tier = [tiers.get(name, network.others) for name in topology.tiers]
    return [
        deployment.nodes.get(name, of_tier[tier])
        for name, tier in zip(topology.nodes, topology.tier.tolist(), strict=True)
    ]


def _refused(deployment: Deployment, field: str, sentence: str) -> DeploymentError:
    line = deployment.line_of(field)
    return DeploymentError(deployment.path, [Problem(line, field, sentence)])


def members_of(deployment: Deployment, topology: Topology) -> dict[str, Node]:
    """Describe every node: as `nodes` does, else as its tier, else as `others`.

    Parameters
    ----------
    deployment
        A file with `network`.
    topology
        Of `topology_of`; budgets come from it, as a tier's may be mixed.

    Returns
    -------
    dict
        By name, in the topology's order. A node that nothing describes has no instances, no limit
        and no addresses.
    """
    return {
        name: deployment.nodes[name]
        if name in deployment.nodes
        else replace(
            node or Node(), name=name, budget_bytes=int(budget) if np.isfinite(budget) else None
        )
        for name, node, budget in zip(
            topology.nodes, _descriptions(deployment, topology), topology.budget, strict=True
        )
    }


class NetworkFindings(NamedTuple):
    """Of a network that can be used.

    Attributes
    ----------
    size
        How many nodes, links and, where the file has a workload, request types and useful (node,
        model) pairs.
    cautions
        Advice: on sizes, on targets over several tasks that an entry cannot keep, and on energy
        that only luck keeps there.
    notes
        What a graph file does not say and its import made up, a sentence each.
    """

    size: dict[str, int]
    cautions: list[Caution]
    notes: list[str]


def findings_of(deployment: Deployment) -> NetworkFindings | None:
    """Build a deployment's network to see whether it can be used; None where it has none.

    Raises
    ------
    DeploymentError
        Where it cannot, as `network_of`.
    """
    written = deployment.network
    if written is None:
        return None
    topology = topology_of(deployment)
    size = {"nodes": len(topology.nodes), "links": len(topology.links)}
    cautions: list[Caution] = []
    if deployment.workload:
        network, demand = deployed(deployment)
        size |= {"request_types": len(network.requests.task), "pairs": len(network.pairs.node)}
        line = deployment.line_of("network")
        cautions = [Caution("too-large", "network", line, said) for said in network.warnings]
        cautions += unreachable_entries(deployment, network, demand)
        out_of_reach = {one.field for one in cautions}
        hanging = unplaced_energies(deployment, network, demand)
        cautions += [one for one in hanging if one.field not in out_of_reach]
    notes = [] if written.gml is None else load_gml(written.gml).report.sentences()
    return NetworkFindings(size, cautions, notes)


def assign(
    tasks: int, places: NDArray[np.int64], per_task: int | None = None, *, seed: int = 0
) -> NDArray[np.int64]:
    """Draw entry nodes for each task.

    Parameters
    ----------
    tasks
        How many tasks.
    places
        The nodes to draw from, all different.
    per_task
        How many for each task, drawn at random without repeating one; all if None. Each receives
        an equal part of the task's requests.
    seed
        The same seed gives the same nodes; a larger number of tasks begins with the same ones.

    Returns
    -------
    (tasks, per_task) nodes, ascending in each row.

    Raises
    ------
    ValueError
        If there is no place, or fewer than `per_task`; or there are too many request types.
    """
    if not len(places):
        raise ValueError("there is no node where requests could enter")
    types = tasks * (len(places) if per_task is None else per_task)
    if types > MOST_TYPES:
        raise ValueError(
            f"{tasks:,} tasks that enter at {types // tasks:,} nodes each are {types:,} request "
            f"types, and {MOST_TYPES:,} are the most; give `entries` a smaller `per_task`"
        )
    if per_task is None:
        return np.tile(np.sort(places), (tasks, 1))
    if not 1 <= per_task <= len(places):
        raise ValueError(
            f"each task is to enter at {per_task} nodes, but there are {len(places)} to draw from"
        )
    rng = np.random.default_rng([seed, _ENTRIES])
    drawn = [rng.choice(len(places), per_task, replace=False) for _ in range(tasks)]
    return np.sort(places[np.array(drawn)], axis=1)
