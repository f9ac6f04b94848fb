"""From a model of another framework to a file that is ready to serve."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.exporting import rows
from inferway.exporting.agreement import Agreement, DisagreementError, compare
from inferway.exporting.model import ExportError, SourceModel, first_line
from inferway.exporting.source import LoadedModel, framework, load, require
from inferway.files import write_whole
from inferway.protocol import Signature, Tensor
from inferway.runtime import Arrays, ArtifactError, OnnxRuntime, zeros
from inferway.runtime.artifact import OLDEST_OPSET, digest_of, newest_opset

if TYPE_CHECKING:
    import onnx

TOLERANCE: Final = 1e-4
"""Largest difference of two numbers that agree, relative to the source's where that is above 1."""

# Share of rows up to which rounding may be what makes them differ.
_FEW: Final = 0.1
_PLAIN: Final = re.compile(r"(?!(?:true|false|null|yes|no|on|off)$)(?:\.{0,2}/)?[A-Za-z_][\w./-]*")


@dataclass(frozen=True)
class Exported:
    """A model that has been written.

    Attributes
    ----------
    path
        The ONNX file.
    variant
        Name for it in a deployment file.
    source
        What it was made of, for people.
    digest
        Hash of the file, as ``sha256:`` and 64 hexadecimal digits.
    size_bytes
        Of the file.
    opset
        Of ONNX's own operators.
    signature
        Inputs and outputs, as the server reads them.
    agreement
        How its answers compare with those of its source.
    data
        File whose rows were compared; None where they were made up.
    """

    path: Path
    variant: str
    source: str
    digest: str
    size_bytes: int
    opset: int
    signature: Signature
    agreement: Agreement
    data: Path | None

    @property
    def yaml(self) -> str:
        """Lines for a deployment file; all that is not one of its keys is a comment."""
        compared = f"{self.agreement.rows:,} rows"
        compared += " made up" if self.data is None else f" of {self.data}"
        batches = ", ".join(map(str, self.agreement.batches))
        return "\n".join(
            [
                f"# {self.source}, opset {self.opset}, {self.size_bytes:,} bytes",
                f"# compared on {compared}, in batches of {batches}: {self.agreement}",
                *self._rounded(),
                *(f"# input {one}" for one in self.signature.inputs),
                *(f"# output {one}" for one in self.signature.outputs),
                "variants:",
                f"  {_scalar(self.variant)}:",
                f"    model: {_scalar(str(self.path))}",
                f"    digest: {self.digest}",
                "",
            ]
        )

    def _rounded(self) -> list[str]:
        share = self.agreement.rounded / self.agreement.rows
        said = f"# the model itself answers {share:.2%} of them otherwise in float64, as which it "
        return [f"{said}takes inputs of FP64"] if share else []

    def __str__(self) -> str:
        return self.yaml

    def to_json(self) -> dict[str, Any]:
        """Make a document of it, for programs."""
        found = self.agreement
        return {
            "model": str(self.path),
            "variant": self.variant,
            "source": self.source,
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "opset": self.opset,
            "inputs": [_described(one) for one in self.signature.inputs],
            "outputs": [_described(one) for one in self.signature.outputs],
            "agreement": {
                "data": None if self.data is None else str(self.data),
                "rows": found.rows,
                "batches": list(found.batches),
                "difference": found.difference,
                "differing": found.differing,
                "labels": found.labels,
                "ties": found.ties,
                "rounded": found.rounded,
            },
            "yaml": self.yaml,
        }


def export(
    source: Any,
    out: Path | str,
    *,
    data: Path | str | None = None,
    inputs: Sequence[Tensor | str] = (),
    outputs: Sequence[str] = (),
    opset: int | None = None,
    tolerance: float = TOLERANCE,
    differing: float = 0.0,
    trust: Sequence[str] = (),
    variant: str | None = None,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda doing, done: None,
) -> Exported:
    """Write a model of scikit-learn, XGBoost or PyTorch as ONNX, if that answers as it does.

    The file has a free batch and all weights inside, and passes the checks of the server. It is
    written whole, or not at all.

    Parameters
    ----------
    source
        The model itself, or what names it: ``FILE.py:NAME``, ``FILE.skops``, ``FILE.ubj`` or
        ``FILE.json`` of XGBoost. A Python file is run.
    out
        The ONNX file to write.
    data
        Labeled data (`inferway.profiling.read`) whose rows are compared; None makes some up.
    inputs
        What the model takes, such as ``x=FP32[64]``; what it says itself by default.
    outputs
        Names of the outputs.
    opset
        Of ONNX's own operators; by default one that every ONNX Runtime runs that Inferway installs.
    tolerance
        Largest difference at which two numbers agree, relative to the source's where that is
        above 1.
    differing
        Share of the rows that may disagree, 0..1: trees behind a scaling may put a row next to a
        split on its other side.
    trust
        Types that a skops file may hold besides those that skops trusts.
    variant
        Name in the deployment file; by default that of the file.
    seed
        Of the rows that are made up.
    progress
        Called with what is being done and the share of it that is done.

    Raises
    ------
    ExportError
        When the model cannot be loaded or converted, or fails a check of the server;
        `DisagreementError` when the exported model answers otherwise than its source.
    RuntimeError
        When what the export needs is not installed.
    """
    out = Path(out)
    tensors = tuple(rows.tensor(one) if isinstance(one, str) else one for one in inputs)
    if opset is not None and not OLDEST_OPSET <= opset <= newest_opset():
        raise ExportError(
            f"opset {opset} is not one of those that the installed ONNX Runtime runs: "
            f"{OLDEST_OPSET} to {newest_opset()}"
        )
    progress("loading the model", 0.0)
    named = isinstance(source, str | Path)
    loaded = load(str(source), trust) if named else LoadedModel(source, None)
    model = _source_model(loaded, tensors, outputs)
    if data is None:
        asked = model.rows(rows.count(model.inputs), np.random.default_rng(seed))
    else:
        asked = rows.from_file(Path(data), model.inputs, getattr(model, "features", ()))
    progress("converting it", 0.1)
    converted = model.convert(opset)
    _anonymize(converted)
    progress("comparing their answers", 0.3)
    with TemporaryDirectory(prefix="inferway-export-") as folder:
        trial = Path(folder, "model.onnx")
        try:
            runtime = _opened(converted, asked, trial)
            _warm_up(runtime)
        except ArtifactError as error:
            raise ExportError(f"{model.kind}: {str(error).removeprefix(f'{trial}: ')}") from None
        agreement = compare(
            model, runtime, asked, tolerance, lambda done: progress("comparing", 0.3 + 0.7 * done)
        )
        content, signature = trial.read_bytes(), runtime.signature
        runtime.close()
    _check_agreement(agreement, tolerance, differing, data)
    write_whole(out, content)
    return Exported(
        path=out,
        # In a folder of models, each file has the same name.
        variant=variant or (out.stem == "model" and out.parent.name) or out.stem,
        source=model.kind,
        digest=digest_of(content),
        size_bytes=len(content),
        opset=max(one.version for one in converted.opset_import if one.domain in ("", "ai.onnx")),
        signature=signature,
        agreement=agreement,
        data=None if data is None else Path(data),
    )


def _source_model(
    loaded: LoadedModel, inputs: tuple[Tensor, ...], outputs: Sequence[str]
) -> SourceModel:
    """Make the framework's form of a model; what it needs is there or said to be missing."""
    used = framework(loaded.model)
    kind = type(loaded.model).__name__
    if used is None:
        raise ExportError(
            f"{kind} is no model of scikit-learn, XGBoost or PyTorch; serve it as Python instead "
            "(`python` of a variant)"
        )
    require(kind, used)
    if used == "torch":
        from inferway.exporting import pytorch

        example = getattr(loaded.module, pytorch.EXAMPLE, None)
        return pytorch.TorchModel(loaded.model, inputs, outputs, example=example)
    from inferway.exporting.scikit_learn import ScikitModel, uses_xgboost

    if used == "sklearn":
        if uses_xgboost(loaded.model):
            from inferway.exporting import boosting

            require(kind, "xgboost")
            boosting.register()
        return ScikitModel(loaded.model, inputs, outputs)
    from inferway.exporting import boosting

    boosting.register()
    model = boosting.estimator(loaded.model)
    return ScikitModel(
        model, inputs, outputs, converted=boosting.convertible(model), framework="XGBoost"
    )


def _anonymize(model: onnx.ModelProto) -> None:
    """Take out what exporters note of this machine: its paths, and lines of the user's code."""

    def parts(graph: onnx.GraphProto) -> Iterator[Any]:
        yield graph
        yield from (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    yield from parts(inner) if inner.node else ()

    for part in (model, *parts(model.graph), *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    for function in model.functions:
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""


def _opened(model: onnx.ModelProto, asked: Arrays, trial: Path) -> OnnxRuntime:
    """Load a model as the server does, its outputs declared as they come out.

    Converters declare some otherwise: the scores of two classes as one column, and what trees of
    float64 answer as float64.
    """
    from onnx import TensorProto

    try:
        runtime = _loaded(model, trial)
    except ArtifactError:
        doubles = [
            value.type.tensor_type
            for value in model.graph.output
            if value.type.tensor_type.elem_type == TensorProto.DOUBLE
        ]
        if not doubles:
            raise
        for one in doubles:
            one.elem_type = TensorProto.FLOAT
        runtime = _loaded(model, trial)
    rows = {name: array[:3] for name, array in asked.items()}
    answer = _asked(runtime, rows)
    for value, array in zip(model.graph.output, answer.values(), strict=True):
        axes = value.type.tensor_type.shape.dim
        if len(axes) != array.ndim or len(array) != len(next(iter(rows.values()))):
            continue  # which the comparison will say
        axes[0].dim_param = "batch"
        for axis, length in zip(axes[1:], array.shape[1:], strict=True):
            if axis.HasField("dim_value"):
                axis.dim_value = length
    return _loaded(model, trial)


def _loaded(model: onnx.ModelProto, trial: Path) -> OnnxRuntime:
    trial.write_bytes(_serialized(model))
    return OnnxRuntime(trial)


def _asked(runtime: OnnxRuntime, inputs: Arrays) -> Arrays:
    try:
        return runtime.run(inputs)
    except Exception as error:  # its error types are not public
        raise ExportError(f"the exported model fails: {first_line(error)}") from error


def _warm_up(runtime: OnnxRuntime) -> None:
    """Ask zeros and empty texts, as a server does before it takes requests."""
    inputs = runtime.signature.inputs
    if any(-1 in one.shape[1:] for one in inputs):
        return  # of which no length need make sense
    try:
        _asked(runtime, zeros(inputs))
    except ExportError as error:
        raise ExportError(f"{error}; asked were zeros, with which a server begins") from error


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        content: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf's error type is not a dependency of ours
        raise ExportError(
            "the model is larger than 2 GiB, which no ONNX file is that has its weights inside"
        ) from error
    return content


def _check_agreement(
    found: Agreement, tolerance: float, differing: float, data: Path | str | None
) -> None:
    if found.differing <= differing * found.rows:
        return
    which = f"of {data}" if data is not None else "made up"
    sentence = (
        f"the exported model does not answer as its source: {found.differing:,} of "
        f"{found.rows:,} rows {which} differ ({found.differing / found.rows:.2%})"
    )
    if found.labels:
        sentence += f", {found.labels / found.rows:.2%} in their label"
    if found.output and found.difference > tolerance:
        sentence += (
            f", by {found.difference:.3g} at most (row {found.row + 1}, output {found.output!r}; "
            f"the tolerance is {tolerance:g})"
        )
    advice = (
        "--differing SHARE allows some rows, --tolerance larger differences, and inputs of FP64 "
        "round as the source does"
        if found.differing <= _FEW * found.rows
        else "serve it as Python instead (`python` of a variant)"
    )
    raise DisagreementError(f"{sentence}; nothing was written: {advice}")


def _described(one: Tensor) -> dict[str, Any]:
    return {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
