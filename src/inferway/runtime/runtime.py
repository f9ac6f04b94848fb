"""Interface of every runtime, ONNX Runtime in the process, and one without a model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from inferway.protocol import Signature, Tensor
from inferway.runtime.artifact import ArtifactError, read
from inferway.runtime.providers import Providers, session_of

Arrays = dict[str, NDArray[Any]]

# Nothing lies within a device.
_NOWHERE: Final = "/dev/null/models"
_LOCK: Final = Lock()


class Call(Protocol):
    """One run that can be stopped from another thread."""

    # Set to True, it makes the run fail soon; after the run, nothing happens.
    terminate: bool


class Runtime(Protocol):
    """A loaded model. `run` may be called from several threads at once."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""

    def run(self, inputs: Arrays) -> Arrays:
        """Answer one batch; the calling thread is held until the answer is there.

        Parameters
        ----------
        inputs
            One array per input of the signature, all with the same number of rows (first axis),
            at least one. Shapes and types have been checked by whoever took the request.

        Returns
        -------
        dict
            One array per output, in the signature's order, with as many rows.
        """

    def close(self) -> None:
        """Free the model; it is not run again. A second call does nothing."""


def zeros(
    tensors: Sequence[Tensor], rows: int = 1, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Arrays:
    """Make rows of zeros (empty strings for BYTES), by tensor.

    Parameters
    ----------
    tensors
        Of a signature.
    rows
        Length of the first axis.
    shapes
        Shapes of arrays that fit, by tensor; open axes take their lengths, else 1.
    """
    shapes = shapes or {}
    return {
        tensor.name: np.full(
            [rows, *map(abs, shapes.get(tensor.name, tensor.shape)[1:])],
            b"" if tensor.datatype == "BYTES" else 0,
            tensor.dtype,
        )
        for tensor in tensors
    }


class NullRuntime:
    """Answers zeros of the right shape after holding the calling thread for a while.

    Parameters
    ----------
    signature
        What it pretends to be; output axes of any length (-1) get the length 1.
    service_s
        How long one call takes, whatever the batch, in seconds. The thread sleeps and leaves
        the processor to others, as a thread does that waits for an accelerator.
    """

    def __init__(self, signature: Signature, *, service_s: float = 0.0) -> None:
        if not (math.isfinite(service_s) and service_s >= 0.0):
            raise ValueError(
                f"service_s is {service_s}; it must be a finite time in seconds, 0 or more"
            )
        self.signature = signature
        self._service_s = service_s

    def run(self, inputs: Arrays) -> Arrays:
        """Answer zeros (empty strings for BYTES) with as many rows as the first input."""
        rows = len(inputs[self.signature.inputs[0].name])
        if self._service_s > 0.0:
            time.sleep(self._service_s)
        return zeros(self.signature.outputs, rows)

    def close(self) -> None:
        """Nothing to free."""


class OnnxRuntime:
    """A model in ONNX Runtime, on the processor if no other execution provider is stated.

    One thread per call unless told otherwise, operators in sequence, and no spinning: threads that
    burn a core while they wait make the service times of all other instances longer and their
    profiles wrong.

    Parameters
    ----------
    path
        The model file; it is checked as `inferway.runtime.inspect` does, and the checked bytes
        are what is loaded.
    threads
        Threads inside one operator.
    digest
        What the file must hash to, or None.
    providers
        Execution providers as they are preferred, by name, each with its options.

    Raises
    ------
    ArtifactError
        When the file fails a check, ONNX Runtime cannot load it, or one of the providers is not
        there or cannot be loaded.
    """

    # As Triton calls what runs a model.
    backend: Final = "onnxruntime"

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        digest: str | None = None,
        providers: Providers = (),
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; it must be 1 or more")
        import onnxruntime

        # Of one file the weights are there once, whatever the tasks that it answers.
        loaded = _found(path, threads, digest, tuple(providers))
        self._loaded: _Loaded | None = loaded
        self._session: Any = loaded.session
        self.signature, self.providers = loaded.signature, tuple(providers)
        self._run_options = onnxruntime.RunOptions
        self._outputs = [tensor.name for tensor in self.signature.outputs]
        self._texts = [one.name for one in self.signature.inputs if one.datatype == "BYTES"]
        self.steady = True
        # Time of a run at the end of a warm-up; None before.
        self.warmed_s: float | None = None

    def call(self) -> Any:
        """Make what stops one run between two operators."""
        options = self._run_options()
        options.log_severity_level = 4
        return options

    def run(self, inputs: Arrays, call: Any = None) -> Arrays:
        """Answer one batch; see `inferway.runtime.Runtime.run`."""
        session = self._session
        if session is None:
            raise RuntimeError("the runtime is closed; load the model again to run it")
        if self._texts:
            inputs = inputs | {name: _decoded(inputs[name]) for name in self._texts}
        return dict(zip(self._outputs, session.run(self._outputs, inputs, call), strict=True))

    def close(self) -> None:
        """Free the model; calls that are under way still end."""
        self._session = self._loaded = None


def _decoded(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    """Decode bytes: of them ONNX Runtime would make texts that begin with ``b'``.

    Strings of ONNX are UTF-8, so what is none becomes the replacement character.
    """
    return np.asarray(np.frompyfunc(_text, 1, 1)(texts), np.object_)


def _text(one: bytes | str) -> str:
    return one.decode(errors="replace") if isinstance(one, bytes) else one


class _Loaded:
    """A file's session, which any number of threads may run, and its signature."""

    __slots__ = ("__weakref__", "session", "signature")

    def __init__(self, session: Any, signature: Signature) -> None:
        self.session, self.signature = session, signature


# What runtimes have now; with the last of them a session goes.
_LOADED: Final[WeakValueDictionary[tuple[object, ...], _Loaded]] = WeakValueDictionary()


def _found(path: Path, threads: int, digest: str | None, providers: Providers) -> _Loaded:
    """Find the session of a file that some runtime has and that is as it was, or load it."""
    key: tuple[object, ...] = path, threads, digest, providers
    with suppress(OSError):  # which reading it says
        stat = path.stat()
        key += stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    with _LOCK:
        loaded = _LOADED.get(key)
    if loaded is None:
        loaded = _load(path, threads, digest, providers)
        with _LOCK:
            loaded = _LOADED.setdefault(key, loaded)
    return loaded


def _load(path: Path, threads: int, digest: str | None, providers: Providers) -> _Loaded:
    import onnxruntime

    content, signature = read(path, digest=digest)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # An arena keeps the most that was ever needed; the C library's costs the same and does not.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # what goes wrong is raised; the log would repeat it
    # What is read is no file of ONNX Runtime's own format, and names no others. Even if it did,
    # they would be looked for in no folder that there is, and not in the working directory.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", _NOWHERE
    )
    try:
        session = session_of(content, options, providers)
    except ValueError as error:
        raise ArtifactError(f"{path}: {error}") from None
    except Exception as error:  # its error types are not public
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{path}: ONNX Runtime cannot load the model: {reason}") from error
    return _Loaded(session, signature)
