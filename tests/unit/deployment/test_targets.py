"""Targets over several tasks in a file: what they say, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import DeploymentError, load
from inferway.experiments import findings

Write = Callable[..., Path]


def text(target: str, *, a: str = "", b: str = "", more: str = "") -> str:
    """Write a file whose target stands in line 10; tasks a and b have something added."""
    variants = (
        "    variants:\n"
        "      fast: {accuracy: 0.7, energy: 1 J, service: {mean: 10 ms}}\n"
        "      slow: {accuracy: 0.9, energy: 3 J, service: {mean: 40 ms}}\n"
    )
    tasks = "".join(
        f"  {name}:\n{f'    {own}{chr(10)}' if own else ''}{variants}"
        for name, own in (("a", a), ("b", b))
    )
    return f"tasks:\n{tasks}targets: {{both: {{{target}}}}}\n{more}"


def test_it_is_of_accuracy_or_of_energy(write: Write) -> None:
    found = load(write(text("tasks: [b, a], accuracy: 0.8"))).targets["both"]
    assert (found.name, found.tasks, found.accuracy, found.energy) == (
        "both", ("b", "a"), 0.8, None
    )  # fmt: skip
    deployment = load(write(text("tasks: [a, b], energy: 1500 mJ")))
    assert deployment.targets["both"].energy == 1.5
    assert deployment.targets_over("a") == [deployment.targets["both"]]


def test_its_tasks_are_dispatched_by_price(write: Write) -> None:
    deployment = load(write(text("tasks: [a, b], energy: 2 J")))
    assert {deployment.policy_of(name).policy for name in "ab"} == {"priced"}


@pytest.mark.parametrize(
    ("target", "field", "sentence"),
    [
        ("tasks: [a, c], accuracy: 0.8", ".tasks[1]", "there is no task c; known here: a, b"),
        ("tasks: [a, b, a], accuracy: 0.8", "", "a is named twice among its tasks"),
        ("tasks: [a, b]", "", "a target has either `accuracy` or `energy`"),
        (
            "tasks: [a, b], accuracy: 0.8, energy: 2 J",
            "",
            "a target has either `accuracy` or `energy`",
        ),
        (
            "tasks: [a], accuracy: 0.8",
            "",
            "a target is over two tasks or more; what one task promises is its own "
            "`accuracy_target`",
        ),
        (
            "tasks: [a, b], accuracy: 0.95",
            ".accuracy",
            "0.95 is above the best variant of its tasks, a/slow, whose accuracy is 0.9",
        ),
        (
            "tasks: [a, b], energy: 0.5 J",
            ".energy",
            "500 mJ is less than any variant of its tasks takes; the least is a/fast with 1 J",
        ),
    ],
)
def test_a_wrong_one_is_refused_at_its_line(
    write: Write, target: str, field: str, sentence: str
) -> None:
    with pytest.raises(DeploymentError) as refused:
        load(write(text(target)))
    (problem,) = refused.value.problems
    assert problem.sentence == sentence
    assert problem.field == f"targets.both{field}"
    assert problem.line == 10


def test_variants_say_what_it_is_of(write: Write) -> None:
    whole = text("tasks: [a, b], energy: 2 J").replace("energy: 3 J, ", "", 1)
    with pytest.raises(DeploymentError) as refused:
        load(write(whole))
    (problem,) = refused.value.problems
    assert problem.field == "tasks.a.variants.slow"
    assert problem.sentence == "needs `energy`, as the target both limits it"
    whole = text("tasks: [a, b], accuracy: 0.8").replace("accuracy: 0.9, ", "", 1)
    with pytest.raises(DeploymentError, match="a target over a needs every accuracy, but slow"):
        load(write(whole))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"more": "dispatch: {policy: tad-op}\n", "b": "dispatch: {policy: priced}"},
            "tad-op, which dispatches a, keeps no target over several tasks; priced does",
        ),
        (
            {"more": "scheduling: {policy: lw}\n", "a": "dispatch: {policy: priced}"},
            "lw, which dispatches b, keeps no target over several tasks; priced does",
        ),
        (
            {"more": "network: {links: [{between: [x, y], rtt: 1 ms}]}\nnodes: {x: {}, y: {}}\n"},
            "they are kept by one balance of a site's answers, and the nodes of a `network` "
            "share none; give each task its own",
        ),
        (
            {"b": "count: 3"},
            "b counts 3 tasks, and a target is over single ones; list them under names of their "
            "own",
        ),
    ],
)
def test_who_cannot_keep_it_is_refused(write: Write, more: dict[str, str], sentence: str) -> None:
    with pytest.raises(DeploymentError) as refused:
        load(write(text("tasks: [a, b], accuracy: 0.8", **more)))
    assert sentence in [one.sentence for one in refused.value.problems]


def rated(a: int, b: int) -> str:
    return (
        "nodes: {n: {instances: {a/fast: 1, a/slow: 1, b/fast: 1, b/slow: 1}}}\nworkload:\n"
        f"  a: {{arrivals: {{process: poisson, rate: {a}/s}}}}\n"
        f"  b: {{arrivals: {{process: poisson, rate: {b}/s}}}}\n"
    )


def test_the_check_says_how_much_is_within_reach_at_the_rates(write: Write) -> None:
    reached = load(write(text("tasks: [a, b], accuracy: 0.8", more=rated(20, 20))))
    assert not findings.cautions(reached)
    # Both slow instances are full with 50 of 80 requests a second.
    beyond = load(write(text("tasks: [a, b], accuracy: 0.84", more=rated(40, 40))))
    (caution,) = findings.cautions(beyond)
    assert (caution.kind, caution.field) == ("target-above-the-bound", "targets.both")
    assert caution.message == (
        "no policy keeps a mean accuracy of 0.84 over a, b at the workload's rates, beside the "
        "tasks' own; a mean accuracy of 0.825 is within reach"
    )


def test_an_instance_has_to_reach_it(write: Write) -> None:
    nodes = "nodes: {n: {instances: {a/fast: 1, b/fast: 1}}}\n"
    found = findings.check(load(write(text("tasks: [a, b], accuracy: 0.8", more=nodes))))
    (refused,) = found.refused
    assert (refused.kind, refused.field) == ("target-out-of-reach", "targets.both")
    assert refused.message == (
        "no instance of a, b reaches a mean accuracy of 0.8; the best has a mean accuracy of 0.7"
    )
