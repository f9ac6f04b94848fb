"""Many sites side by side, as the kernels of slotted control share them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.learning.arrivals import Flow
from inferway.site.view import Floats, Ints
from inferway.twin.kernel.service_times import Laws


class Servers(NamedTuple):
    """Requests at n servers of each site; C places each, a power of two above the capacity.

    Integers are unsigned: an index that may be negative costs a comparison at every use.
    """

    # (E, n) uint32: requests, those in service included; between slots, where `Terms.eager`
    queue: np.ndarray
    tail: np.ndarray  # (E, n) uint32: requests accepted so far; modulo C, the place of the next
    # (E, n) uint32: requests in service, 0 where the server waits for more; unless eager
    taken: np.ndarray
    started_s: Floats  # (E, n) when the service began; between slots, where eager
    free_s: Floats  # (E, n) when it ends; unless eager
    arrived_s: Floats  # (E, n, C) by place: when a request came,
    ends_s: Floats  # (E, n, C) where eager, when its service ends,
    phase: np.ndarray  # (E, n, C) uint8: and the workload's phase when it came


class Routed(NamedTuple):
    """Routing and batch rules of the slot."""

    threshold: Floats  # (E, n) alias tables
    other: np.ndarray  # (E, n) uint32
    smallest: Ints  # (E, K) batches that are waited for
    largest: Ints  # (E, K) batches that are not exceeded


class PhaseCounts(NamedTuple):
    """Counts by the phase in which a request arrived, since they were last cleared."""

    arrived: Ints  # (E, m)
    rejected: Ints  # (E, m)
    dropped: Ints  # (E, m)
    sent: Ints  # (E, m, K) accepted and not dropped
    answered: Ints  # (E, m, K, 2) answered in time and late
    # (E, m, K) batches begun, by the workload's phase when the next request came there
    batches: Ints


class Outcomes(NamedTuple):
    """Outcomes of the last slot's requests."""

    arrived: Ints  # (E,)
    rejected: Ints  # (E,) or dropped
    late: Ints  # (E,)
    timely: Ints  # (E, K)


class Terms(NamedTuple):
    """Terms that are the same at all sites."""

    server_class: np.ndarray  # (n,) uint32
    capacity: int  # Places at a server, the one in service included
    deadline_s: float
    drops: bool  # A request is dropped that would start after its deadline
    eager: bool  # A request's times are known as soon as it comes: one at a time, none dropped
    worth: Floats  # (K, 2) reward of an answer in time, beta g of eq. 2, and of a late one
    loss: float  # Cost of a rejected or dropped request, alpha of eq. 2
    # (K,) longest service time, by which the time served is divided in observations
    service_s: Floats
    age_s: float  # By which ages are divided
    sees_phase: bool
    batches: bool  # Observations say the sizes of the batches in service


class SiteArrays(NamedTuple):
    """Everything that the kernels share."""

    servers: Servers
    flow: Flow
    routed: Routed
    counted: PhaseCounts
    outcomes: Outcomes
    terms: Terms
    laws: Laws
    clock_s: Floats  # (E,)
    reward: Floats  # (E,) of the last slot, eq. 2
    observation: np.ndarray  # (E, d) float32
    states: np.ndarray  # (E, 3) streams: of decisions, of service times, of arrivals
