"""Shadows: a share of the answered requests, run on the most accurate variant too, to compare.

A shadow runs where a server of that variant is idle and nobody waits, and is never sent, counted or
promised. The server counts as idle all the while: a request that it is given stops the shadow,
where the runtime can be stopped, and else waits for the rest of that one run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Final

from inferway.live.answers import AnswerBook, ComparedAnswer, ServedModel
from inferway.live.pool import Pool
from inferway.live.request import InferRequest, Outcome, ShadowRun
from inferway.profiling.score import ScoreError, classes_of
from inferway.protocol import RefusalError
from inferway.runtime import Arrays

# Bytes of inputs that are copied; of a larger request no shadow runs.
_LARGEST: Final = 16 * 1024 * 1024


class Shadowing:
    """Runs shadows of one fleet's answers, and has a book keep what they come to.

    Parameters
    ----------
    pool
        The fleet.
    book
        Of the same task.
    served
        Its variants.
    share
        Probability with which an answer of another variant is compared, above 0.
    """

    def __init__(
        self, pool: Pool, book: AnswerBook, served: Mapping[str, ServedModel], share: float
    ) -> None:
        self._pool, self._book, self._served, self._share = pool, book, served, share
        grades = [-1.0 if grade is None else grade for grade in pool.dispatcher.fleet.grades]
        best = max(pool.classes, key=grades.__getitem__)
        names = pool.dispatcher.fleet.names
        self._best = names[best]
        self._most_rows = min(pool.most_rows[best], pool.fits[best])
        self._need = pool.demands[best]
        model = served[self._best].model
        self._reference = f"{self._best} {model}"
        self._servers = [
            server
            for server, k in enumerate(pool.class_of)
            if names[k] == self._best and pool.own >> k & 1
        ]
        self._random = random.Random()
        self._left = self._gap()

    def look(self, request: InferRequest) -> None:
        """Look at a request that has ended: maybe a shadow of it begins."""
        if (
            request.outcome is not Outcome.ANSWERED
            or request.variant == self._best
            or request.passed is not None
            or request.rows > self._most_rows
        ):
            return
        self._left -= 1
        if self._left > 0:
            return
        self._left = self._gap()
        counts, server = self._book.shadows, self._spare(request.rows)
        if server is None:
            counts.busy += 1
            return
        classes = _classes(request.outputs)
        inputs = None if classes is None else _copied(request)
        if inputs is None:
            counts.failed += 1
            return
        shadow = ShadowRun(inputs, request.rows, self._ended, (request.id, classes))
        shadow.server = server
        self._pool.servers.run_shadow(shadow)

    def _gap(self) -> int:
        """Draw how many answers on the next is that is compared, each with the same probability."""
        if self._share >= 1.0:
            return 1
        return 1 + int(math.log(1.0 - self._random.random()) / math.log1p(-self._share))

    def _spare(self, rows: int) -> int | None:
        """Find a server that a shadow may run at now."""
        pool, room, need = self._pool, self._pool.options.headroom, self._need
        if pool.held:
            return None
        if room is not None and (
            room.waiting
            or (need is not None and room.held_bytes + need.runs[rows] > room.limit_bytes // 2)
        ):
            return None
        return next((one for one in self._servers if pool.servers.is_spare(one)), None)

    def _ended(self, shadow: InferRequest) -> None:
        identity, classes = shadow.context
        counts = self._book.shadows
        if shadow.abandoned:
            counts.gave_way += 1
            return
        other = _classes(shadow.outputs) if shadow.outcome is Outcome.ANSWERED else None
        if other is None or len(other) != len(classes):
            counts.failed += 1
            return
        agrees = sum(one == two for one, two in zip(classes, other, strict=True)) / len(classes)
        comparison = ComparedAnswer(
            identity.decode("latin-1"), agrees, self._share, self._reference
        )
        self._book.compare(comparison)


def shadowing(
    pool: Pool,
    book: AnswerBook,
    served: Mapping[str, ServedModel],
    share: float,
    noted: Callable[[InferRequest, int], None],
) -> Callable[[InferRequest, int], None]:
    """Have shadows run of what a fleet answers, too; with one graded variant there are none."""
    if sum(one.accuracy is not None for one in served.values()) < 2 or not share:
        return noted
    look = Shadowing(pool, book, served, share).look

    def both(request: InferRequest, column: int) -> None:
        noted(request, column)
        look(request)

    return both


def _classes(outputs: Arrays | None) -> list[object] | None:
    """Read the class of each row; None where an answer has none, or not of each."""
    if outputs is None:
        return None
    try:
        classes: list[object] = classes_of(outputs).tolist()
    except (ScoreError, ValueError, TypeError):
        return None
    return classes


def _copied(request: InferRequest) -> Arrays | None:
    """Copy the inputs, whose memory is the protocol's; None where they are too large."""
    try:
        inputs = request.inputs
    except RefusalError:
        return None
    if sum(array.nbytes for array in inputs.values()) > _LARGEST:
        return None
    return {name: array.copy() for name, array in inputs.items()}
