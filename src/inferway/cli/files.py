"""Findings about files before anything runs, from ``check`` to ``place`` and ``plan``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import inferway
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, REFUSED, CommandError, failing, says

if TYPE_CHECKING:
    from inferway.deployment import Caution, Problem

_SHOWN = 200  # lines of one kind; whoever mends these sees others the next time
_MOST_NODES = 100  # whose section is shown on a terminal


def check(
    file: options.File,
    strict: Annotated[bool, says("Fail on warnings as well.", "--strict")] = False,
    json: terminal.Json = False,
) -> None:
    """Check a deployment file: errors, warnings, and what cannot be run live."""
    path = options.existing(file)
    deployment: inferway.Deployment | None = None
    wrong: Iterable[Problem | Caution] = ()
    advice: Iterable[Caution] = ()
    unserved: Iterable[str] = ()
    unsimulated: Iterable[str] = ()
    overheads: Iterable[str] = ()
    network: dict[str, Any] | None = None
    code = 1
    try:
        deployment = options.loaded(path)
        unsimulated, overheads = deployment.unsimulated(), deployment.overheads()
        result = inferway.check(deployment)
        wrong, code, unserved = result.refused, REFUSED, result.unserved
        # A target that cannot be reached is warned of by its file as well: once is enough.
        fields = {(one.kind, one.field) for one in result.refused}
        advice = [one for one in result.warnings if (one.kind, one.field) not in fields]
        if result.size is not None:
            network = {**result.size, "notes": list(result.notes)}
    except inferway.DeploymentError as error:
        wrong = error.problems
        if deployment is not None:
            from inferway.experiments.findings import cautions

            # Those found before an error may explain it.
            advice = sorted(cautions(deployment), key=lambda one: one.line)
            alone = deployment.network is None
            unserved = deployment.unserved() if alone else deployment.unserved_at_node()
    errors, warnings = (
        [
            {
                "file": str(path),
                "line": one.line or None,  # 0 is the file as a whole
                "field": one.field,
                "message": getattr(one, "message", None) or getattr(one, "sentence", ""),
            }
            for one in several
        ]
        for several in (wrong, advice)
    )
    if json:
        tasks = (
            {
                name: {
                    "variants": list(task.variants),
                    "accuracy_target": task.accuracy_target,
                    "deadline_s": task.deadline_s,
                    "policy": deployment.policy_of(task).policy,
                }
                for name, task in deployment.tasks.items()
            }
            if deployment is not None
            else {}
        )
        found = {"errors": errors, "warnings": warnings, "unserved": list(unserved)}
        found |= {"unsimulated": list(unsimulated), "overheads": list(overheads)}
        terminal.document({"schema": 1, "tasks": tasks, "network": network, **found})
    else:
        for kind, entries in (("error", errors), ("warning", warnings)):
            for one in entries[:_SHOWN]:
                where = f"{one['file']}:{one['line']}" if one["line"] else one["file"]
                field = f"{one['field']}: " if one["field"] else ""
                print(f"{where}: {kind}: {field}{one['message']}")
            if len(entries) > _SHOWN:
                print(f"{path}: and {_count(entries[_SHOWN:], kind)} more; --json lists all")
        notes = [f"network: {note}" for note in network["notes"]] if network else []
        for sentence in (*notes, *unserved, *unsimulated, *overheads):
            print(f"{path}: note: {sentence}")
        print(f"{path}: {_count(errors, 'error')}, {_count(warnings, 'warning')}")
    if errors or (strict and warnings):
        raise typer.Exit(code if errors else 1)


def _count(entries: list[dict[str, Any]], noun: str) -> str:
    return f"{len(entries) or 'no'} {noun}{'' if len(entries) == 1 else 's'}"


def bound(
    file: options.File,
    node: options.Node = None,
    escalate: Annotated[
        bool,
        says(
            "Bound policies, too, that ask a second variant where the first one is not sure.",
            "--escalate",
        ),
    ] = False,
    json: terminal.Json = False,
) -> None:
    """Say the best that policies can do that choose before they see an answer.

    That is the greatest rate at which the target can be kept, and the least response time.
    """
    from inferway.dispatch.bounds import UnreachableError
    from inferway.experiments.findings import joint_tables, tables

    deployment = options.recalled(options.opened(file))
    try:
        found = inferway.bound(deployment, node=node, escalate=escalate)
    except UnreachableError:
        raise
    except ValueError as error:  # no fleet that could be bounded
        raise CommandError(str(error)) from error
    terminal.present(
        json,
        lambda: {
            "schema": 1,
            "tasks": {name: one.to_json() for name, one in found.items()},
            "network": None,
            **({} if found.together is None else {"together": found.together.to_json()}),
        },
        lambda: [
            *(line for name, one in found.items() for line in tables(name, one)),
            *([] if found.together is None else joint_tables(found.together)),
        ],
    )


def compile_(
    file: options.File, policy: options.Policy = None, json: terminal.Json = False
) -> None:
    """Compile the file's policies for the live server and for the twin.

    What has been compiled is kept, so that the next start takes a second. A change of a policy's
    code, another version of Numba or another processor compiles again.
    """
    from inferway.site.cache import cache_root
    from inferway.twin.simulation import compile_beforehand

    deployment = options.opened(file, policy)
    with terminal.compiling(not json):
        made = compile_beforehand(deployment)
    seconds, root = sum(one.seconds for one in made), str(cache_root())
    compiled = [one._asdict() for one in made]
    said = f"Compiled {len(made)} functions in {seconds:.1f} s; kept in {root}."
    terminal.present(
        json,
        lambda: {"schema": 1, "folder": root, "compiled": compiled, "seconds": seconds},
        lambda: [said if made else f"Nothing to do: all is compiled, in {root}."],
    )


def schema(json: terminal.Json = False) -> None:
    """Print the JSON Schema of the deployment file, with which editors complete and check it."""
    terminal.document(inferway.schema())


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of models, MODEL/VERSION/model.onnx.")
    ],
    out: Annotated[Path | None, options.file("Where to write, instead of the screen.")] = None,
    force: Annotated[bool, says("Write over a file that is there.", "--force")] = False,
    json: terminal.Json = False,
) -> None:
    """Write the deployment file of a folder of models, with comments on what is left to fill in."""
    from inferway.deployment.model_folder import FORM, written
    from inferway.files import write_whole

    if not folder.is_dir():
        is_file = folder.is_file()
        raise CommandError(
            f"{folder} is a file: name the folder around {FORM}"
            if is_file
            else f"there is no folder {folder}"
        )
    if out is not None and out.exists() and (not force or not out.is_file()):
        what = "is there already; --force writes over it" if out.is_file() else "is no file"
        raise CommandError(f"--out {out} {what}")
    deployment = inferway.load(folder)
    text = written(
        deployment.tasks, deployment.source.remarks, folder, out or Path("deployment.yaml")
    )
    for remark in deployment.source.remarks:
        terminal.complain(remark)
    tasks = {name: list(task.variants) for name, task in deployment.tasks.items()}
    if out is not None:
        try:
            write_whole(out, text)
        except OSError as error:
            raise CommandError(f"--out {out} cannot be written: {terminal.reason(error)}") from None
    content = {"file": None, "content": text} if out is None else {"file": str(out)}
    said = [] if out is None else [f"{out}: {_kinds(tasks)}; next: inferway check {out}"]
    if json or out is not None:
        terminal.present(json, lambda: {"schema": 1, "tasks": tasks, **content}, lambda: said)
    else:
        print(text, end="")


def _kinds(tasks: dict[str, list[str]]) -> str:
    variants = sum(map(len, tasks.values()))
    return (
        f"{len(tasks)} task{'s' if len(tasks) > 1 else ''}, "
        f"{variants} variant{'s' if variants > 1 else ''}"
    )


def place(
    file: options.File,
    policy: Annotated[
        str | None,
        says(
            "exchange, infida, static-greedy, exact, olag, olag-literal, greedy or "
            "repository-only.",
            metavar="NAME",
            autocompletion=options.completing("placement"),
            show_default="the file's, else infida",
        ),
    ] = None,
    slots: Annotated[int, says("Slots that the placement is for.", min=1)] = 60,
    seed: options.Seed = None,
    time_limit: Annotated[
        float, says("When `exact` stops with what it has.", parser=options.time, metavar="TIME")
    ] = "60s",  # type: ignore[assignment]  # Typer parses defaults, too
    bound: Annotated[
        bool, says("Bound every placement's gain, by the LP relaxation.", "--bound")
    ] = False,
    out: Annotated[
        Path | None, options.folder("Folder for nodes.yaml, a heat map per tier and a map.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Compute which variants live on which node, for the file's mean requests."""
    from inferway.network import topology_of

    deployment = options.opened(file)
    options.writable(out)
    with terminal.progress() as told:
        placed = inferway.place(
            deployment,
            policy=options.placement_policy(policy),
            slots=slots,
            seed=seed,
            time_limit_s=time_limit,
            bound=bound,
            progress=lambda done: told("slots", done / slots),
        )

    def write() -> list[Path]:
        assert out is not None
        section, title = out / "nodes.yaml", f"{deployment.path.name}, {placed.policy}"
        section.write_text(placed.yaml, encoding="utf-8")
        return [*placed.figures(topology_of(deployment), out, title=title), section]

    files, failure = options.saved(out, write)
    names, number = list(map(str, files)), len(placed.network.nodes)
    content = {"schema": 1, "tasks": {}, "network": placed.to_json()}
    terminal.present(
        json, lambda: {**content, **({"files": names} if names else {})}, placed.tables
    )
    if not json:
        if number <= _MOST_NODES:
            print(placed.yaml, end="")
        elif out is None:
            print(f"{number} nodes: give --out DIR for their instances in YAML")
        print(*names, sep="\n", end="\n" * bool(names))
    if failure is not None:
        raise failure


def plan(
    file: options.File,
    rate: Annotated[
        float | None,
        says(
            "Such as 120/s.",
            parser=options.rate,
            metavar="RATE",
            show_default="the file's workload",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        says(
            "Greatest mean response time, such as 300ms.",
            parser=options.time,
            metavar="TIME",
            show_default="the task's deadline",
        ),
    ] = None,
    peak: Annotated[
        Any,
        says(
            "Plan for so many times the mean rate, such as 1.2, or for a percentile of it, such as "
            "p95.",
            parser=options.peak,
            metavar="TIMES | PERCENTILE",
            show_default="the workload as it is",
        ),
    ] = None,
    best_effort: Annotated[
        bool,
        says(
            "On devices that are too few: leave tasks with too few instances, or none.",
            "--best-effort",
        ),
    ] = False,
    node: Annotated[str | None, says("Which node to plan, where there are several.")] = None,
    queries: Annotated[int, says("Requests per simulation.", min=1000)] = 200_000,
    seed: options.Seed = None,
    tries: Annotated[int, says("Most simulations per task.", min=1)] = 40,
    json: terminal.Json = False,
) -> None:
    """Find the cheapest instances that keep accuracy, energy and latency, tried in the twin."""
    deployment = options.recalled(options.opened(file))
    with failing(ValueError, code=FAILED), terminal.progress() as told:
        found = inferway.plan(
            deployment,
            node=node,
            rate=rate,
            latency=latency,
            peak=peak,
            best_effort=best_effort,
            queries=queries,
            seed=seed,
            tries=tries,
            progress=told,
        )
    terminal.present(json, found.to_json, found.tables)
    if not json:
        print(found.yaml, end="")
    if found.infeasible:
        raise typer.Exit(FAILED)
