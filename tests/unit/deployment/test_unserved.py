from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import load

Write = Callable[..., Path]
V = "variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}"


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        (
            "topology-1.yaml",
            [
                "network: `serve` runs one node alone; `inferway up` runs the network, and "
                "`inferway node` one of its nodes",
                "placement: infida moves models between the nodes of a network; for `serve`, list "
                "`instances` under the node",
                "tasks.detection.catalog: catalogs have no models to serve; list `variants`",
                "tasks.detection.count: 20 identical tasks are served by the nodes of a network; "
                "`serve` takes one",
            ],
        ),
        (
            "edge-burst.yaml",
            [
                "tasks.recognise.variants: light, heavy have no `model`, so nothing can answer "
                "requests",
            ],
        ),
        (
            "paper-fleet.yaml",
            [
                "tasks.classify.variants: fast, middle, careful, exact have no `model`, so nothing "
                "can answer requests"
            ],
        ),
    ],
)
def test_what_serve_does_not_run_is_refused_in_a_sentence(
    examples: Path, name: str, reasons: list[str]
) -> None:
    assert load(examples / name).unserved() == reasons


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("scheduling: {policy: sa}\n", "scheduling: sa goes by the workload's state, which a"),
        (
            "scheduling: {policy: rl-fo, checkpoint: a.npz}\n",
            "scheduling: rl-fo goes by the workload's state, which a live server cannot see",
        ),
        ("nodes: {m: {}, n: {}}\n", "nodes: m, n are several nodes"),
        ("nodes: {m: {instances: {}}}\n", "tasks.t: no node has an instance"),
        ("dispatch: {policy: tad-op}\n", "tasks.t.accuracy_target: tad-op needs one to steer to"),
    ],
)
def test_other_reasons(write: Write, more: str, reason: str) -> None:
    found = load(write(f"tasks: {{t: {{{V}}}}}\n{more}")).unserved()
    assert any(sentence.startswith(reason) for sentence in found), found


def test_models_under_a_plain_policy_are_served(write: Write, model: Callable[..., Path]) -> None:
    model("own.onnx")
    text = "tasks: {t: {variants: {a: {model: own.onnx, accuracy: 0.8}}}}\n"
    assert load(write(text + "dispatch: {policy: jiq-fast}\n")).unserved() == []


def test_batches_that_never_come_about_are_refused(
    write: Write, model: Callable[..., Path]
) -> None:
    model("own.onnx")
    text = (
        "tasks: {t: {variants: {a: {model: own.onnx, accuracy: 0.8, batch: "
        "{sizes: [1, 3], service: [1 s, 2 s], min: 3}}}}}\n"
    )
    node = "nodes: {here: {instances: {t/a: 1}, buffer: %s}}\n"
    assert load(write(text + node % "3")).unserved() == []
    assert load(write(text + node % "2")).unserved() == [
        "tasks.t.variants.a.batch: instances wait for 3 requests and have room for 2; lower its "
        "`min` or raise the node's `buffer`"
    ]
    assert load(write(text + node % "3, queue: central")).unserved() == [
        "tasks.t.variants.a.batch: node here has a central queue, so that each instance holds one "
        "request and forms no batches; leave out the one or the other"
    ]


NETWORK = """\
nodes: {cloud: {repository: true}, shop: {budget: 4 GiB}}
network: {links: [{between: [shop, cloud], rtt: 30 ms}]}
"""
ELSEWHERE = (
    "{model: 'https://models.example.org/a.onnx', accuracy: 0.8, size: 1 MB, "
    f"service: {{mean: 1 ms}}, digest: 'sha256:{'0' * 64}'}}"
)


def test_a_network_with_placement_and_counted_tasks_runs_at_nodes(
    write: Write, model: Callable[..., Path]
) -> None:
    model("own.onnx")
    variants = f"{{a: {{model: own.onnx, accuracy: 0.8}}, b: {ELSEWHERE}}}"
    text = f"tasks: {{t: {{count: 6, variants: {variants}}}}}\n"
    deployment = load(write(text + NETWORK + "placement: {policy: infida}\n"))
    assert deployment.unserved_at_node() == []
    assert len(deployment.unserved()) == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"tasks: {{t: {{{V}}}}}\n", "network: there is none"),
        (f"tasks: {{t: {{{V}}}}}\n{NETWORK}", "tasks.t.variants: a has no `model`"),
        (f"tasks: {{t: {{{V}}}}}\n{NETWORK}scheduling: {{policy: lw}}\n", "scheduling: lw routes"),
        (
            f"tasks: {{t: {{{V}}}}}\n{NETWORK}dispatch: {{policy: tad}}\n",
            "tasks.t.accuracy_target:",
        ),
        (f"tasks: {{t: {{catalog: {{name: paper/yolov4}}}}}}\n{NETWORK}", "tasks.t.catalog:"),
        (
            f"tasks: {{t: {{{V}}}}}\n{NETWORK.replace('shop: {', 'shop: {queue: central, ')}",
            "nodes.shop.queue: requests wait",
        ),
        (
            f"tasks: {{t: {{{V}}}}}\nnetwork: {{tree: [{{tier: top, nodes: 1, repository: true, "
            "queue: central}]}\n",
            "network.tree[0].queue: requests wait",
        ),
        (
            "tasks: {t: {variants: {a: {model: zoo://digits/tiny}, b: {model: zoo://digits/small}},"
            f" feedback: {{}}, canary: {{variant: b, at_least: 0.9}}}}}}\n{NETWORK}",
            "tasks.t.canary: nodes of a network try no canary",
        ),
        (
            "tasks: {t: {variants: {a: {model: zoo://digits/tiny}, b: {model: zoo://digits/small}},"
            f" feedback: {{}}, shadow: {{}}}}}}\n{NETWORK}",
            "tasks.t.shadow: nodes of a network compare no answers, as",
        ),
    ],
)
def test_what_nodes_do_not_run(write: Write, text: str, reason: str) -> None:
    found = load(write(text)).unserved_at_node()
    assert any(sentence.startswith(reason) for sentence in found), found


def test_nodes_take_feedback_and_go_by_it(write: Write) -> None:
    target = "accuracy_target: {mean: 0.8, by: measured}, feedback: {}, drift: {}"
    variants = "variants: {a: {model: zoo://digits/tiny}, b: {model: zoo://digits/small}}"
    deployment = load(write(f"tasks: {{t: {{{variants}, {target}}}}}\n{NETWORK}"))
    assert deployment.unserved_at_node() == []


@pytest.mark.parametrize(
    "network",
    [
        "nodes: {cloud: {repository: true, buffer: 2}, shop: {budget: 1 GB, buffer: 2}}\n"
        "network: {links: [{between: [shop, cloud], rtt: 30 ms}]}\n",
        "network: {tree: [{tier: top, nodes: 1, repository: true}, "
        "{tier: low, nodes: 2, rtt: 5 ms, buffer: 2}]}\n",
        "nodes: {cloud: {repository: true}}\nnetwork: "
        "{links: [{between: [shop, cloud], rtt: 30 ms}], others: {buffer: 2}}\n",
    ],
)
def test_batches_that_never_fill_at_a_node_are_refused_once(
    write: Write, model: Callable[..., Path], network: str
) -> None:
    model("own.onnx")
    text = (
        "tasks: {t: {variants: {a: {model: own.onnx, accuracy: 0.8, batch: "
        "{sizes: [1, 3], service: [1 s, 2 s], min: %d}}}}}\n"
    )
    assert load(write(text % 3 + network)).unserved_at_node() == [
        "tasks.t.variants.a.batch: instances wait for 3 requests and have room for 2; lower its "
        "`min` or raise the node's `buffer`"
    ]
    assert load(write(text % 1 + network)).unserved_at_node() == []


def test_serve_takes_models_that_are_here(write: Write) -> None:
    (reason,) = load(write(f"tasks: {{t: {{variants: {{b: {ELSEWHERE}}}}}}}\n")).unserved()
    assert reason.startswith("tasks.t.variants.b.model: https://models.example.org/a.onnx is on")
