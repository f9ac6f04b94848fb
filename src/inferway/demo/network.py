"""The network demo: five nodes on this machine, one placement policy after another, same requests.

The nodes are processes of their own that stand as far from each other as the file says, by delays
that they add themselves. Each policy starts anew, is driven for some slots by one generator, and is
stopped; both twins then predict, from the file alone, what was measured.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from inferway.demo.calibration import calibrate, cores
from inferway.demo.error import DemoError
from inferway.demo.machine import machine
from inferway.demo.network_files import FILE, TASK, alone, read_section, timed, with_policy
from inferway.demo.network_nodes import Course, Watch, network
from inferway.demo.network_result import MOST_CPU, REPOSITORY, NetworkDemoResult, PolicyResult
from inferway.demo.network_twin import predict
from inferway.demo.server import launch
from inferway.demo.steps import Progress, Steps
from inferway.loadgen import NetworkRecord, drive_network, network_summary
from inferway.placement.table import HINDSIGHT

if TYPE_CHECKING:
    import pandas as pd

    from inferway.deployment import Deployment

__all__ = ["POLICIES", "SLOTS", "run"]

POLICIES: Final = ("infida", "static-greedy", "olag", REPOSITORY)
SLOTS: Final = 6
"""For each policy."""
WITHIN_S: Final = 165.0
"""What the whole demo may take: below three minutes, also where compiling takes long."""

_NAMES: Final = {REPOSITORY: "repository-only"}
_EACH_S: Final = 0.6
_READY_S: Final = 120.0
_LATE_S: Final = 5e-3
_SLOWER: Final = 1.2
"""How much longer than the first network the others may take to start."""
_OTHERS: Final = 0.15
"""Share of the machine that other programs may take without being mentioned."""
# Guesses of how long the parts besides the requests take.
_CALIBRATION_S: Final = 8.0
_START_S: Final = 10.0
_AROUND_S: Final = 4.0  # waiting for a slot to begin, the last answers, stopping the nodes
_TWIN_S: Final = 2.0


def run(
    *,
    out: Path = Path("out"),
    seed: int = 1,
    policies: Sequence[str] = POLICIES,
    slots: int = SLOTS,
    within_s: float = WITHIN_S,
    progress: Progress | None = None,
) -> NetworkDemoResult:
    """Run a delivery network on this machine under one placement policy after another.

    Every policy gets the same images at the same times at the same nodes. Service times are
    measured at the start, and are those that nodes, placement and twins go by.

    Parameters
    ----------
    out
        Folder for the figure, the requests and slots (Parquet) and the deployment file; made if
        needed.
    seed
        Of the requests and the choice of images.
    policies
        Which to run, in this order: `repository`, or names of `inferway.placement.POLICIES`.
    slots
        How many to drive each policy for.
    within_s
        Drive for fewer slots, a third of them at least, so that all ends within this time, seconds.
    progress
        Called with what is being done and the part of all that is done, 0..1.

    Returns
    -------
    result
        After Ctrl-C of those policies for which something is known.

    Raises
    ------
    DemoError
        When nodes do not start or answer nothing.
    KeyboardInterrupt
        After Ctrl-C before anything was known.
    """
    import inferway

    began = time.monotonic()
    text = files("inferway.demo").joinpath(FILE).read_text(encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="inferway-demo-") as name:
        folder = Path(name)
        plain = folder / FILE
        plain.write_text(text, encoding="utf-8")
        slot_s = _slot_s(inferway.load(plain))
        each_s = slots * slot_s + _START_S + _AROUND_S + _TWIN_S
        steps = Steps(progress, _CALIBRATION_S + len(policies) * each_s)
        service_s = _measured(text, inferway.load(plain), folder, steps)
        left = timed(text, service_s, out / FILE)
        demo = _Demo(inferway.load(left), folder, seed, slots, began + within_s, steps)
        interrupted = False
        try:
            for policy in policies:
                demo.drive(policy, len(policies))
            for policy in policies:
                demo.foresee(policy)
        except KeyboardInterrupt:
            if not demo.results:
                raise
            interrupted = True
    results = tuple(demo.results.values())
    return NetworkDemoResult(
        policies=results,
        slots=demo.slots,
        slot_s=slot_s,
        rate_per_s=float(np.mean([one.offered / len(one.gain_ms) for one in results])) / slot_s,
        service_s=service_s,
        files=(*demo.write(out), left),
        machine=machine(),
        seed=seed,
        seconds=time.monotonic() - began,
        interrupted=interrupted,
        warnings=tuple(_warnings(results)),
    )


class _Demo:
    """What is known so far, policy by policy."""

    def __init__(
        self,
        deployment: Deployment,
        folder: Path,
        seed: int,
        slots: int,
        end_s: float,
        steps: Steps,
    ) -> None:
        self.deployment, self.slots = deployment, slots
        self.results: dict[str, PolicyResult] = {}
        self._records: dict[str, NetworkRecord] = {}
        self._folder, self._seed, self._end_s = folder, seed, end_s
        self._slot_s = _slot_s(deployment)
        self._steps = steps

    def drive(self, policy: str, policies: int) -> None:
        """Run a policy's nodes, send them the requests, and keep what they answered.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C; what was answered in whole slots until then is kept.
        """
        steps, began = self._steps, time.monotonic()
        steps.begin(f"{policy}: starting the nodes", _START_S)
        with network(self._deployment_of(policy), self._folder / policy) as up:
            if not self.results:
                self._fit(policies, time.monotonic() - began)
            steps.begin(policy, self.slots * self._slot_s + _AROUND_S)
            with Watch(up, self._slot_s) as watch:
                record = drive_network(
                    self.deployment,
                    {node: up.url(node) for node in up.nodes},
                    duration_s=self.slots * self._slot_s,
                    seed=self._seed,
                    with_slots=True,
                    progress=lambda doing, part: steps.tell(f"{policy}: {doing}", part),
                )
        slots = self.slots
        if record.interrupted:
            slots = math.floor(record.sent_s[-1] / self._slot_s) if len(record) else 0
            record = record.only(record.slot < slots)
        if slots:
            self._records[policy] = record
            self.results[policy] = _result(
                policy, record, watch.course(record.began_s, slots), self.deployment
            )
        if record.interrupted:
            raise KeyboardInterrupt

    def foresee(self, policy: str) -> None:
        """Have both twins predict what a policy led to."""
        measured = self.results[policy]
        self._steps.begin(f"{policy}: simulating", _TWIN_S)
        entered = 0

        def told(number: int) -> None:
            nonlocal entered
            entered += number
            self._steps.tell(f"{policy}: simulating", entered / measured.offered)

        found = predict(
            self.deployment,
            _NAMES.get(policy, policy),
            slots=self.slots,
            seed=self._seed,
            progress=told,
        )
        self.results[policy] = replace(measured, twin=found)

    def write(self, out: Path) -> tuple[Path, ...]:
        """Write the figure, every request, and every slot."""
        import pandas as pd

        from inferway.demo.network_figure import draw

        requests = pd.concat(
            [
                pd.DataFrame(record.to_frame()).assign(policy=policy)
                for policy, record in self._records.items()
            ],
            ignore_index=True,
        )
        for name in ("policy", *requests.columns):
            if requests[name].dtype == object:  # names repeat on every row
                requests[name] = requests[name].astype("category")
        slots = pd.concat([_slots(one, self._slot_s) for one in self.results.values()])
        paths = (out / "network-requests.parquet", out / "network-slots.parquet")
        requests.to_parquet(paths[0], index=False)
        slots.to_parquet(paths[1], index=False)
        figure = draw(out / "network", list(self.results.values()), self._slot_s)
        return (*figure, *paths)

    def _fit(self, policies: int, start_s: float) -> None:
        """Take as many slots as the time allows, a third of those asked for at least."""
        others_s = (policies - 1) * _SLOWER * start_s + policies * (_AROUND_S + _TWIN_S)
        left_s = self._end_s - time.monotonic() - others_s
        fit = math.floor(left_s / policies / self._slot_s)
        self.slots = min(max(fit, math.ceil(self.slots / 3)), self.slots)
        self._steps.expect(
            left_s=others_s + policies * self.slots * self._slot_s,
        )

    def _deployment_of(self, policy: str) -> Deployment:
        """What the nodes are given."""
        import inferway

        name = _NAMES.get(policy, policy)
        nodes = None
        if name in HINDSIGHT:
            placed = inferway.place(self.deployment, policy=name, slots=self.slots).yaml
            nodes = read_section(placed, "nodes")
        path = self._folder / f"{policy}.yaml"
        return inferway.load(with_policy(self.deployment.path, name, nodes, path))


def _slot_s(deployment: Deployment) -> float:
    assert deployment.placement is not None
    return float(deployment.placement.options["slot"])


def _measured(text: str, deployment: Deployment, folder: Path, steps: Steps) -> dict[str, float]:
    """Service times of this machine, in seconds by variant."""
    from inferway.catalog.zoo import testset

    steps.begin("measuring this machine", _CALIBRATION_S)
    variants = deployment.tasks[TASK].variants.values()
    expected = {one.name: one.service_on("cpu").mean_s for one in variants}
    expected = dict(sorted(expected.items(), key=lambda pair: pair[1]))
    with launch(alone(text, folder / "alone.yaml")) as launched:
        url = launched.url(_READY_S)
        images = testset(TASK).images[:256]
        found = calibrate(url, TASK, images, expected, each_s=_EACH_S, progress=steps)
    return found.service_s


def _result(
    policy: str, record: NetworkRecord, course: Course, deployment: Deployment
) -> PolicyResult:
    found = network_summary(record, deployment)
    whole = found.whole
    if not whole.answered or whole.accuracy is None or whole.profile_accuracy is None:
        raise DemoError(
            f"{policy}: none of {whole.offered} requests was answered: {whole.failures}"
        )
    have_s = course.lasted_s * cores()
    own_s = course.cpu_s + record.cpu_s
    return PolicyResult(
        policy=policy,
        ntag_ms=found.gain.ntag_ms,
        latency_s=whole.mean_s,
        accuracy=whole.accuracy,
        profile_accuracy=whole.profile_accuracy,
        moved_bytes_per_slot=float(np.mean(course.moved_bytes)),
        offered=whole.offered,
        lost=whole.offered - whole.answered,
        errors=whole.failed,
        gain_ms=tuple(found.gain.gain_ms.tolist()),
        moved_bytes=course.moved_bytes,
        cpu_share=own_s / have_s,
        other_share=(
            None if course.machine_s is None else max(0.0, course.machine_s - own_s) / have_s
        ),
        send_lag_p99_s=whole.send_lag_p99_s,
    )


def _slots(one: PolicyResult, slot_s: float) -> pd.DataFrame:
    import pandas as pd

    count = len(one.gain_ms)
    unknown = [math.nan] * count
    return pd.DataFrame(
        {
            "policy": pd.Categorical([one.policy] * count),
            "slot": range(count),
            "time_s": [slot * slot_s for slot in range(count)],
            "gain_ms": one.gain_ms,
            "predicted_gain_ms": unknown if one.twin is None else one.twin.gain_ms[:count],
            "slot_gain_ms": unknown if one.twin is None else one.twin.slot_gain_ms[:count],
            "moved_bytes": one.moved_bytes,
        }
    )


def _warnings(results: Sequence[PolicyResult]) -> list[str]:
    found = []
    for one in results:
        if one.cpu_share > MOST_CPU:
            found.append(
                f"{one.policy}: nodes and generator took {one.cpu_share:.0%} of this machine's "
                f"CPU time, more than {MOST_CPU:.0%}: they wait for each other, so the gain says "
                "little"
            )
        if one.other_share is not None and one.other_share > _OTHERS:
            found.append(
                f"{one.policy}: other programs took {one.other_share:.0%} of this machine's CPU "
                "time, so latencies are partly theirs"
            )
        if one.send_lag_p99_s > _LATE_S:
            found.append(
                f"{one.policy}: the generator sent 1 request in 100 more than "
                f"{one.send_lag_p99_s * 1e3:.1f} ms late, and its own lateness counts"
            )
    return found
