"""An ingress of Inferway beside Ray Serve's own router, over the same replicas at the same load.

    python benchmarks/ray_serve.py [--turns 7] [--seconds 6] [--rate 40] [--json]

Two applications on one cluster of Ray on this machine. Each has two replicas of a small model
(accuracy 0.8, 20 ms) and four of a large one (0.95, 80 ms), which sleep, as on an accelerator. In
one, `inferway.ray.ingress` decides, with a promise of 0.9. In the other, an ingress of a few lines
draws the variant, with the shares that come to 0.9 on average, and Ray Serve's router chooses among
its replicas. The same requests, Poisson and open-loop, go to either through Ray Serve's proxy, and
to Inferway's own listener as well, in turns and in changing order, from a process of its own.

CPU is that of all processes of Ray together in a turn, the driver's included and the generator's
left out, by request; of this it is told, too, what they take while nothing is asked. A ratio is the
geometric mean over the turns of Inferway's over the other's, with its 95 % interval. Needs the
extra `ray-serve`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
from beside import TURNS, order, ratio_of, spent_s
from http_stack import machine

from inferway.loadgen import drive

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from ports import free_ports

ACCURACY: Final = {"small": 0.8, "large": 0.95}
SERVICE_S: Final = {"small": 0.02, "large": 0.08}
REPLICAS: Final = {"small": 2, "large": 4}
TARGET: Final = 0.9
ROW: Final = 64
GOALS: Final = {"p99_s": 0.75, "cpu_s": 1.10}
OWN, OURS, DIRECT = "Ray Serve's router", "Inferway, by the proxy", "Inferway, directly"
FILE: Final = {
    "tasks": {
        "rows": {
            "accuracy_target": TARGET,
            "variants": {
                name: {"accuracy": ACCURACY[name], "service": {"mean": f"{SERVICE_S[name]} s"}}
                for name in ACCURACY
            },
        }
    }
}


class Sleeper:
    """Answers zeros after a while."""

    inputs = {"x": ("FP32", [-1, ROW])}  # noqa: RUF012
    outputs = {"y": ("FP32", [-1, 10])}  # noqa: RUF012

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s

    def predict(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Answer."""
        time.sleep(self.service_s)
        return {"y": np.zeros((len(inputs["x"]), 10), np.float32)}


class Shares:
    """The ingress that draws a variant, and has Ray Serve choose the replica."""

    def __init__(self, signature: Any, **handles: Any) -> None:
        self.signature, self.handles = signature, handles
        large = (TARGET - ACCURACY["small"]) / (ACCURACY["large"] - ACCURACY["small"])
        self.weights = {"small": 1 - large, "large": large}
        self.random = random.Random(1)

    async def __call__(self, request: Any) -> Any:
        """Answer metadata, and requests with raw tensors."""
        from starlette.responses import JSONResponse, Response

        if request.method == "GET":
            sides = {
                side: [{"name": one.name, "datatype": "FP32", "shape": one.shape} for one in said]
                for side, said in zip(("inputs", "outputs"), self.signature, strict=True)
            }
            named = {"name": "rows", "versions": [*ACCURACY], "platform": "ray"}
            return JSONResponse({**named, **sides, "extensions": ["binary_tensor_data"]})
        body = await request.body()
        length = request.headers.get("inference-header-content-length")
        head = int(length or len(body))
        (given,) = json.loads(body[:head])["inputs"]
        x = np.frombuffer(body[head:], np.float32).reshape(given["shape"])
        (variant,) = self.random.choices([*self.weights], [*self.weights.values()])
        y = (await self.handles[variant].predict.remote({"x": x}))["y"].tobytes()
        said = {
            "model_name": "rows",
            "model_version": variant,
            "outputs": [
                {
                    "name": "y",
                    "datatype": "FP32",
                    "shape": [len(x), 10],
                    "parameters": {"binary_data_size": len(y)},
                }
            ],
        }
        text = json.dumps(said, separators=(",", ":")).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        return Response(text + y, media_type="application/octet-stream", headers=headers)


class Turn(NamedTuple):
    """What was measured of one way in one turn."""

    answered: int
    accuracy: float
    p50_s: float
    p99_s: float
    cpu_s: float
    """By request."""


def used_s() -> float:
    """CPU time so far of this process and all that come from it, which are Ray's."""
    here = psutil.Process()
    return sum(spent_s(one.pid) for one in [here, *here.children(recursive=True)])


def asked(url: str, times_s: Any) -> Turn:
    """Send the requests, and measure."""
    before_s = used_s()
    record = drive(url, "rows", times_s, np.zeros((1, ROW), np.float32), connections=256)
    spent = used_s() - before_s
    took_s = (record.done_s - record.intended_s)[record.status == 200]
    grades = np.array([ACCURACY[name] for name in record.variants])
    return Turn(
        len(took_s),
        float(grades[record.variant[record.status == 200]].mean()),
        *(float(one) for one in np.quantile(took_s, (0.5, 0.99))),
        spent / len(times_s),
    )


def started(port: int) -> dict[str, str]:
    """Deploy both applications; the URLs of the three ways."""
    from ray import serve

    from inferway.ray import ingress
    from inferway.runtime import signature_of_class

    serve.start(http_options={"host": "127.0.0.1", "port": port})
    sleeper = serve.deployment(Sleeper, max_ongoing_requests=1)
    actor = {"num_cpus": 0.1}

    def bound() -> dict[str, Any]:
        return {
            name: sleeper.options(name=name, num_replicas=count, ray_actor_options=actor).bind(
                SERVICE_S[name]
            )
            for name, count in REPLICAS.items()
        }

    signature = signature_of_class(Sleeper)
    shares = serve.deployment(Shares, max_ongoing_requests=4096, ray_actor_options=actor)
    own = shares.bind((signature.inputs, signature.outputs), **bound())
    serve.run(own, name="own", route_prefix="/own")
    handle = serve.run(
        ingress(FILE, bound(), actor=actor), name="inferway", route_prefix="/inferway"
    )
    addresses = handle.addresses.remote().result()
    proxy = f"http://127.0.0.1:{port}"
    return {OWN: f"{proxy}/own", OURS: f"{proxy}/inferway", DIRECT: addresses["http"]}


def measure(turns: int, seconds: float, rate: float) -> dict[str, Any]:
    """Run everything; what is told."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        urls = started(free_ports(1)[0])
        generator = np.random.default_rng(1)
        found: dict[str, list[Turn]] = {name: [] for name in urls}
        idle_s = []
        for turn in range(turns + 1):
            gaps_s = generator.exponential(1.0 / rate, size=int(seconds * rate))
            times_s = np.cumsum(gaps_s)
            for name in order(urls, turn):
                one = asked(urls[name], times_s)
                if turn > 0:  # the first compiles, and learns how long replicas take
                    found[name].append(one)
            before_s = used_s()
            time.sleep(2.0)
            idle_s.append((used_s() - before_s) / 2.0)
    finally:
        from ray import serve

        serve.shutdown()
        ray.shutdown()
    rows = {}
    for name, of_turns in found.items():
        rows[name] = {
            field: float(median([getattr(one, field) for one in of_turns]))
            for field in Turn._fields
        }
        if name != OWN:
            rows[name]["ratios"] = {
                field: ratio_of(
                    [getattr(one, field) for one in of_turns],
                    [getattr(one, field) for one in found[OWN]],
                )._asdict()
                for field in GOALS
            }
    told = {"turns": turns, "seconds": seconds, "rate_per_s": rate, "goals": GOALS}
    return {"schema": 1, "machine": machine(), **told, "idle_cores": median(idle_s), "rows": rows}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--seconds", type=float, default=6.0, help="of load, in each turn and way")
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.turns, given.seconds, given.rate)
    if given.json:
        print(json.dumps(found))
        return
    print(found["machine"])
    print(f"nothing asked: {found['idle_cores']:.2f} cores")
    for name, row in found["rows"].items():
        print(
            f"{name:24} answered {row['answered']:.0f}  accuracy {row['accuracy']:.3f}  "
            f"p50 {1e3 * row['p50_s']:.0f} ms  p99 {1e3 * row['p99_s']:.0f} ms  "
            f"CPU {1e3 * row['cpu_s']:.2f} ms"
        )
        for field, ratio in row.get("ratios", {}).items():
            low, high = ratio["low"], ratio["high"]
            print(f"    {field} {ratio['ratio']:.3f} ({low:.3f} to {high:.3f}), {GOALS[field]}")


if __name__ == "__main__":
    main()
