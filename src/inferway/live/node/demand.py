"""Demand at a node: requests that enter, pass and are served here; what its copies can spare."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from inferway.live.request import InferRequest, Outcome
from inferway.network.node import Capability, offered
from inferway.network.offers import Offer

if TYPE_CHECKING:
    from inferway.live.node.fleets import Fleets
    from inferway.live.node.plan import NodePlan


# Rows since the start: asked by clients, of these sent on, served here for anybody, sent on for
# others, and asked by clients but not answered.
COUNTED: Final = ("arrived", "forwarded", "served", "passed", "failed")


class LocalDemand:
    """Counts requests by their type: the task, and the node where they entered.

    `types` has the request type by (task, entry node); what is of none is served and not counted by
    type. The attributes of `COUNTED` are rows since the start, and `for_clients` those by task and
    variant that were served here for clients of this node.
    """

    def __init__(self, node: str, types: Mapping[tuple[str, str], int]) -> None:
        self.node, self._types = node, types
        self.arrived = self.forwarded = self.served = self.passed = self.failed = 0
        self.for_clients: Counter[tuple[str, str]] = Counter()
        self._arrived: dict[int, float] = defaultdict(float)
        self._reached: dict[int, float] = defaultdict(float)
        self._served: dict[tuple[int, str], float] = defaultdict(float)

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

    def came(self, task: str, entry: str, here: bool, _variant: str) -> None:
        """Count a request from a neighbor; as `inferway.live.node.proxy.Passed`.

        One that is to be served here is counted, by its rows, when it has `ended`. Nobody reads
        those of one that is passed on.
        """
        if here:
            return
        self.passed += 1
        kind = self._types.get((task, entry))
        if kind is not None:
            self._reached[kind] += 1

    def cut(self) -> tuple[dict[int, float], dict[int, float], dict[tuple[int, str], float]]:
        """Return what has come since the last cut, in rows, and begin anew.

        Returns
        -------
        arrived
            By request type: what clients asked of this node, answered or not.
        reached
            By request type: that, and what neighbors sent here or through here.
        served
            By (request type, variant): what the node's own copies answered.
        """
        counted = dict(self._arrived), dict(self._reached), dict(self._served)
        for one in (self._arrived, self._reached, self._served):
            one.clear()
        return counted


def spare_capacity(
    plan: NodePlan,
    fleets: Fleets,
    taken_per_s: Mapping[tuple[str, str], float],
    but: Container[tuple[str, str]] = (),
) -> list[Offer]:
    """List what runs at a node, as it is offered to its neighbors.

    A request's service time is that of the smallest run, alone where the file's `batch` does not
    say more; what can be spared is counted in the batches that pay most, less what the node's own
    clients take, 1/s by task and variant. Those of `but` are not offered.
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
