"""Tensors of a model that lie in other files, wherever in it they are said to.

A tensor of ONNX may name a file, an offset and a length instead of holding its data, and tensors
are in many places: weights, sparse weights with values and indices of their own, attributes of
nodes, nodes of branches, of functions and of training steps. Whoever wrote the file chose the name,
so what it names would be read with the rights of this process. The walk asks the schema where
tensors can be and looks there, so that a place that a later version adds is looked at too.

Source: onnx.proto (TensorProto.external_data and data_location) and ONNX's ExternalData.md.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_TENSOR: Final = "TensorProto"


class External(NamedTuple):
    """A tensor that lies in another file.

    It has the tensor's name, or that of the nearest part around it that has one, maybe none; its
    place in the model, as fields of the schema; and the file that it names, empty for none.
    """

    name: str
    place: str
    location: str


def external_tensor(message: Any) -> External | None:
    """Find the first tensor, in the schema's order, that lies in another file; None for none.

    Protobuf's parser lets no message be nested more than 100 deep.
    """
    if message.DESCRIPTOR.name == _TENSOR:
        if message.data_location == message.DEFAULT and not message.external_data:
            return None
        said = {entry.key: entry.value for entry in message.external_data}
        return External(message.name, "", said.get("location", ""))
    kind: Any = type(message)
    for field, several in _ways(kind):
        if several:
            parts = getattr(message, field)
            if not parts:
                continue
            for number, part in enumerate(parts):
                found = external_tensor(part)
                if found is not None:
                    return _within(message, found, f"{field}[{number}]")
        elif message.HasField(field):
            found = external_tensor(getattr(message, field))
            if found is not None:
                return _within(message, found, field)
    return None


def _within(message: Any, found: External, field: str) -> External:
    name = found.name or getattr(message, "name", "")
    place = f"{field}.{found.place}" if found.place else field
    return External(name, place, found.location)


# Scalars are never looked at: reading raw data in Python would copy it.
@functools.cache
def _ways(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Fields through which a kind of message leads to tensors, and whether each holds several."""
    empty = kind()
    return tuple(
        (field.name, not hasattr(getattr(empty, field.name), "DESCRIPTOR"))
        for field in kind.DESCRIPTOR.fields
        if field.message_type is not None and _leads(field.message_type)
    )


@functools.cache
def _leads(kind: Descriptor) -> bool:
    """Whether a message of this kind is a tensor or can hold one at any depth."""
    seen, ahead = {kind.full_name}, [kind]
    while ahead:
        one = ahead.pop()
        if one.name == _TENSOR:
            return True
        for field in one.fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                ahead.append(inner)
    return False
