"""One comparison of subjects on this machine, under the same requests, and how it is shown."""

from __future__ import annotations

import functools
import io
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import inferway
from inferway.deployment import Deployment
from inferway.experiments.claim import Claim, as_text
from inferway.experiments.results import cluster_bootstrap
from inferway.experiments.runner import Point, in_turn
from inferway.loadgen import Record, drive
from inferway.machine import machine
from inferway.profiling.testset import accuracy_images
from inferway.site.fleet import fleet_of
from inferway.studies.live.servers import LiveAddress, calibrate, launch

TASK: Final = "digits"  # of all comparisons
ABOVE_ZERO: Final = math.ulp(0.0)  # for a claim's `at_least`
PATIENT_S: Final = 120.0  # that a server may take to start, where several start at once

Progress = Callable[[str, float], None]


class SeenServer(NamedTuple):
    """A server of a comparison as onlookers are told of it.

    Attributes
    ----------
    url
        Of its admin listener.
    name
        What it is called, if not by its own name.
    ended
        Whether it has had its turn.
    """

    url: str
    name: str = ""
    ended: bool = False


Onlooker = Callable[[str, Sequence[SeenServer]], None]
"""Is told what is being done, and the servers that there are, whenever either changes."""
Row = dict[str, Any]
# Gives the 95 % interval of a mean over requests, from values and numbers of images.
Interval = Callable[[NDArray[np.bool_], NDArray[np.integer]], list[float]]

ours = functools.partial(Claim, "ours", measure="")


@dataclass(frozen=True, kw_only=True)
class LiveComparison:
    """Results of a comparison; `to_json` and `to_text` show them."""

    rows: list[Row]  # one for each policy, in the order of the runs
    found: dict[str, Any]  # whatever else was measured, and the rows, as `to_json` has them
    claims: list[Claim]  # what the comparison is to show, as far as it ran
    tables: list[Table]  # the claims come after the second
    closing: list[str]  # files, and what can be done with them
    seed: int  # of the requests
    seconds: float  # that it took
    warnings: list[str]  # what spoils the measurement
    interrupted: bool = False  # by Ctrl-C

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "schema": 1,
            **self.found,
            "claims": [
                {"claim": one.says, "holds": one.reproduced is True, "measured": one.why}
                for one in self.claims
            ],
            "machine": machine(("onnxruntime",)),
            "seed": self.seed,
            "seconds": self.seconds,
            "warnings": self.warnings,
        }

    def to_text(self) -> list[RenderableType]:
        """Return what to print, in order."""
        first, second, *more = self.tables
        parts: list[RenderableType] = [first, Text(), second]
        if self.claims:
            parts += [Text(), *as_text(self.claims, short=True)]
        for table in more:
            parts += [Text(), table]
        early = ["Ended before its time: this is what is known."] if self.interrupted else []
        warnings = [*early, *(f"Warning: {warning}" for warning in self.warnings)]
        parts += [Text(sentence, style="yellow") for sentence in warnings]
        return [*parts, *map(Text, self.closing)]


@dataclass(frozen=True)
class Contest:
    """One comparison while it runs: its subjects take turns under the same requests.

    Times are on the monotonic clock; the end is when it ought to be over.
    """

    deployment: Deployment
    folder: Path  # where its own files are, until it ends
    seed: int  # of the requests
    began_s: float
    end_s: float
    steps: Steps

    @classmethod
    @contextmanager
    def of(cls, file: str, seed: int, within_s: float, steps: Steps) -> Iterator[Contest]:
        """Begin a comparison on a file beside this one; its folder goes when the block ends."""
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="inferway-demo-") as name:
            plain = Path(name, file)
            plain.write_text(template(file), encoding="utf-8")
            deployment = inferway.load(plain)
            yield cls(deployment, Path(name), seed, began_s, began_s + within_s, steps)

    def alone(self, expected_s: float, each_s: float = 1.5) -> dict[str, float]:
        """Measure the variants' service times here, in seconds, on a site without a deadline.

        On a slow machine lone requests are late, too: nobody is to refuse them.
        """
        self.steps.begin("measuring this machine", expected_s)
        file = write(site_of(self.deployment), self.folder / "alone.yaml")
        with launch(file) as launched:
            fleet = fleet_of(inferway.load(file), TASK)
            url = launched.address(PATIENT_S).url
            return calibrate(url, fleet, each_s=each_s, progress=self.steps).service_s

    def fitting(self, duration_s: float, subjects: int, around_s: float) -> float:
        """Shorten each subject's stream to what is left of the time, to half of it at most."""
        left_s = (self.end_s - time.monotonic()) / subjects - around_s
        return max(min(duration_s, left_s), duration_s / 2)

    def drive(
        self,
        servers: Mapping[str, LiveAddress],
        times_s: NDArray[np.float64],
        duration_s: float,
        measure: Callable[[str, Record, Interval], Row],
    ) -> list[Row]:
        """Send the same images at the same times to one server after the other.

        They are of the half of the test set that accuracies by profiles are from. `measure` makes a
        row of what each answered. KeyboardInterrupt where requests were stopped.
        """
        images = accuracy_images(TASK)
        item = np.random.default_rng(self.seed).integers(0, len(images), len(times_s))
        used, item = np.unique(item, return_inverse=True)
        stream = (TASK, times_s, images.images[used], images.labels[used])

        def interval(values: NDArray[np.bool_], of: NDArray[np.integer]) -> list[float]:
            # Variations of one original are no images of their own.
            return list(cluster_bootstrap(values, images.source[used][of], seed=self.seed))

        def send(name: str) -> Row:
            self.steps.begin(name, duration_s)
            # Whose turn it is comes first.
            seen.insert(0, SeenServer(servers[name].admin, name))
            self.steps.show(seen)
            record = drive(servers[name].url, *stream, item=item, progress=self.steps)
            if record.interrupted:
                raise KeyboardInterrupt
            seen[0] = seen[0]._replace(ended=True)
            self.steps.show(seen)
            return measure(name, record, interval)

        seen: list[SeenServer] = []
        return in_turn(Point({"name": name}, send, {"name": name}) for name in servers)

    def result(self, **parts: Any) -> LiveComparison:
        """End the comparison with what was found: the other fields of the result."""
        return LiveComparison(seed=self.seed, seconds=time.monotonic() - self.began_s, **parts)


def template(file: str) -> str:
    """Read one of the deployment files beside this one."""
    return files("inferway.studies.live").joinpath(file).read_text(encoding="utf-8")


def with_service(
    deployment: Deployment, service_s: Mapping[str, float], changes: Mapping[str, Any] | None = None
) -> Deployment:
    """Return the deployment with this machine's service times, in seconds by variant, and more."""
    times: dict[str, Any] = {
        f"tasks.{TASK}.variants.{name}.service": {"mean": f"{mean_s:.9f} s"}
        for name, mean_s in service_s.items()
    }
    return deployment.with_(**times, **(changes or {}))


def site_of(deployment: Deployment) -> dict[str, Any]:
    """Return the data of a site that serves each variant once, without network and deadline."""
    variants = deployment.source.data["tasks"][TASK]["variants"]
    return {
        "tasks": {TASK: {"variants": variants}},
        "nodes": {"here": {"instances": {f"{TASK}/{name}": 1 for name in variants}}},
        # Every request names the variant that it is for.
        "dispatch": {"policy": "fastest-only"},
    }


def write(deployment: Deployment | Mapping[str, Any], path: Path) -> Path:
    """Write a deployment, or the data of one, to a file."""
    from ruamel.yaml import YAML

    written = io.StringIO()
    data = deployment if isinstance(deployment, Mapping) else deployment.source.data
    YAML(typ="safe").dump(data, written)
    path.write_text(written.getvalue(), encoding="utf-8")
    return path


def own_command() -> str:
    """Name this command as a shell in this folder finds it: by its name, or else by its path."""
    command, beside = "inferway", Path(sys.executable).with_name("inferway")
    if not beside.exists() or Path(shutil.which(command) or "") == beside:
        return command
    near = beside.is_relative_to(Path.cwd())
    return str(beside.relative_to(Path.cwd()) if near else beside)


def late(row: Mapping[str, Any]) -> str:
    """Say by how much the generator was late."""
    return (
        f"the generator sent 1 request in 100 more than {row['send_lag_p99_s'] * 1e3:.1f} ms late"
    )


def warnings_of(rows: Sequence[Mapping[str, Any]], most_s: float, then: str) -> list[str]:
    """Say who was sent to late, with what follows, and who did not answer at all.

    A row's first column is its name.
    """
    latest = max(rows, key=lambda row: float(row["send_lag_p99_s"]))
    busy = f"{late(latest)} ({next(iter(latest.values()))}), {then}"
    failed = ", ".join(str(next(iter(row.values()))) for row in rows if row["failed"] > 0)
    said = {
        f"{busy}: this machine is busy with other things": latest["send_lag_p99_s"] > most_s,
        f"some requests had no answer at all: {failed}": failed,
    }
    return [sentence for sentence, holds in said.items() if holds]


class Steps:
    """Turns the parts' own progress into one fraction of the whole.

    `progress` is told what is being done and the part of all that is done, 0..1; all parts are
    expected to take `total_s` seconds. `look` is told of the servers, too.
    """

    def __init__(
        self, progress: Progress | None, total_s: float, look: Onlooker | None = None
    ) -> None:
        self._progress, self._total_s, self._look = progress, total_s, look
        self._seen: list[SeenServer] = []
        self._before_s = self._step_s = 0.0
        self._doing = ""

    def begin(self, doing: str, expected_s: float) -> None:
        """Go on to the next part."""
        self._before_s += self._step_s
        self._step_s, self._doing = expected_s, doing
        self.tell(doing, 0.0)
        self.show(self._seen)

    def show(self, servers: Iterable[SeenServer]) -> None:
        """Tell whoever looks on which servers there are now."""
        self._seen = list(servers)
        if self._look is not None:
            self._look(self._doing, self._seen)

    def expect(self, left_s: float) -> None:
        """Go by another guess of how long what is left takes, from the end of this part on."""
        self._total_s = self._before_s + self._step_s + left_s

    def tell(self, doing: str, part: float) -> None:
        """Tell what is being done, and which part of it is done, 0..1."""
        if self._progress is not None:
            done_s = self._before_s + self._step_s * part
            left_s = max(self._total_s - done_s, 0.0)
            share = min(done_s / max(self._total_s, 1e-9), 1.0)
            self._progress(f"{doing}, {left_s:.0f} s left", share)

    def __call__(self, due: int, ended: int, planned: int) -> None:
        """Tell how far the part is: `ended` of `planned`."""
        count = f" ({ended} of {planned} requests)" if planned > 1 else ""
        self.tell(f"{self._doing}{count}", ended / max(planned, 1))
