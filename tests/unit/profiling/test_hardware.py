"""Times of a hardware that is named: measured, kept apart, and used wherever that hardware is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from profiles import changed, profiled

import inferway
from inferway.deployment import DeploymentError
from inferway.deployment.profile import read_profile
from inferway.experiments.profiled import Profiled
from inferway.machine import machine_hash
from inferway.profiling.measuring import ProfilingError

pytestmark = pytest.mark.usefixtures("memory_measured_once")

FILE = """
tasks:
  digits:
    variants:
      tiny: {model: tiny.onnx, accuracy: 0.7, batch: {sizes: [1, 2]}}
      small: {model: small.onnx, accuracy: 0.8, batch: {ampere: {sizes: [1, 4]}}}
nodes:
  here:
    devices: {cpu: {cores: 2}, ampere: {count: 1, exclusive: true}}
    instances: {digits/tiny: {ampere: 1}, digits/small: {cpu: 1, ampere: 1}}
workload: {digits: {arrivals: {process: poisson, rate: 20/s}}}
dispatch: {policy: deadline}
"""


@pytest.fixture
def shared(own: Path) -> Path:
    """A file whose node has cores and an accelerator."""
    own.write_text(FILE)
    return own


def variants_of(file: Path) -> Any:
    known = read_profile(file)
    assert known is not None
    return known.tasks["digits"].variants


def times_of(file: Path, name: str, hardware: str) -> dict[int, float]:
    times = variants_of(file)[name].times_on(hardware)
    assert times is not None
    return dict(times.service_s)


def test_each_hardware_has_times_of_its_own(shared: Path) -> None:
    assert profiled(shared).hardware == "cpu"  # of two, the usual one
    before = variants_of(shared)
    _, small = inferway.load(shared).tasks["digits"].variants.values()
    # Where nothing else is said, what is measured stands for any hardware.
    assert small.service_on("ampere") == small.service_on("cpu")

    found = profiled(shared, hardware="ampere")
    assert isinstance(found, Profiled)
    assert "Service times on ampere" in str(found)
    assert set(found.to_frame().query("variant == 'small'")["batch"]) == {1, 4}
    assert found.to_json()["hardware"] == "ampere"
    after = variants_of(shared)
    for name, one in before.items():
        assert after[name].machines == one.machines
        assert set(after[name].hardware) == {"ampere"}
        assert after[name].accuracy == one.accuracy
    assert after["small"].hardware["ampere"].machine == machine_hash()

    tiny, small = inferway.load(shared).tasks["digits"].variants.values()
    for one, kinds in ((tiny, ("cpu", "ampere")), (small, ("ampere",))):
        for kind in kinds:
            known = times_of(shared, one.name, kind)
            table = one.batch_on(kind)
            assert one.service_on(kind).mean_s == known[1]
            assert table is not None
            assert table.service_s == tuple(known[size] for size in table.sizes)
            assert one.load_on(kind) == after[one.name].times_on(kind).load_s > 0.0
    assert times_of(shared, "tiny", "cpu") != times_of(shared, "tiny", "ampere")
    assert small.batch_on("cpu") is None
    assert not small.runs_on("t4")


def test_batches_of_another_hardware_are_asked_for_by_its_name(shared: Path) -> None:
    stated = "small: {model: small.onnx, service: {cpu: {mean: 9 ms}}"
    shared.write_text(FILE.replace("small: {model: small.onnx", stated))
    profiled(shared)
    with pytest.raises(DeploymentError) as error:
        inferway.load(shared)
    sentence = "small.batch.ampere: needs `service`, one time per size, as no profile of this model"
    assert f"{sentence} on hardware ampere gives that of 1, 4;" in str(error.value)
    assert "`inferway profile own.yaml --data TEST --hardware ampere --write`" in str(error.value)
    profiled(shared, hardware="ampere")
    small = inferway.load(shared).tasks["digits"].variants["small"]
    assert small.timed_by == {"cpu": "file", "ampere": "profile"}
    assert small.service_on("cpu").mean_s == 9e-3


def test_what_is_measured_again_is_of_one_hardware_alone(shared: Path) -> None:
    profiled(shared)
    profiled(shared, hardware="ampere")
    before = variants_of(shared)
    profiled(shared, hardware="ampere", again=True)
    after = variants_of(shared)
    for name, one in before.items():
        assert after[name].machines == one.machines
        assert after[name].hardware["ampere"] != one.hardware["ampere"]
    profiled(shared, again=True)
    last = variants_of(shared)
    for name, one in after.items():
        assert last[name].hardware == one.hardware
        assert last[name].machines != one.machines


def test_what_is_known_of_this_machine_is_not_measured_again(
    shared: Path, nothing_runs_from: Any
) -> None:
    profiled(shared, hardware="ampere")
    nothing_runs_from()
    profiled(shared, hardware="ampere")
    with pytest.raises(ProfilingError, match="digits/tiny: measured again"):
        profiled(shared, hardware="cpu")

    def elsewhere(content: Any) -> None:
        for one in content["tasks"]["digits"]["variants"].values():
            one["hardware"]["ampere"]["machine"] = "f" * 16

    changed(shared, elsewhere)
    with pytest.raises(ProfilingError, match="digits/tiny: measured again"):
        profiled(shared, hardware="ampere")


@pytest.fixture
def nothing_runs_from(request: pytest.FixtureRequest) -> Any:
    """From its call on, nothing is measured anew."""
    return lambda: request.getfixturevalue("nothing_runs")


def test_times_of_a_hardware_hold_on_every_machine(shared: Path) -> None:
    """Of a file that names one hardware, times are of that unless something else is said."""
    shared.write_text(FILE.replace("cpu: {cores: 2}, ", "").replace("cpu: 1, ", ""))
    assert profiled(shared).hardware == "ampere"

    def elsewhere(content: Any) -> None:
        content["machines"] = {"f" * 16: {"processor": "Abacus 3"}}
        for one in content["tasks"]["digits"]["variants"].values():
            one["hardware"]["ampere"]["machine"] = "f" * 16

    changed(shared, elsewhere)
    deployment = inferway.load(shared)
    for name, variant in deployment.tasks["digits"].variants.items():
        assert variants_of(shared)[name].machines == {}
        assert variant.service_on("ampere").mean_s == times_of(shared, name, "ampere")[1]
        assert not variant.runs_on("cpu")
        assert variant.timed_by == {"ampere": "profile"}
    assert not [one for one in inferway.check(deployment) if one.kind.startswith("profile")]


def test_the_twin_changes_an_exclusive_device_in_the_measured_time(shared: Path) -> None:
    text = FILE.replace("cpu: {cores: 2}, ", "").replace("cpu: 1, ", "")
    shared.write_text(text)
    profiled(shared)
    deployment = inferway.load(shared)
    found = inferway.simulate(deployment, queries=500).tasks["digits"]
    assert found.queries == 500
    shared.write_text(text.replace("tiny.onnx,", "tiny.onnx, load_time: 7 s,"))
    tiny, small = inferway.load(shared).tasks["digits"].variants.values()
    assert tiny.load_on("ampere") == 7.0  # what the file says counts more
    assert 0.0 < small.load_on("ampere") < 7.0


def test_a_hardware_that_nothing_has_is_refused(shared: Path) -> None:
    sentence = "no node, device or variant of own.yaml has hardware amper; did you mean ampere"
    with pytest.raises(ProfilingError, match=sentence):
        profiled(shared, hardware="amper")


def test_a_zoo_model_may_be_measured_on_hardware_that_its_zoo_does_not_know(own: Path) -> None:
    text = FILE.replace("tiny.onnx", "zoo://digits/tiny").replace("{cpu: 1, ampere", "{ampere")
    own.write_text(text)
    with pytest.raises(DeploymentError) as error:
        inferway.load(own)
    sentence = "tiny has no service time on hardware ampere; it has one on cpu; write one "
    assert sentence in str(error.value)
    assert "`inferway profile own.yaml --data TEST --hardware ampere --write`" in str(error.value)
    profiled(own, hardware="ampere")
    with pytest.raises(DeploymentError) as error:  # its batches on cores are not known yet
        inferway.load(own)
    assert "no profile of this model on this machine gives that of 1, 2" in str(error.value)
    own.write_text(text.replace("batch: {sizes: [1, 2]}", "batch: {ampere: {sizes: [1]}}"))
    tiny = inferway.load(own).tasks["digits"].variants["tiny"]
    assert tiny.timed_by == {"ampere": "profile", "cpu": "zoo"}
