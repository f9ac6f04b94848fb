"""The models of a task, loaded here or found at other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from inferway.protocol import Signature
from inferway.runtime import ArtifactError, Fault, OnnxRuntime, RemoteError, RemoteRuntime, Served

if TYPE_CHECKING:
    from inferway.deployment import Task, Variant

PASSING: Final = frozenset((Fault.UNREACHABLE, Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.LATE))
"""Faults of servers that may be back: they keep nobody else from starting."""


class LoadError(ValueError):
    """A model that cannot be served; the message begins with its variant."""


def models_of(task: Task, variants: Sequence[str]) -> tuple[Signature, Mapping[str, Served]]:
    """Load the models of these variants; they share one signature, which comes first.

    A remote server that is down may come back: its variant is taken to have the signature of the
    others, and its runtime looks whether that is so before the first request.

    Raises
    ------
    LoadError
        When one cannot be loaded, or none says the signature.
    """
    found: dict[str, Served] = {}
    try:
        return _load(task.variants, variants, found), found
    except BaseException:
        for runtime in found.values():
            runtime.close()
        raise


def _load(
    described: Mapping[str, Variant],
    variants: Sequence[str],
    found: dict[str, Served],
) -> Signature:
    signature: Signature | None = None
    source = silent = ""
    # Those that are here first: their signatures are known whatever servers are down.
    for name in sorted(variants, key=lambda name: described[name].model is None):
        model, remote = described[name].model, described[name].remote
        try:
            if model is not None:
                assert model.path is not None  # `check_served` has refused others
                runtime: Served = OnnxRuntime(model.path, digest=model.digest)
            else:
                assert remote is not None  # `check_served` has refused it
                runtime = found[name] = there = remote.runtime(signature=signature)
                there.learn()
        except RemoteError as error:
            if error.fault not in PASSING:
                raise LoadError(f"{name}: {error}") from error
            silent = f"{name}: {error}"
            continue
        except (ArtifactError, ValueError) as error:
            raise LoadError(f"{name}: {error}") from error
        found[name] = runtime
        if signature is None:
            signature, source = runtime.signature, name
        elif runtime.signature != signature:
            raise LoadError(
                f"{name}: its signature {runtime.signature} differs from {signature} of {source}"
            )
    if signature is None:
        raise LoadError(f"{silent}, and nothing else says what the task takes and gives")
    for runtime in found.values():
        if isinstance(runtime, RemoteRuntime):
            runtime.expect(signature)
    return signature
