"""The JSON of the Open Inference Protocol v2, as typed messages.

Unknown keys are ignored, as the protocol's extensions ask; known ones must have their type. Of
parameters, unknown ones make the decoder stop, so that somebody looks at them:
`inferway.live.http.inference`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

# Bounded, because integers in JSON may have thousands of digits.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class TensorParameters(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Parameters of an input or of a requested output."""

    binary_data_size: Count | None = None
    binary_data: bool | None = None
    classification: Count | None = None
    shared_memory_region: str | None = None


NO_DATA: Final = msgspec.Raw()


class InputMessage(msgspec.Struct, gc=False):
    """One input; `data` stays undecoded until its datatype has been checked."""

    name: str
    datatype: str
    shape: list[Count]
    parameters: TensorParameters | None = None
    data: msgspec.Raw = NO_DATA


class RequestedOutput(msgspec.Struct, gc=False):
    """One requested output."""

    name: str
    parameters: TensorParameters | None = None


class InferParameters(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Parameters of the whole request.

    `timeout` is Triton's, in microseconds; the others are in the unit of their name. Priority 1 is
    the highest; 0, none, comes after all others.
    """

    binary_data_output: bool = False
    accuracy: float | None = None
    deadline_ms: float | None = None
    timeout: Count | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=32767)] = 0


class InferMessage(msgspec.Struct, gc=False):
    """A request for inference."""

    inputs: list[InputMessage]
    id: str = ""
    parameters: InferParameters | None = None
    outputs: list[RequestedOutput] | None = None


class BinarySize(msgspec.Struct, gc=False):
    """Parameters of an output that follows the JSON as raw bytes."""

    binary_data_size: int


class OutputMessage(msgspec.Struct, gc=False, omit_defaults=True):
    """One output, its data here or after the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: BinarySize | None = None
    data: list[Any] | None = None


class AnswerParameters(msgspec.Struct, gc=False, omit_defaults=True):
    """What an answer says of itself.

    Attributes
    ----------
    variant
        The variant that answered.
    latency_ms
        From the whole request's arrival to the answer.
    predicted_latency_ms
        What was predicted when the request was dispatched.
    accuracy_balance
        The task's running sum of (accuracy - target); positive means ahead of the target. Absent
        where there is no target, and where another node has it: it is kept where requests enter
        the network.
    late
        True when the request's deadline had passed; absent otherwise.
    node
        Where it was answered; absent where the server is no node of a network.
    confidence
        Mean over the rows of the confidence of the variant that was asked first, where the task's
        policy may ask a second one and the first has a confidence; absent otherwise.
    escalated_from
        The variant that was asked first, where its answer is not the one that is sent.
    expected_accuracy
        What the answer is expected to have, by that confidence; absent as `confidence` is.
    """

    variant: str
    latency_ms: float
    predicted_latency_ms: float
    accuracy_balance: float | None = None
    late: bool | None = None
    node: str | None = None
    confidence: float | None = None
    escalated_from: str | None = None
    expected_accuracy: float | None = None


class AnswerMessage(msgspec.Struct, gc=False, omit_defaults=True):
    """The answer to a request for inference."""

    model_name: str
    model_version: str
    parameters: AnswerParameters
    outputs: list[OutputMessage]
    id: str = ""


class TensorMetadata(msgspec.Struct):
    """An input or output in a task's metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class TaskMetadata(msgspec.Struct):
    """A task's metadata; `versions` are its variants."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TaskList(msgspec.Struct):
    """The tasks that are served, by name."""

    models: list[str]


class ServerMetadata(msgspec.Struct):
    """The server's metadata."""

    name: str
    version: str
    extensions: list[str]


class RemoteModel(msgspec.Struct):
    """A model's metadata as another server gives them, which may leave out what it takes."""

    inputs: list[TensorMetadata] = []
    outputs: list[TensorMetadata] = []


class RemoteServer(msgspec.Struct):
    """Another server's metadata, as far as they matter."""

    extensions: list[str] = []


class RemoteOutput(msgspec.Struct):
    """One output of another server's answer; `data` stays undecoded."""

    name: str
    datatype: str
    shape: list[int]
    parameters: RemoteSize | None = None
    data: msgspec.Raw = msgspec.Raw()


class RemoteSize(msgspec.Struct):
    """Parameters of an output that may follow the JSON as raw bytes."""

    binary_data_size: int | None = None


class RemoteAnswer(msgspec.Struct):
    """Another server's answer to a request for inference, as far as it matters."""

    outputs: list[RemoteOutput]


class ErrorMessage(msgspec.Struct):
    """Message of a refused request."""

    error: str


class IndexMessage(msgspec.Struct):
    """A request for the repository index."""

    ready: bool = False


class IndexEntry(msgspec.Struct):
    """A variant in the repository index; `reason` says why it is not ready."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


decode_infer = msgspec.json.Decoder(InferMessage).decode
decode_index = msgspec.json.Decoder(IndexMessage).decode
encode = msgspec.json.Encoder().encode
