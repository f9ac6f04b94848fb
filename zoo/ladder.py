"""The digits zoo's ladder: its networks as data, its variants, and both as ONNX graphs.

A network is plain data, so that one description is trained in PyTorch and written as ONNX, node by
node. Building the graph ourselves keeps the files small (half-precision weights, cast when the
model is loaded) and the same for the same weights, and puts test-time augmentation and the
ensemble's mean inside the model, so that all variants have one signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from zoo.images import SIDE

if TYPE_CHECKING:
    import onnx

CLASSES: Final = 10
OPSET: Final = 17  # the first with all that is used here is 16 (GridSample)
IR_VERSION: Final = 8

Kind = Literal["conv", "residual", "pool", "mean"]
# Per convolution and for the last linear map, in order: weight and bias.
Weights = list[tuple[NDArray[np.float32], NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class Layer:
    """One step of a network.

    ``conv`` is a 3x3 convolution, batch norm, ReLU; ``residual`` two of them beside the identity,
    with as many channels in as out; ``pool`` the largest of 2x2; ``mean`` is over the whole plane.
    """

    kind: Kind
    channels: int = 0  # out of a convolution
    stride: int = 1  # of a convolution


@dataclass(frozen=True, slots=True)
class Network:
    """Layers, then one linear map to the classes; and how to train it."""

    layers: tuple[Layer, ...]
    images: int  # training images that it sees, each drawn anew
    rate: float  # largest learning rate
    # Share of the training images that are turned, enlarged and moved once more, by interpolation,
    # so that the network knows what other views of an image look like.
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """One way to look at an image before it is classified: turned, enlarged, moved."""

    angle: float = 0.0  # radians
    zoom: float = 1.0  # above 1 the digit appears larger
    right: float = 0.0  # shifts in half canvases
    down: float = 0.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A model of the zoo: the mean of what some networks say of some views of the image."""

    name: str
    networks: tuple[str, ...]
    views: tuple[View, ...] = (View(),)


_conv, _residual = partial(Layer, "conv"), partial(Layer, "residual")
_POOL, _MEAN = Layer("pool"), Layer("mean")
_WIDE: Final = (
    *(_conv(32, 2), _residual(32), _conv(64, 2), _residual(64), _conv(128, 2), _residual(128)),
    _MEAN,
)

# Every network that is trained; the wide ones differ in their seeds and training images.
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

_PIXEL: Final = 2 / 32
_SIDES: Final = ((_PIXEL, 0.0), (-_PIXEL, 0.0), (0.0, _PIXEL), (0.0, -_PIXEL))

# Test-time augmentation: the image itself, moved by a pixel, turned, enlarged, moved by two. Chosen
# on the validation part. The networks skip every other position of a plane, and moved views show
# them what they skipped.
VIEWS: Final = (
    View(),
    *(View(right=right, down=down) for right, down in _SIDES),
    View(angle=0.2),
    View(angle=-0.2),
    View(zoom=1.1),
    View(zoom=1 / 1.1),
    *(View(right=2 * right, down=2 * down) for right, down in _SIDES),
)

# The zoo, fastest first.
VARIANTS: Final = (
    Variant("tiny", ("linear",)),
    Variant("mini", ("narrow",)),
    Variant("small", ("short",)),
    Variant("medium", ("middle",)),
    Variant("large", ("wide-1",)),
    Variant("huge", ("wide-1",), VIEWS[:5]),
    Variant("ensemble", ("wide-1", "wide-2", "wide-3"), VIEWS),
)


def model(
    networks: Sequence[tuple[tuple[Layer, ...], Weights]],
    views: Sequence[View] = (View(),),
    *,
    votes: bool = False,
) -> onnx.ModelProto:
    """Write networks, layers and weights of each, and the views that all look at as one model.

    It goes from ``image``, float32 of shape [N, 1, 32, 32], to ``probabilities``: the mean of what
    they say, [N, 10], or as `votes` what each member says of each view, float32 of shape
    [N, members * views, 10], members first.
    """
    from onnx import TensorProto, helper

    writer = _Writer()
    image = "image" if list(views) == [View()] else _look(writer, views)
    said = [_network(writer, image, layers, weights) for layers, weights in networks]
    if votes or len(views) > 1 or len(said) > 1:
        shaped = ("Reshape", [-1, len(views), CLASSES]) if len(views) > 1 else ("Unsqueeze", [1])
        to = writer.constant(np.array(shaped[1]))
        said = [writer.node(shaped[0], each, to) for each in said]
    answer = said[0] if len(said) == 1 else writer.node("Concat", *said, axis=1)
    if votes or len(views) == len(said) == 1:
        writer.node("Identity", answer, name="probabilities")
    else:
        writer.node("ReduceMean", answer, axes=[1], keepdims=0, name="probabilities")
    shape: list[Any] = ["batch", *([len(views) * len(networks)] if votes else []), CLASSES]
    graph = helper.make_graph(
        writer.nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, shape)],
        writer.initializers,
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="inferway",
    )
    made.graph.doc_string = "Handwritten digits; image: 0..1, light on dark."
    return made


class _Writer:
    """Collects the nodes of a graph and names what they compute."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        from onnx import helper

        output = name or f"{operator.lower()}-{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, value: NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"constant-{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, value: NDArray[np.float32]) -> str:
        from onnx import TensorProto

        return self.node("Cast", self.constant(value.astype(np.float16)), to=TensorProto.FLOAT)


def _look(writer: _Writer, views: Sequence[View]) -> str:
    """Sample all views of all images at once: [N, 1, S, S] to [N * views, 1, S, S].

    One grid must serve any batch, so the images go through GridSample as the channels of one
    image, and the views as one tall grid.
    """
    grid = np.concatenate([_grid(view) for view in views])[None]
    flat = writer.node("Transpose", "image", perm=[1, 0, 2, 3])
    seen = writer.node(
        "GridSample",
        flat,
        writer.constant(grid),
        mode="bilinear",
        padding_mode="border",
        align_corners=0,
    )
    return writer.node("Reshape", seen, writer.constant(np.array([-1, 1, SIDE, SIDE])))


def _grid(view: View) -> NDArray[np.float32]:
    """Source of each point of a view, [S, S, 2] with x first, -1..1."""
    axis = (np.arange(SIDE) * 2 + 1) / SIDE - 1
    y, x = np.meshgrid(axis - view.down, axis - view.right, indexing="ij")
    cosine, sine = np.cos(view.angle) / view.zoom, np.sin(view.angle) / view.zoom
    return np.stack([x * cosine + y * sine, y * cosine - x * sine], axis=-1).astype(np.float32)


def _network(writer: _Writer, image: str, layers: tuple[Layer, ...], weights: Weights) -> str:
    left = iter(weights)

    def conv(x: str, stride: int = 1) -> str:
        weight, bias = (writer.weight(value) for value in next(left))
        return writer.node(
            "Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2
        )

    x = image
    for layer in layers:
        if layer.kind == "conv":
            x = writer.node("Relu", conv(x, layer.stride))
        elif layer.kind == "residual":
            x = writer.node("Relu", writer.node("Add", conv(writer.node("Relu", conv(x))), x))
        elif layer.kind == "pool":
            x = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        else:
            x = writer.node("GlobalAveragePool", x)
    weight, bias = (writer.weight(value) for value in next(left))
    logits = writer.node("Gemm", writer.node("Flatten", x, axis=1), weight, bias, transB=1)
    return writer.node("Softmax", logits, axis=1)
