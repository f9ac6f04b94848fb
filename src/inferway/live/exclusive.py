"""Models on devices that hold one variant at a time: loaded, warm and timed when it is their turn.

While the device holds another variant, a model takes no memory here: its session is gone, or its
processes have ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final

from inferway.live.errors import WarmUpError
from inferway.live.headroom import is_closed
from inferway.live.threads import run_detached
from inferway.protocol import Signature
from inferway.runtime import Arrays, Served, zeros
from inferway.site import Fleet

# Runs on zeros after a load; the third is near what comes after.
_WARM_UP_RUNS: Final = 3
# How far a load moves what is predicted of the next one.
_WEIGHT: Final = 0.25


class ChangingModel:
    """The model of a variant on an exclusive device, which is there only while the device holds it.

    It is loaded once when it is made, which shows its signature, and given up again.

    Parameters
    ----------
    make
        Loads it: given the signature of the task's other variants, where that is known.
    signature
        That signature.

    Raises
    ------
    ValueError
        As `make`, and where the model cannot be run on zeros.
    """

    steady = False
    ask = None

    def __init__(
        self, make: Callable[[Signature | None], Served], signature: Signature | None
    ) -> None:
        self._make, self._lock = make, Lock()
        self._runtime: Any = None
        self._closed, self._count = False, 1
        self.warmed_s: float | None = None
        self.restarts = 0
        runtime: Any = make(signature)
        self.signature: Signature = runtime.signature
        self.backend: str = getattr(runtime, "backend", "")
        self.providers: Any = getattr(runtime, "providers", ())
        self.call = self._call if getattr(runtime, "call", None) is not None else None
        self._in_processes = hasattr(runtime, "workers")
        _end(runtime)

    @property
    def loaded(self) -> bool:
        """Tell whether the model is there."""
        return self._runtime is not None

    @property
    def workers(self) -> list[int] | None:
        """Process ids of a class of the user's own; None of other models."""
        runtime = self._runtime
        if not self._in_processes:
            return None
        return [] if runtime is None else list(runtime.workers)

    def reserve(self, count: int) -> None:
        """Have processes for so many instances, whenever it is loaded."""
        with self._lock:
            self._count = count

    def load(self) -> None:
        """Load the model and warm it; whatever a runtime raises where that fails."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the model was closed")
            if self._runtime is not None:
                return
            runtime: Any = self._make(self.signature)
            try:
                if runtime.signature != self.signature:
                    raise ValueError(
                        f"its signature {runtime.signature} is not what it was, {self.signature}"
                    )
                if self._in_processes:
                    runtime.reserve(self._count)
                inputs = zeros(self.signature.inputs) if is_closed(self.signature) else None
                for _ in range(_WARM_UP_RUNS * self._count if inputs is not None else 0):
                    runtime.run(inputs)
                if self._closed:
                    raise RuntimeError("the model was closed")
            except BaseException:
                _end(runtime)
                raise
            self._runtime = runtime
            if self._closed:  # just now
                runtime.close()
                raise RuntimeError("the model was closed")

    def unload(self) -> None:
        """Give the model and its memory up; returns when that has happened."""
        with self._lock:
            runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self.restarts += getattr(runtime, "restarts", 0)
            _end(runtime)

    def run(self, inputs: Arrays, *call: Any) -> Arrays:
        """Answer one batch; see `inferway.runtime.Runtime.run`."""
        runtime = self._runtime
        if runtime is None:
            raise RuntimeError("its device holds another variant now")
        answer: Arrays = runtime.run(inputs, *call)
        return answer

    def close(self) -> None:
        """End it for good; a load that is under way ends by that, too."""
        self._closed = True
        runtime = self._runtime
        if runtime is not None:
            runtime.close()

    def _call(self) -> Any:
        runtime = self._runtime
        if runtime is None:
            raise RuntimeError("its device holds another variant now")
        return runtime.call()


def _end(runtime: Any) -> None:
    runtime.close()
    wait = getattr(runtime, "wait", None)
    if wait is not None:  # until its processes are gone
        wait()


class DeviceContent:
    """What one exclusive device of a node holds: the model of a class of a fleet, or nothing.

    Attributes
    ----------
    owner, k
        Whose it is; None and any number where nothing is loaded.
    changing
        Held while that changes.
    """

    def __init__(self) -> None:
        self.owner: HeldVariants | None = None
        self.k = -1
        self.changing = asyncio.Lock()


class HeldVariants:
    """What the exclusive devices of a fleet hold, and what loading has taken.

    Where fleets of several tasks share such a device, it holds a variant of one of them.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    task, fleet
        With an exclusive device.
    models
        By class, what runs it, where its device is exclusive.

    Attributes
    ----------
    devices
        Names of the fleet's exclusive devices.
    contents
        Of the node's devices, by name, for all of its fleets.
    load_s
        By class, how long loading is predicted to take, s: the mean of the last loads.
    changes, seconds
        By device, how often another variant was loaded while it served, and how long that took.
    """

    def __init__(self, task: str, fleet: Fleet, models: Mapping[int, ChangingModel]) -> None:
        of = fleet.devices
        assert of is not None
        self._models, self.task, self.variants = models, task, fleet.variants
        self.device_of: dict[int, str] = {
            k: of.names[d]
            for k, d in enumerate(of.device.tolist())
            if d >= 0 and bool(of.exclusive[d])
        }
        self.devices = tuple(dict.fromkeys(self.device_of.values()))
        self.contents: dict[str, DeviceContent] = {}
        self.load_s: dict[str, float] = {}
        self.changes: Counter[str] = Counter()
        self.seconds: dict[str, float] = dict.fromkeys(self.devices, 0.0)
        self._over = False
        self._loading: set[asyncio.Task[Any]] = set()

    @classmethod
    def of(cls, task: str, fleet: Fleet, first: Sequence[Any]) -> HeldVariants | None:
        """Make it of what runs each class; None where no device is exclusive."""
        if fleet.devices is None or not fleet.devices.exclusive.any():
            return None
        models = {k: one for k, one in enumerate(first) if isinstance(one, ChangingModel)}
        return cls(task, fleet, models)

    def name_of(self, device: str) -> str | None:
        """Name of what a device holds: the variant, with its task where that is another fleet's."""
        content = self.contents.get(device)
        if content is None or content.owner is None:
            return None
        variant = content.owner.variants[content.k]
        return variant if content.owner is self else f"{content.owner.task}/{variant}"

    @property
    def first(self) -> dict[str, int]:
        """By device, the class whose variant it holds at the start."""
        return {device: k for k, device in reversed(self.device_of.items())}

    def go_on(self, before: HeldVariants) -> None:
        """Count on from what another one has counted."""
        self.changes.update(before.changes)
        for device, took_s in before.seconds.items():
            self.seconds[device] = self.seconds.get(device, 0.0) + took_s

    async def begin(self, k: int) -> None:
        """Load a class's model, before it serves; WarmUpError where that fails."""
        try:
            await self.load(k)
        except Exception as error:
            reason = " ".join(str(error).split())
            name = f"{self.task}/{self.variants[k]}"
            raise WarmUpError(f"{name} could not be loaded: {reason}") from error

    async def load(self, k: int) -> float:
        """Have the device of a class give up what it holds, and load the class's; how long, s.

        Whatever the model raises where it cannot be loaded; then the device holds none. Who gives
        up waiting for it leaves the device to nobody else before it has ended.
        """
        loading = asyncio.create_task(self._load(k))
        self._loading.add(loading)
        loading.add_done_callback(self._loading.discard)
        return await asyncio.shield(loading)

    async def _load(self, k: int) -> float:
        content = self.contents.setdefault(self.device_of[k], DeviceContent())
        async with content.changing:
            begun_s = time.monotonic()
            before, content.owner = content.owner, None
            if before is self and content.k == k:
                content.owner = self
                return 0.0
            await run_detached(self._change, before, content.k, k)
            if self._over:  # its fleet has gone meanwhile, and the device is others'
                await run_detached(self.unload, k)
                return 0.0
            content.owner, content.k = self, k
        took_s = time.monotonic() - begun_s
        self._learn(self.variants[k], took_s)
        return took_s

    def _change(self, before: HeldVariants | None, held: int, k: int) -> None:
        if before is not None:
            before.unload(held)
        if self._over:
            raise RuntimeError("its fleet is gone")
        if k in self._models:
            self._models[k].load()

    def unload(self, k: int) -> None:
        """Give up a class's model, if it is one that goes; returns when that has happened."""
        if k in self._models:
            self._models[k].unload()

    def leave(self) -> None:
        """Load nothing any more; what is loaded goes as soon as another variant comes."""
        self._over = True

    def _learn(self, variant: str, took_s: float) -> None:
        known_s = self.load_s.get(variant, took_s)
        self.load_s[variant] = known_s + _WEIGHT * (took_s - known_s)

    def count(self, k: int, took_s: float) -> None:
        """Count a change to a class's variant while it serves."""
        self.changes[self.device_of[k]] += 1
        self.seconds[self.device_of[k]] += took_s

    def spawn(self, change: Any) -> None:
        """Have a change go on beside the requests."""
        task = asyncio.create_task(change)
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def ended(self, limit_s: float) -> bool:
        """Wait until no change is under way, as far as the limit allows; whether that is so."""
        if self._loading:
            await asyncio.wait(self._loading, timeout=limit_s)
        return not self._loading
