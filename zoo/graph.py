"""Trained networks as ONNX graphs, written node by node.

Building the graph ourselves keeps the files small (half-precision weights, cast when the model is
loaded) and the same for the same weights, and puts test-time augmentation and the ensemble's mean
inside the model, so that all variants have one signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from zoo.images import SIDE
from zoo.ladder import CLASSES, Layer, View

if TYPE_CHECKING:
    import onnx

OPSET: Final = 17  # the first with all that is used here is 16 (GridSample)
IR_VERSION: Final = 8

Weights = list[tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Per convolution and for the last linear map, in order: weight and bias."""


def model(
    networks: Sequence[tuple[tuple[Layer, ...], Weights]],
    views: Sequence[View] = (View(),),
    *,
    votes: bool = False,
) -> onnx.ModelProto:
    """Write networks and views as one model.

    Parameters
    ----------
    networks
        Layers and weights of each member.
    views
        What each member looks at.
    votes
        Answer what each member says of each view, float32 of shape [N, members * views, 10],
        members first, instead of their mean, [N, 10].

    Returns
    -------
    onnx.ModelProto
        From ``image``, float32 of shape [N, 1, 32, 32], to ``probabilities``.
    """
    from onnx import TensorProto, helper

    writer = _Writer()
    image = "image" if list(views) == [View()] else _look(writer, views)
    said = [_network(writer, image, layers, weights) for layers, weights in networks]
    if len(views) > 1:
        shape = writer.constant(np.array([-1, len(views), CLASSES]))
        said = [writer.node("Reshape", each, shape) for each in said]
    elif votes or len(said) > 1:
        axis = writer.constant(np.array([1]))
        said = [writer.node("Unsqueeze", each, axis) for each in said]
    answer = said[0] if len(said) == 1 else writer.node("Concat", *said, axis=1)
    if votes or len(views) == len(said) == 1:
        writer.node("Identity", answer, name="probabilities")
    else:
        writer.node("ReduceMean", answer, axes=[1], keepdims=0, name="probabilities")
    shape_out: list[str | int | None] = (
        ["batch", len(views) * len(networks), CLASSES] if votes else ["batch", CLASSES]
    )
    graph = helper.make_graph(
        writer.nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, shape_out)],
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
            beside = conv(writer.node("Relu", conv(x)))
            x = writer.node("Relu", writer.node("Add", beside, x))
        elif layer.kind == "pool":
            x = writer.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        else:
            x = writer.node("GlobalAveragePool", x)
    weight, bias = (writer.weight(value) for value in next(left))
    logits = writer.node("Gemm", writer.node("Flatten", x, axis=1), weight, bias, transB=1)
    return writer.node("Softmax", logits, axis=1)
