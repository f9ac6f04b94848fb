from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default
from tritonclient.grpc import model_config_pb2, service_pb2

from inferway.live.grpc import messages
from inferway.protocol import RefusalError

PACKAGE = Path(str(files("inferway.live.grpc")))
FILES = FileDescriptorSet.FromString((PACKAGE / "protocol.binpb").read_bytes()).file


def fields(message: Any) -> set[tuple[Any, ...]]:
    """What the wire format depends on, nested messages included."""
    found = {
        (
            message.full_name,
            field.name,
            field.number,
            field.type,
            field.label,
            field.message_type and field.message_type.full_name,
            field.containing_oneof and field.containing_oneof.name,
        )
        for field in message.fields
    }
    for nested in message.nested_types:
        found |= fields(nested) | {(nested.full_name, nested.GetOptions().map_entry)}
    return found


# Of Triton's fields these are left out.
LEFT_OUT = {"ModelStatistics": {"memory_usage", "response_stats"}}


def enums(message: Any) -> dict[str, dict[str, int]]:
    return {
        one.full_name: {value.name: value.number for value in one.values}
        for one in message.enum_types
    }


@pytest.mark.parametrize("name", sorted(one.name for one in FILES[0].message_type))
def test_fields_are_those_of_tritons_client(name: str) -> None:
    ours = messages._pool.FindMessageTypeByName(f"inference.{name}")
    theirs = Default().FindMessageTypeByName(f"inference.{name}")
    written = theirs.file.name
    assert written in (service_pb2.DESCRIPTOR.name, model_config_pb2.DESCRIPTOR.name)
    if written == model_config_pb2.DESCRIPTOR.name:  # a part of the configuration
        assert fields(ours) <= fields(theirs)
        assert enums(ours).items() <= enums(theirs).items()
        return
    missing = {field.name for field in theirs.fields} - {field.name for field in ours.fields}
    assert missing == LEFT_OUT.get(name, set())
    assert fields(ours) <= fields(theirs)
    if not missing:
        assert fields(ours) == fields(theirs)


def test_datatypes_are_those_of_tritons_client() -> None:
    ours = messages._pool.FindEnumTypeByName("inference.DataType")
    theirs = Default().FindEnumTypeByName("inference.DataType")
    values = [{one.name: one.number for one in kind.values} for kind in (ours, theirs)]
    assert values[0] == values[1]


def test_methods_are_those_of_tritons_client() -> None:
    ours = messages._pool.FindServiceByName(messages.INFERENCE)
    theirs = Default().FindServiceByName(messages.INFERENCE)
    assert [method.name for method in ours.methods] == [
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
        "ModelConfig", "ModelStatistics",
    ]  # fmt: skip
    for method in ours.methods:
        other = theirs.methods_by_name[method.name]
        for one in ("input_type", "output_type"):
            assert getattr(method, one).full_name == getattr(other, one).full_name
        assert (method.client_streaming, method.server_streaming) == (False, False)


def test_health_on_the_wire() -> None:
    request = messages.HealthCheckRequest(service="a")
    assert request.SerializeToString() == b"\x0a\x01a"
    statuses = messages.HealthCheckResponse.DESCRIPTOR.enum_types_by_name["ServingStatus"]
    assert {value.name: value.number for value in statuses.values} == {
        "UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2, "SERVICE_UNKNOWN": 3,
    }  # fmt: skip
    assert messages.HealthCheckResponse(status=3).SerializeToString() == b"\x08\x03"
    watch = messages._pool.FindServiceByName(messages.HEALTH).methods_by_name["Watch"]
    assert watch.server_streaming
    assert not watch.client_streaming


def declarations(message: Any) -> Iterator[tuple[str, str, str]]:
    """Write a message's fields as a .proto file does: type, name, number."""
    entries = {one.name: one for one in message.nested_type if one.options.map_entry}
    for field in message.field:
        kind = field.type_name.rpartition(".")[2]
        if entry := entries.get(kind):
            kind = f"map<string, {entry.field[1].type_name.rpartition('.')[2]}>"
        else:
            kind = kind or FieldDescriptorProto.Type.Name(field.type)[5:].lower()
            if field.label == FieldDescriptorProto.LABEL_REPEATED:
                kind = f"repeated {kind}"
        yield kind, field.name, str(field.number)
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from declarations(nested)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_descriptors_say_what_the_files_say(file: Any) -> None:
    text = re.sub("//.*", "", (PACKAGE / file.name).read_text())
    field = r"^ +((?:repeated )?(?:\w+|map<\w+, \w+>)) (\w+) = (\d+);"
    written = re.findall(field, text, re.MULTILINE)
    found = [one for message in file.message_type for one in declarations(message)]
    assert sorted(written) == sorted(found)
    assert f"package {file.package};" in text
    for service in file.service:
        for method in service.method:
            kinds = [one.rpartition(".")[2] for one in (method.input_type, method.output_type)]
            stream = "stream " if method.server_streaming else ""
            assert f"rpc {method.name}({kinds[0]}) returns ({stream}{kinds[1]});" in text


def test_the_descriptors_are_what_protoc_makes_of_the_files(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools has the compiler")
    made = tmp_path / "made.binpb"
    names = ["inference.proto", "health.proto"]
    assert protoc.main(["", f"-I{PACKAGE}", f"--descriptor_set_out={made}", *names]) == 0
    assert FileDescriptorSet.FromString(made.read_bytes()).file == FILES


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RefusalError, match="not a valid ModelInferRequest") as caught:
        messages.decode(data, messages.ModelInferRequest)
    assert caught.value.status == 400
