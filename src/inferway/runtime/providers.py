"""ONNX Runtime's execution providers: what runs a model's operators, in the order stated.

A build has the providers that it was made with. Where one of them cannot be loaded, as CUDA
without its libraries, ONNX Runtime says so in its log and goes on with the processor; here that is
refused, since whoever states an accelerator plans with its service times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from inferway.spelling import closest

# By name, each with its options by name.
Providers = Sequence[tuple[str, Sequence[tuple[str, str]]]]
PROCESSOR: Final[Providers] = (("CPUExecutionProvider", ()),)


def unavailable(providers: Providers) -> str:
    """Say in one sentence what of these the installed ONNX Runtime lacks; empty for nothing."""
    import onnxruntime

    known, here = onnxruntime.get_all_providers(), onnxruntime.get_available_providers()
    for name, _ in providers:
        if name in here:
            continue
        if name in known:
            return f"the installed ONNX Runtime has no {name}; it has {', '.join(here)}"
        near = closest(name, known)
        meant = f"did you mean {near}?" if near else f"there is {', '.join(known)}"
        return f"ONNX Runtime knows no execution provider {name}; {meant}"
    return ""


def session_of(content: bytes, options: Any, providers: Providers) -> Any:
    """Make the session of a model that has been checked, and hold it to its providers.

    Parameters
    ----------
    content
        The model.
    options
        ONNX Runtime's `SessionOptions`.
    providers
        As they are preferred; the processor, if none is stated, and always as the last resort of
        operators that no other has.

    Raises
    ------
    ValueError
        Where the build lacks a provider, or one could not be loaded. What else ONNX Runtime raises
        is of types of its own.
    """
    import onnxruntime

    stated = providers or PROCESSOR
    if reason := unavailable(stated):
        raise ValueError(reason)
    session = onnxruntime.InferenceSession(
        content,
        options,
        providers=[(name, dict(settings)) for name, settings in stated],
        enable_fallback=0,  # which would print, and go on with others
    )
    taken = session.get_providers()
    if lost := [name for name, _ in stated if name not in taken]:
        raise ValueError(
            f"ONNX Runtime could not load {', '.join(lost)} and would run the model on "
            f"{', '.join(taken)}; see that its driver and libraries are there, or leave it out"
        )
    return session
