"""Schedulers on real servers: slots, files that change them, instances that fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.live import ServeError

FILE = """
tasks:
  digits:
    deadline: 300 ms
    variants:
      tiny: {{model: zoo://digits/tiny, service: {{mean: 1 ms}}{batch}}}
      large: {{model: zoo://digits/large, service: {{mean: 4 ms}}{batch}}}
nodes:
  here: {{instances: {{digits/tiny: 1, digits/large: 2}}, buffer: 15, late: {late}}}
scheduling: {scheduling}
"""
BATCH = ", batch: {sizes: [1, 3], service: [4 ms, 9 ms]}"
VARIANTS = ("tiny", "large")


OBSERVED = {((1, 2), False): 99, ((1, 1), False): 66, ((1, 2), True): 102, ((2, 2), False): 132}
"""Numbers that a policy sees, for so many instances, and with batches."""


def trained(
    place: Path,
    counts: tuple[int, int] = (1, 2),
    favorite: int = 0,
    batches: bool = False,
    any_part: bool = False,
) -> Path:
    """A network that says the same whatever it sees: nearly all to one server, pairs of 3.

    One for any part of its servers has the first of the others as second choice, and so on.
    """
    about: dict[str, Any] = {
        "policy": "rl-po-b" if batches else "rl-po",
        "task": "digits",
        "variants": VARIANTS,
        "counts": counts,
        "accuracies": (0.0, 0.0),
        "service_s": (1e-3, 4e-3),
        "buffer": 15,
        "deadline_s": 0.3,
        "slot_s": 1.0,
        "batch_sizes": ((1, 3), (1, 3)) if batches else None,
        "batch_service_s": ((4e-3, 9e-3), (4e-3, 9e-3)) if batches else None,
        "phases": None,
        "longest_phase_s": None,
        "outages": ((3600.0, 60.0), (3600.0, 60.0)) if any_part else None,
        "slots": 0,
        "seed": 0,
        "command": "",
        "result": {},
        "schema": 1,
    }
    outputs = sum(counts) + (6 if batches else 0)
    seen = OBSERVED[counts, batches] + any_part * sum(counts)
    sizes = [(seen, 90), (90, 60), (60, outputs)]
    arrays: dict[str, Any] = {
        f"weight_{i}": np.zeros(size, np.float32) for i, size in enumerate(sizes)
    }
    arrays |= {f"bias_{i}": np.zeros(size[1], np.float32) for i, size in enumerate(sizes)}
    if any_part:
        arrays["bias_2"][: sum(counts)] = -50.0 * np.arange(sum(counts))
    arrays["bias_2"][favorite] = 50.0
    for first in range(sum(counts), outputs, 3):  # (1, 1), (1, 3), (3, 3)
        arrays["bias_2"][first + 2] = 1.0
    np.savez(place, about=np.array(json.dumps(about)), **arrays)
    return place


@pytest.fixture
def deployment(tmp_path: Path) -> Callable[..., inferway.Deployment]:
    def write(scheduling: str, batch: str = "", late: str = "drop") -> inferway.Deployment:
        file = tmp_path / "digits.yaml"
        file.write_text(FILE.format(scheduling=scheduling, batch=batch, late=late))
        return inferway.load(file)

    return write


def ask(running: Any, count: int = 1, task: str = "digits") -> list[str]:
    """Which variant answered each of so many requests, one after the other."""
    image = load_testset().images[:1]
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": list(image.shape),
        "parameters": {"binary_data_size": image.nbytes},
    }
    text = json.dumps({"inputs": [tensor]}).encode()
    head = f"Inference-Header-Content-Length: {len(text)}\r\nX-Request-Id: last\r\n"
    body, path = text + image.tobytes(), f"/v2/models/{task}/infer"
    answers = [running.infer(body, head, path) for _ in range(count)]
    assert {answer.status for answer in answers} == {200}, answers[0].body
    return [answer.json["model_version"] for answer in answers]


@pytest.mark.parametrize(
    ("scheduling", "variants"),
    [
        ("{policy: lw}", {"tiny"}),
        ("{policy: hw}", {"large"}),
        ("{policy: hw-e}", {"large"}),
        ("{policy: sq}", {"large"}),
        ("{policy: hand, slot: 10 ms}", {"large"}),
        ("{policy: infaas}", {"tiny", "large"}),
    ],
)
def test_every_rule_serves(
    start: Any, deployment: Any, scheduling: str, variants: set[str]
) -> None:
    running = start(deployment=deployment(scheduling))
    found = set(ask(running, 30))
    assert found == variants
    status = running.get("/status", admin=True).json["tasks"]["digits"]
    if "hw-e" in scheduling or "sq" in scheduling:
        assert (status["slots"], status["routing"]) == (None, None)
    else:
        assert status["slots"] >= 1
        assert sum(status["routing"]) == pytest.approx(1.0)


@pytest.mark.parametrize("scheduling", ["{policy: sa}", "{policy: rl-fo, checkpoint: x.npz}"])
def test_what_goes_by_the_workloads_state_is_refused(
    start: Any, deployment: Any, scheduling: str
) -> None:
    with pytest.raises(ServeError, match=r"goes by the workload.s state, which a live"):
        start(deployment=deployment(scheduling))


def test_a_trained_policy_serves_and_another_is_applied(
    start: Any, deployment: Any, tmp_path: Path
) -> None:
    trained(tmp_path / "tiny.npz")
    trained(tmp_path / "large.npz", favorite=2)
    learned = "{policy: rl-po, checkpoint: %s}"
    running = start(deployment=deployment(learned % "tiny.npz"))
    assert set(ask(running, 10)) == {"tiny"}
    told = running.get("/v2/models/digits/explain/last").json
    assert [each["probability"] for each in told["candidates"]] == [[1.0], [0.0, 0.0]]
    assert "the scheduler's probabilities drew tiny" in told["reason"]
    text = running.get("/metrics", admin=True).body.decode()
    line = r'inferway_routing_probability_ratio\{instance="0",task="digits",variant="tiny"\} (\S+)'
    found = re.search(line, text)
    assert found is not None
    assert float(found[1]) == pytest.approx(1.0)
    assert 'inferway_scheduling_slots_total{task="digits"}' in text
    # The scheduler of a running server changes, with no request lost: another checkpoint, a rule.
    running.wait(running.server.apply(deployment(learned % "large.npz")))
    assert set(ask(running, 10)) == {"large"}
    running.wait(running.server.apply(deployment("{policy: lw}")))
    assert set(ask(running, 10)) == {"tiny"}
    wrong = trained(tmp_path / "wrong.npz", counts=(1, 1))
    with pytest.raises(ServeError, match=rf"scheduling: .*{wrong.name}"):
        running.wait(running.server.apply(deployment(learned % "wrong.npz")))
    assert set(ask(running, 10)) == {"tiny"}


def test_a_store_follows_failures(start: Any, deployment: Any, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    trained(tmp_path / "store" / "all.npz")
    trained(tmp_path / "store" / "fewer.npz", counts=(1, 1), favorite=1)
    running = start(deployment=deployment("{policy: rl-po, checkpoint: store}"))
    site = running.site

    def mark(server: int, healthy: bool) -> Any:
        running.call(lambda: site.pool._mark(server, healthy, "test"))
        return running.call(lambda: site.pool.dispatcher.routing)

    assert mark(0, True) == pytest.approx([1, 0, 0])
    # One of the two large ones fails: the policy for one and one takes over.
    assert mark(2, False) == pytest.approx([0, 1, 0])
    assert set(ask(running, 5)) == {"large"}
    # For none of these is there a policy.
    assert mark(1, False) is None
    assert set(ask(running, 5)) == {"tiny"}
    mark(1, True)
    assert mark(2, True) == pytest.approx([1, 0, 0])


def test_one_policy_follows_whatever_instances_there_are(
    start: Any, deployment: Any, tmp_path: Path
) -> None:
    """An instance fails and returns; applied files take instances away and give them back."""
    trained(tmp_path / "any.npz", counts=(2, 2), favorite=2, any_part=True)
    running = start(deployment=deployment("{policy: rl-po, checkpoint: any.npz}"))
    site = running.site

    def mark(server: int, healthy: bool) -> Any:
        running.call(lambda: site.pool._mark(server, healthy, "test"))
        return running.call(lambda: site.pool.dispatcher.routing)

    def apply(instances: str) -> Any:
        text = (tmp_path / "digits.yaml").read_text()
        written = re.sub(r"instances: \{[^}]*\}", f"instances: {{{instances}}}", text)
        (tmp_path / "other.yaml").write_text(written)
        running.wait(running.server.apply(inferway.load(tmp_path / "other.yaml")))
        return running.call(lambda: site.pool.dispatcher.routing)

    # One tiny and two large ones, of the two and two that it was trained for.
    assert mark(0, True) == pytest.approx([0, 1, 0])
    assert set(ask(running, 5)) == {"large"}
    assert mark(1, False) == pytest.approx([1, 0, 0])
    assert set(ask(running, 5)) == {"tiny"}
    assert mark(0, False) == pytest.approx([0, 0, 1])
    assert set(ask(running, 5)) == {"large"}
    assert mark(2, False) is None
    for server in range(3):
        mark(server, True)
    assert apply("digits/tiny: 2, digits/large: 1") == pytest.approx([0, 0, 1])
    assert set(ask(running, 5)) == {"large"}
    assert apply("digits/tiny: 1") == pytest.approx([1])
    assert set(ask(running, 5)) == {"tiny"}
    assert apply("digits/tiny: 2, digits/large: 2") == pytest.approx([0, 0, 1, 0])
    assert set(ask(running, 5)) == {"large"}
    with pytest.raises(ServeError, match="2 tiny and 2 large or fewer of each, not for 2 tiny and"):
        apply("digits/tiny: 2, digits/large: 3")
    assert set(ask(running, 5)) == {"large"}


def test_learned_batch_sizes_are_followed(
    start: Any, deployment: Any, tmp_path: Path, until: Any
) -> None:
    trained(tmp_path / "b.npz", favorite=1, batches=True)
    scheduled = deployment("{policy: rl-po-b, checkpoint: b.npz}", BATCH, "serve")
    running = start(deployment=scheduled, record=tmp_path / "run")
    site = running.site
    wires = [running.wire() for _ in range(3)]
    image = load_testset().images[:1]
    shape = list(image.shape)
    data = image.ravel().tolist()
    tensor = {"name": "image", "datatype": "FP32", "shape": shape, "data": data}
    for wire in wires[:2]:
        wire.send(running.post({"inputs": [tensor]}))
    until(lambda: running.call(lambda: site.in_flight) == 2)
    wires[2].send(running.post({"inputs": [tensor]}))
    assert [wire.read().status for wire in wires] == [200] * 3
    assert site.stats.batches(1)[2] == 1
    running.wait(running.server.stop())
    found = inferway.replay(tmp_path / "run" / "digits", requests=None)
    assert (found.requests, found.batches, found.differences) == (3, 3, ())


SEVERAL = """
tasks:
  digits: {{deadline: 60 s, variants: {{{variants}}}}}
  forms: {{deadline: 60 s, variants: {{{variants}}}}}
nodes:
  here:
    instances: {{digits/tiny: 1, digits/large: 2, forms/tiny: 1, forms/large: 2}}
    buffer: 15
    late: serve
scheduling: {{policy: rl-po, checkpoint: {checkpoint}, tasks: [forms, digits]}}
"""
BOTH = ", ".join(
    f"{name}: {{model: zoo://digits/{name}, service: {{mean: {mean}}}}}"
    for name, mean in (("tiny", "1 ms"), ("large", "4 ms"))
)


def trained_together(place: Path, counts: dict[str, tuple[int, int]], **favorites: int) -> None:
    """One policy for tasks: nearly all of each goes to one server, whatever it sees."""
    alone = [dict(np.load(trained(place, own, favorites[task]))) for task, own in counts.items()]
    first, *others = (
        json.loads(str(one["about"])) | {"task": task, "deadline_s": 60.0}
        for task, one in zip(counts, alone, strict=True)
    )
    arrays: dict[str, Any] = dict(alone[0])
    arrays["weight_0"] = np.concatenate([one["weight_0"] for one in alone])
    for name in ("weight_2", "bias_2"):
        arrays[name] = np.concatenate([one[name] for one in alone], axis=-1)
    arrays["about"] = np.array(json.dumps(first | {"others": others}))
    np.savez(place, **arrays)


def test_one_policy_serves_several_tasks(start: Any, tmp_path: Path) -> None:
    """Its store goes by the instances of all, another is applied, and what was done is replayed."""

    def read(checkpoint: str) -> inferway.Deployment:
        file = tmp_path / "several.yaml"
        file.write_text(SEVERAL.format(variants=BOTH, checkpoint=checkpoint))
        return inferway.load(file)

    def routings() -> list[list[float] | None]:
        pools = [running.server.sites[name].pool for name in ("forms", "digits")]
        each = running.call(lambda: [pool.dispatcher.routing for pool in pools])
        return [None if one is None else one.round(6).tolist() for one in each]

    def mark(task: str, server: int, healthy: bool) -> None:
        running.call(lambda: running.server.sites[task].pool._mark(server, healthy, "test"))

    whole = {"forms": (1, 2), "digits": (1, 2)}
    (tmp_path / "store").mkdir()
    trained_together(tmp_path / "store" / "all.npz", whole, forms=0, digits=2)
    trained_together(tmp_path / "store" / "fewer.npz", whole | {"forms": (1, 1)}, forms=1, digits=0)
    trained_together(tmp_path / "other.npz", whole, forms=1, digits=0)
    running = start(deployment=read("store"), record=tmp_path / "run")
    assert routings() == [[1, 0, 0], [0, 0, 1]]
    assert [set(ask(running, 5, task)) for task in whole] == [{"tiny"}, {"large"}]
    # An instance of one task fails, and both are routed by the policy for those that are left.
    mark("forms", 2, False)
    assert routings() == [[0, 1, 0], [1, 0, 0]]
    assert [set(ask(running, 5, task)) for task in whole] == [{"large"}, {"tiny"}]
    # For none of these is there a policy, so each request is left to `deadline`.
    mark("digits", 0, False)
    assert routings() == [None, None]
    mark("digits", 0, True)
    mark("forms", 2, True)
    assert routings() == [[1, 0, 0], [0, 0, 1]]
    status = running.get("/status", admin=True).json["tasks"]
    assert min(status[task]["slots"] for task in whole) >= 1
    running.wait(running.server.apply(read("other.npz")))
    assert routings() == [[0, 1, 0], [1, 0, 0]]
    assert [set(ask(running, 5, task)) for task in whole] == [{"large"}, {"tiny"}]
    running.wait(running.server.stop())
    for task in whole:
        found = inferway.replay(tmp_path / "run" / task, requests=None)
        assert (found.requests, found.differences) == (10, ())
