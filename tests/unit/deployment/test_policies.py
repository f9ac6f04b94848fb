from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferway.deployment import DeploymentError, PolicySpec, load

Write = Callable[..., Path]
TASK = "tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}}}\n"


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("fastest-only", {}),
        ("most-accurate-only", {}),
        ("jiq-fast", {}),
        ("jiq-accurate", {}),
        ("tad", {}),
        ("tad-op", {}),
        ("r-jiq, rate: 2/s", {"rate": 2.0, "window": None, "beta": None}),
        ("r-jsq, window: 5 s", {"rate": None, "window": 5.0, "beta": None}),
        ("r-jsq-d, beta: 0.25", {"rate": None, "window": None, "beta": 0.25, "d": 2}),
        ("priced, price: 0", {"price": 0.0, "step": 1.0, "wait": 2.3}),
        ("deadline", {"margin": 2.0}),
        ("alias", {"probabilities": None}),
        ("sq, ties: uniform", {"ties": "uniform"}),
        ("hw-e", {}),
    ],
)
def test_dispatch(write: Write, written: str, options: dict[str, object]) -> None:
    deployment = load(write(f"{TASK}dispatch: {{policy: {written}}}\n"))
    assert deployment.dispatch == PolicySpec(written.partition(",")[0], options)


@pytest.mark.parametrize(
    "name",
    ["infida", "infida-offline", "static-greedy", "olag", "greedy", "exact", "repository-only"],
)
def test_placement(write: Write, name: str) -> None:
    placement = load(write(f"{TASK}placement: {{policy: {name}, slot: 30 s}}\n")).placement
    assert placement is not None
    assert (placement.policy, placement.options["slot"]) == (name, 30.0)


@pytest.mark.parametrize("name", ["rl-po", "rl-fo", "rl-po-b", "rl-fo-b"])
def test_learned_scheduling(write: Write, name: str) -> None:
    path = write(f"{TASK}scheduling: {{policy: {name}, checkpoint: p.npz}}\n")
    here = path.resolve().parent
    options = {"checkpoint": here / "p.npz", "slot": 1.0, "event": None, "tasks": None}
    assert load(path).scheduling == PolicySpec(name, options)


@pytest.mark.parametrize(
    ("written", "options", "implied"),
    [
        ("lw", {}, PolicySpec("alias")),
        ("hw", {}, PolicySpec("alias")),
        ("hw-e", {}, PolicySpec("hw-e")),
        ("sq", {"ties": "heavy"}, PolicySpec("sq", {"ties": "heavy"})),
        ("sq, ties: uniform", {"ties": "uniform"}, PolicySpec("sq", {"ties": "uniform"})),
        ("sa", {"slot": 1.0, "event": None, "violations": 0.02}, PolicySpec("alias")),
        ("infaas", {"slot": 0.1, "event": None, "overloaded": 0.5}, PolicySpec("alias")),
        (
            "hand, slot: 2 s, event: rejection",
            {"slot": 2.0, "event": "rejection", "share": 0.12, "waiting": 3},
            PolicySpec("alias"),
        ),
    ],
)
def test_scheduling_by_rule(
    write: Write, written: str, options: dict[str, Any], implied: PolicySpec
) -> None:
    text = f"{TASK}dispatch: {{policy: jiq-fast}}\nscheduling: {{policy: {written}}}\n"
    found = load(write(text))
    assert found.scheduling == PolicySpec(written.partition(",")[0], options)
    assert found.policy_of("t") == implied


def test_a_task_with_a_dispatch_policy_of_its_own_is_not_scheduled(write: Write) -> None:
    own = TASK.replace("tasks: {t: {", "tasks: {t: {dispatch: {policy: jiq-fast}, ")
    found = load(write(f"{own}scheduling: {{policy: lw}}\n"))
    assert found.scheduling_of("t") is None
    assert found.policy_of("t").policy == "jiq-fast"


def test_alias_by_variant(write: Write) -> None:
    text = f"{TASK}dispatch: {{policy: alias, probabilities: {{a: 100 %}}}}\n"
    assert load(write(text)).dispatch == PolicySpec("alias", {"probabilities": {"a": 1.0}})


MINE = "from typing import NamedTuple\n\nclass Cheapest(NamedTuple):\n    cap: float = 1.0\n"


def test_a_policy_in_a_file_takes_any_options(write: Write) -> None:
    write(MINE, "mine.py")
    text = TASK + "dispatch: {policy: './mine.py:Cheapest', cap: 2.5, names: [a, b]}\n"
    assert load(write(text)).dispatch == PolicySpec(
        "./mine.py:Cheapest", {"cap": 2.5, "names": ["a", "b"]}
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (MINE, "mine.py has no Cheaper; it has NamedTuple, Cheapest"),
        ("def f(:\n", "mine.py is not Python in line 1"),
        ("", "mine.py has no Cheaper; it has nothing"),
    ],
)
def test_a_file_without_the_policy(write: Write, code: str, said: str) -> None:
    write(code, "mine.py")
    with pytest.raises(DeploymentError, match=r"d\.yaml:2: dispatch\.policy: ") as caught:
        load(write(TASK + "dispatch: {policy: 'mine.py:Cheaper'}\n"))
    assert said in str(caught.value)


def test_reading_a_policys_file_does_not_run_it(write: Write) -> None:
    write("raise SystemExit\nclass Cheapest: ...\n", "mine.py")
    load(write(TASK + "dispatch: {policy: 'mine.py:Cheapest'}\n"))


@pytest.mark.parametrize(
    ("task", "policy"),
    [
        ("", "least-cost"),
        ("deadline: 1 s, ", "deadline"),
        ("accuracy_target: 0.7, ", "priced"),
        ("accuracy_target: 0.7, deadline: 1 s, ", "priced"),
        ("dispatch: {policy: jiq-fast}, ", "jiq-fast"),
    ],
)
def test_the_default_policy_of_a_network(
    write: Callable[..., Path], task: str, policy: str
) -> None:
    variants = "variants: {a: {accuracy: 0.8, service: {mean: 1 ms}}}"
    deployment = load(
        write(
            f"tasks: {{t: {{count: 2, {task}{variants}}}}}\n"
            "nodes: {a: {repository: true}, b: {}}\n"
            "network: {links: [{between: [a, b], rtt: 1 ms}]}\n"
        )
    )
    assert deployment.policy_of("t").policy == policy
    assert deployment.policy_of("t-1") == deployment.policy_of("t")
    with pytest.raises(KeyError):
        deployment.policy_of("t-2")


@pytest.mark.parametrize("policy", ["infida", "exchange"])
def test_waits_are_no_delays_where_they_have_a_price(write: Write, policy: str) -> None:
    section = f"placement: {{policy: {policy}, delays: %s, waiting: %s}}\n"
    with pytest.raises(DeploymentError, match=r"d\.yaml:3: placement\.delays: with `waiting`"):
        load(write(f"{TASK}\n{section % ('sojourns', 'true')}"))
    for delays, waiting in (("sojourns", "false"), ("measured", "true")):
        found = load(write(TASK + section % (delays, waiting))).placement
        assert found is not None
        assert found.options["delays"] == delays


@pytest.mark.parametrize("peak", ["p200", "p0", "0", "-1", ".inf", "true", "1.2 s", "[1, 2]"])
def test_a_peak_that_is_none_is_refused_with_one_sentence(tmp_path: Path, peak: str) -> None:
    file = tmp_path / "shared.yaml"
    file.write_text(
        "tasks: {a: {variants: {one: {accuracy: 0.8, service: {mean: 1 ms}}}}}\n"
        "nodes: {here: {devices: {cpu: {cores: 2}}}}\n"
        f"placement: {{policy: assign, peak: {peak}}}\n"
    )
    with pytest.raises(DeploymentError) as error:
        load(file)
    (problem,) = error.value.problems
    assert "placement.peak: a peak is a number of times the mean, such as 1.2" in str(problem)
