"""Modules of PyTorch, by its own exporter with a dynamic batch."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.exporting.model import ExportError, first_line
from inferway.exporting.rows import made_up
from inferway.protocol import Tensor, datatype_of
from inferway.runtime import Arrays

if TYPE_CHECKING:
    import onnx

_NAMED: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
# Operators that PyTorch's exporter writes and every ONNX Runtime that Inferway installs runs.
_OPSET: Final = 20
EXAMPLE: Final = "example_inputs"
"""Attribute of a module, or name in its file, that shows what it takes."""


class TorchModel:
    """A module, in its mode for inference and on the processor.

    Parameters
    ----------
    model
        A ``torch.nn.Module``.
    inputs
        What it takes, by the names of its forward's parameters, or in their order.
    outputs
        Names of its outputs; empty for those that it gives itself, else ``output``.
    example
        Where `inputs` are left out: tensors with a batch as their first axis, in the order of the
        parameters or by name, or a function that returns them.

    Raises
    ------
    ExportError
        Where nobody says what it takes, or it fails on rows of that.
    """

    scores: int | None = None

    def __init__(
        self,
        model: Any,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[str] = (),
        *,
        example: Any = None,
    ) -> None:
        self.kind = f"{type(model).__name__} of PyTorch"
        self._model = _own(model).eval().cpu()
        self._forward = inspect.signature(model.forward).parameters
        parameters = [name for name, one in self._forward.items() if one.kind in _NAMED]
        self._example: Arrays = {}
        if inputs:
            self.inputs = _ordered(inputs, parameters)
        else:
            self.inputs = self._shown(getattr(model, EXAMPLE, example), parameters)
        for one in self.inputs:
            if one.datatype == "BYTES":
                raise ExportError(f"input {one}: PyTorch has no texts")
        self._check_names(parameters)
        answer = self._run(self.rows(2, np.random.default_rng(0)))
        names = _names(answer)
        self.outputs = tuple(outputs) or names
        if len(self.outputs) != len(names):
            raise ExportError(
                f"the model has {len(names)} outputs, and --output names {len(self.outputs)}"
            )

    def rows(self, count: int, generator: np.random.Generator) -> Arrays:
        """Make up rows; whole numbers are those of the example, where there is one."""
        made = made_up(self.inputs, count, generator)
        for name, array in self._example.items():
            if array.dtype.kind != "f":
                made[name] = array[np.arange(count) % len(array)]
        return made

    def answer(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Answer rows by PyTorch."""
        return [one.numpy() for one in _flat(self._run(inputs))]

    def in_float64(self, inputs: Arrays) -> list[NDArray[Any]] | None:
        """Nothing: a module computes in the type of its weights."""
        return None

    def convert(self, opset: int | None) -> onnx.ModelProto:
        """Convert it by PyTorch's exporter, all weights inside.

        Raises
        ------
        ExportError
            Where the exporter cannot follow the module, or the batch is not free in it.
        """
        import torch

        batch = torch.export.Dim("batch")
        shapes = {
            one.name: {
                0: batch,
                **{
                    axis: torch.export.Dim.DYNAMIC
                    for axis, length in enumerate(one.shape[1:], 1)
                    if length == -1
                },
            }
            for one in self.inputs
        }
        rows = self.rows(2, np.random.default_rng(0))
        arguments = {one.name: torch.from_numpy(rows[one.name]) for one in self.inputs}
        try:
            with _quiet():
                program = torch.onnx.export(
                    self._model,
                    () if self._by_name else tuple(arguments.values()),
                    kwargs=arguments if self._by_name else None,
                    dynamo=True,
                    dynamic_shapes=shapes if self._by_name else tuple(shapes.values()),
                    input_names=[one.name for one in self.inputs],
                    output_names=list(self.outputs),
                    opset_version=opset or _OPSET,
                    external_data=False,
                    verbose=False,
                )
        except Exception as error:  # a whole compiler stands behind it
            raise ExportError(
                f"PyTorch cannot export {self.kind}: {first_line(error.__cause__ or error)}; serve "
                "it as Python instead (`python` of a variant)"
            ) from error
        assert program is not None
        model: onnx.ModelProto = program.model_proto
        return model

    def _run(self, inputs: Arrays) -> Any:
        import torch

        tensors = {
            one.name: torch.from_numpy(np.ascontiguousarray(inputs[one.name]))
            for one in self.inputs
        }
        try:
            with torch.no_grad():
                return self._model(**tensors) if self._by_name else self._model(*tensors.values())
        except Exception as error:
            takes = ", ".join(map(str, self.inputs))
            raise ExportError(
                f"{self.kind} fails on rows of {takes}: {first_line(error)}"
            ) from error

    @property
    def _by_name(self) -> bool:
        """Tell whether each input is named as a parameter that takes it by its name."""
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        return all(
            one.name in self._forward and self._forward[one.name].kind in kinds
            for one in self.inputs
        )

    def _check_names(self, parameters: Sequence[str]) -> None:
        """Refuse names of parameters at other places, where inputs go by their places."""
        if self._by_name:
            return
        for place, one in enumerate(self.inputs):
            if one.name in parameters and parameters.index(one.name) != place:
                named = ", ".join(each.name for each in self.inputs)
                raise ExportError(
                    f"inputs {named} are neither the names of its forward's parameters nor in "
                    f"their order, {', '.join(parameters)}"
                )

    def _shown(self, example: Any, parameters: Sequence[str]) -> tuple[Tensor, ...]:
        """Find the inputs by an example of them."""
        example = example() if inspect.isroutine(example) else example
        if example is None:
            raise ExportError(
                f"{self.kind} does not say what it takes: name its inputs with --input "
                f"{parameters[0] if parameters else 'x'}=FP32[SHAPE], or give it `{EXAMPLE}`"
            )
        if isinstance(example, Mapping):
            named = dict(example)
            if named.keys() <= set(parameters):
                named = {name: named[name] for name in parameters if name in named}
        else:
            several = example if isinstance(example, tuple | list) else (example,)
            named = dict(zip(parameters, several, strict=False))
        for name, one in named.items():
            if not hasattr(one, "detach") or not one.ndim:
                raise ExportError(
                    f"`{EXAMPLE}` has no tensor with a batch as its first axis for {name!r}"
                )
            self._example[name] = one.detach().cpu().numpy()
        return tuple(
            Tensor(name, datatype_of(array.dtype), (-1, *array.shape[1:]))
            for name, array in self._example.items()
        )


def _own(model: Any) -> Any:
    """Copy a module, so that its mode and its device stay as they are; itself if it has no copy."""
    try:
        return copy.deepcopy(model)
    except Exception:  # such as of tensors that are computed from others
        return model


def _ordered(inputs: Sequence[Tensor], parameters: Sequence[str]) -> tuple[Tensor, ...]:
    """Put inputs that are named as the parameters into their order; others stay in theirs."""
    if all(one.name in parameters for one in inputs):
        return tuple(sorted(inputs, key=lambda one: parameters.index(one.name)))
    return tuple(inputs)


def _flat(answer: Any) -> list[Any]:
    """List the tensors of an answer in the order in which the exporter takes them."""
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, tuple | list):
        return [tensor for one in answer for tensor in _flat(one)]
    if not hasattr(answer, "numpy"):
        raise ExportError(f"the model answers with {type(answer).__name__}; expected tensors")
    return [answer]


def _names(answer: Any) -> tuple[str, ...]:
    count = len(_flat(answer))
    if isinstance(answer, Mapping) and len(answer) == count:
        return tuple(map(str, answer))
    if len(fields := getattr(answer, "_fields", ())) == count:
        return tuple(fields)
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the exporter print, warn and log nothing; what goes wrong it raises as well."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
