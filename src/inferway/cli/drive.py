"""``inferway drive``: the file's workload, sent to a running server or to a network's nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import address, terminal
from inferway.cli.failure import INTERRUPTED, REFUSED, CommandError
from inferway.cli.file import File, opened, saved, writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.deployment import Deployment
    from inferway.loadgen import Access, Record, Summary

_URL = "http://127.0.0.1:8000"


def drive(
    file: File,
    url: Annotated[
        str | None,
        typer.Option(
            help=f"The server; {_URL} if neither this nor a network is given.", show_default=False
        ),
    ] = None,
    addresses: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Where the nodes of a network listen, in place of the file's `address`.",
            show_default=False,
        ),
    ] = None,
    key_file: address.KeyFile = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pem",
            help="Authority of the servers' certificates; else those that the system trusts.",
            show_default=False,
        ),
    ] = None,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to send for.")] = 30.0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of the requests; the file's if not given.", show_default=False),
    ] = None,
    connections: Annotated[
        int, typer.Option(min=1, help="Greatest number of connections to each server.")
    ] = 512,
    binary: Annotated[
        bool, typer.Option("--binary/--no-binary", help="Tensors as raw bytes, or as JSON.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write every request (Parquet) and a figure.", show_default=False
        ),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Send the file's workload to a server or a network, open-loop; say what its requests met."""
    deployment = opened(file)
    url = None if url is None else address.checked(url)
    access = _access(key_file, ca)
    if out is not None:  # now, rather than fail with what was measured
        writable(out)
    if deployment.network is not None and deployment.workload:
        from inferway.loadgen import AddressError

        try:
            reached = _addresses(deployment, url, addresses)
            _network(deployment, reached, access, duration, seed, connections, binary, out, json)
        except AddressError as error:
            raise CommandError(str(error), REFUSED) from error
        return
    if addresses is not None:
        raise CommandError(f"{file} has no `network`: name its one server with --url", REFUSED)
    _server(deployment, url or _URL, access, duration, seed, connections, binary, out, json)


def _access(key_file: Path | None, ca: Path | None) -> Access:
    from inferway.loadgen import Access, DriveError

    key = address.key(key_file) or None  # an empty variable is none
    try:
        return Access(key, ca)
    except DriveError as error:
        raise CommandError(str(error), REFUSED) from error


def _addresses(deployment: Deployment, url: str | None, file: Path | None) -> dict[str, str]:
    from inferway import loadgen as generator

    if url is None:
        return generator.addresses_of(deployment, file)
    if file is not None:
        raise CommandError("--url names one server and --addresses several: give one", REFUSED)
    from inferway.network import topology_of

    return dict.fromkeys(topology_of(deployment).nodes, url)


def _network(
    deployment: Deployment,
    addresses: dict[str, str],
    access: Access,
    duration: float,
    seed: int | None,
    connections: int,
    binary: bool,
    out: Path | None,
    json: bool,
) -> None:
    from inferway import loadgen as generator

    with terminal.progress() as progress:
        record = generator.drive_network(
            deployment,
            addresses,
            access=access,
            duration_s=duration,
            seed=seed,
            connections=connections,
            binary=binary,
            progress=progress,
        )
    found = generator.network_summary(record, deployment)
    files, failure = _saved(
        out,
        {record.task: record},
        lambda driven: driven.course(record, found, title=deployment.path.name),
    )
    if json:
        tasks = {name: one.to_dict() for name, one in found.tasks.items()}
        _document(tasks, found.to_json(), files)
    else:
        from inferway.experiments.driven import network_tables

        terminal.show(*network_tables(found), *map(str, files))
    _conclude({"": found.whole}, record.interrupted, failure)


def _server(
    deployment: Deployment,
    url: str,
    access: Access,
    duration: float,
    seed: int | None,
    connections: int,
    binary: bool,
    out: Path | None,
    json: bool,
) -> None:
    from inferway import loadgen as generator

    with terminal.progress() as progress:
        records = generator.run(
            deployment,
            url,
            access=access,
            duration_s=duration,
            seed=seed,
            connections=connections,
            binary=binary,
            progress=progress,
        )
    summaries = {}
    for name, record in records.items():
        variants = deployment.tasks[name].variants.values()
        accuracy = {variant.name: variant.accuracy for variant in variants}
        summaries[name] = generator.summary(record, accuracy)
    parts = {name: record.latency_s for name, record in records.items()}
    files, failure = _saved(
        out, records, lambda driven: driven.latencies(parts, title=deployment.path.name)
    )
    if json:
        _document({name: one.to_dict() for name, one in summaries.items()}, None, files)
    else:
        from inferway.experiments.driven import task_tables

        terminal.show(*task_tables(url, summaries), *map(str, files))
    _conclude(summaries, any(record.interrupted for record in records.values()), failure)


def _saved(
    out: Path | None, records: Mapping[str, Record], drawn: Callable[[ModuleType], Figure]
) -> tuple[list[Path], CommandError | None]:
    if out is None:
        return [], None
    from inferway.experiments import driven

    return saved(out, lambda: driven.write(records, out, drawn(driven)))


def _document(tasks: Mapping[str, object], network: object, files: list[Path]) -> None:
    written = {"parquet": str(files[0]), "figures": list(map(str, files[1:]))} if files else {}
    terminal.document({"schema": 1, "tasks": tasks, "network": network, **written})


def _conclude(
    summaries: dict[str, Summary], interrupted: bool, failure: CommandError | None
) -> None:
    for name, one in summaries.items():
        for sentence in one.warnings:
            terminal.complain(f"{name}: {sentence}" if name else sentence)
    if failure is not None:
        raise failure
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not any(one.answered for one in summaries.values()):
        raise CommandError("no request was answered")
