"""The digits zoo's ladder: which networks there are and how variants are made of them.

A network is plain data, so that one description is trained in PyTorch and written as ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CLASSES: Final = 10

Kind = Literal["conv", "residual", "pool", "mean"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One step of a network.

    Attributes
    ----------
    kind
        ``conv``: 3x3 convolution, batch norm, ReLU. ``residual``: two of them beside the identity.
        ``pool``: largest of 2x2. ``mean``: over the whole plane.
    channels
        Out of a convolution; a residual has as many in as out.
    stride
        Of a convolution.
    """

    kind: Kind
    channels: int = 0
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Network:
    """Layers, then one linear map to the classes; and how to train it.

    Attributes
    ----------
    layers
        In order.
    images
        How many training images it sees, each drawn anew.
    rate
        Largest learning rate.
    moved
        Share of the training images that are turned, enlarged and moved once more, by
        interpolation, so that the network knows what other views of an image look like.
    """

    layers: tuple[Layer, ...]
    images: int
    rate: float
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at an image before it is classified: turned, enlarged, moved.

    Attributes
    ----------
    angle
        Radians.
    zoom
        Above 1 the digit appears larger.
    right, down
        Shift in half canvases.
    """

    angle: float = 0.0
    zoom: float = 1.0
    right: float = 0.0
    down: float = 0.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A model of the zoo: the mean of what some networks say of some views of the image."""

    name: str
    networks: tuple[str, ...]
    views: tuple[View, ...] = (View(),)


def _conv(channels: int, stride: int = 1) -> Layer:
    return Layer("conv", channels, stride)


def _residual(channels: int) -> Layer:
    return Layer("residual", channels)


_POOL: Final = Layer("pool")
_MEAN: Final = Layer("mean")

_WIDE: Final = (
    _conv(32, 2),
    _residual(32),
    _conv(64, 2),
    _residual(64),
    _conv(128, 2),
    _residual(128),
    _MEAN,
)

NETWORKS: Final = {
    "linear": Network((), images=60_000, rate=0.01),
    "narrow": Network((_conv(8, 2), _POOL, _conv(16), _POOL), images=80_000, rate=0.01),
    "short": Network(
        (_conv(16, 2), _conv(16), _POOL, _conv(32), _POOL, _conv(32)), images=100_000, rate=0.01
    ),
    "middle": Network(
        (_conv(16, 2), _residual(16), _conv(32, 2), _residual(32), _conv(64, 2), _conv(64), _MEAN),
        images=100_000,
        rate=0.01,
    ),
    "wide-1": Network(_WIDE, images=80_000, rate=0.01, moved=0.5),
    "wide-2": Network(_WIDE, images=80_000, rate=0.01, moved=0.5),
    "wide-3": Network(_WIDE, images=80_000, rate=0.01, moved=0.5),
}
"""Every network that is trained; the wide ones differ in their seeds and training images."""

_PIXEL: Final = 2 / 32
_SIDES: Final = ((_PIXEL, 0.0), (-_PIXEL, 0.0), (0.0, _PIXEL), (0.0, -_PIXEL))

VIEWS: Final = (
    View(),
    *(View(right=right, down=down) for right, down in _SIDES),
    View(angle=0.2),
    View(angle=-0.2),
    View(zoom=1.1),
    View(zoom=1 / 1.1),
    *(View(right=2 * right, down=2 * down) for right, down in _SIDES),
)
"""Test-time augmentation: the image itself, moved by a pixel, turned, enlarged, moved by two.

Chosen on the validation part. The networks skip every other position of a plane, and moved views
show them what they skipped.
"""

VARIANTS: Final = (
    Variant("tiny", ("linear",)),
    Variant("mini", ("narrow",)),
    Variant("small", ("short",)),
    Variant("medium", ("middle",)),
    Variant("large", ("wide-1",)),
    Variant("huge", ("wide-1",), VIEWS[:5]),
    Variant("ensemble", ("wide-1", "wide-2", "wide-3"), VIEWS),
)
"""The zoo, fastest first."""
