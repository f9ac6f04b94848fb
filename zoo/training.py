"""Training the ladder's networks in PyTorch, on the processor, seeded.

Nothing else in Inferway imports PyTorch for the zoo; it comes with the extra ``learn``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from zoo.images import SIDE, Originals, draw
from zoo.ladder import CLASSES, Layer, Network, Weights

if TYPE_CHECKING:
    import torch

BATCH: Final = 64
_BLOCK: Final = 160 * BATCH  # images drawn at a time
_DECAY: Final = 0.02
_SMOOTHING: Final = 0.05
_TURN, _ZOOM, _SHIFT = 0.35, 0.14, 2 / 16  # of moved images: radians, log scale, half canvases
_WARM: Final = 0.15  # share of the steps in which the learning rate rises


def untrained(network: Network, *, seed: int) -> Any:
    """Make a network with random weights.

    PyTorch's initial weights come from its global generator, so networks that are trained at the
    same time are made one after the other, before.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels, side, modules = 1, SIDE, list[torch.nn.Module]()
        for layer in network.layers:
            modules.append(_module(channels, layer))
            channels = layer.channels or channels
            side //= {"conv": layer.stride, "residual": 1, "pool": 2, "mean": side}[layer.kind]
        modules += [torch.nn.Flatten(), torch.nn.Linear(channels * side * side, CLASSES)]
        module: Any = torch.nn.Sequential(*modules)
        module.to(memory_format=torch.channels_last)
        return module


def train(
    module: Any,
    network: Network,
    originals: Originals,
    pool: NDArray[np.int64],
    *,
    seed: list[int],
    progress: Callable[[int], None],
) -> Weights:
    """Train a module from `untrained`, in place, on images drawn on the way, none of them twice.

    They are drawn from the originals of the pool, the training part of the split; the seed is words
    of entropy for them. `progress` is called now and then with the number of images seen since.
    Gives the weights with batch norms folded in.
    """
    import torch

    steps = max(1, network.images // BATCH)
    optimizer = torch.optim.AdamW(module.parameters(), network.rate, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, network.rate, total_steps=steps, pct_start=_WARM
    )
    loss = torch.nn.CrossEntropyLoss(label_smoothing=_SMOOTHING)
    order = np.random.default_rng([*seed, 0])
    module.train()
    for block, start in enumerate(range(0, steps * BATCH, _BLOCK), 1):
        count = min(_BLOCK, steps * BATCH - start)
        source = order.permutation(np.resize(order.permutation(pool), count))
        images: Any = torch.from_numpy(draw(originals, source, pool, seed=[*seed, block]))
        labels: Any = torch.from_numpy(originals.labels[source])
        for some, right in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            seen = some[:, None].float() / 255
            if network.moved:
                again = round(network.moved * BATCH)
                seen[:again] = _moved(seen[:again], order)
            optimizer.zero_grad()
            loss(module(seen), right).backward()
            optimizer.step()
            schedule.step()
        progress(count)
    return folded(module)


def folded(module: Any) -> Weights:
    """Take the weights out, each batch norm folded into the convolution before it."""
    import torch

    weights: Weights = []
    for part in module.modules():
        kind, state = type(part), {key: t.numpy() for key, t in part.state_dict().items()}
        if kind is torch.nn.Conv2d:
            weights.append((state["weight"].copy(), np.zeros(0, np.float32)))
        elif kind is torch.nn.BatchNorm2d:
            weight, _ = weights.pop()
            scale = state["weight"] / np.sqrt(state["running_var"] + np.float32(part.eps))
            shift = state["bias"] - state["running_mean"] * scale
            weights.append((weight * scale[:, None, None, None], shift))
        elif kind is torch.nn.Linear:
            weights.append((state["weight"].copy(), state["bias"].copy()))
    return weights


def _moved(images: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    from torch import from_numpy
    from torch.nn.functional import affine_grid, grid_sample

    count = len(images)
    angle, zoom = random.uniform(-_TURN, _TURN, count), np.exp(random.uniform(-_ZOOM, _ZOOM, count))
    cosine, sine = np.cos(angle) / zoom, np.sin(angle) / zoom
    right, down = random.uniform(-_SHIFT, _SHIFT, (2, count))
    maps = np.stack([cosine, sine, right, -sine, cosine, down], axis=1).reshape(count, 2, 3)
    grid = affine_grid(from_numpy(maps.astype(np.float32)), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def _module(channels: int, layer: Layer) -> torch.nn.Module:
    from torch import nn

    def conv(into: int, out: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)]

    if layer.kind == "conv":
        return nn.Sequential(*conv(channels, layer.channels, layer.stride), nn.ReLU())
    if layer.kind == "residual":
        inner = [*conv(channels, channels), nn.ReLU(), *conv(channels, channels)]
        return _beside(nn.Sequential(*inner))
    return nn.MaxPool2d(2) if layer.kind == "pool" else nn.AdaptiveAvgPool2d(1)


def _beside(inner: torch.nn.Module) -> torch.nn.Module:
    from torch import Tensor, nn

    class Beside(nn.Module):
        """The identity plus a branch; defined here, as its base needs PyTorch."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(x + self.inner(x))

    return Beside()
