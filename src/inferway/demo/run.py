"""The demo itself: calibrate, run each policy on the same stream, compare."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.demo import twin
from inferway.demo.calibration import Calibration, calibrate, cores, with_service
from inferway.demo.error import DemoError
from inferway.demo.load import Load, arrivals, choose
from inferway.demo.machine import machine
from inferway.demo.result import DemoResult, LowerBound, PolicyResult
from inferway.demo.server import launch
from inferway.demo.steps import Progress, Steps
from inferway.dispatch.bound import max_rate, solve
from inferway.experiments.statistics import cluster_bootstrap
from inferway.loadgen import Record, drive, summary
from inferway.loadgen.message import body
from inferway.loadgen.metadata import signature
from inferway.site.fleet import Fleet, fleet_of

if TYPE_CHECKING:
    from inferway.catalog.zoo import TestSet
    from inferway.deployment import Deployment

POLICIES: Final = ("fastest-only", "most-accurate-only", "tad-op", "priced")

DURATION_S: Final = 24.0
"""Length of the stream for each policy."""

WITHIN_S: Final = 108.0
"""What the whole demo may take: below two minutes, also where compiling takes long."""

_FILE: Final = "digits.yaml"
_TASK: Final = "digits"
_LINE_POINTS: Final = 200
_LATE_S: Final = 2e-3

# Guesses of how long the parts besides the streams take, for the progress bar only.
_START_S: Final = 1.5
_PAUSE_S: Final = 1.5  # between two streams: encoding, the last answers
_CALIBRATION_S: Final = 8.0
_TWIN_S: Final = 1.5


def run(
    *,
    out: Path = Path("out"),
    seed: int = 1,
    duration_s: float = DURATION_S,
    within_s: float = WITHIN_S,
    policies: Sequence[str] = POLICIES,
    progress: Progress | None = None,
) -> DemoResult:
    """Serve the digits zoo on this machine and compare policies on one bursty stream.

    Every policy gets the same images at the same times from a generator in a process of its own.
    All rates follow from service times measured at the start.

    Parameters
    ----------
    out
        Folder for the figure and the sample request; made if needed.
    seed
        Of arrival times and of the choice of images.
    duration_s
        Length of the stream for each policy, seconds.
    within_s
        Shorten the streams, to half of that at most, so that all ends within this time, seconds.
    policies
        Which to run, in this order.
    progress
        Called with what is being done and the part of all that is done, 0..1.

    Returns
    -------
    result
        With `to_json` and `to_text`.

    Raises
    ------
    DemoError
        When a server does not start or answers nothing.
    """
    import inferway
    from inferway.catalog.zoo import testset

    began = time.monotonic()
    text = files("inferway.demo").joinpath(_FILE).read_text(encoding="utf-8")
    steps = Steps(progress, _CALIBRATION_S + len(policies) * (duration_s + _START_S + _TWIN_S))
    images = testset(_TASK)
    with tempfile.TemporaryDirectory(prefix="inferway-demo-") as name:
        folder = Path(name)
        plain = folder / _FILE
        plain.write_text(text, encoding="utf-8")
        deployment = inferway.load(plain)
        target = deployment.tasks[_TASK].accuracy_target
        assert target is not None
        calibration, request = _calibrated(deployment, plain, images, steps)
        fleet = with_service(fleet_of(deployment, _TASK), calibration.service_s)
        load = choose(fleet, target, cores())
        accuracies = dict(zip(fleet.variants, fleet.accuracy.tolist(), strict=True))
        results = []
        with ExitStack() as servers:
            # All start at once, and each waits idle for its turn.
            steps.begin("starting a server for each policy", len(policies) * _START_S)
            paths = [
                _with_policy(text, policy, calibration.service_s, load, folder)
                for policy in policies
            ]
            recordings = [folder / f"{policy}-recording" for policy in policies]
            launched = [
                servers.enter_context(launch(path, recording))
                for path, recording in zip(paths, recordings, strict=True)
            ]
            urls = [one.url() for one in launched]
            left_s = (began + within_s - time.monotonic()) / len(policies) - _PAUSE_S
            duration_s = max(min(duration_s, left_s), duration_s / 2)
            times_s = arrivals(load, duration_s, seed)
            item = np.random.default_rng(seed).integers(0, len(images), len(times_s))
            used, item = np.unique(item, return_inverse=True)
            inputs, labels, source = images.images[used], images.labels[used], images.source[used]
            for policy, url in zip(policies, urls, strict=True):
                steps.begin(policy, duration_s)
                record = drive(url, _TASK, times_s, inputs, labels, item=item, progress=steps)
                if record.interrupted:
                    raise KeyboardInterrupt
                results.append(_measured(policy, record, accuracies, source, seed))
        # With the servers gone: their recordings are complete, and the cores are free.
        steps.begin("simulating what was recorded", len(policies) * _TWIN_S)
        recorded = dict(zip(policies, zip(paths, recordings, strict=True), strict=True))
        twins, lost = twin.simulate(_TASK, recorded, cores())
    bound = _bound(with_service(fleet, calibration.least_s), target, len(times_s) / duration_s)
    out.mkdir(parents=True, exist_ok=True)
    (out / "request.json").write_bytes(request)
    return DemoResult(
        _TASK,
        target,
        tuple(results),
        bound,
        load,
        calibration.service_s,
        accuracies,
        _figure(out / "demo", results, bound, target),
        out / "request.json",
        _next_steps(out, text),
        machine(),
        seed,
        time.monotonic() - began,
        (*_warnings(load, results), *lost),
        tuple(twins),
    )


def _calibrated(
    deployment: Deployment, path: Path, images: TestSet, steps: Steps
) -> tuple[Calibration, bytes]:
    """Service times of this machine, and a sample request as JSON."""
    fleet = fleet_of(deployment, _TASK)
    expected = dict(zip(fleet.variants, (1 / fleet.rate).tolist(), strict=True))
    steps.begin("measuring this machine: starting a server", 2 * _START_S)
    with launch(path) as launched:
        url = launched.url()
        steps.begin("measuring this machine", _CALIBRATION_S - 2 * _START_S)
        calibration = calibrate(url, _TASK, images.images[:256], expected, progress=steps)
        request = body(signature(url, _TASK), images.images[0])
    return calibration, request


def _with_policy(
    text: str, policy: str, service_s: Mapping[str, float], load: Load, folder: Path
) -> Path:
    """Write the deployment with a policy, the measured service times and the stream's workload."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    content: dict[str, Any] = yaml.load(text)
    task = content["tasks"][_TASK]
    task.pop("dispatch", None)
    for name, variant in task["variants"].items():
        variant["service"] = {"mean": f"{service_s[name]:.9f} s"}
    content["workload"] = {_TASK: {"arrivals": load.process().model_dump(mode="json")}}
    content["dispatch"] = {"policy": policy}
    written = io.StringIO()
    yaml.dump(content, written)
    path = folder / f"{policy}.yaml"
    path.write_text(written.getvalue(), encoding="utf-8")
    return path


def _measured(
    policy: str,
    record: Record,
    accuracies: Mapping[str, float],
    source: NDArray[np.int64],
    seed: int,
) -> PolicyResult:
    found = summary(record, accuracies)
    answered = record.answered
    if found.accuracy is None or found.profile_accuracy is None:
        raise DemoError(f"{policy}: none of {found.offered} requests was answered as expected")
    return PolicyResult(
        policy,
        found.accuracy,
        cluster_bootstrap(record.correct[answered], source[record.item[answered]], seed=seed),
        found.profile_accuracy,
        found.mean_s,
        found.p50_s,
        found.p95_s,
        found.p99_s,
        found.rejected / found.offered,
        found.failed / found.offered,
        {name: found.shares[name] for name in accuracies if name in found.shares},
        found.offered,
        found.send_lag_p99_s,
    )


def _bound(fleet: Fleet, target: float, rate_per_s: float) -> LowerBound:
    best = solve(fleet, target, rate_per_s)
    even = np.linspace(fleet.accuracy.min(), fleet.accuracy.max(), _LINE_POINTS)
    # The line bends at the variants' accuracies.
    goals = np.unique([*even, *fleet.accuracy, target]).tolist()
    line = [
        (goal, solve(fleet, goal, rate_per_s).response_time_s)
        for goal in goals
        if max_rate(fleet, goal) >= rate_per_s
    ]
    return LowerBound(
        rate_per_s,
        max_rate(fleet, target),
        best.response_time_s,
        dict(zip(fleet.variants, best.shares.tolist(), strict=True)),
        tuple(line),
    )


def _figure(
    path: Path, results: Sequence[PolicyResult], bound: LowerBound, target: float
) -> tuple[Path, Path]:
    from inferway.experiments.figure import Point, save, trade_off

    points = [Point(p.policy, p.accuracy, p.accuracy_interval, p.mean_s, p.p95_s) for p in results]
    figure = trade_off(
        points,
        bound=bound.line,
        target=target,
        title="Latency against accuracy, one machine, the same requests",
        latency_label="mean latency (whisker: 95th percentile)",
    )
    return save(figure, path)


def _warnings(load: Load, results: Sequence[PolicyResult]) -> list[str]:
    found = []
    if not load.telling:
        found.append(
            f"the most accurate variant alone carries {load.most_accurate_per_s:.0f}/s, and no "
            f"more than {load.mean_per_s:.0f}/s can be offered: the comparison shows little here"
        )
    latest = max(results, key=lambda p: p.send_lag_p99_s)
    if latest.send_lag_p99_s > _LATE_S:
        found.append(
            f"the generator sent 1 request in 100 more than {latest.send_lag_p99_s * 1e3:.1f} ms "
            f"late ({latest.policy}), so latencies are partly its own: this machine is busy with "
            "other things"
        )
    failed = [p.policy for p in results if p.failed > 0]
    if failed:
        found.append(f"some requests had no answer at all: {', '.join(failed)}")
    return found


def _next_steps(out: Path, text: str) -> tuple[str, ...]:
    """Commands that work as they stand, from the current folder."""
    example = Path("examples", _FILE)
    if not example.is_file() or example.read_text(encoding="utf-8") != text:
        example = out / _FILE
        example.write_text(text, encoding="utf-8")
    # Short enough to stay on one line of a terminal, so that they can be copied.
    return (
        f"{_command()} serve {example}",
        f"curl -s localhost:8000/v2/models/{_TASK}/infer -d @{out / 'request.json'}",
    )


def _command() -> str:
    """How to call inferway from here: by its name if that is this one, else by its path."""
    beside = Path(sys.executable).with_name("inferway")
    found = shutil.which("inferway")
    if (found is not None and Path(found) == beside) or not beside.exists():
        return "inferway"
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)
