"""``inferway conformance``: does a server speak the Open Inference Protocol?"""

from __future__ import annotations

from typing import Annotated

import typer

from inferway.cli import address, terminal
from inferway.cli.failure import FAILED


def conformance(
    url: Annotated[str, typer.Argument(metavar="URL", help="Any server: http://HOST:PORT.")],
    task: Annotated[
        str | None, typer.Option(help="The model to ask; else the first that is ready.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Its version, where the server wants one.")
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Check the same server over gRPC too."),
    ] = None,
    key_file: address.KeyFile = None,
    seed: Annotated[int, typer.Option(help="Seed of the tensors sent.")] = 1,
    json: terminal.Json = False,
) -> None:
    """Check a server against the Open Inference Protocol v2, endpoint by endpoint."""
    from inferway import conformance as suite

    url = address.checked(url)
    key = address.key(key_file)
    with terminal.progress() as progress:
        report = suite.run(
            url, task=task, version=version, grpc_url=grpc, seed=seed, key=key, progress=progress
        )
    if json:
        terminal.document(report.to_json())
    else:
        terminal.show(report.table())
    if not report.passed:
        raise typer.Exit(FAILED)
