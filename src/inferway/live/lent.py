"""Models that several pools run at a time; each goes when the last that borrowed it gives it back.

ONNX Runtime runs one session from any number of threads, and a class of the user's own has a
process for each instance that runs it. A pool closes what it runs when it goes; what it has
borrowed it gives back by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from inferway.runtime import Served


class Weights:
    """A loaded model, and whoever has borrowed it.

    `idle` is called when the last loan has come back and the model is to leave, in whichever thread
    that was.
    """

    def __init__(self, runtime: Any, idle: Callable[[], None]) -> None:
        self.runtime, self.idle = runtime, idle
        # Putting in and taking out are one step each, from any thread.
        self.loans: set[int] = set()
        # By loan, the processes that its pool is to have.
        self.reserved: dict[int, int] = {}
        self.leaving = False


class Loan:
    """A loaded model in a pool's hands; closed, in any thread, or forgotten, it is given back."""

    def __init__(self, weights: Weights) -> None:
        runtime = weights.runtime
        self.signature = runtime.signature
        self.steady = getattr(runtime, "steady", False)
        self.call, self.ask = getattr(runtime, "call", None), getattr(runtime, "ask", None)
        self.backend = getattr(runtime, "backend", "")
        self.providers = getattr(runtime, "providers", ())
        self._weights: Weights | None = weights
        weights.loans.add(id(self))

    @property
    def warmed_s(self) -> float | None:
        """Time of a run of the warm-up, s, whoever has made it; None where nobody has."""
        return None if self._weights is None else getattr(self._weights.runtime, "warmed_s", None)

    @warmed_s.setter
    def warmed_s(self, run_s: float | None) -> None:
        if self._weights is not None:
            self._weights.runtime.warmed_s = run_s

    @property
    def workers(self) -> list[int] | None:
        """Process ids of a class of the user's own; None of other models."""
        return None if self._weights is None else getattr(self._weights.runtime, "workers", None)

    @property
    def restarts(self) -> int:
        """How many of these were started in the place of another."""
        return 0 if self._weights is None else getattr(self._weights.runtime, "restarts", 0)

    @property
    def reserve(self) -> Callable[[int], None] | None:
        """Have processes for so many instances; None of models that run in this one.

        A pool that comes takes none from the one that it is to be instead of.
        """
        weights = self._weights
        if weights is None or getattr(weights.runtime, "reserve", None) is None:
            return None

        def reserve(count: int) -> None:
            weights.reserved[id(self)] = count
            weights.runtime.reserve(max([*weights.reserved.values()]))

        return reserve

    def run(self, inputs: dict[str, NDArray[Any]], *call: Any) -> dict[str, NDArray[Any]]:
        """Answer one batch; see `inferway.runtime.Runtime.run`."""
        weights = self._weights
        if weights is None:
            raise RuntimeError("the model was given back; borrow it again to run it")
        answer: dict[str, NDArray[Any]] = weights.runtime.run(inputs, *call)
        return answer

    def again(self) -> Loan | None:
        """Borrow the same model once more; None where this one was given back."""
        weights = self._weights
        return None if weights is None else Loan(weights)

    def close(self) -> None:
        """Give it back; calls that are under way still end."""
        weights, self._weights = self._weights, None
        if weights is None:
            return
        weights.loans.discard(id(self))
        if (own := weights.reserved.pop(id(self), 0)) and weights.reserved:
            most = max([*weights.reserved.values()])
            if most < own:  # those that are too many end when they are free
                weights.runtime.reserve(most)
        if weights.leaving and not weights.loans:
            weights.idle()

    def __del__(self) -> None:
        # A pool that was given up while it was made closes nothing.
        self.close()


def lend(runtime: Served) -> Loan:
    """Lend a model that nobody else has; it is closed when the last loan of it has come back."""
    weights = Weights(runtime, runtime.close)
    weights.leaving = True
    return Loan(weights)


def on_loop(idle: Callable[[], None]) -> Callable[[], None]:
    """Have something called on the event loop that runs now, from whichever thread."""
    loop = asyncio.get_running_loop()

    def call() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(idle)

    return call
