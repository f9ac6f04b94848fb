"""A network's own workload, sent to its nodes by one generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.access import OPEN, Access, AddressError, DriveError, server_at, signature
from inferway.loadgen.generator import SendPlan
from inferway.loadgen.message import Inputs, encode, head, inputs_of
from inferway.loadgen.network_record import NetworkRecord
from inferway.loadgen.process import carry_out
from inferway.loadgen.streams import CONNECTIONS, GRACE_S, Told, spoken

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.protocol import Signature

_ITEMS: Final = 0x17E5  # tells this use of the seed from others


def drive_network(
    deployment: Deployment,
    addresses: Mapping[str, str],
    *,
    duration_s: float,
    seed: int | None = None,
    access: Access = OPEN,
    binary: bool = True,
    connections: int = CONNECTIONS,
    grace_s: float = GRACE_S,
    with_slots: bool = False,
    progress: Told | None = None,
) -> NetworkRecord:
    """Send the workload of a file with a `network` to its nodes, each request where it enters.

    The requests are those of `inferway.network.demand.requests_of`. Tasks of a zoo get images of
    its test set, with labels; others get random tensors of their signature, as a node tells it.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    addresses
        URLs by node; nodes where nothing enters need none.
    duration_s
        How long to send, seconds.
    seed
        Of the requests and inputs; the file's if not given.
    access, binary, connections, grace_s
        As in `inferway.loadgen.replay`; the connections are those to each node.
    with_slots
        Whether to wait for the end of a slot of live nodes, so that the record's slots are theirs:
        a multiple of the slot's length on the wall clock, which theirs must agree with.
    progress
        Called with what is being done and the part of it that is done, 0..1.

    Returns
    -------
    record
        After Ctrl-C it holds what was due until then and says `interrupted`.

    Raises
    ------
    DriveError
        When nothing is due within the duration, or a node that requests enter at has no address or
        cannot be driven.
    DeploymentError
        When the file has no network, or one that cannot be used.
    """
    from inferway.network import deployed
    from inferway.network.demand import requests_of

    chosen = deployment.seed if seed is None else seed
    network, demand = deployed(deployment)
    trace = requests_of(network, replace(demand, seed=chosen), duration_s)
    if not len(trace.time_s):
        raise DriveError(f"no request is due within {duration_s:g} s: drive for longer")
    entered, place = np.unique(trace.entry, return_inverse=True)
    names = [network.nodes[node] for node in entered]
    if missing := [name for name in names if name not in addresses]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AddressError(
            f"requests enter at {missing[0]}{more}, and nothing says where that node listens: give "
            "`--addresses FILE.json`, or `address` of the node in the deployment file"
        )
    urls = [addresses[name] for name in names]
    # Of each kind of task, its signature and the inputs that are sent.
    kinds = tuple(deployment.tasks)
    counts = [one.count for one in deployment.tasks.values()]
    kind_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[trace.task]
    rng = np.random.default_rng([chosen, _ITEMS])
    item, body = np.empty(len(kind_of), np.int32), np.empty(len(kind_of), np.int64)
    bodies: list[bytes] = []
    inputs: dict[int, Inputs] = {}
    for kind in np.unique(kind_of).tolist():
        rows = np.flatnonzero(kind_of == kind)
        places, first = np.unique(place[rows], return_index=True)
        asked = _signature(
            [urls[one] for one in places],
            [network.tasks[one] for one in trace.task[rows[first]]],
            access,
        )
        tests = inputs_of(deployment.tasks[kinds[kind]], asked, chosen)
        inputs[kind], item[rows] = tests.drawn(rng, len(rows))
        body[rows] = len(bodies) + item[rows]
        bodies += encode(kinds[kind], asked, inputs[kind].images, binary=binary)
    servers = [server_at(url) for url in urls]
    # A head for each pair of a server and a task.
    pair, head_of = np.unique(place * len(network.tasks) + trace.task, return_inverse=True)
    target, task = (part.tolist() for part in np.divmod(pair, len(network.tasks)))
    plan = SendPlan(
        addresses=servers,
        heads=[head(servers[s], network.tasks[k]) for s, k in zip(target, task, strict=True)],
        target=target,
        bodies=bodies,
        due_s=trace.time_s,
        head=head_of.astype(np.int64),
        body=body,
        connections=connections,
        grace_s=grace_s,
        every_s=network.slot_s if with_slots else 0.0,
    )
    outcome = carry_out(plan, access, spoken(progress))
    count, said = len(outcome), outcome.columns["said"]
    label = np.full(count, -1, np.int32)
    for kind, one in inputs.items():
        if one.labels is not None:
            rows = np.flatnonzero(kind_of[:count] == kind)
            label[rows] = one.labels[item[rows]]
    nodes, node = _indexed(outcome.nodes, said, network.nodes)
    paths, path = _indexed(outcome.paths, said)
    degradations, degraded = _indexed(outcome.degradations, said)
    return NetworkRecord(
        task="" if len(inputs) > 1 else kinds[next(iter(inputs))],
        intended_s=trace.time_s[:count],
        item=item[:count],
        label=label,
        **outcome.of_record(slice(None)),
        slot_s=network.slot_s,
        kinds=kinds,
        kind=kind_of[:count],
        tasks=network.tasks,
        asked=trace.task[:count],
        type=trace.type[:count],
        nodes=nodes,
        entry=trace.entry[:count],
        node=node,
        paths=paths,
        path=path,
        degradations=degradations,
        degraded=degraded,
        began_s=outcome.began_s,
    )


def _signature(urls: list[str], tasks: list[str], access: Access) -> Signature:
    """Ask each server for its task, all of one kind: all must say the same."""
    first, *others = (
        signature(url, task, access=access) for url, task in zip(urls, tasks, strict=True)
    )
    for url, task, other in zip(urls[1:], tasks[1:], others, strict=True):
        if other != first:
            raise DriveError(
                f"{urls[0]} and {url} disagree on what the task {task!r} takes: {first.inputs} "
                f"and {other.inputs}"
            )
    return first


def _indexed(
    said: tuple[str, ...], by: NDArray[np.int32], names: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Number what answers said, after `names`; -1 where they said nothing.

    `said` are the distinct headers, empty where there was none, and `by` says which of them each
    request's answer had, -1 without an answer.
    """
    index = {name: k for k, name in enumerate(names)}
    number = [index.setdefault(one, len(index)) if one else -1 for one in said]
    return tuple(index), np.array([*number, -1], np.int32)[by]
