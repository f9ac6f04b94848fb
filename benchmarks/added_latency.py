"""What serving adds to a model's latency: the server against the same model called in the process.

    python benchmarks/added_latency.py [--variant large] [--load 0.5] [--seconds 20] [--json]

One instance, Poisson arrivals at half of what the model alone can carry. The same arrival times are
run twice: through the server, by the open-loop generator in a process of its own, and in a bare
loop that waits for each arrival and calls ONNX Runtime, first come, first served. Both latencies
count from the arrival time, so both have the same queue; the difference is what serving adds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from http_stack import machine
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.loadgen import drive
from inferway.runtime import OnnxRuntime
from inferway.studies.live.servers import launch

DEPLOYMENT = """\
tasks:
  digits:
    variants:
      {variant}: {{model: zoo://digits/{variant}}}
dispatch: {{policy: fastest-only}}
"""
QUANTILES = (50, 95, 99)


def service_s(runtime: OnnxRuntime, images: NDArray[np.float32]) -> float:
    """Median time of one call, s."""
    name = runtime.signature.inputs[0].name
    found = []
    for image in images[:500]:
        start = time.perf_counter()
        runtime.run({name: image[None]})
        found.append(time.perf_counter() - start)
    return float(np.median(found[50:]))


def in_process(
    runtime: OnnxRuntime, images: NDArray[np.float32], times_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Latency of each request in a bare loop, s."""
    name = runtime.signature.inputs[0].name
    latency_s = np.empty(len(times_s))
    start = time.perf_counter()
    for i, due_s in enumerate(times_s.tolist()):
        while (left_s := due_s - (time.perf_counter() - start)) > 0:
            time.sleep(max(0.0, left_s - 2e-4))  # the last of it is spun, as sleeps oversleep
        runtime.run({name: images[i % len(images)][None]})
        latency_s[i] = time.perf_counter() - start - due_s
    return latency_s


def measure(variant: str, load: float, seconds: float, seed: int) -> dict[str, object]:
    """Latencies in ms by quantile, and what serving adds."""
    path, _ = zoo.resolve(f"zoo://digits/{variant}")
    runtime, images = OnnxRuntime(path), zoo.testset().images
    mean_s = service_s(runtime, images)
    generator = np.random.default_rng(seed)
    times_s = np.cumsum(generator.exponential(mean_s / load, int(seconds * load / mean_s)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.yaml"
        file.write_text(DEPLOYMENT.format(variant=variant))
        with launch(file) as server:
            chosen = np.arange(len(times_s)) % len(images)
            record = drive(server.address().url, "digits", times_s, images, item=chosen)
    alone_s = in_process(runtime, images, times_s)
    served = np.percentile(record.latency_s[record.answered] * 1e3, QUANTILES)
    bare = np.percentile(alone_s * 1e3, QUANTILES)
    return {
        "variant": variant,
        "load": load,
        "requests": len(times_s),
        "answered": int(record.answered.sum()),
        "service_ms": mean_s * 1e3,
        "served_ms": served.tolist(),
        "in_process_ms": bare.tolist(),
        "added_ms": (served - bare).tolist(),
        "generator_lag_p99_ms": float(np.percentile(record.lag_s, 99) * 1e3),
    }


def main() -> None:
    """Print the comparison."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--variant", default="large")
    options.add_argument("--load", type=float, default=0.5)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document")
    given = options.parse_args()
    found = measure(given.variant, given.load, given.seconds, given.seed)
    if given.json:
        print(json.dumps({"schema": 1, "machine": machine(), "quantiles": QUANTILES, **found}))
        return
    print(
        f"{machine()}; {found['variant']} at load {found['load']}: {found['answered']} of "
        f"{found['requests']} requests answered, the model alone takes {found['service_ms']:.3f} ms"
    )
    print(f"{'':12} {'p50':>9} {'p95':>9} {'p99':>9}   (ms)")
    for name in ("served_ms", "in_process_ms", "added_ms"):
        row = found[name]
        assert isinstance(row, list)
        print(f"{name[:-3].replace('_', ' '):12} " + " ".join(f"{value:9.3f}" for value in row))
    print(f"the generator sent 99 % within {found['generator_lag_p99_ms']:.2f} ms of the due time")


if __name__ == "__main__":
    main()
