"""A drive in words and pictures: tables, latencies, the course by slots, Parquet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from inferway import loadgen
from inferway.deployment import Deployment
from inferway.deployment.errors import nearest
from inferway.deployment.overhead import recall_overhead
from inferway.dispatch.totals import TaskCounts, Totals, totals_of
from inferway.experiments.curves import Drawing, Look, Panel, panels
from inferway.experiments.text import (
    Frame,
    Laid,
    Shown,
    accuracy,
    frame,
    milliseconds,
    number,
    percent,
    points,
    promise,
    relative,
    seconds,
    shares,
    table,
)
from inferway.experiments.text import totals as laid_totals
from inferway.loadgen import NetworkRecord, NetworkSummary, Record, Summary, profile_accuracy
from inferway.machine import is_here
from inferway.profiling import DataError, score_of
from inferway.profiling.score import DEFAULT

if TYPE_CHECKING:
    from inferway.site import Fleet
    from inferway.twin.result import Error, Numbers

_REPLICATIONS: Final = 16  # Of the twin, whose arrivals are the same in each


@dataclass(frozen=True)
class Driven(Shown):
    """The answers that a deployment's own workload had from a server or a network that runs.

    Attributes
    ----------
    title
        What was driven.
    tasks
        By task.
    records
        Every request, by task; of a network one for all.
    network
        Of a network, the whole.
    twin
        By task, what the twin says of the same arrivals, where it was asked.
    totals
        All tasks together, by profiles, with deadlines by latencies from the intended send time;
        None of a single task.
    """

    title: str
    tasks: Mapping[str, Summary]
    records: Mapping[str, Record]
    network: NetworkSummary | None = None
    twin: Mapping[str, Numbers] = field(default_factory=dict)
    totals: Totals | None = None

    def error(self, task: str) -> Error:
        """How far the twin is off, of a task that it has simulated; nan where nothing is known."""
        from inferway.twin.result import Error

        return Error.of(self.twin[task], _numbers(self.tasks[task]))

    def in_server(self, task: str) -> Numbers | None:
        """Latencies of a task's answers as the server tells them, from arrival there to the answer.

        They are without the way there and back, and without what the generator was late. None where
        the server tells no such time.
        """
        record = self.records[task]
        served_s = record.served_s[record.answered]
        if not served_s.size or not np.isfinite(served_s).all():
            return None
        p50_s, p95_s, p99_s = np.percentile(served_s, (50, 95, 99)).tolist()
        whole = _numbers(self.tasks[task])
        return replace(whole, mean_s=float(served_s.mean()), p50_s=p50_s, p95_s=p95_s, p99_s=p99_s)

    def _twin_json(self, task: str) -> dict[str, Any]:
        from inferway.twin.result import Error

        told = self.twin[task].to_json() | {"error": self.error(task).to_json()}
        if (server := self.in_server(task)) is not None:
            error = Error.of(self.twin[task], server).to_json()
            times = {"response_time_s": server.to_json()["response_time_s"]}
            told["server"] = {**times, "error": error}
        return told

    def to_json(self) -> dict[str, dict[str, Any]]:
        """By task, as ``inferway drive --json`` prints it."""
        beside = {name: {"twin": self._twin_json(name)} for name in self.twin}
        return {name: one.to_dict() | beside.get(name, {}) for name, one in self.tasks.items()}

    def totals_json(self) -> dict[str, Any]:
        """Entry ``totals`` of ``inferway drive --json``; empty of a single task."""
        if self.totals is None:
            return {}
        told = self.totals.to_json()
        return {"totals": {"profile_accuracy": told.pop("accuracy"), **told}}

    def to_frame(self) -> Frame:
        """One row per task."""
        rows = frame({"task": name} | one.to_dict() for name, one in self.tasks.items())
        return rows.drop(columns=["warnings", "failures"], errors="ignore")

    def plot(self) -> Drawing:
        """Draw what share of answers came within which latency; of a network, its course."""
        if self.network is not None:
            (record,) = self.records.values()
            return _course(record, self.network, self.title)  # type: ignore[arg-type]
        parts = {name: record.latency_s for name, record in self.records.items()}
        return panels([_distribution(parts)], columns=1, title=self.title)

    def tables(self) -> list[Laid]:
        """Numbers of a server's tasks, or of a network as a whole, by task and by entry."""
        if self.network is not None:
            whole = laid_totals(self.totals, accuracy="accuracy, by profiles")
            return [*_network_tables(self.network), *([Text(), *whole] if whole else [])]
        # A column per task, as there are few tasks and many numbers.
        columns: dict[str, Callable[[Summary], str]] = {
            "requests": lambda one: str(one.offered),
            "per second": lambda one: f"{one.rate_per_s:.1f}",
            "answered": lambda one: str(one.answered),
            "rejected": lambda one: str(one.rejected),
            "failed": lambda one: str(one.failed),
            "accuracy, by labels": lambda one: accuracy(one.accuracy, one.accuracy_interval),
            "accuracy, by profiles": lambda one: accuracy(one.profile_accuracy),
            "latency, mean": lambda one: seconds(one.mean_s),
            "latency, p50": lambda one: seconds(one.p50_s),
            "latency, p95": lambda one: seconds(one.p95_s),
            "latency, p99": lambda one: seconds(one.p99_s),
            "promise": lambda one: promise(one.promise),
            "shares": lambda one: shares(one.shares).replace(", ", "\n"),
        }
        rows = [[label, *map(write, self.tasks.values())] for label, write in columns.items()]
        laid = table(f"Answers of {self.title}", ["task", *self.tasks], rows)
        whole = laid_totals(self.totals, accuracy="accuracy, by profiles")
        whole = [Text(), *whole] if whole else []
        twins = [part for name in self.twin for part in (Text(), self._beside(name))]
        return [laid, *whole, *_failures(self.tasks), *twins]

    def _beside(self, task: str) -> Laid:
        from inferway.twin.result import Error

        driven, twin = _numbers(self.tasks[task]), self.twin[task]
        server = self.in_server(task)
        measured = [driven] if server is None else [driven, server]
        errors = [Error.of(twin, one) for one in measured]
        sides = (*measured, twin)
        rows = [
            [
                what,
                *(seconds(getattr(one, f"{what}_s")) for one in sides),
                *(relative(getattr(error, what)) for error in errors),
            ]
            for what in ("mean", "p50", "p95")
        ]
        correct = [number(one.accuracy, "{:.4f}") for one in sides]
        rows.append(["accuracy", *correct, *(points(one.accuracy) for one in errors)])
        blank = [""] * len(errors)
        heads = ["error"] if server is None else ["error, driven", "error, in the server"]
        of_server = (
            ""
            if server is None
            else " Those in the server go from a request's arrival there to its answer, as it "
            "tells them."
        )
        lost = {what: [getattr(one, what) for one in sides] for what in ("rejected", "dropped")}
        rows += [
            [what, *(percent(part, 2) for part in parts), *blank]
            for what, parts in lost.items()
            if any(parts)
        ]
        rows += [
            [f"by {name}", *(percent(one.shares.get(name, 0.0)) for one in sides), *blank]
            for name in {**driven.shares, **twin.shares}
        ]
        return table(
            f"Task {task}, driven against twin",
            ["", *("driven", "in the server")[: len(measured)], "twin", *heads],
            rows,
            caption=(
                "The twin has the arrivals that were sent, and the service times and accuracies of "
                "the file and its profiles; driven latencies have the way there and back as well, "
                f"and what the generator was late.{of_server}"
            ),
        )

    def _repr_html_(self) -> str:
        return str(self.to_frame().T.to_html(header=False))


def drive(
    deployment: Deployment,
    url: str | Mapping[str, str] | None = None,
    *,
    duration: float = 30.0,
    seed: int | None = None,
    key: str | None = None,
    authority: Path | None = None,
    binary: bool = True,
    connections: int | None = None,
    data: str | Path | Mapping[str, str | Path] | None = None,
    score: str = DEFAULT,
    output: str | None = None,
    group: str | None = None,
    twin: bool = False,
    forget: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Driven:
    """Send the file's workload, open-loop, to a server or to the nodes of a network.

    With labels, of a zoo's test set or of data, the answers' accuracy is measured.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    url
        The server, such as ``http://127.0.0.1:8000``; or the nodes' by name. A network's are those
        of the file if not given.
    duration
        How long to send, s.
    seed
        Of arrivals and inputs; the file's if not given.
    key, authority
        For servers that ask for one, and those with certificates of an own authority.
    binary
        Whether tensors go in the binary form.
    connections
        Open at the same time, at most.
    data
        A file of labeled data, ``.npz``, ``.csv`` or ``.parquet``, whose rows are sent, drawn at
        random; by task where the workload has several. See `inferway.profiling.read`.
    score
        What makes an answer to them right: see `inferway.profiling.score_of`.
    output
        The output that is scored, where that is not clear.
    group
        Array or column of the data that says which rows are alike, for the interval.
    twin
        Simulate the file under the arrivals that were sent, by its profiles alone, to see how far
        the twin is off; of one site. What requests take of a server besides models it has from one
        that has measured it on this machine, where the one that is driven is here.
    forget
        Have the twin know nothing that a server has measured.
    progress
        Told what is being done, and the part of it that is done.

    Raises
    ------
    DriveError
        When the file has no workload, or nobody can be driven.
    ValueError
        When the twin cannot simulate the file.
    DataError, ScoreError
        When data cannot be read, do not fit or are of a task without a workload, or there is no
        such score.
    """
    told = told_rates(deployment) if twin else {}
    labeled = None
    if data is not None:
        judged_by = score_of(score, output=output)
        labeled = loadgen.LabeledFiles(_by_task(deployment, data), judged_by, group)
    settings: dict[str, Any] = {
        "access": loadgen.Access(key, authority),
        "duration_s": duration,
        "seed": seed,
        "binary": binary,
        "labeled": labeled,
        "progress": progress,
        **({} if connections is None else {"connections": connections}),
    }
    if deployment.network is not None:
        if isinstance(url, str):
            from inferway.network import topology_of

            url = dict.fromkeys(topology_of(deployment).nodes, url)
        addresses = loadgen.addresses_of(deployment, None) if url is None else dict(url)
        driven = loadgen.drive_network(deployment, addresses, **settings)
        whole = loadgen.network_summary(driven, deployment)
        tasks = {name: _judged(one, deployment, name) for name, one in whole.tasks.items()}
        whole = replace(whole, tasks=tasks)
        worth = profile_accuracy(driven, deployment)
        counts = {
            name: _counts(driven.only(rows), worth[rows], deployment.tasks[name].deadline_s)
            for name in tasks
            for rows in [driven.kind == driven.kinds.index(name)]
        }
        totals = totals_of(counts, span_s=_span_s([driven]))
        return Driven(deployment.path.name, tasks, {driven.task: driven}, whole, totals=totals)
    if not isinstance(url, str | None):
        raise loadgen.DriveError("one server is driven at one address; the file has no `network`")
    records = loadgen.run(deployment, url or loadgen.URL, **settings)
    summaries, counts = {}, {}
    for name, record in records.items():
        variants = deployment.tasks[name].variants.values()
        known = {one.name: one.accuracy for one in variants if one.graded}
        plain = loadgen.summary(record, known, interval=True)
        summaries[name] = _judged(plain, deployment, name)
        worth = _worth(record, known)
        counts[name] = _counts(record, worth, deployment.tasks[name].deadline_s)
    twins: dict[str, Numbers] = {}
    if told:
        # What a server on this machine has measured meanwhile, at this very rate.
        here = not forget and is_here(urlsplit(url or loadgen.URL).hostname or "")
        took = recall_overhead(deployment.tasks) if here else None
        if took is not None:  # the generator has the same cores
            record = next(iter(records.values()))
            generator_s = record.cpu_s / max(record.generated, 1)
            took = took._replace(seconds=took.seconds + generator_s)
        deployment = deployment.with_overhead(took)
    for together in _groups(deployment, told):
        if all(summaries[name].answered for name in together):
            driven_of = {name: records[name] for name in together}
            twins |= twin_of(deployment, driven_of, told, seed=seed, progress=progress)
    totals = totals_of(counts, span_s=_span_s(records.values()))
    return Driven(url or loadgen.URL, summaries, records, twin=twins, totals=totals)


def _worth(record: Record, accuracy: Mapping[str, float]) -> NDArray[np.float64]:
    """(n,) accuracy of each answer by its variant's profile, or as the server expects it."""
    by_variant = np.array([accuracy.get(name, np.nan) for name in record.variants] + [np.nan])
    told = np.isfinite(record.expected)
    return np.where(told, record.expected, by_variant[record.variant])


def _counts(record: Record, worth: NDArray[np.float64], deadline_s: float | None) -> TaskCounts:
    """Count a task's requests, with `worth` of each answer."""
    answered = record.answered
    in_time = answered & (np.nan_to_num(record.latency_s) <= (deadline_s or math.inf))
    return TaskCounts(
        requests=len(record),
        answers=int(answered.sum()),
        accuracy_sum=float(worth[answered].sum()),
        in_time=int(in_time.sum()),
        in_time_sum=float(worth[in_time].sum()),
    )


def _span_s(records: Iterable[Record]) -> float:
    """Seconds from the first request to the last; nan of fewer than two."""
    sent_s = np.concatenate([one.intended_s for one in records])
    return float(np.ptp(sent_s)) if sent_s.size > 1 else math.nan


def _groups(deployment: Deployment, told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Group the tasks that the twin simulates together; none where none is simulated."""
    if not told:
        return []
    from inferway.twin import groups_of

    return groups_of(deployment, tuple(told))


def told_rates(deployment: Deployment) -> dict[str, float | None]:
    """Say by task which rate the live policy is told; ValueError where no twin can be made."""
    from inferway.twin import groups_of, scenario_of

    if deployment.network is not None:
        raise ValueError(
            "the twin beside a drive is of one site, and the file has a `network`: "
            f"`inferway simulate {deployment.path.name} --events` simulates that"
        )
    told = dict[str, float | None]()
    groups_of(deployment, tuple(deployment.workload))
    for name in deployment.workload:
        try:
            scenario = scenario_of(deployment, name)
        except ValueError as error:
            raise ValueError(f"the twin cannot simulate the file: {error}") from error
        told[name] = None if scenario.window_s is not None else scenario.told_rate_per_s
    return told


def twin_of(
    deployment: Deployment,
    records: Mapping[str, Record],
    told: Mapping[str, float | None],
    *,
    seed: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> dict[str, Numbers]:
    """Simulate a task under the arrivals of a drive, or several that targets or devices join.

    Parameters
    ----------
    deployment
        What was driven.
    records
        Of the drive, by task.
    told
        As `told_rates` says it.
    seed
        Of the simulation; the file's if not given.
    progress
        Told what is being done, and the part of it that is done.
    """
    from inferway.twin import run_traces
    from inferway.twin.simulation import without_absent
    from inferway.twin.trace import arriving, simulated

    if progress is not None:
        progress(f"simulating {', '.join(records)}", 0.0)
    seed = deployment.seed if seed is None else seed
    queries = max(len(one.intended_s) for one in records.values())
    with ExitStack() as stack:
        scenarios = {
            name: stack.enter_context(arriving(deployment, name, one.intended_s, told[name]))
            for name, one in records.items()
        }
        scenarios, _ = without_absent(scenarios)
        found = run_traces(scenarios, queries=queries, replications=_REPLICATIONS, seed=seed)
    numbers = {name: simulated(one) for name, one in found.items()}
    return {
        name: replace(one, shares=_by_variant(one.shares, scenarios[name].fleet))
        for name, one in numbers.items()
    }


def _by_variant(shares: Mapping[str, float], fleet: Fleet) -> dict[str, float]:
    """Sum the shares of server classes by variant, which is what an answer names."""
    names = dict(zip(fleet.variants, fleet.names, strict=True))
    found = dict.fromkeys((names[one] for one in shares), 0.0)
    for one, share in shares.items():
        found[names[one]] += share
    return found


def _numbers(one: Summary) -> Numbers:
    """What was driven, as the twin has it."""
    from inferway.twin.result import Numbers

    profiles = one.profile_accuracy
    return Numbers(
        mean_s=one.mean_s,
        p50_s=one.p50_s,
        p95_s=one.p95_s,
        p99_s=one.p99_s,
        accuracy=math.nan if profiles is None else profiles,
        rejected=one.rejected / one.offered,
        dropped=one.failed / one.offered,
        shares=one.shares,
        queries=one.offered,
    )


def _by_task(
    deployment: Deployment, data: str | Path | Mapping[str, str | Path]
) -> dict[str, Path]:
    """Say which file of labeled data is of which task; DataError where that is not clear."""
    driven = list(deployment.workload)
    if not isinstance(data, Mapping):
        if len(driven) > 1:
            raise DataError(
                f"{deployment.path} has a workload of the tasks {', '.join(driven)}: say of which "
                f"one the data are, as {driven[0]}={data}"
            )
        data = dict.fromkeys(driven, data)
    for name, file in data.items():
        if name not in driven:
            raise DataError(
                f"{deployment.path} has no workload of a task {name!r}; {nearest(name, driven)}"
            )
        if not Path(file).is_file():
            raise DataError(f"there is no file {file}")
    return {name: Path(file) for name, file in data.items()}


def _judged(one: Summary, deployment: Deployment, name: str) -> Summary:
    """A task's summary with the verdict on its target.

    Whether it was offered more than the bound allows is known of one site without batches.
    """
    from inferway.dispatch.promise import overloads
    from inferway.site.fleet import fleet_of

    task, overloaded = deployment.tasks[name], False
    if len(deployment.nodes) == 1 and not any(each.batches for each in task.variants.values()):
        fleet = fleet_of(deployment, name)
        promised = (task.accuracy_target, task.energy_budget)
        policy = deployment.policy_of(task).policy
        overloaded = overloads(one.rate_per_s, fleet, *promised, policy=policy)
    return one.judged(task.accuracy_target, overloaded=overloaded)


def _network_tables(whole: NetworkSummary) -> list[Laid]:
    gain = whole.gain
    parts = {"all": whole.whole, **whole.tasks}
    parts |= {f"from {name}": one for name, one in whole.entries.items()}
    counts = [
        [
            *(name, *map(str, (one.offered, one.answered, one.rejected, one.failed))),
            *map(accuracy, (one.accuracy, one.profile_accuracy)),
        ]
        for name, one in parts.items()
    ]
    times = [
        [name, *map(milliseconds, (one.mean_s, one.p50_s, one.p95_s, one.p99_s))]
        for name, one in parts.items()
    ]
    served = [
        [node, percent(sum(parts.values())), shares(parts)]
        for node, parts in sorted(whole.served.items(), key=lambda one: -sum(one[1].values()))
    ]
    laid: list[Laid] = [
        table(
            "Network, driven",
            ["", "requests", "answered", "rejected", "failed", "by labels", "by profiles"],
            counts,
            caption=(
                "Accuracies by labels and by profiles. Gain per request (NTAG): "
                f"{gain.ntag_ms:.4g} ms, over {len(gain.offered)} slots of {gain.slot_s:g} s."
            ),
        ),
        Text(),
        table(
            *("Latency", ["", "mean", "p50", "p95", "p99"], times),
            caption="In ms, from when a request was due to its answer.",
        ),
        Text(),
        table("Answered at", ["node", "answers", "by"], served, left=(0, 2)),
    ]
    if whole.hops:
        hops = ", ".join(f"{number} over {hop}" for hop, number in whole.hops.items())
        laid.append(Text(f"Answers by links between entry and answering node: {hops}."))
    laid += [
        Text(f"{number} answers were degraded: {sentence}", style="yellow")
        for sentence, number in whole.degraded.items()
    ]
    return laid + _failures({"": whole.whole})


def _failures(summaries: Mapping[str, Summary]) -> list[Laid]:
    title, why, left = "Without an answer", ["why"], (0, 2)
    rows = [
        [name, str(count), reason]
        for name, one in summaries.items()
        for reason, count in one.failures.items()
    ]
    if len(summaries) > 1:
        laid = table(title, ["task", "requests", *why], rows, left=left)
    else:
        laid = table(title, [*why, "requests"], [[reason, count] for _, count, reason in rows])
    return [Text(), laid] if rows else []


def _distribution(parts: Mapping[str, NDArray[np.float64]]) -> Panel:
    curves = []
    for color, (name, latency_s) in enumerate(parts.items()):
        finite_s = latency_s[np.isfinite(latency_s)]
        if finite_s.size:
            share = np.linspace(0.0, 1.0, min(400, finite_s.size))
            at = (np.quantile(finite_s, share) * 1e3).tolist()
            curves.append(Look(name, color).curve(at, share.tolist(), markers=False))
    return Panel("latency", "latency, ms", "share of answers", curves, scale_across="log")


def _course(record: NetworkRecord, whole: NetworkSummary, title: str) -> Drawing:
    """Draw a network's latencies by task and entry, and its gain, latency and losses by slot."""
    gain, latency_s = whole.gain, record.latency_s
    middle = (gain.time_s + gain.slot_s / 2).tolist()
    parts = {"all": latency_s}
    if len(whole.tasks) > 1:
        parts |= {name: latency_s[record.kind == record.kinds.index(name)] for name in whole.tasks}
    for name in whole.entries:
        parts[f"from {name}"] = latency_s[record.entry == record.nodes.index(name)]
    requests = {
        "answered": gain.answered / gain.slot_s,
        "without an answer": (gain.rejected + gain.failed) / gain.slot_s,
    }
    shown = [_distribution(parts)]
    for panel, up, lines in (
        ("gain", "gain per request, ms", {"all": gain.gain_ms}),
        ("latency", "mean, ms", {"all": gain.latency_s * 1e3}),
        ("requests", "per second", requests),
    ):
        curves = [
            Look(label, color).curve(middle, values.tolist())
            for color, (label, values) in enumerate(lines.items(), len(lines) - 1)
        ]
        shown.append(Panel(panel, "time, s", up, curves))
    return panels(shown, columns=2, title=title)


def write(driven: Driven, folder: Path) -> list[Path]:
    """Write every request of all tasks to `requests.parquet`, and a figure as PNG and SVG.

    Returns the Parquet file and the PNG.
    """
    import pandas as pd

    from inferway.experiments.figure import save

    folder.mkdir(parents=True, exist_ok=True)
    columns = [
        {"task": np.full(len(record), name)} | record.to_frame()
        for name, record in driven.records.items()
    ]
    rows = pd.concat(map(pd.DataFrame, columns), ignore_index=True)
    # Names repeat on every row; as categories they are small.
    names = [name for name, column in columns[0].items() if column.dtype.kind == "U"]
    file = folder / "requests.parquet"
    rows.astype(dict.fromkeys(names, "category")).to_parquet(file, index=False)
    return [file, save(driven.plot(), folder / "latency")[0]]
