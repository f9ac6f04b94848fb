"""Building the digits zoo from scikit-learn's digits: images, training, files, profiles."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.deployment.profile import file_digest
from inferway.extras import installing
from inferway.machine import machine
from inferway.profiling.measuring import ProfilingOptions
from inferway.profiling.testset import labeled
from inferway.profiling.timing import Progress
from inferway.profiling.zoo import gain_of, profiled
from inferway.runtime import OnnxRuntime
from zoo.images import Originals, Split, draw, originals, split
from zoo.ladder import NETWORKS, VARIANTS, Network, Weights, model

TEST_TIMES: Final = 14  # Test images drawn from each original of the test part

SEED: Final = 1  # The seed that the shipped zoo was built with

_ROWS: Final = 32  # per call when all votes are asked for
_TRAIN, _TEST = 1, 2  # words of entropy that keep the images of the parts apart


def build(
    out: Path,
    *,
    seed: int = SEED,
    workers: int = 2,
    networks: Mapping[str, Network] = NETWORKS,
    test_times: int = TEST_TIMES,
    sizes: Sequence[int] | None = None,
    round_s: float = 0.1,
    progress: Progress | None = None,
) -> zoo.Zoo:
    """Build the zoo anew: draw, train, write, measure (needs the extra ``learn``).

    The same seed, of split, images, initial weights and resampling, on the same machine with the
    same libraries gives the same models. They go with the test set and the profiles to a folder; if
    it is `inferway.catalog.zoo.user_folder`, the new zoo takes precedence over the shipped one.

    So many workers train networks at the same time, one thread each; results do not depend on it.
    Other descriptions of networks by name train for a shorter time. So many test images are drawn
    from each original of the test part. `sizes` are as of `inferway.profiling.zoo.measure`; a round
    of measuring a service time takes `round_s` seconds at least. `progress` is told the share that
    is done, 0..1, and what is under way.

    CatalogError when PyTorch or scikit-learn is missing.
    """
    for module in ("torch", "sklearn"):
        if importlib.util.find_spec(module) is None:
            raise zoo.CatalogError(
                f"building the digits zoo needs {module}, which is in the extra `learn`: "
                f"{installing('learn')}"
            )
    tell = progress or (lambda share, what: None)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    tell(0.0, "drawing the test set")
    digits = originals()
    parts = split(len(digits.labels), seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    source = np.repeat(parts.test, test_times)
    images, labels = draw(digits, source, parts.test, seed=[seed, _TEST]), digits.labels[source]
    np.savez(
        out / zoo.TESTSET,
        images=images,
        labels=labels.astype(np.uint8),
        source=source.astype(np.uint16),
    )
    shown = (images.astype(np.float32) / np.float32(255))[:, None]
    testset = zoo.TestSet(shown, labels, source)
    weights = trained(
        networks,
        digits,
        parts,
        seed=seed,
        workers=workers,
        progress=lambda share, what: tell(0.02 + 0.70 * share, what),
    )
    paths = write_models(out, networks, weights)
    votes = _votes(
        out,
        networks,
        weights,
        testset,
        workers=workers,
        progress=lambda share, what: tell(0.72 + 0.12 * share, what),
    )
    cost = {
        "wall_s": round(time.perf_counter() - start_s, 1),
        "cpu_s": round(time.process_time() - start_cpu_s, 1),
    }
    parameters = {
        variant.name: sum(
            part.size for name in variant.networks for layer in weights[name] for part in layer
        )
        for variant in VARIANTS
    }
    measured = profiled(
        paths,
        parameters,
        labeled(testset, file_digest(out / zoo.TESTSET)),
        ProfilingOptions(seed=seed, round_s=round_s),
        sizes=sizes,
        progress=lambda what, share: tell(0.84 + 0.16 * share, what),
    )
    versions = {name: version(name) for name in ("torch", "scikit-learn", "onnx")}
    built = replace(
        measured,
        origin="built",
        ablation=ablation(votes, testset, seed=seed),
        made={
            "seed": seed,
            "training": cost,
            "sources": {name: len(part) for name, part in parts._asdict().items()},
            "test_images": len(testset),
            "built_on": machine(("onnxruntime", "numpy")) | versions,
        },
        folders=(out,),
    )
    zoo.save(built, out)
    tell(1.0, "built")
    return built


def trained(
    networks: Mapping[str, Network],
    digits: Originals,
    parts: Split,
    *,
    seed: int,
    workers: int,
    progress: Progress,
) -> dict[str, Weights]:
    """Train all networks, the longest first, each in a thread of its own.

    Threads suffice: PyTorch and NumPy compute without holding the interpreter.
    """
    import torch

    from zoo.training import train, untrained

    places = {name: place for place, name in enumerate(networks)}
    modules = {
        name: untrained(network, seed=seed * 1000 + places[name])
        for name, network in networks.items()
    }
    work = {name: _work(network) for name, network in networks.items()}
    total, done, lock = sum(work.values()), 0.0, threading.Lock()

    def one(name: str) -> Weights:
        def seen(images: int) -> None:
            nonlocal done
            with lock:
                done += work[name] * images / networks[name].images
                progress(min(1.0, done / total), f"training {name}")

        return train(
            modules[name],
            networks[name],
            digits,
            parts.train,
            seed=[seed, _TRAIN, places[name]],
            progress=seen,
        )

    order = sorted(networks, key=lambda name: -work[name])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return dict(zip(order, pool.map(one, order), strict=True))
    finally:
        torch.set_num_threads(threads)


def write_models(
    out: Path, networks: Mapping[str, Network], weights: Mapping[str, Weights]
) -> dict[str, Path]:
    """Write all variants as ONNX files."""
    paths = {}
    for variant in VARIANTS:
        members = [(networks[name].layers, weights[name]) for name in variant.networks]
        paths[variant.name] = out / f"{variant.name}.onnx"
        paths[variant.name].write_bytes(model(members, variant.views).SerializeToString())
    return paths


def _votes(
    out: Path,
    networks: Mapping[str, Network],
    weights: Mapping[str, Weights],
    testset: zoo.TestSet,
    *,
    workers: int,
    progress: Progress,
) -> NDArray[np.float32]:
    """Ask what each member of the slowest variant says of each view, with so many threads."""
    whole, done = VARIANTS[-1], 0
    members = [(networks[name].layers, weights[name]) for name in whole.networks]
    path = out / "votes.onnx.part"
    path.write_bytes(model(members, whole.views, votes=True).SerializeToString())

    def answer(start: int) -> NDArray[np.float32]:
        nonlocal done
        some = testset.images[start : start + _ROWS]
        (rows,) = runtime.run({zoo.INPUT: some}).values()
        done += len(some)
        progress(done / len(testset), f"accuracy of {whole.name} and its parts")
        return rows.astype(np.float32, copy=False)

    try:
        with closing(OnnxRuntime(path)) as runtime, ThreadPoolExecutor(workers) as pool:
            return np.concatenate(list(pool.map(answer, range(0, len(testset), _ROWS))))
    finally:
        path.unlink()


def ablation(
    votes: NDArray[np.float32], testset: zoo.TestSet, *, seed: int
) -> tuple[dict[str, Any], ...]:
    """Estimate what the slowest variant loses when members or views are taken from it.

    The votes are what each member says of each view, shape [N, members * views, 10], members first;
    the seed is of the resampling. Gives one entry per reduced ensemble: how many members and views
    are left, its accuracy on the whole test set, and what the whole ensemble gains over it.
    """
    whole = VARIANTS[-1]
    members, views = len(whole.networks), len(whole.views)
    said = votes.reshape(len(votes), members, views, -1)

    def right(some_members: int, some_views: int) -> NDArray[np.bool_]:
        mean = said[:, :some_members, :some_views].mean(axis=(1, 2))
        return np.asarray(mean.argmax(axis=1) == testset.labels)

    all_right = right(members, views)
    parts = [(members - 1, views), (members, views // 2), (members, 1), (1, views), (1, 1)]
    reduced = {part: right(*part) for part in parts}
    return tuple(
        {
            "variant": whole.name,
            "members": some_members,
            "views": some_views,
            "accuracy": float(some_right.mean()),
            **gain_of(all_right, some_right, testset.source, seed=seed),
        }
        for (some_members, some_views), some_right in reduced.items()
    )


def _work(network: Network) -> float:
    """Guess the relative cost of training: multiplications, and a constant per image."""
    channels, side, cost = 1, 32, 300_000
    for layer in network.layers:
        side //= {"conv": layer.stride, "residual": 1, "pool": 2, "mean": side}[layer.kind]
        into, channels = channels, layer.channels or channels
        times = {"conv": into * channels, "residual": 2 * channels**2}.get(layer.kind, 0)
        cost += 9 * times * side * side
    return float(cost * network.images)
