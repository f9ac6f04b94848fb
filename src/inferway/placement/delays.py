"""Delays as a node measures them: of the links to its neighbors, and of its own copies.

Costs of [SiSalem23] may change with time (footnote 4), and so do the delays of eq. 5 that they are
made of: a link becomes slow, a machine has other work, requests queue. Each node measures what is
its own, and nobody needs to know more: the round trip of the link to the next node of a path, and
of each variant that runs on it the service time and the wait. Before anything is measured, the
file's delays count.

Costs in letters are those of a request type from its entry on. A node knows the links behind it and
not those before it, so it says costs as if these took what the file says: all costs of a type that
it hears or says are then too low or too high by one and the same number, which changes no decision
about the type. Whoever reads what stands further up, or writes to there, takes the difference of
the link between into account (`MeasuredDelays.link_ms`).

How long requests wait follows from how busy the copies of a variant are, so that a wait is no
property of a copy as its service time is: where one is added, it is gone. So waits are no delays.
With prices of waiting (`inferway.placement.waiting`) the number that waits is held against the
number that the formula foresees, and prices are as much higher or lower. As ``sojourns``, waits are
delays of eq. 5 all the same, as long as they are measured; they fade where nothing is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from pydantic import Field

from inferway.deployment.policies import WAITS_TWICE
from inferway.placement.contract import Allocation, Float
from inferway.placement.layout import NodeData
from inferway.placement.waiting import MANY, queued

# Mean number that waits, both measured and foreseen, that a node's measurements begin with.
_PRIOR: Final = 0.2
# Least and most that prices of waiting are changed by.
_LEAST_SCALE, _MOST_SCALE = 0.1, 10.0
# A slot's mean counts half where it is of many requests, less where it is of no more than so many.
_FEW: Final = 10.0
_BUSIEST: Final = 0.98  # Beyond it the formula's queues are as long as one likes
_SAVED: Final = "delays"

Delays = Literal["file", "measured", "sojourns"]
# Of the option of policies whose nodes measure.
DELAYS: Final = Field(
    description="Whether costs are made of the file's round trips and service times, of those that "
    "nodes measure, or of these and the waits that they measure."
)


class Sojourns(NamedTuple):
    """What requests took at a node's copies of a variant in a slot, summed over them.

    `busy_s` is the time that runs took, where requests that were run together count once.
    """

    requests: float = 0.0
    service_s: float = 0.0
    wait_s: float = 0.0
    busy_s: float = 0.0


class Measured(NamedTuple):
    """What a node measured in a slot.

    Attributes
    ----------
    lasted_s
        Length of the slot, s.
    sojourns
        By task, as a number, and variant.
    links_s
        Round trips to neighbors further up, by their numbers, s; those that are known.
    """

    lasted_s: float
    sojourns: Mapping[tuple[int, str], Sojourns]
    links_s: Mapping[int, float]


def check_delays(delays: str, *, waiting: bool) -> None:
    """Raise ValueError for delays that there are not, or not where waiting has a price."""
    kinds = get_args(Delays)
    if delays not in kinds:
        raise ValueError(f"delays are {', '.join(kinds[:-1])} or {kinds[-1]}, not {delays!r}")
    if waiting and delays == "sojourns":
        raise ValueError(WAITS_TWICE)


@runtime_checkable
class Measuring(Protocol):
    """A policy for a whole network whose nodes measure delays."""

    def measure(self, measured: Sequence[Measured]) -> None:
        """Take in what each node measured in the slot that has ended, before its `step`."""


class MeasuredDelays:
    """A node's delays as measured so far.

    Parameters
    ----------
    data
        The node's part of the network.
    waits
        Whether the waits that are measured count as delays.
    """

    def __init__(self, data: NodeData, *, waits: bool) -> None:
        layout = data.layout
        names = list(zip(layout.task[layout.model].tolist(), data.variants, strict=True))
        self.names: list[tuple[int, str]] = list(dict.fromkeys(names))
        number = {name: k for k, name in enumerate(self.names)}
        self._of = np.array([number[name] for name in names], np.int64)
        self.file_s: Float = np.zeros(len(self.names))
        self.file_s[self._of] = data.delay_s
        self._pinned, self._waits = np.ceil(layout.pinned), waits
        # (k,) means of each variant of a task, s; 0 where nothing was measured.
        self.service_s, self.wait_s = np.zeros((2, len(self.names)))
        self._file_links_s = dict(data.links_s)
        self._links_s: dict[int, float] = {}
        self._queued = self._foreseen = 0.0  # Mean numbers that wait at the node

    @property
    def scale(self) -> float:
        """How many times as long requests wait as foreseen."""
        found = (self._queued + _PRIOR) / (self._foreseen + _PRIOR)
        return min(max(found, _LEAST_SCALE), _MOST_SCALE)

    def take(self, measured: Measured, x: Allocation) -> None:
        """Take in a slot, in which (p,) copies ran here."""
        copies = np.bincount(
            self._of, np.maximum(x.astype(float), self._pinned), minlength=len(self.names)
        )
        waiting = foreseen = 0.0
        for k, name in enumerate(self.names):
            one = measured.sojourns.get(name)
            if one is None or one.requests <= 0.0:
                self.wait_s[k] *= 0.5
                continue
            weight = 0.5 * one.requests / (one.requests + _FEW)
            for means, total in ((self.service_s, one.service_s), (self.wait_s, one.wait_s)):
                mean = total / one.requests
                first = self.service_s[k] == 0.0 if means is self.service_s else False
                means[k] += (1.0 if first else weight) * (mean - means[k])
            running = min(max(int(copies[k]), 1), MANY)
            busy = one.busy_s / (running * measured.lasted_s)
            waiting += one.wait_s / measured.lasted_s
            foreseen += queued(min(busy, _BUSIEST), running)
        self._queued += 0.5 * (waiting - self._queued)
        self._foreseen += 0.5 * (foreseen - self._foreseen)
        for neighbor in self._file_links_s.keys() & measured.links_s.keys():
            self._links_s[neighbor] = measured.links_s[neighbor]

    def own_ms(self, *, waits: bool = True) -> Float:
        """(p,) what requests take longer at the node's pairs than the file says, ms.

        A variant that was not measured is taken to be as much slower than its profile as the others
        are in the median.
        """
        known = (self.service_s > 0.0) & (self.file_s > 0.0)
        slower = np.median(self.service_s[known] / self.file_s[known]) if known.any() else 1.0
        delay_s = np.where(known, self.service_s, slower * self.file_s)
        if waits and self._waits:
            delay_s = delay_s + self.wait_s
        return np.asarray(1000.0 * (delay_s - self.file_s)[self._of])

    def link_ms(self, neighbor: int | None) -> float:
        """Tell how much longer the link to a neighbor further up takes than the file says, ms."""
        if neighbor is None or neighbor not in self._links_s:
            return 0.0
        return 1000.0 * (self._links_s[neighbor] - self._file_links_s[neighbor])

    @property
    def links(self) -> list[tuple[int, float, float | None]]:
        """Neighbors further up, and the round trips there by the file and as measured, s."""
        return [
            (neighbor, file_s, self._links_s.get(neighbor))
            for neighbor, file_s in sorted(self._file_links_s.items())
        ]

    @property
    def saved(self) -> tuple[str, Float]:
        """What is known, as counters are saved: what each number is of, and the numbers."""
        links = [self._links_s.get(one, 0.0) for one in sorted(self._file_links_s)]
        numbers = [self.service_s, self.wait_s, [self._queued, self._foreseen], links]
        values = np.concatenate([np.asarray(one, np.float64) for one in numbers])
        # In the form of counters that belong to no type: whoever counts leaves them out.
        return json.dumps([_SAVED, [["", [], list(range(len(values)))]]]), values

    def restore(self, of: str, values: Float) -> None:
        """Go on from what was `saved`; what is something else is left out.

        Raises
        ------
        ValueError
            For numbers that are no delays.
        """
        if of != self.saved[0]:
            return
        if not np.all((values >= 0.0) & (values < math.inf)):
            raise ValueError("a delay was saved that is below 0 or no number")
        k = len(self.names)
        self.service_s[:], self.wait_s[:] = values[:k], values[k : 2 * k]
        self._queued, self._foreseen = values[2 * k : 2 * k + 2].tolist()
        links = zip(sorted(self._file_links_s), values[2 * k + 2 :].tolist(), strict=True)
        self._links_s = {neighbor: rtt_s for neighbor, rtt_s in links if rtt_s > 0.0}
