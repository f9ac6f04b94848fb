"""Targets over several tasks in a file: what they say, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import DeploymentError, load
from inferway.experiments import findings
from inferway.network.layout import deployed
from inferway.network.targets import targets_at

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


NETWORK = (
    "cost: {alpha: 10}\n"
    "network: {links: [{between: [x, y], rtt: 1 ms}, {between: [z, y], rtt: 1 ms}]}\n"
    "nodes: {x: {}, y: {repository: true}, z: {}}\n"
    "workload:\n"
    "  a: {arrivals: {process: poisson, rate: 10/s}, entries: {nodes: [x, z]}}\n"
    "  b: {arrivals: {process: poisson, rate: 30/s}, entries: {nodes: [x]}}\n"
)


def in_network(target: str) -> str:
    """Write a file where both enter at x, and a at z; a point of accuracy is worth 10 ms."""
    whole = text(f"tasks: [a, b], {target}", more=NETWORK)
    return whole.replace("service:", "size: 1 MB, service:")


def test_a_network_says_at_which_entry_it_is_out_of_reach(write: Write) -> None:
    # Where both enter, b makes up for what a lacks.
    before, of_b = in_network("accuracy: 0.92").split("  b:\n", 1)
    of_b = of_b.replace("accuracy: 0.9,", "accuracy: 0.95,")
    deployment = load(write(f"{before}  b:\n{of_b}"))
    assert {deployment.policy_of(name).policy for name in "ab"} == {"priced"}
    found = findings.check(deployment)
    assert [(one.kind, one.field, one.message) for one in found] == [
        (
            "target-above-the-bound",
            "targets.both",
            "each node keeps it over what enters there, and at z no mix of what may be placed "
            "keeps a mean accuracy of 0.92 over a alone; a mean accuracy of 0.9 is within reach at "
            "z",
        )
    ]


def said_of(file: Path) -> list[tuple[str, str, str]]:
    return [(one.kind, one.field, one.message) for one in findings.check(load(file))]


def test_energy_is_out_of_reach_where_nothing_thrifty_is_worth_a_place(write: Write) -> None:
    # At this alpha a fast answer costs 310 ms and a slow one 140 ms: only the slow ones are placed.
    assert said_of(write(in_network("energy: 2 J"))) == [
        (
            "target-above-the-bound",
            "targets.both",
            "each node keeps it over what enters there, and at x and 1 more no mix of what may be "
            "placed keeps a mean of 2 J per request over a, b alone; a mean of 3 J per request is "
            "within reach at x; placement does not go by energy, so pin what takes less",
        )
    ]


SLOW = "y: {repository: true, pinned: {a/slow: 1, b/slow: 2}}"


def thrifty(target: str, repository: str = SLOW) -> str:
    """Write it where fast answers are worth a place, and say what the repository always runs."""
    return (
        in_network(target)
        .replace("alpha: 10", "alpha: 0.1")
        .replace("y: {repository: true}", repository)
    )


def test_energy_may_hang_on_what_placement_happens_to_do(write: Write) -> None:
    because = (
        "placement does not go by energy, and what always runs within reach of x{} takes 3 J per "
        "request at least, so that it is kept only while thriftier variants happen to run there; "
        "pin some"
    )
    said = said_of(write(thrifty("energy: 2 J")))
    assert said == [("energy-unkept", "targets.both", because.format(" and 1 more"))]
    own = thrifty("accuracy: 0.7").replace("  b:\n", "  b:\n    energy_budget: 2 J\n", 1)
    assert said_of(write(own)) == [("energy-unkept", "tasks.b.energy_budget", because.format(""))]
    # Six of seven answers at x are b's: half of these may be slow, and all of a's.
    more = said_of(write(own.replace("accuracy: 0.7}", "accuracy: 0.9}")))
    (message,) = (message for kind, _, message in more if kind == "target-above-the-bound")
    assert message.endswith("a mean accuracy of 0.8143 is within reach at x")


def test_energy_is_kept_by_what_is_pinned_or_listed(write: Write) -> None:
    fast = SLOW.replace("{a/slow", "{a/fast: 1, b/fast: 1, a/slow")
    assert said_of(write(thrifty("energy: 2 J", fast))) == []
    # Over all that enters at x the mean is 1.5 J where b's 30/s are answered fast, a's 10/s slow.
    one = SLOW.replace("{a/slow", "{b/fast: 1, a/slow")
    (said,) = said_of(write(thrifty("energy: 2 J", one)))
    assert "within reach of z takes 3 J" in said[2]
    # Where nothing is placed, what is listed always runs, and nothing else may.
    listed = thrifty("energy: 2 J").replace("x: {}", "x: {instances: {a/fast: 1, b/fast: 1}}")
    (said,) = said_of(write(listed))
    assert said[0] == "target-above-the-bound"
    assert "and at z no mix" in said[2]
    assert said_of(write(listed.replace("z: {}", "z: {instances: {a/fast: 1}}"))) == []


def test_targets_are_held_against_those_before_them(write: Write) -> None:
    fast = SLOW.replace("{a/slow", "{a/fast: 1, b/fast: 1, a/slow")
    two = thrifty("energy: 2 J}, more: {tasks: [a, b], accuracy: 0.85", fast)
    # Half of the answers may be slow: 0.8.
    ((kind, field, message),) = said_of(write(two))
    assert (kind, field) == ("target-above-the-bound", "targets.more")
    assert message.endswith(
        "at x and 1 more no mix of what may be placed keeps a mean accuracy of 0.85 over a, b "
        "alone, beside the targets before; a mean accuracy of 0.8 is within reach at x"
    )
    assert said_of(write(two.replace("0.85", "0.8"))) == []


def test_prices_of_energy_start_from_what_always_runs(write: Write) -> None:
    # Fast answers take 3 J here, and slow ones 1 J, 30 ms more; 31 ms where they always run.
    whole = thrifty("energy: 2 J").replace("energy: 1 J", "energy: 9 J")
    whole = whole.replace("energy: 3 J", "energy: 1 J").replace("energy: 9 J", "energy: 3 J")
    for at_x, start in (("{a/fast: 1, b/fast: 1}", 0.0155), ("{a/slow: 1, b/slow: 1}", 0.015)):
        file = write(whole.replace("x: {}", f"x: {{pinned: {at_x}}}"))
        network, _ = deployed(deployment := load(file))
        (told,) = targets_at(deployment, network, 0, {"a": 10.0, "b": 30.0})
        assert told["start"] == pytest.approx(start)


def test_what_every_entry_can_keep_is_nothing_to_say(write: Write) -> None:
    assert not [*findings.check(load(write(in_network("accuracy: 0.9"))))]


def test_a_node_that_nothing_of_a_task_runs_at_is_told_of_its_targets(write: Write) -> None:
    # No request comes by z, and a runs on what y has alone.
    whole = in_network("accuracy: 0.9").replace("nodes: [x, z]", "nodes: [x]")
    before, of_b = whole.replace("y: {repo", "y: {hardware: fast, repo").split("  b:\n", 1)
    before = before.replace("service: {mean", "service: {fast: {mean").replace("s}}", "s}}}")
    network, _ = deployed(deployment := load(write(f"{before}  b:\n{of_b}")))
    told = [targets_at(deployment, network, v, {"a": 10.0}) for v in range(3)]
    assert [[one["tasks"] for one in of] for of in told] == [[["a", "b"]]] * 3
