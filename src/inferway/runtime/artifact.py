"""Checks on a model file before anything runs it.

A model file may come from anywhere, so it is measured, hashed and parsed as data first. What was
parsed and checked is written anew, and only that is handed to the runtime: no other reading of the
same bytes counts, be it for fields that only the runtime knows or as a file of another format.

A tensor of ONNX may name a file, an offset and a length instead of holding its data, and tensors
are in many places: weights, sparse weights with values and indices of their own, attributes of
nodes, nodes of branches, of functions and of training steps. Whoever wrote the file chose the name,
so what it names would be read with the rights of this process. The walk asks the schema where
tensors can be and looks there, so that a place that a later version adds is looked at too.

Source: onnx.proto (TensorProto.external_data and data_location) and ONNX's ExternalData.md.
"""

from __future__ import annotations

import functools
import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from inferway.protocol import Signature, Tensor, datatype_of

if TYPE_CHECKING:
    import onnx

# Size limit in bytes: a protobuf message cannot be larger.
MAX_BYTES: Final = 2 * 1024**3

# ONNX Runtime guarantees operators from this opset on (its compatibility page).
OLDEST_OPSET: Final = 7

# A file format old enough for every ONNX Runtime, so that only the opset is probed.
OLDEST_IR: Final = 3

# Metadata by which a model sets ONNX Runtime's options, its log and profile files among them, in a
# process whose environment allows it.
_OPTIONS: Final = "ort_config"
# Operator of what was compiled for one device; what it runs may lie in a file that it names.
_COMPILED: Final = "EPContext"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_SHOWN: Final = 80
_TENSOR: Final = "TensorProto"
_BY_FUNCTION: Final = "with `inferway export FILE.py:NAME`, from a function that returns the model"
_TORCH: Final = ("a PyTorch file", _BY_FUNCTION)
_PICKLE: Final = ("a pickled Python object", _BY_FUNCTION)
_SAFE: Final = "with `inferway export`, which reads it"
_TENSORFLOW: Final = (
    "a TensorFlow or Keras file",
    "with tf2onnx, with a dynamic batch as the first axis",
)
# By the end of a file's name: what it is, and how it becomes ONNX.
_FOREIGN: Final = {
    **dict.fromkeys((".pt", ".pt2", ".pth", ".ckpt", ".bin"), _TORCH),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), _PICKLE),
    **dict.fromkeys((".h5", ".hdf5", ".keras", ".pb", ".tflite"), _TENSORFLOW),
    ".safetensors": ("weights without a graph", _BY_FUNCTION),
    ".skops": ("a scikit-learn model", _SAFE),
    ".ubj": ("an XGBoost model", _SAFE),
}


class ArtifactError(ValueError):
    """A model file that must not be loaded, with one sentence that says why."""


def inspect(path: Path, *, digest: str | None = None, max_bytes: int = MAX_BYTES) -> Signature:
    """Check a model file and tell its signature.

    Parameters
    ----------
    path
        An ONNX file with its weights inside.
    digest
        What the file must hash to, as ``sha256:`` and 64 hexadecimal digits; None accepts any.
    max_bytes
        The largest size accepted, in bytes.

    Raises
    ------
    ArtifactError
        When the file is missing, too large, not what the digest says, not ONNX, not whole without
        other files, of an opset that the installed ONNX Runtime does not run, or with a signature
        that cannot be served.
    """
    return read(path, digest=digest, max_bytes=max_bytes)[1]


def read(
    path: Path, *, digest: str | None = None, max_bytes: int = MAX_BYTES
) -> tuple[bytes, Signature]:
    """Do as `inspect` does, and return as well what was checked, as bytes for the runtime.

    Raises
    ------
    ArtifactError
        As `inspect`.
    """
    try:
        with path.open("rb") as file:
            # One byte beyond the limit is enough to know, whatever the file system says of the
            # size: a device file or a growing file reports none.
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot read the model file: {error.strerror}") from error
    if len(content) > max_bytes:
        raise ArtifactError(
            f"{path}: the model file is larger than the limit of {max_bytes:,} bytes"
        )
    if digest is not None:
        try:
            expected = canonical(digest)
        except ValueError as error:
            raise ArtifactError(f"{path}: {error}") from None
        actual = digest_of(content)
        if actual != expected:
            raise ArtifactError(
                f"{path}: the model file's digest is {actual}, expected {expected}; "
                "the file is damaged or another one"
            )
    model, checked = _parse(path, content)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not OLDEST_OPSET <= entry.version <= newest_opset():
            raise ArtifactError(
                f"{path}: the model uses opset {entry.version}; the installed ONNX Runtime runs "
                f"{OLDEST_OPSET} to {newest_opset()}, so export it again with one of these"
            )
    return checked, _signature(path, model)


def digest_of(content: bytes) -> str:
    """Hash a file's bytes, as ``sha256:`` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def canonical(digest: str) -> str:
    """Write a digest in lower case.

    Raises
    ------
    ValueError
        Where it is not ``sha256:`` and 64 hexadecimal digits.
    """
    if not _DIGEST.fullmatch(digest.lower()):
        raise ValueError(
            f"the digest {digest!r} is not 'sha256:' followed by 64 hexadecimal digits"
        )
    return digest.lower()


@functools.cache
def newest_opset() -> int:
    """Find the newest opset that the installed ONNX Runtime accepts, by asking it.

    It publishes no number; a model of one Identity node per opset costs under a millisecond.
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    value = functools.partial(onnx.helper.make_tensor_value_info, elem_type=1, shape=[1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "probe", [value("x")], [value("y")])
    for opset in range(onnx.defs.onnx_opset_version(), OLDEST_OPSET, -1):
        imports = [onnx.helper.make_opsetid("", opset)]
        probe = onnx.helper.make_model(graph, opset_imports=imports, ir_version=OLDEST_IR)
        with suppress(Exception):  # its error types are not public; any means "not this one"
            onnxruntime.InferenceSession(
                probe.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return opset
    return OLDEST_OPSET


def _parse(path: Path, content: bytes) -> tuple[onnx.ModelProto, bytes]:
    import onnx

    refusal = f"{path}: not a whole ONNX model"
    if not content:
        raise ArtifactError(f"{refusal}: the file is empty")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's error type is not a dependency of ours
        raise _not_onnx(path, "the file is damaged or of another format") from error
    if not model.graph.output:
        raise _not_onnx(path, "it holds no graph with an output")
    # Before anything else looks at the model: the checker, too, opens files that it names.
    _check_alone(path, model)
    model.DiscardUnknownFields()
    checked: bytes = model.SerializeToString()
    # The lengths of one model may differ for other reasons, such as numbers that are not packed.
    if len(checked) != len(content) and (
        onnx.load_model_from_string(content).ByteSize() != len(checked)
    ):
        raise ArtifactError(
            f"{path}: the model has fields that the installed onnx {onnx.__version__} does not "
            "know; export it for an older one, or install a newer one"
        )
    try:
        onnx.checker.check_model(checked)
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{refusal}: {reason}") from error
    return model, checked


def _not_onnx(path: Path, reason: str) -> ArtifactError:
    """Say how what is no ONNX becomes some, where the name of the file tells what it is."""
    kind, export = _FOREIGN.get(path.suffix.lower(), ("", ""))
    if not kind:
        return ArtifactError(f"{path}: not a whole ONNX model: {reason}")
    return ArtifactError(f"{path}: {kind}, and only ONNX can be run: export it {export}")


def _check_alone(path: Path, model: onnx.ModelProto) -> None:
    """Refuse what leads to other files, or to more than one model; both escape the digest."""
    found = external_tensor(model)
    if found is not None:
        tensor = f"tensor {found.name[:_LONGEST_SHOWN]!r} at {found.place}"
        where = f" lies in {found.location[:_LONGEST_SHOWN]!r}" if found.location else ""
        raise ArtifactError(
            f"{path}: the model keeps weights in other files: {tensor}{where}; "
            "export it with its weights inside"
        )
    if any(entry.key == _OPTIONS for entry in model.metadata_props):
        raise ArtifactError(
            f"{path}: the model sets options of ONNX Runtime in its metadata ({_OPTIONS}), which "
            "are not the model's to set; leave them out"
        )
    # What compiles puts one at the top; in a branch, no device of this server would run it.
    if any(node.op_type == _COMPILED for node in model.graph.node):
        raise ArtifactError(
            f"{path}: the model was compiled for one device ({_COMPILED}); export it as ONNX's "
            "own operators"
        )


def _signature(path: Path, model: onnx.ModelProto) -> Signature:
    graph = model.graph
    weights = {initializer.name for initializer in graph.initializer}
    # Files of IR version 3 list weights among the inputs too.
    inputs = tuple(
        _tensor(path, "input", value) for value in graph.input if value.name not in weights
    )
    if not inputs:
        raise ArtifactError(f"{path}: the model has no input, so there is nothing to ask it")
    return Signature(inputs, tuple(_tensor(path, "output", value) for value in graph.output))


def _tensor(path: Path, side: str, value: onnx.ValueInfoProto) -> Tensor:
    import onnx

    where = f"{path}: {side} {value.name!r}"
    if value.type.sequence_type.elem_type.HasField("map_type"):
        raise ArtifactError(
            f"{where} is a list of dictionaries, as skl2onnx makes of a classifier's "
            "probabilities: export it with `inferway export`, or with options={'zipmap': False}"
        )
    if not value.type.HasField("tensor_type"):
        raise ArtifactError(f"{where} is not a tensor; only tensors can be served")
    tensor = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        datatype = datatype_of(np.dtype(dtype))
    except (KeyError, TypeError):
        name = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise ArtifactError(
            f"{where} has the type {name}, for which the Open Inference Protocol has no name"
        ) from None
    if not tensor.HasField("shape") or not tensor.shape.dim:
        raise ArtifactError(f"{where} has no axes; the first axis must be the batch")
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1
        for dim in tensor.shape.dim
    )
    if shape[0] != -1:
        raise ArtifactError(
            f"{where} has a first axis of fixed length {shape[0]}; "
            "export the model with a dynamic batch as its first axis"
        )
    return Tensor(value.name, datatype, shape)


class External(NamedTuple):
    """A tensor that lies in another file.

    Attributes
    ----------
    name
        The tensor's, or that of the nearest part around it that has one; may be empty.
    place
        Where it is in the model, as fields of the schema.
    location
        The file that it names; empty for none.
    """

    name: str
    place: str
    location: str


def external_tensor(message: Any) -> External | None:
    """Find the first tensor, in the schema's order, that lies in another file; None for none.

    Protobuf's parser lets no message be nested more than 100 deep.
    """
    if message.DESCRIPTOR.name == _TENSOR:
        if message.data_location == message.DEFAULT and not message.external_data:
            return None
        said = {entry.key: entry.value for entry in message.external_data}
        return External(message.name, "", said.get("location", ""))
    # No scalar of a tensor is looked at: reading raw data in Python would copy it.
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        several = not hasattr(value, "DESCRIPTOR")
        for number, part in enumerate(value if several else (value,)):
            inner = external_tensor(part)
            if inner is not None:
                at = f"{field.name}[{number}]" if several else field.name
                place = f"{at}.{inner.place}" if inner.place else at
                return External(inner.name or getattr(message, "name", ""), place, inner.location)
    return None
