"""The server and the model under test: requests that its metadata ask for, and their answers.

Answers to requests for inference are read strictly: a right one has all that the protocol asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from inferway.conformance.client import (
    NotOfferedError,
    RawConnection,
    TargetAnswer,
    ViolationError,
    document,
    expect,
)
from inferway.conformance.tensors import (
    LENGTH,
    Array,
    Input,
    Message,
    alike,
    draw,
    from_json,
    from_raw,
    packed,
)
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ServerAddress

BINARY: Final = "binary_tensor_data"
REPOSITORY: Final = "model_repository"

# Lengths tried for the first axis and for the others where the metadata say -1.
_SIZES: Final = ((2, 2), (1, 1), (1, 8), (1, 64), (1, 224))


class ConformanceError(ValueError):
    """The suite cannot run; the message is one sentence for the user."""


@dataclass
class Target:
    """A server, one model of it, and seeded requests for that model."""

    address: ServerAddress
    task: str  # The model's name
    version: str | None = None  # As the user or the repository index named it, if any
    seed: int = 1  # Of the tensors
    timeout_s: float = 10.0  # Longest wait of one call, s
    grpc_url: str | None = None  # Where the same server answers over gRPC, if that is asked for
    key: str | None = None  # Sent with every call, for a server that asks for one
    _draws: int = field(default=0, init=False)
    _answers: dict[bool, TargetAnswer] = field(default_factory=dict, init=False)

    def connect(self) -> RawConnection:
        """Connect, for several calls."""
        return RawConnection(self.address, self.timeout_s, self.key)

    def call(self, method: str, path: str, *rest: Any) -> TargetAnswer:
        """Call once, on a connection of its own."""
        with self.connect() as connection:
            return connection.call(method, path, *rest)

    def get(self, path: str) -> TargetAnswer:
        """Call GET once."""
        return self.call("GET", path)

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
        return self.versioned(self.versions[0]) if self.versions else self.base

    @cached_property
    def extensions(self) -> tuple[str, ...]:
        """The extensions in the server's metadata; none if those are broken."""
        try:
            named = self.get("/v2").json.get("extensions", [])
            return tuple(one for one in named if isinstance(one, str))
        except (ViolationError, AttributeError, TypeError):
            return ()

    def needs(self, extension: str) -> None:
        """Go on only if the server's metadata name an extension; else it is not offered."""
        if extension not in self.extensions:
            raise NotOfferedError(f"the extensions in the server's metadata lack {extension!r}")

    def needs_unversioned(self) -> None:
        """Go on only if paths without a version are answered; else they are not offered."""
        if self.base != self.unversioned:
            raise NotOfferedError(f"{self.get(self.unversioned)}; versions are asked for")

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The model's metadata; a violation when there are none."""
        answer = self.get(self.base).good("expected the model's metadata")
        expect(isinstance(answer.json, dict), f"{answer}; expected a JSON object")
        return dict(answer.json)

    @property
    def versions(self) -> list[str]:
        """The versions that may be asked for; empty if the server offers none."""
        named = self.metadata.get("versions")
        listed = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
        return listed or ([] if self.version is None else [self.version])

    @property
    def offered_versions(self) -> list[str]:
        """The versions, of which there is one at least; else they are not offered."""
        if not self.versions:
            raise NotOfferedError("the model's metadata name no versions")
        return self.versions

    @cached_property
    def signature(self) -> Signature:
        """The inputs and outputs in the metadata; a violation when no request can be built."""
        return Signature(self._tensors("inputs"), self._tensors("outputs"))

    def _tensors(self, side: str) -> tuple[Tensor, ...]:
        listed = self.metadata.get(side)
        named = listed if isinstance(listed, list) else []
        expect(named, f"the model's metadata name no {side}, so that no request fits")
        tensors = []
        for one in named:
            match one:
                case {"name": str(name), "datatype": str(datatype), "shape": list(shape)} if all(
                    type(axis) is int and (axis > 0 or axis == -1) for axis in shape
                ):
                    expect(
                        datatype in DTYPES,
                        f"the metadata's {side} have the datatype {datatype!r}; "
                        f"expected one of {', '.join(DTYPES)}",
                    )
                    tensors.append(Tensor(name, datatype, tuple(shape)))
                case _:
                    raise ViolationError(
                        f"the metadata's {side} have {one!r}; expected name, datatype and a shape "
                        "of positive lengths or -1"
                    )
        return tuple(tensors)

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Lengths of the first axis and of the others where the metadata say -1: as answered."""
        for sizes in _SIZES:
            message = self._draw(*sizes)
            if any(self.infer(sent).status == 200 for sent in (message, message.raw())):
                return sizes
        return _SIZES[0]

    def message(self) -> Message:
        """Draw a request that fits the metadata; no two are the same, a seed repeats them all."""
        return self._draw(*self.sizes)

    def answered(self, *, raw: bool = False) -> Message:
        """Draw a request of which the server answers the like, to be made wrong in one thing.

        A server that refuses right requests too violates the protocol: its refusals prove nothing.
        """
        if raw not in self._answers:
            self._answers[raw] = self.infer(self.message().raw(raw=raw))
        refusal = self._answers[raw]
        expect(refusal.status == 200, f"the same without a mistake is refused too: {refusal}")
        return self.message().raw(raw=raw)

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

    def infer(
        self, message: Message, base: str = "", connection: RawConnection | None = None
    ) -> TargetAnswer:
        """Send a request for inference as it is."""
        return self.post(*message.encode(), base, connection)

    def post(
        self,
        body: Any,
        headers: dict[str, str],
        base: str = "",
        connection: RawConnection | None = None,
    ) -> TargetAnswer:
        """Send any body to the infer path."""
        call = self.call if connection is None else connection.call
        return call("POST", f"{base or self.base}/infer", body, headers)


def find(target: Target) -> Target:
    """Find the model under test, which without a name is the first that the index calls ready.

    ConformanceError when the server does not answer, or no model is found.
    """
    try:
        target.get("/v2/health/live")
    except ViolationError as error:
        raise ConformanceError(f"no server answers at {target.address.url}: {error}") from None
    if not target.task:
        target.task, listed = _first_ready(target)
        target.version = target.version or listed
    try:
        absent = target.get(target.base).status == 404
    except ViolationError:
        absent = False  # the checks say what is wrong with it
    if absent:
        raise ConformanceError(
            f"{target.address.url} has no model {target.task!r}: name another, or one of its "
            "versions if it answers no path without"
        )
    return target


def _first_ready(target: Target) -> tuple[str, str | None]:
    try:
        listed = target.call("POST", "/v2/repository/index", *packed({"ready": True})).good().json
    except ViolationError:
        listed = None
    for one in listed if isinstance(listed, list) else ():
        match one:
            case {"name": str(name), "state": "READY"}:
                version = one.get("version")
                return name, version if isinstance(version, str) and version else None
    raise ConformanceError(
        f"name a task: {target.address.url} has no repository index that calls one ready"
    )


@dataclass(frozen=True, slots=True)
class Inference:
    """A right answer."""

    version: str | None  # As the answer says it, if it does
    outputs: Mapping[str, Array]  # By name
    raw: Collection[str] = ()  # Names of the outputs that came as raw bytes
    size: int = 0  # Of the body, in bytes
    closes: bool = False  # Whether the server ends the connection after it


def answered(
    target: Target, message: Message, base: str = "", connection: RawConnection | None = None
) -> Inference:
    """Send a request that is right, and read its answer.

    ViolationError when the answer is not one that the protocol and the model's metadata allow;
    NotOfferedError when FP16 in JSON is refused: many servers have it in binary data only.
    """
    answer = target.infer(message, base, connection)
    if 400 <= answer.status < 500 and any(
        one.datatype == "FP16" and not one.raw for one in message.inputs
    ):
        raise NotOfferedError(f"FP16 in JSON is refused: {answer}")
    return read(target, answer, message)


def read(target: Target, answer: TargetAnswer, message: Message) -> Inference:
    """Read the answer to a right request; a violation when it is not as it should be."""
    body, length = answer.good().plain, answer.headers.get(LENGTH.lower())
    if length is None:
        found, rest = answer.json, None
    else:
        expect(
            length.isdigit() and int(length) <= len(body),
            f"{LENGTH} is {length!r} in an answer of {len(body)} bytes",
        )
        found, rest = document(body[: int(length)], answer.call), body[int(length) :]
    expect(isinstance(found, dict), f"{answer}; expected a JSON object")
    agree("model_name", found.get("model_name"), target.task)
    version, versions = found.get("model_version"), target.versions
    expect(
        version is None or (isinstance(version, str) and version in (versions or [version])),
        f"model_version is {version!r}, expected one of {versions}",
    )
    if (sent := message.fields.get("id")) is not None:
        expect(found.get("id") == sent, f"id is {found.get('id')!r}, the request's was {sent!r}")
    listed = found.get("outputs")
    expect(isinstance(listed, list), "the answer has no list of outputs")
    outputs: dict[str, Array] = {}
    raw = set()
    for one in listed:
        match one:
            case {"name": str(name), "datatype": str(datatype), "shape": list(shape)} if all(
                type(axis) is int and axis >= 0 for axis in shape
            ):
                tensor = described(target, name, datatype, shape)
            case _:
                raise ViolationError(
                    f"an output is {str(one)[:80]}; expected name, datatype and shape"
                )
        expect(name not in outputs, f"output {name!r} comes twice")
        parameters = one.get("parameters") or {}
        expect(
            isinstance(parameters, dict), f"output {name!r} has parameters that are no JSON object"
        )
        size = parameters.get("binary_data_size")
        if size is None:
            outputs[name] = from_json(tensor, tuple(shape), one.get("data"))
            continue
        if rest is None:
            raise ViolationError(f"output {name!r} is binary, the answer lacks {LENGTH}")
        expect(
            type(size) is int and 0 <= size <= len(rest),
            f"output {name!r} says {size} bytes of binary data, {len(rest)} are left",
        )
        outputs[name] = from_raw(tensor, tuple(shape), rest[:size])
        raw.add(name)
        rest = rest[size:]
    expect(not rest, f"{len(rest or b'')} bytes after the JSON belong to no output")
    complete(target, outputs, message)
    return Inference(version, outputs, raw, len(answer.body), answer.closes)


def agree(field: str, value: Any, expected: Any) -> None:
    """Hold a field of an answer to what it must be."""
    expect(value == expected, f"{field} is {value!r}, expected {expected!r}")


def described(target: Target, name: str, datatype: str, shape: list[int]) -> Tensor:
    """Find an output in the model's metadata; a violation if it does not agree with them."""
    tensor = next((one for one in target.signature.outputs if one.name == name), None)
    if tensor is None:
        raise ViolationError(f"output {name!r} is not in the model's metadata")
    expect(
        datatype == tensor.datatype,
        f"output {name!r} has datatype {datatype}, the metadata say {tensor.datatype}",
    )
    expect(
        len(shape) == len(tensor.shape)
        and all(want in (-1, have) for have, want in zip(shape, tensor.shape, strict=True)),
        f"output {name!r} has shape {shape}, the metadata say {list(tensor.shape)}",
    )
    return tensor


def complete(target: Target, outputs: Collection[str], message: Message) -> None:
    """Hold an answer's outputs to those asked for, or to the model's if none are."""
    expected = sorted(
        [one["name"] for one in message.fields.get("outputs", ())]
        or [tensor.name for tensor in target.signature.outputs]
    )
    expect(sorted(outputs) == expected, f"the outputs are {sorted(outputs)}, expected {expected}")


def same(one: Inference, other: Inference) -> None:
    """Hold two answers to equal inputs against each other; a violation if they differ."""
    for name in one.outputs.keys() & other.outputs.keys():
        expect(
            alike(one.outputs[name], other.outputs[name]),
            f"output {name!r} differs from that of the same inputs as flat JSON",
        )


def reference(target: Target, message: Message) -> Inference | None:
    """Answer to the same inputs as flat JSON; None if the model answers differently each time."""
    plain = Message(message.raw(raw=False).inputs)
    try:
        one = answered(target, plain, target.pinned)
        same(one, answered(target, plain, target.pinned))
    except (ViolationError, NotOfferedError):
        return None
    return one


def compared(inference: Inference, plain: Inference | None) -> str:
    """Hold an answer to that for flat JSON, if there is one; the end of a sentence."""
    if plain is None:
        return "answered in shape and datatype"
    same(inference, plain)
    return "answered as the same values in flat JSON"
