"""Parameters of a request that mean nothing here: slips are refused, the rest is left out.

Clients send parameters of other servers along, and those are ignored, as the protocol's extensions
ask. One that is two letters from ours was meant to be ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from inferway.protocol.messages import (
    Count,
    InferMessage,
    InferParameters,
    InputMessage,
    RequestedOutput,
    TensorParameters,
)
from inferway.protocol.refusal import RefusalError
from inferway.spelling import edits

_NEAR: Final = 2
"""Edits from one of ours within which a name is a slip."""
_LONGEST_SHOWN: Final = 40
_FAMILIES: Final = ("binary_data", "sequence_", "shared_memory_", "triton_")
"""How names of known conventions begin."""
_KNOWN: Final = frozenset({"classification", "content_type", "headers", "priority", "timeout"})
"""Other names of known conventions: Triton's, and MLServer's."""


class _Tensor(msgspec.Struct, gc=False):
    """An input or a requested output with any parameters."""

    name: str
    parameters: dict[str, msgspec.Raw] | None = None


class _Input(_Tensor, gc=False, kw_only=True):
    """An input with any parameters."""

    datatype: str
    shape: list[Count]
    data: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct, gc=False):
    """A request with any parameters."""

    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, msgspec.Raw] | None = None
    outputs: list[_Tensor] | None = None


class PatchedMessage(InferMessage, gc=False, kw_only=True):
    """A request without the parameters that mean nothing here; `ignored` of them were left out."""

    ignored: int


_decode = msgspec.json.Decoder(_Message).decode
_encode = msgspec.json.Encoder().encode


def patched(text: bytes | bytearray | memoryview) -> PatchedMessage:
    """Read a request that has parameters which mean nothing here, and leave these out.

    Raises
    ------
    RefusalError
        When one of them was meant to be another; and as decoding does.
    """
    found = _decode(text)
    ignored = 0

    def left(given: dict[str, msgspec.Raw] | None, kind: type[Any]) -> Any:
        nonlocal ignored
        if given is None:
            return None
        unknown = unknown_in(given, kind)
        ignored += len(unknown)
        kept = {name: value for name, value in given.items() if name not in unknown}
        return msgspec.json.decode(_encode(kept), type=kind)

    inputs = [
        InputMessage(
            one.name, one.datatype, one.shape, left(one.parameters, TensorParameters), one.data
        )
        for one in found.inputs
    ]
    outputs = None
    if found.outputs is not None:
        outputs = [
            RequestedOutput(one.name, left(one.parameters, TensorParameters))
            for one in found.outputs
        ]
    parameters = left(found.parameters, InferParameters)
    return PatchedMessage(
        inputs=inputs, id=found.id, parameters=parameters, outputs=outputs, ignored=ignored
    )


def unknown_in(names: Iterable[str], kind: type[msgspec.Struct]) -> set[str]:
    """Find the names that are no parameters of a kind.

    Raises
    ------
    RefusalError
        When one of them is near to one of the kind's, and of no known convention.
    """
    ours = kind.__struct_fields__
    unknown = {name for name in names if name not in ours}
    for name in unknown:
        if name in _KNOWN or name.startswith(_FAMILIES):
            continue
        apart, near = min((edits(name, one, _NEAR), one) for one in ours)
        if apart <= _NEAR:
            raise RefusalError(
                400, f"unknown parameter {name[:_LONGEST_SHOWN]!r}; did you mean {near!r}?"
            )
    return unknown
