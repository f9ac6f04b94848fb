"""Memory of a variant: what one instance adds to a process, loaded, and at its highest.

It is measured in a process of its own: in this one, memory freed by others would be used first.
Processes that the variant starts count as well.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, NamedTuple

from numpy.typing import NDArray

from inferway.deployment import Variant
from inferway.deployment.runtimes import blocking_runtime_of
from inferway.profiling.apart import done_apart
from inferway.protocol import Signature
from inferway.runtime.growth import begin_peak, give_back, marked_bytes, peak_bytes

Arrays = dict[str, NDArray[Any]]


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
    try:
        return MemoryUse(*done_apart(__name__, (variant, signature, inputs)))
    except ValueError as error:
        raise ValueError(f"its memory could not be measured: {error}") from error


def answer(asked: tuple[Variant, Signature | None, Arrays]) -> tuple[int, int]:
    """Measure here, in bytes: loaded, and at its highest."""
    from inferway.runtime.artifact import newest_opset

    variant, signature, inputs = asked
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
    return max(0, loaded), max(0, loaded, peak)


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
