"""Files with a mistake, and the very line that is said about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import DeploymentError, load
from inferway.deployment.errors import Problem

Write = Callable[..., Path]

V = "accuracy: 0.9, service: {mean: 10 ms}"


def task(body: str) -> str:
    return f"tasks:\n  t:\n    {body}\n"


def variants(body: str) -> str:
    return f"tasks:\n  t:\n    variants:\n      a: {body}\n"


def service(body: str) -> str:
    return variants(f"{{accuracy: 0.9, service: {body}}}")


def after(body: str) -> str:
    """Follow a task of two variants, which takes lines 1 to 5, with more of the file."""
    return (
        "tasks:\n  t:\n    variants:\n"
        "      a: {accuracy: 0.8, size: 1 GiB, service: {mean: 10 ms}}\n"
        "      b: {accuracy: 0.9, size: 2 GiB, service: {cpu: {mean: 40 ms}}}\n" + body
    )


def node(body: str) -> str:
    return after(f"nodes:\n  n: {body}\n")


def arrivals(body: str) -> str:
    return after(f"workload:\n  t: {{arrivals: {body}}}\n")


def tree(body: str) -> str:
    return after("network:\n  tree:\n    - {tier: top, nodes: 1, repository: true}\n" + body)


TOP = "tasks, targets, nodes, network, dispatch, scheduling, placement, cost, seed, workload"
TASK = (
    "variants, catalog, accuracy_target, energy_budget, deadline, count, max_instances, dispatch, "
    "difficulty, idempotent, feedback, shadow, drift, canary"
)

MISTAKES: list[tuple[str, str]] = [
    # the top of the file
    ("nodes: {}\n", "1: tasks: is needed and not given"),
    ("tasks: {}\n", "1: tasks: needs at least 1, and has 0"),
    ("tasks: [a]\n", "1: tasks: expected keys, got a list"),
    (after("node: {}\n"), "6: node: unknown key; did you mean nodes?"),
    (after("xyz: 1\n"), f"6: xyz: unknown key; known here: {TOP}"),
    (after("seed: 1.5\n"), "6: seed: expected a whole number, got 1.5"),
    (after("seed: -1\n"), "6: seed: must be 0 or more, not -1"),
    (after("seed: true\n"), "6: seed: expected a whole number, got true"),
    (after("cost: {alpha: -1}\n"), "6: cost.alpha: must be 0 or more, not -1"),
    (after("cost: {alpha: 1 ms}\n"), "6: cost.alpha: expected a plain number, got '1 ms'"),
    # tasks
    (
        "tasks:\n  my task: {variants: {a: {" + V + "}}}\n",
        '2: tasks.my task: "my task" cannot be a name; use letters, digits, dots, dashes and '
        "underscores",
    ),
    (task("count: 1"), "2: tasks.t: a task needs either `variants` or `catalog`"),
    (task("variant: {}"), "3: tasks.t.variant: unknown key; did you mean variants?"),
    (
        task("{x: 1, variants: {a: {" + V + "}}}"),
        f"3: tasks.t.x: unknown key; known here: {TASK}",
    ),
    (
        task("{count: 0, variants: {a: {" + V + "}}}"),
        "3: tasks.t.count: must be 1 or more, not 0",
    ),
    (
        task("{deadline: 300, variants: {a: {" + V + "}}}"),
        '3: tasks.t.deadline: 300 has no unit; write a time such as "300 ms"',
    ),
    (
        task("{deadline: 0 ms, variants: {a: {" + V + "}}}"),
        "3: tasks.t.deadline: 0 ms is refused: a time must be above 0, such as 300 ms",
    ),
    (
        task("{deadline: 9 ms, variants: {a: {" + V + "}}}"),
        "3: tasks.t.deadline: 9 ms is shorter than every service time, so no request could be "
        "answered in time; the shortest mean is 10 ms",
    ),
    (
        task("{deadline: -1 s, variants: {a: {" + V + "}}}"),
        "3: tasks.t.deadline: -1 s is refused: a time must be above 0, such as 300 ms",
    ),
    (
        task("{accuracy_target: 95, variants: {a: {" + V + "}}}"),
        "3: tasks.t.accuracy_target: 95 is not in 0..1 (write 0.95, not 95)",
    ),
    (
        task("{accuracy_target: high, variants: {a: {" + V + "}}}"),
        "3: tasks.t.accuracy_target: expected a number in 0..1 such as 0.95, got 'high'",
    ),
    (
        task("{difficulty: {common: 0.5}, variants: {a: {" + V + "}}}"),
        "3: tasks.t.difficulty.quality: is needed and not given",
    ),
    (
        task("{difficulty: {quality: 2}, variants: {a: {" + V + "}}}"),
        "3: tasks.t.difficulty.quality: 2 is not in 0..1 (write 0.02, not 2)",
    ),
    (
        task("{difficulty: {quality: 0.5}, variants: {a: {model: 'zoo://digits/tiny'}}}"),
        "3: tasks.t.difficulty: it stands for what is not measured, but a has a model, of which "
        "`inferway profile` measures how sure it is",
    ),
    (
        task("accuracy_target: 0.95\n    variants: {a: {" + V + "}}"),
        "3: tasks.t.accuracy_target: 0.95 is above the best variant, a, whose accuracy is 0.9",
    ),
    (
        after("  t-1: {variants: {a: {" + V + "}}}\n  t: {}\n"),
        "7: tasks.t: t is given twice, first on line 2",
    ),
    (
        "tasks:\n  t-1: {variants: {a: {"
        + V
        + "}}}\n  t: {count: 2, variants: {a: {"
        + V
        + "}}}\n",
        "2: tasks.t-1: t-1 is also one of the tasks that t counts",
    ),
    (task("catalog: {}"), "3: tasks.t.catalog: a catalog needs either `name` or `timm`"),
    (
        task("catalog: {name: paper/yolov4, hardware: cpu}"),
        "3: tasks.t.catalog: `hardware` chooses among timm's tables; a catalog by `name` has its "
        "own",
    ),
    (task("catalog: {timm: nowhere}"), "3: tasks.t.catalog.timm: no such folder: {here}/nowhere"),
    # variants
    (
        variants("{}"),
        "4: tasks.t.variants.a: needs `service`, as no zoo's profile gives it",
    ),
    (
        variants("{accuracy: 0.9}"),
        "4: tasks.t.variants.a: needs `service`, as no zoo's profile gives it",
    ),
    (
        variants("0.9"),
        "4: tasks.t.variants.a: expected keys such as model, digest, accuracy, got 0.9",
    ),
    (
        "tasks:\n  t:\n    variants:\n      a: {" + V + "}\n      a: {" + V + "}\n",
        "5: tasks.t.variants.a: a is given twice, first on line 4",
    ),
    (
        variants("{" + V + ", price: -1}"),
        "4: tasks.t.variants.a.price: must be 0 or more, not -1",
    ),
    (
        variants("{" + V + ", size: 5}"),
        '4: tasks.t.variants.a.size: 5 has no unit; write a size such as "16 GiB"',
    ),
    (
        variants("{" + V + ", digest: 'sha256:12'}"),
        '4: tasks.t.variants.a.digest: expected "sha256:" and 64 hexadecimal digits',
    ),
    (
        variants("{" + V + ", digest: 'sha256:" + "0" * 64 + "'}"),
        "4: tasks.t.variants.a.digest: a digest belongs to a `model`, and none is given",
    ),
    (
        variants("{model: own.onnx, accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: no such model file: {here}/own.onnx",
    ),
    (
        variants("{model: 'file:///nowhere/own.onnx', accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: no such model file: /nowhere/own.onnx",
    ),
    (
        variants("{model: 's3://bucket/own.onnx', accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: models come from zoo://ZOO/VARIANT, file:///PATH, "
        "https://HOST/PATH or a path relative to this file, not from s3:",
    ),
    (
        variants("{model: 'file://host/own.onnx', accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: file://host/own.onnx names the host host; write file:/// and "
        "an absolute path",
    ),
    (
        variants("{model: 5, accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: expected a word, got 5",
    ),
    (
        variants("{model: '', accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: is empty",
    ),
    (
        variants('{model: "a\\0b", accuracy: 0.9}'),
        "4: tasks.t.variants.a.model: a path cannot hold a null character",
    ),
    (
        variants("{model: 'file://[x/own.onnx', accuracy: 0.9}"),
        "4: tasks.t.variants.a.model: file://[x/own.onnx is not a URI: Invalid IPv6 URL",
    ),
    # energy
    (
        variants("{" + V + ", energy: 5}"),
        '4: tasks.t.variants.a.energy: 5 has no unit; write an energy such as "300 mJ"',
    ),
    (
        variants("{" + V + ", energy: -1 J}"),
        "4: tasks.t.variants.a.energy: -1 J is refused: an energy must be 0 or more, such as "
        "300 mJ",
    ),
    (
        variants("{" + V + ", energy: {cpu: 5}}"),
        '4: tasks.t.variants.a.energy.cpu: 5 has no unit; write an energy such as "300 mJ"',
    ),
    (
        variants("{" + V + ", energy: {}}"),
        '4: tasks.t.variants.a.energy: expected an energy such as "300 mJ", got a mapping',
    ),
    (
        task("{energy_budget: 1 J, variants: {a: {" + V + ", energy: {gpu: 1 J}}}}"),
        "3: tasks.t.variants.a.energy: says nothing of cpu, where it may run",
    ),
    (
        task("{energy_budget: 0 J, variants: {a: {" + V + "}}}"),
        "3: tasks.t.energy_budget: 0 J is refused: an energy must be above 0, such as 300 mJ",
    ),
    (
        task("{energy_budget: 1 J, variants: {a: {" + V + "}}}"),
        "3: tasks.t.variants.a: needs `energy`, as the task has an `energy_budget`",
    ),
    (
        task("energy_budget: 1 J\n    variants: {a: {" + V + ", energy: 1.5 J}}"),
        "3: tasks.t.energy_budget: 1 J is less than any variant takes; the least is a with 1.5 J",
    ),
    (
        task(
            "energy_budget: 2 J\n    accuracy_target: 0.89\n    variants:\n"
            "      a: {" + V + ", energy: 5 J}\n"
            "      b: {accuracy: 0.8, energy: 1 J, service: {mean: 4 ms}}"
        ),
        "4: tasks.t.accuracy_target: no mix of the variants reaches 0.89 within the energy budget, "
        "2 J per request; the best reaches 0.825",
    ),
    # service times
    (
        service("10 ms"),
        "4: tasks.t.variants.a.service: expected keys such as distribution, mean, rate, "
        "got '10 ms'",
    ),
    (
        service("{maen: 10 ms}"),
        "4: tasks.t.variants.a.service.maen: unknown key; did you mean mean?",
    ),
    (
        service("{mean: 1 s, rate: 1/s}"),
        "4: tasks.t.variants.a.service: both `mean` and `rate` are given; one says the other, so "
        "keep one",
    ),
    (
        service("{distribution: exponential}"),
        "4: tasks.t.variants.a.service: a service time needs `mean` (such as 10.7 ms) or `rate` "
        "(such as 0.9/s)",
    ),
    (
        service("{rate: 0/s}"),
        "4: tasks.t.variants.a.service.rate: 0/s is refused: a rate must be above 0, such as 120/s",
    ),
    (
        service("{mean: 5/s}"),
        '4: tasks.t.variants.a.service.mean: "5/s" is not a time; write a number and a unit '
        '(ns, us, µs, μs, ms, s, min, h, d), such as "300 ms"',
    ),
    (
        service("{distribution: normal, mean: 1 s}"),
        "4: tasks.t.variants.a.service.distribution: 'normal' is not possible; did you "
        "mean lognormal?",
    ),
    (
        service("{distribution: lognormal, mean: 1 s}"),
        "4: tasks.t.variants.a.service: the distribution lognormal needs `cv`",
    ),
    (
        service("{distribution: exponential, mean: 1 s, cv: 2}"),
        "4: tasks.t.variants.a.service: `cv` means nothing where the distribution is exponential",
    ),
    (
        service("{distribution: hyperexponential, mean: 1 s, cv: 0.5}"),
        "4: tasks.t.variants.a.service: the distribution hyperexponential has a `cv` "
        "above 1, not 0.5",
    ),
    (
        service("{distribution: erlang, mean: 1 s, stages: 0}"),
        "4: tasks.t.variants.a.service.stages: must be 1 or more, not 0",
    ),
    (
        service("{distribution: empirical}"),
        "4: tasks.t.variants.a.service: the distribution empirical needs `samples` or `file`",
    ),
    (
        service("{distribution: empirical, samples: []}"),
        "4: tasks.t.variants.a.service: `samples` is empty; give at least one service time",
    ),
    (
        service("{gtx-980: {mean: 10 ms, rte: 1/s}}"),
        "4: tasks.t.variants.a.service.gtx-980.rte: unknown key; did you mean rate?",
    ),
    (
        service("{gtx-980: {mean: 10 ms}}"),
        "4: tasks.t.variants.a.service: no service time for hardware cpu, which the default node "
        "has; give one or describe the node under `nodes`",
    ),
    # batches
    (
        variants("{" + V + ", batch: {sizes: [1, 3, 3], service: [1 s, 2 s, 3 s]}}"),
        "4: tasks.t.variants.a.batch.sizes: batch sizes must increase, but 3 comes after 3",
    ),
    (
        variants("{" + V + ", batch: {sizes: [1, 3], service: [1 s]}}"),
        "4: tasks.t.variants.a.batch: 2 sizes but 1 service times; give one per size",
    ),
    (
        variants("{" + V + ", batch: {sizes: [1, 3], service: [1 s, 2 s], min: 3, max: 1}}"),
        "4: tasks.t.variants.a.batch: `min` is 3, above `max`, which is 1",
    ),
    (
        variants("{" + V + ", batch: {sizes: [1, 3], service: [1 s, 2 s], min: 2}}"),
        "4: tasks.t.variants.a.batch: `min` is 2, which is not one of the sizes",
    ),
    (
        variants("{" + V + ", batch: {sizes: 3, service: [1 s]}}"),
        "4: tasks.t.variants.a.batch.sizes: expected a list, got 3",
    ),
    (
        variants("{" + V + ", batch: {sizes: [1], service: {cpu: [1 s]}}}"),
        "4: tasks.t.variants.a.batch.service: expected a list, got a mapping; times by hardware "
        "stand in a table for each, such as batch: {cpu: {sizes: [1, 2], service: [10 ms, 15 ms]}}",
    ),
    (
        variants("{" + V + ", batch: {sizes: [1], cpu: {sizes: [1], service: [1 s]}}}"),
        "4: tasks.t.variants.a.batch.sizes: it is of one table for any hardware, and cpu has one "
        "of its own beside it; give each hardware a table, such as {cpu: {sizes: [1, 2], service: "
        "[10 ms, 15 ms]}}",
    ),
    (
        variants("{" + V + ", batch: {cpu: {sizes: [1], service: [1 s]}, tpu: [1]}}"),
        "4: tasks.t.variants.a.batch.tpu: expected keys such as {sizes: [1, 2], service: [10 ms, "
        "15 ms]}, got a list",
    ),
    (
        variants("{" + V + ", batch: {cpu: {sizes: [1, 3], service: [1 s]}}}"),
        "4: tasks.t.variants.a.batch.cpu: 2 sizes but 1 service times; give one per size",
    ),
    (
        variants("{" + V + ", batch: {cpu: {sizes: [3, 1], service: [1 s, 2 s]}}}"),
        "4: tasks.t.variants.a.batch.cpu.sizes: batch sizes must increase, but 1 comes after 3",
    ),
    (
        variants(
            "{accuracy: 0.9, service: {cpu: {mean: 1 s}}, batch: {tpu: {sizes: [1, 3], "
            "service: [1 s, 2 s]}}}"
        ),
        "4: tasks.t.variants.a.batch.tpu: a has no service time on hardware tpu; it has one on cpu",
    ),
    (
        variants("{accuracy: 0.9, service: {cpu: {mean: 1 s}}, batch: {cpu: {sizes: [1, 3]}}}"),
        "4: tasks.t.variants.a.batch.cpu: needs `service`, one time per size, as no profile of "
        "this model on this machine gives that of 1, 3; write them here, or measure them with "
        "`inferway profile d.yaml --data TEST --write`",
    ),
    (
        variants(
            "{accuracy: 0.9, service: {cpu: {mean: 1 s}, gpu: {mean: 1 s}}, "
            "batch: {gpu: {sizes: [1, 3]}}}"
        ),
        "4: tasks.t.variants.a.batch.gpu: needs `service`, one time per size, as no profile of "
        "this model on hardware gpu gives that of 1, 3; write them here, or measure them with "
        "`inferway profile d.yaml --data TEST --hardware gpu --write`",
    ),
    # nodes
    (
        node("{instances: {t/c: 1}}"),
        "7: nodes.n.instances.t/c: task t has no variant c; known here: a, b",
    ),
    (node("{instances: {u/a: 1}}"), "7: nodes.n.instances.u/a: there is no task u; known here: t"),
    (node("{pinned: {t: 1}}"), "7: nodes.n.pinned.t: t is not of the form TASK/VARIANT"),
    (node("{instances: {t/a: 0}}"), "7: nodes.n.instances.t/a: must be 1 or more, not 0"),
    (
        node("{instances: {t/a: two}}"),
        "7: nodes.n.instances.t/a: expected a whole number, got 'two'",
    ),
    (
        node("{hardware: gtx-980, instances: {t/b: 1}}"),
        "7: nodes.n.instances.t/b: b has no service time on hardware gtx-980; it has one on cpu",
    ),
    (
        node("{budget: 3 GiB, instances: {t/a: 2, t/b: 1}}"),
        "7: nodes.n.budget: 3 GiB cannot hold what runs here, which takes 4 GiB",
    ),
    (
        node("{budget: 3 GiB, instances: {}, pinned: {t/b: 2}}"),
        "7: nodes.n.budget: 3 GiB cannot hold what is pinned here, which takes 4 GiB",
    ),
    (
        node("{budget: 3 GiB, instances: {t/b: 1}, pinned: {t/a: 2}}"),
        "7: nodes.n.budget: 3 GiB cannot hold what runs here, which takes 4 GiB",
    ),
    (
        node("{budget: 1 GiB}"),
        "7: nodes.n.budget: 1 GiB cannot hold what runs here, which takes 3 GiB",
    ),
    (
        "tasks: {t: {variants: {a: {" + V + "}}}}\nnodes: {n: {budget: 1 GiB}}\n",
        "1: tasks.t.variants.a: needs `size`, as node n has a budget and runs it",
    ),
    (node("{buffer: 0}"), "7: nodes.n.buffer: must be 1 or more, not 0"),
    (node("{queue: centrl}"), "7: nodes.n.queue: 'centrl' is not possible; did you mean central?"),
    (node("{repository: 1}"), "7: nodes.n.repository: expected true or false, got 1"),
    (
        node("{failures: {t/c: {every: 1 h, for: 1 s}}}"),
        "7: nodes.n.failures.t/c: task t has no variant c; known here: a, b",
    ),
    (
        node("{failures: {t/a: {every: 1 h}}}"),
        "7: nodes.n.failures.t/a.for: is needed and not given",
    ),
    (
        node("{failures: {t/a: {every: 0 h, for: 1 s}}}"),
        "7: nodes.n.failures.t/a.every: 0 h is refused: a time must be above 0, such as 300 ms",
    ),
    (
        node("{instances: {t/b: 1}, failures: {t/a: {every: 1 h, for: 1 s}}}"),
        "7: nodes.n.failures.t/a: no instance of it runs here",
    ),
    (
        node("{outages: [{instances: {t/a: 2}, at: 1 s, for: 1 s}]}"),
        "7: nodes.n.outages[0].instances.t/a: 2 cannot fail: the node runs 1 of it",
    ),
    (
        node("{outages: [{instances: {}, at: 1 s, for: 1 s}]}"),
        "7: nodes.n.outages[0].instances: needs at least 1, and has 0",
    ),
    (
        node("{outages: [{instances: {t/a: 1}, at: -1 s, for: 1 s}]}"),
        "7: nodes.n.outages[0].at: -1 s is refused: a time must be 0 or more, such as 300 ms",
    ),
    # policies
    (
        after("dispatch: {policy: price}\n"),
        "6: dispatch.policy: there is no policy price; did you mean priced?",
    ),
    (
        after("dispatch: priced\n"),
        "6: dispatch: expected keys such as {policy: fastest-only}, got 'priced'",
    ),
    (after("dispatch: {policy: tad, d: 2}\n"), "6: dispatch.d: unknown key; known here: policy"),
    (after("dispatch: {policy: r-jsq-d, d: 0}\n"), "6: dispatch.d: must be 1 or more, not 0"),
    (
        after("dispatch: {policy: priced, stpe: 1}\n"),
        "6: dispatch.stpe: unknown key; did you mean step?",
    ),
    (after("dispatch: {policy: priced, step: 0}\n"), "6: dispatch.step: must be above 0, not 0"),
    (
        after("dispatch: {policy: r-jiq, beta: 0.5}\n"),
        "6: dispatch.beta: must be below 0.5, not 0.5",
    ),
    (
        after("dispatch: {policy: r-jiq, rate: 5}\n"),
        '6: dispatch.rate: 5 has no unit; write a rate such as "120/s"',
    ),
    (
        after("dispatch: {policy: deadline, margin: -0.5}\n"),
        "6: dispatch.margin: must be 0 or more, not -0.5",
    ),
    (
        after("dispatch: {policy: './mine.py:Cheapest'}\n"),
        "6: dispatch.policy: no such file: {here}/mine.py",
    ),
    (
        after("scheduling: {policy: rl-po}\n"),
        "6: scheduling.checkpoint: is needed and not given",
    ),
    (
        after("scheduling: {policy: rl}\n"),
        "6: scheduling.policy: there is no policy rl; known here: rl-po, rl-fo, rl-po-b, rl-fo-b, "
        "lw, hw, hw-e, sq, sa, infaas, hand",
    ),
    (
        after("scheduling: {policy: lw, slot: 1 s}\n"),
        "6: scheduling.slot: unknown key; known here: policy",
    ),
    (
        after("scheduling: {policy: sa, violations: 0}\n"),
        "6: scheduling.violations: must be above 0, not 0",
    ),
    (
        after("dispatch: {policy: alias, probabilities: {v: 0.4}}\n"),
        "6: dispatch.probabilities: sum to 0.4, not to 1",
    ),
    (
        after("dispatch: {policy: alias, probabilities: {wrong: 1}}\n"),
        "6: dispatch.probabilities: task t has no variant wrong; known here: a, b",
    ),
    (
        after("placement: {policy: infda}\n"),
        "6: placement.policy: there is no policy infda; did you mean infida?",
    ),
    (
        after("placement: {policy: infida, rounding: new}\n"),
        "6: placement.rounding: 'new' is not possible; known here: coupled, fresh",
    ),
    # networks
    (after("network: {}\n"), "6: network: a network needs one of `links`, `tree` and `gml`"),
    (
        after("network: {links: [{between: [a, b], rtt: -1 ms}]}\n"),
        "6: network.links[0].rtt: -1 ms is refused: a time must be 0 or more, such as 300 ms",
    ),
    (
        after("network: {links: [{between: [a, a], rtt: 1 ms}]}\n"),
        "6: network.links[0].between: a link joins two nodes, but both ends are a",
    ),
    (
        after("network: {links: [{between: [a], rtt: 1 ms}]}\n"),
        "6: network.links[0].between: has too few items: number 2 is missing",
    ),
    (after("network: {gml: nowhere.gml}\n"), "6: network.gml: no such file: {here}/nowhere.gml"),
    (
        tree("    - {tier: top, nodes: 2, rtt: 1 ms}\n"),
        "7: network.tree: two tiers are called top",
    ),
    (
        tree("    - {tier: base, nodes: 2}\n"),
        "7: network.tree: tier base needs `rtt`, the round-trip time to the tier above",
    ),
    (
        tree("    - {tier: base, nodes: 0, rtt: 1 ms}\n"),
        "9: network.tree[1].nodes: must be 1 or more, not 0",
    ),
    (
        tree("    - {tier: base, nodes: 4, rtt: 1 ms, budget: [{share: 75 %, size: 1 GiB}]}\n"),
        "9: network.tree[1].budget: the shares of a tier's nodes add up to 0.75, not to 1",
    ),
    (
        after("network: {tree: [{tier: top, nodes: 1}]}\n"),
        "6: network.tree: no tier has `repository: true`; some node must always be able to serve",
    ),
    (
        after("network: {tree: [{tier: top, nodes: 2, repository: true}]}\n"),
        "6: network.tree: tier top is the root and has one node, not 2",
    ),
    (
        after("network: {tree: [{tier: top, nodes: 1, rtt: 1 ms, repository: true}]}\n"),
        "6: network.tree: tier top is the root and has no parent, so it takes no `rtt`",
    ),
    (
        after("network: {links: [{between: [a, b, c], rtt: 1 ms}]}\n"),
        "6: network.links[0].between: takes at most 2, and has 3",
    ),
    (after("network: {gml: 5}\n"), "6: network.gml: expected a path, relative to this file"),
    (after("network: {tree: {}}\n"), "6: network.tree: expected a list, got a mapping"),
    (after("network: 5\n"), "6: network: expected keys such as links, tree, gml, got 5"),
    (
        after("dispatch: {policy: [priced]}\n"),
        "6: dispatch.policy: expected one of fastest-only, most-accurate-only, jiq-fast, "
        "jiq-accurate, tad, tad-op, r-jiq, r-jsq, r-jsq-d, priced, escalate, deadline, "
        "least-cost, alias, sq, hw-e, got a list",
    ),
    (after("cost: {alpha: .nan}\n"), "6: cost.alpha: expected a plain number, got nan"),
    # workloads
    (
        after("workload:\n  u: {arrivals: {process: poisson, rate: 1/s}}\n"),
        "7: workload.u: there is no task u; known here: t",
    ),
    (
        arrivals("{process: poison, rate: 1/s}"),
        "7: workload.t.arrivals.process: there is no process poison; did you mean poisson?",
    ),
    (
        arrivals("{rate: 1/s}"),
        "7: workload.t.arrivals: `process` is needed, one of poisson, constant, sinusoidal, map, "
        "phases, trace",
    ),
    (
        arrivals("{process: poisson, rate: 0/s}"),
        "7: workload.t.arrivals.rate: 0/s is refused: a rate must be above 0, such as 120/s",
    ),
    (
        arrivals("{process: poisson, rate: 120}"),
        '7: workload.t.arrivals.rate: 120 has no unit; write a rate such as "120/s"',
    ),
    (
        arrivals("{process: poisson}"),
        "7: workload.t.arrivals: needs either `rate` (such as 120/s) or `load` (such as 0.7)",
    ),
    (
        arrivals("{process: poisson, rate: 1/s, load: 0.5}"),
        "7: workload.t.arrivals: needs either `rate` (such as 120/s) or `load` (such as 0.7)",
    ),
    (
        arrivals("{process: poisson, load: 0}"),
        "7: workload.t.arrivals.load: must be above 0, not 0",
    ),
    (
        arrivals("{process: phases, phases: []}"),
        "7: workload.t.arrivals.phases: needs at least 1, and has 0",
    ),
    (
        arrivals("{process: phases, phases: [{rate: 1/s}]}"),
        "7: workload.t.arrivals.phases[0].for: is needed and not given",
    ),
    (
        arrivals("{process: phases, phases: [{for: 1 s, rate: 1/s, accuracy_target: 0.99}]}"),
        "7: workload.t.arrivals.phases[0].accuracy_target: 0.99 is above the best "
        "variant, b, whose "
        "accuracy is 0.9",
    ),
    (
        arrivals("{process: sinusoidal, rate: 1/s, amplitude: 1.5, period: 1 s}"),
        "7: workload.t.arrivals.amplitude: 1.5 is not in 0..1",
    ),
    (
        arrivals("{process: trace, file: nowhere.csv}"),
        "7: workload.t.arrivals.file: no such file: {here}/nowhere.csv",
    ),
    (
        arrivals("{process: map, d0: [[-1]], d1: [[2]]}"),
        "7: workload.t.arrivals: not a MAP: row 0 of d0 and d1 together sums to 1, not to 0; "
        "d0[0][0] would have to be -2",
    ),
    (
        arrivals("{process: map, d0: [[-1, -1], [1, -2]], d1: [[2, 0], [0, 1]]}"),
        "7: workload.t.arrivals: not a MAP: d0[0][1] is -1, a negative rate",
    ),
    (
        arrivals("{process: map, d0: [[-1, 0], [1, -2]], d1: [[2, -1], [0, 1]]}"),
        "7: workload.t.arrivals: not a MAP: d1[0][1] is -1, a negative rate",
    ),
    (
        arrivals("{process: map, d0: [[0]], d1: [[0]]}"),
        "7: workload.t.arrivals: not a MAP: d0[0][0] is 0, it must be below 0",
    ),
    (
        arrivals("{process: map, d0: [[-1, 1], [1, -1]], d1: [[0, 0]]}"),
        "7: workload.t.arrivals: d0 and d1 must be square and of one size, but d0 is 2 x 2 and d1 "
        "is 1 x 2",
    ),
    (
        arrivals("{process: map, d0: [[-1, 1], [1]], d1: [[0, 0], [0, 0]]}"),
        "7: workload.t.arrivals: row 1 of d0 has 1 entries, not 2",
    ),
    (
        arrivals("{process: map, d0: [[-1, 0], [0, -2]], d1: [[1, 0], [0, 2]]}"),
        "7: workload.t.arrivals: not one MAP: phases [0] and [1] never reach each other, so there "
        "is no single mean rate",
    ),
    (
        arrivals("{process: map, d0: [[-1, 1], [1, -1]], d1: [[0, 0], [0, 0]]}"),
        "7: workload.t.arrivals: not a MAP with arrivals: in the long run d1 gives no requests",
    ),
    (
        arrivals("{process: map, d0: [[-1, x], [1, -1]], d1: [[0, 0], [0, 0]]}"),
        "7: workload.t.arrivals.d0[0][1]: expected a plain number, got 'x'",
    ),
    (
        after("workload:\n  t:\n    arrivals: {process: constant, rate: 1/s}\n    entries: {}\n"),
        "9: workload.t.entries: needs either `tier` or `nodes`",
    ),
    (
        after(
            "workload:\n  t:\n    arrivals: {process: constant, rate: 1/s}\n    popularity: {}\n"
        ),
        "9: workload.t.popularity.zipf: is needed and not given",
    ),
    (
        tree(
            "workload:\n  t:\n    arrivals: {process: constant, rate: 1/s}\n    entries: "
            "{tier: tip}\n"
        ),
        "12: workload.t.entries.tier: there is no tier tip; did you mean top?",
    ),
    (
        task(f"shadow: {{share: 1 %}}\n    variants: {{a: {{{V}}}, b: {{{V}}}}}"),
        "3: tasks.t.shadow: what answers agree in is kept with what feedback says, and the task "
        "keeps no answers for it; give the task `feedback: {}`",
    ),
    (
        task(
            "shadow: {}\n    feedback: {}\n"
            f"    variants: {{a: {{{V}}}, b: {{service: {{mean: 9 ms}}}}}}"
        ),
        "3: tasks.t.shadow: answers are compared with those of the most accurate of several "
        "variants, and the task has no two with an accuracy",
    ),
    (
        task(f"shadow: {{share: 2}}\n    feedback: {{}}\n    variants: {{a: {{{V}}}, b: {{{V}}}}}"),
        "3: tasks.t.shadow.share: 2 is not in 0..1 (write 0.02, not 2)",
    ),
    (
        task(f"shadow: {{against: a}}\n    feedback: {{}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.shadow.against: 'a' is not possible; known here: most-accurate",
    ),
    (
        task(f"drift: {{variant: b, at: 1 s, accuracy: -0.1}}\n    variants: {{ab: {{{V}}}}}"),
        "3: tasks.t.drift.variant: there is no variant b; known here: ab",
    ),
    (
        task(
            "drift: {variant: a, at: 1 s, accuracy: -0.1}\n"
            "    variants: {a: {service: {mean: 9 ms}}}"
        ),
        "3: tasks.t.drift.variant: a has no accuracy that could change",
    ),
    (
        task(f"drift: {{variant: a, at: 1 s, accuracy: 20 %}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.drift.accuracy: a has 0.9, so that it would have 1.1, which is not in 0..1",
    ),
    (
        task(f"drift: {{variant: a, at: 1 s, accuracy: -10}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.drift.accuracy: -10 is not in -1..1",
    ),
    (
        task(f"drift: {{variant: a, labels: 0.1}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.drift: `variant`, `labels` are of a change that the twin rehearses, which "
        "needs `at` and `accuracy` as well",
    ),
    (
        task(f"drift: {{}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.drift: it goes by feedback, and the task keeps no answers for it; give the "
        "task `feedback: {}`",
    ),
    (
        task(f"canary: {{variant: a, at_least: 0.9}}\n    variants: {{a: {{{V}}}, b: {{{V}}}}}"),
        "3: tasks.t.canary: feedback decides on it, and the task keeps no answers for it; give the "
        "task `feedback: {}`",
    ),
    (
        task(
            "feedback: {}\n    canary: {variant: c, at_least: 0.9}\n"
            f"    variants: {{ab: {{{V}}}, b: {{{V}}}}}"
        ),
        "4: tasks.t.canary.variant: there is no variant c; known here: ab, b",
    ),
    (
        task(
            f"feedback: {{}}\n    canary: {{variant: a, at_least: 0.9}}\n"
            f"    variants: {{a: {{{V}}}}}"
        ),
        "4: tasks.t.canary.variant: a is the only variant, and who is no canary answers the others",
    ),
    (
        task(f"feedback: {{}}\n    canary: {{variant: a}}\n    variants: {{a: {{{V}}}}}"),
        "4: tasks.t.canary.at_least: is needed and not given",
    ),
    (
        task(f"accuracy_target: {{mean: 0.8, by: labels}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.accuracy_target.by: 'labels' is not possible; known here: profile, measured",
    ),
    (
        task(f"accuracy_target: {{mean: 0.8, by: measured}}\n    variants: {{a: {{{V}}}}}"),
        "3: tasks.t.accuracy_target.by: `measured` goes by feedback, and the task keeps no "
        "answers for it; give the task `feedback: {}`",
    ),
    (
        task(
            "accuracy_target: {mean: 0.8, by: measured}\n    feedback: {}\n"
            f"    dispatch: {{policy: tad-op}}\n    variants: {{a: {{{V}}}}}"
        ),
        "3: tasks.t.accuracy_target.by: tad-op does not go by the accuracies of the moment, so "
        "that it does not follow what is measured; escalate, least-cost, priced, tad do",
    ),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_named_with_its_line_and_field(write: Write, text: str, said: str) -> None:
    path = write(text)
    with pytest.raises(DeploymentError) as caught:
        load(path)
    here = str(path.resolve().parent)
    assert str(caught.value).splitlines() == [f"{path}:{said.replace('{here}', here)}"]


def test_a_mistake_stays_on_one_line(write: Write) -> None:
    path = write("tasks: {t: {variants: {a: {" + V + ', "\\r\\n\\e[31m": 1}}}}\n')
    with pytest.raises(DeploymentError) as caught:
        load(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:1: tasks.t.variants.a.\\r\\n\\x1b[31m: unknown key; ")


def test_all_mistakes_are_said_at_once(write: Write) -> None:
    text = """\
tasks:
  broken:
    variants:
      a: {accuracy: 95, service: {rate: 5}}
  fine:
    accuracy_target: 0.99
    variants:
      a: {accuracy: 0.9, size: 2 GiB, service: {rate: 5/s}}
      a: {accuracy: 0.9, size: 2 GiB, service: {rate: 5/s}}
nodes:
  here: {budget: 1 GiB, instances: {fine/a: 1, broken/a: 1, brokn/a: 1}}
dispatch: {policy: priced, stpe: 1}
"""
    path = write(text)
    with pytest.raises(DeploymentError) as caught:
        load(path)
    assert [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()] == [
        "4: tasks.broken.variants.a.accuracy: 95 is not in 0..1 (write 0.95, not 95)",
        '4: tasks.broken.variants.a.service.rate: 5 has no unit; write a rate such as "120/s"',
        "6: tasks.fine.accuracy_target: 0.99 is above the best variant, a, whose accuracy is 0.9",
        "9: tasks.fine.variants.a: a is given twice, first on line 8",
        "11: nodes.here.budget: 1 GiB cannot hold what runs here, which takes 2 GiB",
        "11: nodes.here.instances.brokn/a: there is no task brokn; did you mean broken?",
        "12: dispatch.stpe: unknown key; did you mean step?",
    ]
    assert [problem.line for problem in caught.value.problems] == [4, 4, 6, 9, 11, 11, 12]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0.5\n1.5\n1.0\n", "line 3: the time goes back, from 1.5 s to 1 s"),
        ("0.5\n-1.5\n", "line 2: -1.5 s is negative"),
        ("time\n0.5\n\nsoon\n", "line 4: 'soon' is not a number of seconds"),
        ("0.5\nnan\n", "line 2: 'nan' is not a number of seconds"),
        ("time\n", "holds no values"),
        ("", "holds no values"),
        ("2023-11-16 18:17:03.9\nlater\n", "line 2: 'later' is not a timestamp"),
        ("2023-11-16 18:17:03.9\n2023-11-16 18:17:02.9\n", "line 2: the time goes back"),
    ],
)
def test_a_trace_is_read_and_its_line_named(write: Write, rows: str, said: str) -> None:
    trace = write(rows, "trace.csv")
    path = write(arrivals("{process: trace, file: trace.csv}"))
    with pytest.raises(DeploymentError) as caught:
        load(path)
    assert f":7: workload.t.arrivals.file: {trace} {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0.5\n0\n", "0 is not a service time above 0 s"),
        ("0.5\nx\n", "line 2: 'x' is not a number of seconds"),
    ],
)
def test_measured_service_times_are_read_and_checked(write: Write, rows: str, said: str) -> None:
    write(rows, "s.csv")
    path = write(service("{distribution: empirical, file: s.csv}"))
    with pytest.raises(DeploymentError, match=r"d\.yaml:4: tasks\.t\.variants\.a\.service\.file: "):
        load(path)
    with pytest.raises(DeploymentError, match=said):
        load(path)


def test_a_broken_task_is_not_complained_of_twice(write: Write) -> None:
    path = write(
        variants("{accuracy: 95, service: {mean: 1 s}}")
        + "  u: {variants: {b: {"
        + V
        + "}}}\n"
        + "nodes: {n: {instances: {t/a: 1, u/b: 1}}}\n"
        + "workload: {t: {arrivals: {process: poisson, rate: 1/s}}}\n"
    )
    with pytest.raises(DeploymentError) as caught:
        load(path)
    assert [problem.line for problem in caught.value.problems] == [4]


def test_the_number_of_those_that_are_not_listed_comes_last_however_often_it_is_said() -> None:
    listed = DeploymentError("a.yaml", [Problem(7, "x", "is bad"), Problem(2, "y", "is bad")], 9)
    again = DeploymentError("b.yaml", reversed(listed.problems))
    assert list(map(str, again.problems)) == ["y: is bad", "x: is bad", "and 9 more problems"]
