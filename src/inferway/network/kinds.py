"""Tasks as arrays: what every variant takes and gives, on every hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Task, Variant
from inferway.network.options import Models
from inferway.network.topology import NetworkError, Topology


class Kind(NamedTuple):
    """One entry under `tasks`: some identical tasks, each with W variants of its own.

    Attributes
    ----------
    name
        The entry's name.
    tasks
        Names of the tasks: NAME-0, NAME-1, ..., or NAME alone where `count` is 1.
    variants
        W names.
    copies
        Copies of each variant on a node, at most; each is a model.
    accuracy
        (W,) 0..1.
    size
        (W,) bytes; ``nan`` where the file does not say.
    delay_s
        (W, H) mean inference delay on each hardware; ``inf`` where the variant does not run on it.
    capacity
        (W, H) requests per slot; 0 where the variant does not run.
    """

    name: str
    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    copies: int
    accuracy: NDArray[np.float64]
    size: NDArray[np.float64]
    delay_s: NDArray[np.float64]
    capacity: NDArray[np.float64]


class Catalog(NamedTuple):
    """All kinds of tasks as one table of T = sum of (tasks x variants) rows, *offers*.

    Attributes
    ----------
    kinds
        The entries.
    first
        (N + 1,) range of each task's offers.
    row
        (T,) row of the tables below for each offer: identical tasks share theirs.
    size
        (K,) bytes; 0 where unknown.
    delay_s, capacity
        (K, H) as in `Kind`.
    copies
        (K,) copies of each variant per node, at most.
    kind_of
        (N,) the entry that each task is of.
    """

    kinds: Sequence[Kind]
    first: NDArray[np.int64]
    row: NDArray[np.int64]
    size: NDArray[np.float64]
    delay_s: NDArray[np.float64]
    capacity: NDArray[np.float64]
    copies: NDArray[np.int64]
    kind_of: NDArray[np.int64]

    @classmethod
    def of(cls, kinds: Sequence[Kind]) -> Catalog:
        """Join the kinds' tables."""
        widths = np.array([len(kind.variants) for kind in kinds])
        counts = np.array([len(kind.tasks) for kind in kinds])
        start = np.cumsum(widths) - widths
        rows = [np.tile(s + np.arange(w), c) for s, w, c in zip(start, widths, counts, strict=True)]
        return cls(
            kinds=kinds,
            first=np.concatenate([[0], np.cumsum(np.repeat(widths, counts))]),
            row=np.concatenate(rows),
            size=np.nan_to_num(np.concatenate([kind.size for kind in kinds])),
            delay_s=np.concatenate([kind.delay_s for kind in kinds]),
            capacity=np.concatenate([kind.capacity for kind in kinds]),
            copies=np.repeat([kind.copies for kind in kinds], widths),
            kind_of=np.repeat(np.arange(len(kinds)), counts),
        )

    def fits(self, topology: Topology) -> NDArray[np.bool_]:
        """(K, V) whether a node may host a variant: it runs there and is within the budget.

        Departure from Sec. IV-A: a model larger than a node's whole budget is none of the node's
        models, where the paper would give it a fraction below 1 that rounding could never place.
        """
        runs = np.isfinite(self.delay_s)[:, topology.hardware]
        return np.asarray(runs & (self.size[:, None] <= topology.budget) & ~topology.repository)


def kinds_of(tasks: Sequence[Task], hardware: Sequence[str], slot_s: float) -> list[Kind]:
    """Tabulate tasks.

    The capacity L is the whole number of requests that one instance finishes in a slot, service
    times over the slot. An instance that needs more than a slot for one request keeps the fraction,
    where the paper would have it serve none (Sec. III-D takes L to be a whole number).

    Parameters
    ----------
    tasks
        Entries with variants; without `max_instances` a node holds one copy of each variant.
    hardware
        H names.
    slot_s
        Length of a slot in seconds, above 0.

    Raises
    ------
    NetworkError
        If there is no task, a task has no variants, or the slot is not above 0.
    """
    if not tasks:
        raise NetworkError("a network serves at least one task")
    if not (slot_s > 0 and np.isfinite(slot_s)):
        raise NetworkError(f"a slot of {slot_s:g} s is refused; it must be above 0")
    return [_kind(task, hardware, slot_s) for task in tasks]


def _kind(task: Task, hardware: Sequence[str], slot_s: float) -> Kind:
    variants = list(task.variants.values())
    if not variants:
        raise NetworkError(f"task {task.name} has no variants")
    sizes = [v.size_bytes for v in variants]
    delay = np.array([[_delay_s(variant, name) for name in hardware] for variant in variants])
    exact = slot_s / delay
    whole = np.floor(exact * (1 + 1e-9))  # 60 s / (1 / 14.2) is 852, not a rounding error less
    return Kind(
        name=task.name,
        tasks=tuple(task.names),
        variants=tuple(variant.name for variant in variants),
        copies=task.max_instances or 1,
        accuracy=np.array([variant.accuracy for variant in variants]),
        size=np.array([np.nan if size is None else float(size) for size in sizes]),
        delay_s=delay,
        capacity=np.where(exact >= 1, whole, exact),
    )


def _delay_s(variant: Variant, hardware: str) -> float:
    return variant.service_on(hardware).mean_s if variant.runs_on(hardware) else np.inf


def models_of(kinds: Sequence[Kind]) -> Models:
    """Number the models: by task, then variant, then copy. Variants count over all kinds."""
    task, variant, copy, accuracy, per_task = [], [], [], [], []
    before_tasks = before_variants = 0
    for kind in kinds:
        count, width, copies = len(kind.tasks), len(kind.variants), kind.copies
        one = np.repeat(np.arange(width), copies)
        task.append(np.repeat(before_tasks + np.arange(count), width * copies))
        variant.append(np.tile(before_variants + one, count))
        copy.append(np.tile(np.arange(copies), count * width))
        accuracy.append(np.tile(kind.accuracy[one], count))
        per_task += [width * copies] * count
        before_tasks += count
        before_variants += width
    return Models(
        np.concatenate(task).astype(np.int32),
        np.concatenate(variant).astype(np.int32),
        np.concatenate(copy).astype(np.int32),
        np.concatenate(accuracy),
        np.concatenate([[0], np.cumsum(per_task)]).astype(np.int64),
    )
