"""Policies run again: ``simulate``, in the twin, and ``replay``, decisions that were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import inferway
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, INTERRUPTED, CommandError, failing, reason, says
from inferway.files import write_whole

if TYPE_CHECKING:
    from inferway.dispatch.replay import Replay
    from inferway.experiments.sweep import Sweep

_QUERIES = 1_000_000
_SLOTS, _SLOTS_OF_EVENTS = 240, 20
_DIFFERENCES = 5  # that people are shown of a replay

_APART = {
    "--trace": ("--queries", "--warmup", "--sweep", "--dry-run"),
    "--sweep": ("--records", "--policy", "--dry-run"),
}
_OF_NETWORK = ("--slots", "--regret", "--events", "--fetch-rate")
_OF_SITE = (
    "--queries", "--warmup", "--records", "--replications", "--node", "--trace", "--workers",
    "--dry-run",
)  # fmt: skip


def simulate(
    file: options.File,
    queries: Annotated[
        int | None,
        says(
            "Requests per task and replication.",
            parser=options.count("5e6", 1e15),
            metavar="NUMBER",
            show_default="1e6",
        ),
    ] = None,
    replications: Annotated[
        int | None, says("Independent runs.", min=1, show_default="1; 16 of a trace")
    ] = None,
    seed: options.Seed = None,
    warmup: Annotated[
        int | None, says("Requests left out first.", min=0, show_default="found")
    ] = None,
    policy: options.Policy = None,
    node: options.Node = None,
    trace: Annotated[
        Path | None, options.folder("Replay what `serve --record DIR` wrote: live against twin.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        says(
            "Vary load, rate, policy, accuracy_target, deadline, seed, "
            "instances.TASK/VARIANT or a path into the file: START:STOP:STEP, or with commas. "
            "May be repeated: all combinations are simulated.",
            metavar="KEY=VALUES",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        says(
            "Folder for a sweep's Parquet file and figure, a network's figures, and a report.",
            metavar="DIR",
            show_default="out/sweep-FILE for a sweep; out/simulate-FILE for a report",
        ),
    ] = None,
    report: Annotated[
        bool, says("Write a report, an HTML page, and open it in the browser.", "--open")
    ] = False,
    records: Annotated[
        Path | None, says("Folder for a Parquet file per task, a row per request.")
    ] = None,
    workers: options.Workers = None,
    slots: Annotated[
        int | None,
        says("Slots of a file with `network`.", min=1, show_default="240; 20 with --events"),
    ] = None,
    regret: Annotated[
        bool, says("Compare a network's run with the best static allocation, by MILP.", "--regret")
    ] = False,
    events: Annotated[
        bool,
        says(
            "Simulate a network request by request: dispatch and queues at every node, "
            "forwarding, and models that take time to move.",
            "--events",
        ),
    ] = False,
    fetch_rate: Annotated[
        float | None,
        says(
            "With --events: what a node fetches of models per second.",
            parser=options.size,
            metavar="SIZE",
            show_default="125 MB",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        says(
            "Of `placement: {policy: assign}`: move nothing, and say what would be moved.",
            "--dry-run",
        ),
    ] = False,
    json: terminal.Json = False,
) -> None:
    """Simulate the file's site with the very policies that the live server calls.

    A file with `network` is simulated slot by slot under its placement policy, or request by
    request with --events.
    """
    given = {
        "--queries": queries, "--warmup": warmup, "--records": records, "--node": node,
        "--replications": replications, "--trace": trace, "--workers": workers, "--slots": slots,
        "--regret": regret, "--events": events, "--fetch-rate": fetch_rate, "--policy": policy,
        "--sweep": sweep, "--dry-run": dry_run,
    }  # fmt: skip
    for option, others in _APART.items():
        for other in others:
            if given[option] and given[other]:
                raise CommandError(f"{option} and {other} cannot be given together")
    settings = {"queries": queries or _QUERIES, "seed": seed, "warmup": warmup, "node": node}
    settings |= {"replications": replications, "workers": workers}
    who = options.workers(workers, "threads")
    if sweep:
        _sweep(options.existing(file), sweep, out, settings, json, report=report)
        return
    if who.engine != "threads":
        raise CommandError(f"--workers {workers} is for a --sweep; one simulation has threads")
    settings["workers"] = who.count
    deployment = options.loaded(file)
    if deployment.network is None:
        for option in filter(given.get, _OF_NETWORK):
            raise CommandError(f"{file} has no `network`, so it does not take {option}")
        if out is not None and not report:
            raise CommandError("--out is a sweep's or a report's folder; give --sweep or --open")
        if node is not None and node not in deployment.nodes:
            names = ", ".join(deployment.nodes) or "none"
            raise CommandError(f"unknown node {node!r}; the file has {names}")
        if policy is not None:
            deployment = options.redirected(deployment, policy)
        folder = _folder(deployment, out) if report else None
        if dry_run and not deployment.assigns:
            raise CommandError(
                f"--dry-run is of the placement policy assign, which {file} does not name"
            )
        settings["dry_run"] = dry_run
        options.recalled(deployment)
        _site(deployment, folder, json, records=records, trace=trace, **settings)
        return
    if events and regret:
        raise CommandError("--regret is of whole slots; it cannot be given with --events")
    if fetch_rate is not None and not events:
        raise CommandError("--fetch-rate needs --events: in slots, moving takes no time")
    for option in filter(given.get, _OF_SITE):
        raise CommandError(
            f"{option} is of one site's queues, but {deployment.path} has a `network`"
        )
    number = slots or (_SLOTS_OF_EVENTS if events else _SLOTS)
    asked = {"slots": number, "regret": regret, "events": events, "fetch_rate": fetch_rate}
    folder = _folder(deployment, out) if report else None
    _network(deployment, out, folder, json, policy=policy, seed=seed, **asked)


def _folder(deployment: inferway.Deployment, out: Path | None) -> Path:
    """Choose where the report goes."""
    return out or Path("out", f"simulate-{deployment.path.stem}")


def _report(folder: Path, content: str, json: bool) -> None:
    """Write a report and show it in the browser, or say where it is."""
    file = folder / "report.html"
    write_whole(file, content.encode())
    opened = terminal.browsed(file)
    said = f"Report: {file}{', open in the browser' if opened else ''}"
    (terminal.complain if json else print)(said)


def _site(
    deployment: inferway.Deployment,
    folder: Path | None,
    json: bool,
    *,
    trace: Path | None,
    **settings: Any,
) -> None:
    from inferway.deployment import measured
    from inferway.dispatch.replay import header, recordings
    from inferway.experiments import simulation
    from inferway.twin.simulation import INTERRUPTED as CUT_SHORT

    if trace is not None:  # is there a recording, and can this version read it?
        with failing(ValueError):
            for one in recordings(trace):
                header(one)
    options.writable(settings["records"], "--records")
    options.writable(folder)
    total = settings["queries"] * (settings["replications"] or 1) * len(deployment.workload)
    deployment = measured(deployment)
    counted = terminal.counted("queries", None if trace else total, 1e6)
    with terminal.compiling(not json), counted as told:
        result = inferway.simulate(deployment, progress=told, trace=trace, **settings)
    terminal.present(
        json,
        result.to_json,
        lambda: simulation.tables(result),
    )
    if folder is not None:
        from inferway.experiments.rehearsal import of_site

        _report(folder, of_site(deployment, result, settings["node"]), json)
    if any(CUT_SHORT in one.notes for one in result.tasks.values()):
        raise typer.Exit(INTERRUPTED)


def _network(
    deployment: inferway.Deployment,
    out: Path | None,
    folder: Path | None,
    json: bool,
    *,
    policy: str | None,
    **asked: Any,
) -> None:
    from inferway.deployment import measured
    from inferway.experiments.networks import figures, tables
    from inferway.network import demand_of, topology_of
    from inferway.placement.contract import WRITTEN
    from inferway.twin.simulation import INTERRUPTED as CUT_SHORT

    deployment = measured(deployment)
    for one in (out, folder):
        options.writable(one)
    unit, total = "slots", asked["slots"]
    if asked["events"]:  # of which there are so many in these slots, on average
        mean = float(demand_of(deployment).expected(0).sum())
        unit, total = "requests", round(mean * asked["slots"])
    with terminal.counted(unit, total) as told:
        named = options.placement_policy(policy, WRITTEN)
        result = inferway.simulate(deployment, policy=named, progress=told, **asked)
    found = result.network
    assert found is not None  # the file has a network
    title = f"{deployment.path.name}, {found.policy}"
    images, failed = options.saved(
        out, lambda: figures(found, topology_of(deployment), out or Path(), title=title)
    )
    paths = list(map(str, images))
    terminal.present(
        json,
        lambda: {**result.to_json(), **({"figures": paths} if paths else {})},
        lambda: [*tables(found), *paths],
    )
    if folder is not None:
        from inferway.experiments.rehearsal import of_network

        _report(folder, of_network(deployment, found), json)
    if failed is not None:
        raise failed
    if CUT_SHORT in found.notes:
        raise typer.Exit(INTERRUPTED)


def _sweep(
    file: Path,
    written: list[str],
    out: Path | None,
    settings: dict[str, Any],
    json: bool,
    *,
    report: bool,
) -> None:
    from inferway.deployment.setting import SettingError
    from inferway.experiments import sweep
    from inferway.experiments.figure import save

    deployment = options.recalled(options.opened(file))
    try:
        axes = [sweep.axis(one) for one in written]
        planned = sweep.points_of(deployment, axes, settings["node"])
    except ValueError as error:
        which = "--sweep " if isinstance(error, SettingError) else ""
        raise CommandError(f"{which}{error}") from error
    folder = out or Path("out", f"sweep-{file.stem}")
    options.writable(folder)
    settings["replications"] = settings["replications"] or 1
    with failing(ValueError, code=FAILED), terminal.counted("points", len(planned)) as told:
        found = sweep.run(deployment, axes, planned, folder, **settings, progress=told)

    def draw() -> list[Path]:
        drawn = sweep.draw(found.axes, found.frame, f"{file.name}: simulated")
        return [] if drawn is None else [save(drawn, folder / "sweep")[0]]

    drawn, failed = options.saved(folder, draw)
    _say(found, str(drawn[0]) if drawn else None, json)
    if report:
        from inferway.experiments.rehearsal import of_sweep

        _report(folder, of_sweep(deployment, found), json)
    if found.failure is not None:
        raise CommandError(f"{found.file} could not be written: {reason(found.failure)}", FAILED)
    if failed is not None:
        raise failed
    if found.done < found.points:
        terminal.complain(
            f"interrupted after {found.done} of {found.points} points; the same command goes on"
        )
        raise typer.Exit(INTERRUPTED)
    if "error" in found.frame and found.frame["error"].notna().all():
        raise CommandError(f"no point could be simulated: {found.frame['error'].iloc[0]}", FAILED)


def _say(found: Sweep, png: str | None, json: bool) -> None:
    numbers = None if found.failure is not None else str(found.file)
    if json:
        told = {
            "keys": [one.key for one in found.axes],
            "points": found.points,
            "done": found.done,
            "parquet": numbers,
            "figure": png,
        }
        tasks = {
            str(name): {"points": rows.drop(columns="task").to_dict("records")}
            for name, rows in found.frame.groupby("task", sort=False)
        }
        terminal.document({"schema": 1, "sweep": told, "tasks": tasks, "network": None})
        return
    terminal.show(*found.tables())
    if found.kept:
        terminal.show(f"{found.kept} of {found.points} points are from an earlier run.")
    for said, rows in found.frame[found.frame["error"].notna()].groupby("error"):
        terminal.show(f"{len(rows)} failed: {said}")
    where = png or "there is no figure: no key has several numbers"
    terminal.show(f"\nAll numbers: {numbers or 'not written'}\nFigure: {where}")


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="From --record of serve, node or up.")
    ],
    requests: Annotated[int, says("How many to replay of each recording; 0: all.", min=0)] = 10_000,
    json: terminal.Json = False,
) -> None:
    """Run recorded requests through the same policy and report every decision that differs."""
    from inferway.dispatch import replay as replaying

    found: dict[str, Replay] = {}
    # The recordings of a task together: at each node, where there are nodes.
    tasks: dict[str, dict[str, Replay]] = {}
    # ValueError where there is no recording, or one that cannot be read.
    with failing(ValueError), terminal.progress() as progress:
        for recording in replaying.recordings(folder):
            name = str(recording.relative_to(folder))

            def done(count: int, name: str = name) -> None:
                progress(f"replaying {name}", min(1.0, count / requests) if requests else 0.5)

            one = replaying.replay(recording, requests=requests or None, progress=done)
            # Of a task there are several where its fleet has changed.
            name = one.task if recording == folder else name
            found[name] = one
            tasks.setdefault(str(Path(name).parent / one.task), {})[name] = one
    documents = {task: one.to_json() for task, one in found.items()}
    terminal.present(
        json,
        lambda: {"schema": 1, "tasks": documents, "network": None},
        lambda: (line for task, several in tasks.items() for line in _lines(task, several)),
    )
    for task, several in tasks.items():
        for name, one in several.items():
            for sentence in one.losses:
                terminal.complain(f"warning: {name}: {sentence}")
        if any(one.requests and not one.same_code for one in several.values()):
            differ = any(one.differences for one in several.values())
            terminal.complain(
                f"warning: {task}: other code of policies and site than this made the recording; "
                + ("the differences may be the code's" if differ else "this code decides the same")
            )
    if any(one.differences for one in found.values()):
        raise typer.Exit(FAILED)


def _lines(task: str, several: dict[str, Replay]) -> Iterator[str]:
    policies = ", ".join(dict.fromkeys(one.policy for one in several.values()))
    requests, events = (
        sum(getattr(one, name) for one in several.values()) for name in ("requests", "events")
    )
    count = sum(len(one.differences) for one in several.values())
    where = "" if len(several) == 1 else f" in {len(several)} recordings"
    differ = "1 decision differs" if count == 1 else f"{count or 'no'} decisions differ"
    yield f"{task}: {requests} requests, {events} events{where}, policy {policies}: {differ}"
    for name, one in several.items():
        if where and one.differences:
            yield from _lines(name, {name: one})
        elif not where:
            for each in one.differences[:_DIFFERENCES]:
                yield (
                    f"  request {each.request} at {each.time_s:.6f} s: {each.what} "
                    f"{each.recorded} then, {each.replayed} now"
                )
            if len(one.differences) > _DIFFERENCES:
                yield f"  and {len(one.differences) - _DIFFERENCES} more; --json lists them all"
