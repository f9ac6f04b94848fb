"""Devices of a node: the cores or accelerators that its instances share, and which runs where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import model_validator

from inferway.deployment.errors import nearest, refuse_where
from inferway.deployment.section import Name, Section, Switch, says
from inferway.deployment.tasks import Variant
from inferway.deployment.units import SIZE, Bytes, Count


@dataclass(frozen=True)
class Device(Section):
    """Processor cores, or accelerators of one kind, that instances of a node share."""

    hardware: Annotated[
        Name, says("Which of the variants' service times hold on it; its own name if not given.")
    ] = ""
    cores: Annotated[
        Count | None, says("Processor cores; a run takes as many as its variant's `threads`.")
    ] = None
    count: Annotated[Count | None, says("Accelerators, instead; a run takes a whole one.")] = None
    memory_bytes: Annotated[
        Bytes | None,
        says("What its instances may take together, or those of each accelerator.", "memory"),
    ] = None
    exclusive: Annotated[
        Switch, says("Whether it holds one variant at a time, which takes `load_time` to change.")
    ] = False

    @model_validator(mode="after")
    def _has_slots(self) -> Device:
        refuse_where(
            (
                (self.cores is None) == (self.count is None),
                "a device has either `cores` or a `count` of accelerators",
            )
        )
        return self

    @property
    def slots(self) -> int:
        """Cores or accelerators that runs take."""
        return self.cores or self.count or 0

    def taken(self, threads: int) -> int:
        """Count the slots that a run of so many threads takes."""
        return threads if self.cores is not None else 1


def may_run(variant: Variant | None, hardware: str) -> bool:
    """Tell whether a variant's service time is known on some hardware, or nowhere yet."""
    return variant is None or not variant.service or variant.runs_on(hardware)


def runs_on(devices: Mapping[str, Device], variant: Variant | None) -> list[str]:
    """List the devices that a variant may run on, in the order of the file."""
    return [name for name, device in devices.items() if may_run(variant, device.hardware)]


def spread(
    stated: int | Mapping[str, int], devices: Mapping[str, Device], variant: Variant | None
) -> dict[str, int]:
    """Give a variant's copies by device; empty where it takes none, or `wrong_copies` says why."""
    if variant is not None and variant.remote is not None:
        return {}
    if isinstance(stated, Mapping):
        return {name: count for name, count in stated.items() if name in devices}
    fit = runs_on(devices, variant)
    return {fit[0]: stated} if len(fit) == 1 else {}


def wrong_copies(
    stated: int | Mapping[str, int],
    devices: Mapping[str, Device],
    variant: Variant,
    *,
    file: str,
    timed: bool = True,
) -> Iterator[tuple[str, str]]:
    """Say what is wrong with copies of a file's variant: the device, or empty, and a sentence.

    Where it is not `timed` yet, it may run on hardware of which no service time is known.
    """
    if not isinstance(stated, Mapping):
        fit = runs_on(devices, variant)
        if variant.remote is not None:
            return
        if len(fit) > 1:
            example = f"{{{fit[0]}: {stated}}}"
            yield "", f"{variant.name} runs on {', '.join(fit)}; say on which, such as {example}"
        stated = dict.fromkeys(fit[:1], stated)
    elif variant.remote is not None:
        yield "", f"{variant.name} runs at its server, on none of these devices"
        return
    for name in stated:
        if name not in devices:
            known = nearest(name, devices) if devices else "the node lists no `devices`"
            yield name, f"there is no device {name}; {known}"
        elif timed and not may_run(variant, devices[name].hardware):
            yield name, variant.untimed_on(devices[name].hardware, file=file)
        elif devices[name].cores is not None and variant.threads > devices[name].slots:
            yield (
                name,
                f"a run of {variant.name} takes {variant.threads} threads, and {name} has "
                f"{devices[name].slots} cores",
            )


def too_large(
    device: Device, name: str, copies: Mapping[str, tuple[int, int | None]]
) -> Iterator[str]:
    """Say where a device's memory cannot hold the copies, by variant how many and of what size."""
    if device.memory_bytes is None:
        return
    each = device.memory_bytes
    for variant, (_, size) in copies.items():
        if size is None:
            yield f"{variant} says no `size`, and {name} has a `memory`"
        elif size > each:
            yield f"{SIZE.write(each)} cannot hold {variant}, which takes {SIZE.write(size)}"
    fits = all(size <= each for _, size in copies.values() if size is not None)
    sizes = [count * (size or 0) for count, size in copies.values()]
    total = max(sizes, default=0) if device.exclusive else sum(sizes)
    room = each * (device.count or 1)
    if fits and total > room:
        yield (
            f"{SIZE.write(room)} cannot hold what runs on {name}, which takes {SIZE.write(total)}"
        )
