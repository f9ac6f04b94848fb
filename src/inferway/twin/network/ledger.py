"""Sums of a run of the event twin, slot by slot."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np

from inferway.placement.contract import Float
from inferway.placement.crossing import NodeData, data_of
from inferway.placement.local import loads_of, variants_of
from inferway.twin.network.pools import NetworkRequest
from inferway.twin.network.result import EventResult
from inferway.twin.network.terrain import Terrain
from inferway.twin.slots import SlotSums


class Quantiles:
    """A histogram of times whose bins are 0.5 % wide: percentiles of any number of them."""

    _LEAST_S, _WIDTH = 1e-6, np.log(1.005)

    def __init__(self) -> None:
        self._count = np.zeros(1, np.int64)

    def add(self, times_s: Float) -> None:
        """Take in times, s."""
        place = np.log(np.maximum(times_s, self._LEAST_S) / self._LEAST_S) / self._WIDTH
        count = np.bincount(place.astype(np.int64))
        if len(count) > len(self._count):
            count, self._count = self._count, count
        self._count[: len(count)] += count

    def at(self, share: float) -> float:
        """The time that so large a share stays below, s; nan where there is none."""
        total = int(self._count.sum())
        if not total:
            return float("nan")
        place = int(np.searchsorted(np.cumsum(self._count), share * total, side="left"))
        return float(self._LEAST_S * np.exp((place + 0.5) * self._WIDTH))


class Ledger(SlotSums):
    """Sums of a run.

    Parameters
    ----------
    terrain
        What ran.
    slots
        How many at most.
    alpha
        Milliseconds that a point of inaccuracy is worth (eq. 6).
    """

    def __init__(self, terrain: Terrain, slots: int, alpha: float) -> None:
        network = terrain.network
        super().__init__(network, slots)
        self._terrain = terrain
        self._alone = np.zeros((slots, len(network.requests.task)))
        self._own_ms = [100.0 * alpha * (1.0 - model.accuracy) for model in terrain.models]
        self._entry = [
            int(network.paths.node[network.paths.first[path]]) for path in network.requests.path
        ]
        self._data: list[NodeData] = data_of(network)
        self._variants = [variants_of(network, v) for v in range(len(network.nodes))]
        self._now: dict[tuple[int, int], list[float]] = {}
        self._total: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._times = array("d")
        self._quantiles = Quantiles()
        self._load: Float = np.zeros(len(network.options.pair))
        self.gain = [0.0] * slots
        self.time_s = [0.0] * slots
        self.done = [0] * slots
        self.lost_in = [0] * slots
        self.entered = self.answered = self.lost = self.late = self.retried = 0
        self.sojourn_s = 0.0
        self.area = 0.0
        self.until_s = 0.0
        self.in_system = 0
        self.slot = 0

    def begin(self, slot: int, alone_ms: Float, present: Float) -> None:
        """Begin a slot: (R,) what repositories alone cost per request, (P,) which copies run."""
        self.slot = slot
        self._alone[slot] = alone_ms
        self._row = alone_ms.tolist()
        self.hold(present)

    def fetched(self, p: int) -> None:
        """A pair's copy begins to load."""
        self.fetch(self.slot, [p])

    def answer(self, request: NetworkRequest, model: int, now_s: float) -> None:
        """A request has its answer."""
        time_s = now_s - request.entered_s
        slot = request.slot
        self.answered += 1
        self.sojourn_s += time_s
        self._times.append(time_s)
        self.time_s[slot] += time_s
        self.done[slot] += 1
        kind = request.kind
        key = (kind, model)
        found = self._now.get(key)
        if found is None:
            self._now[key] = [1.0, time_s]
        else:
            found[0] += 1.0
            found[1] += time_s
        alone = self._row[kind] if slot == self.slot else self._alone[slot, kind]
        self.gain[slot] += alone - 1000.0 * time_s - self._own_ms[model]
        if now_s > request.deadline_s:
            self.late += 1

    def lose(self, request: NetworkRequest, now_s: float) -> None:
        """A request gets none."""
        self.lost += 1
        self.sojourn_s += now_s - request.entered_s
        self.lost_in[request.slot] += 1

    def close(self, running: list[set[int]]) -> Float:
        """End a slot.

        Returns
        -------
        load
            (O,) requests that each option served in it, by the answers that came.
        """
        network, models = self._terrain.network, self._terrain.models
        served: list[dict[tuple[int, str], float]] = [{} for _ in network.nodes]
        for (kind, i), (count, time_s) in self._now.items():
            model = models[i]
            key = (kind, model.variant)
            served[model.node][key] = served[model.node].get(key, 0.0) + count
            total = self._total[kind, i]
            total[0] += count
            total[1] += time_s
            alone = self._alone[self.slot, kind]
            self.saved[kind] += count * (alone - self._own_ms[i]) - 1000.0 * time_s
        self._now.clear()
        self._quantiles.add(np.frombuffer(self._times))
        self._times = array("d")
        load = np.zeros(len(network.options.pair))
        for v, counts in enumerate(served):
            if not counts:
                continue
            start, end = network.pairs.first[v : v + 2]
            here = np.zeros(end - start, np.uint8)
            here[[p - start for p in running[v]]] = 1
            loads = loads_of(self._data[v], self._variants[v], counts, here)
            for kind, row in loads.items():
                load[self._data[v].crossings[kind].option] += row
        self._load += load
        return load

    def result(
        self, name: str, slots: int, fractional: Float | None, *, cpu_s: float, **more: object
    ) -> EventResult:
        """Sum up the first `slots` slots."""
        self.close([set() for _ in self._terrain.nodes])
        network = self._terrain.network
        requests, gain = self.requests[:slots], np.array(self.gain[:slots])
        busy = requests > 0
        done = max(self.answered, 1) if self.answered else np.nan
        tiers, tasks, away = self._sums()
        whole = tasks.sum(axis=0)
        count = np.array(self.done[:slots], float)
        latency_in = np.array(self.time_s[:slots]) / np.where(count > 0, count, np.nan)
        return EventResult(
            policy=name,
            slots=slots,
            slot_s=network.slot_s,
            ntag_ms=float((gain[busy] / requests[busy]).sum() / slots),
            mu_bytes_per_slot=float(self.moved[:slots].sum() / slots),
            latency_s=float(whole[1]) / done,
            inaccuracy=float(whole[2]) / done,
            cpu_s_per_slot=self.cpu_s_per_slot(slots),
            tiers=self.tiers(tiers, slots),
            tasks=self.tasks(tasks, slots),
            requests=requests,
            gain=gain,
            moved=self.moved[:slots],
            network=network,
            served=self._load,
            presence=self.present / slots,
            fractional=fractional,
            p50_s=self._quantiles.at(0.5),
            p95_s=self._quantiles.at(0.95),
            p99_s=self._quantiles.at(0.99),
            accuracy=1.0 - float(whole[2]) / done,
            answered=self.answered,
            lost=self.lost,
            late=self.late,
            retried=self.retried,
            forwarded=away / done,
            variants=self._shares(done),
            in_system=self.area / max(self.until_s, 1e-300),
            flow=self.sojourn_s / max(self.until_s, 1e-300),
            lost_in=np.array(self.lost_in[:slots], float),
            latency_in=latency_in,
            requests_per_cpu_s=self.entered / cpu_s if cpu_s > 0 else float("nan"),
            **more,  # type: ignore[arg-type]
        )

    def _sums(self) -> tuple[Float, Float, float]:
        """(K, 3) and (N, 3) answers, seconds and inaccuracy by tier and task; answers from afar."""
        network, models = self._terrain.network, self._terrain.models
        tiers, tasks = np.zeros((len(network.tiers), 3)), np.zeros((len(network.tasks), 3))
        away = 0.0
        for (kind, i), (count, time_s) in self._total.items():
            model = models[i]
            row = np.array([count, time_s, count * (1.0 - model.accuracy)])
            tiers[network.tier[model.node]] += row
            tasks[model.task] += row
            if self._entry[kind] != model.node:
                away += count
        return tiers, tasks, away

    def _shares(self, done: float) -> dict[str, dict[str, float]]:
        terrain = self._terrain
        network = terrain.network
        by_name = len(network.tiers) == 1
        found: dict[str, dict[str, float]] = {}
        for (_, i), (count, _) in sorted(self._total.items()):
            model = terrain.models[i]
            where = (
                network.nodes[model.node] if by_name else network.tiers[network.tier[model.node]]
            )
            row = found.setdefault(f"{terrain.kinds[model.task].name}/{model.variant}", {})
            row[where] = row.get(where, 0.0) + count / done
        return found
