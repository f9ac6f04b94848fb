"""The server and the model under test, and the requests that its metadata ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from inferway.conformance.client import Answer, Wire
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.message import Input, Message, packed
from inferway.conformance.tensors import draw
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ServerAddress

BINARY: Final = "binary_tensor_data"
REPOSITORY: Final = "model_repository"

_SIZES: Final = ((2, 2), (1, 1), (1, 8), (1, 64), (1, 224))
"""Lengths tried for the first axis and for the others where the metadata say -1."""


class ConformanceError(ValueError):
    """The suite cannot run; the message is one sentence for the user."""


@dataclass
class Target:
    """A server, one model of it, and seeded requests for that model.

    Attributes
    ----------
    address
        The server's.
    task
        The model's name.
    version
        The version named by the user or by the repository index, if any.
    seed
        Of the tensors.
    timeout_s
        Longest wait of one call, in seconds.
    grpc_url
        Where the same server answers over gRPC, if that is asked for.
    key
        Sent with every call, for a server that asks for one.
    """

    address: ServerAddress
    task: str
    version: str | None = None
    seed: int = 1
    timeout_s: float = 10.0
    grpc_url: str | None = None
    key: str | None = None
    _draws: int = field(default=0, init=False)
    _answers: dict[bool, Answer] = field(default_factory=dict, init=False)

    def wire(self) -> Wire:
        """Connect, for several calls."""
        return Wire(self.address, self.timeout_s, self.key)

    def call(self, method: str, path: str, *rest: Any) -> Answer:
        """Call once, on a connection of its own."""
        with self.wire() as wire:
            return wire.call(method, path, *rest)

    def get(self, path: str) -> Answer:
        """Call GET once."""
        return self.call("GET", path)

    # Paths.

    @property
    def unversioned(self) -> str:
        """The model's path with no version."""
        return f"/v2/models/{quote(self.task, safe='')}"

    def versioned(self, version: str) -> str:
        """The path of one version."""
        return f"{self.unversioned}/versions/{quote(version, safe='')}"

    @cached_property
    def base(self) -> str:
        """The path under which the model is asked, without a version where that is answered."""
        if self.version is None or self.get(self.unversioned).status == 200:
            return self.unversioned
        return self.versioned(self.version)

    @cached_property
    def pinned(self) -> str:
        """The path under which always the same version answers, as far as there is one."""
        versions = self.versions
        return self.versioned(versions[0]) if versions else self.base

    # What the server says of itself.

    @cached_property
    def extensions(self) -> tuple[str, ...]:
        """The extensions in the server's metadata; none if those are broken."""
        try:
            found = self.get("/v2").json.get("extensions", [])
            return tuple(one for one in found if isinstance(one, str))
        except (ViolationError, AttributeError, TypeError):
            return ()

    def needs(self, extension: str) -> None:
        """Go on only if the server offers an extension.

        Raises
        ------
        NotOfferedError
            When its metadata do not name it.
        """
        if extension not in self.extensions:
            raise NotOfferedError(f"the extensions in the server's metadata lack {extension!r}")

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The model's metadata.

        Raises
        ------
        ViolationError
            When there are none.
        """
        answer = self.get(self.base)
        if answer.status != 200:
            raise ViolationError(f"{answer}; expected the model's metadata")
        found = answer.json
        if not isinstance(found, dict):
            raise ViolationError(f"{answer}; expected a JSON object")
        return found

    @property
    def versions(self) -> list[str]:
        """The versions that may be asked for; empty if the server offers none."""
        found = self.metadata.get("versions")
        listed = [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
        if not listed and self.version is not None:
            listed = [self.version]
        return listed

    @cached_property
    def signature(self) -> Signature:
        """The inputs and outputs that the metadata name.

        Raises
        ------
        ViolationError
            When a request cannot be built from them.
        """
        return Signature(self._tensors("inputs"), self._tensors("outputs"))

    def _tensors(self, side: str) -> tuple[Tensor, ...]:
        listed = self.metadata.get(side)
        if not isinstance(listed, list) or not listed:
            raise ViolationError(f"the model's metadata name no {side}, so that no request fits")
        found = []
        for one in listed:
            match one:
                case {"name": str(name), "datatype": str(datatype), "shape": list(shape)} if all(
                    type(axis) is int and (axis > 0 or axis == -1) for axis in shape
                ):
                    if datatype not in DTYPES:
                        raise ViolationError(
                            f"the metadata's {side} have the datatype {datatype!r}; "
                            f"expected one of {', '.join(DTYPES)}"
                        )
                    found.append(Tensor(name, datatype, tuple(shape)))
                case _:
                    raise ViolationError(
                        f"the metadata's {side} have {one!r}; expected name, datatype and a shape "
                        "of positive lengths or -1"
                    )
        return tuple(found)

    # Requests.

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """What the first axis and the others are where the metadata say -1: what is answered."""
        for first, others in _SIZES:
            message = self._draw(first, others)
            for sent in (message, message.raw()):
                answer = self.infer(sent)
                if answer.status == 200:
                    return first, others
        return _SIZES[0]

    def message(self) -> Message:
        """Draw a request that fits the metadata; no two are the same, a seed repeats them all."""
        return self._draw(*self.sizes)

    def answered(self, *, raw: bool = False) -> Message:
        """Draw a request of which the server answers the like, to be made wrong in one thing.

        Raises
        ------
        ViolationError
            When it refuses right requests too, so that a refusal would prove nothing.
        """
        if raw not in self._answers:
            message = self.message()
            self._answers[raw] = self.infer(message.raw() if raw else message)
        if self._answers[raw].status != 200:
            raise ViolationError(f"the same without a mistake is refused too: {self._answers[raw]}")
        message = self.message()
        return message.raw() if raw else message

    def _draw(self, first: int, others: int) -> Message:
        self._draws += 1
        random = np.random.default_rng((self.seed, self._draws))
        inputs = []
        for tensor in self.signature.inputs:
            shape = tuple(
                axis if axis > 0 else (others if place else first)
                for place, axis in enumerate(tensor.shape)
            )
            array = draw(random, tensor.datatype, shape)
            inputs.append(Input(tensor.name, tensor.datatype, array))
        return Message(tuple(inputs))

    def infer(self, message: Message, base: str | None = None, wire: Wire | None = None) -> Answer:
        """Send a request for inference as it is."""
        return self.post(*message.encode(), base=base, wire=wire)

    def post(
        self,
        body: Any,
        headers: dict[str, str],
        *,
        base: str | None = None,
        wire: Wire | None = None,
    ) -> Answer:
        """Send any body to the infer path."""
        path = f"{self.base if base is None else base}/infer"
        if wire is not None:
            return wire.call("POST", path, body, headers)
        return self.call("POST", path, body, headers)


def find(
    address: ServerAddress,
    task: str | None,
    version: str | None,
    seed: int,
    timeout_s: float,
    key: str | None = None,
) -> Target:
    """Find the model under test.

    Parameters
    ----------
    address
        The server's.
    task
        Its name; without one, the first that the repository index calls ready.
    version
        One of its versions, for servers that answer none of the paths without.
    seed, timeout_s, key
        As in `Target`.

    Raises
    ------
    ConformanceError
        When the server does not answer, or no model is found.
    """
    server = Target(address, task or "", version, seed, timeout_s, key=key)
    try:
        server.get("/v2/health/live")
    except ViolationError as error:
        raise ConformanceError(f"no server answers at {address.url}: {error}") from None
    if task is None:
        server.task, listed = _first_ready(server)
        server.version = version or listed
    try:
        absent = server.get(server.base).status == 404
    except ViolationError:
        absent = False  # the checks say what is wrong with it
    if absent:
        raise ConformanceError(
            f"{address.url} has no model {server.task!r}: name another, or one of its versions if "
            "it answers no path without"
        )
    return server


def _first_ready(server: Target) -> tuple[str, str | None]:
    ask = f"name a task: {server.address.url} has no repository index that calls one ready"
    try:
        answer = server.call("POST", "/v2/repository/index", *packed({"ready": True}))
        listed = answer.json if answer.status == 200 else None
    except ViolationError:
        listed = None
    for one in listed if isinstance(listed, list) else ():
        match one:
            case {"name": str(name), "state": "READY"}:
                version = one.get("version")
                return name, version if isinstance(version, str) and version else None
    raise ConformanceError(ask)
