from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from inferway.live.grpc.endpoint import Endpoint


class Context:
    """A call that remembers how it was ended."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    async def abort(self, code: Any, details: str, _metadata: Any) -> None:
        self.ends.append((code, details))
        raise grpc.aio.AbortError


def answer(error: BaseException) -> tuple[Context, list[BaseException], BaseException]:
    """Call a method that raises; tell how the call ended, what was reported and what was raised."""
    broken: list[BaseException] = []
    context = Context()

    async def method(_context: Any) -> None:
        raise error

    call: Any = Endpoint(lambda: True, broken.append)._safe(method)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - it is looked at by the tests
        asyncio.run(call(b"", context))
    return context, broken, caught.value


def test_an_unforeseen_error_is_reported_here_and_not_told_there() -> None:
    error = KeyError("secret")
    context, broken, raised = answer(error)
    assert context.ends == [(grpc.StatusCode.INTERNAL, "the server failed to answer")]
    assert broken == [error]
    assert isinstance(raised, grpc.aio.AbortError)


@pytest.mark.parametrize("kind", [grpc.aio.AbortError, grpc.aio.InternalError])
def test_what_grpc_raises_is_left_to_it(kind: type[Exception]) -> None:
    # The second where a client has gone that something is being written to.
    error = kind()
    context, broken, raised = answer(error)
    assert (context.ends, broken) == ([], [])
    assert raised is error


def test_a_canceled_call_is_no_failure() -> None:
    context, broken, raised = answer(asyncio.CancelledError())
    assert (context.ends, broken) == ([], [])
    assert isinstance(raised, asyncio.CancelledError)
