"""Clients in a node's namespace: an open loop of requests, of which each is accounted for."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import model_path, testset
from inferway.lab import LocalCluster
from inferway.loadgen import Access
from inferway.loadgen.generator import UNANSWERED, UNSENT, SendOutcome, SendPlan
from inferway.loadgen.message import encode, head
from inferway.protocol import parse_server
from inferway.runtime import inspect

RATE_PER_S: Final = 60.0
LATE_S: Final = 1.0
"""What is answered later than this after it was due does not count as recovered."""
_IMAGES: Final = 64
_GRACE_S: Final = 20.0
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Answers:
    """What became of every request, in the order in which they were due.

    Attributes
    ----------
    outcome
        As the generator wrote it down.
    due_s
        (N,) when each was due, on the monotonic clock, s.
    begun_s
        When the first could have been, on that clock.
    """

    outcome: SendOutcome
    due_s: NDArray[np.float64]
    begun_s: float

    def __len__(self) -> int:
        return len(self.due_s)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which got an inference answer."""
        return np.asarray(self.outcome.columns["status"] == 200)

    @property
    def took_s(self) -> NDArray[np.float64]:
        """(N,) from when each was due to its answer, whatever it says; NaN without one."""
        return np.asarray(self.begun_s + self.outcome.columns["done_s"] - self.due_s)

    @property
    def silent(self) -> NDArray[np.bool_]:
        """Which were sent, or should have been, and heard nothing at all."""
        mute = [self.outcome.reasons.index(one) for one in self._mute]
        return np.asarray(
            (self.outcome.columns["status"] == 0) & np.isin(self.outcome.columns["reason"], mute)
        )

    @property
    def _mute(self) -> list[str]:
        return [one for one in (UNANSWERED, UNSENT) if one in self.outcome.reasons]

    @property
    def paths(self) -> NDArray[np.str_]:
        """(N,) the way of each answer, as ``edge,left,cloud``; empty without one."""
        return np.array([*self.outcome.paths, ""])[self.outcome.columns["said"]]

    @property
    def degraded(self) -> NDArray[np.str_]:
        """(N,) what each answer said of being degraded; empty if it did not."""
        return np.array([*self.outcome.degradations, ""])[self.outcome.columns["said"]]

    def between(self, start_s: float, end_s: float) -> NDArray[np.bool_]:
        """Which were due then, on the monotonic clock."""
        return np.asarray((self.due_s >= start_s) & (self.due_s < end_s))

    def failures(self, chosen: NDArray[np.bool_] | None = None) -> dict[str, int]:
        """Count why requests were not answered, as status and sentence."""
        rows = ~self.answered if chosen is None else ~self.answered & chosen
        status, reason = (
            self.outcome.columns["status"][rows].tolist(),
            self.outcome.columns["reason"][rows].tolist(),
        )
        found = Counter(
            f"{one or 'no answer'}: {self.outcome.reasons[why]}"
            for one, why in zip(status, reason, strict=True)
        )
        return dict(found.most_common())

    def recovered_s(self, fault_s: float, until_s: float = np.inf) -> float:
        """Tell how long after a fault all requests were answered in time again.

        Parameters
        ----------
        fault_s
            When it happened, on the monotonic clock.
        until_s
            When the next thing happened.

        Returns
        -------
        float
            From the fault until the first moment from which on every request, up to `until_s`, was
            answered within `LATE_S`; 0 where all were, inf where the last was not.
        """
        # What was on its way when it happened counts, too.
        chosen = self.between(fault_s - LATE_S, until_s)
        bad = chosen & ~(self.answered & (self.took_s < LATE_S))
        if not bad.any():
            return 0.0
        last = int(np.flatnonzero(bad)[-1])
        if last == int(np.flatnonzero(chosen)[-1]):
            return float("inf")
        return max(0.0, float(self.due_s[last + 1]) - fault_s)

    def summary(self) -> dict[str, Any]:
        """Put it into a few numbers."""
        answered = self.answered
        refused = (self.outcome.columns["status"] != 0) & ~answered
        return {
            "requests": len(self),
            "answered": int(answered.sum()),
            "refused": int(refused.sum()),
            "broken": int(((self.outcome.columns["status"] == 0) & ~self.silent).sum()),
            "silent": int(self.silent.sum()),
            "slowest_s": round(float(np.nanmax(self.took_s)), 3),
            "failures": self.failures(),
        }


class Clients:
    """Sends requests for all tasks at a node from inside its namespace, at even distances.

    Parameters
    ----------
    up
        The nodes.
    folder
        For the plan and what came of it.
    seconds
        How long.
    entry
        The node.
    rate_per_s
        Requests of all tasks together.
    tasks
        That are asked for, the first most.
    """

    def __init__(
        self,
        up: LocalCluster,
        folder: Path,
        seconds: float,
        *,
        tasks: tuple[str, ...],
        entry: str = "edge",
        rate_per_s: float = RATE_PER_S,
        seed: int = 1,
    ) -> None:
        self._back = folder / "outcome"
        self._back.unlink(missing_ok=True)
        server = parse_server(up.url(entry))
        images = testset("digits").images[:_IMAGES]
        count = int(seconds * rate_per_s)
        chance = np.random.default_rng(seed)
        popular = 1.0 / np.arange(1, len(tasks) + 1) ** 1.2
        self.due_s = np.arange(count) / rate_per_s
        plan = SendPlan(
            addresses=[server],
            heads=[head(server, task) for task in tasks],
            target=[0] * len(tasks),
            bodies=encode("digits", inspect(model_path("digits", "small")), images),
            due_s=self.due_s,
            head=chance.choice(len(tasks), count, p=popular / popular.sum()),
            body=chance.integers(0, len(images), count),
            connections=512,
            grace_s=_GRACE_S,
        )
        words = [sys.executable, "-m", "inferway.loadgen", str(self._back)]
        self._process = subprocess.Popen(
            up.command_at(entry, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((plan, Access()), self._process.stdin)
        self._process.stdin.flush()
        # It says how far it is as soon as it begins.
        self._process.stdout.readline()
        self.begun_s = time.monotonic()

    def at(self, seconds: float) -> float:
        """Wait until so long after the start; returns when that was, on the monotonic clock."""
        left_s = self.begun_s + seconds - time.monotonic()
        assert left_s > -0.5, f"the test is {-left_s:.1f} s late"
        time.sleep(max(0.0, left_s))
        return time.monotonic()

    def answers(self) -> Answers:
        """Wait for the end, and tell what became of every request."""
        assert self._process.stdout is not None
        # Its standard input stays open: closed, it ends at once.
        for _ in self._process.stdout:
            pass
        assert self._process.wait(_PATIENCE_S) == 0
        outcome: SendOutcome = pickle.loads(self._back.read_bytes())
        assert not outcome.refused, outcome.refused
        assert len(outcome) == len(self.due_s)
        return Answers(outcome, self.begun_s + self.due_s, self.begun_s)

    def end(self) -> None:
        """End them, if they have not."""
        with self._process:
            if self._process.poll() is None:
                self._process.kill()
