"""Memory of a variant: what one instance adds to a process, loaded, and at its highest.

It is measured in a process of its own: in this one, memory freed by others would be used first.
Processes that the variant starts count as well.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from inferway.deployment import Variant
from inferway.deployment.runtimes import blocking_runtime_of
from inferway.protocol import Signature
from inferway.runtime.growth import begin_peak, give_back, marked_bytes, peak_bytes

Arrays = dict[str, NDArray[Any]]

_PATIENCE_S: Final = 600.0
_PROGRAM: Final = "from inferway.profiling.memory import answer; answer()"


class MemoryUse(NamedTuple):
    """Resident memory, in bytes.

    Attributes
    ----------
    loaded_bytes
        Of one instance that has answered a row.
    peak_bytes
        At its highest, while it was loaded and ran all rows at once.
    """

    loaded_bytes: int
    peak_bytes: int


def memory_of(variant: Variant, signature: Signature | None, inputs: Arrays) -> MemoryUse:
    """Measure one instance of a variant, which takes seconds.

    Parameters
    ----------
    variant
        What is run here; a server elsewhere has no memory of this machine.
    signature
        For a model that does not say its own.
    inputs
        The largest batch, shape [N, ...] each.

    Raises
    ------
    ValueError
        Where it does not run there, with the reason.
    """
    # Our own objects, between our own processes.
    asked = pickle.dumps((variant, signature, inputs))
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"its memory could not be measured: {error}") from error
    try:
        return MemoryUse(*json.loads(done.stdout))
    except (ValueError, TypeError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"the process ended with {done.returncode}"
        raise ValueError(f"its memory could not be measured: {why}") from None


def answer() -> None:
    """Measure what standard input asks for, and print it."""
    from inferway.runtime.artifact import newest_opset

    # What a model prints belongs to nobody here.
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    variant, signature, inputs = pickle.load(sys.stdin.buffer)
    if variant.model is not None:
        import onnxruntime  # noqa: F401 - the library itself is no part of an instance

        newest_opset()  # loads the libraries' code with a model of one node
    give_back()
    before = begin_peak()
    with closing(blocking_runtime_of(variant, signature)) as runtime:
        runtime.run({name: array[:1] for name, array in inputs.items()})
        loaded = _resident() - before + sum(_resident(child) for child in _children())
        runtime.run(inputs)
        peak = peak_bytes() - before + sum(_highest(child) for child in _children())
    told.write(json.dumps([max(0, loaded), max(0, loaded, peak)]))
    told.close()


def _children() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _resident(process: int | None = None) -> int:
    import psutil

    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(process).memory_info().rss)
    return 0


def _highest(process: int) -> int:
    with suppress(OSError):
        return marked_bytes(process)
    return _resident(process)
