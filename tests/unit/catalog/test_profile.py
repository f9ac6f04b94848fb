"""Profiles of a zoo survive a round trip through JSON, and malformed ones do not."""

import json

import msgspec
import pytest
from profiles import bins_of, measured, of_zoo

from inferway.catalog import Profile

PROFILE = of_zoo("tiny", measured("sha256:" + "0" * 64, bins=bins_of(0.2, 0.8)))


def test_the_service_time_is_the_steady_one_of_batch_1() -> None:
    assert PROFILE.mean_s == PROFILE.times.alone[0].steady_s == 1e-3
    assert PROFILE.times.alone[0].mean_s > 1e-3


def test_times_are_of_this_machine_where_it_was_measured() -> None:
    there, here = measured("", mean_s=5.0, machine="f" * 16), measured("", mean_s=3.0)
    assert of_zoo("a", there).mean_s == 5.0
    both = msgspec.structs.replace(there, machines={**there.machines, **here.machines})
    assert of_zoo("a", both).mean_s == 3.0


def test_round_trip() -> None:
    assert msgspec.convert(json.loads(msgspec.json.encode(PROFILE)), Profile) == PROFILE


@pytest.mark.parametrize("change", [{"peaks": [[1]]}, {"color": "red"}])
def test_malformed(change: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(PROFILE), **change}, Profile)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"accuracy": None}, "tiny has no accuracy or no size"),
        ({"size_bytes": None}, "tiny has no accuracy or no size"),
        ({"machines": {}}, "tiny has no service times"),
    ],
)
def test_a_variant_that_is_measured_in_part(change: dict[str, object], reason: str) -> None:
    data = msgspec.to_builtins(PROFILE)
    data["measured"] |= change
    with pytest.raises(msgspec.ValidationError, match=reason):
        msgspec.convert(data, Profile)


def test_missing_field() -> None:
    data = msgspec.to_builtins(PROFILE)
    del data["file"]
    with pytest.raises(msgspec.ValidationError, match="file"):
        msgspec.convert(data, Profile)
