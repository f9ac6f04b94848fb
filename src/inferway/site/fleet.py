"""The fleet: the server classes of one site."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferway.site.confidence import ConfidenceTables, confidence_tables
from inferway.site.devices import DeviceSlots, device_slots

if TYPE_CHECKING:
    from inferway.deployment import Deployment


@dataclass(frozen=True)
class Fleet:
    """Server classes of one site for one task, ordered fastest first, ties by accuracy.

    Parameters
    ----------
    variants
        Name of each class, K of them: its variant's, or ``VARIANT:DEVICE`` where copies of one run
        on several devices, or may where devices are given out anew.
    rate
        (K,) service rate of one server, 1/s.
    accuracy
        (K,) accuracy, 0..1. An unknown one is given as NaN, and counts as 0 from then on: nothing
        that compares or adds accuracies has to look for it.
    count
        (K,) servers of each class, at least 1.
    price
        (K,) what one server costs, in the user's unit; zeros where the file does not say.
    energy
        (K,) mean energy of one request, J; zeros where the file does not say.
    buffer
        Places at each server, the one in service included; None for no limit.
    task, node
        Where the fleet stands; empty for a fleet made by hand.
    graded
        (K,) whether each accuracy is known; those that are not NaN, if not given.
    confidence
        What confidences of these classes say, in the order in which the classes are given; None
        where no class has one.
    devices
        What the classes share, in the order in which they are given; None where servers never wait
        for each other, as in the papers.

    Raises
    ------
    ValueError
        Where a number is out of its range or the shapes differ.
    """

    variants: tuple[str, ...]
    rate: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]
    price: NDArray[np.float64] | None = None
    buffer: int | None = None
    task: str = ""
    node: str = ""
    energy: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    graded: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    confidence: ConfidenceTables | None = None
    devices: DeviceSlots | None = None

    def __post_init__(self) -> None:
        classes = len(self.variants)
        energy = self.energy if np.size(self.energy) else np.zeros(classes)
        price = np.zeros(classes) if self.price is None else self.price
        rate, accuracy, price, energy = (
            np.asarray(one, np.float64) for one in (self.rate, self.accuracy, price, energy)
        )
        count = np.asarray(self.count, np.int64)
        graded = np.asarray(self.graded) if np.size(self.graded) else ~np.isnan(accuracy)
        columns: dict[str, NDArray[Any]] = {"rate": rate, "count": count, "graded": graded}
        columns |= {"accuracy": np.where(graded, accuracy, 0.0), "price": price, "energy": energy}
        for name, column in columns.items():
            if column.shape != (classes,):
                raise ValueError(f"{name} has shape {column.shape}, expected ({classes},)")
        if not classes:
            raise ValueError("a fleet has at least one server class")
        for sound, rule, column in (
            (np.isfinite(rate) & (rate > 0), "service rates are above 0 per second", rate),
            ((accuracy >= 0) & (accuracy <= 1) | ~graded, "accuracies are in 0..1", accuracy),
            (np.isfinite(energy) & (energy >= 0), "energies are 0 J or more", energy),
            (count >= 1, "every class has at least one server", count),
        ):
            if not sound.all():
                raise ValueError(f"{rule}, not {column}")
        order = np.lexsort((columns["accuracy"], -rate))
        object.__setattr__(self, "variants", tuple(self.variants[k] for k in order))
        for name, column in columns.items():
            object.__setattr__(self, name, column[order])
        if self.confidence is not None:
            tables = self.confidence.checked(classes).ordered(order)
            object.__setattr__(self, "confidence", tables)
        if self.devices is not None:
            object.__setattr__(self, "devices", self.devices.ordered(order))

    @property
    def grades(self) -> list[float | None]:
        """Accuracies of the K classes as they are told to people: None where one is unknown."""
        pairs = zip(self.accuracy.tolist(), self.graded.tolist(), strict=True)
        return [accuracy if graded else None for accuracy, graded in pairs]

    @property
    def runs_on(self) -> list[str]:
        """Name of the device of each class; empty for none."""
        if self.devices is None:
            return [""] * len(self.variants)
        return [self.devices.names[d] if d >= 0 else "" for d in self.devices.device.tolist()]

    @property
    def names(self) -> list[str]:
        """Name of the variant of each class."""
        pairs = zip(self.variants, self.runs_on, strict=True)
        return [one.removesuffix(f":{device}") if device else one for one, device in pairs]

    @property
    def first(self) -> NDArray[np.int64]:
        """(K + 1,) first server of each class, and the number of servers."""
        return np.concatenate([[0], np.cumsum(self.count)]).astype(np.int64)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return int(self.count.sum())

    @property
    def capacity(self) -> NDArray[np.float64]:
        """(K,) rate that all servers of a class carry together, 1/s (the papers' n alpha mu)."""
        return self.count * self.rate

    @property
    def ordered(self) -> bool:
        """Tell whether slower always means more accurate, as in [Anonymous], Sec. 2.1."""
        return bool((np.diff(self.rate) < 0).all() and (np.diff(self.accuracy) > 0).all())


def fleet_of(deployment: Deployment, task: str, node: str | None = None) -> Fleet:
    """The fleet that serves a task at a node of the deployment.

    Raises
    ------
    ValueError
        Where the task or node is unknown, the node is not said and there are several, or no
        instance of the task runs there.
    """
    nodes, tasks = deployment.nodes, deployment.tasks
    if node is None and len(nodes) == 1:
        node = next(iter(nodes))
    for wrong, complaint in (
        (task not in tasks, f"unknown task {task!r}; the file has {', '.join(tasks)}"),
        (task in tasks and not tasks[task].variants, f"task {task!r} has no variants"),
        (
            not nodes,
            "the file lists no `nodes`; those of a network are a fleet once `instances` of theirs "
            "are listed there, as `inferway place` prints them",
        ),
        (node is None, f"name one of the nodes {', '.join(nodes)}"),
        (node not in nodes, f"unknown node {node!r}; the file has {', '.join(nodes)}"),
    ):
        if wrong:
            raise ValueError(complaint)
    assert node is not None
    place = deployment.nodes[node]
    # Class by class: its variant, its device, and how many copies.
    found = [
        (variant, device, count)
        for name, variant in deployment.tasks[task].variants.items()
        if (total := place.instances.get((task, name), 0)) > 0
        for device, count in (place.placed.get((task, name)) or {"": total}).items()
    ]
    if not found:
        raise ValueError(f"no instance of task {task!r} runs on node {node!r}")
    variants, devices, counts = (list(one) for one in zip(*found, strict=True))
    times = Counter(variant.name for variant in variants)
    if deployment.assigns:
        # A class has one name for good, wherever other copies of its variant are.
        for variant in variants:
            on = [one for one in place.devices.values() if variant.runs_on(one.hardware)]
            times[variant.name] = len(on)
    names = tuple(
        f"{variant.name}:{device}" if device and times[variant.name] > 1 else variant.name
        for variant, device in zip(variants, devices, strict=True)
    )
    hardware = [place.hardware_of(device) for device in devices]
    accuracy = np.array([variant.accuracy for variant in variants])
    pairs = list(zip(variants, hardware, strict=True))
    return Fleet(
        variants=names,
        rate=np.array([1.0 / variant.service_on(kind).mean_s for variant, kind in pairs]),
        accuracy=accuracy,
        count=np.array(counts),
        price=np.array([variant.price or 0.0 for variant in variants]),
        energy=np.array([variant.energy_on(kind) or 0.0 for variant, kind in pairs]),
        buffer=place.buffer,
        task=task,
        node=node,
        confidence=confidence_tables(
            deployment.tasks[task], tuple(variant.name for variant in variants), accuracy
        ),
        devices=device_slots(
            place,
            devices,
            [variant.threads for variant in variants],
            [variant.load_on(kind) for variant, kind in pairs],
        ),
    )
