"""``inferway bound``: the best that policies can do that choose before they see an answer."""

from __future__ import annotations

from inferway.cli import terminal
from inferway.cli.failure import REFUSED, CommandError
from inferway.cli.file import File, Node, opened


def bound(
    file: File,
    node: Node = None,
    json: terminal.Json = False,
) -> None:
    """Say the best that policies can do that choose before they see an answer.

    That is the greatest rate at which the target can be kept, and the least response time.
    """
    import inferway
    from inferway.dispatch.bounds import UnreachableError

    deployment = opened(file)
    try:
        bounds = inferway.bound(deployment, node=node)
    except UnreachableError:
        raise
    except ValueError as error:  # no fleet that could be bounded
        raise CommandError(str(error), REFUSED) from error
    if json:
        tasks = {name: one.to_json() for name, one in bounds.items()}
        terminal.document({"schema": 1, "tasks": tasks, "network": None})
        return
    from inferway.experiments.bounded import tables

    for name, one in bounds.items():
        terminal.show(*tables(name, one))
