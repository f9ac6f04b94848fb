"""A network's own workload, sent to its nodes by one generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.access import OPEN, Access, DriveError
from inferway.loadgen.addresses import known, server_at
from inferway.loadgen.message import Inputs, encode, head, inputs_of
from inferway.loadgen.metadata import signature
from inferway.loadgen.network_record import NetworkRecord
from inferway.loadgen.plan import SendOutcome, SendPlan
from inferway.loadgen.process import CONNECTIONS, GRACE_S, Told, carry_out, spoken

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.network import DeliveryNetwork
    from inferway.network.arrivals import Trace
    from inferway.protocol import Signature

_ITEMS: Final = 0x17E5  # tells this use of the seed from others

Index = NDArray[np.int64]


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

    The requests are those of `inferway.network.arrivals.trace_of`. Tasks of a zoo get images of its
    test set, with labels; others get random tensors of their signature, as a node tells it.

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
    from inferway.network.arrivals import requests_of

    chosen = deployment.seed if seed is None else seed
    network, demand = deployed(deployment)
    trace = requests_of(network, replace(demand, seed=chosen), duration_s)
    if not len(trace.time_s):
        raise DriveError(f"no request is due within {duration_s:g} s: drive for longer")
    if connections < 1:
        raise DriveError(f"connections is {connections}: at least one is needed to send anything")
    return _Load(deployment, network, trace, addresses, access, chosen).sent(
        binary=binary,
        connections=connections,
        grace_s=grace_s,
        every_s=network.slot_s if with_slots else 0.0,
        progress=progress,
    )


class _Load:
    """A trace with its inputs and the servers that it goes to."""

    def __init__(
        self,
        deployment: Deployment,
        network: DeliveryNetwork,
        trace: Trace,
        addresses: Mapping[str, str],
        access: Access,
        seed: int,
    ) -> None:
        self.network = network
        self.trace = trace
        self.access = access
        self.kinds = tuple(deployment.tasks)
        counts = [one.count for one in deployment.tasks.values()]
        self.kind = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[trace.task]
        entered, self.place = np.unique(trace.entry, return_inverse=True)
        self.urls = known(addresses, [network.nodes[node] for node in entered])
        self.signatures: dict[int, Signature] = {}
        self.inputs: dict[int, Inputs] = {}
        self.item = np.empty(len(self.kind), np.int32)
        rng = np.random.default_rng([seed, _ITEMS])
        for kind in np.unique(self.kind).tolist():
            rows = np.flatnonzero(self.kind == kind)
            self.signatures[kind] = self._signature(rows)
            task = deployment.tasks[self.kinds[kind]]
            inputs = inputs_of(task, self.signatures[kind], seed)
            drawn = rng.integers(0, len(inputs.images), len(rows))
            used, self.item[rows] = np.unique(drawn, return_inverse=True)
            self.inputs[kind] = inputs.only(used)

    def sent(
        self,
        *,
        binary: bool,
        connections: int,
        grace_s: float,
        every_s: float,
        progress: Told | None,
    ) -> NetworkRecord:
        """Send it; see `drive_network`."""
        trace, names = self.trace, self.network.tasks
        servers = [server_at(url) for url in self.urls]
        bodies: list[bytes] = []
        first = np.zeros(len(self.kinds), np.int64)
        for kind, inputs in self.inputs.items():
            first[kind] = len(bodies)
            asked = self.signatures[kind]
            bodies += encode(self.kinds[kind], asked, inputs.images, binary=binary)
        # A head for each pair of a server and a task.
        pair, head_of = np.unique(self.place * len(names) + trace.task, return_inverse=True)
        target, task = np.divmod(pair, len(names))
        plan = SendPlan(
            addresses=servers,
            heads=[
                head(servers[s], names[k])
                for s, k in zip(target.tolist(), task.tolist(), strict=True)
            ],
            target=target.tolist(),
            bodies=bodies,
            due_s=trace.time_s,
            head=head_of.astype(np.int64),
            body=first[self.kind] + self.item,
            connections=connections,
            grace_s=grace_s,
            every_s=every_s,
        )
        return self._record(carry_out(plan, self.access, spoken(progress)))

    def _signature(self, rows: Index) -> Signature:
        """Ask each node that requests enter at for a task of one kind; all must say the same."""
        places, first = np.unique(self.place[rows], return_index=True)
        asked: Signature | None = None
        for place, task in zip(places, self.trace.task[rows[first]], strict=True):
            told = signature(self.urls[place], self.network.tasks[task], access=self.access)
            if asked is not None and told != asked:
                raise DriveError(
                    f"{self.urls[places[0]]} and {self.urls[place]} disagree on what the task "
                    f"{self.network.tasks[task]!r} takes: {asked.inputs} and {told.inputs}"
                )
            asked = told
        assert asked is not None  # a kind is asked about where it has requests
        return asked

    def _record(self, outcome: SendOutcome) -> NetworkRecord:
        count = len(outcome)
        trace, item = self.trace, self.item[:count]
        label = np.full(count, -1, np.int32)
        for kind, inputs in self.inputs.items():
            if inputs.labels is not None:
                rows = np.flatnonzero(self.kind[:count] == kind)
                label[rows] = inputs.labels[item[rows]]
        nodes, node = _indexed(outcome.nodes, outcome.said, self.network.nodes)
        paths, path = _indexed(outcome.paths, outcome.said)
        degradations, degraded = _indexed(outcome.degradations, outcome.said)
        return NetworkRecord(
            task="" if len(self.inputs) > 1 else self.kinds[next(iter(self.inputs))],
            intended_s=trace.time_s[:count],
            item=item,
            label=label,
            **outcome.columns(slice(None)),
            slot_s=self.network.slot_s,
            kinds=self.kinds,
            kind=self.kind[:count],
            tasks=self.network.tasks,
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


def _indexed(
    said: tuple[str, ...], by: NDArray[np.int32], names: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Number what answers said, after `names`; -1 where they said nothing.

    Parameters
    ----------
    said
        Distinct headers, empty where there was none.
    by
        Which of them each request's answer had; -1 without an answer.
    names
        Names that come first, whether said or not.
    """
    index = {name: k for k, name in enumerate(names)}
    number = [index.setdefault(one, len(index)) if one else -1 for one in said]
    return tuple(index), np.array([*number, -1], np.int32)[by]
