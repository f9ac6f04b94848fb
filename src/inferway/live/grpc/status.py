"""Ends of calls that cannot be answered: HTTP statuses in the words of gRPC."""

from __future__ import annotations

import math
from typing import Any, Final

import grpc

from inferway.live.request import LONGEST_RETRY_S, STATUS, Outcome, Request
from inferway.live.security.keys import Denied
from inferway.protocol.refusal import RefusalError

CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,  # RESOURCE_EXHAUSTED would say that it may fit later
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The gRPC status for each status with which HTTP refuses."""


class CallError(Exception):
    """Ends a call that is not answered: status, reason in a sentence, trailing metadata."""

    def __init__(self, code: grpc.StatusCode, reason: str, trailing: Any = ()) -> None:
        super().__init__(reason)
        self.code, self.reason, self.trailing = code, reason, trailing


def refused(refusal: RefusalError) -> CallError:
    """End a call for what is wrong with it."""
    code = CODES.get(refusal.status, grpc.StatusCode.UNKNOWN)
    return CallError(code, refusal.reason, retry(1.0) if refusal.status == 503 else ())


def denied(found: Denied) -> CallError:
    """End a call whose key does not open it."""
    reason = found.reason
    if found.status == 401:
        reason = "the call needs a valid key: authorization: Bearer KEY"
    return CallError(CODES[found.status], reason, retry(found.retry_s) if found.retry_s else ())


def ended(request: Request) -> CallError:
    """End the call of a request that was not answered."""
    assert request.outcome is not None
    after = called(request)
    if request.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
        after += retry(request.retry_after_s)
    return CallError(code_of(request.outcome), request.reason, after)


def code_of(outcome: Outcome) -> grpc.StatusCode:
    """Tell the status of a request that was not answered."""
    status = STATUS.get(outcome)
    return grpc.StatusCode.CANCELLED if status is None else CODES[status]


def called(request: Request) -> Any:
    """Name a request in trailing metadata: by this it can be explained."""
    return (("x-request-id", request.id.decode()),)


def retry(after_s: float) -> Any:
    """Say when another try may be worth it, within 1 ms and a minute, as trailing metadata.

    People are told as HTTP does it, gRPC's retries by `grpc-retry-pushback-ms` of its proposal A6.
    """
    wait_s = min(LONGEST_RETRY_S, max(0.001, after_s))
    return (
        ("retry-after", str(math.ceil(wait_s))),
        ("grpc-retry-pushback-ms", str(math.ceil(wait_s * 1e3))),
    )
