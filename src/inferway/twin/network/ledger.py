"""Sums of a run of the event twin, slot by slot."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from inferway.placement.contract import Float
from inferway.placement.layout import data_of
from inferway.placement.local import loads_of
from inferway.twin.network.nodes import NetworkRequest, Terrain
from inferway.twin.result import Escalated, EventResult
from inferway.twin.slots import SlotSums

_LEAST_S, _WIDTH = 1e-6, np.log(1.005)  # The first bin of times, and how wide a bin is


def binned(times_s: Float) -> NDArray[np.int64]:
    """Count times by bin, each half a percent wide."""
    place = np.log(np.maximum(times_s, _LEAST_S) / _LEAST_S) / _WIDTH
    return np.bincount(place.astype(np.int64))


def percentile(counts: NDArray[np.int64], share: float) -> float:
    """The time that so large a share of what is binned stays below, s; nan where there is none."""
    total = int(counts.sum())
    if not total:
        return float("nan")
    first = int(np.searchsorted(np.cumsum(counts), share * total, side="left"))
    return float(_LEAST_S * np.exp((first + 0.5) * _WIDTH))


class Ledger(SlotSums):
    """Sums of a run of so many slots at most; a point of inaccuracy is worth `alpha` ms (eq. 6)."""

    def __init__(self, terrain: Terrain, slots: int, alpha: float) -> None:
        network = terrain.network
        super().__init__(network, slots)
        self._terrain = terrain
        self._alone = np.zeros((slots, len(network.requests.task)))
        self._point_ms, self._accuracy = 100.0 * alpha, [one.accuracy for one in terrain.models]
        self._own_ms = [100.0 * alpha * (1.0 - model.accuracy) for model in terrain.models]
        self._data = data_of(network)
        # By request type and model, in this slot and in all: answers, their times, and by how much
        # they are expected to be more accurate, or less, than the model is.
        self._now: dict[tuple[int, int], list[float]] = {}
        self._total: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        # Times of the answers of this slot; those of the slots before it are only counted.
        self._times, self._binned = array("d"), np.zeros(0, np.int64)
        self._load: Float = np.zeros(len(network.options.pair))
        self.gain, self.time_s = [0.0] * slots, [0.0] * slots
        self.done, self.lost_in = [0] * slots, [0] * slots
        # Runs whose answers were not sent, and answers of a second model after a first one.
        self.unsent, self._again = 0, Counter[tuple[int, int]]()
        self.entered = self.answered = self.lost = self.late = self.retried = self.slot = 0
        self.sojourn_s = self.area = self.until_s = 0.0

    def begin(self, slot: int, alone_ms: Float, running: list[set[int]]) -> None:
        """Begin a slot: (R,) what repositories alone cost per request, by node which copies run."""
        self.slot = slot
        self._alone[slot] = alone_ms
        self._row = alone_ms.tolist()
        present = np.zeros(len(self.present))
        present[[p for pairs in running for p in pairs]] = 1.0
        self.hold(present)

    def ask_again(self, first: int, second: int) -> None:
        """The answer of a second model is sent, and that of the first one is not."""
        self.unsent += 1
        self._again[first, second] += 1

    def answer(
        self, request: NetworkRequest, model: int, now_s: float, earned: float | None = None
    ) -> None:
        """A request has its answer, which is expected to be as accurate as `earned`, or its model
        is.
        """
        more = 0.0 if earned is None else earned - self._accuracy[model]
        time_s = now_s - request.entered_s
        slot, kind = request.slot, request.kind
        self.answered += 1
        self.sojourn_s += time_s
        self._times.append(time_s)
        self.time_s[slot] += time_s
        self.done[slot] += 1
        found = self._now.get((kind, model))
        if found is None:
            self._now[kind, model] = [1.0, time_s, more]
        else:
            found[0] += 1.0
            found[1] += time_s
            found[2] += more
        alone = self._row[kind] if slot == self.slot else self._alone[slot, kind]
        own_ms = self._own_ms[model] - self._point_ms * more
        self.gain[slot] += alone - 1000.0 * time_s - own_ms
        if now_s > request.deadline_s:
            self.late += 1

    def lose(self, request: NetworkRequest, now_s: float) -> None:
        """A request gets none."""
        self.lost += 1
        self.sojourn_s += now_s - request.entered_s
        self.lost_in[request.slot] += 1

    def close(self, running: list[set[int]]) -> Float:
        """End a slot; (O,) requests that each option served in it, by the answers that came."""
        network, models = self.network, self._terrain.models
        served = [Counter[tuple[int, str]]() for _ in network.nodes]
        for (kind, i), (count, time_s, more) in self._now.items():
            served[models[i].node][kind, models[i].variant] += count  # type: ignore[assignment]
            total = self._total[kind, i]
            total[0] += count
            total[1] += time_s
            total[2] += more
            alone = self._alone[self.slot, kind]
            own_ms = count * self._own_ms[i] - self._point_ms * more
            self.saved[kind] += count * alone - own_ms - 1000.0 * time_s
        self._now.clear()
        now = binned(np.frombuffer(self._times))
        both = np.zeros(max(len(now), len(self._binned)), np.int64)
        both[: len(now)] = now
        both[: len(self._binned)] += self._binned
        self._times, self._binned = array("d"), both
        load = np.zeros(len(network.options.pair))
        for v, counts in enumerate(served):
            if not counts:
                continue
            start, end = network.pairs.first[v : v + 2]
            here = np.zeros(end - start, np.uint8)
            here[[p - start for p in running[v]]] = 1
            loads = loads_of(self._data[v], counts, here)
            for kind, row in loads.items():
                load[self._data[v].crossings[kind].option] += row
        self._load += load
        return load

    def summed(
        self, name: str, slots: int, fractional: Float | None, *, cpu_s: float, **more: object
    ) -> EventResult:
        """Sum up the first `slots` slots."""
        network, terrain = self.network, self._terrain
        self.close([set() for _ in network.nodes])
        tiers, tasks = np.zeros((len(network.tiers), 3)), np.zeros((len(network.tasks), 3))
        away = 0.0
        for (kind, i), (count, time_s, extra) in self._total.items():
            model = terrain.models[i]
            row = np.array([count, time_s, count * (1.0 - model.accuracy) - extra])
            tiers[network.tier[model.node]] += row
            tasks[model.task] += row
            away += count * (terrain.entry[kind][0] != model.node)
        done = self.answered or np.nan
        shares: dict[str, dict[str, float]] = {}
        places = network.nodes if len(network.tiers) == 1 else network.tiers
        where = range(len(places)) if places is network.nodes else network.tier
        for (_, i), (count, *_) in sorted(self._total.items()):
            model = terrain.models[i]
            by = shares.setdefault(f"{terrain.kinds[model.task].name}/{model.variant}", {})
            place = places[where[model.node]]
            by[place] = by.get(place, 0.0) + count / done
        whole = tasks.sum(axis=0)
        count_in = np.array(self.done[:slots], float)
        return self.result(
            EventResult,
            name,
            slots,
            parts=(tiers, tasks, whole),
            gain=np.array(self.gain[:slots]),
            served=self._load,
            fractional=fractional,
            p50_s=percentile(self._binned, 0.5),
            p95_s=percentile(self._binned, 0.95),
            p99_s=percentile(self._binned, 0.99),
            accuracy=1.0 - float(whole[2]) / done,
            **{one: getattr(self, one) for one in ("answered", "lost", "late", "retried")},
            forwarded=away / done,
            variants=shares,
            escalated=self._escalated(done),
            in_system=self.area / max(self.until_s, 1e-300),
            flow=self.sojourn_s / max(self.until_s, 1e-300),
            lost_in=np.array(self.lost_in[:slots], float),
            latency_in=np.array(self.time_s[:slots]) / np.where(count_in > 0, count_in, np.nan),
            requests_per_cpu_s=self.entered / cpu_s if cpu_s > 0 else float("nan"),
            **more,
        )

    def _escalated(self, answers: float) -> tuple[Escalated, ...] | None:
        """Say who was asked after whom, by task and variant; None where nobody was."""
        models, kinds = self._terrain.models, self._terrain.kinds
        shares: dict[tuple[str, str], float] = {}
        for (first, second), count in sorted(self._again.items()):
            names = [f"{kinds[m.task].name}/{m.variant}" for m in (models[first], models[second])]
            pair = names[0], names[1]
            shares[pair] = shares.get(pair, 0.0) + count / answers
        return tuple(Escalated(*pair, share) for pair, share in shares.items()) or None
