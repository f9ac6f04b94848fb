"""``inferway simulate``: the deployment file's site or network in the twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferway.cli import failure, options, terminal
from inferway.cli.failure import REFUSED, CommandError, reason

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.experiments.sweep import Sweep

_QUERIES = 1_000_000
_SLOTS, _SLOTS_OF_EVENTS = 240, 20


def simulate(
    file: options.File,
    queries: Annotated[
        int | None,
        typer.Option(
            parser=options.count("5e6", 1e15),
            metavar="NUMBER",
            help="Requests per task and replication.",
            show_default="1e6",
        ),
    ] = None,
    replications: Annotated[
        int | None,
        typer.Option(min=1, help="Independent runs.", show_default="1; 16 of a trace"),
    ] = None,
    seed: options.Seed = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Requests left out first.", show_default="found")
    ] = None,
    policy: options.Policy = None,
    node: options.Node = None,
    trace: Annotated[
        Path | None, options.folder("Replay what `serve --record DIR` wrote: live against twin.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Vary load, rate, policy, accuracy_target, deadline, seed, "
            "instances.TASK/VARIANT or a path into the file: START:STOP:STEP, or with commas. "
            "May be repeated: all combinations are simulated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for a sweep's Parquet file and figure, or a network's figures.",
            show_default="out/sweep-FILE for a sweep",
        ),
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Folder for a Parquet file per task, a row per request.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads.", show_default="as many as cores")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="Slots of a file with `network`.", show_default="240; 20 with --events"
        ),
    ] = None,
    regret: Annotated[
        bool,
        typer.Option(
            "--regret", help="Compare a network's run with the best static allocation, by MILP."
        ),
    ] = False,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            help="Simulate a network request by request: dispatch and queues at every node, "
            "forwarding, and models that take time to move.",
        ),
    ] = False,
    fetch_rate: Annotated[
        float | None,
        typer.Option(
            parser=options.size,
            metavar="SIZE",
            help="With --events: what a node fetches of models per second.",
            show_default="125 MB",
        ),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Simulate the file's site with the very policies that the live server calls.

    A file with `network` is simulated slot by slot under its placement policy, or request by
    request with --events.
    """
    if trace is not None:
        _apart("--trace", {"--queries": queries, "--warmup": warmup, "--sweep": sweep})
    if sweep:
        _apart("--sweep", {"--records": records, "--policy": policy})
        settings = {"node": node, "queries": queries or _QUERIES, "seed": seed}
        settings |= {"replications": replications or 1, "warmup": warmup}
        _sweep(options.existing(file), sweep, out, settings, workers, json)
        return
    deployment = options.loaded(file)
    of_network = [
        ("--slots", slots), ("--regret", regret), ("--events", events), ("--fetch-rate", fetch_rate)
    ]  # fmt: skip
    of_site = [
        ("--queries", queries), ("--warmup", warmup), ("--records", records),
        ("--replications", replications), ("--node", node), ("--trace", trace),
        ("--workers", workers),
    ]  # fmt: skip
    if deployment.network is not None:
        if events and regret:
            raise CommandError(
                "--regret is of whole slots; it cannot be given with --events", REFUSED
            )
        if fetch_rate is not None and not events:
            raise CommandError(
                "--fetch-rate needs --events: in slots, moving takes no time", REFUSED
            )
        for option in (name for name, value in of_site if value):
            raise CommandError(
                f"{option} is of one site's queues, but {deployment.path} has a `network`", REFUSED
            )
        number = slots or (_SLOTS_OF_EVENTS if events else _SLOTS)
        asked = {"slots": number, "regret": regret, "events": events, "fetch_rate": fetch_rate}
        _network(deployment, out, json, policy=policy, seed=seed, **asked)
        return
    for option in (name for name, value in of_network if value):
        raise CommandError(f"{file} has no `network`, so it does not take {option}", REFUSED)
    if out is not None:
        raise CommandError("--out is a sweep's folder; give --sweep, too", REFUSED)
    if node is not None and node not in deployment.nodes:
        names = ", ".join(deployment.nodes) or "none"
        raise CommandError(f"unknown node {node!r}; the file has {names}", REFUSED)
    if policy is not None:
        deployment = options.redirected(deployment, policy)
    _site(
        deployment,
        json,
        queries=queries or _QUERIES,
        replications=replications,
        node=node,
        seed=seed,
        warmup=warmup,
        workers=workers,
        records=records,
        trace=trace,
    )


def _apart(option: str, others: dict[str, Any]) -> None:
    for other in (name for name, value in others.items() if value):
        raise CommandError(f"{option} and {other} cannot be given together", REFUSED)


def _site(deployment: Deployment, json: bool, **settings: Any) -> None:
    import inferway
    from inferway.deployment import measured
    from inferway.dispatch.replay import header, recordings
    from inferway.twin.simulation import INTERRUPTED

    trace = settings["trace"]
    if trace is not None:  # is there a recording, and can this version read it?
        try:
            for one in recordings(trace):
                header(one)
        except ValueError as error:
            raise CommandError(str(error), REFUSED) from error
    options.writable(settings["records"], "--records")
    total = settings["queries"] * (settings["replications"] or 1) * len(deployment.workload)
    deployment = measured(deployment)
    counted = terminal.counted("queries", None if trace else total, 1e6)
    with terminal.compiling(not json), counted as told:
        result = inferway.simulate(deployment, progress=told, **settings)
    if json:
        terminal.document(result.to_json())
    else:
        from rich.text import Text

        from inferway.experiments import simulation

        for place, (name, task) in enumerate(result.tasks.items()):
            terminal.show(*([Text()] if place else []), *simulation.task(name, task))
    if any(INTERRUPTED in one.notes for one in result.tasks.values()):
        raise typer.Exit(failure.INTERRUPTED)


def _network(
    deployment: Deployment, out: Path | None, json: bool, *, policy: str | None, **asked: Any
) -> None:
    import inferway
    from inferway.deployment import measured
    from inferway.experiments.networks import figures, tables
    from inferway.network import demand_of, topology_of
    from inferway.placement.table import WRITTEN
    from inferway.twin.simulation import INTERRUPTED

    deployment = measured(deployment)
    options.writable(out)
    unit, total = "slots", asked["slots"]
    if asked["events"]:  # of which there are so many in these slots, on average
        mean = float(demand_of(deployment).expected(0).sum())
        unit, total = "requests", round(mean * asked["slots"])
    with terminal.counted(unit, total) as told:
        result = inferway.simulate(
            deployment,
            policy=options.placement_policy(policy, WRITTEN),
            progress=told,
            **asked,
        )
    found = result.network
    assert found is not None  # the file has a network
    title = f"{deployment.path.name}, {found.policy}"
    images, failed = options.saved(
        out, lambda: figures(found, topology_of(deployment), out or Path(), title=title)
    )
    paths = list(map(str, images))
    if json:
        terminal.document({**result.to_json(), **({"figures": paths} if paths else {})})
    else:
        terminal.show(*tables(found), *paths)
    if failed is not None:
        raise failed
    if INTERRUPTED in found.notes:
        raise typer.Exit(failure.INTERRUPTED)


def _sweep(
    file: Path,
    written: Sequence[str],
    out: Path | None,
    settings: dict[str, Any],
    workers: int | None,
    json: bool,
) -> None:
    from inferway.deployment.setting import SettingError
    from inferway.experiments import sweep
    from inferway.experiments.figure import save
    from inferway.experiments.sweep import axis

    deployment = options.opened(file)
    try:
        axes = [axis(one) for one in written]
        planned = sweep.points_of(deployment, axes, settings["node"])
    except SettingError as error:
        raise CommandError(f"--sweep {error}", REFUSED) from error
    except ValueError as error:
        raise CommandError(str(error), REFUSED) from error
    folder = out or Path("out", f"sweep-{file.stem}")
    options.writable(folder)
    with terminal.counted("points", len(planned)) as told:
        found = sweep.run(
            deployment,
            axes,
            planned,
            folder,
            **settings,
            workers=workers,
            progress=told,
        )

    def draw() -> list[Path]:
        drawn = sweep.draw(found.axes, found.frame, f"{file.name}: simulated")
        return [] if drawn is None else [save(drawn, folder / "sweep")[0]]

    drawn, failed = options.saved(folder, draw)
    _say(found, drawn[0] if drawn else None, json)
    if found.failure is not None:
        raise CommandError(f"{found.file} could not be written: {reason(found.failure)}")
    if failed is not None:
        raise failed
    if found.done < found.points:
        terminal.complain(
            f"interrupted after {found.done} of {found.points} points; the same command goes on"
        )
        raise typer.Exit(failure.INTERRUPTED)
    if "error" in found.frame and found.frame["error"].notna().all():
        raise CommandError(f"no point could be simulated: {found.frame['error'].iloc[0]}")


def _say(found: Sweep, png: Path | None, json: bool) -> None:
    if json:
        told = {
            "keys": [one.key for one in found.axes],
            "points": found.points,
            "done": found.done,
            "parquet": str(found.file) if found.failure is None else None,
            "figure": None if png is None else str(png),
        }
        tasks = {
            str(name): {"points": rows.drop(columns="task").to_dict("records")}
            for name, rows in found.frame.groupby("task", sort=False)
        }
        terminal.document({"schema": 1, "sweep": told, "tasks": tasks, "network": None})
        return
    from inferway.experiments.sweep import tables

    terminal.show(*tables(found))
    if found.kept:
        terminal.show(f"{found.kept} of {found.points} points are from an earlier run.")
    for said, rows in found.frame[found.frame["error"].notna()].groupby("error"):
        terminal.show(f"{len(rows)} failed: {said}")
    where = "there is no figure: no key has several numbers" if png is None else str(png)
    numbers = str(found.file) if found.failure is None else "not written"
    terminal.show(f"\nAll numbers: {numbers}\nFigure: {where}")
