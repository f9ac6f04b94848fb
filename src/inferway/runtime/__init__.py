"""What runs a model: its signature, the checks on its file, and the runtimes."""

from inferway.runtime.artifact import ArtifactError, inspect
from inferway.runtime.null import NullRuntime
from inferway.runtime.onnx import OnnxRuntime
from inferway.runtime.remote import RemoteRuntime
from inferway.runtime.remote_address import RemoteAddress
from inferway.runtime.remote_failure import Fault, RemoteError
from inferway.runtime.runtime import Call, Runtime, Steady, Stoppable
from inferway.runtime.signature import DTYPES, Signature, Tensor, datatype_of

__all__ = [
    "DTYPES",
    "ArtifactError",
    "Call",
    "Fault",
    "NullRuntime",
    "OnnxRuntime",
    "RemoteAddress",
    "RemoteError",
    "RemoteRuntime",
    "Runtime",
    "Signature",
    "Steady",
    "Stoppable",
    "Tensor",
    "datatype_of",
    "inspect",
]
