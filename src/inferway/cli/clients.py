"""Clients of a running server: ``drive``, ``apply``, ``conformance``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import inferway
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, INTERRUPTED, CommandError, failing, says

_URL = "http://127.0.0.1:8000"


def drive(
    file: options.File,
    url: Annotated[
        str | None, says(f"The server; {_URL} if neither this nor a network is given.")
    ] = None,
    addresses: Annotated[
        Path | None,
        options.file(
            "Where the nodes of a network listen, in place of the file's `address`.",
            metavar="FILE.json",
        ),
    ] = None,
    key_file: options.KeyFile = None,
    ca: Annotated[
        Path | None,
        options.file(
            "Authority of the servers' certificates; else those that the system trusts.",
            metavar="FILE.pem",
        ),
    ] = None,
    duration: Annotated[float, says("Seconds to send for.", min=0.1)] = 30.0,
    seed: Annotated[int | None, says("Of the requests; the file's if not given.", min=0)] = None,
    connections: Annotated[
        int, says("Greatest number of connections to each server.", min=1)
    ] = 512,
    binary: Annotated[
        bool, says("Tensors as raw bytes, or as JSON.", "--binary/--no-binary")
    ] = True,
    data: Annotated[
        list[str] | None,
        says(
            "Labeled data whose rows are sent, to measure the accuracy; once per task.",
            metavar="[TASK=]FILE",
        ),
    ] = None,
    task: Annotated[
        str | None, says("Whose data FILE holds, where the workload has several tasks.")
    ] = None,
    score: Annotated[
        str,
        says("class, top-5, f1, exact-match, or ./file.py:function.", metavar="NAME"),
    ] = "class",
    output: Annotated[
        str | None, says("The output that is scored, where that is not clear.", metavar="NAME")
    ] = None,
    group: Annotated[
        str | None,
        says("Array or column of the data that says which rows are alike.", metavar="NAME"),
    ] = None,
    twin: Annotated[
        bool,
        says("Simulate the file under the same arrivals beside it, and say the error.", "--twin"),
    ] = False,
    forget: Annotated[
        bool,
        says("Have the twin know nothing that a server here has measured.", "--forget"),
    ] = False,
    require_target: Annotated[
        bool,
        says("Exit with 1 where the mean accuracy misses its target.", "--require-target"),
    ] = False,
    out: Annotated[
        Path | None, options.folder("Write every request (Parquet) and a figure.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Send the file's workload to a server or a network, open-loop; say what its requests met."""
    from inferway.experiments.driven import told_rates, write
    from inferway.loadgen import Access, AddressError, DriveError, addresses_of
    from inferway.profiling import DataError, ScoreError

    deployment = options.opened(file)
    where = None if url is None else options.server(url)
    key = options.key(key_file) or None  # an empty variable is none
    with failing(DriveError):
        Access(key, ca)
    options.writable(out)  # now, rather than fail with what was measured
    if require_target and not any(task.accuracy_target for task in deployment.tasks.values()):
        raise CommandError(f"{file} has no `accuracy_target` that could be missed")
    if addresses is not None and deployment.network is None:
        raise CommandError(f"{file} has no `network`: name its one server with --url")
    if addresses is not None and where is not None:
        raise CommandError("--url names one server and --addresses several: give one")
    if forget and not twin:
        raise CommandError("--forget is of the twin beside the drive: add --twin")
    if twin:
        with failing(ValueError):
            told_rates(deployment)
    labeled = _labeled(data or (), task)
    if labeled is None and (score != "class" or any((task, output, group))):
        raise CommandError("--task, --score, --output and --group are of labeled data: add --data")
    with failing(AddressError, DataError, ScoreError), terminal.progress() as progress:
        driven = inferway.drive(
            deployment,
            where if addresses is None else addresses_of(deployment, addresses),
            duration=duration,
            seed=seed,
            key=key,
            authority=ca,
            binary=binary,
            connections=connections,
            data=labeled,
            score=score,
            output=output,
            group=group,
            twin=twin,
            forget=forget,
            progress=progress,
        )
    network, titled = driven.network, replace(driven, title=deployment.path.name)
    files, failure = options.saved(out, lambda: write(titled, out or Path()))
    kept = {"parquet": str(files[0]), "figures": list(map(str, files[1:]))} if files else {}
    terminal.present(
        json,
        lambda: {
            "schema": 1,
            "tasks": driven.to_json(),
            "network": None if network is None else network.to_json(),
            **driven.totals_json(),
            **kept,
        },
        lambda: [*driven.tables(), *map(str, files)],
    )
    summaries = driven.tasks if network is None else {"": network.whole}
    for name, one in summaries.items():
        for sentence in one.warnings:
            terminal.complain(f"{name}: {sentence}" if name else sentence)
    if failure is not None:
        raise failure
    if any(record.interrupted for record in driven.records.values()):
        raise typer.Exit(INTERRUPTED)
    if not any(one.answered for one in summaries.values()):
        raise CommandError("no request was answered", FAILED)
    for name, one in driven.tasks.items() if require_target else ():
        promise = one.promise
        if promise is not None and promise.state == "missed":
            raise CommandError(
                f"the mean accuracy of {promise.answers:,} answers of task {name} is "
                f"{promise.mean:.4f}, below its target {promise.target:g}",
                FAILED,
            )


def _labeled(given: Sequence[str], task: str | None) -> Path | dict[str, Path] | None:
    """Read ``FILE`` and ``TASK=FILE``; None without any.

    CommandError when two are of the same task, or it is not clear of which they are.
    """
    files = dict[str, Path]()
    for one in given:
        name, equals, rest = one.partition("=")
        if not equals or Path(one).is_file():
            name, rest = task or "", one
        if name and name in files:
            raise CommandError(f"--data names two files of the task {name!r}: give one")
        if files and "" in (name, *files):
            raise CommandError("--data names several files: say whose each is, as TASK=FILE")
        files[name] = Path(rest)
    return files.get("") or files or None


def apply(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Deployment file (YAML), or a folder of models; what is in force if not given.",
        ),
    ] = None,
    admin_url: Annotated[
        str, says("The running server's admin listener.")
    ] = "http://127.0.0.1:8002",
    policy: options.Policy = None,
    target: Annotated[
        float | None,
        says("Accuracy target of every task, in place of the file's.", min=0.0, max=1.0),
    ] = None,
    dry_run: Annotated[
        bool, says("Change nothing: say what would change, and whether it can.", "--dry-run")
    ] = False,
    key_file: options.KeyFile = None,
    timeout: Annotated[
        float, says("Seconds to wait until what is new is loaded and warm.", min=1)
    ] = 300.0,
    json: terminal.Json = False,
) -> None:
    """Have a running server serve this file, or the same file changed, without losing a request.

    With --policy and --target, these take the place of what the file says, or, without a FILE, of
    what is in force.
    """
    from inferway import live

    admin_url = options.server(admin_url)
    if file is None and policy is None and target is None:
        raise CommandError(
            "name a FILE to serve, or give --policy or --target to change what is in force"
        )
    # What is wrong is said with its lines.
    deployment = None if file is None else inferway.load(options.existing(file))
    change: dict[str, Any] = {
        "policy": policy and options.dispatch_policy(policy),
        "target": target,
    }
    if deployment is not None:
        with failing(ValueError):
            deployment.with_(**change)
    key = options.key(key_file, "admin")
    try:
        served = live.apply(
            deployment, admin_url, dry_run=dry_run, key=key, timeout_s=timeout, **change
        )
    except OSError as error:
        reason = getattr(error, "reason", error)
        why = (getattr(reason, "strerror", None) or str(reason)).lower()
        raise CommandError(
            f"no server can be asked at {admin_url} ({why}): start one with `inferway serve FILE`, "
            "or say with --admin-url where its admin listener is",
            FAILED,
        ) from error
    tasks = [f"{task} with {', '.join(of)}" for task, of in served["tasks"].items()]
    if dry_run:
        lines = [f"would serve {one}" for one in tasks] + _differences(served["difference"])
    else:
        lines = [f"serving {one}" for one in tasks]
    terminal.present(json, lambda: served, lambda: lines)


def _differences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write a line for each field that would change."""

    def told(one: Mapping[str, Any], when: str) -> str:
        if one["hidden"]:
            return "(hidden)"
        return "nothing" if one[when] is None else str(one[when])

    return [
        f"{one['field']}: {told(one, 'before')} becomes {told(one, 'after')}" for one in found
    ] or ["nothing would change"]


def conformance(
    url: Annotated[str, typer.Argument(metavar="URL", help="Any server: http://HOST:PORT.")],
    task: Annotated[str | None, says("The model to ask; else the first that is ready.")] = None,
    version: Annotated[str | None, says("Its version, where the server wants one.")] = None,
    grpc: Annotated[
        str | None, says("Check the same server over gRPC too.", metavar="HOST:PORT")
    ] = None,
    key_file: options.KeyFile = None,
    seed: Annotated[int, says("Seed of the tensors sent.")] = 1,
    json: terminal.Json = False,
) -> None:
    """Check a server against the Open Inference Protocol v2, endpoint by endpoint."""
    from inferway import conformance as suite

    url, key = options.server(url), options.key(key_file)
    with terminal.progress() as progress:
        report = suite.run(
            url, task=task, version=version, grpc_url=grpc, seed=seed, key=key, progress=progress
        )
    terminal.present(json, report.to_json, lambda: [report.table()])
    if not report.passed:
        raise typer.Exit(FAILED)
