"""What live comparisons share: requests, servers in turn, progress, and how results are shown."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.catalog.zoo import testset
from inferway.experiments.claim import Claim
from inferway.experiments.intervals import cluster_bootstrap
from inferway.experiments.machine import machine
from inferway.loadgen import Record, drive
from inferway.studies.live.servers import READY_S, launch

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from inferway.deployment import Deployment

TASK: Final = "digits"
"""The task of all comparisons."""
SCHEMA: Final = 1

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class LiveComparison:
    """Results of a comparison; `to_json` and `to_text` show them."""

    rows: list[dict[str, Any]]
    """One for each policy, in the order of the runs."""
    found: dict[str, Any]
    """Whatever else was measured, and the rows, as `to_json` has them."""
    claims: list[Claim]
    """What the comparison is to show, as far as it ran."""
    tables: list[Table]
    """The claims come after the second."""
    closing: list[str]
    """Files, and what can be done with them."""
    began: float
    """On the monotonic clock."""
    seed: int
    warnings: list[str]
    """What spoils the measurement."""
    interrupted: bool = False
    """Whether Ctrl-C ended it."""
    machine: dict[str, Any] = field(default_factory=lambda: machine(("onnxruntime",)))
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", time.monotonic() - self.began)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        claims = [
            {"claim": one.says, "holds": one.reproduced is True, "measured": one.why}
            for one in self.claims
        ]
        return {
            "schema": SCHEMA,
            **self.found,
            "claims": claims,
            "machine": self.machine,
            "seed": self.seed,
            "seconds": self.seconds,
            "warnings": self.warnings,
        }

    def to_text(self) -> list[RenderableType]:
        """Return what to print, in order."""
        from rich.text import Text

        first, second, *more = self.tables
        parts: list[RenderableType] = [first, Text(), second]
        if self.claims:
            lines = [f"{'yes' if c.reproduced else 'NO '}  {c.says} ({c.why})" for c in self.claims]
            parts.append(Text("\n".join(["", *lines])))
        for table in more:
            parts += [Text(), table]
        if self.interrupted:
            parts.append(Text("Ended before its time: this is what is known.", style="yellow"))
        parts += [Text(f"Warning: {warning}", style="yellow") for warning in self.warnings]
        return [*parts, *map(Text, self.closing)]


def claim(
    says: str,
    said: str,
    value: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
) -> Claim:
    """Make a claim of ours, with what was measured in words; `above` is a limit left out."""
    if above is not None:
        at_least = math.nextafter(above, math.inf)
    return Claim("ours", says, "", value, at_least, at_most, why=said)


class ImageStream(NamedTuple):
    """A stream of labeled images, the same for everyone."""

    times_s: NDArray[np.float64]
    images: NDArray[Any]
    labels: NDArray[Any]
    item: NDArray[np.intp]
    """Which image each request has."""
    source: NDArray[np.int64]
    """Of which original each image is a variation."""

    def send(self, url: str, progress: Steps) -> Record:
        """Send all of them; raise KeyboardInterrupt where that was interrupted."""
        record = drive(
            *(url, TASK, self.times_s, self.images, self.labels),
            item=self.item,
            progress=progress,
        )
        if record.interrupted:
            raise KeyboardInterrupt
        return record

    def interval(
        self, values: NDArray[np.bool_], item: NDArray[np.integer], seed: int
    ) -> list[float]:
        """Return the 95 % interval of a mean over requests, by resampling original images."""
        return list(cluster_bootstrap(values, self.source[item], seed=seed))


def requests(times_s: NDArray[np.float64], seed: int) -> ImageStream:
    """Draw an image of the zoo's test set for each time."""
    images = testset(TASK)
    item = np.random.default_rng(seed).integers(0, len(images), len(times_s))
    used, item = np.unique(item, return_inverse=True)
    return ImageStream(times_s, images.images[used], images.labels[used], item, images.source[used])


def template(file: str) -> str:
    """Read one of the deployment files beside this one."""
    return files("inferway.studies.live").joinpath(file).read_text(encoding="utf-8")


def with_service(deployment: Deployment, service_s: Mapping[str, float], **more: Any) -> Deployment:
    """Return the deployment with this machine's service times, in seconds by variant, and more."""
    times: dict[str, Any] = {
        f"tasks.{TASK}.variants.{name}.service": {"mean": f"{mean_s:.9f} s"}
        for name, mean_s in service_s.items()
    }
    return deployment.with_(**times, **more)


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

    if not isinstance(deployment, Mapping):
        deployment = deployment.source.data
    written = io.StringIO()
    YAML(typ="safe").dump(deployment, written)
    path.write_text(written.getvalue(), encoding="utf-8")
    return path


@contextmanager
def serving(
    deployments: Mapping[str, Path],
    recordings: Mapping[str, Path] | None = None,
    ready_s: float = READY_S,
) -> Iterator[dict[str, str]]:
    """Serve each file in a process of its own while the block runs; yield addresses by name.

    All start at once, and each waits idle for its turn.
    """
    with ExitStack() as servers:
        launched = {
            name: servers.enter_context(launch(path, (recordings or {}).get(name)))
            for name, path in deployments.items()
        }
        yield {name: one.url(ready_s) for name, one in launched.items()}


def fitting(duration_s: float, left_s: float) -> float:
    """Shorten a stream to what is left of the time, to half of it at most."""
    return max(min(duration_s, left_s), duration_s / 2)


def warnings_of(rows: Sequence[Mapping[str, Any]], most_s: float, then: str) -> list[str]:
    """Say who was sent to late, with what follows, and who did not answer at all.

    A row's first column is its name.
    """
    found = []
    latest = max(rows, key=lambda row: float(row["send_lag_p99_s"]))
    if latest["send_lag_p99_s"] > most_s:
        found.append(
            f"the generator sent 1 request in 100 more than {latest['send_lag_p99_s'] * 1e3:.1f} "
            f"ms late ({next(iter(latest.values()))}), {then}: this machine is busy with other "
            "things"
        )
    failed = [str(next(iter(row.values()))) for row in rows if row["failed"] > 0]
    return [
        *found,
        *([f"some requests had no answer at all: {', '.join(failed)}"] if failed else []),
    ]


class Steps:
    """Turns the parts' own progress into one fraction of the whole.

    Parameters
    ----------
    progress
        Told what is being done and the part of all that is done, 0..1; None for nobody.
    total_s
        What all parts are expected to take, seconds.
    """

    def __init__(self, progress: Progress | None, total_s: float) -> None:
        self._progress = progress
        self._total_s = total_s
        self._before_s = 0.0
        self._step_s = 0.0
        self._doing = ""

    def begin(self, doing: str, expected_s: float) -> None:
        """Go on to the next part."""
        self._before_s += self._step_s
        self._step_s = expected_s
        self._doing = doing
        self(0, 0, 1)

    def expect(self, left_s: float) -> None:
        """Go by another guess of how long what is left takes, from the end of this part on."""
        self._total_s = self._before_s + self._step_s + left_s

    def tell(self, doing: str, part: float) -> None:
        """Tell what is being done, and which part of it is done, 0..1."""
        if self._progress is not None:
            done_s = self._before_s + self._step_s * part
            left_s = max(self._total_s - done_s, 0.0)
            self._progress(
                f"{doing}, {left_s:.0f} s left", min(done_s / max(self._total_s, 1e-9), 1.0)
            )

    def __call__(self, due: int, ended: int, planned: int) -> None:
        """Tell how far the part is: `ended` of `planned`."""
        count = f" ({ended} of {planned} requests)" if planned > 1 else ""
        self.tell(f"{self._doing}{count}", ended / max(planned, 1))
