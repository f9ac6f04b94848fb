"""The twin's process: it compiles, and answers questions one after the other, beside the page.

    python -m inferway.dashboard.twin_process

Orders come on standard input, what is said goes out on standard output; both as `question` has
them. It ends with its input.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from inferway.dashboard.question import (
    Ask,
    Cancel,
    Doing,
    Done,
    Order,
    Prepare,
    Said,
    framed,
    frames,
)
from inferway.dashboard.what_if import Canceled, answer, prepared
from inferway.deployment import DeploymentError
from inferway.site.compiled import watched

_NICE: Final = 5
"""Niceness of the process: servers have the processors first."""


class TwinWorker:
    """Works orders off; `say` is told what is done, in whatever thread."""

    def __init__(self, say: Callable[[Said], None]) -> None:
        self._say, self._orders = say, queue.SimpleQueue[Prepare | Ask | None]()
        self._stops: dict[int, threading.Event] = {}
        self._begun: tuple[int, str] = 0, ""

    def take(self, order: Order) -> None:
        """Take an order; one that cancels another is heeded at once."""
        if isinstance(order, Cancel):
            if (stop := self._stops.get(order.number)) is not None:
                stop.set()
            return
        self._stops[order.number] = threading.Event()
        self._orders.put(order)

    def end(self) -> None:
        """Work off what there is, and no more."""
        self._orders.put(None)

    def work(self) -> None:
        """Do what is ordered until the end."""
        with watched(begun=self._compiling, done=lambda _: self._doing(*self._begun)):
            while (order := self._orders.get()) is not None:
                self._say(self._done(order))
                del self._stops[order.number]

    def _done(self, order: Prepare | Ask) -> Done:
        number, stop = order.number, self._stops[order.number]
        if stop.is_set():
            return Done(number)
        try:
            if isinstance(order, Prepare):
                self._doing(number, f"getting ready to replay {order.told.fleet['task']}")
                prepared(order.told)
                return Done(number, {})

            def progress(words: str) -> None:
                self._doing(number, words)

            return Done(number, answer(order.question, order.told, stop, progress))
        except Canceled:
            return Done(number)
        except DeploymentError as error:
            return Done(number, error="; ".join(one.sentence for one in error.problems))
        except ValueError as error:
            return Done(number, error=str(error))
        except Exception as error:
            # Whatever it is, the next question is another one.
            return Done(number, error=f"the twin failed: {type(error).__name__}: {error}")

    def _doing(self, number: int, words: str) -> None:
        self._begun = number, words
        self._say(Doing(number, words))

    def _compiling(self) -> None:
        number, words = self._begun
        self._say(Doing(number, f"compiling, which is kept for the next time ({words})", True))


def main() -> None:
    """Work until the input ends."""
    with suppress(OSError):
        os.nice(_NICE)
    out, lock = sys.stdout.buffer, threading.Lock()
    # What a policy's file prints is none of the messages.
    sys.stdout = sys.stderr

    def say(said: Said) -> None:
        with lock, suppress(OSError):
            out.write(framed(said))
            out.flush()

    worker = TwinWorker(say)

    def read() -> None:
        for order in frames(sys.stdin.buffer, Order):
            worker.take(order)
        # Nobody is there any more who could be told: what is being compiled is not waited for.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    worker.work()


if __name__ == "__main__":
    main()
