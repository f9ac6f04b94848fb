"""From what the sites pay to what actor and critic learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.learning.export import layout_of_control
from inferway.learning.settings import Settings
from inferway.learning.site import Control

Floats = NDArray[np.float64]

__all__ = ["Potential", "RunningScale", "advantages_of", "baseline_of", "symlog"]


def baseline_of(settings: Settings, control: Control) -> float:
    """Reward per arrival that is subtracted: exogenous, so that no action is better for it."""
    if settings.baseline is None:
        return 0.0
    least = min(control.reward_gains) * control.accuracy_weight
    return least if settings.baseline < 0 else settings.baseline * control.accuracy_weight


def advantages_of(rewards: Floats, values: Floats, discount: float, trace: float) -> Floats:
    """Generalized advantage estimation, doi 10.48550/arXiv.1506.02438.

    [Tan24]'s eq. 11 prints r + V(o') - V(o) for the temporal differences, without gamma before
    the next value; with gamma < 1 that is no estimate of the advantage in eq. 6, whose value
    function (eq. 5) is discounted. Here it is r + gamma V(o') - V(o). Nothing ends: the sum stops
    at the trajectory's end, and the last value stands for what follows.

    Parameters
    ----------
    rewards
        (T, E).
    values
        (T + 1, E).
    discount, trace
        gamma and lambda.

    Returns
    -------
    (T, E)
    """
    answer = rewards + discount * values[1:] - values[:-1]
    for t in range(len(rewards) - 2, -1, -1):
        answer[t] += discount * trace * answer[t + 1]
    return answer


def symlog(values: Floats, unit: float) -> Floats:
    """sign(x) log(1 + |x| / unit), doi 10.48550/arXiv.2301.04104."""
    return np.sign(values) * np.log1p(np.abs(values) / unit)


class Potential:
    """What the requests that are at a site are worth, as observations tell it.

    ``queues``: each request counts the accuracy of the class where it is, times beta; a reward is
    then paid when a request is accepted rather than when it is answered. ``outcomes``: each counts
    that only where it will be answered in time, if every service takes its mean, else -1 as a late
    one does. Batches are not foreseen: requests count as served one by one.

    Parameters
    ----------
    kind
        ``queues`` or ``outcomes``.
    control
        The sites.
    """

    def __init__(self, kind: str, control: Control) -> None:
        scenario, fleet = control.scenario, control.scenario.fleet
        layout = layout_of_control(control)
        self.places, self.width = layout.buffer, layout.width
        self.outcomes = kind == "outcomes"
        mean_s = np.array([time.mean_s for time in scenario.service])
        gain = control.accuracy_weight * np.array(control.reward_gains)
        self.gain = np.repeat(gain, fleet.count).astype(np.float32)[:, None]
        self.service_s = np.repeat(mean_s, fleet.count).astype(np.float32)[:, None]
        self.longest_s = layout.elapsed_s.astype(np.float32)[:, None]
        self.age_s = np.float32(layout.age_s)
        self.deadline_s = np.float32(np.inf if scenario.deadline_s is None else scenario.deadline_s)
        self.place = np.arange(self.places, dtype=np.float32)

    def of(self, observation: NDArray[np.float32]) -> Floats:
        """(B,) of (B, d) observations."""
        servers = len(self.gain)
        seen = observation[:, : servers * self.width].reshape(-1, servers, self.width)
        queue = seen[:, :, : self.places + 1] @ np.append(self.place, np.float32(self.places))
        if not self.outcomes:
            return (queue @ self.gain[:, 0]).astype(np.float64)
        answer = np.zeros(len(seen))
        # Where all servers are idle, which is most of the time, there is nothing to look at.
        busy = np.flatnonzero(queue.any(axis=1))
        seen, queue = seen[busy], queue[busy]
        served_s = seen[:, :, self.places + 1, None] * self.longest_s
        ages_s = seen[:, :, self.places + 2 : -1] * self.age_s
        time_s = ages_s + (self.place + 1) * self.service_s - served_s
        worth = np.where(time_s <= self.deadline_s, self.gain, np.float32(-1.0))
        worth *= self.place < queue[:, :, None]
        answer[busy] = worth.sum(axis=(1, 2))
        return answer


class RunningScale:
    """Standard deviation of the discounted sums of rewards so far.

    Parameters
    ----------
    sites
        E.
    discount
        gamma.
    """

    def __init__(self, sites: int, discount: float) -> None:
        self.discount = discount
        self.sums = np.zeros(sites)
        self.count = 0.0
        self.mean = 0.0
        self.square = 0.0
        """Sum of the squared distances from the mean."""

    @property
    def value(self) -> float:
        """1 before anything is known."""
        deviation = (self.square / self.count) ** 0.5 if self.count else 0.0
        return deviation if deviation > 0 else 1.0

    def see(self, rewards: Floats) -> None:
        """Take in (T, E) rewards."""
        seen = np.empty_like(rewards)
        for t, row in enumerate(rewards):
            self.sums = self.discount * self.sums + row
            seen[t] = self.sums
        count, mean = seen.size, float(seen.mean())
        total, away = self.count + count, mean - self.mean
        self.square += float(((seen - mean) ** 2).sum()) + away**2 * self.count * count / total
        self.mean += away * count / total
        self.count = total

    def state(self) -> dict[str, NDArray[Any]]:
        """All that changes."""
        return {"sums": self.sums, "moments": np.array([self.count, self.mean, self.square])}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state` was taken."""
        self.sums = state["sums"].copy()
        self.count, self.mean, self.square = map(float, state["moments"])
