"""Schedulers one after another under a load that jumps by 18 times, with a deadline.

The scenario is that of [Tan24], with real digit models: two light and two heavy instances, a
deadline of about seven heavy services, a calm rate of a fifth of what the heavy ones carry. Phases
take seconds where the paper's take minutes, and slots a quarter of a second where its are one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from inferway.deployment import Deployment
from inferway.deployment.workloads import phased
from inferway.experiments.claim import Claim
from inferway.experiments.figure import Bars, bars, save
from inferway.experiments.text import percent, table
from inferway.loadgen import Record
from inferway.machine import cores
from inferway.site.fleet import Fleet, fleet_of
from inferway.studies.live.comparison import (
    ABOVE_ZERO,
    PATIENT_S,
    TASK,
    Contest,
    Interval,
    LiveComparison,
    Onlooker,
    Progress,
    Row,
    Steps,
    ours,
    warnings_of,
    with_service,
    write,
)
from inferway.studies.live.servers import DemoError, as_measured, serving, simulate
from inferway.workload.arrivals import times

SCHEDULERS: Final = ("deadline", "hand", "lw", "hw", "hw-e", "sq")
LEARNED: Final = "rl-po"
SLOT_S: Final = 0.25
DURATION_S: Final = 16.0  # of the stream for each scheduler
# What the whole comparison may take: below three minutes, also where compiling takes long.
WITHIN_S: Final = 165.0
# Violation ratio that [Tan24] allows: 98 % are to be in time.
MOST_LATE: Final = 0.02
PHASES: Final = ("calm", "burst")  # they follow each other
CALM: Final = 5 / 8  # part of the time that is calm
CYCLES: Final = 2  # of calm and burst, in one stream
JUMP: Final = 18.0  # by which a burst multiplies the rate, as in [Tan24]

_FILE: Final = "burst.yaml"
_WITHOUT_SLOTS: Final = ("lw", "hw", "hw-e", "sq")
_LEAST_DEADLINE_S: Final = 0.01
# Guesses of how long the parts besides the streams take.
_CALIBRATION_S: Final = 7.0
_START_S: Final = 3.0
_TWIN_S: Final = 3.0
_AROUND_S: Final = _START_S + _TWIN_S + 1.5  # and between two streams: encoding, the last answers
# Of a phase: the part of the requests that was answered rightly and in time; the part that was
# answered late, or not at all; the part of the answers that is right, and that the most accurate
# variant gave.
WHAT: Final = ("goodput", "violation_ratio", "accuracy", "heavy")


@dataclass(frozen=True)
class BurstLoad:
    """The load on the fleet: calm and burst in turn."""

    heavy_per_s: float  # what the heavy instances carry together on this machine's cores
    calm_per_s: float
    burst_per_s: float
    deadline_s: float  # from arrival
    calm_s: float  # lengths of the phases
    burst_s: float

    @property
    def changes(self) -> dict[str, Any]:
        """Deadline and arrivals as a deployment file writes them."""
        phases = [
            {"for": f"{self.calm_s!r} s", "rate": f"{self.calm_per_s!r}/s"},
            {"for": f"{self.burst_s!r} s", "rate": f"{self.burst_per_s!r}/s"},
        ]
        return {
            "deadline": f"{self.deadline_s * 1e3:g} ms",
            f"workload.{TASK}": {"arrivals": {"process": "phases", "phases": phases}},
        }

    def arrivals(self, seed: int) -> NDArray[np.float64]:
        """Draw the arrival times of one stream, seconds from its start."""
        phases = (self.calm_s, self.calm_per_s, None), (self.burst_s, self.burst_per_s, None)
        return times(phased(phases), horizon_s=CYCLES * (self.calm_s + self.burst_s), seed=seed)

    def phase_of(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Number of the phase that each time is in, of `PHASES`."""
        return np.asarray(times_s % (self.calm_s + self.burst_s) >= self.calm_s, np.int64)


def choose(fleet: Fleet, cores: int, duration_s: float) -> BurstLoad:
    """Choose rates and a deadline for a stream of a length, on a number of shared cores.

    The deadline is one of 10, 20, 40 ms and so on, so that a policy that has been trained for one
    fits the same machine another time.
    """
    heavy = int(np.argmax(fleet.accuracy))
    service_s = 1.0 / float(fleet.rate[heavy])
    # The server itself and the generator need a part of a core, where there is none to spare.
    carried = min(float(fleet.count[heavy]), max(cores - 0.3, 0.5)) / service_s
    # At least six heavy services fit into the deadline; 7 in [Tan24].
    doublings = math.ceil(math.log2(6.0 * service_s / _LEAST_DEADLINE_S))
    calm = 0.21 * carried  # as in [Tan24]: 10/s of 2 at 42.9 ms
    cycle_s = duration_s / CYCLES
    return BurstLoad(
        carried,
        calm,
        JUMP * calm,
        _LEAST_DEADLINE_S * 2.0 ** max(0, doublings),
        CALM * cycle_s,
        (1 - CALM) * cycle_s,
    )


def overall_table(rows: Sequence[Row], load: BurstLoad) -> Table:
    """Lay out the mean of calm and burst, live and in the twin."""

    def cells(live: Row, twin: Row) -> list[str]:
        columns = ("goodput", "violation_ratio", "heavy")
        both = [percent(one.get(what)) for what in columns for one in (live, twin)]
        return [*both, percent(live["accuracy"])]

    return table(
        f"Deadline {load.deadline_s * 1e3:g} ms: mean of calm and burst, live and in the twin",
        ["scheduler", "goodput", "twin", "late", "twin", "heavy", "twin", "accuracy"],
        [[row["scheduler"], *cells(row["overall"], row["predicted"] or {})] for row in rows],
        caption=(
            f"{load.calm_per_s:.0f} requests/s and {load.burst_per_s:.0f}/s in turn; the heavy "
            f"instances carry {load.heavy_per_s:.0f}/s on {cores()} cores. Late: "
            "answered after the deadline, or never. Slots last "
            f"{SLOT_S:g} s. The twin predicts from the deployment file: it gives each "
            "instance a core of its own, and has accuracies by profile."
        ),
    )


def phases_table(rows: Sequence[Row]) -> Table:
    """Lay out calm and burst beside each other, live."""

    def cells(row: Row, phase: str) -> list[str]:
        live, (low, high) = row["phases"][phase], row["goodput_interval"][phase]
        goodput = f"{percent(live['goodput'])} ±{50 * (high - low):.1f}"
        return [goodput, percent(live["violation_ratio"]), percent(live["heavy"], 0)]

    offered = " and ".join(f"{rows[0]['offered'][phase]} requests in {phase}" for phase in PHASES)
    head = [part for phase in PHASES for part in (f"{phase}\ngoodput", "\nlate", "\nheavy")]
    return table(
        f"By phase: {offered}",
        ["scheduler", *head],
        [[row["scheduler"], *(c for phase in PHASES for c in cells(row, phase))] for row in rows],
    )


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check what is to be shown; a claim about a scheduler that did not run is left out."""
    by_name = {row["scheduler"]: row for row in rows}
    found = []
    if "deadline" in by_name:
        mine = by_name["deadline"]["overall"]
        late, good = mine["violation_ratio"], mine["goodput"]
        says = f"deadline keeps {1 - MOST_LATE:.0%} of the requests in time"
        why = f"violation ratio {late:.2%}"
        found = [
            ours(says=says, value=late, at_most=MOST_LATE, why=why),
            *(
                ours(
                    says=f"deadline has a higher goodput than {name}",
                    value=good - row["overall"]["goodput"],
                    at_least=ABOVE_ZERO,
                    why=f"{good:.2%} against {row['overall']['goodput']:.2%}",
                )
                for name, row in by_name.items()
                if name in ("lw", "hw", "hw-e")
            ),
        ]
    if "hw" in by_name:
        late = by_name["hw"]["phases"]["burst"]["violation_ratio"]
        says, why = "hw fails most requests of a burst", f"violation ratio {late:.2%} there"
        found.append(ours(says=says, value=late - 0.5, at_least=ABOVE_ZERO, why=why))
    return found


def compare_schedulers(
    *,
    out: Path = Path("out"),
    seed: int = 1,
    schedulers: Sequence[str] = SCHEDULERS,
    checkpoint: Path | None = None,
    duration_s: float = DURATION_S,
    within_s: float = WITHIN_S,
    progress: Progress | None = None,
    look: Onlooker | None = None,
) -> LiveComparison:
    """Serve two variants on this machine and compare schedulers under one bursty stream.

    Every scheduler gets the same images at the same times from a generator in a process of its own.
    Rates and deadline follow from service times measured at the start.

    Parameters
    ----------
    out
        Folder for the figure and the deployment file; made if needed.
    seed
        Of arrival times and of the choice of images.
    schedulers
        Which to run, in this order: `deadline`, or names of `inferway.scheduling.SCHEDULERS`.
    checkpoint
        A policy trained for the fleet and deadline here (`inferway train` on the file that is left
        in `out`), or a folder of them; it runs as `rl-po` after the others.
    duration_s
        Length of the stream for each scheduler, seconds.
    within_s
        Shorten the streams, to half of that at most, so that all ends within this time, seconds.
    progress
        Called with what is being done and the part of all that is done, 0..1.
    look
        Called with what is being done and the servers there are, whenever either changes.

    Raises
    ------
    DemoError
        When a server does not start or answers nothing, or the checkpoint is for something else.
    """
    names = [*schedulers, *([LEARNED] if checkpoint is not None else [])]
    steps = Steps(progress, _CALIBRATION_S + len(names) * (duration_s + _AROUND_S), look)
    with Contest.of(_FILE, seed, within_s, steps) as contest:
        fleet = fleet_of(contest.deployment, TASK)
        service_s = contest.alone(_CALIBRATION_S)
        duration_s = contest.fitting(duration_s, len(names), _AROUND_S)
        load = choose(as_measured(fleet, service_s), cores(), duration_s)
        if checkpoint is not None:
            check(checkpoint, fleet, load)
        served = with_service(contest.deployment, service_s, load.changes)
        files = {
            name: write(scheduled(served, name, checkpoint), contest.folder / f"{name}.yaml")
            for name in names
        }
        heavy = fleet.variants[int(np.argmax(fleet.accuracy))]
        steps.begin("simulating what is to come", len(names) * _TWIN_S)
        twins, lost = _predicted(files, heavy)

        def row_of(name: str, record: Record, interval: Interval) -> Row:
            return measured(name, record, heavy, load, interval, twins.get(name, {}))

        steps.begin("starting a server for each scheduler", len(names) * _START_S)
        with serving(files, ready_s=PATIENT_S) as servers:
            rows = contest.drive(servers, load.arrivals(seed), duration_s, row_of)
    figure = draw(out / "burst", rows)
    # With a scheduler that has slots: `inferway train` takes their length from the file.
    left = write(scheduled(served, "hand"), out / _FILE)
    return contest.result(
        rows=rows,
        found={
            "schedulers": rows,
            "load": asdict(load),
            "slot_s": SLOT_S,
            "service_s": service_s,
            "accuracies": dict(zip(fleet.variants, fleet.accuracy.tolist(), strict=True)),
            "figure": [str(path) for path in figure],
            "file": str(left),
        },
        claims=claims(rows),
        tables=[overall_table(rows, load), phases_table(rows)],
        closing=[
            f"\nFigure: {figure[0]} and {figure[1].name}",
            f"Deployment, to serve or to train for: {left}",
        ],
        warnings=[*warnings_of(rows, 5e-3, "and its own lateness counts"), *lost],
    )


def check(checkpoint: Path, fleet: Fleet, load: BurstLoad) -> None:
    """Raise `DemoError` where a checkpoint was trained for something else."""
    from inferway.scheduling import Conditions
    from inferway.scheduling.store import networks_of

    try:
        networks_of(checkpoint, [Conditions(fleet, load.deadline_s, policy=LEARNED)], SLOT_S)
    except (ValueError, OSError) as error:
        raise DemoError(f"the checkpoint does not fit: {error}") from error


def scheduled(
    deployment: Deployment, scheduler: str, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Return a deployment's data with a scheduler in place of the policy that it has."""
    if scheduler == "deadline":
        return deployment.source.data
    section = {"policy": scheduler}
    if scheduler not in _WITHOUT_SLOTS:
        section["slot"] = f"{SLOT_S:g} s"
    if scheduler == LEARNED:
        section["checkpoint"] = str(Path(checkpoint or "").resolve())
    data = deployment.with_(scheduling=section).source.data
    return {name: part for name, part in data.items() if name != "dispatch"}


def measured(
    name: str, record: Record, heavy: str, load: BurstLoad, interval: Interval, twin: dict[str, Row]
) -> Row:
    """Sum up what became of a stream, phase by phase, beside what the twin predicts of each."""
    answered = record.answered
    if not answered.any():
        raise DemoError(f"{name}: none of {len(record)} requests was answered")
    in_time = answered & (np.where(answered, record.latency_s, np.inf) <= load.deadline_s)
    by_heavy = np.array([*record.variants, ""])[record.variant] == heavy
    phase = load.phase_of(record.intended_s)
    phases, intervals, offered = {}, {}, {}
    for number, part in enumerate(PHASES):
        own = phase == number
        good, given = record.correct[own] & in_time[own], own & answered
        phases[part] = {
            "goodput": float(good.mean()),
            "violation_ratio": float(1.0 - in_time[own].mean()),
            "accuracy": float(record.correct[given].mean()) if given.any() else float("nan"),
            "heavy": float(by_heavy[given].mean()) if given.any() else float("nan"),
        }
        intervals[part] = interval(good, record.item[own])
        offered[part] = int(own.sum())
    return {
        "scheduler": name,
        "phases": phases,
        "goodput_interval": intervals,
        "twin": twin,
        "offered": offered,
        "send_lag_p99_s": float(np.quantile(record.lag_s, 0.99)),
        "failed": float((~answered & ~record.rejected).mean()),
        "overall": mean_of(phases),
        "predicted": mean_of(twin) if twin else None,
    }


def mean_of(phases: Mapping[str, Row]) -> Row:
    """Mean of several phases, each counting the same, as [Tan24] takes it."""
    return {what: sum(one[what] for one in phases.values()) / len(phases) for what in WHAT}


def _predicted(files: Mapping[str, Path], heavy: str) -> tuple[dict[str, Row], list[str]]:
    shown = ("--warmup", "0", "--queries", "6000", "--replications", "3", "--workers", "1")
    found, warnings = simulate({name: [str(file), *shown] for name, file in files.items()})
    return {
        name: {
            phase: {what: numbers[what] for what in WHAT[:3]}
            | {"heavy": numbers["shares"].get(heavy, 0.0)}
            for phase, numbers in zip(PHASES, one["tasks"][TASK]["phases"], strict=True)
        }
        for name, one in found.items()
    }, warnings


def draw(path: Path, rows: Sequence[Row]) -> tuple[Path, Path]:
    """Draw goodput and violation ratio by scheduler and phase, the twin's beside; PNG and SVG."""
    titles = {
        "goodput": ("Schedulers live, calm and under bursts, the same requests", "goodput ratio"),
        "violation_ratio": ("", "violation ratio"),
    }

    def values(row_part: str, what: str) -> dict[str, list[float]]:
        return {
            phase: [row[row_part].get(phase, {}).get(what, math.nan) for row in rows]
            for phase in PHASES
        }

    names = [row["scheduler"] for row in rows]
    shown = [
        Bars(title, up, names, values("phases", what), values("twin", what), "twin", top=1.0)
        for what, (title, up) in titles.items()
    ]
    return save(bars(shown, columns=1, width=6.8), path)
