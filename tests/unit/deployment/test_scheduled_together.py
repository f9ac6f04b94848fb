"""The key that names the tasks of one scheduling policy, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import DeploymentError, load
from inferway.twin.simulation import groups_of, with_sharers

Write = Callable[..., Path]


def text(tasks: str, *, b: str = "", more: str = "") -> str:
    """Write a file whose `scheduling` stands in line 8; task b has something added."""
    variants = "variants: {v: {accuracy: 0.7, service: {mean: 10 ms}}}"
    return (
        "tasks:\n"
        f"  a: {{deadline: 100 ms, {variants}}}\n"
        f"  b: {{deadline: 100 ms, {b}{variants}}}\n"
        f"  c: {{deadline: 100 ms, dispatch: {{policy: deadline}}, {variants}}}\n"
        "nodes:\n"
        "  n: {buffer: 4, instances: {a/v: 2, b/v: 2, c/v: 2}}\n"
        "workload: {a: &w {arrivals: {process: poisson, rate: 9/s}}, b: *w, c: *w}\n"
        f"scheduling: {{policy: rl-po, checkpoint: p.npz{tasks}}}\n{more}"
    )


def test_tasks_of_one_policy(write: Write) -> None:
    deployment = load(write(text(", tasks: [b, a]")))
    assert deployment.scheduled_together == ("b", "a")
    assert deployment.scheduling_of("c") is None
    assert groups_of(deployment, ("a", "b", "c")) == [("a", "b"), ("c",)]
    assert with_sharers(deployment, ("b",)) == ("a", "b")
    with pytest.raises(ValueError, match="schedules a together with b, which is left out"):
        groups_of(deployment, ("a", "c"))


def test_each_task_by_itself_without_it(write: Write) -> None:
    deployment = load(write(text("")))
    assert deployment.scheduled_together == ()
    assert groups_of(deployment, ("a", "b")) == [("a",), ("b",)]
    one = load(write(text(", tasks: [a]", b="dispatch: {policy: deadline}, ")))
    assert one.scheduled_together == ()


@pytest.mark.parametrize(
    ("tasks", "more", "field", "sentence"),
    [
        ("a, b, d", {}, "tasks[2]", "there is no task d; known here: a, b, c"),
        ("a, b, a", {}, "tasks[2]", "a is named twice"),
        (
            "a, b, c",
            {},
            "tasks[2]",
            "c has a `dispatch` of its own, so nothing schedules it; leave out one of the two",
        ),
        (
            "a, b",
            {"b": "count: 2, "},
            "tasks[1]",
            "b counts 2 tasks, and one policy schedules single ones; list them under names of "
            "their own",
        ),
        (
            "a",
            {},
            "tasks",
            "b would be scheduled, too: name all that are, or give a task a `dispatch` of its own",
        ),
    ],
)
def test_a_wrong_one_is_refused_at_its_line(
    write: Write, tasks: str, more: dict[str, str], field: str, sentence: str
) -> None:
    with pytest.raises(DeploymentError) as refused:
        load(write(text(f", tasks: [{tasks}]", **more)))
    problems = [one for one in refused.value.problems if one.field.startswith("scheduling")]
    (problem,) = problems
    assert (problem.field, problem.sentence) == (f"scheduling.{field}", sentence)
    assert problem.line == 8


def test_no_other_policy_takes_it(write: Write) -> None:
    with pytest.raises(DeploymentError, match=r"scheduling\.tasks"):
        load(write(text(", tasks: [a, b]").replace("rl-po, checkpoint: p.npz", "lw")))


def test_devices_that_are_given_out_anew_have_none(write: Write) -> None:
    whole = text(", tasks: [a, b]", more="placement: {policy: assign}\n")
    whole = whole.replace("buffer: 4", "buffer: 4, devices: {cpu: {cores: 2}}")
    with pytest.raises(DeploymentError, match="gives the node's devices out anew; give a `dispa"):
        load(write(whole))
