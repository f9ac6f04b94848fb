"""How far the twin of a file with devices is off, from the file and its profile alone.

    python benchmarks/device_twin.py [--use .35 .5 .7 .85] [--only digits] [--duration 30] [--json]

Of the README's file and of examples/digits.yaml, whose copies share two cores: both are profiled on
this machine, now (`inferway profile --write`). Then a server answers the file's workload, at rates
with which the twin says that so much of the device is in use, for three seeds each, and
`inferway drive --twin` tells the mean and the 95th percentile of both. At up to 70 % of the device,
the twin has to be within 15 % of the mean and 25 % of the percentile, for every seed; above, the
error is told. Exit code 1 where one is further off.

The generator has the same cores. What it and the server take of them for a request besides the
model is measured at each rate, by a drive of its own with another seed, and is the `overhead` of
the file that the twin reads. Where the copies cannot use so much of the device and keep their
target, they are driven near the greatest rate at which they can. Other work on the machine counts
as the twin's error: let nothing else run. `busy` is the part of the cores that was busy with
neither server nor generator.
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
OTHER_SEED = 4
"""Of the drives that measure what requests take."""
USES = (0.35, 0.5, 0.7, 0.85)
MOST = 0.7
"""Part of the device in use up to which the twin has to agree."""
LIMITS = {"mean": 0.15, "p95": 0.25}
CALM = 0.1
"""Of a rate, from which on what requests take besides their models is measured."""
GUESS_S = 400e-6
"""What a request takes of the cores besides its model, before anything is measured."""
ROUNDS = 2
"""How often a rate is found for a use, and what a request takes is measured at it."""
NEAR = 0.02
"""How far the use that the twin says may be from what was asked for."""
FULL = 0.95
"""Of the greatest rate that copies carry: the most that they are driven with."""


@dataclass(frozen=True)
class Row:
    """One run: what was asked for, and what came of it, times in seconds."""

    file: str
    use: float
    """Part of the device in use, by the twin."""
    rate_per_s: float
    overhead_s: float
    """What a request takes of the cores besides its model, at this rate."""
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


def overhead_s(file: Path, rate_per_s: float, duration_s: float) -> float:
    """What a request takes of the cores besides its model's profiled time, at a rate, s.

    The generator runs on the same cores, so what it takes counts with what the server takes, and so
    does what models take longer where several run at once. What all take without requests is the
    same at both rates, and is not of any request.
    """
    deployment = iw.load(file)
    paths = [
        written(file, at_rate(deployment, rate), name)
        for rate, name in (
            (CALM * rate_per_s, f"{file.stem}-few"),
            (rate_per_s, f"{file.stem}-many"),
        )
    ]
    spent_s_at, answered = list[float](), list[int]()
    with served(paths[0]) as (url, pid):
        for path in paths:
            before_s = spent_s(pid) + sum(os.times()[:4])
            words = ("--url", url, "--duration", str(duration_s), "--seed", str(OTHER_SEED))
            of = command("drive", str(path), *words)["tasks"]["digits"]
            models_s = sum(
                share * deployment.tasks["digits"].variants[name].service_on("cpu").mean_s
                for name, share in of["shares"].items()
            )
            now_s = spent_s(pid) + sum(os.times()[:4])
            spent_s_at.append(now_s - before_s - models_s * of["answered"])
            answered.append(of["answered"])
    (few_s, many_s), (few, many) = spent_s_at, answered
    return float(max(0.0, (many_s - few_s) / (many - few)))


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


def at_use(deployment: iw.Deployment, use: float) -> iw.Deployment:
    """The deployment at a rate that uses so much of its device, or as much as its copies can."""
    most = FULL * iw.bound(deployment)["digits"].max_rate_per_s
    low, high = 0.0, most
    busier = at_rate(deployment, most)
    if simulated(busier)[1] < use:
        return busier
    while True:  # the use grows with the rate
        busier = at_rate(deployment, (low + high) / 2)
        rate, now = simulated(busier)
        if abs(now - use) <= NEAR / 2:
            return busier
        low, high = (low, rate) if now > use else (rate, high)


def processors_s() -> tuple[float, float]:
    """Seconds that all cores have worked, and that have passed of each, by Linux."""
    ticks = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hertz, sum(ticks) / hertz


def taking(deployment: iw.Deployment, seconds: float) -> iw.Deployment:
    """The deployment where each request takes so much of the cores besides its model."""
    values: dict[str, Any] = {"nodes.here.overhead": f"{seconds * 1e6:.0f} us"}
    return deployment.with_(**values)


def runs(file: Path, uses: list[float], duration_s: float) -> Iterator[Row]:
    """Drive a profiled file at each use with each seed."""
    deployment, besides_s = iw.load(file), GUESS_S
    for use in uses:
        # A request takes less of the cores at a greater rate, as more are read at a time.
        for _ in range(ROUNDS):
            busier = at_use(taking(deployment, besides_s), use)
            rate, _ = simulated(busier)
            besides_s = overhead_s(file, rate, duration_s)
        busier = taking(busier, besides_s)
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
                    overhead_s=besides_s,
                    seed=seed,
                    measured_mean_s=of["mean_s"],
                    twin_mean_s=of["mean_s"] * (1.0 + error["mean"]),
                    measured_p95_s=of["p95_s"],
                    twin_p95_s=of["p95_s"] * (1.0 + error["p95"]),
                    busy=max(0.0, (after_s - work_s - own_s) / (then_s - passed_s)),
                )
        if used < use - NEAR:
            print(f"{file.stem}: its copies cannot use {use:.0%} of two cores", file=sys.stderr)
            break


def main() -> None:
    """Profile, serve, drive, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--use", type=float, nargs="+", default=USES, help="of the device, 0..1")
    parser.add_argument("--only", choices=("readme", "digits"), help="one of the two files")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of each run")
    parser.add_argument("--rounds", type=int, default=5, help="of the profile's measurements")
    parser.add_argument(
        "--as-shipped", action="store_true", help="with the zoo's times: only to try this out"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse_args()
    rows = list[Row]()
    if not given.json:
        print(f"{made_on()}; {cores()} cores")
        print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = testset()
        data = folder / "test.npz"
        np.savez(data, image=tests.images, labels=tests.labels, original=tests.source)
        example = (ROOT / "examples/digits.yaml").read_text(encoding="utf-8")
        for stem, text in (("readme", readme()), ("digits", example)):
            if given.only not in (None, stem):
                continue
            file = folder / f"{stem}.yaml"
            file.write_text(text, encoding="utf-8")
            words = ("--data", str(data), "--group", "original", "--rounds", str(given.rounds))
            if not given.as_shipped:
                command("profile", str(file), *words, "--write")
            for row in runs(file, list(given.use), given.duration):
                rows.append(row)
                tell = sys.stderr if given.json else sys.stdout
                print(line(row), file=tell, flush=True)
    met = all(row.met for row in rows if row.held)
    if given.json:
        found = [asdict(row) | {"errors": row.errors, "met": row.met} for row in rows]
        print(
            json.dumps(
                {
                    "schema": 1,
                    "machine": machine(),
                    "rows": found,
                    "met": met,
                },
                indent=1,
            )
        )
    else:
        print(
            f"times in ms, what a request takes of the cores besides its model in us; within "
            f"{LIMITS['mean']:.0%} of the mean and {LIMITS['p95']:.0%} of the 95th percentile at "
            f"up to {MOST:.0%} of the device"
        )
    sys.exit(0 if met else 1)


HEAD = "file   in use   rate  takes seed    mean   twin error     p95   twin error busy"


def line(row: Row) -> str:
    """A row for reading."""
    said = ("met" if row.met else "NOT met") if row.held else "told"
    return (
        f"{row.file:7}{row.use:6.0%}{row.rate_per_s:7.1f}{row.overhead_s * 1e6:7.0f}{row.seed:5}"
        f"{row.measured_mean_s * 1e3:8.2f}{row.twin_mean_s * 1e3:7.2f}{row.errors['mean']:+6.0%}"
        f"{row.measured_p95_s * 1e3:8.2f}{row.twin_p95_s * 1e3:7.2f}{row.errors['p95']:+6.0%}"
        f"{row.busy:5.0%} {said}"
    )


if __name__ == "__main__":
    main()
