"""All checks in their order, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from inferway.conformance.checks import infer, metadata
from inferway.conformance.client import NotOfferedError, ViolationError
from inferway.conformance.report import Check, CheckOutcome, Finding, Report
from inferway.conformance.target import ConformanceError, Target, find
from inferway.protocol.address import parse_server

CHECKS: Final[tuple[Check, ...]] = (*metadata.CHECKS, *infer.CHECKS)


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
        checks = CHECKS if grpc_url is None else (*CHECKS, *_grpc_checks(grpc_url))
    target = find(Target(address, task or "", version, seed, timeout_s, grpc_url, key))
    findings = []
    gone = ""
    for number, check in enumerate(checks):
        if progress is not None:
            progress(check.name, number / len(checks))
        finding = Finding(check, CheckOutcome.FAILED, gone) if gone else _run(check, target)
        findings.append(finding)
        if finding.outcome is CheckOutcome.FAILED and not gone:
            try:
                target.call("GET", "/v2/health/live")
            except ViolationError:
                gone = f"the server no longer answers, since the check {check.name!r}"
    if progress is not None:
        progress("done", 1.0)
    return Report(address.url, target.task, seed, tuple(findings))


def _run(check: Check, target: Target) -> Finding:
    try:
        return Finding(check, CheckOutcome.PASSED, check.run(target))
    except ViolationError as error:
        return Finding(check, CheckOutcome.FAILED, str(error))
    except NotOfferedError as error:
        return Finding(check, CheckOutcome.NOT_OFFERED, str(error))


def _grpc_checks(url: str) -> tuple[Check, ...]:
    try:
        from inferway.conformance.checks import rpc
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise ConformanceError(
            "checks over gRPC need grpcio and protobuf: pip install 'inferway[grpc]'"
        ) from error
    rpc.channel(url).close()
    return rpc.CHECKS
