"""What the demo found: as data, as JSON, and as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inferway.demo.load import Load
from inferway.demo.twin import TwinResult

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SCHEMA: Final = 1

PROFILE_SLACK: Final = 0.001
"""How far the mean profile accuracy of a finite run may stay below the target."""

_BOUND: Final = "lower bound (LP)"

SPEEDUP: Final = 3.0
"""By how much the tail of the most accurate variant alone is longer, at least."""


@dataclass(frozen=True)
class PolicyResult:
    """One policy on the common stream.

    Attributes
    ----------
    policy
        Its name.
    accuracy, accuracy_interval
        Measured on the true labels of the answered requests; 95 % interval, by resampling source
        images.
    profile_accuracy
        Mean accuracy that the answers' variants have by their profiles.
    mean_s, p50_s, p95_s, p99_s
        Latency of the answers from the intended send times, seconds.
    rejected, failed
        Part of the offered requests that the server refused, and that had no answer otherwise.
    shares
        Part of the answers by variant.
    offered
        Number of requests.
    send_lag_p99_s
        How late the generator sent, seconds.
    """

    policy: str
    accuracy: float
    accuracy_interval: tuple[float, float]
    profile_accuracy: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    rejected: float
    failed: float
    shares: dict[str, float]
    offered: int
    send_lag_p99_s: float


@dataclass(frozen=True)
class LowerBound:
    """The LP at the stream's mean rate, with the service times measured here.

    Attributes
    ----------
    rate_per_s
        Mean rate of the stream.
    max_rate_per_s
        Greatest rate that keeps the target if each instance had a core of its own.
    least_response_time_s
        Least mean response time that keeps the target.
    shares
        Of the LP's optimum, by variant.
    line
        (accuracy target, least mean response time in seconds), for targets that can be kept.
    """

    rate_per_s: float
    max_rate_per_s: float
    least_response_time_s: float
    shares: dict[str, float]
    line: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Claim:
    """A sentence that the run confirms or not, with the number behind it."""

    claim: str
    holds: bool
    measured: str


@dataclass(frozen=True)
class DemoResult:
    """Everything; `to_json` and `to_text` show it.

    Attributes
    ----------
    task, target
        What was served and the mean accuracy promised.
    policies
        In the order of the runs.
    bound
        What none of them can beat.
    load
        The rates.
    service_s
        Measured here by variant, from send to answer of one request alone, seconds.
    accuracies
        Profile accuracy by variant, fastest first.
    figure
        PNG and SVG.
    next_steps
        Commands for a request of the user's own.
    machine
        Cores, processor, versions.
    seed, seconds
        Of the run: its seed and how long it took.
    warnings
        What spoils the measurement.
    twins
        Each policy's recorded run, simulated.
    """

    task: str
    target: float
    policies: tuple[PolicyResult, ...]
    bound: LowerBound
    load: Load
    service_s: dict[str, float]
    accuracies: dict[str, float]
    figure: tuple[Path, Path]
    request: Path
    next_steps: tuple[str, ...]
    machine: dict[str, Any]
    seed: int
    seconds: float
    warnings: tuple[str, ...]
    twins: tuple[TwinResult, ...] = ()

    def claims(self) -> list[Claim]:
        """Check what the demo is to show, as far as its policies ran."""
        return claims(self.target, self.policies)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "schema": SCHEMA,
            "task": self.task,
            "target": self.target,
            "policies": [
                asdict(p) | {"accuracy_interval": list(p.accuracy_interval)} for p in self.policies
            ],
            "bound": asdict(self.bound) | {"line": [list(pair) for pair in self.bound.line]},
            "load": asdict(self.load) | {"mean_per_s": self.load.mean_per_s},
            "service_s": self.service_s,
            "claims": [asdict(claim) for claim in self.claims()],
            "twin": {one.policy: dict(one.trace) for one in self.twins},
            "figure": [str(path) for path in self.figure],
            "request": str(self.request),
            "machine": self.machine,
            "seed": self.seed,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
        }

    def to_text(self) -> list[RenderableType]:
        """Return what to print, in order."""
        from rich.text import Text

        claims = [f"{'yes' if c.holds else 'NO '}  {c.claim} ({c.measured})" for c in self.claims()]
        parts: list[RenderableType] = [
            self._latency(),
            Text(),
            self._shares(),
            Text("\n".join(["", *claims])),
        ]
        if self.twins:
            parts += [Text(), self._twins()]
        parts += [Text(f"Warning: {warning}", style="yellow") for warning in self.warnings]
        steps = "\n".join(f"  {step}" for step in self.next_steps)
        parts.append(Text(f"\nFigure: {self.figure[0]} and {self.figure[1].name}"))
        parts.append(Text(f"\nA request of your own, in two terminals:\n{steps}"))
        return parts

    def _latency(self) -> Table:
        from inferway.experiments.text import accuracy, milliseconds, percent, table

        rows = [
            [
                p.policy,
                accuracy(p.accuracy, p.accuracy_interval),
                *(milliseconds(value) for value in (p.mean_s, p.p50_s, p.p95_s, p.p99_s)),
                percent(p.rejected),
            ]
            for p in self.policies
        ]
        least = milliseconds(self.bound.least_response_time_s)
        rows.append([_BOUND, "", least, "", "", "", ""])
        load = self.load
        return table(
            f"Task {self.task}, accuracy target {self.target:g}: latency in ms, the same "
            f"{self.policies[0].offered} requests for each policy",
            ["policy", "accuracy", "mean", "p50", "p95", "p99", "rejected"],
            rows,
            caption=(
                f"{self.bound.rate_per_s:.0f} requests/s in the mean, switching between "
                f"{load.quiet_per_s:.0f}/s and {load.burst_per_s:.0f}/s. The most accurate variant "
                f"alone carries {load.most_accurate_per_s:.0f}/s; all together, at the target, "
                f"{load.feasible_per_s:.0f}/s on {self.machine['cores']} cores."
            ),
        )

    def _twins(self) -> Table:
        from inferway.experiments.text import table

        return table(
            "Live against twin: the recorded requests, simulated; response times in ms",
            ["policy", "mean", "twin", "error", "p95", "twin", "error", "accuracy"],
            [_twin_row(one) for one in self.twins],
            caption=(
                "Response times as the server has them, without the generator's part. The twin "
                "has the recorded arrivals and the policy's own code, and draws service times "
                "from those of the very same recording."
            ),
        )

    def _shares(self) -> Table:
        from inferway.experiments.text import percent, table

        def row(name: str, shares: Mapping[str, float], mean: float) -> list[str]:
            parts = (percent(shares.get(variant, 0.0), 0) for variant in self.accuracies)
            return [name, f"{mean:.4f}", *parts]

        rows = [row(p.policy, p.shares, p.profile_accuracy) for p in self.policies]
        rows.append(row(_BOUND, self.bound.shares, self.target))
        return table(
            "Answers by variant, and the mean of their accuracies by profile",
            [
                "policy",
                "mean",
                *(f"{name}\n{value:.3f}" for name, value in self.accuracies.items()),
            ],
            rows,
        )


def _twin_row(found: TwinResult) -> list[str]:
    from inferway.experiments.simulated import points, relative
    from inferway.experiments.text import milliseconds

    live, twin, error = (found.trace[part] for part in ("live", "twin", "error"))
    row = [found.policy]
    for what in ("mean", "p95"):
        pair = [milliseconds(one["response_time_s"][what]) for one in (live, twin)]
        row += [*pair, relative(error[what])]
    return [*row, points(error["accuracy"])]


def claims(target: float, policies: Sequence[PolicyResult]) -> list[Claim]:
    """Check what the demo is to show.

    Parameters
    ----------
    target
        Accuracy target, 0..1.
    policies
        Results; a claim about a policy that is not among them is left out.
    """
    by_name = {p.policy: p for p in policies}
    keeping = [by_name[name] for name in ("tad-op", "priced") if name in by_name]
    found = [_keeps(target, p) for p in keeping]
    if fastest := by_name.get("fastest-only"):
        high = fastest.accuracy_interval[1]
        found.append(
            Claim(
                "fastest-only misses the target",
                high < target and fastest.profile_accuracy < target - PROFILE_SLACK,
                f"{fastest.accuracy:.3f}, at most {high:.3f}",
            )
        )
    if accurate := by_name.get("most-accurate-only"):
        found += [
            Claim(
                f"most-accurate-only has at least {SPEEDUP:g} times the p95 of {p.policy}",
                accurate.p95_s >= SPEEDUP * p.p95_s,
                f"{accurate.p95_s / p.p95_s:.1f} times",
            )
            for p in keeping
        ]
    return found


def _keeps(target: float, p: PolicyResult) -> Claim:
    return Claim(
        f"{p.policy} keeps the target {target:g}",
        p.profile_accuracy >= target - PROFILE_SLACK and p.accuracy_interval[1] >= target,
        f"{p.profile_accuracy:.4f} by profile, {p.accuracy:.3f} measured",
    )
