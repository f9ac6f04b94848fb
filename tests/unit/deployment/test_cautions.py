from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import Caution, DeploymentError, check, load
from inferway.machine import cores

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferway.deployment.warnings.cores", lambda: 2)


def ladder(*, task: str = "", third: str = "", more: str = "") -> str:
    """Write a sound file of lines 1 to 6, with something added."""
    return (
        f"tasks:\n  t:\n    {task or 'accuracy_target: 0.8'}\n    variants:\n"
        "      fast: {accuracy: 0.7, service: {mean: 10 ms}}\n"
        "      slow: {accuracy: 0.9, service: {mean: 40 ms}}\n" + third + more
    )


def test_a_sound_file_gets_no_advice(write: Write) -> None:
    assert check(load(write(ladder()))) == []


def test_advice_is_data_and_text(write: Write) -> None:
    third = "      poor: {accuracy: 0.65, service: {mean: 20 ms}}\n"
    nodes = "nodes: {n: {instances: {t/fast: 1, t/slow: 1}}}\n"
    (caution,) = check(load(write(ladder(third=third, more=nodes))))
    assert caution == Caution(
        "dominated",
        "tasks.t.variants.poor",
        7,
        "dominated by fast, which is no less accurate (0.7 against 0.65) and no slower (10 ms "
        "against 20 ms on cpu)",
    )
    assert str(caution) == f"{caution.field}: {caution.message}"


def kinds(write: Write, text: str) -> list[tuple[str, int]]:
    return [(caution.kind, caution.line) for caution in check(load(write(text)))]


NODES = "nodes: {n: {instances: {t/fast: 1, t/slow: 1}}}\n"


@pytest.mark.parametrize(
    ("variant", "dominated"),
    [
        ("{accuracy: 0.7, service: {mean: 11 ms}}", True),  # as accurate as fast, and slower
        ("{accuracy: 0.69, service: {mean: 10 ms}}", True),  # as fast, and less accurate
        ("{accuracy: 0.7, service: {mean: 10 ms}}", False),  # a twin: neither is better
        ("{accuracy: 0.71, service: {mean: 11 ms}}", False),
        ("{accuracy: 0.95, service: {mean: 50 ms}}", False),
        ("{accuracy: 0.6, service: {gtx-980: {mean: 50 ms}}}", False),  # cannot run on this node
    ],
)
def test_dominated_variants(write: Write, variant: str, dominated: bool) -> None:
    text = ladder(third=f"      x: {variant}\n", more=NODES)
    assert kinds(write, text) == ([("dominated", 7)] if dominated else [])


def test_a_variant_that_wins_on_one_hardware_is_not_dominated(write: Write) -> None:
    text = """\
tasks:
  t:
    variants:
      a: {accuracy: 0.8, service: {cpu: {mean: 10 ms}, gtx-980: {mean: 9 ms}}}
      b: {accuracy: 0.7, service: {cpu: {mean: 20 ms}, gtx-980: {mean: 3 ms}}}
nodes: {m: {hardware: cpu}, n: {hardware: gtx-980}}
"""
    assert kinds(write, text) == []
    assert kinds(write, text.replace("gtx-980}", "cpu}")) == [("dominated", 5)]


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("{instances: {t/fast: 1, t/slow: 1}}", []),
        ("{instances: {t/fast: 2, t/slow: 1}}", [("oversubscribed", 7)]),
        ("{hardware: gtx-980, instances: {t/fast: 2, t/slow: 1}}", [("oversubscribed", 7)]),
        ("{devices: {cpu: {cores: 2}}, instances: {t/fast: 2, t/slow: 1}}", []),
    ],
)
def test_more_cpu_instances_than_cores(
    write: Write, node: str, found: list[tuple[str, int]]
) -> None:
    without_models = ladder(more=f"nodes: {{n: {node}}}\n")
    text = without_models.replace("{accuracy: 0.7", "{model: zoo://digits/tiny, accuracy: 0.7")
    text = text.replace("{accuracy: 0.9", "{model: zoo://digits/mini, accuracy: 0.9")
    assert kinds(write, text) == found
    assert kinds(write, without_models) == []  # nothing runs on this machine


@pytest.mark.parametrize(
    ("arrivals", "found"),
    [
        ("{process: poisson, rate: 124/s}", []),
        ("{process: poisson, rate: 125/s}", [("overloaded", 7)]),
        ("{process: poisson, load: 0.9}", []),
        ("{process: poisson, load: 1.1}", [("overloaded", 7)]),
        (
            "{process: phases, phases: [{for: 1 s, rate: 9/s}, {for: 1 s, rate: 500/s}]}",
            [("overloaded", 7)],
        ),
        ("{process: map, d0: [[-130]], d1: [[130]]}", [("overloaded", 7)]),
        ("{process: map, d0: [[-200, 100], [100, -100]], d1: [[100, 0], [0, 0]]}", []),
    ],
)
def test_more_load_than_all_instances_serve(
    write: Write, arrivals: str, found: list[tuple[str, int]]
) -> None:
    """The fleet serves 100 + 25 requests per second."""
    assert kinds(write, ladder(more=f"workload: {{t: {{arrivals: {arrivals}}}}}\n")) == found


@pytest.mark.parametrize(
    ("rate", "most", "found"),
    [(224, 8, []), (225, 8, ["overloaded"]), (133, 2, []), (134, 2, ["overloaded"])],
)
def test_batches_serve_more(write: Write, rate: int, most: int, found: list[str]) -> None:
    """With batches of 4, 200 + 25 requests per second; of 8 no more; of 2, 108.7 + 25."""
    text = ladder(more=f"workload: {{t: {{arrivals: {{process: poisson, rate: {rate}/s}}}}}}\n")
    batch = f"batch: {{sizes: [2, 4, 8], service: [18.4 ms, 20 ms, 1 s], max: {most}}}"
    text = text.replace("{accuracy: 0.7", f"{{{batch}, accuracy: 0.7")
    slow = ["slow-batch-size"] if most == 8 else []
    assert [kind for kind, _ in kinds(write, text)] == slow + found


def test_sizes_that_serve_no_more_than_smaller_ones_are_named(write: Write) -> None:
    batch = "batch: {sizes: [1, 2, 3, 4, 8], service: [10 ms, 20 ms, 25 ms, 40 ms, 60 ms]}"
    found = check(load(write(ladder().replace("{accuracy: 0.7", f"{{{batch}, accuracy: 0.7"))))
    assert [(one.kind, one.line, one.message) for one in found] == [
        (
            "slow-batch-size",
            5,
            f"size {size} serves 100/s, no more than size {than} with {per_s}/s, so no batch of "
            f"{size} is formed",
        )
        for size, than, per_s in ((2, 1, 100), (4, 3, 120))
    ]


def test_hardware_without_batches_is_named_where_copies_may_run(write: Write) -> None:
    """Slow sizes are those of a hardware's own table, and the load is held against that one's."""
    text = """\
tasks:
  t:
    variants:
      a:
        accuracy: 0.9
        service: {cpu: {mean: 50 ms}, ampere: {mean: 10 ms}, hopper: {mean: 8 ms}}
        batch:
          ampere: {sizes: [4], service: [16 ms]}
          hopper: {sizes: [1, 2], service: [8 ms, 16 ms]}
nodes:
  here:
    devices:
      {cpu: {cores: 2}, gpu: {hardware: ampere, count: 1}, more: {hardware: hopper, count: 1}}
    instances: {t/a: INSTANCES}
workload: {t: {arrivals: {process: poisson, rate: RATE/s}}}
"""

    def found(instances: str, rate: int) -> list[tuple[str, str, str]]:
        file = write(text.replace("INSTANCES", instances).replace("RATE", str(rate)))
        return [(one.kind, one.field, one.message) for one in check(load(file))]

    place = "tasks.t.variants.a.batch"
    slow = (
        "slow-batch-size",
        f"{place}.hopper",
        "size 2 serves 125/s, no more than size 1 with 125/s, so no batch of 2 is formed",
    )
    singly = (
        "no-batches-there",
        place,
        "gives no batches on cpu, so that copies there serve one request at a time; it has some on "
        "ampere, hopper",
    )
    assert found("{gpu: 1}", 249) == [slow]
    assert found("{cpu: 1, gpu: 1}", 269) == [singly, slow]
    over = (
        "overloaded",
        "workload.t.arrivals",
        "270/s arrive, but all instances together serve 270/s",
    )
    assert found("{cpu: 1, gpu: 1}", 270) == [singly, slow, over]


@pytest.mark.parametrize(
    ("task", "more", "found"),
    [
        ("accuracy_target: 0.9", "", [("target-at-best", 3)]),
        ("accuracy_target: 0.6", "", [("target-for-free", 3)]),
        (
            "accuracy_target: 0.8",
            "nodes: {n: {instances: {t/fast: 1}}}\n",
            [("target-out-of-reach", 3)],
        ),
        ("deadline: 10 ms", "", []),
        (
            "count: 1",
            "workload: {t: {arrivals: {process: poisson, rate: 1/s}, entries: {tier: base}}}\n",
            [("no-tiers", 7)],
        ),
        (
            "count: 1",
            "network: {links: [{between: [n, m], rtt: 1 ms}]}\nnodes: {n: {}}\n",
            [("undescribed-node", 7)],
        ),
        ("count: 1", "scheduling: {policy: rl-po, checkpoint: p.npz}\n", [("no-checkpoint", 7)]),
        (
            "count: 1",
            "dispatch: {policy: alias}\nscheduling: {policy: lw}\n",
            [("unused-dispatch", 7)],
        ),
    ],
)
def test_other_advice(write: Write, task: str, more: str, found: list[tuple[str, int]]) -> None:
    assert kinds(write, ladder(task=task, more=more)) == found


def test_models_without_a_service_time(write: Write, model: Callable[..., Path]) -> None:
    model("own.onnx")
    text = ladder(third="      own: {model: own.onnx, accuracy: 0.95}\n", more=NODES)
    assert kinds(write, text) == [("unmeasured", 7)]


def test_cores_are_counted() -> None:
    assert cores() >= 1


def test_a_deadline_that_a_model_may_yet_meet(write: Write) -> None:
    text = (
        "tasks:\n  digits:\n    deadline: 1 us\n    variants:\n"
        "      tiny: {model: zoo://digits/tiny}\n"
    )
    assert kinds(write, text) == [("deadline-too-short", 3)]


@pytest.mark.parametrize(
    ("end", "hint"),
    [("clod", "; did you mean cloud?"), ("edge-3", ""), ("edgee-2", "; did you mean edge-2?")],
)
def test_a_link_that_ends_at_a_misspelled_node(write: Write, end: str, hint: str) -> None:
    links = f"network: {{links: [{{between: [edge-2, {end}], rtt: 1 ms}}]}}\n"
    nodes = "nodes: {cloud: {repository: true}, edge-1: {}, edge-2: {}}\n"
    (caution,) = check(load(write(ladder(task="count: 1", more=links + nodes))))
    assert caution.message == f"{end} is not described under `nodes`{hint}"


@pytest.mark.parametrize("target", ["0.9", "0.95"])
def test_a_target_above_the_best_variant_may_be_reached_by_asking_twice(
    write: Write, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    named = "dispatch: {policy: priced}\n"
    sure = f"accuracy_target: {target}\n    difficulty: {{quality: 0.9}}"
    blind = f"accuracy_target: {target}"
    for module in ("resolution", "warnings"):
        monkeypatch.setattr(f"inferway.deployment.{module}.ESCALATE", "priced")
    assert check(load(write(ladder(task=sure, more=named)))) == []
    if target == "0.95":
        with pytest.raises(DeploymentError, match=r"0\.95 is above the best variant"):
            load(write(ladder(task=blind, more=named)))
        with pytest.raises(DeploymentError, match=r"0\.95 is above the best variant"):
            load(write(ladder(task=sure, more="dispatch: {policy: tad}\n")))
    else:
        (one,) = check(load(write(ladder(task=blind, more=named))))
        assert one.kind == "target-at-best"
