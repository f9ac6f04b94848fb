"""How far the twin of a file with devices is off, from the file and its profile alone.

    python benchmarks/device_twin.py [--use .35 .5 .7 .85] [--only digits] [--duration 30] [--json]

Of the README's file and of examples/digits.yaml, whose copies share two cores: both are profiled on
this machine, now (`inferway profile --write`). Then a server answers the file's workload, at rates
with which the twin says that so much of the device is in use, for three seeds each, and the twin
simulates the arrivals that were sent, from the file and its profile alone. At up to 70 % of the
device, it has to be within 15 % of the mean and 25 % of the 95th percentile of what the server
tells of its answers, for every seed; above, the error is told. Exit code 1 where one is further
off. What the generator saw, with the way there and back and what it was late, is told beside it.

Server and generator have the same cores. What both take of them for a request, beyond the time of
its model by the profile, is measured in the very run, as processor time and not as any latency, and
is the `overhead` of the file that the twin reads. A model takes longer between other work than one
call after the other, as profiles have it; that is in it, too. Where the copies cannot use so much
of the device and keep their target, they are driven near the greatest rate at which they can. Other
work on the machine counts as the twin's error: let nothing else run. `busy` is the part of the
cores that was busy with neither server nor generator.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from beside import spent_s

import inferway as iw
from inferway.catalog.zoo import testset
from inferway.experiments.driven import told_rates, twin_of
from inferway.machine import cores, machine, made_on
from inferway.studies.live.servers import launch

ROOT = Path(__file__).resolve().parents[1]
CORES = 2
SEEDS = (1, 2, 3)
WARM_S = "5"
"""How long a server is driven before anything is measured."""
OTHER_SEED = 4
"""Of the drives that measure what requests take."""
USES = (0.35, 0.5, 0.7, 0.85)
MOST = 0.7
"""Part of the device in use up to which the twin has to agree."""
LIMITS = {"mean": 0.15, "p95": 0.25}
GUESS_S = 400e-6
"""What a request takes of the cores besides its model, before anything is measured."""
ROUNDS = 2
"""How often a rate is found for a use, and what a request takes is measured at it."""
IDLE_S = 2.0
"""How long it is measured what the server takes without requests, which is of none of them."""
NEAR = 0.02
"""How far the use that the twin says may be from what was asked for."""
FULL = 0.95
"""Of the greatest rate that copies carry: the most that they are driven with."""


@dataclass(frozen=True)
class Row:
    """One run: what was asked for, and what came of it, times in seconds."""

    file: str
    use: float
    """Part of the device that server and generator had, models as profiled."""
    rate_per_s: float
    overhead_s: float
    """What a request takes of the cores besides its model, at this rate."""
    seed: int
    driven_mean_s: float
    """From the intended send time to the answer, at the generator."""
    measured_mean_s: float
    """From a request's arrival at the server to its answer."""
    twin_mean_s: float
    driven_p95_s: float
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
        command("drive", str(file), "--url", url, "--duration", WARM_S)
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
        for _ in range(ROUNDS - 1):
            rate, _ = simulated(at_use(taking(deployment, besides_s), use))
            with rated(file, deployment, rate) as (url, pid, busier):
                besides_s = run(busier, url, pid, OTHER_SEED, duration_s).overhead_s
        rate, used = simulated(at_use(taking(deployment, besides_s), use))
        with rated(file, deployment, rate) as (url, pid, busier):
            for seed in SEEDS:
                yield run(busier, url, pid, seed, duration_s)
        if used < use - NEAR:
            print(f"{file.stem}: its copies cannot use {use:.0%} of two cores", file=sys.stderr)
            break


@contextmanager
def rated(
    file: Path, deployment: iw.Deployment, rate: float
) -> Iterator[tuple[str, int, iw.Deployment]]:
    """A server of a file at a rate: where it is, its process, and what it serves."""
    path = written(file, at_rate(deployment, rate), f"{file.stem}-{rate:.0f}")
    with served(path) as (url, pid):
        yield url, pid, iw.load(path)


def run(deployment: iw.Deployment, url: str, pid: int, seed: int, duration_s: float) -> Row:
    """Drive a server, and simulate the same arrivals with what it and the generator took."""
    idle_s = spent_s(pid)
    time.sleep(IDLE_S)
    idle_s = (spent_s(pid) - idle_s) / IDLE_S * duration_s
    work_s, passed_s = processors_s()
    own_s, server_s = time.process_time(), spent_s(pid)
    driven = iw.drive(deployment, url, duration=duration_s, seed=seed)
    server_s, own_s = spent_s(pid) - server_s, time.process_time() - own_s
    after_s, then_s = processors_s()
    (name,) = driven.tasks
    told, variants = driven.tasks[name], deployment.tasks[name].variants
    model_s = sum(
        share * variants[one].service_on("cpu").mean_s for one, share in told.shares.items()
    )
    besides_s = max(0.0, (server_s - idle_s) / told.answered - model_s) + told.cpu_per_request_s
    twin = twin_of(taking(deployment, besides_s), driven.records, told_rates(deployment), seed=seed)
    server = driven.in_server(name)
    assert server is not None
    return Row(
        file=deployment.path.stem.partition("-")[0],
        use=(model_s + besides_s) * told.answered / duration_s / CORES,
        rate_per_s=told.rate_per_s,
        overhead_s=besides_s,
        seed=seed,
        driven_mean_s=told.mean_s,
        measured_mean_s=server.mean_s,
        twin_mean_s=twin[name].mean_s,
        driven_p95_s=told.p95_s,
        measured_p95_s=server.p95_s,
        twin_p95_s=twin[name].p95_s,
        busy=max(0.0, (after_s - work_s - own_s - server_s) / (then_s - passed_s)),
    )


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


HEAD = (
    "file   in use   rate  takes seed  driven  server    twin error  driven  server    twin error"
    " busy"
)


def line(row: Row) -> str:
    """A row for reading."""
    said = ("met" if row.met else "NOT met") if row.held else "told"
    return (
        f"{row.file:7}{row.use:6.0%}{row.rate_per_s:7.1f}{row.overhead_s * 1e6:7.0f}{row.seed:5}"
        f"{row.driven_mean_s * 1e3:8.2f}{row.measured_mean_s * 1e3:8.2f}"
        f"{row.twin_mean_s * 1e3:8.2f}{row.errors['mean']:+6.0%}"
        f"{row.driven_p95_s * 1e3:8.2f}{row.measured_p95_s * 1e3:8.2f}"
        f"{row.twin_p95_s * 1e3:8.2f}{row.errors['p95']:+6.0%}"
        f"{row.busy:5.0%} {said}"
    )


if __name__ == "__main__":
    main()
