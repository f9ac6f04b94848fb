from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import Deployment, Failure, Outage, PolicySpec, load
from inferway.deployment.workloads import MapArrivals, PhasedArrivals
from inferway.site.fleet import fleet_of

Write = Callable[..., Path]

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_every_example_loads_and_names_the_schema(path: Path) -> None:
    load(path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../docs/deployment.schema.json"


def test_the_papers_fleet(examples: Path) -> None:
    deployment = load(examples / "paper-fleet.yaml")
    (task,) = deployment.tasks.values()
    assert task.accuracy_target == 0.76
    (node,) = deployment.nodes.values()
    fleet = [
        (variant.service_on(node.hardware), variant.accuracy, node.instances[task.name, name])
        for name, variant in task.variants.items()
    ]
    assert [service.rate for service, _, _ in fleet] == pytest.approx([2, 1, 0.9, 0.1])
    assert {service.distribution for service, _, _ in fleet} == {"exponential"}
    assert {service.cv for service, _, _ in fleet} == {1.0}
    assert [accuracy for _, accuracy, _ in fleet] == [0.70, 0.75, 0.80, 1.0]
    assert [count for _, _, count in fleet] == [16] * 4
    assert deployment.policy_of(task).policy == "priced"
    assert deployment.policy_of(task.name).options == {"price": None, "step": 1.0, "wait": 2.3}


def test_the_edge_under_bursts(examples: Path) -> None:
    deployment = load(examples / "edge-burst.yaml")
    task, node = deployment.tasks["recognise"], deployment.nodes["edge"]
    assert (task.deadline_s, task.accuracy_target) == (0.3, None)
    assert task.variants["heavy"].service_on("cpu").mean_s == 0.0429
    assert node.instances == {("recognise", "light"): 2, ("recognise", "heavy"): 2}
    assert (node.buffer, node.queue, node.late, node.budget_bytes) == (
        15,
        "per-server",
        "drop",
        None,
    )
    assert deployment.policy_of(task) == PolicySpec("deadline", {"margin": 2.0})
    arrivals = deployment.workload["recognise"].arrivals
    assert isinstance(arrivals, MapArrivals)
    assert arrivals.d0[0] == (-180.0036, 0.0036)


def test_the_papers_first_topology(examples: Path) -> None:
    deployment = load(examples / "topology-1.yaml")
    task = deployment.tasks["detection"]
    assert (task.count, task.max_instances, len(task.variants)) == (20, 3, 10)
    assert task.variants["608p"].accuracy == 0.657
    assert task.variants["608p"].service_on("gtx-980").rate == 14.2
    assert task.catalog is not None
    assert task.catalog.name == "paper/yolov4"
    assert deployment.nodes == {}
    assert deployment.network is not None
    assert deployment.network.tree is not None
    tiers = [
        (tier.tier, tier.nodes, tier.rtt_s, tier.budget_bytes) for tier in deployment.network.tree
    ]
    assert tiers == [
        ("cloud", 1, None, None),
        ("isp", 1, 0.04, 16 * 2**30),
        ("metro", 2, 0.015, 12 * 2**30),
        ("office", 8, 0.006, 8 * 2**30),
        ("base", 24, 0.006, 4 * 2**30),
    ]
    assert deployment.cost is not None
    assert deployment.cost.alpha == 1
    assert deployment.placement is not None
    assert deployment.placement.policy == "infida"
    assert deployment.placement.options["slot"] == 60
    workload = deployment.workload["detection"]
    assert workload.popularity is not None
    assert workload.popularity.zipf == 1.2
    assert workload.popularity.sliding is not None
    assert workload.popularity.sliding.every == 3600
    assert workload.entries is not None
    assert (workload.entries.tier, workload.entries.per_task) == ("base", 2)


def test_mixed_budgets_of_a_tier(write: Write) -> None:
    text = """\
tasks: {t: {catalog: {name: paper/yolov4}}}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
    - tier: base
      nodes: 60
      rtt: 6 ms
      budget: [{share: 75 %, size: 1 GiB}, {share: 25 %, size: 4 GiB}]
"""
    network = load(write(text)).network
    assert network is not None
    assert network.tree is not None
    budget = network.tree[1].budget_bytes
    assert isinstance(budget, tuple)
    assert [(part.share, part.size_bytes) for part in budget] == [(0.75, 2**30), (0.25, 4 * 2**30)]


def test_a_file_without_nodes_has_one_of_each_variant_here(write: Write) -> None:
    deployment = load(
        write(
            "tasks:\n  t:\n    variants:\n"
            "      a: {accuracy: 0.8, service: {rate: 3/s}}\n"
            "      b: {accuracy: 0.9, service: {cpu: {mean: 1 s}, gtx-980: {mean: 9 ms}}}\n"
        )
    )
    (node,) = deployment.nodes.values()
    assert (node.name, node.hardware) == ("here", "cpu")
    assert node.instances == {("t", "a"): 1, ("t", "b"): 1}
    b = deployment.tasks["t"].variants["b"]
    assert (b.service_on("cpu").mean_s, b.service_on("gtx-980").mean_s) == (1.0, 0.009)
    with pytest.raises(
        ValueError, match=r"no service time on hardware tpu \(known: cpu, gtx-980\)"
    ):
        b.service_on("tpu")


def test_a_node_without_instances_runs_what_it_has_service_times_for(write: Write) -> None:
    deployment = load(
        write(
            "tasks:\n  t:\n    variants:\n"
            "      a: {accuracy: 0.8, service: {rate: 3/s}}\n"
            "      b: {accuracy: 0.9, service: {cpu: {mean: 1 s}}}\n"
            "nodes: {n: {hardware: gtx-980, pinned: {t/a: 2}}, empty: {instances: {}}}\n"
        )
    )
    assert deployment.nodes["n"].instances == {("t", "a"): 2}
    assert deployment.nodes["n"].pinned == {("t", "a"): 2}
    assert deployment.nodes["empty"].instances == {}


@pytest.mark.parametrize(
    ("written", "mean", "cv", "stages"),
    [
        ("{mean: 2 s}", 2.0, 0.0, 1),
        ("{rate: 4/s}", 0.25, 0.0, 1),
        ("{distribution: exponential, rate: 4/s}", 0.25, 1.0, 1),
        ("{distribution: lognormal, mean: 2 s, cv: 0.5}", 2.0, 0.5, 1),
        ("{distribution: erlang, mean: 2 s, stages: 4}", 2.0, 0.5, 4),
        ("{distribution: hyperexponential, mean: 2 s, cv: 3}", 2.0, 3.0, 1),
        ("{distribution: empirical, samples: [1 s, 3 s]}", 2.0, 0.5, 1),
        ("{distribution: empirical, samples: [1 s, 3 s], mean: 20 ms}", 0.02, 0.5, 1),
    ],
)
def test_service_times(write: Write, written: str, mean: float, cv: float, stages: int) -> None:
    text = f"tasks: {{t: {{variants: {{a: {{accuracy: 0.8, service: {written}}}}}}}}}\n"
    service = load(write(text)).tasks["t"].variants["a"].service_on("cpu")
    assert (service.mean_s, service.cv, service.stages) == pytest.approx((mean, cv, stages))
    assert service.rate == pytest.approx(1 / mean)
    if service.samples_s:
        assert sum(service.samples_s) / 2 == pytest.approx(mean)


def test_measured_service_times_from_a_file(write: Write) -> None:
    write("seconds\n0.01\n0.03\n", "times.csv")
    text = (
        "tasks: {t: {variants: {a: {accuracy: 0.8, service: {distribution: empirical, "
        "file: times.csv}}}}}\n"
    )
    service = load(write(text)).tasks["t"].variants["a"].service_on("cpu")
    assert service.samples_s == (0.01, 0.03)


def test_batches(write: Write) -> None:
    text = (
        "tasks: {t: {variants: {a: {accuracy: 0.8, service: {mean: 53 ms}, "
        "batch: {sizes: [1, 3, 5], service: [53 ms, 110 ms, 160 ms], min: 3}}}}}\n"
    )
    batch = load(write(text)).tasks["t"].variants["a"].batch_on("cpu")
    assert batch is not None
    assert (batch.sizes, batch.service_s) == ((1, 3, 5), (0.053, 0.11, 0.16))
    assert (batch.min, batch.max) == (3, 5)


def test_batches_by_hardware(write: Write) -> None:
    """Each hardware has its own sizes, times and rule; one without a table has none."""
    text = (
        "tasks: {t: {variants: {a: {accuracy: 0.8, service: {cpu: {mean: 53 ms}, "
        "ampere: {mean: 10 ms}, hopper: {mean: 8 ms}}, batch: {"
        "cpu: {sizes: [1, 2], service: [53 ms, 99 ms]}, "
        "ampere: {sizes: [4, 8], service: [12 ms, 14 ms], wait: 2 ms}}}}}}\n"
    )
    variant = load(write(text)).tasks["t"].variants["a"]
    cpu, ampere = (variant.batch_on(hardware) for hardware in ("cpu", "ampere"))
    assert cpu is not None
    assert ampere is not None
    assert (cpu.sizes, cpu.service_s, cpu.wait_s) == ((1, 2), (0.053, 0.099), 0.0)
    assert (ampere.sizes, ampere.service_s, ampere.wait_s) == ((4, 8), (0.012, 0.014), 2e-3)
    assert variant.batch_on("hopper") is None


def test_policies_by_task_file_and_default(write: Write) -> None:
    variants = "variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}"
    text = (
        f"tasks:\n  own: {{dispatch: {{policy: r-jsq-d, rate: 3/min}}, {variants}}}\n"
        f"  top: {{{variants}}}\n"
    )
    deployment = load(write(text + "dispatch: {policy: tad}\n"))
    assert deployment.policy_of("own") == PolicySpec(
        "r-jsq-d", {"rate": 0.05, "window": None, "beta": None, "d": 2}
    )
    assert deployment.policy_of("top") == PolicySpec("tad", {})
    assert load(write(text)).policy_of("top") == PolicySpec("deadline", {"margin": 2.0})


def test_phases(write: Write) -> None:
    text = (
        "tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}}}\n"
        "workload: {t: {arrivals: {process: phases, phases: [{for: 100 s, rate: 120/s, "
        "accuracy_target: 0.7}, {for: 1 min, load: 0.5}]}}}\n"
    )
    arrivals = load(write(text)).workload["t"].arrivals
    assert isinstance(arrivals, PhasedArrivals)
    one, two = arrivals.phases
    assert (one.for_, one.rate, one.accuracy_target) == (100, 120, 0.7)
    assert (two.for_, two.load, two.accuracy_target) == (60, 0.5, None)


def test_counted_tasks_may_be_named_one_by_one(write: Write) -> None:
    deployment = load(
        write(
            "tasks: {t: {count: 3, variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}}}\n"
            "nodes: {n: {instances: {t-2/a: 1}}}\n"
        )
    )
    assert deployment.nodes["n"].instances == {("t-2", "a"): 1}


def test_a_deployment_never_changes(examples: Path) -> None:
    deployment: Deployment = load(str(examples / "paper-fleet.yaml"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        deployment.seed = 2  # type: ignore[misc]
    assert deployment.folder == examples.resolve()


def test_fields_know_their_lines(examples: Path) -> None:
    path = examples / "paper-fleet.yaml"
    deployment = load(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "exact:" in lines[deployment.line_of("tasks.classify.variants.exact.service.cv") - 1]
    assert deployment.line_of("no.such.field") == 0


@pytest.mark.parametrize(
    ("variants", "idempotent"),
    [
        ("b: {accuracy: 0.8, service: {rate: 1/s}}", True),
        ("b: {accuracy: 0.8, service: {rate: 1/s}, remote: http://elsewhere:1/v2/models/m}", False),
    ],
)
def test_a_request_may_be_run_twice_where_no_variant_is_behind_a_server(
    write: Write, variants: str, idempotent: bool
) -> None:
    text = (
        "tasks:\n  t:\n%s    variants:\n      a: {accuracy: 0.7, service: {rate: 3/s}}\n"
        f"      {variants}\n"
    )
    assert load(write(text % "")).tasks["t"].idempotent is idempotent
    assert load(write(text % "    idempotent: true\n")).tasks["t"].idempotent is True
    assert load(write(text % "    idempotent: false\n")).tasks["t"].idempotent is False


def test_energies_by_hardware(write: Write) -> None:
    deployment = load(
        write(
            "tasks:\n  t:\n    energy_budget: 1.5 J\n    variants:\n"
            "      a: {accuracy: 0.7, energy: {gpu: 300 mJ, cpu: 2 J}, service: {rate: 3/s}}\n"
            "      b: {accuracy: 0.9, energy: {gpu: 1 J}, service: {gpu: {rate: 1/s}}}\n"
            "nodes:\n  n:\n    instances: {t/a: {one: 1, two: 1}, t/b: 1}\n"
            "    devices: {one: {cores: 2, hardware: cpu}, two: {count: 1, hardware: gpu}}\n"
        )
    )
    a, b = deployment.tasks["t"].variants.values()
    assert [a.energy_on(kind) for kind in ("gpu", "cpu", "tpu")] == [0.3, 2.0, None]
    assert b.energy_on("cpu") is None
    fleet = fleet_of(deployment, "t", "n")
    assert dict(zip(fleet.variants, fleet.energy.tolist(), strict=True)) == {
        "a:one": 2.0, "a:two": 0.3, "b": 1.0
    }  # fmt: skip


def test_energies_and_failures(write: Write) -> None:
    deployment = load(
        write(
            "tasks:\n  t:\n    energy_budget: 1.5 J\n    accuracy_target: 0.75\n    variants:\n"
            "      a: {accuracy: 0.7, energy: 300 mJ, service: {rate: 3/s}}\n"
            "      b: {accuracy: 0.9, energy: 0.001 Wh, service: {rate: 1/s}}\n"
            "nodes:\n  n:\n    instances: {t/a: 2, t/b: 1}\n"
            "    failures: {t/a: {every: 1 h, for: 60 s}}\n"
            "    outages: [{instances: {t/b: 1, t/a: 2}, at: 100 s, for: 20 s}]\n"
        )
    )
    task, node = deployment.tasks["t"], deployment.nodes["n"]
    assert task.energy_budget == 1.5
    assert [variant.energy_on("cpu") for variant in task.variants.values()] == [0.3, 3.6]
    assert node.failures == {("t", "a"): Failure(3600.0, 60.0)}
    assert node.outages == (Outage({("t", "b"): 1, ("t", "a"): 2}, 100.0, 20.0),)


def test_a_target_says_whose_accuracies_count(write: Write) -> None:
    variants = "variants: {a: {accuracy: 0.9, service: {mean: 10 ms}}}"
    text = "tasks:\n  t:\n    accuracy_target: %s\n    feedback: {}\n    " + variants
    plain, more = (load(write(text % said)) for said in ("0.8", "{mean: 80 %, by: measured}"))
    for one, measured in ((plain, False), (more, True)):
        found = one.tasks["t"]
        assert (found.accuracy_target, found.measured) == (0.8, measured)
        # Another target is measured as the one before.
        again = one.with_(target=0.7).tasks["t"]
        assert (again.accuracy_target, again.measured) == (0.7, measured)
