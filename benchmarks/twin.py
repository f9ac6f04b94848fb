"""How fast the twin is: queries per second of CPU on one core, against what it has to reach.

    python benchmarks/twin.py [--rounds 5] [--json]
    python benchmarks/twin.py --beside DIR [--turns 7] [--scale 0.25] [--only "on the zoo"]

TAD-OP on [Anonymous]'s four classes (rates 2, 1, 0.9, 0.1; accuracies 0.7, 0.75, 0.8, 1; equal
counts; target 0.76) at load 0.5, every response time kept, for each engine and three sizes; a
user's own policy file beside the built-in one; `general` with cores that the servers share beside
the same without, and so five policies on the zoo's profile, seven variants on the two cores of
examples/digits.yaml, at four loads of the greatest rate of either; `escalate` beside `priced` on
the zoo's profile, at load 0.5 of that file without its devices; the start of `inferway simulate`
from its cache; and the peers SimPy and Ciw, in the same run, on the easier M/M/64. All cases take
turns in each round and the best round of each counts: others may use the machine. Needs
`pip install inferway[bench]`.

With ``--beside DIR``, the twin of another checkout takes turns with ours, a process each, without
the peers: the ratio of CPU time for each case and for the whole process, with its interval. Then,
on standard error, whether what knows no devices is as fast as there, and what devices cost; the
exit code is 1 where one of them is not as wanted. With ``--only TEXT``, of the cases with that in
their names.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from beside import WHOLE, add_options, add_turn, compare

import inferway as iw
from inferway.deployment import ServiceTime
from inferway.deployment.workloads import PoissonArrivals
from inferway.dispatch import tad_op
from inferway.site import Fleet
from inferway.twin import Scenario, run, scenario_of
from inferway.twin.engine import Kind

SIZES = (64, 4096, 65_536)
GOALS = {"markov": 15e6, "ordered": 10e6, "general": 5e6}
"""Queries per CPU second, at 64 and 4096 servers."""
GROWTH = 1.3
"""Of the time per query from 64 to 65,536 servers, for `markov`."""
START_S = 2.0
OWN = 0.5
"""A user's own policy over the built-in one."""
ESCALATE = 0.5
"""`escalate` over `priced`, same engine."""
DEVICES = 1.5
"""Time per query of `general` where servers share cores, over the same without."""
SHARED = {
    "64, a core each": (64, 64),
    "64, 20 cores": (64, 20),
    "4096, 1280 cores": (4096, 1280),
}
"""Servers and cores: as many as servers, or so few that half of them are taken at load 0.5."""
ON_ZOO = {
    f"{policy} on the zoo, load {load:g}": (policy, load)
    for policy in ("priced", "escalate", "tad", "tad-op", "deadline")
    for load in (0.3, 0.5, 0.7, 0.9)
}
"""What is measured on the zoo's profile with two cores and without, by policy and load."""
DEADLINE_S = 0.05
"""Of requests on the zoo, for `deadline`."""
AS_BEFORE = 1.05
"""Upper end of the interval of CPU time over an older checkout's, at most."""
LAWS = {"markov": "exponential", "ordered": "deterministic", "general": "exponential"}
EXAMPLES = Path(__file__).parents[1] / "examples"


def scenario(servers: int, law: str, **options: Any) -> Scenario:
    """[Anonymous], Sec. 3.3, at load 0.5."""
    rates = np.array([2.0, 1.0, 0.9, 0.1])
    fleet = Fleet(
        ("fast", "middle", "careful", "exact"),
        rates,
        np.array([0.7, 0.75, 0.8, 1.0]),
        np.full(4, servers // 4),
    )
    return Scenario(
        fleet,
        tuple(ServiceTime(law, float(1 / rate)) for rate in rates),
        PoissonArrivals(process="poisson", load=0.5),
        target=0.76,
        **options,
    )


def on_zoo(policy: str, load: float = 0.5) -> Scenario:
    """The digits zoo at a part of the greatest rate of policies that choose before an answer."""
    file = yaml.safe_load((EXAMPLES / "digits.yaml").read_text(encoding="utf-8"))
    for node in file["nodes"].values():  # `ordered`, and a checkout of another time, know none
        node.pop("devices", None)
    digits = scenario_of(iw.load(file).with_(policy=policy), "digits")
    if policy == "deadline":
        digits = replace(digits, deadline_s=DEADLINE_S)
    return replace(digits, arrivals=PoissonArrivals(process="poisson", load=load))


def shared(what: Scenario, slots: int) -> Scenario:
    """The same where all servers share so many cores."""
    # Here, as a checkout of another time that is measured beside may not have it.
    from inferway.site.devices import DeviceSlots

    classes = len(what.fleet.rate)
    cores = DeviceSlots(
        names=("cpu",),
        slots=np.array([slots]),
        exclusive=np.zeros(1, np.bool_),
        overhead_s=np.zeros(1),
        device=np.zeros(classes, np.int64),
        taken=np.ones(classes, np.int64),
    )
    return replace(what, fleet=replace(what.fleet, devices=cores))


def on_cores() -> dict[str, Scenario]:
    """What is asked of `general` where servers share cores; none where it does not know any."""
    try:
        found = {
            name: shared(scenario(servers, LAWS["general"]), slots)
            for name, (servers, slots) in SHARED.items()
        }
        return found | {name: shared(on_zoo(*of), 2) for name, of in ON_ZOO.items()}
    except ImportError:
        return {}


def without(name: str) -> str:
    """Name the case that is the same without cores."""
    return f"general, {name}" if name in ON_ZOO else f"general {SHARED[name][0]}"


def twin(what: Scenario, kind: Kind | None, queries: int) -> Callable[[], float]:
    """Queries per CPU second of a run that is warm: in its steady state, and compiled."""
    warmup = max(20_000, 50 * what.fleet.servers)

    def measure() -> float:
        result = run(what, queries=queries, warmup=warmup, engine=kind, workers=1, seed=1)
        return result.queries_per_cpu_s

    return measure


def m_m_64(queries: int) -> Callable[[], float]:
    """The peers' model in the twin: one central queue."""
    fleet = Fleet(("one",), np.ones(1), np.ones(1), np.array([64]))
    return twin(
        Scenario(
            fleet,
            (ServiceTime("exponential", 1.0),),
            PoissonArrivals(process="poisson", load=0.5),
            policy="fastest-only",
            queue="central",
        ),
        "general",
        queries,
    )


def of_simpy(queries: int) -> float:
    """M/M/64 at load 0.5 in SimPy, response times kept."""
    import simpy

    generator = random.Random(1)
    times: list[float] = []
    environment = simpy.Environment()
    servers = simpy.Resource(environment, capacity=64)

    def customer() -> Any:
        arrived = environment.now
        with servers.request() as place:
            yield place
            yield environment.timeout(generator.expovariate(1.0))
        times.append(environment.now - arrived)

    def source() -> Any:
        for _ in range(queries):
            yield environment.timeout(generator.expovariate(32.0))
            environment.process(customer())

    environment.process(source())
    start = time.process_time()
    environment.run()
    return len(times) / (time.process_time() - start)


def of_ciw(queries: int) -> float:
    """The same in Ciw."""
    import ciw

    ciw.seed(1)
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=32.0)],
        service_distributions=[ciw.dists.Exponential(rate=1.0)],
        number_of_servers=[64],
    )
    simulation = ciw.Simulation(network)
    start = time.process_time()
    simulation.simulate_until_max_customers(queries, method="Finish")
    return queries / (time.process_time() - start)


def start_s(cpu: bool) -> float:
    """Time of a whole small `inferway simulate`, start, cached code and all.

    Python keeps the bytecode of modules, also where the environment says otherwise, as it does
    where they are installed: to compile all of them each time would add about a fifth.
    """
    before = os.times()
    began = time.perf_counter()
    file = str(EXAMPLES / "paper-fleet.yaml")
    kept = {name: said for name, said in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, "-m", "inferway", "simulate", file, "--queries", "1e4", "--json"],
        check=True,
        env=kept,
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    if cpu:
        return after.children_user + after.children_system - before[2] - before[3]
    return time.perf_counter() - began


def cases(folder: Path, scale: float) -> dict[str, Callable[[], float]]:
    """What the twin is asked for, by name; larger is better."""
    own = folder / "own.py"
    own.write_text(Path(tad_op.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    queries = int(4e6 * scale)
    kinds: tuple[Kind, ...] = ("markov", "ordered", "general")
    found: dict[str, Callable[[], float]] = {
        f"{kind} {servers}": twin(scenario(servers, LAWS[kind]), kind, queries)
        for kind in kinds
        for servers in SIZES
    }
    for kind in ("markov", "general"):
        mine = scenario(64, "exponential", policy="./own.py:TadOp", folder=folder)
        found[f"own tad-op {kind}"] = twin(mine, kind, queries)
    for name, zoo in ON_ZOO.items():
        found[f"general, {name}"] = twin(on_zoo(*zoo), "general", queries)
    for name, of in on_cores().items():  # none at a checkout that is older than devices
        found[f"general, devices, {name}"] = twin(of, "general", queries)
    for policy in ("priced", "escalate"):
        found[f"{policy} on the zoo"] = twin(on_zoo(policy), "ordered", queries)
    cheapest = scenario(64, "exponential", policy="./cheapest.py:Cheapest", folder=EXAMPLES)
    found["cheapest.py"] = twin(cheapest, None, queries // 4)
    found["M/M/64 twin"] = m_m_64(queries)
    return found


def others(scale: float) -> dict[str, Callable[[], float]]:
    """The peers, and the start of a command."""
    return {
        "M/M/64 simpy": lambda: of_simpy(int(50_000 * scale)),
        "M/M/64 ciw": lambda: of_ciw(int(20_000 * scale)),
        "start wall s": lambda: -start_s(cpu=False),
        "start cpu s": lambda: -start_s(cpu=True),
    }


def measure(rounds: int, scale: float) -> dict[str, float]:
    """The best of the rounds, by case."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        named = cases(Path(folder), scale) | others(scale)
        for round_ in range(rounds + 1):
            for name, case in named.items():
                value = case()
                # The first round fills the caches.
                best[name] = value if round_ <= 1 else max(best[name], value)
    return {name: abs(value) for name, value in best.items()}


def turn(scale: float, only: str) -> dict[str, float]:
    """CPU seconds of a million queries, by case, and of a start, each once it is warm."""
    costs_s = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder), scale).items():
            if only not in name:
                continue
            case()
            costs_s[f"{name}, 1e6 queries"] = 1e6 / case()
    return costs_s | {"start of simulate": start_s(cpu=True)}


def goals(found: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    """Each goal: what, measured, wanted, and whether it is met."""
    rows = [
        (f"{kind}, n = {servers}, queries/s", value, goal, value >= goal)
        for kind, goal in GOALS.items()
        for servers in SIZES[:2]
        for value in [found[f"{kind} {servers}"]]
    ]
    growth = found[f"markov {SIZES[0]}"] / found[f"markov {SIZES[-1]}"]
    rows.append(("markov, growth to n = 65,536", growth, GROWTH, growth < GROWTH))
    for kind in ("markov", "general"):
        share = found[f"own tad-op {kind}"] / found[f"{kind} 64"]
        rows.append((f"own policy over built-in, {kind}", share, OWN, share >= OWN))
    for name in (*SHARED, *ON_ZOO):
        times = found[without(name)] / found[f"general, devices, {name}"]
        rows.append((f"devices over none, general, {name}", times, DEVICES, times <= DEVICES))
    asked = found["escalate on the zoo"] / found["priced on the zoo"]
    rows.append(("escalate over priced, ordered", asked, ESCALATE, asked >= ESCALATE))
    rows.append(
        ("cached start, s", found["start wall s"], START_S, found["start wall s"] < START_S)
    )
    return rows


def verdict(rows: dict[str, dict[str, Any]]) -> bool:
    """Say whether nothing has become slower, and what devices cost; whether both are as wanted."""
    here_s = {part.partition(", 1e6")[0]: row["here_s"] for part, row in rows.items()}
    lines = [
        (f"{part} beside the other, upper end", row["high"], AS_BEFORE)
        for part, row in rows.items()
        if "devices" not in part and part != WHOLE
    ]
    lines += [
        (f"devices over none, {name}", here_s[f"general, devices, {name}"] / here_s[of], DEVICES)
        for name in (*SHARED, *ON_ZOO)
        for of in [without(name)]
        if f"general, devices, {name}" in here_s and of in here_s  # an older checkout has them, too
    ]
    for what, value, most in lines:
        met = "met" if value <= most else "NOT met"
        print(f"{what:64}{value:8.3f}{most:8.2f}   {met}", file=sys.stderr)
    return all(value <= most for _, value, most in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of queries")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="with --beside: cases with that in their names"
    )
    add_options(parser)
    add_turn(parser)
    options = parser.parse_args()
    if options.turn:
        print(json.dumps(turn(options.scale, options.only)))
        return
    if options.beside is not None:
        given = ["--scale", str(options.scale), "--only", options.only]
        rows = compare(__file__, given, options)
        sys.exit(0 if verdict(rows) else 1)
    # Here, as a checkout of another time that is measured beside may not have it.
    from inferway.machine import machine

    found = measure(options.rounds, options.scale)
    if options.json:
        from inferway.machine import machine

        listed = [
            {"goal": what, "measured": value, "wanted": goal, "met": met}
            for what, value, goal, met in goals(found)
        ]
        print(
            json.dumps(
                {"schema": 1, "machine": machine(), "measured": found, "goals": listed}, indent=1
            )
        )
        return
    print(f"{'M queries per CPU second':44}" + "".join(f"{f'n = {n:,}':>14}" for n in SIZES))
    for kind in GOALS:
        row = [found[f"{kind} {servers}"] / 1e6 for servers in SIZES]
        print(f"{kind:44}" + "".join(f"{value:14.2f}" for value in row))
    for name in (
        *("own tad-op markov", "own tad-op general", "cheapest.py"),
        *(name for name in found if "devices" in name),
        *(f"general, {name}" for name in ON_ZOO),
        *("priced on the zoo", "escalate on the zoo"),
    ):
        print(f"{name:44}{found[name] / 1e6:14.2f}")
    ours = found["M/M/64 twin"]
    for name in ("M/M/64 twin", "M/M/64 simpy", "M/M/64 ciw"):
        print(
            f"{name:44}{found[name] / 1e6:14.4f}   the twin is {ours / found[name]:,.0f} times it"
        )
    print(f"{'start of inferway simulate':44}{found['start wall s']:14.2f} s", end="")
    print(f"   {found['start cpu s']:.2f} s of CPU")
    print()
    for what, value, goal, met in goals(found):
        print(f"{what:64}{value:14.4g}{goal:12.4g}   {'met' if met else 'NOT met'}")


if __name__ == "__main__":
    main()
