"""Devices of a node: which copies run where, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import Deployment, DeploymentError, check, load
from inferway.site import fleet_of

Write = Callable[..., Path]
TASKS = """
tasks:
  t:
    variants:
      both: {accuracy: 0.8, service: {cpu: {mean: 10 ms}, gpu: {mean: 1 ms}}}
      slow: {accuracy: 0.9, size: 3 GB, threads: 3, service: {cpu: {mean: 40 ms}}}
      fast: {accuracy: 0.9, size: 3 GB, service: {gpu: {mean: 4 ms}}}
nodes:
  here:
"""
TWO = "devices: {cpu: {cores: 4}, gpu: {count: 2}}"


def node(write: Write, *lines: str) -> Deployment:
    return load(write(TASKS + "".join(f"    {line}\n" for line in lines)))


def test_copies_run_on_the_devices_that_the_file_says(write: Write) -> None:
    here = node(write, TWO, "instances: {t/both: {cpu: 2, gpu: 1}, t/fast: 3}").nodes["here"]
    assert here.instances == {("t", "both"): 3, ("t", "fast"): 3}
    assert here.placed == {("t", "both"): {"cpu": 2, "gpu": 1}, ("t", "fast"): {"gpu": 3}}
    assert here.kinds == ["cpu", "gpu"]
    assert here.copies_by_hardware("t", "both") == [("cpu", 2), ("gpu", 1)]


def test_one_of_each_variant_runs_on_the_first_device_that_can(write: Write) -> None:
    here = node(write, TWO).nodes["here"]
    assert here.placed == {
        ("t", "both"): {"cpu": 1},
        ("t", "slow"): {"cpu": 1},
        ("t", "fast"): {"gpu": 1},
    }


@pytest.mark.parametrize(
    ("instances", "cores", "shared"),
    [
        ("{t/both: 2}", 2, None),
        ("{t/both: 2, t/away: 9}", 2, None),
        ("{t/both: 3}", 2, 2),
        ("{t/slow: 1}", 3, None),
        ("{t/slow: 1}", 2, 3),  # of its own file's word, a run takes three
        ("{t/slow: 1, t/both: 1}", 3, 3),
    ],
)
def test_what_lists_no_devices_shares_the_cores_of_a_server(
    write: Write, instances: str, cores: int, shared: int | None
) -> None:
    away = "away: {remote: {url: 'http://127.0.0.1:1/v2/models/t'}, service: {mean: 5 ms}}"
    text = TASKS.replace("      both:", f"      {away}\n      both:")
    deployment = load(write(f"{text}    instances: {instances}\n"))
    served = deployment.on_cores(cores)
    here = served.nodes["here"]
    assert [(name, one.slots) for name, one in here.devices.items()] == (
        [] if shared is None else [("cpu", shared)]
    )
    fleet = fleet_of(served, "t")
    if shared is not None:
        assert fleet.devices is not None
        assert {*fleet.devices.device.tolist()} == {0}
    assert ("t", "away") not in here.placed


def test_devices_that_are_listed_stay_whatever_cores_a_server_has(write: Write) -> None:
    deployment = node(write, TWO, "instances: {t/both: {cpu: 9}}")
    assert deployment.on_cores(1).nodes == deployment.nodes


def test_a_device_may_be_of_other_hardware_than_its_name_says(write: Write) -> None:
    here = node(write, "devices: {a: {count: 1, hardware: gpu}}").nodes["here"]
    assert here.placed == {("t", "both"): {"a": 1}, ("t", "fast"): {"a": 1}}
    assert (here.hardware, here.kinds) == ("gpu", ["gpu"])


def test_a_class_is_a_variant_on_a_device(write: Write) -> None:
    deployment = node(write, TWO, "instances: {t/both: {cpu: 2, gpu: 1}, t/slow: 1}")
    fleet = fleet_of(deployment, "t")
    assert fleet.variants == ("both:gpu", "both:cpu", "slow")
    assert fleet.rate.tolist() == [1000.0, 100.0, 25.0]
    assert fleet.count.tolist() == [1, 2, 1]
    devices = fleet.devices
    assert devices is not None
    assert devices.names == ("cpu", "gpu")
    assert devices.slots.tolist() == [4, 2]
    assert devices.device.tolist() == [1, 0, 0]
    assert devices.taken.tolist() == [1, 1, 3]
    assert devices.load(fleet.rate).tolist() == [[0.0, 0.01, 0.12], [0.001, 0.0, 0.0]]


def test_without_devices_classes_share_nothing(write: Write) -> None:
    assert fleet_of(node(write, "instances: {t/both: 2}"), "t").devices is None


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("hardware: cpu", TWO), "here.hardware: the `devices` say their own, so keep one of both"),
        (("devices: {cpu: {}}",), "devices.cpu: a device has either `cores` or a `count`"),
        (("devices: {cpu: {cores: 1, count: 1}}",), "a device has either `cores` or a `count`"),
        (("devices: {cpu: {cores: 0}}",), "devices.cpu.cores: "),
        ((TWO, "instances: {t/both: 2}"), "both runs on cpu, gpu; say on which, such as {cpu: 2}"),
        (("instances: {t/both: {cpu: 2}}",), "no device cpu; the node lists no `devices`"),
        ((TWO, "instances: {t/fast: {gup: 2}}"), "fast.gup: there is no device gup; did you mean"),
        (
            (TWO, "instances: {t/fast: {cpu: 2}}"),
            "t/fast.cpu: fast has no service time on hardware cpu; it has one on gpu",
        ),
        (
            ("devices: {cpu: {cores: 4}}", "instances: {t/fast: 1}"),
            "t/fast: fast has no service time on hardware cpu; it has one on gpu",
        ),
        (
            ("devices: {cpu: {cores: 2}}", "instances: {t/slow: 1}"),
            "t/slow.cpu: a run of slow takes 3 threads, and cpu has 2 cores",
        ),
        (
            ("devices: {gpu: {count: 2, memory: 2 GB}}", "instances: {t/fast: 1}"),
            "devices.gpu.memory: 2 GB cannot hold t/fast, which takes 3 GB",
        ),
        (
            ("devices: {gpu: {count: 2, memory: 4 GB}}", "instances: {t/fast: 3}"),
            "devices.gpu.memory: 8 GB cannot hold what runs on gpu, which takes 9 GB",
        ),
        (
            ("devices: {gpu: {count: 2, memory: 4 GB}}", "instances: {t/both: 1}"),
            "devices.gpu.memory: t/both says no `size`, and gpu has a `memory`",
        ),
    ],
)
def test_what_cannot_be_is_refused_once(
    write: Write, lines: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(DeploymentError) as error:
        node(write, *lines)
    (problem,) = error.value.problems
    assert sentence in str(problem)


def test_the_node_budget_holds_as_well(write: Write) -> None:
    with pytest.raises(DeploymentError, match="budget: 5 GB cannot hold what runs here"):
        node(write, "devices: {gpu: {count: 2}}", "budget: 5 GB", "instances: {t/fast: 2}")


def test_what_serve_does_not_know_of_exclusive_devices(write: Write) -> None:
    tasks = "tasks:\n" + "".join(
        f"  {name}: {{variants: {{one: {{accuracy: 0.8, service: {{mean: 1 ms}}}}}}}}\n"
        for name in "ab"
    )
    devices = "{cpu: {cores: 4, exclusive: true}, other: {hardware: cpu, cores: 1}}"
    for instances, sentence in (
        ("{a/one: {cpu: 1}, b/one: {other: 1}}", None),
        ("{a/one: {cpu: 1}, b/one: {cpu: 1}}", None),
        ("{a/one: {cpu: 1, other: 1}}", "a/one has instances on other as well, where it stays"),
    ):
        here = f"nodes: {{here: {{devices: {devices}, instances: {instances}}}}}\n"
        told = [one for one in load(write(tasks + here)).unserved() if "exclusive" in one]
        if sentence is None:
            assert told == []
        else:
            assert told == [f"nodes.here.devices.cpu.exclusive: {told[0].split(': ', 1)[1]}"]
            assert sentence in told[0]


def test_an_exclusive_device_has_room_for_one_variant_at_a_time(write: Write) -> None:
    devices = "devices: {gpu: {count: 2, memory: 4 GB, exclusive: true}}"
    node(write, devices, "instances: {t/fast: 2}")
    with pytest.raises(DeploymentError, match="cannot hold what runs on gpu, which takes 9 GB"):
        node(write, devices, "instances: {t/fast: 3}")


def test_several_tasks_may_share_a_device_that_cannot_run_all_at_once(write: Write) -> None:
    tasks = "tasks:\n" + "".join(
        f"  {name}: {{variants: {{one: {{model: zoo://digits/tiny}}}}}}\n" for name in "ab"
    )
    here = "nodes: {here: {devices: {cpu: {cores: 1}}}}\n"
    assert load(write(tasks + here)).unserved() == []


def test_what_shares_devices_is_not_overloaded_by_mistake(write: Write) -> None:
    load_ = "workload: {t: {arrivals: {process: poisson, rate: 900/s}}}\n"
    file = write(TASKS + f"    {TWO}\n    instances: {{t/both: {{gpu: 1}}}}\n" + load_)
    assert "overloaded" not in {one.kind for one in check(load(file))}
