"""What the burst demo found: as data, as JSON, and as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inferway.demo.burst_load import PHASES, BurstLoad
from inferway.demo.result import Claim

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SCHEMA: Final = 1
MOST_LATE: Final = 0.02
"""Violation ratio that [Tan24] allows: 98 % are to be in time."""


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of one phase, or of all phases in the mean.

    Attributes
    ----------
    goodput
        Part of the requests that was answered rightly and in time.
    violation_ratio
        Part that was answered late, or not at all.
    accuracy
        Part of the answers that is right.
    heavy
        Part of the answers that the most accurate variant gave.
    """

    goodput: float
    violation_ratio: float
    accuracy: float
    heavy: float


@dataclass(frozen=True)
class SchedulerResult:
    """One scheduler on the common stream.

    Attributes
    ----------
    scheduler
        Its name.
    phases
        By the name of the phase, as the requests' true labels and times say.
    goodput_interval
        By phase, 95 % interval of the goodput, by resampling source images.
    twin
        By phase, what the twin predicts from the file alone, accuracies by profile; empty where it
        could not be run.
    offered
        Requests by phase.
    send_lag_p99_s
        How late the generator sent, seconds.
    failed
        Part of the requests that had no answer of any kind.
    """

    scheduler: str
    phases: dict[str, Outcome]
    goodput_interval: dict[str, tuple[float, float]]
    twin: dict[str, Outcome]
    offered: dict[str, int]
    send_lag_p99_s: float
    failed: float

    @property
    def overall(self) -> Outcome:
        """Mean of the phases, as [Tan24] takes it."""
        return mean_of(self.phases)

    @property
    def predicted(self) -> Outcome | None:
        """The same of the twin's."""
        return mean_of(self.twin) if self.twin else None

    def to_json(self) -> dict[str, Any]:
        """By name."""
        intervals = {name: list(pair) for name, pair in self.goodput_interval.items()}
        predicted = self.predicted
        return asdict(self) | {
            "goodput_interval": intervals,
            "overall": asdict(self.overall),
            "predicted": None if predicted is None else asdict(predicted),
        }


@dataclass(frozen=True)
class BurstResult:
    """Everything; `to_json` and `to_text` show it.

    Attributes
    ----------
    schedulers
        In the order of the runs.
    load
        Rates and deadline.
    slot_s
        Time between two decisions of those that decide by slots.
    service_s
        Measured here by variant, from send to answer of one request alone, seconds.
    accuracies
        By profile, fastest variant first.
    figure
        PNG and SVG.
    file
        The deployment that was served, with this machine's numbers.
    machine
        Cores, processor, versions.
    seed, seconds
        Of the run, and how long it took.
    warnings
        What spoils the measurement.
    """

    schedulers: tuple[SchedulerResult, ...]
    load: BurstLoad
    slot_s: float
    service_s: dict[str, float]
    accuracies: dict[str, float]
    figure: tuple[Path, Path]
    file: Path
    machine: dict[str, Any]
    seed: int
    seconds: float
    warnings: tuple[str, ...]

    def claims(self) -> list[Claim]:
        """Check what the demo is to show, as far as its schedulers ran."""
        return claims(self.schedulers)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "schema": SCHEMA,
            "schedulers": [one.to_json() for one in self.schedulers],
            "load": asdict(self.load),
            "slot_s": self.slot_s,
            "service_s": self.service_s,
            "accuracies": self.accuracies,
            "claims": [asdict(claim) for claim in self.claims()],
            "figure": [str(path) for path in self.figure],
            "file": str(self.file),
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
            self._overall(),
            Text(),
            self._by_phase(),
            Text("\n".join(["", *claims])),
        ]
        parts += [Text(f"Warning: {warning}", style="yellow") for warning in self.warnings]
        parts.append(Text(f"\nFigure: {self.figure[0]} and {self.figure[1].name}"))
        parts.append(Text(f"Deployment, to serve or to train for: {self.file}"))
        return parts

    def _overall(self) -> Table:
        from inferway.experiments.text import percent, table

        rows = []
        for one in self.schedulers:
            found, twin = one.overall, one.predicted
            row = [one.scheduler]
            for what in ("goodput", "violation_ratio", "heavy"):
                row += [percent(getattr(found, what)), percent(getattr(twin, what, None))]
            rows.append([*row, percent(found.accuracy)])
        load = self.load
        return table(
            f"Deadline {load.deadline_s * 1e3:g} ms: mean of calm and burst, live and in the twin",
            ["scheduler", "goodput", "twin", "late", "twin", "heavy", "twin", "accuracy"],
            rows,
            caption=(
                f"{load.calm_per_s:.0f} requests/s and {load.burst_per_s:.0f}/s in turn; the heavy "
                f"instances carry {load.heavy_per_s:.0f}/s on {self.machine['cores']} cores. Late: "
                "answered after the deadline, or never. Slots last "
                f"{self.slot_s:g} s. The twin predicts from the deployment file: it gives each "
                "instance a core of its own, and has accuracies by profile."
            ),
        )

    def _by_phase(self) -> Table:
        from inferway.experiments.text import percent, table

        rows = []
        for one in self.schedulers:
            row = [one.scheduler]
            for phase in PHASES:
                found, (low, high) = one.phases[phase], one.goodput_interval[phase]
                row += [
                    f"{percent(found.goodput)} ±{50 * (high - low):.1f}",
                    percent(found.violation_ratio),
                    percent(found.heavy, 0),
                ]
            rows.append(row)
        offered = self.schedulers[0].offered
        head = ["scheduler"]
        for phase in PHASES:
            head += [f"{phase}\ngoodput", "\nlate", "\nheavy"]
        return table(
            "By phase: " + " and ".join(f"{offered[name]} requests in {name}" for name in PHASES),
            head,
            rows,
        )


def mean_of(phases: Mapping[str, Outcome]) -> Outcome:
    """Mean of several outcomes, each phase counting the same."""
    rows = [asdict(one) for one in phases.values()]
    return Outcome(**{what: sum(row[what] for row in rows) / len(rows) for what in rows[0]})


def claims(schedulers: Sequence[SchedulerResult]) -> list[Claim]:
    """Check what the demo is to show; a claim about a scheduler that did not run is left out."""
    by_name = {one.scheduler: one for one in schedulers}
    found = []
    deadline = by_name.get("deadline")
    if deadline is not None:
        late = deadline.overall.violation_ratio
        found.append(
            Claim(
                f"deadline keeps {1 - MOST_LATE:.0%} of the requests in time",
                late <= MOST_LATE,
                f"violation ratio {late:.2%}",
            )
        )
        others = [one for one in schedulers if one.scheduler in ("lw", "hw", "hw-e")]
        found += [
            Claim(
                f"deadline has a higher goodput than {one.scheduler}",
                deadline.overall.goodput > one.overall.goodput,
                f"{deadline.overall.goodput:.2%} against {one.overall.goodput:.2%}",
            )
            for one in others
        ]
    if heavy := by_name.get("hw"):
        late = heavy.phases["burst"].violation_ratio
        found.append(
            Claim(
                "hw fails most requests of a burst", late > 0.5, f"violation ratio {late:.2%} there"
            )
        )
    return found
