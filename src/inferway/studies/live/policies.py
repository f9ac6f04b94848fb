"""Dispatch policies on the whole digits zoo: one bursty stream for each, at an accuracy target.

All rates follow from service times measured at the start: the most accurate variant alone cannot
carry the stream, and all variants together can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from inferway.catalog.zoo import testset
from inferway.deployment.policies import ESCALATE
from inferway.deployment.workloads import MapArrivals
from inferway.dispatch.bounds import Optimum, max_rate, solve
from inferway.dispatch.escalation_bounds import (
    EscalationOptimum,
    escalation_bound,
    max_escalation_rate,
    solve_escalation,
)
from inferway.dispatch.promise import SLACK
from inferway.experiments.claim import Claim
from inferway.experiments.figure import Mark, save, trade_off
from inferway.experiments.text import accuracy, milliseconds, percent, points, relative, table
from inferway.loadgen import Record, summary
from inferway.loadgen.access import signature
from inferway.loadgen.message import body
from inferway.machine import cores
from inferway.site.fleet import Fleet, fleet_of
from inferway.studies.live.comparison import (
    ABOVE_ZERO,
    TASK,
    Contest,
    Interval,
    LiveComparison,
    Onlooker,
    Progress,
    Row,
    Steps,
    ours,
    own_command,
    template,
    warnings_of,
    with_service,
    write,
)
from inferway.studies.live.servers import (
    DemoError,
    as_measured,
    calibrate,
    feasible_rate,
    launch,
    serving,
    simulate,
)
from inferway.workload.arrivals import times

POLICIES: Final = ("fastest-only", "most-accurate-only", "tad-op", "priced", ESCALATE)
DURATION_S: Final = 20.0  # of the stream for each policy
# What the streams may last until: all is over in two minutes, also where compiling takes long.
WITHIN_S: Final = 94.0
# How far the mean profile accuracy of a finite run may stay below the target, for a policy that
# only moves around it.
NEAR: Final = 0.001
# By how much the tail of the most accurate variant alone is longer, at least.
SPEEDUP: Final = 3.0
# Mean latency of `escalate` over that of `priced`, at most.
HALF: Final = 0.5
# Mean lengths of a quiet phase and of a burst.
QUIET_S: Final = 1.4
BURST_S: Final = 0.7

_FILE: Final = "digits.yaml"
_BOUND: Final = "lower bound (LP)"
_TWICE: Final = "bound with escalation"
_NARROW: Final = _TWICE.replace("with ", "with\n")  # No wider than a policy
_POINTS: Final = 60  # of a bound's line
_PART: Final = BURST_S / (QUIET_S + BURST_S)
_SWING: Final = 2.5  # rate of a burst over the quiet one, where the fleet can carry it
_PEAK_LOAD: Final = 0.75  # rate of a burst over the greatest feasible rate, at most
_TYPICAL: Final = 0.02
# Guesses of how long the parts besides the streams take, for the progress bar only.
_START_S: Final = 1.5
_CALIBRATION_S: Final = 8.0
_TWIN_S: Final = 1.5


@dataclass(frozen=True)
class TwoLevels:
    """Rates per second of a stream that switches between two levels."""

    feasible_per_s: float  # greatest rate at which the target can be kept
    most_accurate_per_s: float  # what the most accurate variant carries alone
    quiet_per_s: float
    burst_per_s: float

    @property
    def mean_per_s(self) -> float:
        """Mean of the two levels, weighted by how long they last."""
        return (1 - _PART) * self.quiet_per_s + _PART * self.burst_per_s

    @property
    def telling(self) -> bool:
        """True where the most accurate variant alone cannot carry the mean."""
        return self.mean_per_s > self.most_accurate_per_s

    def process(self) -> MapArrivals:
        """Return the arrivals as a deployment file names them: a MAP of two phases."""
        calm, tense = 1 / QUIET_S, 1 / BURST_S
        return MapArrivals(
            process="map",
            d0=((-self.quiet_per_s - calm, calm), (tense, -self.burst_per_s - tense)),
            d1=((self.quiet_per_s, 0.0), (0.0, self.burst_per_s)),
        )

    def arrivals(self, duration_s: float, seed: int) -> NDArray[np.float64]:
        """Draw arrival times, in seconds from the start, ascending.

        A few tens of phases vary a lot in number and length. Of the streams that the seed gives,
        the first whose mean rate is within 2 % of the mean is taken, so that every run has the load
        that it says.
        """
        process = self.process()
        expected = self.mean_per_s * duration_s
        closest = np.empty(0)
        for word in np.random.SeedSequence(seed).generate_state(200).tolist():
            drawn = times(process, horizon_s=duration_s, seed=word)
            if abs(len(drawn) - expected) < abs(len(closest) - expected):
                closest = drawn
            if abs(len(closest) - expected) <= _TYPICAL * expected:
                break
        return closest


def choose(fleet: Fleet, target: float, cores: int) -> TwoLevels:
    """Choose rates below what the fleet can carry, yet above what its most accurate class can."""
    feasible = feasible_rate(fleet, target, cores)
    best = int(np.argmax(fleet.accuracy))
    alone = float(min(fleet.count[best], cores) * fleet.rate[best])
    mean = 1.25 * alone
    quiet = mean / ((1 - _PART) + _PART * _SWING)
    burst = _SWING * quiet
    if burst > _PEAK_LOAD * feasible:
        burst = _PEAK_LOAD * feasible
        quiet = min((mean - _PART * burst) / (1 - _PART), 0.9 * burst)
    return TwoLevels(feasible, alone, quiet, burst)


def latency_table(target: float, rows: Sequence[Row], bound: Row, load: TwoLevels) -> Table:
    """Lay out accuracies and latencies beside the bound."""
    times_s = ("mean_s", "p50_s", "p95_s", "p99_s")
    cells = [
        [
            row["policy"],
            accuracy(row["accuracy"], tuple(row["accuracy_interval"])),
            *(milliseconds(row[time_s]) for time_s in times_s),
            percent(row["rejected"]),
        ]
        for row in rows
    ]
    for name, one in ((_BOUND, bound), (_NARROW, bound["escalate"])):
        cells.append([name, "", milliseconds(one["least_response_time_s"]), "", "", "", ""])
    return table(
        f"Task {TASK}, accuracy target {target:g}: latency in ms, the same "
        f"{rows[0]['offered']} requests for each policy",
        ["policy", "accuracy", "mean", "p50", "p95", "p99", "rejected"],
        cells,
        caption=(
            f"{bound['rate_per_s']:.0f} requests/s in the mean, switching between "
            f"{load.quiet_per_s:.0f}/s and {load.burst_per_s:.0f}/s. The most accurate variant "
            f"alone carries {load.most_accurate_per_s:.0f}/s; all together, at the target, "
            f"{load.feasible_per_s:.0f}/s on {cores()} cores."
        ),
    )


def shares_table(
    target: float, rows: Sequence[Row], bound: Row, accuracies: Mapping[str, float]
) -> Table:
    """Lay out who gave which part of the answers; variants come with their profile accuracies."""
    shown = [
        (row["policy"], row["shares"], row["profile_accuracy"], row["promise"]["state"])
        for row in rows
    ]
    return table(
        "Answers by variant, and the mean of their accuracies by profile",
        [
            "policy",
            "mean",
            "promise",
            *(f"{name}\n{value:.3f}" for name, value in accuracies.items()),
        ],
        [
            [name, f"{mean:.4f}", state, *(percent(parts.get(one, 0.0), 0) for one in accuracies)]
            for name, parts, mean, state in [
                *shown,
                (_BOUND, bound["shares"], target, ""),
                (_NARROW, bound["escalate"]["shares"], target, ""),
            ]
        ],
    )


def twin_table(twins: Mapping[str, Row]) -> Table:
    """Lay out recorded runs against their simulations."""

    def compared(trace: Row, what: str) -> list[str]:
        times_s = [trace[side]["response_time_s"][what] for side in ("live", "twin")]
        return [*map(milliseconds, times_s), relative(trace["error"][what])]

    cells = [
        [policy, *compared(one, "mean"), *compared(one, "p95"), points(one["error"]["accuracy"])]
        for policy, one in twins.items()
    ]
    return table(
        "Live against twin: the recorded requests, simulated; response times in ms",
        ["policy", "mean", "twin", "error", "p95", "twin", "error", "accuracy"],
        cells,
        caption=(
            "Response times as the server has them, without the generator's part. The twin "
            "has the recorded arrivals and the policy's own code, and draws service times "
            "from those of the very same recording."
        ),
    )


def claims(target: float, rows: Sequence[Row]) -> list[Claim]:
    """Check what is to be shown; a claim about a policy that did not run is left out."""
    by_name = {row["policy"]: row for row in rows}
    keeping = [by_name[name] for name in ("tad-op", "priced", ESCALATE) if name in by_name]
    least = target - NEAR
    # Two of them count what they owe; the other is near the target.
    sayings = {
        "tad-op": (f"tad-op is within {NEAR:g} of the target {target:g}", least),
        "priced": (f"priced keeps the target {target:g}", target - SLACK),
        ESCALATE: (f"{ESCALATE} keeps the target {target:g}", target - SLACK),
    }
    found = [
        ours(
            says=says,
            value=min(row["profile_accuracy"] - lowest, row["accuracy_interval"][1] - target),
            at_least=0.0,
            why=f"{row['profile_accuracy']:.4f} by profile, {row['accuracy']:.3f} measured",
        )
        for row in keeping
        for says, lowest in (sayings[row["policy"]],)
    ]
    if fastest := by_name.get("fastest-only"):
        high = fastest["accuracy_interval"][1]
        found.append(
            ours(
                says="fastest-only misses the target",
                value=min(target - high, least - fastest["profile_accuracy"]),
                at_least=ABOVE_ZERO,
                why=f"{fastest['accuracy']:.3f}, at most {high:.3f}",
            )
        )
    if accurate := by_name.get("most-accurate-only"):
        for row in keeping:
            times = accurate["p95_s"] / row["p95_s"]
            says = f"most-accurate-only has at least {SPEEDUP:g} times the p95 of {row['policy']}"
            found.append(ours(says=says, value=times, at_least=SPEEDUP, why=f"{times:.1f} times"))
    if (once := by_name.get("priced")) and (twice := by_name.get(ESCALATE)):
        part = twice["mean_s"] / once["mean_s"]
        found.append(
            ours(
                says=f"{ESCALATE} has at most half of the mean of priced",
                value=HALF - part,
                at_least=0.0,
                why=f"{twice['mean_s'] * 1e3:.2f} of {once['mean_s'] * 1e3:.2f} ms, {part:.2f}",
            )
        )
    return found


def compare_policies(
    *,
    out: Path = Path("out"),
    seed: int = 1,
    duration_s: float = DURATION_S,
    within_s: float = WITHIN_S,
    policies: Sequence[str] = POLICIES,
    progress: Progress | None = None,
    look: Onlooker | None = None,
) -> LiveComparison:
    """Serve the digits zoo on this machine and compare policies on one bursty stream.

    Every policy gets the same images at the same times from a generator in a process of its own.

    Parameters
    ----------
    out
        Folder for the figure and the sample request; made if needed.
    seed
        Of arrival times and of the choice of images.
    duration_s
        Length of the stream for each policy, seconds.
    within_s
        Shorten the streams, to half of that at most, so that the last ends within this time,
        seconds.
    policies
        Which to run, in this order.
    progress
        Called with what is being done and the part of all that is done, 0..1.
    look
        Called with what is being done and the servers there are, whenever either changes.

    Raises
    ------
    DemoError
        When a server does not start or answers nothing.
    """
    total_s = _CALIBRATION_S + len(policies) * (duration_s + _START_S + _TWIN_S)
    steps = Steps(progress, total_s, look)
    with Contest.of(_FILE, seed, within_s, steps) as contest:
        deployment, folder = contest.deployment, contest.folder
        target = deployment.tasks[TASK].accuracy_target
        assert target is not None
        fleet = fleet_of(deployment, TASK)
        steps.begin("measuring this machine: starting a server", 2 * _START_S)
        with launch(deployment.path) as launched:
            url = launched.address().url
            steps.begin("measuring this machine", _CALIBRATION_S - 2 * _START_S)
            calibration = calibrate(url, fleet, progress=steps)
            request = body(signature(url, TASK), testset(TASK).images[0])
        load = choose(as_measured(fleet, calibration.service_s), target, cores())
        arrivals = {"arrivals": json.loads(json.dumps(asdict(load.process())))}
        served = with_service(deployment, calibration.service_s, {f"workload.{TASK}": arrivals})
        files = {
            policy: write(served.with_(policy=policy), folder / f"{policy}.yaml")
            for policy in policies
        }
        recordings = {policy: folder / f"{policy}-recording" for policy in policies}
        accuracies = dict(zip(fleet.variants, fleet.accuracy.tolist(), strict=True))
        steps.begin("starting a server for each policy", len(policies) * _START_S)
        with serving(files, recordings) as servers:
            # Between two streams: encoding, the last answers.
            duration_s = contest.fitting(duration_s, len(policies), 2.0)
            times_s = load.arrivals(duration_s, seed)
            measure = partial(_measured, accuracies, target)
            rows = contest.drive(servers, times_s, duration_s, measure)
        # With the servers gone: their recordings are complete, and the cores are free.
        steps.begin("simulating what was recorded", len(policies) * _TWIN_S)
        twins, lost = replayed(TASK, files, recordings)
    bound = _bound(as_measured(fleet, calibration.least_s), target, len(times_s) / duration_s)
    marked = ("policy", "accuracy", "accuracy_interval", "mean_s", "p95_s")
    drawn = trade_off(
        [Mark(*(row[of] for of in marked)) for row in rows],
        bounds={_BOUND: bound["line"], _TWICE: bound["escalate"]["line"]},
        target=target,
        title="Latency against accuracy, one machine, the same requests",
        latency_label="mean latency (whisker: 95th percentile)",
    )
    figure = save(drawn, out / "demo")
    (out / "request.json").write_bytes(request)
    little = (
        f"the most accurate variant alone carries {load.most_accurate_per_s:.0f}/s, and no "
        f"more than {load.mean_per_s:.0f}/s can be offered: the comparison shows little here"
    )
    warnings = [
        *([] if load.telling else [little]),
        *warnings_of(rows, 2e-3, "so latencies are partly its own"),
        *lost,
    ]
    return contest.result(
        rows=rows,
        found={
            "task": TASK,
            "target": target,
            "policies": rows,
            "bound": bound,
            "load": asdict(load) | {"mean_per_s": load.mean_per_s},
            "service_s": calibration.service_s,
            "twin": twins,
            "figure": [str(path) for path in figure],
            "request": str(out / "request.json"),
        },
        claims=claims(target, rows),
        tables=[
            latency_table(target, rows, bound, load),
            shares_table(target, rows, bound, accuracies),
            *([twin_table(twins)] if twins else []),
        ],
        closing=[f"\nFigure: {figure[0]} and {figure[1].name}", _next_steps(out)],
        warnings=warnings,
    )


def replayed(
    task: str, files: Mapping[str, Path], recordings: Mapping[str, Path]
) -> tuple[dict[str, Any], list[str]]:
    """Simulate recorded runs; by name what ``--trace`` says, and what could not be simulated."""
    shown = ("--replications", "4", "--workers", "1")
    found, warnings = simulate(
        {
            name: [str(file), "--trace", str(recordings[name]), *shown]
            for name, file in files.items()
        }
    )
    return {name: one["tasks"][task]["trace"] for name, one in found.items()}, warnings


def _measured(
    accuracies: Mapping[str, float],
    target: float,
    policy: str,
    record: Record,
    interval: Interval,
) -> Row:
    found = summary(record, accuracies).judged(target, overloaded=False)
    answered = record.answered
    if found.accuracy is None or found.profile_accuracy is None or found.promise is None:
        raise DemoError(f"{policy}: none of {found.offered} requests was answered as expected")
    times_s = ("mean_s", "p50_s", "p95_s", "p99_s")
    return {
        "policy": policy,
        "accuracy": found.accuracy,
        "accuracy_interval": interval(record.correct[answered], record.item[answered]),
        "profile_accuracy": found.profile_accuracy,
        "promise": found.promise.to_json(),
        **{time_s: getattr(found, time_s) for time_s in times_s},
        "rejected": found.rejected / found.offered,
        "failed": found.failed / found.offered,
        "shares": {name: found.shares[name] for name in accuracies if name in found.shares},
        "offered": found.offered,
        "send_lag_p99_s": found.send_lag_p99_s,
    }


def _bound(fleet: Fleet, target: float, rate_per_s: float) -> Row:
    """Solve both LPs at the stream's mean rate, for the target and for those that can be kept."""
    best = solve(fleet, target, rate_per_s)
    twice = escalation_bound(fleet, target=target, rate_per_s=rate_per_s)
    assert twice.first is not None
    shares = dict(twice.first)  # of the answers that are sent
    for one in twice.then or ():
        shares[one.first] -= one.share
        shares[one.then] += one.share
    return {
        "rate_per_s": rate_per_s,
        "max_rate_per_s": max_rate(fleet, target),
        "least_response_time_s": best.response_time_s,
        "shares": dict(zip(fleet.variants, best.shares.tolist(), strict=True)),
        "line": _line(fleet, [*fleet.accuracy, target], rate_per_s, max_rate, solve),
        "escalate": twice.to_json()
        | {
            "shares": shares,
            "line": _line(
                fleet,
                [*fleet.accuracy, target, twice.best_accuracy],
                rate_per_s,
                max_escalation_rate,
                solve_escalation,
            ),
        },
    }


def _line(
    fleet: Fleet,
    accuracies: Sequence[float],
    rate_per_s: float,
    most: Callable[[Fleet, float], float],
    least: Callable[[Fleet, float, float], Optimum | EscalationOptimum],
) -> list[list[float]]:
    """Draw the least latency at a rate over targets that can be kept; it bends at accuracies."""
    even = np.linspace(min(accuracies), max(accuracies), _POINTS)
    return [
        [goal, least(fleet, goal, rate_per_s).response_time_s]
        for goal in np.unique([*even, *accuracies]).tolist()
        if most(fleet, goal) >= rate_per_s
    ]


def _next_steps(out: Path) -> str:
    """Return commands for a request of one's own that work from the current folder."""
    text, example = template(_FILE), Path("examples", _FILE)
    if not example.is_file() or example.read_text(encoding="utf-8") != text:
        example = out / _FILE
        example.write_text(text, encoding="utf-8")
    command = own_command()
    # Short enough to stay on one line of a terminal, so that they can be copied.
    return (
        f"\nA request of your own, in two terminals:\n  {command} serve {example}\n"
        f"  curl -s localhost:8000/v2/models/{TASK}/infer -d @{out / 'request.json'}"
    )
