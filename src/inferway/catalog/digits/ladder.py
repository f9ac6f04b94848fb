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
    """

    layers: tuple[Layer, ...]
    images: int
    rate: float


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
    "linear": Network((), images=120_000, rate=0.01),
    "narrow": Network((_conv(8, 2), _POOL, _conv(16), _POOL), images=120_000, rate=0.01),
    "short": Network(
        (_conv(16, 2), _conv(16), _POOL, _conv(32), _POOL, _conv(32)), images=120_000, rate=0.008
    ),
    "middle": Network(
        (_conv(16, 2), _residual(16), _conv(32, 2), _residual(32), _conv(64, 2), _conv(64), _MEAN),
        images=120_000,
        rate=0.006,
    ),
    "wide-1": Network(_WIDE, images=90_000, rate=0.006),
    "wide-2": Network(_WIDE, images=90_000, rate=0.006),
    "wide-3": Network(_WIDE, images=90_000, rate=0.006),
}
"""Every network that is trained; the wide ones differ in their seeds and training images."""

_TURN: Final = 0.2
_MOVE: Final = 2 / 32

VIEWS: Final = (
    View(),
    View(angle=_TURN),
    View(angle=-_TURN),
    View(zoom=1.1),
    View(right=_MOVE, down=_MOVE),
    View(right=-_MOVE, down=-_MOVE),
    View(right=_MOVE, down=-_MOVE),
    View(right=-_MOVE, down=_MOVE),
)
"""Test-time augmentation, the most useful first."""

VARIANTS: Final = (
    Variant("tiny", ("linear",)),
    Variant("mini", ("narrow",)),
    Variant("small", ("short",)),
    Variant("medium", ("middle",)),
    Variant("large", ("wide-1",)),
    Variant("huge", ("wide-1",), VIEWS[:4]),
    Variant("ensemble", ("wide-1", "wide-2", "wide-3"), VIEWS),
)
"""The zoo, fastest first."""
