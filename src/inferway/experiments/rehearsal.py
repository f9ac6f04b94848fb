"""Simulations as HTML pages: the promise in words, the bound beside, figures, and all tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final

from inferway.deployment import Deployment
from inferway.dispatch.bounds import Bound
from inferway.dispatch.promise import VERDICTS, Promise, promise_of
from inferway.experiments import findings, networks, simulation
from inferway.experiments.document import document, drawn, laid_out, section, strip
from inferway.experiments.simulation import SimulationResult
from inferway.experiments.sweep import Sweep, draw
from inferway.experiments.text import number, percent, seconds
from inferway.machine import made_on
from inferway.network import topology_of
from inferway.twin.result import NetworkResult, TaskResult
from inferway.version import __version__

_FIGURES: Final = {
    "gain": "Gain per request and models fetched, by slot",
    "allocation": "Copies per node, by tier and variant",
    "map": "Map of the nodes, by what each served",
    "latency": "Mean latency, by slot",
}


def of_site(deployment: Deployment, result: SimulationResult, node: str | None = None) -> str:
    """Write a page of the simulation of one site.

    Parameters
    ----------
    deployment, node
        What was simulated.
    result
        From `inferway.simulate`, without a network.
    """
    bound = findings.bound(deployment, node=node)
    strips = [_promised(deployment, name, one, bound[name]) for name, one in result.tasks.items()]
    body = ["".join(strips), _against(result, bound)]
    recorded = all(one.trace is not None for one in result.tasks.values())
    for name, one in result.tasks.items():
        parts = laid_out(simulation.task(name, one))
        body.append(section(f"Numbers of task {name}", _halves(parts)))
    if not recorded:
        name = "Who answered and how long it took, by variant"
        body.insert(2, section("Who answers", drawn(result.plot(), name, "answers")))
    return document(_title(deployment), [f"{_dispatch(deployment)} {_made()}"], body)


def of_network(deployment: Deployment, result: NetworkResult) -> str:
    """Write a page of the simulation of a network, with the figures that `--out` has."""
    figures = networks.drawn(result, topology_of(deployment))
    numbers = {
        "gain per request": (f"{result.ntag_ms:.4g} ms", ""),
        "latency, mean": (seconds(result.latency_s), ""),
        "inaccuracy, mean": (percent(result.inaccuracy, 2), ""),
        "requests": (f"{result.requests.sum():,.0f}", f"in {result.slots} slots"),
    }
    reason = (
        f"Placement by {result.policy}: beside repositories alone, a request costs "
        f"{result.ntag_ms:.4g} ms less."
    )
    body = [
        strip("none", "The network", f"gains {result.ntag_ms:.3g} ms", reason, numbers),
        *(
            section(_FIGURES[key], drawn(figure, _FIGURES[key], key))
            for key, figure in figures.items()
        ),
        section("Numbers", _halves(laid_out(networks.tables(result)))),
    ]
    return document(_title(deployment), [_made()], body)


def of_sweep(deployment: Deployment, found: Sweep) -> str:
    """Write a page of a sweep: at how many points each task's promise is kept, figure and table."""
    body = ["".join(_counted(found))]
    figure = draw(found.axes, found.frame)
    if figure is not None:
        keys = ", ".join(one.key for one in found.axes)
        body.append(section("Against the bound", drawn(figure, f"Results by {keys}", "sweep")))
    body.append(section("Points", laid_out(found.tables())))
    return document(f"{_name(deployment)}: a sweep", [_made()], body)


def _halves(*parts: str) -> str:
    """Put parts beside each other where there is room."""
    return f'<div class="halves">\n{"".join(parts)}</div>\n'


def _name(deployment: Deployment) -> str:
    return deployment.path.name


def _title(deployment: Deployment) -> str:
    return f"{_name(deployment)}, simulated"


def _made() -> str:
    return f"Inferway {__version__}, {date.today().isoformat()}; {made_on()}."


def _dispatch(deployment: Deployment) -> str:
    policies = [str(deployment.policy_of(one).policy) for one in deployment.tasks.values()]
    return f"Dispatch by {', '.join(dict.fromkeys(policies))}."


def _promised(deployment: Deployment, name: str, task: TaskResult, bound: Bound) -> str:
    """Write a task's strip: its promise by the rule of the live server, or how much was in time."""
    response, least_s = task.response_time_s, bound.least_response_time_s
    numbers = {
        "mean response time": (
            seconds(response.mean),
            f"± {seconds(1.96 * response.stderr)}" if response.stderr > 0 else "",
        ),
        "bound of the mean": (seconds(least_s), _above(response.mean, least_s)),
        "p99": (seconds(task.p99_s), ""),
        "requests a second": (f"{task.rate_per_s:.4g}", f"of {bound.max_rate_per_s:.4g}"),
    }
    answers = round(task.queries * (1.0 - task.rejected - task.dropped))
    promise = promise_of(
        task.accuracy_target,
        answers,
        answers * task.accuracy.mean,
        balance=task.balance,
        overloaded=task.rate_per_s > bound.max_rate_per_s,
    )
    title = f"Task {name}"
    if promise is None:
        return strip("none", title, *_in_time(deployment, name, task), numbers)
    reason = promise.reason(task.rate_per_s, bound.max_rate_per_s)
    return strip(
        promise.state, title, VERDICTS[promise.state], reason, _accuracy(promise, task) | numbers
    )


def _accuracy(promise: Promise, task: TaskResult) -> dict[str, tuple[str, str]]:
    spread = 1.96 * task.accuracy.stderr
    return {
        "target": (f"{promise.target:g}", ""),
        "mean by profile": (
            number(promise.mean, "{:.5g}"),
            f"± {spread:.1g}" if spread > 0 else "",
        ),
        "balance": (f"{promise.balance:+.3g}", ""),
    }


def _in_time(deployment: Deployment, name: str, task: TaskResult) -> tuple[str, str]:
    """Say in words what became of a task without a target."""
    deadline_s = deployment.tasks[name].deadline_s
    if deadline_s is None:
        return VERDICTS["none"], "The task has no accuracy target."
    parts = {"refused": task.rejected, "dropped": task.dropped, "late": task.late}
    lost = ", ".join(f"{percent(part, 2)} {what}" for what, part in parts.items() if part > 0)
    return (
        f"{percent(1.0 - task.violation_ratio, 2)} in time",
        f"Its deadline is {seconds(deadline_s)}: {lost or 'nothing was refused, dropped or late'}.",
    )


def _above(mean_s: float, least_s: float | None) -> str:
    return "" if not least_s else f"the mean is {mean_s / least_s:.3g} times it"


def _against(result: SimulationResult, bound: findings.BoundResult) -> str:
    """Write the bound of every task, with what was simulated beside."""
    measured = {
        name: (
            one.rate_per_s,
            {"mean": one.response_time_s.mean, "p95": one.p95_s, "p99": one.p99_s},
        )
        for name, one in result.tasks.items()
    }
    name = "Least mean response time of any policy by arrival rate, and what was simulated"
    parts = [findings.tables(task, one)[0] for task, one in bound.items()]
    return section(
        "Latency against the bound",
        _halves(drawn(bound.plot(measured), name, "bound"), laid_out(parts)),
    )


def _counted(found: Sweep) -> Iterator[str]:
    """Write for each task at how many of the points its promise is kept."""
    for name, rows in found.frame.groupby("task", sort=False):
        if "accuracy.mean" not in rows:
            continue
        states = [_state(row) for row in rows.to_dict("records")]
        yield _points(str(name), states)


def _points(name: str, states: list[str]) -> str:
    worst = next((one for one in ("missed", "at-risk", "unknown", "kept") if one in states), "none")
    count = {state: states.count(state) for state in dict.fromkeys(states)}
    total = len(states)
    kept = count.get("kept", 0)
    verdict = VERDICTS["none"] if worst == "none" else f"kept at {kept} of {total} points"
    reason = ", ".join(f"{VERDICTS.get(state, state)}: {many}" for state, many in count.items())
    return strip(worst, f"Task {name}", verdict, f"Points by verdict: {reason}.", {})


def _state(row: Mapping[Any, Any]) -> str:
    """Judge one point as the live server would; ``failed`` where it could not be simulated."""
    if isinstance(row.get("error"), str):
        return "failed"
    target, mean = row.get("accuracy_target"), row["accuracy.mean"]
    if not isinstance(target, float) or target != target or not isinstance(mean, float):
        return "none"
    answers = int(row["queries"])
    promise = promise_of(target, answers, answers * mean)
    assert promise is not None  # there is a target
    return promise.state
