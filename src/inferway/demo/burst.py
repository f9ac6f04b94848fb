"""The burst demo: one scheduler after another under a load that jumps by 18 times, live.

The scenario is that of [Tan24], with real digit models: two light and two heavy instances, a
deadline of about seven heavy services, a calm rate of a fifth of what the heavy ones carry. Phases
take seconds where the paper's take minutes, and slots a quarter of a second where its are one.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.demo import burst_twin
from inferway.demo.burst_load import PHASES, BurstLoad, choose_burst
from inferway.demo.burst_result import BurstResult, Outcome, SchedulerResult
from inferway.demo.calibration import calibrate, cores, with_service
from inferway.demo.error import DemoError
from inferway.demo.machine import machine
from inferway.demo.server import launch
from inferway.demo.steps import Progress, Steps
from inferway.experiments.statistics import cluster_bootstrap
from inferway.loadgen import Record, drive
from inferway.site.fleet import Fleet, fleet_of

SCHEDULERS: Final = ("deadline", "hand", "lw", "hw", "hw-e", "sq")
LEARNED: Final = "rl-po"
SLOT_S: Final = 0.25
DURATION_S: Final = 16.0
"""Length of the stream for each scheduler."""
WITHIN_S: Final = 165.0
"""What the whole demo may take: below three minutes, also where compiling takes long."""

_FILE: Final = "burst.yaml"
_TASK: Final = "digits"
_LATE_S: Final = 5e-3
_READY_S: Final = 120.0
# Guesses of how long the parts besides the streams take.
_CALIBRATION_S: Final = 7.0
_START_S: Final = 3.0
_TWIN_S: Final = 3.0
_PAUSE_S: Final = 1.5  # between two streams: encoding, the last answers


def run(
    *,
    out: Path = Path("out"),
    seed: int = 1,
    schedulers: Sequence[str] = SCHEDULERS,
    checkpoint: Path | None = None,
    duration_s: float = DURATION_S,
    within_s: float = WITHIN_S,
    progress: Progress | None = None,
) -> BurstResult:
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
        A policy trained for the fleet and deadline here (`inferway train` on the file that the demo
        leaves in `out`), or a folder of them; it runs as `rl-po` after the others.
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
    import inferway
    from inferway.catalog.zoo import testset

    began = time.monotonic()
    text = files("inferway.demo").joinpath(_FILE).read_text(encoding="utf-8")
    names = [*schedulers, *([LEARNED] if checkpoint is not None else [])]
    around_s = _START_S + _TWIN_S + _PAUSE_S
    steps = Steps(progress, _CALIBRATION_S + len(names) * (duration_s + around_s))
    images = testset(_TASK)
    with tempfile.TemporaryDirectory(prefix="inferway-demo-") as folder:
        plain = Path(folder) / _FILE
        plain.write_text(text, encoding="utf-8")
        fleet = fleet_of(inferway.load(plain), _TASK)
        steps.begin("measuring this machine", _CALIBRATION_S)
        with launch(plain) as launched:
            expected = dict(zip(fleet.variants, (1 / fleet.rate).tolist(), strict=True))
            url = launched.url(_READY_S)
            some = images.images[:256]
            service_s = calibrate(url, _TASK, some, expected, progress=steps).service_s
        left_s = (began + within_s - time.monotonic()) / len(names) - around_s
        duration_s = max(min(duration_s, left_s), duration_s / 2)
        load = choose_burst(with_service(fleet, service_s), cores(), duration_s)
        if checkpoint is not None:
            _check(checkpoint, fleet, load)
        paths = {
            name: _written(text, name, service_s, load, checkpoint, Path(folder)) for name in names
        }
        times_s = load.arrivals(seed)
        item = np.random.default_rng(seed).integers(0, len(images), len(times_s))
        used, item = np.unique(item, return_inverse=True)
        inputs, labels, source = images.images[used], images.labels[used], images.source[used]
        steps.begin("simulating what is to come", len(names) * _TWIN_S)
        heavy = fleet.variants[int(np.argmax(fleet.accuracy))]
        twins, lost = burst_twin.predict(_TASK, heavy, paths, cores())
        results = []
        with ExitStack() as servers:
            # All start at once, and each waits idle for its turn.
            steps.begin("starting a server for each scheduler", len(names) * _START_S)
            launched_all = [servers.enter_context(launch(path)) for path in paths.values()]
            urls = [one.url(_READY_S) for one in launched_all]
            for name, url in zip(names, urls, strict=True):
                steps.begin(name, duration_s)
                record = drive(url, _TASK, times_s, inputs, labels, item=item, progress=steps)
                if record.interrupted:
                    raise KeyboardInterrupt
                twin = twins.get(name, {})
                results.append(_measured(name, record, heavy, load, source, twin, seed))
        out.mkdir(parents=True, exist_ok=True)
        left = out / _FILE
        # With a scheduler that has slots: `inferway train` takes their length from the file.
        left.write_bytes(_written(text, "hand", service_s, load, None, Path(folder)).read_bytes())
    from inferway.demo.burst_figure import draw

    return BurstResult(
        schedulers=tuple(results),
        load=load,
        slot_s=SLOT_S,
        service_s=service_s,
        accuracies=dict(zip(fleet.variants, fleet.accuracy.tolist(), strict=True)),
        figure=draw(out / "burst", results),
        file=left,
        machine=machine(),
        seed=seed,
        seconds=time.monotonic() - began,
        warnings=(*_warnings(results), *lost),
    )


def _check(checkpoint: Path, fleet: Fleet, load: BurstLoad) -> None:
    from inferway.scheduling.store import networks_of

    try:
        networks_of(checkpoint, fleet, policy=LEARNED, deadline_s=load.deadline_s, slot_s=SLOT_S)
    except (ValueError, OSError) as error:
        raise DemoError(f"the checkpoint does not fit: {error}") from error


def _written(
    text: str,
    scheduler: str,
    service_s: Mapping[str, float],
    load: BurstLoad,
    checkpoint: Path | None,
    folder: Path,
) -> Path:
    """Write the deployment with a scheduler, this machine's times and the stream's workload."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    content: dict[str, Any] = yaml.load(text)
    task = content["tasks"][_TASK]
    task["deadline"] = f"{load.deadline_s * 1e3:g} ms"
    for name, variant in task["variants"].items():
        variant["service"] = {"mean": f"{service_s[name]:.9f} s"}
    content["workload"] = {_TASK: {"arrivals": load.process()}}
    if scheduler != "deadline":
        del content["dispatch"]
        content["scheduling"] = scheduling = {"policy": scheduler}
        if scheduler not in ("lw", "hw", "hw-e", "sq"):
            scheduling["slot"] = f"{SLOT_S:g} s"
        if scheduler == LEARNED:
            scheduling["checkpoint"] = str(Path(checkpoint or "").resolve())
    written = io.StringIO()
    yaml.dump(content, written)
    path = folder / f"{scheduler}.yaml"
    path.write_text(written.getvalue(), encoding="utf-8")
    return path


def _measured(
    name: str,
    record: Record,
    heavy: str,
    load: BurstLoad,
    source: NDArray[np.int64],
    twin: dict[str, Outcome],
    seed: int,
) -> SchedulerResult:
    answered = record.answered
    if not answered.any():
        raise DemoError(f"{name}: none of {len(record)} requests was answered")
    in_time = answered & (np.where(answered, record.latency_s, np.inf) <= load.deadline_s)
    by_heavy = np.array([*record.variants, ""])[record.variant] == heavy
    phase = load.phase_of(record.intended_s)
    outcomes, intervals, offered = {}, {}, {}
    for number, part in enumerate(PHASES):
        own = phase == number
        good, given = record.correct[own] & in_time[own], own & answered
        outcomes[part] = Outcome(
            goodput=float(good.mean()),
            violation_ratio=float(1.0 - in_time[own].mean()),
            accuracy=float(record.correct[given].mean()) if given.any() else float("nan"),
            heavy=float(by_heavy[given].mean()) if given.any() else float("nan"),
        )
        intervals[part] = cluster_bootstrap(good, source[record.item[own]], seed=seed)
        offered[part] = int(own.sum())
    none = ~answered & ~record.rejected
    lag_p99_s = float(np.quantile(record.lag_s, 0.99))
    return SchedulerResult(name, outcomes, intervals, twin, offered, lag_p99_s, float(none.mean()))


def _warnings(results: Sequence[SchedulerResult]) -> list[str]:
    found = []
    latest = max(results, key=lambda one: one.send_lag_p99_s)
    if latest.send_lag_p99_s > _LATE_S:
        found.append(
            f"the generator sent 1 request in 100 more than {latest.send_lag_p99_s * 1e3:.1f} ms "
            f"late ({latest.scheduler}), and its own lateness counts: this machine is busy with "
            "other things"
        )
    failed = [one.scheduler for one in results if one.failed > 0]
    if failed:
        found.append(f"some requests had no answer at all: {', '.join(failed)}")
    return found
