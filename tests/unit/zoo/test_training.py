"""A small training, seconds long: it learns, and the same seed gives the same weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferway.catalog import zoo
from inferway.runtime import OnnxRuntime
from zoo.build import build
from zoo.images import originals, split
from zoo.ladder import NETWORKS, VARIANTS, model

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def learn() -> None:
    """Skip what cannot be trained here, and only where it was asked for."""
    pytest.importorskip("torch", reason="training needs PyTorch: pip install 'inferway[learn]'")
    pytest.importorskip("sklearn.datasets", reason="the originals come with scikit-learn")


SMALL = {name: replace(network, images=1280) for name, network in NETWORKS.items()}


@pytest.mark.parametrize("name", ["linear", "narrow", "short", "middle", "wide-1"])
def test_the_graph_says_what_the_trained_network_says(name: str, tmp_path: Path) -> None:
    import torch

    from zoo.training import train, untrained

    digits, network = originals(), replace(NETWORKS[name], images=640)
    counts: list[int] = []
    module = untrained(network, seed=1)
    weights = train(
        module, network, digits, split(1797, seed=1).train, seed=[1], progress=counts.append
    )
    assert sum(counts) == 640
    path = tmp_path / "model.onnx"
    path.write_bytes(model([(network.layers, weights)]).SerializeToString())
    images = zoo.testset().images[:50]
    module.eval()
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).softmax(dim=1).numpy()
    found = OnnxRuntime(path).run({"image": images})["probabilities"]
    np.testing.assert_allclose(found, expected, atol=5e-3)  # half-precision weights


def test_build_writes_a_zoo_that_learned(data_home: Path) -> None:
    networks = {**SMALL, "narrow": replace(NETWORKS["narrow"], images=12_800)}
    told: list[float] = []
    built = build(
        zoo.user_folder(),
        networks=networks,
        test_times=1,
        sizes=(1,),
        round_s=0.005,
        progress=lambda share, what: told.append(share),
    )
    assert zoo.load() == replace(built, folders=zoo.load().folders)
    assert zoo.load().origin == "built"
    assert built.profiles["mini"].accuracy_interval[0] > 0.2  # chance is 0.1
    assert sorted(path.name for path in zoo.user_folder().iterdir()) == sorted(
        [f"{variant.name}.onnx" for variant in VARIANTS] + ["profiles.json", "testset.npz"]
    )
    assert 0 <= min(told) <= max(told) == 1


def test_same_seed_same_models(tmp_path: Path) -> None:
    digests = [
        {
            name: profile.digest
            for name, profile in build(
                tmp_path / str(workers),
                seed=3,
                workers=workers,
                networks=SMALL,
                test_times=1,
                sizes=(1,),
                round_s=0.001,
            ).profiles.items()
        }
        for workers in (1, 2)
    ]
    assert digests[0] == digests[1]
