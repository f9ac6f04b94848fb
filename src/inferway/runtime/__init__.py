"""What runs a model: its signature, the checks on its file, and the runtimes."""

from inferway.runtime.artifact import ArtifactError, inspect
from inferway.runtime.null import NullRuntime
from inferway.runtime.onnx import OnnxRuntime
from inferway.runtime.runtime import Runtime
from inferway.runtime.signature import DTYPES, Signature, Tensor, datatype_of

__all__ = [
    "DTYPES",
    "ArtifactError",
    "NullRuntime",
    "OnnxRuntime",
    "Runtime",
    "Signature",
    "Tensor",
    "datatype_of",
    "inspect",
]
