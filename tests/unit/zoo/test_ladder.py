"""The graphs compute what their networks say, on the views that they are given."""

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import shift

from inferway.runtime import OnnxRuntime
from zoo.ladder import NETWORKS, VARIANTS, View, Weights, model

RANDOM = np.random.default_rng(1)


def weights(name: str) -> Weights:
    """Random weights of the right shapes; the shapes follow from the layers."""
    channels, side, found = 1, 32, []

    def conv(into: int, out: int) -> None:
        scale = (2 / (9 * into)) ** 0.5
        found.append((RANDOM.normal(size=(out, into, 3, 3)) * scale, RANDOM.normal(size=out) * 0.1))

    for layer in NETWORKS[name].layers:
        if layer.kind == "conv":
            conv(channels, layer.channels)
            side //= layer.stride
        elif layer.kind == "residual":
            conv(channels, channels)
            conv(channels, channels)
        elif layer.kind == "pool":
            side //= 2
        else:
            side = 1
        channels = layer.channels or channels
    found.append((RANDOM.normal(size=(10, channels * side * side)) * 0.3, RANDOM.normal(size=10)))
    return [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in found]


def run(
    path: Path, images: np.ndarray, *members: tuple[str, Weights], **options: object
) -> np.ndarray:
    networks = [(NETWORKS[name].layers, given) for name, given in members]
    path.write_bytes(model(networks, **options).SerializeToString())  # type: ignore[arg-type]
    return OnnxRuntime(path).run({"image": images})["probabilities"]


@pytest.fixture
def images() -> np.ndarray:
    return RANDOM.random((5, 1, 32, 32), dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_linear_is_a_linear_map(path: Path, images: np.ndarray) -> None:
    given = weights("linear")
    weight, bias = (value.astype(np.float16).astype(np.float64) for value in given[0])
    logits = images.reshape(5, -1) @ weight.T + bias
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run(path, images, ("linear", given)), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "narrow", "short", "middle", "wide-1"])
def test_rows_do_not_touch_each_other(path: Path, images: np.ndarray, name: str) -> None:
    given = (name, weights(name))
    views = (View(), View(angle=0.1), View(right=0.1))
    together = run(path, images, given, views=views)
    alone = [run(path, images[i : i + 1], given, views=views)[0] for i in range(5)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-5)
    assert np.ptp(together, axis=0).max() > 1e-3


@pytest.mark.parametrize(("right", "down"), [(1, 0), (-1, 0), (0, 2), (-1, 1)])
def test_a_moved_view_is_the_moved_image(
    path: Path, images: np.ndarray, right: int, down: int
) -> None:
    given = ("short", weights("short"))
    seen = run(path, images, given, views=(View(right=right / 16, down=down / 16),))
    moved = shift(images, (0, 0, down, right), order=0, mode="nearest")
    np.testing.assert_allclose(seen, run(path, moved, given), atol=1e-5)


def test_a_turned_view_is_the_turned_image(path: Path, images: np.ndarray) -> None:
    given = ("short", weights("short"))
    seen = run(path, images, given, views=(View(angle=np.pi / 2),))
    turned = np.rot90(images, k=-1, axes=(2, 3)).copy()  # clockwise on a screen, y down
    np.testing.assert_allclose(seen, run(path, turned, given), atol=1e-4)


def test_the_answer_is_the_mean_of_the_votes(path: Path, images: np.ndarray) -> None:
    members = [("short", weights("short")) for _ in range(2)]
    views = (View(), View(right=1 / 16), View(down=1 / 16))
    mean = run(path, images, *members, views=views)
    votes = run(path, images, *members, views=views, votes=True)
    assert votes.shape == (5, 6, 10)
    np.testing.assert_allclose(votes.mean(axis=1), mean, atol=1e-6)
    # Members first: the votes of the second start after all views of the first.
    np.testing.assert_allclose(votes[:, 3], run(path, images, members[1]), atol=1e-5)
    only_members = run(path, images, *members)
    np.testing.assert_allclose(votes[:, [0, 3]].mean(axis=1), only_members, atol=1e-5)


def test_the_ladder_names_what_exists() -> None:
    for variant in VARIANTS:
        assert set(variant.networks) <= set(NETWORKS)
        assert variant.views[0] == View()
