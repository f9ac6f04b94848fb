"""How far the twin of a file with devices is off, from the file and its profile alone.

    python benchmarks/device_twin.py [--use .35 .5 .7 .85] [--duration 30] [--json]

Of the README's file and of examples/digits.yaml, whose copies share two cores: both are profiled on
this machine, now (`inferway profile --write`), and what the server itself takes of a core for a
request is measured at a rate of a tenth, and written into the file as the node's `overhead`. Then
a server answers the file's workload, at rates with which the twin says that so much of the device
is in use, for three seeds each, and `inferway drive --twin` tells the mean and the 95th percentile
of both. At up to 70 % of the device, the twin has to be within 15 % of the mean and 25 % of the
percentile, for every seed; above, the error is told. Exit code 1 where one is further off.

The generator has the same cores, and other work on the machine counts as the twin's error: let
nothing else run. `busy` is the part of the cores that was busy with neither server nor generator.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from beside import spent_s

import inferway as iw
from inferway.catalog.zoo import testset
from inferway.machine import cores, machine, made_on
from inferway.studies.live.servers import launch

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (1, 2, 3)
USES = (0.35, 0.5, 0.7, 0.85)
MOST = 0.7
"""Part of the device in use up to which the twin has to agree."""
LIMITS = {"mean": 0.15, "p95": 0.25}
CALM = 0.1
"""Of the file's rate, where the server's own time is measured."""
NEAR = 0.02
"""How far the use that the twin says may be from what was asked for."""


@dataclass(frozen=True)
class Row:
    """One run: what was asked for, and what came of it, times in seconds."""

    file: str
    use: float
    """Part of the device in use, by the twin."""
    rate_per_s: float
    seed: int
    measured_mean_s: float
    twin_mean_s: float
    measured_p95_s: float
    twin_p95_s: float
    busy: float
    """Part of this machine's cores that other programs had meanwhile."""

    @property
    def errors(self) -> dict[str, float]:
        """How far the twin is off, over what was measured."""
        return {
            "mean": self.twin_mean_s / self.measured_mean_s - 1.0,
            "p95": self.twin_p95_s / self.measured_p95_s - 1.0,
        }

    @property
    def held(self) -> bool:
        """Tell whether the twin has to agree, at this use."""
        return self.use <= MOST + NEAR

    @property
    def met(self) -> bool:
        """Tell whether it does."""
        return all(abs(self.errors[name]) <= limit for name, limit in LIMITS.items())


def readme() -> str:
    """The deployment file of the README."""
    _, _, after = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The deployment f")
    return after.partition("```yaml\n")[2].partition("```")[0]


def command(*words: str) -> Any:
    """What a command of Inferway says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "inferway", *words, "--json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise SystemExit(f"inferway {' '.join(words)} ended with {done.returncode}")
    return json.loads(done.stdout)


@contextmanager
def served(file: Path) -> Iterator[tuple[str, int]]:
    """A server of a file, warm: where it is, and its process."""
    with launch(file) as launched:
        url = launched.address().url
        command("drive", str(file), "--url", url, "--duration", "2")
        yield url, launched.process.pid


def written(file: Path, deployment: iw.Deployment, name: str) -> Path:
    """Write a changed deployment beside its file, with the same profile."""
    from ruamel.yaml import YAML

    other = file.with_name(f"{name}.yaml")
    with other.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(deployment.source.data, stream)
    profile = file.with_name(f"{file.name}.profile.json")
    if profile.exists():
        other.with_name(f"{other.name}.profile.json").write_bytes(profile.read_bytes())
    return other


def overhead_s(file: Path, duration_s: float) -> float:
    """What the server takes of a core for a request, besides what its models do, s.

    The fastest variant answers all, so that what models take hardly counts.
    """
    deployment = iw.load(file)
    calm = at_rate(deployment, CALM * simulated(deployment)[0]).with_(policy="fastest-only")
    path = written(file, calm, f"{file.stem}-calm")
    service_s = {
        name: one.service_on("cpu").mean_s for name, one in calm.tasks["digits"].variants.items()
    }
    with served(path) as (url, pid):
        before_s = spent_s(pid)
        found = command("drive", str(path), "--url", url, "--duration", str(duration_s))
        taken_s = spent_s(pid) - before_s
    of = found["tasks"]["digits"]
    models_s = sum(share * service_s[name] for name, share in of["shares"].items())
    return float(max(0.0, taken_s / of["answered"] - models_s))


def simulated(deployment: iw.Deployment) -> tuple[float, float]:
    """Rate of a deployment's workload, and the part of its device that is in use by the twin."""
    found = iw.simulate(deployment, queries=200_000, seed=1).tasks["digits"]
    assert found.devices is not None
    return float(found.to_json()["rate_per_s"]), found.devices["cpu"]


def at_rate(deployment: iw.Deployment, rate: float) -> iw.Deployment:
    """The deployment at another mean rate, whether its workload says a rate or a load."""
    greatest = iw.bound(deployment)["digits"].max_rate_per_s
    try:
        return deployment.with_(rate=rate)
    except ValueError:
        return deployment.with_(load=rate / greatest)


def at_use(deployment: iw.Deployment, use: float) -> iw.Deployment | None:
    """The deployment at a rate that uses so much of its device; None where its copies cannot."""
    rate, now = simulated(deployment)
    for _ in range(8):
        if abs(now - use) <= NEAR / 2:
            return at_rate(deployment, rate)
        rate *= use / now
        now = simulated(at_rate(deployment, rate))[1]
    return None


def processors_s() -> tuple[float, float]:
    """Seconds that all cores have worked, and that have passed of each, by Linux."""
    ticks = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hertz, sum(ticks) / hertz


def runs(file: Path, uses: list[float], duration_s: float) -> Iterator[Row]:
    """Drive a profiled file at each use with each seed."""
    deployment = iw.load(file)
    for use in uses:
        busier = at_use(deployment, use)
        if busier is None:
            print(f"{file.stem}: its copies cannot use {use:.0%} of two cores", file=sys.stderr)
            continue
        path = written(file, busier, f"{file.stem}-{use:g}")
        rate, used = simulated(busier)
        with served(path) as (url, pid):
            for seed in SEEDS:
                work_s, passed_s = processors_s()
                own_s = spent_s(pid) + sum(os.times()[:4])
                words = ("--duration", str(duration_s), "--seed", str(seed), "--twin")
                of = command("drive", str(path), "--url", url, *words)["tasks"]["digits"]
                after_s, then_s = processors_s()
                own_s = spent_s(pid) + sum(os.times()[:4]) - own_s
                error = of["twin"]["error"]
                yield Row(
                    file=file.stem,
                    use=used,
                    rate_per_s=rate,
                    seed=seed,
                    measured_mean_s=of["mean_s"],
                    twin_mean_s=of["mean_s"] * (1.0 + error["mean"]),
                    measured_p95_s=of["p95_s"],
                    twin_p95_s=of["p95_s"] * (1.0 + error["p95"]),
                    busy=max(0.0, (after_s - work_s - own_s) / (then_s - passed_s)),
                )


def main() -> None:
    """Profile, serve, drive, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--use", type=float, nargs="+", default=USES, help="of the device, 0..1")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of each run")
    parser.add_argument("--rounds", type=int, default=5, help="of the profile's measurements")
    parser.add_argument(
        "--as-shipped", action="store_true", help="with the zoo's times: only to try this out"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse_args()
    rows, overheads_s = list[Row](), dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = testset()
        np.savez(folder / "test.npz", image=tests.images, label=tests.labels, original=tests.source)
        example = (ROOT / "examples/digits.yaml").read_text(encoding="utf-8")
        for stem, text in (("readme", readme()), ("digits", example)):
            file = folder / f"{stem}.yaml"
            file.write_text(text, encoding="utf-8")
            data = ("--data", str(folder / "test.npz"), "--rounds", str(given.rounds))
            if not given.as_shipped:
                command("profile", str(file), *data, "--group", "original", "--write")
            overheads_s[stem] = overhead_s(file, given.duration)
            seconds = f"{overheads_s[stem] * 1e6:.0f} us"
            noted = iw.load(file).with_(**{"nodes.here.overhead": seconds})
            rows += runs(written(file, noted, stem), list(given.use), given.duration)
    met = all(row.met for row in rows if row.held)
    if given.json:
        found = [asdict(row) | {"errors": row.errors, "met": row.met} for row in rows]
        print(
            json.dumps(
                {
                    "schema": 1,
                    "machine": machine(),
                    "overhead_s": overheads_s,
                    "rows": found,
                    "met": met,
                },
                indent=1,
            )
        )
    else:
        show(rows, overheads_s)
    sys.exit(0 if met else 1)


def show(rows: list[Row], overheads_s: dict[str, float]) -> None:
    """Print the table for reading."""
    print(f"{made_on()}; {cores()} cores")
    for stem, seconds in overheads_s.items():
        print(f"{stem}: the server itself takes {seconds * 1e6:.0f} us of a core for a request")
    print("file     in use    rate  seed      mean   twin  error       p95   twin  error   busy")
    for row in rows:
        said = ("met" if row.met else "NOT met") if row.held else "told"
        print(
            f"{row.file:8}{row.use:7.0%}{row.rate_per_s:8.1f}{row.seed:6}"
            f"{row.measured_mean_s * 1e3:10.2f}{row.twin_mean_s * 1e3:7.2f}"
            f"{row.errors['mean']:+7.0%}{row.measured_p95_s * 1e3:10.2f}"
            f"{row.twin_p95_s * 1e3:7.2f}{row.errors['p95']:+7.0%}{row.busy:7.0%}   {said}"
        )
    print(
        f"times in ms; within {LIMITS['mean']:.0%} of the mean and {LIMITS['p95']:.0%} of the 95th "
        f"percentile at up to {MOST:.0%} of the device"
    )


if __name__ == "__main__":
    main()
