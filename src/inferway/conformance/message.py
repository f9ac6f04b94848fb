"""Inference requests as the suite writes them, right ones and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inferway.conformance.tensors import Array, to_json, to_raw

LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it is sent, whatever the model says."""

    name: str
    datatype: str
    array: Array
    raw: bool = False

    def described(self, *, nested: bool) -> dict[str, Any]:
        """Write its JSON."""
        found: dict[str, Any] = {
            "name": self.name,
            "shape": list(self.array.shape),
            "datatype": self.datatype,
        }
        if self.raw:
            return found | {"parameters": {"binary_data_size": len(to_raw(self.array))}}
        return found | {"data": to_json(self.array, nested=nested)}


@dataclass(frozen=True, slots=True)
class Message:
    """An inference request.

    Attributes
    ----------
    inputs
        In the order in which they are sent.
    nested
        Whether JSON data are nested as their shape, or flat.
    fields
        What the JSON has besides: id, parameters, outputs.
    """

    inputs: tuple[Input, ...]
    nested: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    def having(self, **fields: Any) -> Message:
        """Add fields to the JSON."""
        return replace(self, fields={**self.fields, **fields})

    def raw(self) -> Message:
        """Send all inputs as raw bytes."""
        return replace(self, inputs=tuple(replace(one, raw=True) for one in self.inputs))

    def first(self, **changes: Any) -> Message:
        """Change the first input."""
        return replace(self, inputs=(replace(self.inputs[0], **changes), *self.inputs[1:]))

    @property
    def document(self) -> dict[str, Any]:
        """The JSON part as Python has it."""
        inputs = [one.described(nested=self.nested) for one in self.inputs]
        return {**self.fields, "inputs": inputs}

    @property
    def tail(self) -> bytes:
        """The raw inputs, one after the other."""
        return b"".join(to_raw(one.array) for one in self.inputs if one.raw)

    def encode(self) -> tuple[bytes, dict[str, str]]:
        """Write body and headers."""
        return packed(self.document, self.tail)


def packed(document: Any, tail: bytes = b"") -> tuple[bytes, dict[str, str]]:
    """Write JSON and raw bytes as one body, with the headers that it needs."""
    text = json.dumps(document).encode()
    if not tail:
        return text, {"Content-Type": "application/json"}
    return text + tail, {"Content-Type": "application/octet-stream", LENGTH: str(len(text))}
