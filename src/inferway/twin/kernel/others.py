"""Other tasks that share a site's devices: how the loop of one lets another go on.

Each task has a loop of its own, compiled for its policy. They call each other by address, so that
no code is made for the tasks that happen to be together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from inferway.dispatch.turns import NEVER_DUE_S
from inferway.site.compiled import either, jit
from inferway.site.view import Floats, Ints

# What a task is asked to do, besides letting one of its servers start, by number: to take the next
# of its events, to decide again for those it holds, to say what is next.
EVENT, RELEASE, LOOK = -1, -2, -3
# Why a task needs Python, behind the reasons of `inferway.twin.kernel.state`: as many requests have
# arrived as were asked for, or all have left.
AS_ASKED = 16


class NoOthers(NamedTuple):
    """Stands for the other tasks where nobody shares devices."""

    nothing: int = 0


class Others(NamedTuple):
    """What T tasks that share devices know of each other; all but `number` is common."""

    number: int  # Which task this is
    first: Ints  # (T + 1,) first server of each among those of all
    act: Any  # (T,) address of each one's `inferway.twin.kernel.joint.act`
    seat: Any  # (T,) and of what it acts on
    held: Ints  # (T,) requests in each one's central queue
    next_s: Floats  # (T,) time of each one's next event; inf where it has none
    arrives: Ints  # (T,) whether that is an arrival
    ended: Ints  # (T,) why a task needs Python now; 0 where it does not
    counted_s: Floats  # (T,) until when requests in each one's system are integrated
    given: Ints  # (1,) runs that have given their slots back
    acting: Ints  # (1,) which task does something now, of which an error is then


@intrinsic
def _called(_context: Any, address: Any, seat: Any, what: Any, now_s: Any) -> Any:
    """Call a compiled function at an address."""
    kinds = (types.int64, types.int64, types.float64)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(types.int64, kinds)
        function = builder.inttoptr(args[0], kind.as_pointer())
        status, found = convention.call_function(builder, function, types.int64, kinds, args[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return found

    return types.int64(types.int64, *kinds), code


@jit
def _ask_task(others: Any, task: int, what: int, now_s: float) -> None:
    _called(others.act[task], others.seat[task], what, now_s)


def _ask_plainly(others: Any, task: int, what: int, now_s: float) -> None:
    others.act[task](others.seat[task], what, now_s)


# ``ask_task(others, task, what, now_s)``: another task does what it is asked to.
ask_task = _ask_plainly if numba.config.DISABLE_JIT else _ask_task


def _own(others: Any, server: int) -> int:
    return server - others.first[others.number]


def _is_own(others: Any, server: int) -> bool:
    return others.first[others.number] <= server < others.first[others.number + 1]


@jit
def start_there(others: Any, server: int, now_s: float) -> None:
    """Let a server of another task start, by its number among those of all."""
    task = 0
    while others.first[task + 1] <= server:
        task += 1
    ask_task(others, task, server - others.first[task], now_s)


def _gave(others: Any) -> None:
    others.given[0] += 1


def _due(others: Any, arrived_s: float, deadline_s: float) -> float:
    return arrived_s + (deadline_s if deadline_s < np.inf else NEVER_DUE_S)


# ``own(others, server)``: the task's own number of a server of its own.
own = either(Others, _own, lambda others, server: server)
# ``is_own(others, server)``: whether it is one, by its number among the servers of all.
is_own = either(Others, _is_own, lambda others, server: True)
# ``has_others(others)``: whether there are any.
has_others = either(Others, lambda others: True, lambda others: False)
# ``start_elsewhere(others, server, now_s)``: a server of another task starts.
start_elsewhere = either(
    Others,
    lambda others, server, now_s: start_there(others, server, now_s),
    lambda others, server, now_s: None,
)
# ``due(others, arrived_s, deadline_s)``: when a request is due, for its turn at a device. With one
# deadline for all, who came first is due first.
due = either(Others, _due, lambda others, arrived_s, deadline_s: arrived_s)
# ``gave(others)``: a run has given its slots back.
gave = either(Others, _gave, lambda others: None)


def alone(first: Any, held: Ints, next_s: Floats) -> Others:
    """What tasks know of each other at the beginning; `act` and `seat` are filled later."""
    tasks = len(next_s)
    compiled = not numba.config.DISABLE_JIT
    return Others(
        number=0,
        first=np.asarray(first, np.int64),
        act=np.zeros(tasks, np.int64) if compiled else [None] * tasks,
        seat=np.zeros(tasks, np.int64) if compiled else [None] * tasks,
        held=held,
        next_s=next_s,
        arrives=np.zeros(tasks, np.int64),
        ended=np.zeros(tasks, np.int64),
        counted_s=np.zeros(tasks),
        given=np.zeros(1, np.int64),
        acting=np.zeros(1, np.int64),
    )
