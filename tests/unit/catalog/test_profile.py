"""Profiles survive a round trip through JSON, and malformed ones do not."""

import json

import msgspec
import pytest

from inferway.catalog import Profile, ServiceProfile

PROFILE = Profile(
    name="tiny",
    file="tiny.onnx",
    digest="sha256:" + "0" * 64,
    accuracy=0.5,
    accuracy_interval=(0.4, 0.6),
    size_bytes=10,
    memory_bytes=20,
    parameters=3,
    service=(
        ServiceProfile(batch=1, mean_s=1e-3, p50_s=1e-3, p99_s=2e-3, cpu_s=1e-3),
        ServiceProfile(batch=8, mean_s=7e-3, p50_s=7e-3, p99_s=9e-3, cpu_s=7e-3),
    ),
)


def test_mean_is_of_batch_1() -> None:
    assert PROFILE.mean_s == 1e-3


def test_round_trip() -> None:
    assert msgspec.convert(json.loads(msgspec.json.encode(PROFILE)), Profile) == PROFILE


@pytest.mark.parametrize("change", [{"accuracy_interval": [0.1]}, {"color": "red"}])
def test_malformed(change: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(PROFILE), **change}, Profile)


def test_missing_field() -> None:
    data = msgspec.to_builtins(PROFILE)
    del data["digest"]
    with pytest.raises(msgspec.ValidationError, match="digest"):
        msgspec.convert(data, Profile)
