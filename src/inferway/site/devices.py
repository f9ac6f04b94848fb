"""Devices of a site: slots that server classes share, and how much of them a request takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inferway.deployment.nodes import Node


class DeviceSlots(NamedTuple):
    """D devices, and which of them each of K server classes runs on.

    Attributes
    ----------
    names
        Of the devices.
    slots
        (D,) cores or accelerators of each; a run starts when as many are free as it takes.
    exclusive
        (D,) whether each holds one variant at a time, all its slots together.
    overhead_s
        (D,) slot seconds that each request takes before it runs, of those that run there.
    device
        (K,) the device of each class, -1 for none.
    taken
        (K,) slots that a run of each class takes.
    load_s
        (K,) time until an exclusive device has changed to the variant of each class; None where
        no device is exclusive.
    """

    names: tuple[str, ...]
    slots: NDArray[np.int64]
    exclusive: NDArray[np.bool_]
    overhead_s: NDArray[np.float64]
    device: NDArray[np.int64]
    taken: NDArray[np.int64]
    load_s: NDArray[np.float64] | None = None

    def ordered(self, order: NDArray[np.int64]) -> DeviceSlots:
        """Put the classes into another order."""
        return self._replace(
            device=self.device[order],
            taken=self.taken[order],
            load_s=None if self.load_s is None else self.load_s[order],
        )

    @property
    def loads_s(self) -> NDArray[np.float64]:
        """(K,) time until the variant of each class is loaded, s; 0 where nothing says it."""
        return np.zeros(len(self.device)) if self.load_s is None else self.load_s.copy()

    @property
    def most(self) -> NDArray[np.int64]:
        """(K,) slots of each class's device; as many as can be where it has none."""
        none = self.device < 0
        return np.where(none, np.iinfo(np.int64).max, self.slots[np.where(none, 0, self.device)])

    @property
    def lead_s(self) -> NDArray[np.float64]:
        """(K,) time that each request of a class takes of its device before it runs, s."""
        none = self.device < 0
        return np.where(none, 0.0, self.overhead_s[np.where(none, 0, self.device)])

    def load(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Slot seconds of each device that a run of each class takes, (D, K), at (K,) rates."""
        here = self.device == np.arange(len(self.names))[:, None]
        return np.where(here, self.taken / rate, 0.0)


def device_slots(
    node: Node, device: list[str], threads: list[int], load_s: list[float]
) -> DeviceSlots | None:
    """Lay out a node's devices for classes that run on these, by name; None where it has none.

    An empty name is that of no device. What requests take before they run is of the first device
    with cores. Loading takes each class so long, s.
    """
    if not node.devices:
        return None
    names = tuple(node.devices)
    stated = list(node.devices.values())
    exclusive = any(one.exclusive for one in stated)
    return DeviceSlots(
        names=names,
        slots=np.array([one.slots for one in stated]),
        exclusive=np.array([one.exclusive for one in stated]),
        overhead_s=np.array(list(node.leads_s.values())),
        device=np.array([names.index(name) if name else -1 for name in device]),
        taken=np.array(
            [
                node.devices[name].taken(count) if name else 0
                for name, count in zip(device, threads, strict=True)
            ]
        ),
        load_s=np.array(load_s) if exclusive else None,
    )
