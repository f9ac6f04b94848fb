"""A model behind another Open Inference Protocol server: Triton, MLServer, OVMS, Inferway."""

from __future__ import annotations

import time
from collections import Counter
from threading import Lock
from typing import Any, Final, TypeVar

import msgspec
from numpy.typing import NDArray

from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ModelAddress
from inferway.protocol.inference import AnswerError, UnwritableError, content_lines, decode, encode
from inferway.protocol.messages import ErrorMessage, RemoteModel, RemoteServer, TensorMetadata
from inferway.runtime.remote_failure import Fault, RemoteError
from inferway.runtime.remote_wires import RemoteCall, RemoteReply, RemoteWires
from inferway.unreadable import UNREADABLE, fault

TIMEOUT_S: Final = 10.0
"""Longest wait for one answer, unless told otherwise."""
BINARY: Final = "binary_tensor_data"
"""What a server calls the binary tensor extension in its metadata."""
HEALTH_S: Final = 0.5
"""A server that gave no answer in time is asked for so long whether it lives."""
_LONGEST_REASON: Final = 300

_FAULTS: Final = {
    429: Fault.OVERLOADED,
    404: Fault.UNAVAILABLE,
    503: Fault.UNAVAILABLE,
    408: Fault.LATE,
    504: Fault.LATE,
}
# What is wrong with our access, and not with the input.
_OURS: Final = frozenset((401, 402, 403, 405, 407, 411))


T = TypeVar("T")


class RemoteRuntime:
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
    faults
        How many calls failed, by kind.
    down
        Why the server is of no use now, as far as the last call tells; empty while it is.
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
        self.address = address
        self.timeout_s = timeout_s
        self._common = f"Host: {address.authority}\r\nAccept-Encoding: identity\r\n"
        if key is not None:
            self._common += f"Authorization: Bearer {key}\r\n"
        self._post = f"POST {address.path}/infer HTTP/1.1\r\n{self._common}"
        self._wires = RemoteWires(address)
        self._signature = signature
        self._binary: bool | None = None
        self._lock = Lock()
        self.faults: Counter[Fault] = Counter()
        self.down = ""

    @property
    def signature(self) -> Signature:
        """What goes in and comes out.

        Raises
        ------
        RemoteError
            When it is not known yet and the server does not say it.
        """
        if self._signature is None:
            self.learn()
        assert self._signature is not None
        return self._signature

    @property
    def binary(self) -> bool | None:
        """Whether tensors go as raw bytes; None while the server has not been asked."""
        return self._binary

    @property
    def opened(self) -> int:
        """Connections made so far."""
        return self._wires.opened

    @property
    def retried(self) -> int:
        """Calls made again because the first connection ended before they were out."""
        return self._wires.retried

    def learn(self) -> None:
        """Ask the server for the model's signature and for what it can take.

        Raises
        ------
        RemoteError
            When it does not answer, does not serve the model, or its signature cannot be served or
            is not the one expected.
        """
        try:
            self._learn(time.monotonic() + self.timeout_s)
        except RemoteError as error:
            self._failed(error)
            raise

    def expect(self, signature: Signature) -> None:
        """Say what the model must have, where its server has not said what it has."""
        if self._signature is None:
            self._signature = signature

    def _learn(self, deadline_s: float) -> None:
        model = self._get(self.address.path, RemoteModel, deadline_s)
        said = _signature(model)
        if said is None and self._signature is None:
            raise RemoteError(
                Fault.UNFIT,
                "the remote server does not say the model's inputs and outputs, and no other "
                "variant of the task does; describe them in the server's configuration",
            )
        if said is not None:
            self._signature = _agreed(said, self._signature)
        try:
            server = self._get(self.address.server_path, RemoteServer, deadline_s)
            binary = BINARY in server.extensions
        except RemoteError as error:
            if error.fault in (Fault.UNREACHABLE, Fault.LATE):
                raise
            binary = False  # a server that says nothing of itself can still serve
        self._binary = binary

    def call(self) -> RemoteCall:
        """Make what stops one run by ending its connection; see `inferway.runtime.Stoppable`."""
        return RemoteCall()

    def run(
        self, inputs: dict[str, NDArray[Any]], call: RemoteCall | None = None
    ) -> dict[str, NDArray[Any]]:
        """Answer one batch; see `inferway.runtime.Runtime.run`.

        Raises
        ------
        RemoteError
            When the server gave no answer.
        """
        if self._binary is None:
            self.learn()
        try:
            outputs = self._run(inputs, call)
        except RemoteError as error:
            self._failed(error)
            raise
        self.down = ""
        return outputs

    def close(self) -> None:
        """End the connections; calls that are under way still end."""
        self._wires.close()

    def _failed(self, error: RemoteError) -> None:
        with self._lock:
            self.faults[error.fault] += 1
        if error.fault in (Fault.UNREACHABLE, Fault.UNAVAILABLE, Fault.UNFIT):
            self._binary = None
        if error.fault is Fault.LATE:
            error.hung = not self._lives()
        if error.fault is not Fault.REFUSED:
            self.down = str(error)

    def _lives(self) -> bool:
        """Whether the server answers anything on a connection of its own."""
        wires = RemoteWires(self.address)
        request = f"GET {self.address.server_path}/health/live HTTP/1.1\r\n{self._common}\r\n"
        try:
            wires.exchange([request.encode("ascii")], time.monotonic() + HEALTH_S)
        except RemoteError:
            return False
        finally:
            wires.close()
        return True

    def _run(
        self, inputs: dict[str, NDArray[Any]], call: RemoteCall | None
    ) -> dict[str, NDArray[Any]]:
        # Another thread may have found out that it must be asked anew: then JSON will do.
        binary, signature = bool(self._binary), self.signature
        deadline_s = time.monotonic() + self.timeout_s
        try:
            asked = [(tensor, inputs[tensor.name]) for tensor in signature.inputs]
            body, json_length = encode(asked, signature.outputs, binary=binary)
        except UnwritableError as error:
            raise RemoteError(Fault.REFUSED, str(error), unserved=True) from None
        size = b"Content-Length: %d\r\n\r\n" % sum(map(len, body))
        head = self._post.encode("ascii") + content_lines(json_length) + size
        reply = self._wires.exchange([head, *body], deadline_s, call)
        if reply.status != 200:
            raise _failure(reply)
        _check_coding(reply)
        rows = len(inputs[signature.inputs[0].name])
        try:
            return decode(signature, rows, reply.body, reply.json_length)
        except AnswerError as error:
            raise RemoteError(Fault.BROKEN, f"the remote server's answer {error}") from None

    def _get(self, path: str, kind: type[T], deadline_s: float) -> T:
        request = f"GET {path} HTTP/1.1\r\n{self._common}\r\n"
        reply = self._wires.exchange([request.encode("ascii")], deadline_s)
        if reply.status != 200:
            raise _failure(reply)
        _check_coding(reply)
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except UNREADABLE as error:
            raise RemoteError(
                Fault.BROKEN,
                f"the remote server's metadata are not those of the protocol: {fault(error)}",
            ) from None


def _failure(reply: RemoteReply) -> RemoteError:
    """Make the error that a status other than 200 stands for."""
    status = reply.status
    fault = _FAULTS.get(status, Fault.BROKEN)
    if status not in _FAULTS and 400 <= status < 500 and status not in _OURS:
        fault = Fault.REFUSED
    said = ""
    try:
        said = msgspec.json.decode(reply.body, type=ErrorMessage).error
    except UNREADABLE:
        if 300 <= status < 400:
            said = "redirects are not followed"
    said = " ".join(said.split())
    if len(said) > _LONGEST_REASON:
        said = said[: _LONGEST_REASON - 3] + "..."
    return RemoteError(
        fault,
        f"the remote server answered {status}" + (f": {said}" if said else ""),
        unserved=fault in (Fault.OVERLOADED, Fault.UNAVAILABLE),
        retry_after_s=reply.retry_after_s,
    )


def _check_coding(reply: RemoteReply) -> None:
    if reply.coding not in ("", "identity"):
        raise RemoteError(
            Fault.BROKEN,
            f"the remote server answered in the coding {reply.coding[:20]!r}, not asked for",
        )


def _signature(model: RemoteModel) -> Signature | None:
    """Read a signature from metadata; None where they leave it out, as MLServer's may."""
    if not model.inputs or not model.outputs:
        return None
    return Signature(
        tuple(_tensor("input", one) for one in model.inputs),
        tuple(_tensor("output", one) for one in model.outputs),
    )


def _tensor(side: str, said: TensorMetadata) -> Tensor:
    where = f"the remote model's {side} {said.name!r}"
    if said.datatype not in DTYPES:
        raise RemoteError(
            Fault.UNFIT,
            f"{where} has the datatype {said.datatype[:20]!r}, expected one of {', '.join(DTYPES)}",
        )
    if not said.shape or said.shape[0] != -1:
        raise RemoteError(
            Fault.UNFIT,
            f"{where} has the shape {list(said.shape)}; have its server offer the batch as a first "
            "axis of any length, -1",
        )
    return Tensor(said.name, said.datatype, tuple(axis if axis >= 0 else -1 for axis in said.shape))


def _agreed(said: Signature, expected: Signature | None) -> Signature:
    """Take the order that is expected: tensors go by name, so that of the server says nothing."""
    if expected is None:
        return said
    same = set(said.inputs) == set(expected.inputs) and set(said.outputs) == set(expected.outputs)
    if not same:
        raise RemoteError(
            Fault.UNFIT,
            f"the remote model's signature {said} differs from {expected} of the task's other "
            "variants",
        )
    return expected
