"""Advice on remote variants, from asking their servers now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferway.deployment.cautions import Caution
from inferway.deployment.deployment import Deployment, Task
from inferway.deployment.models import ModelError, signature_of
from inferway.deployment.remote import runtime_of

if TYPE_CHECKING:
    from inferway.protocol import Signature

WAIT_S = 3.0
"""Longest wait for one server."""


def check(deployment: Deployment) -> list[Caution]:
    """Say which remote variants' servers do not answer, or have another signature.

    Asks each server once; takes a few seconds where one is silent.
    """
    found = [
        Caution(kind, field, deployment.line_of(field), message)
        for task in deployment.tasks.values()
        for kind, field, message in _of_task(task)
    ]
    return sorted(found, key=lambda caution: caution.line)


def _of_task(task: Task) -> Iterator[tuple[str, str, str]]:
    from inferway.runtime.remote_failure import Fault, RemoteError

    remotes = {name: v.remote for name, v in task.variants.items() if v.remote is not None}
    signature = _local_signature(task) if remotes else None
    for name, remote in remotes.items():
        field = f"tasks.{task.name}.variants.{name}.remote"
        try:
            runtime = runtime_of(remote, signature=signature, timeout_s=WAIT_S)
        except ValueError as error:
            yield "unreachable", field, str(error)
            continue
        try:
            runtime.learn()
            signature = runtime.signature
        except RemoteError as error:
            kind = "remote-unfit" if error.fault is Fault.UNFIT else "unreachable"
            yield kind, field, str(error)
        finally:
            runtime.close()


def _local_signature(task: Task) -> Signature | None:
    for variant in task.variants.values():
        if variant.model is not None:
            try:
                return signature_of(variant.model)
            except ModelError:  # of a zoo, whose models are not looked at when a file is read
                continue
    return None
