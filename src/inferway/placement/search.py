"""The local search of `exchange` at one node: which of its copies to trade for which others.

A node's *scene* is what it knows when its turn has come: of each task whose requests cross it, the
request types with the counts that are forecast, the instances that run below and above it with the
room that they have for these types, and its own copies, present and absent. The cost of a task is
that of its loads under the very rule by which the twin serves (`inferway.placement.serving.fill`),
so the gain of a move is the one that is served, as far as the scene is right.

A task's *step* adds a copy of a variant, drops one, or replaces one by another. Tasks meet in the
budget alone: steps of different tasks add up exactly, in cost and in bytes. A *trade* is one step,
and where that needs room the steps of other tasks that give it at the least cost: the cheapest per
byte, or a single one. Where a step gives room, others that gain most per byte fill it. The best
trade is made as long as it saves more than a threshold.

Such a search ends where no trade helps. A *kick* goes on from there: a copy that is absent, drawn
at random, is put in whatever it costs, the search goes on around it and then without regard for it,
and the outcome stands if it is better by more than the threshold. In a kick the node takes into
account that those below may give up copies of the task: each has told what it would gain by that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.placement.contract import Allocation, Float, Index, Mask, Offset
from inferway.placement.serving import fill
from inferway.site.compiled import entry, jit
from inferway.site.draw import uniform

_MOST_TRADES = 1000  # In one search; each saves more than the threshold, so few are ever made


class Scene(NamedTuple):
    """A node's N tasks, one after the other, as flat arrays; `x` is what the search changes."""

    # (N + 1,) ranges of each task's request types, options, instances, their levels of room, and
    # own variants.
    types: Offset
    options: Offset
    instances: Offset
    units: Offset
    variants: Offset
    first: Offset  # (n + N,) for each task the ranges of its types' options, counted from 0 in it
    requests: Float  # (n,) forecast of each type
    unit: Index  # (o,) the level of an instance behind each option, counted from 0 in its task
    cost: Float  # (o,) ascending for each type
    # (U,) of each level its instance, counted from 0 in its task; which of the `share` of the
    # room it has, -1 for all of it; and that room, in requests per slot for these types.
    holder: Index
    level: Index
    room: Float
    pinned: Float  # (U,) 0: what runs is said by `x` alone
    # (n, L) parts of the room of a copy at each level where 1, 2, ..., n or more of its kind run,
    # and (I,) the first instance in the task of an own copy's kind; -1 elsewhere. One level is all
    # of the room.
    share: Float
    kind: Index
    # (I,) the node's variant that the instance is a copy of, counted from 0 in the task; -1 for
    # what placement here does not decide about.
    variant: Index
    size: Float  # (k,) bytes of a copy of each of the node's variants
    fixed: Mask  # (N,) tasks that stay as they are
    # (I,) what an instance's node would gain, in costs times requests, if the instance were gone.
    credit: Float
    x: Allocation  # (I,) 1 where an instance runs


class TaskSteps(NamedTuple):
    """Every step of every task: of K variants a square, K + 1 by K + 1, added by dropped.

    Number K stands for no copy. A step that cannot be taken costs infinity.
    """

    start: Offset  # (N + 1,) range of each task's square
    task: Index  # (s,)
    saved: Float  # (s,) cost less what it is after the step; -inf where there is no such step
    size: Float  # (s,) bytes that the step takes; negative where it gives some


class Trade(NamedTuple):
    """Steps of different tasks that are taken together: the first `length` of these."""

    step: Offset  # (N,)
    length: Offset  # (1,)


@entry
def cost_of(scene: Scene) -> float:
    """Sum up the fluid cost of all tasks of a scene."""
    total, load = 0.0, _loads_for(scene)
    for i in range(len(scene.fixed)):
        total += _cost(scene, i, load)
    return total


@entry
def improve(scene: Scene, left: float, least: float, kicks: int, draw: int, worth: Float) -> float:
    """Search from what runs on, and kick; returns what is saved, in costs times requests.

    `left` are the budget's bytes that are free, `least` is what a trade must save at least, and
    `draw` a word that the kicks follow from. In `worth`, (k,), it writes what the node would gain
    by another task if a copy of each variant were gone. What it returns may count on others: a kick
    takes for granted that a copy below goes where its node gains more by that than it costs.
    """
    steps, load = _steps_for(scene), _loads_for(scene)
    for i in range(len(scene.fixed)):
        _look(scene, steps, i, load)
    left, saved = _search(scene, steps, left, least, load)
    for kick in range(kicks):
        step = _absent(scene, steps, left, uniform(draw, kick))
        if step < 0:
            break
        x, before = scene.x.copy(), steps.saved.copy()
        trade = _trade_for(scene)
        forced = steps.task[step]
        _relieve(scene, steps, step, left, np.inf, trade, True)
        if trade.length[0] == 0:
            continue
        gained, room = 0.0, left
        for k in range(trade.length[0]):
            gained += steps.saved[trade.step[k]]
            room -= steps.size[trade.step[k]]
        _take(scene, steps, trade, load)
        gained += _vacate(scene, steps, forced, load)
        scene.fixed[forced] = True
        room, around = _search(scene, steps, room, least, load)
        scene.fixed[forced] = False
        room, after = _search(scene, steps, room, least, load)
        if gained + around + after > least:
            left, saved = room, saved + gained + around + after
            for k in range(len(x)):
                if scene.variant[k] < 0:
                    scene.x[k] = x[k]
            for i in range(len(scene.fixed)):
                _look(scene, steps, i, load)
        else:
            scene.x[:] = x
            steps.saved[:] = before
    _value(scene, steps, left, worth)
    return saved


@jit
def _vacate(scene: Scene, steps: TaskSteps, i: int, load: Float) -> float:
    """Take out what others run of a task where they would gain more than it costs; returns it."""
    total = 0.0
    now = _cost(scene, i, load)
    for k in range(scene.instances[i], scene.instances[i + 1]):
        if scene.credit[k] > 0.0 and scene.x[k] > 0:
            scene.x[k] = 0
            then = _cost(scene, i, load)
            if then - now < scene.credit[k]:
                total += scene.credit[k] - (then - now)
                now = then
            else:
                scene.x[k] = 1
    if total > 0.0:
        _look(scene, steps, i, load)
    return total


@jit
def _value(scene: Scene, steps: TaskSteps, left: float, worth: Float) -> None:
    """Write what the node would gain by another task if a copy of each variant were gone."""
    for i in range(len(scene.fixed)):
        for k in range(scene.variants[i], scene.variants[i + 1]):
            worth[k] = 0.0
            for s in range(len(steps.task)):
                if steps.task[s] != i and steps.size[s] <= left + scene.size[k]:
                    worth[k] = max(worth[k], steps.saved[s])


@jit
def _loads_for(scene: Scene) -> Float:
    most = 0
    for i in range(len(scene.fixed)):
        most = max(most, scene.options[i + 1] - scene.options[i])
    return np.empty(most)


@jit
def _steps_for(scene: Scene) -> TaskSteps:
    tasks = len(scene.fixed)
    start = np.zeros(tasks + 1, np.int64)
    for i in range(tasks):
        start[i + 1] = start[i] + (scene.variants[i + 1] - scene.variants[i] + 1) ** 2
    count = start[tasks]
    steps = TaskSteps(start, np.empty(count, np.int32), np.full(count, -np.inf), np.zeros(count))
    for i in range(tasks):
        own = scene.size[scene.variants[i] : scene.variants[i + 1]]
        none = len(own)
        for added in range(none + 1):
            for dropped in range(none + 1):
                s = start[i] + added * (none + 1) + dropped
                steps.task[s] = i
                steps.size[s] = (own[added] if added < none else 0.0) - (
                    own[dropped] if dropped < none else 0.0
                )
    return steps


@jit
def _trade_for(scene: Scene) -> Trade:
    return Trade(np.empty(len(scene.fixed), np.int64), np.zeros(1, np.int64))


@jit
def _cost(scene: Scene, i: int, load: Float) -> float:
    """Compute what a task's requests cost as they would be served."""
    start, end = scene.options[i], scene.options[i + 1]
    x = scene.x[scene.instances[i] : scene.instances[i + 1]]
    units = slice(scene.units[i], scene.units[i + 1])
    room = scene.room[units]
    if len(room) != len(x):
        x, room = _by_level(scene, i, x)
    fill(
        scene.first[scene.types[i] + i : scene.types[i + 1] + i + 1],
        scene.unit[start:end],
        room,
        scene.pinned[units],
        x,
        scene.requests[scene.types[i] : scene.types[i + 1]],
        load[: end - start],
    )
    total = 0.0
    for o in range(start, end):
        total += scene.cost[o] * load[o - start]
    return total


@jit
def _by_level(scene: Scene, i: int, x: Allocation) -> tuple[Allocation, Float]:
    """Tell which levels of a task's instances are there, and their room beside equal copies."""
    first, begin = scene.instances[i], scene.units[i]
    running = np.zeros(len(x), np.int64)
    for k in range(len(x)):
        if scene.kind[first + k] >= 0:
            running[scene.kind[first + k]] += x[k]
    count = scene.units[i + 1] - begin
    there, room = np.empty(count, np.uint8), np.empty(count)
    for u in range(count):
        k = scene.holder[begin + u]
        there[u] = x[k]
        room[u] = scene.room[begin + u]
        if scene.level[begin + u] >= 0 and x[k] > 0:
            row = min(running[scene.kind[first + k]], len(scene.share)) - 1
            room[u] *= scene.share[row, scene.level[begin + u]]
    return there, room


@jit
def _copy(scene: Scene, i: int, variant: int, running: int) -> int:
    """Find a copy of a task's variant that runs, the last, or does not, the first; -1 for none."""
    found = -1
    for k in range(scene.instances[i], scene.instances[i + 1]):
        if scene.variant[k] == variant and scene.x[k] == running:
            found = k
            if not running:
                break
    return found


@jit
def _look(scene: Scene, steps: TaskSteps, i: int, load: Float) -> None:
    """Compute what each step of a task saves."""
    if scene.fixed[i]:
        return
    none = scene.variants[i + 1] - scene.variants[i]
    start, width = steps.start[i], none + 1
    now = _cost(scene, i, load)
    wanted = False
    for rho in range(scene.types[i], scene.types[i + 1]):
        wanted = wanted or scene.requests[rho] > 0.0
    for added in range(none):
        come = _copy(scene, i, added, 0) if wanted else -1
        saved = -np.inf
        if come >= 0:
            scene.x[come] = 1
            saved = now - _cost(scene, i, load)
            scene.x[come] = 0
        steps.saved[start + added * width + none] = saved
    for dropped in range(none):
        gone = _copy(scene, i, dropped, 1)
        if gone < 0:
            for added in range(none + 1):
                steps.saved[start + added * width + dropped] = -np.inf
            continue
        scene.x[gone] = 0
        steps.saved[start + none * width + dropped] = now - _cost(scene, i, load)
        for added in range(none):
            s = start + added * width + dropped
            alone = steps.saved[start + added * width + none]
            # Who gains nothing beside the other gains nothing in its place; it may be smaller.
            smaller = steps.size[s] < 0.0 and alone > -np.inf
            saved = -np.inf
            if added != dropped and (alone > 0.0 or smaller):
                come = _copy(scene, i, added, 0)
                scene.x[come] = 1
                saved = now - _cost(scene, i, load)
                scene.x[come] = 0
            steps.saved[s] = saved
        scene.x[gone] = 1


@jit
def _take(scene: Scene, steps: TaskSteps, trade: Trade, load: Float) -> None:
    """Take the steps of a trade, and look anew at their tasks."""
    for k in range(trade.length[0]):
        i = steps.task[trade.step[k]]
        none = scene.variants[i + 1] - scene.variants[i]
        place = trade.step[k] - steps.start[i]
        added, dropped = place // (none + 1), place % (none + 1)
        come = _copy(scene, i, added, 0) if added < none else -1
        gone = _copy(scene, i, dropped, 1) if dropped < none else -1
        if come >= 0:
            scene.x[come] = 1
        if gone >= 0:
            scene.x[gone] = 0
    for k in range(trade.length[0]):
        _look(scene, steps, steps.task[trade.step[k]], load)


@jit
def _search(
    scene: Scene, steps: TaskSteps, left: float, least: float, load: Float
) -> tuple[float, float]:
    """Make the best trade again and again; returns the bytes left and the cost saved."""
    total, trade = 0.0, _trade_for(scene)
    for _ in range(_MOST_TRADES):
        saved = _best(scene, steps, left, least, trade)
        if saved <= least:
            break
        for k in range(trade.length[0]):
            left -= steps.size[trade.step[k]]
        total += saved
        _take(scene, steps, trade, load)
    return left, total


@jit
def _best(scene: Scene, steps: TaskSteps, left: float, least: float, best: Trade) -> float:
    """Find the trade that saves most, if more than the threshold; returns what it saves."""
    most = least
    best.length[0] = 0
    trade = _trade_for(scene)
    giving, filling = _sorted(scene, steps)
    for s in range(len(steps.task)):
        saved, size = steps.saved[s], steps.size[s]
        if saved == -np.inf or scene.fixed[steps.task[s]]:
            continue
        if saved > most and size <= left:
            best.step[0], best.length[0], most = s, 1, saved
        if size > left and saved > most:
            net = _relieve_by(scene, steps, giving, s, left, saved - most, trade, False)
        elif size < 0.0:
            net = _refill(scene, steps, filling, s, left, most, trade)
        else:
            continue
        if net > most:
            most = net
            best.length[0] = trade.length[0]
            best.step[:] = trade.step
    return most


@jit
def _sorted(scene: Scene, steps: TaskSteps) -> tuple[Offset, Offset]:
    """Sort the steps that give room by their price per byte, and those that gain by their gain."""
    price, worth = np.full(len(steps.task), np.inf), np.full(len(steps.task), np.inf)
    give = fillers = 0
    for s in range(len(steps.task)):
        if steps.saved[s] == -np.inf or scene.fixed[steps.task[s]]:
            continue
        if steps.size[s] < 0.0:
            price[s] = steps.saved[s] / steps.size[s]
            give += 1
        elif steps.saved[s] > 0.0:
            worth[s] = -steps.saved[s] / max(steps.size[s], 1e-300)
            fillers += 1
    giving = np.argsort(price, kind="mergesort")[:give]
    filling = np.argsort(worth, kind="mergesort")[:fillers]
    return giving, filling


@jit
def _relieve(
    scene: Scene, steps: TaskSteps, step: int, left: float, most: float, trade: Trade, forced: bool
) -> float:
    giving, _ = _sorted(scene, steps)
    return _relieve_by(scene, steps, giving, step, left, most, trade, forced)


@jit
def _relieve_by(
    scene: Scene,
    steps: TaskSteps,
    giving: Offset,
    step: int,
    left: float,
    most: float,
    trade: Trade,
    forced: bool,
) -> float:
    """Give a step the room that it lacks, at a cost below `most`; returns what the trade saves.

    Without such a trade it counts no steps, and saves -inf.
    """
    own, need = steps.task[step], steps.size[step] - left
    trade.step[0], trade.length[0] = step, 1
    if need <= 0.0:
        return steps.saved[step]
    # Several steps, the cheapest per byte first.
    paid = given = 0.0
    for k in range(len(giving)):
        s = giving[k]
        if _has(steps, trade, steps.task[s]) or steps.task[s] == own:
            continue
        trade.step[trade.length[0]] = s
        trade.length[0] += 1
        paid -= steps.saved[s]
        given -= steps.size[s]
        if given >= need or paid >= most:
            break
    if given >= need:
        # What turned out not to be needed stays, the dearest first.
        for k in range(trade.length[0] - 2, 0, -1):
            s = trade.step[k]
            if given + steps.size[s] >= need and steps.saved[s] < 0.0:
                paid += steps.saved[s]
                given += steps.size[s]
                trade.length[0] -= 1
                trade.step[k] = trade.step[trade.length[0]]
    enough = given >= need and paid < most
    cheapest = paid if enough else most
    # A single step.
    single = -1
    for k in range(len(giving)):
        s = giving[k]
        # A step that gives enough costs its price for the whole need at least.
        if steps.saved[s] / steps.size[s] * need >= cheapest:
            break
        if -steps.size[s] >= need and -steps.saved[s] < cheapest and steps.task[s] != own:
            single, cheapest = s, -steps.saved[s]
    if single >= 0:
        trade.step[1], trade.length[0] = single, 2
    elif not enough:
        trade.length[0] = 0
        return -np.inf
    return steps.saved[step] - cheapest


@jit
def _has(steps: TaskSteps, trade: Trade, task: int) -> bool:
    found = False
    for k in range(trade.length[0]):
        found = found or steps.task[trade.step[k]] == task
    return found


@jit
def _refill(
    scene: Scene,
    steps: TaskSteps,
    filling: Offset,
    step: int,
    left: float,
    most: float,
    trade: Trade,
) -> float:
    """Fill the room that a step gives with what gains most per byte; returns what that saves."""
    trade.step[0], trade.length[0] = step, 1
    saved, room = steps.saved[step], left - steps.size[step]
    for k in range(len(filling)):
        s = filling[k]
        size = max(steps.size[s], 1e-300)
        if saved + steps.saved[s] / size * room <= most and size > 1e-300:
            break
        if steps.size[s] <= room and not _has(steps, trade, steps.task[s]):
            trade.step[trade.length[0]] = s
            trade.length[0] += 1
            saved += steps.saved[s]
            room -= steps.size[s]
    return saved


@jit
def _absent(scene: Scene, steps: TaskSteps, left: float, at: float) -> int:
    """Draw a step that adds a copy which would gain something; -1 where there is none."""
    total = left
    for i in range(len(scene.fixed)):
        for k in range(scene.instances[i], scene.instances[i + 1]):
            if scene.variant[k] >= 0 and scene.x[k] > 0 and not scene.fixed[i]:
                total += scene.size[scene.variants[i] + scene.variant[k]]
    count, chosen = 0, -1
    for turn in range(2):
        seen = 0
        for i in range(len(scene.fixed)):
            none = scene.variants[i + 1] - scene.variants[i]
            for added in range(none):
                s = steps.start[i] + added * (none + 1) + none
                if steps.saved[s] > 0.0 and steps.size[s] <= total and not scene.fixed[i]:
                    if turn == 1 and seen == int(at * count):
                        chosen = s
                    seen += 1
        count = seen
    return chosen
