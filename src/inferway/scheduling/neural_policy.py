"""A trained policy as plain arrays: reading it and running it, without PyTorch.

The file is an ``.npz`` of three layers, ``weight_i (inputs, outputs)`` and ``bias_i (outputs,)``,
float32, and ``about``, a JSON text that says what it was trained for. Nothing in it is pickled.
A name that ends in ``.xz`` is of such a file that `packed` made smaller.
"""

from __future__ import annotations

import io
import json
import lzma
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.scheduling.observation import ObservationLayout, Vector, layout_of
from inferway.site.fleet import Fleet
from inferway.unreadable import UNREADABLE, fault

SCHEMA = 1
LAYERS = 3
_SAME = 1e-9
"""Relative difference of two times in seconds that is none."""


@dataclass(frozen=True)
class About:
    """Purpose of a trained policy, and the command that trained it."""

    policy: str  # ``rl-po``, ``rl-fo``, ``rl-po-b`` or ``rl-fo-b``
    task: str
    variants: tuple[str, ...]  # K classes, in the fleet's order
    counts: tuple[int, ...]  # Servers of each
    accuracies: tuple[float, ...]
    service_s: tuple[float, ...]  # Mean service times of one request
    buffer: int
    deadline_s: float  # inf where there was none
    slot_s: float
    batch_sizes: tuple[tuple[int, ...], ...] | None = None  # By class; None without batches
    # By class, of whole batches of these sizes
    batch_service_s: tuple[tuple[float, ...], ...] | None = None
    phases: int | None = None  # Of the workload, where it sees them
    longest_phase_s: float | None = None  # Where phases are periodic, and seen
    # By class, mean times until a server goes and until it is back, s, where they came and went: it
    # is then for any part of its servers. None where all were always there.
    outages: tuple[tuple[float, float], ...] | None = None
    slots: int = 0  # For how many it was trained
    seed: int = 0
    command: str = ""
    result: dict[str, Any] = field(default_factory=dict)  # What its evaluation gave, by name
    schema: int = SCHEMA
    # The same of each further task that it schedules, in the order in which it observes them
    others: tuple[About, ...] = ()

    def to_json(self) -> str:
        """As the file holds it."""
        return json.dumps(asdict(self))

    @property
    def parts(self) -> tuple[About, ...]:
        """What it was trained for, task by task: one, as a rule."""
        return replace(self, others=()), *self.others

    @property
    def layout(self) -> ObservationLayout:
        """Layout of its observations of the first task."""
        return layout_of(
            counts=self.counts,
            service_s=self.service_s,
            buffer=self.buffer,
            batch_sizes=self.batch_sizes,
            batch_service_s=self.batch_service_s,
            phases=self.phases or 0,
            longest_phase_s=self.longest_phase_s or 0.0,
            flags=self.outages is not None,
        )

    @property
    def inputs(self) -> int:
        """Number of its inputs: the observations of all tasks, one behind the other."""
        return sum(part.layout.size for part in self.parts)

    @property
    def outputs(self) -> int:
        """Number of its outputs.

        Task by task, one per server, then one per pair of batch sizes by class.
        """
        own = sum(self.counts) + sum(len(pairs_of(one)) for one in self.batch_sizes or ())
        return own + sum(other.outputs for other in self.others)


@dataclass(frozen=True)
class NeuralPolicy:
    """A policy network: tanh layers, then what each output means is the controller's business."""

    about: About
    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    path: Path

    def forward(self, observation: Vector) -> Vector:
        """(outputs,) for an observation, or (m, outputs) for m of them."""
        values = observation
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values = np.tanh(values @ weight + bias)
        return np.asarray(values @ self.weights[-1] + self.biases[-1], np.float32)


def pairs_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Smallest and largest batch size, every pair: (1, 1), (1, 3), (1, 5), (3, 3), ..."""
    return list(combinations_with_replacement(sorted(sizes), 2))


def read(path: Path) -> NeuralPolicy:
    """Read an exported policy.

    ValueError where there is no such file, it is no exported policy, or a number in it is not
    finite.
    """
    try:
        packed_up = path.suffix == ".xz"
        exported = io.BytesIO(lzma.decompress(path.read_bytes())) if packed_up else path
        loaded = np.load(exported, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it is one array")
        with loaded as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ValueError(f"there is no trained policy {path}") from None
    except Exception as error:  # whatever the parts of NumPy's reader raise
        raise ValueError(f"{path} is not a trained policy: {fault(error)}") from None
    wanted = {"about", *(f"{part}_{i}" for part in ("weight", "bias") for i in range(LAYERS))}
    if missing := ", ".join(sorted(wanted - arrays.keys())):
        raise ValueError(f"{path} is not a trained policy: it holds no {missing}")
    about = _about(path, arrays["about"])
    weights = tuple(_numbers(path, f"weight_{i}", arrays[f"weight_{i}"], 2) for i in range(LAYERS))
    biases = tuple(_numbers(path, f"bias_{i}", arrays[f"bias_{i}"], 1) for i in range(LAYERS))
    sizes = [weight.shape[0] for weight in weights] + [weights[-1].shape[1]]
    layers = zip(weights, biases, sizes[1:], strict=True)
    if any(not weight.shape[1] == size == len(bias) for weight, bias, size in layers):
        raise ValueError(f"{path} is not a trained policy: its layers do not fit each other")
    if (sizes[0], sizes[-1]) != (about.inputs, about.outputs):
        raise ValueError(
            f"{path} takes {sizes[0]} numbers and gives {sizes[-1]}; for what it was trained for, "
            f"that would be {about.inputs} and {about.outputs}"
        )
    return NeuralPolicy(about, weights, biases, path)


def packed(path: Path) -> bytes:
    """Pack an exported policy: every bit of its numbers, in a tenth less than what NumPy packs.

    What a byte of a number is likely to be goes by its place among the four.
    """
    content = io.BytesIO()
    with np.load(path, allow_pickle=False) as file:
        np.savez(content, allow_pickle=False, **{name: file[name] for name in file.files})
    by_place = {"id": lzma.FILTER_LZMA2, "preset": lzma.PRESET_EXTREME, "lc": 1, "lp": 2}
    return lzma.compress(content.getvalue(), check=lzma.CHECK_CRC32, filters=[by_place])


def _about(path: Path, text: NDArray[Any]) -> About:
    try:
        written = json.loads(str(text[()]))
        if written["schema"] != SCHEMA:
            raise ValueError(f"its schema is {written['schema']}, and {SCHEMA} is what is read")
        others = tuple(map(_part, written.pop("others", ())))
        about = replace(_part(written), others=others)
        about.inputs, about.outputs  # noqa: B018
    except (*UNREADABLE, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path} does not say what it was trained for: {fault(error)}") from None
    return about


def _part(written: dict[str, Any]) -> About:
    names = {one.name for one in fields(About)} & written.keys() - {"others"}
    part = About(**{name: _frozen(written[name]) for name in names})
    sound = len(part.variants) == len(part.counts) == len(part.service_s)
    sound = sound and len(part.outages or part.variants) == len(part.variants)
    if not sound or min(part.counts) < 1 or not min(part.service_s) > 0:
        raise ValueError("its classes have no names, counts and service times alike")
    return part


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def _numbers(path: Path, name: str, array: NDArray[Any], axes: int) -> NDArray[np.float32]:
    if array.ndim != axes or array.dtype.kind != "f":
        raise ValueError(f"{path} is not a trained policy: {name} is {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{path} holds numbers in {name} that are not finite: its training failed")
    return np.ascontiguousarray(array, np.float32)


def fits(
    network: NeuralPolicy,
    fleet: Fleet,
    *,
    policy: str,
    deadline_s: float | None,
    slot_s: float,
    changing: bool = False,
    part: int = 0,
) -> None:
    """Refuse a policy that was trained for something else than what it is to run.

    Service times and accuracies may differ: those of training are estimates. A policy that was
    trained with servers that come and go is for any part of them. `part` is the place of the task
    among those that it schedules. ValueError for another kind of policy, fleet, buffer, deadline or
    slot; for another fleet not where fleets are `changing`.
    """
    about = network.about.parts[part]
    if about.outages is None:
        most, same = "", (about.variants, about.counts) == (fleet.variants, _counts(fleet))
    else:
        most, same = " or fewer of each", not beyond(about, fleet)
    limit = "no limit" if fleet.buffer is None else f"one of {fleet.buffer}"
    now_s = math.inf if deadline_s is None else deadline_s
    before, now = (
        f"{one * 1e3:g} ms" if math.isfinite(one) else "" for one in (about.deadline_s, now_s)
    )
    of = f" {fleet.task}" if network.about.others and fleet.task else ""
    for agrees, reason in (
        (about.policy == policy, f"as {about.policy}, not as {policy}"),
        (
            same or changing,
            f"for {_servers(about.variants, about.counts)}{most}, "
            f"not for {_servers(fleet.variants, fleet.count)}{of and f' of{of}'}",
        ),
        (about.buffer == fleet.buffer, f"for a buffer of {about.buffer}, and the node has {limit}"),
        (
            math.isclose(about.deadline_s, now_s, rel_tol=_SAME),
            f"for {f'a deadline of {before}' if before else 'no deadline'}, "
            f"and the task{of} has {now or 'none'}",
        ),
        (
            math.isclose(about.slot_s, slot_s, rel_tol=_SAME),
            f"with slots of {about.slot_s:g} s, not of {slot_s:g} s",
        ),
    ):
        if not agrees:
            raise ValueError(f"{network.path} was trained {reason}")


def beyond(about: About, fleet: Fleet) -> list[str]:
    """Variants of which a fleet has more servers than a policy was trained for."""
    most = dict(zip(about.variants, about.counts, strict=True))
    present = Counter[str]()
    for name, count in zip(fleet.names, _counts(fleet), strict=True):
        present[name] += count
    return [name for name, count in present.items() if count > most.get(name, 0)]


def _counts(fleet: Fleet) -> tuple[int, ...]:
    return tuple(map(int, fleet.count))


def _servers(variants: Sequence[str], counts: Any) -> str:
    return " and ".join(f"{count} {name}" for name, count in zip(variants, counts, strict=True))
