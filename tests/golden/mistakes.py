"""Deployment files with a mistake: every key, and what may be wrong with it."""

from __future__ import annotations

from typing import Final

V: Final = "accuracy: 0.9, service: {mean: 10 ms}"
"""A variant that is right."""
TWO: Final = (
    "tasks:\n  t:\n    variants:\n"
    "      a: {accuracy: 0.8, size: 1 GiB, energy: 1 J, service: {mean: 10 ms}}\n"
    "      b: {accuracy: 0.9, size: 2 GiB, energy: 2 J, service: {cpu: {mean: 40 ms}}}\n"
)
"""A task that is right, lines 1 to 5."""


def _task(body: str) -> str:
    return f"tasks:\n  t: {{{body}}}\n"


def _one(body: str) -> str:
    return f"tasks:\n  t:\n    variants:\n      a: {{{body}}}\n"


def _service(body: str) -> str:
    return _one(f"accuracy: 0.9, service: {{{body}}}")


def _remote(body: str) -> str:
    return _one(f"{V}, remote: {body}")


def _batch(body: str) -> str:
    return _one(f"{V}, batch: {{{body}}}")


def _after(body: str) -> str:
    return f"{TWO}{body}\n"


def _node(body: str) -> str:
    return _after(f"nodes:\n  n: {{{body}}}")


def _arrivals(body: str) -> str:
    return _after(f"workload:\n  t: {{arrivals: {{{body}}}}}")


def _work(body: str) -> str:
    return _after(f"workload:\n  t:\n    arrivals: {{process: constant, rate: 1/s}}\n    {body}")


def _links(*links: str, more: str = "") -> str:
    return _after(f"network:\n  links: [{', '.join(links)}]\n{more}")


def _tree(*tiers: str, more: str = "") -> str:
    rows = "".join(f"    - {{{tier}}}\n" for tier in tiers)
    return _after(f"network:\n  tree:\n{rows}{more}")


_ROOT: Final = "tier: top, nodes: 1, repository: true"
_AB: Final = "{between: [a, b], rtt: 1 ms}"


def _policy(body: str) -> str:
    return (
        "from typing import NamedTuple\n\n\nclass Mine(NamedTuple):\n    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n        return cls()\n\n"
        f"    def choose(self, site, request, draw):\n        {body}\n"
    )


_BODIES: Final = {
    "attribute": "return site.nothing_of_the_kind",
    "call": "return len(open('x').read())",
    "undefined": "return nothing",
    "answer": "return 'first'",
    "division": "return 1 // (site.queue.size - site.queue.size)",
    "option": "return 0",
}
"""Of `choose`: a class of its own file, as Numba keeps what it has compiled."""

BESIDE: Final[dict[str, str | bytes]] = {
    "idle.py": "class Idle:\n    pass\n",
    **{f"{name}.py": _policy(body) for name, body in _BODIES.items()},
    "no-python.py": "def (:\n",
    "backwards.csv": "1.0\n0.5\n",
    "words.csv": "1.0\nsoon\n",
    "empty.csv": "",
    "no-graph.gml": "graph [ node [ id 0\n",
    "apart.gml": (
        'graph [ node [ id 0 label "a" ] node [ id 1 label "b" ] node [ id 2 label "c" ]'
        " edge [ source 0 target 1 LinkLatency 1.0 ] ]\n"
    ),
    "no-model.onnx": b"not a model",
}
"""What the files below name."""

MISTAKES: Final[dict[str, str | bytes]] = {
    # YAML
    "yaml-empty": "",
    "yaml-comment-only": "# nothing\n",
    "yaml-list": "- tasks\n",
    "yaml-word": "tasks\n",
    "yaml-tab": "tasks:\n\tt: {}\n",
    "yaml-open-bracket": "tasks: {t: [\n",
    "yaml-two-documents": _after("---\nseed: 1"),
    "yaml-not-utf-8": b"tasks: {t\xff: 1}\n",
    "yaml-utf-16": "tasks: {}\n".encode("utf-16"),
    "yaml-null-byte": "tasks: {t: 'a\0b'}\n",
    "yaml-tag": "tasks: !!python/object:os.system {t: 1}\n",
    "yaml-merge-key": "base: &b {count: 1}\ntasks: {t: {<<: *b}}\n",
    "yaml-alias-unknown": "tasks: *nothing\n",
    "yaml-alias-cycle": "tasks: &t {t: *t}\n",
    "yaml-alias-bomb": "".join(
        f"k{n}: &k{n} [{', '.join([f'*k{n - 1}' if n else 'x'] * 9)}]\n" for n in range(8)
    ),
    "yaml-deep": "tasks: " + "[" * 100 + "]" * 100 + "\n",
    "yaml-deeper": "tasks: " + "[" * 500 + "\n",
    "yaml-long-list": "tasks: [" + "1," * 60000 + "]\n",
    "yaml-too-large": "#" * 2_200_000,
    "yaml-key-twice": _after("seed: 1\nseed: 2"),
    "yaml-key-list": "? [a]\n: 1\n",
    "yaml-key-number": "1: 2\ntasks: {t: {variants: {a: {" + V + "}}}}\n",
    "yaml-control-characters": 'tasks: {t: {variants: {a: {"\\e[31m\\r\\n": 1}}}}\n',
    "yaml-long-word": f"tasks: {{{'t' * 3000}: {{}}}}\n",
    "yaml-many-mistakes": "".join(f"k{n}: 1\n" for n in range(150)),
    # the top
    "tasks-missing": "nodes: {}\n",
    "tasks-empty": "tasks: {}\n",
    "tasks-nothing": "tasks:\n",
    "tasks-list": "tasks: [a]\n",
    "top-near": _after("node: {}"),
    "top-far": _after("xyz: 1"),
    "top-case": _after("Seed: 1"),
    "seed-fraction": _after("seed: 1.5"),
    "seed-negative": _after("seed: -1"),
    "seed-true": _after("seed: true"),
    "seed-huge": _after("seed: 99999999999999999999"),
    "seed-word": _after("seed: x"),
    "seed-nothing": _after("seed:"),
    "cost-near": _after("cost: {alhpa: 1}"),
    "cost-negative": _after("cost: {alpha: -1}"),
    "cost-nan": _after("cost: {alpha: .nan}"),
    "cost-infinite": _after("cost: {alpha: .inf}"),
    "cost-overflow": _after("cost: {alpha: 1e400}"),
    "cost-unit": _after("cost: {alpha: 1 ms}"),
    # tasks
    "task-name": "tasks:\n  my task: {variants: {a: {" + V + "}}}\n",
    "task-name-dot": "tasks:\n  .t: {variants: {a: {" + V + "}}}\n",
    "task-number": "tasks:\n  t: 5\n",
    "task-neither": _task("count: 1"),
    "task-both": _task("catalog: {name: paper/yolov4}, variants: {a: {" + V + "}}"),
    "task-near": _task("acuracy_target: 0.8, variants: {a: {" + V + "}}"),
    "task-far": _task("xyz: 0.8, variants: {a: {" + V + "}}"),
    "task-no-variants": _task("variants: {}"),
    "task-count-zero": _task("count: 0, variants: {a: {" + V + "}}"),
    "task-count-huge": _task("count: 1000001, variants: {a: {" + V + "}}"),
    "task-count-too-many": _task("count: 200000, variants: {a: {" + V + "}}"),
    "task-counted-twice": f"tasks:\n  t-1: {{variants: {{a: {{{V}}}}}}}\n"
    f"  t: {{count: 2, variants: {{a: {{{V}}}}}}}\n",
    "task-max-instances": _task("max_instances: 1001, variants: {a: {" + V + "}}"),
    "task-idempotent": _task("idempotent: maybe, variants: {a: {" + V + "}}"),
    "target-percent": _task("accuracy_target: 95, variants: {a: {" + V + "}}"),
    "target-negative": _task("accuracy_target: -0.1, variants: {a: {" + V + "}}"),
    "target-word": _task("accuracy_target: high, variants: {a: {" + V + "}}"),
    "target-nan": _task("accuracy_target: .nan, variants: {a: {" + V + "}}"),
    "target-above-all": _task("accuracy_target: 0.95, variants: {a: {" + V + "}}"),
    "target-without-instance": TWO.replace("t:\n", "t:\n    accuracy_target: 0.85\n", 1)
    + "nodes: {n: {hardware: cpu, instances: {t/a: 1}}}\n",
    "deadline-unit": _task("deadline: 300, variants: {a: {" + V + "}}"),
    "deadline-zero": _task("deadline: 0 ms, variants: {a: {" + V + "}}"),
    "deadline-negative": _task("deadline: -1 s, variants: {a: {" + V + "}}"),
    "deadline-too-short": _task("deadline: 9 ms, variants: {a: {" + V + "}}"),
    "deadline-overflow": _task("deadline: 1e400 s, variants: {a: {" + V + "}}"),
    "deadline-unit-wrong": _task("deadline: 1 week, variants: {a: {" + V + "}}"),
    "energy-zero": _task("energy_budget: 0 J, variants: {a: {" + V + "}}"),
    "energy-unsaid": _task("energy_budget: 1 J, variants: {a: {" + V + "}}"),
    "energy-too-little": _task("energy_budget: 1 J, variants: {a: {" + V + ", energy: 2 J}}"),
    "energy-and-target": TWO.replace(
        "t:\n", "t:\n    accuracy_target: 0.89\n    energy_budget: 1.5 J\n", 1
    ),
    "catalog-neither": _task("catalog: {}"),
    "catalog-both": _task("catalog: {name: paper/yolov4, timm: .}"),
    "catalog-unknown": _task("catalog: {name: paper/yolo}"),
    "catalog-hardware": _task("catalog: {name: paper/yolov4, hardware: cpu}"),
    "catalog-folder": _task("catalog: {timm: nowhere}"),
    "catalog-variant": _task("catalog: {name: paper/yolov4, variants: [big]}"),
    "catalog-variants": _task("catalog: {name: paper/yolov4, variants: most}"),
    # variants
    "variant-empty": _one(""),
    "variant-number": "tasks: {t: {variants: {a: 0.9}}}\n",
    "variant-name": "tasks: {t: {variants: {a/b: {" + V + "}}}}\n",
    "variant-near": _one(f"{V}, prize: 1"),
    "variant-far": _one(f"{V}, xyz: 1"),
    "variant-no-service": _one("accuracy: 0.9"),
    "variant-no-accuracy": _one("service: {mean: 1 s}"),
    "variant-accuracy": _one("accuracy: 1.5, service: {mean: 1 s}"),
    "variant-price": _one(f"{V}, price: -1"),
    "variant-size": _one(f"{V}, size: 5"),
    "variant-size-zero": _one(f"{V}, size: 0 B"),
    "variant-size-unit": _one(f"{V}, size: 5 GBit"),
    "variant-energy": _one(f"{V}, energy: 5"),
    "variant-energy-negative": _one(f"{V}, energy: -1 J"),
    "variant-digest": _one(f"{V}, digest: 'sha256:12'"),
    "variant-digest-alone": _one(f"{V}, digest: 'sha256:{'0' * 64}'"),
    "model-missing": _one("model: own.onnx, accuracy: 0.9"),
    "model-no-onnx": _one("model: no-model.onnx, accuracy: 0.9"),
    "model-digest": _one(f"model: no-model.onnx, accuracy: 0.9, digest: 'sha256:{'0' * 64}'"),
    "model-scheme": _one("model: 's3://bucket/own.onnx', accuracy: 0.9"),
    "model-host": _one("model: 'file://host/own.onnx', accuracy: 0.9"),
    "model-https": _one("model: 'https://example.org/own.onnx', accuracy: 0.9"),
    "model-zoo": _one("model: zoo://letters/tiny"),
    "model-zoo-variant": _one("model: zoo://digits/tinny"),
    "model-number": _one("model: 5, accuracy: 0.9"),
    "model-and-remote": _one(f"model: zoo://digits/tiny, {V}, remote: 'http://x/v2/models/y'"),
    "remote-url": _remote("here"),
    "remote-path": _remote("'http://127.0.0.1:1/models'"),
    "remote-scheme": _remote("'ftp://127.0.0.1/v2/models/x'"),
    "remote-no-url": _remote("{concurrency: 1}"),
    "remote-near": _remote("{url: 'http://127.0.0.1:1/v2/models/x', timeuot: 1 s}"),
    "remote-concurrency": _remote("{url: 'http://127.0.0.1:1/v2/models/x', concurrency: 0}"),
    "remote-timeout": _remote("{url: 'http://127.0.0.1:1/v2/models/x', timeout: 0 s}"),
    "remote-key": _remote("{url: 'http://127.0.0.1:1/v2/models/x', key: 'a b'}"),
    # service times
    "service-word": _one("accuracy: 0.9, service: 10 ms"),
    "service-near": _service("maen: 10 ms"),
    "service-both": _service("mean: 1 s, rate: 1/s"),
    "service-neither": _service("distribution: exponential"),
    "service-rate-zero": _service("rate: 0/s"),
    "service-rate-as-time": _service("mean: 5/s"),
    "service-distribution": _service("distribution: normal, mean: 1 s"),
    "service-cv-missing": _service("distribution: lognormal, mean: 1 s"),
    "service-cv-of-none": _service("distribution: exponential, mean: 1 s, cv: 2"),
    "service-cv-small": _service("distribution: hyperexponential, mean: 1 s, cv: 0.5"),
    "service-cv-infinite": _service("distribution: lognormal, mean: 1 s, cv: .inf"),
    "service-stages": _service("distribution: erlang, mean: 1 s, stages: 1001"),
    "service-no-samples": _service("distribution: empirical, samples: []"),
    "service-sample": _service("distribution: empirical, samples: [1 s, 2]"),
    "service-file": _service("distribution: empirical, file: nowhere.csv"),
    "service-file-words": _service("distribution: empirical, file: words.csv"),
    "service-file-empty": _service("distribution: empirical, file: empty.csv"),
    "service-hardware": _service("gtx-980: {mean: 10 ms}"),
    "service-hardware-near": _service("cpu: {mean: 10 ms, rte: 1/s}"),
    # batches
    "batch-near": _batch("size: [1], service: [1 s]"),
    "batch-not-increasing": _batch("sizes: [1, 3, 3], service: [1 s, 2 s, 3 s]"),
    "batch-lengths": _batch("sizes: [1, 3], service: [1 s]"),
    "batch-min-above-max": _batch("sizes: [1, 3], service: [1 s, 2 s], min: 3, max: 1"),
    "batch-min-unlisted": _batch("sizes: [1, 3], service: [1 s, 2 s], min: 2"),
    "batch-no-list": _batch("sizes: 3, service: [1 s]"),
    # nodes
    "node-near": _node("bufer: 3"),
    "node-name": _after("nodes: {'a b': {}}"),
    "node-variant": _node("instances: {t/c: 1}"),
    "node-task": _node("instances: {u/a: 1}"),
    "node-form": _node("pinned: {t: 1}"),
    "node-none": _node("instances: {t/a: 0}"),
    "node-count": _node("instances: {t/a: two}"),
    "node-hardware": _node("hardware: gtx-980, instances: {t/b: 1}"),
    "node-budget": _node("budget: 1 GiB"),
    "node-budget-pinned": _node("budget: 3 GiB, instances: {}, pinned: {t/b: 2}"),
    "node-budget-no-size": "tasks: {t: {variants: {a: {" + V + "}}}}\nnodes: {n: {budget: 1 GB}}\n",
    "node-buffer": _node("buffer: 0"),
    "node-queue": _node("queue: centrl"),
    "node-late": _node("late: never"),
    "node-repository": _node("repository: 1"),
    "node-address": _node("address: 'http://here'"),
    "node-address-port": _node("address: 'here:99999'"),
    "node-peer": _node("peer: 'a b'"),
    "node-control": _node("control: '[::1'"),
    "node-store-near": _node("store: {limt: 1 GB}"),
    "node-store-scheme": _node("store: {schemes: [ftp]}"),
    "node-store-none": _node("store: {schemes: []}"),
    "node-store-host": _node("store: {hosts: ['*.*.org']}"),
    "node-store-private": _node("store: {private: 'yes'}"),
    "node-limits-near": _node("limits: {memroy: 1 GB}"),
    "node-limits-unit": _node("limits: {bodies: 256}"),
    "failure-variant": _node("failures: {t/c: {every: 1 h, for: 1 s}}"),
    "failure-for": _node("failures: {t/a: {every: 1 h}}"),
    "failure-zero": _node("failures: {t/a: {every: 0 h, for: 1 s}}"),
    "failure-not-here": _node("instances: {t/b: 1}, failures: {t/a: {every: 1 h, for: 1 s}}"),
    "outage-too-many": _node("outages: [{instances: {t/a: 2}, at: 1 s, for: 1 s}]"),
    "outage-none": _node("outages: [{instances: {}, at: 1 s, for: 1 s}]"),
    "outage-before": _node("outages: [{instances: {t/a: 1}, at: -1 s, for: 1 s}]"),
    # policies
    "dispatch-word": _after("dispatch: priced"),
    "dispatch-near": _after("dispatch: {policy: price}"),
    "dispatch-far": _after("dispatch: {policy: xyz}"),
    "dispatch-list": _after("dispatch: {policy: [priced]}"),
    "dispatch-none": _after("dispatch: {}"),
    "dispatch-option": _after("dispatch: {policy: tad, d: 2}"),
    "dispatch-option-near": _after("dispatch: {policy: priced, stpe: 1}"),
    "dispatch-step": _after("dispatch: {policy: priced, step: 0}"),
    "dispatch-beta": _after("dispatch: {policy: r-jiq, beta: 0.5}"),
    "dispatch-d": _after("dispatch: {policy: r-jsq-d, d: 0}"),
    "dispatch-rate": _after("dispatch: {policy: r-jiq, rate: 5}"),
    "dispatch-margin": _after("dispatch: {policy: deadline, margin: -0.5}"),
    "dispatch-alpha": _after("dispatch: {policy: least-cost, alpha: -1}"),
    "dispatch-probabilities": _after("dispatch: {policy: alias, probabilities: {a: 0.4}}"),
    "dispatch-probabilities-of": _after("dispatch: {policy: alias, probabilities: {wrong: 1}}"),
    "dispatch-ties": _after("dispatch: {policy: sq, ties: light}"),
    "dispatch-no-target": _after("dispatch: {policy: tad}"),
    "dispatch-file": _after("dispatch: {policy: './nowhere.py:Mine'}"),
    "dispatch-class": _after("dispatch: {policy: './option.py:Yours'}"),
    "dispatch-no-python": _after("dispatch: {policy: './no-python.py:Mine'}"),
    "dispatch-no-build": _after("dispatch: {policy: './idle.py:Idle'}"),
    "dispatch-own-option": _after("dispatch: {policy: './option.py:Mine', x: 1}"),
    **{
        f"dispatch-{name}": _after(f"dispatch: {{policy: './{name}.py:Mine'}}")
        for name in _BODIES
        if name != "option"
    },
    "scheduling-unknown": _after("scheduling: {policy: rl}"),
    "scheduling-checkpoint": _after("scheduling: {policy: rl-po}"),
    "scheduling-slot": _after("scheduling: {policy: lw, slot: 1 s}"),
    "scheduling-event": _after("scheduling: {policy: hand, event: answer}"),
    "scheduling-violations": _after("scheduling: {policy: sa, violations: 0}"),
    "scheduling-overloaded": _after("scheduling: {policy: infaas, overloaded: 2}"),
    "scheduling-share": _after("scheduling: {policy: hand, share: 12}"),
    "scheduling-waiting": _after("scheduling: {policy: hand, waiting: 0}"),
    "placement-near": _after("placement: {policy: infda}"),
    "placement-slot": _after("placement: {policy: greedy, slot: 0 s}"),
    "placement-option": _after("placement: {policy: greedy, refresh: 1}"),
    "placement-learning-rate": _after("placement: {policy: infida, learning_rate: 0}"),
    "placement-refresh": _after("placement: {policy: infida, refresh: 0}"),
    "placement-refresh-word": _after("placement: {policy: infida, refresh: never}"),
    "placement-residual": _after("placement: {policy: infida, residual: none}"),
    "placement-rounding": _after("placement: {policy: infida, rounding: new}"),
    # networks
    "network-number": _after("network: 5"),
    "network-none": _after("network: {}"),
    "network-two": _after(f"network: {{gml: apart.gml, links: [{_AB}]}}"),
    "network-near": _after(f"network: {{link: [{_AB}]}}"),
    "network-max-wait": _after(f"network: {{links: [{_AB}], max_wait: 0 s}}"),
    "link-rtt": _links("{between: [a, b], rtt: -1 ms}"),
    "link-itself": _links("{between: [a, a], rtt: 1 ms}"),
    "link-half": _links("{between: [a], rtt: 1 ms}"),
    "link-three": _links("{between: [a, b, c], rtt: 1 ms}"),
    "link-twice": _links(
        _AB, "{between: [b, a], rtt: 2 ms}", more="nodes: {a: {repository: true}, b: {}}"
    ),
    "link-none": _links(),
    "links-no-repository": _links(_AB, more="nodes: {a: {}, b: {}}"),
    "links-apart": _links(
        _AB,
        "{between: [c, d], rtt: 1 ms}",
        more="nodes: {a: {repository: true}, b: {}, c: {}, d: {}}\nworkload: {t: {arrivals: "
        "{process: constant, rate: 1/s}, entries: {nodes: [c]}}}",
    ),
    "gml-missing": _after("network: {gml: nowhere.gml}"),
    "gml-number": _after("network: {gml: 5}"),
    "gml-broken": _after("network: {gml: no-graph.gml}"),
    "gml-apart": _after("network: {gml: apart.gml}\nnodes: {a: {repository: true}}"),
    "tree-mapping": _after("network: {tree: {}}"),
    "tree-no-repository": _tree("tier: top, nodes: 1"),
    "tree-two-roots": _tree("tier: top, nodes: 2, repository: true"),
    "tree-root-rtt": _tree(_ROOT + ", rtt: 1 ms"),
    "tree-no-rtt": _tree(_ROOT, "tier: base, nodes: 2"),
    "tree-twice": _tree(_ROOT, "tier: top, nodes: 2, rtt: 1 ms"),
    "tree-no-nodes": _tree(_ROOT, "tier: base, nodes: 0, rtt: 1 ms"),
    "tree-too-many": _tree(_ROOT, "tier: base, nodes: 1000000, rtt: 1 ms"),
    "tree-shares": _tree(
        _ROOT, "tier: base, nodes: 4, rtt: 1 ms, budget: [{share: 75 %, size: 1 GiB}]"
    ),
    "tree-address": _tree(_ROOT, "tier: base, nodes: 2, rtt: 1 ms, address: here"),
    "tree-others": _after(f"network: {{others: {{}}, tree: [{{{_ROOT}}}]}}"),
    "tree-too-deep": _tree(
        _ROOT,
        *(f"tier: t{n}, nodes: 1, rtt: 1 ms" for n in range(70)),
        more="workload: {t: {arrivals: {process: constant, rate: 1/s}, entries: {tier: t69}}}",
    ),
    # workloads
    "workload-task": _after("workload:\n  u: {arrivals: {process: poisson, rate: 1/s}}"),
    "workload-near": _after("workload:\n  t: {arivals: {process: poisson, rate: 1/s}}"),
    "arrivals-missing": _after("workload: {t: {}}"),
    "arrivals-near": _arrivals("process: poison, rate: 1/s"),
    "arrivals-no-process": _arrivals("rate: 1/s"),
    "arrivals-key-of-other": _arrivals("process: poisson, rate: 1/s, period: 1 s"),
    "arrivals-rate-zero": _arrivals("process: poisson, rate: 0/s"),
    "arrivals-rate-unit": _arrivals("process: poisson, rate: 120"),
    "arrivals-neither": _arrivals("process: poisson"),
    "arrivals-both": _arrivals("process: poisson, rate: 1/s, load: 0.5"),
    "arrivals-load": _arrivals("process: poisson, load: 0"),
    "arrivals-load-percent": _arrivals("process: poisson, load: 70"),
    "arrivals-amplitude": _arrivals("process: sinusoidal, rate: 1/s, amplitude: 1.5, period: 1 s"),
    "phases-none": _arrivals("process: phases, phases: []"),
    "phase-for": _arrivals("process: phases, phases: [{rate: 1/s}]"),
    "phase-target": _arrivals(
        "process: phases, phases: [{for: 1 s, rate: 1/s, accuracy_target: 0.99}]"
    ),
    "trace-missing": _arrivals("process: trace, file: nowhere.csv"),
    "trace-backwards": _arrivals("process: trace, file: backwards.csv"),
    "trace-words": _arrivals("process: trace, file: words.csv"),
    "trace-empty": _arrivals("process: trace, file: empty.csv"),
    "trace-speed": _arrivals("process: trace, file: backwards.csv, speed: 0"),
    "map-sum": _arrivals("process: map, d0: [[-1]], d1: [[2]]"),
    "map-negative": _arrivals("process: map, d0: [[-1, -1], [1, -2]], d1: [[2, 0], [0, 1]]"),
    "map-zero": _arrivals("process: map, d0: [[0]], d1: [[0]]"),
    "map-shape": _arrivals("process: map, d0: [[-1, 1], [1, -1]], d1: [[0, 0]]"),
    "map-ragged": _arrivals("process: map, d0: [[-1, 1], [1]], d1: [[0, 0], [0, 0]]"),
    "map-apart": _arrivals("process: map, d0: [[-1, 0], [0, -2]], d1: [[1, 0], [0, 2]]"),
    "map-no-arrivals": _arrivals("process: map, d0: [[-1, 1], [1, -1]], d1: [[0, 0], [0, 0]]"),
    "map-word": _arrivals("process: map, d0: [[-1, x], [1, -1]], d1: [[0, 0], [0, 0]]"),
    "map-overflow": _arrivals("process: map, d0: [[-1e400]], d1: [[1e400]]"),
    "entries-neither": _work("entries: {}"),
    "entries-both": _work("entries: {tier: top, nodes: [n]}"),
    "entries-tier": _tree(
        _ROOT,
        more="workload: {t: {arrivals: {process: constant, rate: 1/s}, entries: {tier: tip}}}",
    ),
    "entries-node": _links(
        _AB,
        more="nodes: {a: {repository: true}, b: {}}\nworkload: {t: {arrivals: {process: constant, "
        "rate: 1/s}, entries: {nodes: [c]}}}",
    ),
    "entries-per-task": _tree(
        _ROOT,
        "tier: base, nodes: 2, rtt: 1 ms",
        more="workload: {t: {arrivals: {process: constant, rate: 1/s}, entries: {tier: base, "
        "per_task: 3}}}",
    ),
    "popularity-zipf": _work("popularity: {}"),
    "popularity-negative": _work("popularity: {zipf: -1}"),
    "popularity-shift": _work("popularity: {zipf: 1, sliding: {shift: 0, every: 1 s}}"),
    "popularity-every": _work("popularity: {zipf: 1, sliding: {shift: 1}}"),
}
"""Name -> what stands in the file."""
