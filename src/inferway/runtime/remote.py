"""Models that run elsewhere, and those behind a server of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, TypeVar

import msgspec

from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ModelAddress
from inferway.protocol.inference import AnswerError, UnwritableError, content_lines, decode, encode
from inferway.protocol.messages import RemoteModel, RemoteServer, TensorMetadata
from inferway.runtime.runtime import Arrays, Runtime
from inferway.runtime.server import Fault, RemoteError, ServerConnections
from inferway.unreadable import UNREADABLE, fault

# Longest wait for one answer, unless told otherwise.
TIMEOUT_S: Final = 10.0
# What a server calls the binary tensor extension in its metadata.
BINARY: Final = "binary_tensor_data"
# A server that gave no answer in time is asked for so long whether it lives.
HEALTH_S: Final = 0.5
# Larger tensors and answers are written and read in a thread: the loop has others to serve.
_LARGE_BYTES: Final = 128 * 1024

T = TypeVar("T")


class AwaitedRuntime(ABC):
    """A model that runs elsewhere; its runs are awaited, on any one event loop.

    Parameters
    ----------
    signature
        What the model must have, in this order; None takes what is said elsewhere.

    Attributes
    ----------
    known_signature
        What goes in and comes out, as far as that has been said; else None.
    faults
        How many calls failed, by kind.
    down
        Why the model is of no use now, as far as the last call tells; empty while it is.
    apart
        Whether each of its copies fails by itself, so that another may have what one has lost.
    """

    apart = False

    def __init__(self, signature: Signature | None = None) -> None:
        self.known_signature = signature
        self.faults: Counter[Fault] = Counter()
        self.down = ""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs; where they have not been said, they are asked for, in this thread.

        Raises
        ------
        RemoteError
            When they are not known yet and nobody says them.
        """
        if self.known_signature is None:
            self.learn()
        assert self.known_signature is not None
        return self.known_signature

    @property
    def opened(self) -> int:
        """Connections made so far."""
        return 0

    @property
    def retried(self) -> int:
        """Calls made again because the first connection ended before they were out."""
        return 0

    def learn(self) -> None:
        """Ask, in this thread, for the model's signature and for what it can take.

        Raises
        ------
        RemoteError
            When nobody answers, the model is not served, or its signature cannot be served or is
            not the one expected.
        """
        with closing(BlockingRemote(self)) as blocking:
            blocking.wait(self.describe())

    @abstractmethod
    async def describe(self) -> None:
        """Ask for the same as `learn` does, on the loop.

        Raises
        ------
        RemoteError
            As `learn`.
        """

    @abstractmethod
    async def infer(self, inputs: Arrays) -> Arrays:
        """Answer one batch; canceled, nobody waits for it any more.

        Raises
        ------
        RemoteError
            When there is no answer.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the way there; calls that are under way still end."""


class RemoteRuntime(AwaitedRuntime):
    """A model that a remote server runs.

    It asks the server for the model's signature and for what it can take before the first request,
    and again after it could not be reached: what answers then may be another server. Where its
    metadata lists the binary tensor extension, tensors go as raw bytes, else as JSON.

    Parameters
    ----------
    address
        Of the model.
    timeout_s
        Longest wait for one answer, s, connection included.
    key
        Sent as bearer key with every request; None sends none.
    signature
        What the model must have, in this order; None takes what the server says.

    Attributes
    ----------
    binary
        Whether tensors go as raw bytes; None while the server has not been asked.
    """

    def __init__(
        self,
        address: ModelAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        key: str | None = None,
        signature: Signature | None = None,
    ) -> None:
        if not 0.0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s is {timeout_s}; it must be a finite time above 0, in s")
        if key is not None and (not key.isascii() or any(one <= " " for one in key)):
            raise ValueError("the key holds what no HTTP header can; give one of ASCII, unspaced")
        super().__init__(signature)
        self.address, self.timeout_s = address, timeout_s
        common = f"Host: {address.authority}\r\nAccept-Encoding: identity\r\n"
        if key is not None:
            common += f"Authorization: Bearer {key}\r\n"
        self._common = common.encode("ascii")
        self._tls = ssl.create_default_context() if address.tls else None
        self._made: list[ServerConnections] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.binary: bool | None = None

    @property
    def opened(self) -> int:
        """Connections made so far."""
        return sum(one.opened for one in self._made)

    @property
    def retried(self) -> int:
        """Calls made again because the first connection ended before they were out."""
        return sum(one.retried for one in self._made)

    async def describe(self) -> None:
        """Ask the server for the same as `learn` does, on the loop.

        Raises
        ------
        RemoteError
            As `learn`.
        """
        try:
            await self._describe()
        except RemoteError as error:
            raise await self._failed(error) from None

    async def infer(self, inputs: Arrays) -> Arrays:
        """Answer one batch; canceled, its connection ends.

        Raises
        ------
        RemoteError
            When the server gave no answer.
        """
        try:
            if self.binary is None:
                await self._describe()
            outputs = await self._infer(inputs)
        except RemoteError as error:
            raise await self._failed(error) from None
        self.down = ""
        return outputs

    def close(self) -> None:
        """End the connections; calls that are under way still end."""
        for one in self._made:
            one.close()

    def _connections(self) -> ServerConnections:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._made.append(ServerConnections(self.address, self._tls))
        return self._made[-1]

    async def _describe(self) -> None:
        deadline_s = time.monotonic() + self.timeout_s
        model = await self._get(self.address.path, RemoteModel, deadline_s)
        said = _signature(model)
        if said is None and self.known_signature is None:
            raise RemoteError(
                Fault.UNFIT,
                "the remote server does not say the model's inputs and outputs, and no other "
                "variant of the task does; describe them in the server's configuration",
            )
        if said is not None:
            self.known_signature = _agreed(said, self.known_signature)
        try:
            server = await self._get(self.address.server_path, RemoteServer, deadline_s)
            binary = BINARY in server.extensions
        except RemoteError as error:
            if error.fault in (Fault.UNREACHABLE, Fault.LATE):
                raise
            binary = False  # a server that says nothing of itself can still serve
        self.binary = binary

    async def _failed(self, error: RemoteError) -> RemoteError:
        self.faults[error.fault] += 1
        if error.fault in (Fault.UNREACHABLE, Fault.UNAVAILABLE, Fault.UNFIT):
            self.binary = None
        if error.fault is not Fault.REFUSED:
            self.down = str(error)
        if error.fault is Fault.LATE:
            error.hung = not await self._lives()
        return error

    async def _lives(self) -> bool:
        """Tell whether the server answers anything on a connection of its own."""
        connections = ServerConnections(self.address, self._tls)
        path = f"{self.address.server_path}/health/live"
        try:
            await connections.exchange(self._head("GET", path), (), time.monotonic() + HEALTH_S)
        except RemoteError:
            return False
        finally:
            connections.close()
        return True

    async def _infer(self, inputs: Arrays) -> Arrays:
        # Another call may have found out that it must be asked anew: then JSON will do.
        binary, signature = bool(self.binary), self.signature
        deadline_s = time.monotonic() + self.timeout_s
        asked = [(tensor, inputs[tensor.name]) for tensor in signature.inputs]
        size = sum(array.nbytes for _, array in asked)
        try:
            body, json_length = await _apart(
                size, lambda: encode(asked, signature.outputs, binary=binary)
            )
        except UnwritableError as error:
            raise RemoteError(Fault.REFUSED, str(error), unserved=True) from None
        lines = content_lines(json_length) + b"Content-Length: %d\r\n" % sum(map(len, body))
        head = self._head("POST", f"{self.address.path}/infer", lines)
        reply = await self._connections().exchange(head, body, deadline_s)
        reply.check()
        rows, length = len(asked[0][1]), reply.json_length
        try:
            return await _apart(
                len(reply.body), lambda: decode(signature, rows, reply.body, length)
            )
        except AnswerError as error:
            raise RemoteError(Fault.BROKEN, f"the remote server's answer {error}") from None

    def _head(self, method: str, path: str, lines: bytes = b"") -> bytes:
        line = f"{method} {path} HTTP/1.1\r\n".encode("ascii")
        return b"%s%s%s\r\n" % (line, self._common, lines)

    async def _get(self, path: str, kind: type[T], deadline_s: float) -> T:
        reply = await self._connections().exchange(self._head("GET", path), (), deadline_s)
        reply.check()
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except UNREADABLE as error:
            raise RemoteError(
                Fault.BROKEN,
                f"the remote server's metadata are not those of the protocol: {fault(error)}",
            ) from None


# What runs a variant: here, or elsewhere.
Served = Runtime | AwaitedRuntime


class BlockingRemote:
    """A remote model as a runtime, for those who have a thread to wait with.

    Parameters
    ----------
    remote
        The model. Its loop is this runtime's own, in the calling thread, or in one aside where the
        calling thread runs another loop.
    """

    def __init__(self, remote: AwaitedRuntime) -> None:
        self.remote = remote
        self._runner = asyncio.Runner()

    @property
    def signature(self) -> Signature:
        """Inputs and outputs; see `AwaitedRuntime.signature`."""
        if self.remote.known_signature is None:
            self.wait(self.remote.describe())
        return self.remote.signature

    def run(self, inputs: Arrays) -> Arrays:
        """Answer one batch; see `inferway.runtime.Runtime.run`.

        Raises
        ------
        RemoteError
            When the server gave no answer.
        """
        return self.wait(self.remote.infer(inputs))

    def close(self) -> None:
        """End the connections."""
        self.wait(self._close())
        _outside(self._runner.close)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something to its end."""
        return _outside(lambda: self._runner.run(work))

    async def _close(self) -> None:
        self.remote.close()
        for _ in range(3):  # for the transports to end
            await asyncio.sleep(0)


def _outside(work: Callable[[], T]) -> T:
    """Do something where no loop runs: in a thread of its own, where this one's does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


async def _apart(size: int, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if size > _LARGE_BYTES else work()


def _signature(model: RemoteModel) -> Signature | None:
    """Read a signature from metadata; None where they leave it out, as MLServer's may."""
    if not model.inputs or not model.outputs:
        return None
    return Signature(
        tuple(_tensor("input", one) for one in model.inputs),
        tuple(_tensor("output", one) for one in model.outputs),
    )


def _tensor(side: str, said: TensorMetadata) -> Tensor:
    wrong = ""
    if said.datatype not in DTYPES:
        wrong = f"datatype {said.datatype[:20]!r}, expected one of {', '.join(DTYPES)}"
    elif not said.shape or said.shape[0] != -1:
        offer = "have its server offer the batch as a first axis of any length, -1"
        wrong = f"shape {list(said.shape)}; {offer}"
    if wrong:
        where = f"the remote model's {side} {said.name!r}"
        raise RemoteError(Fault.UNFIT, f"{where} has the {wrong}")
    return Tensor(said.name, said.datatype, tuple(axis if axis >= 0 else -1 for axis in said.shape))


def _agreed(said: Signature, expected: Signature | None) -> Signature:
    """Take the order that is expected: tensors go by name, so that of the server says nothing."""
    if expected is None:
        return said
    if {*said.inputs} == {*expected.inputs} and {*said.outputs} == {*expected.outputs}:
        return expected
    raise RemoteError(
        Fault.UNFIT,
        f"the remote model's signature {said} differs from {expected} of the task's other variants",
    )
