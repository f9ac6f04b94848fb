"""ONNX Runtime in the process: the default runtime."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import WeakValueDictionary

from inferway.protocol import Signature
from inferway.runtime.artifact import ArtifactError, read
from inferway.runtime.runtime import Arrays

# Nothing lies within a device.
_NOWHERE: Final = "/dev/null/models"


_LOCK: Final = Lock()


class OnnxRuntime:
    """A model in ONNX Runtime on the processor.

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

    Raises
    ------
    ArtifactError
        When the file fails a check or ONNX Runtime cannot load it.
    """

    def __init__(self, path: Path, *, threads: int = 1, digest: str | None = None) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; it must be 1 or more")
        import onnxruntime

        # Of one file the weights are there once, whatever the tasks that it answers.
        loaded = _found(path, threads, digest)
        self._loaded: _Loaded | None = loaded
        self._session: Any = loaded.session
        self.signature = loaded.signature
        self._run_options = onnxruntime.RunOptions
        self._outputs = [tensor.name for tensor in self.signature.outputs]
        self.steady = True
        # Time of a run at the end of a warm-up; None before.
        self.warmed_s: float | None = None

    def call(self) -> Any:
        """Make what stops one run between two operators; see `inferway.runtime.Stoppable`."""
        options = self._run_options()
        options.log_severity_level = 4
        return options

    def run(self, inputs: Arrays, call: Any = None) -> Arrays:
        """Answer one batch; see `inferway.runtime.Runtime.run`."""
        session = self._session
        if session is None:
            raise RuntimeError("the runtime is closed; load the model again to run it")
        return dict(zip(self._outputs, session.run(self._outputs, inputs, call), strict=True))

    def close(self) -> None:
        """Free the model; calls that are under way still end."""
        self._session = self._loaded = None


class _Loaded:
    """A file's session, which any number of threads may run, and its signature."""

    __slots__ = ("__weakref__", "session", "signature")

    def __init__(self, session: Any, signature: Signature) -> None:
        self.session, self.signature = session, signature


def _found(path: Path, threads: int, digest: str | None) -> _Loaded:
    """Find the session of a file that some runtime has and that is as it was, or load it."""
    key = _identity(path, threads, digest)
    with _LOCK:
        found = _LOADED.get(key)
    if found is None:
        found = _load(path, threads, digest)
        with _LOCK:
            found = _LOADED.setdefault(key, found)
    return found


def _identity(path: Path, threads: int, digest: str | None) -> tuple[object, ...]:
    try:
        stat = path.stat()
    except OSError:  # which reading it says
        return (path, threads, digest)
    file = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    return (path, threads, digest, *file)


def _load(path: Path, threads: int, digest: str | None) -> _Loaded:
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
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its error types are not public
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{path}: ONNX Runtime cannot load the model: {reason}") from error
    return _Loaded(session, signature)


# What runtimes have now; with the last of them a session goes.
_LOADED: Final[WeakValueDictionary[tuple[object, ...], _Loaded]] = WeakValueDictionary()
