"""The protocols' messages, from their descriptors.

`protocol.binpb` is what protoc makes of the two ``.proto`` files. Classes made from descriptors at
run time work with every protobuf release, where generated code works with those near the one that
generated it; and a pool of their own keeps them apart from the same messages of a client library
in the same process.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from inferway.protocol import RefusalError

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

_pool = DescriptorPool()
_kinds: dict[str, Any] = {}
for _file in FileDescriptorSet.FromString(
    files(__package__).joinpath("protocol.binpb").read_bytes()
).file:
    _pool.AddSerializedFile(_file.SerializeToString())
    for _kind in _file.message_type:
        _kinds[_kind.name] = GetMessageClass(
            _pool.FindMessageTypeByName(f"{_file.package}.{_kind.name}")
        )


def __getattr__(name: str) -> Any:
    """Find a message's class, such as `ModelInferRequest`, by its name."""
    try:
        return _kinds[name]
    except KeyError:
        raise AttributeError(name) from None


def decode(data: bytes, kind: Any) -> Any:
    """Read a message; RefusalError when the bytes are no such one."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RefusalError(400, f"the request is not a valid {kind.DESCRIPTOR.name}") from None
