"""Demand at a node: requests that enter, pass and are served here; what its copies can spare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from inferway.live.request import InferRequest, Outcome
from inferway.network.node import Capability, offered
from inferway.network.offers import Offer

if TYPE_CHECKING:
    from inferway.live.node.fleets import Fleets
    from inferway.live.node.plan import NodePlan


class Measured(NamedTuple):
    """A slot's counts, in rows; what is passed on for neighbors counts as one row: nobody reads it.

    Attributes
    ----------
    arrived
        By request type: what clients asked of this node, answered or not.
    reached
        By request type: that, and what neighbors sent here or through here.
    served
        By (request type, variant): what the node's own copies answered.
    """

    arrived: dict[int, float]
    reached: dict[int, float]
    served: dict[tuple[int, str], float]


class LocalDemand:
    """Counts requests by their type: the task, and the node where they entered.

    Parameters
    ----------
    node
        The node's name.
    types
        Request type by (task, entry node). What is of none is served and not counted by type.
    """

    def __init__(self, node: str, types: Mapping[tuple[str, str], int]) -> None:
        self.node = node
        self._types = types
        self.arrived = self.forwarded = self.served = self.passed = self.failed = 0
        """Rows since the start: asked by clients, of these sent on, served here for anybody, sent
        on for others, and asked by clients but not answered."""
        self.for_clients: Counter[tuple[str, str]] = Counter()
        """Rows since the start, by task and variant: served here for clients of this node."""
        self._arrived: Counter[int] = Counter()
        self._reached: Counter[int] = Counter()
        self._served: Counter[tuple[int, str]] = Counter()

    def ended(self, task: str, request: InferRequest) -> None:
        """Count a request that a site has ended."""
        exchange, rows = request.raw, request.rows
        path: bytes = b"" if exchange is None else exchange.path
        entry = unquote(path.partition(b",")[0].decode("latin-1")) if path else self.node
        kind = self._types.get((task, entry))
        own = request.outcome is Outcome.ANSWERED and request.node in ("", self.node)
        if own:
            self.served += rows
            if not path:
                self.for_clients[task, request.variant] += rows
        if not path:
            self.arrived += rows
            if request.outcome is not Outcome.ANSWERED:
                self.failed += rows
            elif not own:
                self.forwarded += rows
        if kind is None:
            return
        self._reached[kind] += rows
        if not path:
            self._arrived[kind] += rows
        if own:
            self._served[kind, request.variant] += rows

    def came(self, task: str, entry: str, here: bool, variant: str) -> None:
        """Count a request from a neighbor; as `inferway.live.node.proxy.Passed`.

        One that is to be served here is counted, by its rows, when it has `ended`.
        """
        del variant
        if here:
            return
        self.passed += 1
        kind = self._types.get((task, entry))
        if kind is not None:
            self._reached[kind] += 1

    def cut(self) -> Measured:
        """Return what has come since the last cut, and begin anew."""
        counts = (self._arrived, self._reached, self._served)
        measured = Measured(*({key: float(rows) for key, rows in one.items()} for one in counts))  # type: ignore[arg-type]
        for one in counts:
            one.clear()
        return measured


def spare_capacity(
    plan: NodePlan,
    fleets: Fleets,
    taken_per_s: Mapping[tuple[str, str], float],
    but: Container[tuple[str, str]] = (),
) -> list[Offer]:
    """List what runs at a node, as it is offered to its neighbors.

    A request's service time is that of the smallest run, alone where the file's `batch` does not
    say more; what can be spared is counted in the batches that pay most.

    Parameters
    ----------
    plan
        The node's.
    fleets
        Where the copies run.
    taken_per_s
        By task and variant, what its own clients take of them, 1/s.
    but
        Task and variant of those that are not offered.
    """
    found = []
    for (task, variant), copies in fleets.running.items():
        pool = fleets.pool(task)
        if (task, variant) in but or pool is None or variant not in pool.variants:
            continue
        k = pool.variants.index(variant)
        healthy = min(copies, sum(pool.health.healthy[pool.first[k] : pool.first[k + 1]]))
        one = Capability.of(pool.dispatcher, variant, plan.tasks[task].variants[variant].batch)
        taken = taken_per_s.get((task, variant), 0.0)
        accuracy, repository = pool.accuracy[k], plan.repository
        found.append(offered(plan.node, task, variant, accuracy, healthy, one, taken, repository))
    return found
