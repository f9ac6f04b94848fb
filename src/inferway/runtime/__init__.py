"""Runtimes of models: the checks on its file, and the runtimes."""

from inferway.runtime.artifact import ArtifactError, inspect
from inferway.runtime.python import PythonRuntime, kill_workers
from inferway.runtime.remote import AwaitedRuntime, BlockingRemote, RemoteRuntime, Served
from inferway.runtime.runtime import Arrays, Call, NullRuntime, OnnxRuntime, Runtime, zeros
from inferway.runtime.server import Fault, RemoteError
from inferway.runtime.worker_process import (
    PythonCode,
    UnsaidSignatureError,
    WorkerError,
    signature_of_class,
)

__all__ = [
    "Arrays",
    "ArtifactError",
    "AwaitedRuntime",
    "BlockingRemote",
    "Call",
    "Fault",
    "NullRuntime",
    "OnnxRuntime",
    "PythonCode",
    "PythonRuntime",
    "RemoteError",
    "RemoteRuntime",
    "Runtime",
    "Served",
    "UnsaidSignatureError",
    "WorkerError",
    "inspect",
    "kill_workers",
    "signature_of_class",
    "zeros",
]
