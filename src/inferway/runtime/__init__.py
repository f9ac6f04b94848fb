"""What runs a model: the checks on its file, and the runtimes."""

from inferway.runtime.artifact import ArtifactError, inspect
from inferway.runtime.null import NullRuntime
from inferway.runtime.onnx import OnnxRuntime
from inferway.runtime.remote import RemoteRuntime
from inferway.runtime.remote_failure import Fault, RemoteError
from inferway.runtime.runtime import Call, Runtime, Steady, Stoppable

__all__ = [
    "ArtifactError",
    "Call",
    "Fault",
    "NullRuntime",
    "OnnxRuntime",
    "RemoteError",
    "RemoteRuntime",
    "Runtime",
    "Steady",
    "Stoppable",
    "inspect",
]
