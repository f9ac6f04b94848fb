"""Schedulers one after another under a load that jumps by 18 times, with a deadline.

The scenario is that of [Tan24], with real digit models: two light and two heavy instances, a
deadline of about seven heavy services, a calm rate of a fifth of what the heavy ones carry. Phases
take seconds where the paper's take minutes, and slots a quarter of a second where its are one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import phased
from inferway.experiments.claim import Claim
from inferway.experiments.figure import Bars, bars, save
from inferway.experiments.machine import cores
from inferway.experiments.text import percent, table
from inferway.loadgen import Record
from inferway.site.fleet import Fleet, fleet_of
from inferway.studies.live.comparison import (
    TASK,
    ImageStream,
    LiveComparison,
    Progress,
    Row,
    Steps,
    alone,
    claim,
    fitting,
    requests,
    serving,
    warnings_of,
    with_service,
    workplace,
    write,
)
from inferway.studies.live.servers import DemoError, as_measured, simulate
from inferway.workload.arrivals import times

if TYPE_CHECKING:
    from rich.table import Table

    from inferway.deployment import Deployment

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
# Calm rate over what the heavy instances carry, as in [Tan24]: 10/s of 2 at 42.9 ms.
_CALM_LOAD: Final = 0.21
# Of a core, for the server itself and the generator, where instances have no cores to spare.
_SPARED: Final = 0.3
_SERVICES: Final = 6.0  # heavy ones that fit into the deadline, at least; 7 in [Tan24]
_LEAST_DEADLINE_S: Final = 0.01
_LATE_S: Final = 5e-3
_READY_S: Final = 120.0
_SIMULATED: Final = (
    *("--warmup", "0", "--queries", "6000"),
    *("--replications", "3", "--workers", "1"),
)
# Guesses of how long the parts besides the streams take.
_CALIBRATION_S: Final = 7.0
_START_S: Final = 3.0
_TWIN_S: Final = 3.0
_PAUSE_S: Final = 1.5  # between two streams: encoding, the last answers
# Of a phase: the part of the requests that was answered rightly and in time; the part that was
# answered late, or not at all; the part of the answers that is right, and that the most accurate
# variant gave.
WHAT: Final = ("goodput", "violation_ratio", "accuracy", "heavy")


@dataclass(frozen=True)
class BurstLoad:
    """The load on the fleet: calm and burst in turn.

    Attributes
    ----------
    heavy_per_s
        What the heavy instances carry together on this machine's cores.
    deadline_s
        From arrival.
    calm_s, burst_s
        Lengths of the phases.
    """

    heavy_per_s: float
    calm_per_s: float
    burst_per_s: float
    deadline_s: float
    calm_s: float
    burst_s: float

    def process(self) -> dict[str, Any]:
        """Return the arrivals as a deployment file writes them."""
        return {
            "process": "phases",
            "phases": [
                {"for": f"{self.calm_s!r} s", "rate": f"{self.calm_per_s!r}/s"},
                {"for": f"{self.burst_s!r} s", "rate": f"{self.burst_per_s!r}/s"},
            ],
        }

    def arrivals(self, seed: int) -> NDArray[np.float64]:
        """Draw the arrival times of one stream, seconds from its start."""
        stretches = ((self.calm_s, self.calm_per_s, None), (self.burst_s, self.burst_per_s, None))
        return times(phased(stretches), horizon_s=CYCLES * (self.calm_s + self.burst_s), seed=seed)

    def phase_of(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Number of the phase that each time is in, of `PHASES`."""
        inside_s = times_s % (self.calm_s + self.burst_s)
        return np.asarray(inside_s >= self.calm_s).astype(np.int64)


def choose(fleet: Fleet, cores: int, duration_s: float) -> BurstLoad:
    """Choose rates and a deadline for a stream of a length, on a number of shared cores.

    The deadline is one of 10, 20, 40 ms and so on, so that a policy that has been trained for one
    fits the same machine another time.
    """
    heavy = int(np.argmax(fleet.accuracy))
    service_s = 1.0 / float(fleet.rate[heavy])
    carried = min(float(fleet.count[heavy]), max(cores - _SPARED, 0.5)) / service_s
    doublings = math.ceil(math.log2(_SERVICES * service_s / _LEAST_DEADLINE_S))
    calm = _CALM_LOAD * carried
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
    cells = []
    for row in rows:
        live, twin = row["overall"], row["predicted"] or {}
        pairs = ((live[what], twin.get(what)) for what in ("goodput", "violation_ratio", "heavy"))
        shares = [percent(one) for pair in pairs for one in pair]
        cells.append([row["scheduler"], *shares, percent(live["accuracy"])])
    return table(
        f"Deadline {load.deadline_s * 1e3:g} ms: mean of calm and burst, live and in the twin",
        ["scheduler", "goodput", "twin", "late", "twin", "heavy", "twin", "accuracy"],
        cells,
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
    head, cells = ["scheduler"], [[row["scheduler"]] for row in rows]
    for phase in PHASES:
        head += [f"{phase}\ngoodput", "\nlate", "\nheavy"]
        for row, written in zip(rows, cells, strict=True):
            live, (low, high) = row["phases"][phase], row["goodput_interval"][phase]
            written += [
                f"{percent(live['goodput'])} ±{50 * (high - low):.1f}",
                percent(live["violation_ratio"]),
                percent(live["heavy"], 0),
            ]
    offered = " and ".join(f"{rows[0]['offered'][phase]} requests in {phase}" for phase in PHASES)
    return table(f"By phase: {offered}", head, cells)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check what is to be shown; a claim about a scheduler that did not run is left out."""
    by_name = {row["scheduler"]: row for row in rows}
    found = []
    if deadline := by_name.get("deadline"):
        late, mine = deadline["overall"]["violation_ratio"], deadline["overall"]["goodput"]
        says = f"deadline keeps {1 - MOST_LATE:.0%} of the requests in time"
        found.append(claim(says, f"violation ratio {late:.2%}", late, at_most=MOST_LATE))
        for name in (name for name in by_name if name in ("lw", "hw", "hw-e")):
            other = by_name[name]["overall"]["goodput"]
            says = f"deadline has a higher goodput than {name}"
            found.append(claim(says, f"{mine:.2%} against {other:.2%}", mine - other, above=0.0))
    if heavy := by_name.get("hw"):
        late = heavy["phases"]["burst"]["violation_ratio"]
        says = "hw fails most requests of a burst"
        found.append(claim(says, f"violation ratio {late:.2%} there", late, above=0.5))
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

    Raises
    ------
    DemoError
        When a server does not start or answers nothing, or the checkpoint is for something else.
    """
    began = time.monotonic()
    names = [*schedulers, *([LEARNED] if checkpoint is not None else [])]
    around_s = _START_S + _TWIN_S + _PAUSE_S
    steps = Steps(progress, _CALIBRATION_S + len(names) * (duration_s + around_s))
    with workplace(_FILE) as (folder, deployment):
        fleet = fleet_of(deployment, TASK)
        steps.begin("measuring this machine", _CALIBRATION_S)
        service_s = alone(deployment, folder, steps, _READY_S)
        left_s = (began + within_s - time.monotonic()) / len(names) - around_s
        duration_s = fitting(duration_s, left_s)
        load = choose(as_measured(fleet, service_s), cores(), duration_s)
        if checkpoint is not None:
            check(checkpoint, fleet, load)
        served = with_load(deployment, service_s, load)
        files = {
            name: write(scheduled(served, name, checkpoint), folder / f"{name}.yaml")
            for name in names
        }
        stream = requests(load.arrivals(seed), seed)
        heavy = fleet.variants[int(np.argmax(fleet.accuracy))]
        steps.begin("simulating what is to come", len(names) * _TWIN_S)
        twins, lost = _predicted(files, heavy)
        steps.begin("starting a server for each scheduler", len(names) * _START_S)
        with serving(files, ready_s=_READY_S) as urls:
            rows = stream.measured(
                *(urls, steps, duration_s),
                lambda name, record: measured(
                    *(name, record, heavy, load, stream, twins.get(name, {}), seed)
                ),
            )
    out.mkdir(parents=True, exist_ok=True)
    # With a scheduler that has slots: `inferway train` takes their length from the file.
    left = write(scheduled(served, "hand"), out / _FILE)
    figure = draw(out / "burst", rows)
    return LiveComparison(
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
        began=began,
        seed=seed,
        warnings=[*warnings_of(rows, _LATE_S, "and its own lateness counts"), *lost],
    )


def check(checkpoint: Path, fleet: Fleet, load: BurstLoad) -> None:
    """Raise `DemoError` where a checkpoint was trained for something else."""
    from inferway.scheduling.store import networks_of

    try:
        networks_of(checkpoint, fleet, policy=LEARNED, deadline_s=load.deadline_s, slot_s=SLOT_S)
    except (ValueError, OSError) as error:
        raise DemoError(f"the checkpoint does not fit: {error}") from error


def with_load(
    deployment: Deployment, service_s: Mapping[str, float], load: BurstLoad
) -> Deployment:
    """Return the deployment with this machine's times, the deadline and the stream's workload."""
    arrivals = {f"workload.{TASK}": {"arrivals": load.process()}}
    deadline = f"{load.deadline_s * 1e3:g} ms"
    return with_service(deployment, service_s, deadline=deadline, **arrivals)


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
    name: str,
    record: Record,
    heavy: str,
    load: BurstLoad,
    stream: ImageStream,
    twin: dict[str, Row],
    seed: int,
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
        intervals[part] = stream.interval(good, record.item[own], seed)
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
    """Simulate each scheduler from its file alone; phases by scheduler, and warnings."""
    options = {name: [str(file), *_SIMULATED] for name, file in files.items()}
    found, warnings = simulate(options, cores())
    return {
        name: {
            phase: {
                **{what: numbers[what] for what in WHAT[:3]},
                "heavy": numbers["shares"].get(heavy, 0.0),
            }
            for phase, numbers in zip(PHASES, one["tasks"][TASK]["phases"], strict=True)
        }
        for name, one in found.items()
    }, warnings


def draw(path: Path, rows: Sequence[Row]) -> tuple[Path, Path]:
    """Draw goodput and violation ratio by scheduler and phase, the twin's beside; PNG and SVG."""
    names = [row["scheduler"] for row in rows]
    shown = []
    for title, up, what in (
        ("Schedulers live, calm and under bursts, the same requests", "goodput ratio", "goodput"),
        ("", "violation ratio", "violation_ratio"),
    ):
        heights, marks = (
            {
                phase: [row[of].get(phase, {}).get(what, math.nan) for row in rows]
                for phase in PHASES
            }
            for of in ("phases", "twin")
        )
        shown.append(Bars(title, up, names, heights, marks, "twin", top=1.0))
    return save(bars(shown, columns=1, width=6.8), path)
