"""Profiles of a task's variants: accuracy, confidence, size, and what they take of machines.

`inferway profile` measures it; it stands beside a deployment file or in a zoo.
"""

from __future__ import annotations

from typing import Final

import msgspec

from inferway.machine import machine_hash
from inferway.protocol import Signature, Tensor

PROFILE_HARDWARE: Final = "cpu"
"""Hardware that times of a machine are of, where nothing else is said."""


class BatchTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Duration of one call at one batch size.

    Attributes
    ----------
    batch
        Rows in the call.
    mean_s, p50_s, p95_s, p99_s, spread_s
        Mean, percentiles and standard deviation of the wall time of a call, in seconds.
    steady_s
        Mean without the longest hundredth of the calls, in seconds: what something else on the
        machine has interrupted must not decide how a fleet is dispatched to.
    cpu_s
        Mean processor time of the calling thread, in seconds.
    calls
        How many were measured.
    """

    batch: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    spread_s: float
    steady_s: float
    cpu_s: float
    calls: int


class MachineTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times and memory of a variant on one machine.

    Attributes
    ----------
    alone, busy
        Service times by ascending batch: one run at a time, and so many at once as `instances`.
    instances
        Runs at a time when cores are busy.
    memory_bytes, peak_bytes
        Resident memory of one instance, loaded and at its highest; None of a remote one.
    versions
        Of Python and the libraries.
    at
        When, in ISO 8601.
    load_s
        From nothing to an instance that has answered its warm-up, s; None where that was not
        measured, as of a remote one.
    """

    alone: tuple[BatchTime, ...]
    busy: tuple[BatchTime, ...]
    instances: int
    memory_bytes: int | None
    peak_bytes: int | None
    versions: dict[str, str]
    at: str
    load_s: float | None = None

    @property
    def service_s(self) -> dict[int, float]:
        """Steady service time by batch, one run at a time, in seconds."""
        return {one.batch: one.steady_s for one in self.alone}


class HardwareTimes(MachineTimes, frozen=True, forbid_unknown_fields=True):
    """Times and memory of a variant on a hardware that was named.

    Attributes
    ----------
    machine
        On which they were measured.
    """

    machine: str = ""


class ProfiledAccuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accuracy on the rows that are for it, with its 95 % interval."""

    value: float
    interval: tuple[float, float]
    rows: int
    score: str


class ConfidenceBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accuracy by confidence.

    Attributes
    ----------
    kind
        As the variant's key `confidence`, or what stands for it.
    digest
        Hash of the user's file, where it is a function; None of anything else.
    softmax
        Whether the softmax of the outputs came first.
    edges
        Confidences at which the next bin begins, increasing.
    accuracy, mass
        In each bin, one more than edges: the accuracy, and the share of rows.
    observed
        Mean score in each bin of the rows that accuracies are from; None where there is none.
    error
        Expected calibration error on the rows that accuracies are from.
    """

    kind: str
    digest: str | None
    softmax: bool
    edges: tuple[float, ...]
    accuracy: tuple[float, ...]
    mass: tuple[float, ...]
    observed: tuple[float | None, ...]
    error: float


class PairBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accuracies of two variants by the confidence of the first one, in its bins."""

    first: str
    second: str
    first_accuracy: tuple[float, ...]
    second_accuracy: tuple[float, ...]


class ProfiledTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ProfiledSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs and outputs of a model."""

    inputs: tuple[ProfiledTensor, ...]
    outputs: tuple[ProfiledTensor, ...]

    @property
    def tensors(self) -> Signature:
        """The same in the protocol's words."""
        inputs, outputs = (
            tuple(Tensor(one.name, one.datatype, one.shape) for one in side)
            for side in (self.inputs, self.outputs)
        )
        return Signature(inputs, outputs)

    @classmethod
    def of(cls, signature: Signature) -> ProfiledSignature:
        """Write a signature down."""
        inputs, outputs = (
            tuple(ProfiledTensor(one.name, one.datatype, one.shape) for one in side)
            for side in (signature.inputs, signature.outputs)
        )
        return cls(inputs, outputs)


class VariantProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant as measured.

    Attributes
    ----------
    model
        What it was measured on: the model file's digest, or what else says which model it is.
    size_bytes
        The model file's size; None where there is no file here.
    signature
        Inputs and outputs.
    accuracy
        By labels.
    confidence
        None where the variant has no confidence.
    machines
        What it takes, by machine, on `PROFILE_HARDWARE`.
    hardware
        What it takes on other hardware, by name, whatever machine has it.
    """

    model: str
    size_bytes: int | None
    signature: ProfiledSignature
    accuracy: ProfiledAccuracy | None = None
    confidence: ConfidenceBins | None = None
    machines: dict[str, MachineTimes] = {}
    hardware: dict[str, HardwareTimes] = {}

    @property
    def times_here(self) -> dict[int, float]:
        """Steady service time by batch on this machine, in seconds; empty where none is known."""
        here = self.machines.get(machine_hash())
        return {} if here is None else here.service_s

    def times_on(self, hardware: str) -> MachineTimes | None:
        """What it takes on a hardware, `PROFILE_HARDWARE` being this machine; None if unknown."""
        if hardware == PROFILE_HARDWARE:
            return self.machines.get(machine_hash())
        return self.hardware.get(hardware)


class ProfiledData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The labeled data, and how they were split and scored.

    Attributes
    ----------
    digest
        Of the file.
    rows, groups
        How many; None groups where each row stands alone.
    bins_rows, accuracy_rows
        Rows of the two halves: for confidence bins, and for accuracies.
    seed
        Of the split and of the resampling.
    score, score_digest
        How right answers are told from wrong ones; and the hash of the user's file, if it is one.
    output
        The output that it looks at, where one was named.
    group
        The array or column that was named to group.
    """

    digest: str
    rows: int
    groups: int | None
    bins_rows: int
    accuracy_rows: int
    seed: int
    score: str
    score_digest: str | None = None
    output: str | None = None
    group: str | None = None


class TaskProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variants of a task, measured on the same data."""

    data: ProfiledData
    variants: dict[str, VariantProfile] = {}
    pairs: tuple[PairBins, ...] = ()
