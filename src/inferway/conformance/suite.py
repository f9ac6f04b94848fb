"""All checks in their order, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from inferway.conformance.checks import binary, connection, health, infer, metadata, refusals
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.outcome import Check, Outcome, Result
from inferway.conformance.report import Report
from inferway.conformance.target import ConformanceError, Target, find
from inferway.protocol.address import parse_server

CHECKS: Final[tuple[Check, ...]] = (
    *health.CHECKS,
    *metadata.CHECKS,
    *infer.CHECKS,
    *binary.CHECKS,
    *connection.CHECKS,
    *refusals.CHECKS,
)


def run(
    url: str,
    *,
    task: str | None = None,
    version: str | None = None,
    grpc_url: str | None = None,
    seed: int = 1,
    timeout_s: float = 10.0,
    key: str | None = None,
    checks: Sequence[Check] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Report:
    """Check a server against the Open Inference Protocol v2 over HTTP, and over gRPC.

    Parameters
    ----------
    url
        Of any server, Inferway's or another, `http://127.0.0.1:8000`.
    task
        The model to ask; without one, the first that the server's repository index calls ready.
    version
        One of its versions, for a server that answers no path without one.
    grpc_url
        Where the same server answers over gRPC, `127.0.0.1:8001`; checked only if given.
    seed
        Of the tensors sent.
    timeout_s
        Longest wait of one call, in seconds.
    key
        Sent with every call, for a server that asks for one.
    checks
        Which; by default all over HTTP, and those over gRPC if `grpc_url` is given.
    progress
        Told each check's name and the part of all that is done, 0..1.

    Returns
    -------
    Report
        One result for each check; `report.passed` when none failed.

    Raises
    ------
    ConformanceError
        When an address is none, nothing answers there, no model is found, or gRPC is not installed.
    """
    try:
        address = parse_server(url)
    except ValueError as error:
        raise ConformanceError(str(error)) from None
    if checks is None:
        checks = CHECKS if grpc_url is None else (*CHECKS, *grpc_checks(grpc_url))
    target = find(address, task, version, seed, timeout_s, key)
    target.grpc_url = grpc_url
    results = []
    gone = ""
    for number, check in enumerate(checks):
        if progress is not None:
            progress(check.name, number / len(checks))
        if gone:
            results.append(Result(check, Outcome.FAILED, gone))
            continue
        result = outcome(check, target)
        results.append(result)
        if result.outcome is Outcome.FAILED and not _answers(target):
            gone = f"the server no longer answers, since the check {check.name!r}"
    if progress is not None:
        progress("done", 1.0)
    return Report(address.url, target.task, seed, tuple(results))


def grpc_checks(url: str) -> tuple[Check, ...]:
    """Give the checks over gRPC.

    Raises
    ------
    ConformanceError
        When the address is none, or the extra `grpc` is not installed.
    """
    try:
        from inferway.conformance.channel import Channel
        from inferway.conformance.checks import rpc
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise ConformanceError(
            "checks over gRPC need grpcio and protobuf: pip install 'inferway[grpc]'"
        ) from error
    with Channel(url, 1.0):
        return rpc.CHECKS


def outcome(check: Check, target: Target) -> Result:
    """Run one check."""
    try:
        return Result(check, Outcome.PASSED, check.run(target))
    except ViolationError as error:
        return Result(check, Outcome.FAILED, str(error))
    except NotOfferedError as error:
        return Result(check, Outcome.NOT_OFFERED, str(error))


def _answers(target: Target) -> bool:
    try:
        target.get("/v2/health/live")
    except ViolationError:
        return False
    return True
