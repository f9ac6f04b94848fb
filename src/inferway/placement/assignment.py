"""Assignment: which variants of all tasks take which devices of a node, by one program.

A mixed-integer program, solved by HiGHS: whole numbers of copies of each variant on each device,
and the traffic that they carry. Copies have their device's slots to themselves, so that no run
waits for another copy's. What is served most accurately is best; what is not served costs more than
any accuracy can make up for. `inferway.experiments.planned` solves it for the demand that a file
states, `inferway.placement.assign` again and again for the demand that it has seen.

Related: Ahmad et al., Proteus, doi:10.1145/3617232.3624849, whose program has binary variables for
each device. Here devices of one kind are counted, which leaves out what only swaps equal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.dispatch.joint_bounds import JointMean
from inferway.dispatch.sizing import silence
from inferway.site.view import Floats, Ints

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

    from inferway.deployment import Node, Task, Variant

# What a request that is not served costs, beside the accuracy that its answer would have had.
_UNSERVED: Final = 10.0
_GAP: Final = 1e-4  # Relative gap at which the solver is content, if nothing else is asked for
_LIMIT_S: Final = 10.0
_LOAD_S: Final = 1.0  # What loading a copy takes at least, where it is weighed
_TIE: Final = 1e-6  # Of equal accuracy, the lowest price: what one copy counts of all traffic


@dataclass(frozen=True)
class Option:
    """A variant of a task on a device, and what one copy there is worth.

    Attributes
    ----------
    task, variant, device
        Names.
    carried_per_s
        Greatest rate of one copy at which deadlines can be kept, 1/s.
    service_s
        Time of one request by itself, s.
    accuracy, energy, price
        Of the variant: 0..1, J per request, of one copy.
    slots
        What a run takes of the device.
    size_bytes
        What a copy takes of the device's memory and the node's budget; None where nothing says it.
    load_s
        How long it takes until a copy is ready, s.
    """

    task: str
    variant: str
    device: str
    carried_per_s: float
    service_s: float
    accuracy: float
    energy: float
    price: float
    slots: int
    size_bytes: int | None
    load_s: float

    @property
    def key(self) -> tuple[str, str, str]:
        """Names of its task, variant and device."""
        return self.task, self.variant, self.device


@dataclass(frozen=True)
class Asked:
    """What one task asks of the devices.

    Attributes
    ----------
    rate_per_s
        To be served, 1/s.
    reserve_per_s
        What copies are to carry beyond it, by whichever variant, 1/s.
    target, energy_budget
        Least mean accuracy, greatest mean energy of a request in J, or None.
    latency_s
        Greatest mean service time, s; None for no limit.
    most
        Copies of one variant, at most; None for no limit.
    least
        Copies by variant, at least.
    weight
        What one of its requests counts in means over several tasks.
    """

    rate_per_s: float
    reserve_per_s: float = 0.0
    target: float | None = None
    energy_budget: float | None = None
    latency_s: float | None = None
    most: int | None = None
    least: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0


@dataclass(frozen=True)
class Slots:
    """The devices of a node that copies take.

    Attributes
    ----------
    slots
        Cores or accelerators, by name.
    memory_bytes
        What copies on a device may take together, by name; without those that have no limit.
    budget_bytes
        What all copies may take together; None for no limit.
    """

    slots: Mapping[str, int]
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    budget_bytes: int | None = None


@dataclass(frozen=True)
class Assignment:
    """Copies on devices, and the traffic that they carry.

    Attributes
    ----------
    copies
        By task, variant and device; those with none left out.
    traffic_per_s
        By task, variant and device, 1/s.
    unserved_per_s
        What is left of each task's rate and reserve, 1/s.
    accuracy
        Of all requests in the mean, 0..1; one that is not served counts as 0.
    worth
        The same, less what is not served and what changes cost: what the program makes greatest,
        and no accuracy.
    """

    copies: dict[tuple[str, str, str], int]
    traffic_per_s: dict[tuple[str, str, str], float]
    unserved_per_s: dict[str, float]
    accuracy: float
    worth: float

    def of(self, task: str) -> dict[str, dict[str, int]]:
        """Copies of a task, by variant and device."""
        found: dict[str, dict[str, int]] = {}
        for (name, variant, device), count in self.copies.items():
            if name == task:
                found.setdefault(variant, {})[device] = count
        return found


def carried_per_s(
    service_s: float, batches: Mapping[int, float], deadline_s: float | None
) -> float:
    """Greatest rate, 1/s, of one copy at which deadlines can be kept; 0 for none.

    A request may come when a run has just begun, so two runs fit into the deadline: of the sizes
    of batches with which they do, the best one counts. A copy whose single runs take more than half
    of the deadline is to be free when a request comes, and carries less the less time is left.

    Parameters
    ----------
    service_s
        Time of one request by itself, s.
    batches
        Time of a whole batch by size, s.
    deadline_s
        From a request to its answer, s; None for no deadline.
    """
    times_s = {1: service_s, **batches}
    if deadline_s is None:
        return max(size / time_s for size, time_s in times_s.items())
    fit = [size / time_s for size, time_s in times_s.items() if 2.0 * time_s <= deadline_s]
    least_s = min(times_s.values())
    spare = max(0.0, deadline_s - least_s) / least_s
    return max(fit, default=spare / service_s)


def options_of(
    node: Node, tasks: Sequence[Task], deadlines_s: Mapping[str, float | None]
) -> list[Option]:
    """List what may run on the devices of a node, in the order of the file.

    Parameters
    ----------
    node
        Whose `devices` are taken.
    tasks
        Whose variants may run there.
    deadlines_s
        By task, s; None for no deadline. Variants that cannot keep it are left out.
    """
    found = []
    for task in tasks:
        for variant in task.variants.values():
            if variant.remote is not None:
                continue
            for name, device in node.devices.items():
                if not variant.runs_on(device.hardware):
                    continue
                if device.cores is not None and variant.threads > device.cores:
                    continue
                each, size = device.memory_bytes, variant.size_bytes
                if each is not None and size is not None and size > each:
                    continue
                lead_s = node.leads_s[name]
                service_s = variant.service_on(device.hardware).mean_s + lead_s
                runs_s = run_times(variant, device.hardware)
                times_s = {size: s + size * lead_s for size, s in runs_s.items()}
                rate = carried_per_s(service_s, times_s, deadlines_s[task.name])
                if rate > 0.0:
                    found.append(
                        Option(
                            task=task.name,
                            variant=variant.name,
                            device=name,
                            carried_per_s=rate,
                            service_s=service_s,
                            accuracy=0.0 if np.isnan(variant.accuracy) else variant.accuracy,
                            energy=variant.energy_on(device.hardware) or 0.0,
                            price=variant.price or 0.0,
                            slots=device.taken(variant.threads),
                            size_bytes=size,
                            load_s=variant.load_on(device.hardware),
                        )
                    )
    return found


def run_times(variant: Variant, hardware: str) -> dict[int, float]:
    """Time of a whole batch by size, s, of those that may run on a hardware; none without any."""
    batch = variant.batch_on(hardware)
    if batch is None or not batch.service_s:
        return {}
    pairs = zip(batch.sizes, batch.service_s, strict=True)
    return {size: time_s for size, time_s in pairs if size <= batch.max}


def slots_of(node: Node) -> Slots:
    """Count what the devices of a node have.

    Raises
    ------
    ValueError
        Where one is exclusive.
    """
    for name, device in node.devices.items():
        if device.exclusive:
            raise ValueError(
                f"nodes.{node.name}.devices.{name}.exclusive: copies are planned that can all run "
                "at once, and it holds one variant at a time; leave it out"
            )
    return Slots(
        slots={name: device.slots for name, device in node.devices.items()},
        memory_bytes={
            name: device.memory_bytes * (device.count or 1)
            for name, device in node.devices.items()
            if device.memory_bytes is not None
        },
        budget_bytes=node.budget_bytes,
    )


def assign(
    slots: Slots,
    options: Sequence[Option],
    asked: Mapping[str, Asked],
    *,
    means: Sequence[JointMean] = (),
    every: bool = True,
    held: Mapping[tuple[str, str, str], int] | None = None,
    stay_s: float | None = None,
    fixed: bool = False,
    gap: float = _GAP,
) -> Assignment | None:
    """Find the copies that serve what is asked for, and that most accurately.

    Parameters
    ----------
    slots
        The devices.
    options
        What may run on them.
    asked
        By task.
    means
        Over what is served of several tasks, those that are not asked left out.
    every
        Whether each task is to have a copy, even one that cannot be served.
    held
        Copies that there are, by task, variant and device.
    stay_s
        For how long copies are likely to stay, s: one that is not there yet carries nothing while
        it is loaded, at least a second, and that part of its traffic is what it costs. None where
        it costs nothing.
    fixed
        Whether the copies are those that are held, so that only their traffic is found.
    gap
        Part of the best value by which the answer may be worse.

    Returns
    -------
    Assignment or None
        None where the devices cannot hold what has to be there.
    """
    from scipy.optimize import Bounds, milp  # half a second, which most servers do not need

    tasks = list(asked)
    columns = [one for one in options if one.task in asked]
    count, total = len(columns), sum(one.rate_per_s for one in asked.values())
    # Columns: copies, traffic by option, unserved by task, and of its reserve, and copies that
    # there were not before.
    traffic, unserved, spare = count, 2 * count, 2 * count + len(tasks)
    added = spare + len(tasks)
    width = added + (0 if stay_s is None else count)
    rows: list[dict[int, float]] = []
    limits: list[tuple[float, float]] = []

    def add(least: float, most: float, row: dict[int, float]) -> None:
        rows.append(row)
        limits.append((least, most))

    there = [(held or {}).get(one.key, 0) for one in columns]
    for k, one in enumerate(columns):
        add(-np.inf, 0.0, {traffic + k: 1.0 / one.carried_per_s, k: -1.0})
        if stay_s is not None:
            add(-np.inf, float(there[k]), {k: 1.0, added + k: -1.0})
    for t, name in enumerate(tasks):
        _ask(add, asked[name], name, columns, traffic, unserved + t, every)
        if asked[name].reserve_per_s > 0.0:
            most = asked[name].rate_per_s + asked[name].reserve_per_s
            room = {k: one.carried_per_s for k, one in enumerate(columns) if one.task == name}
            add(most, np.inf, room | {unserved + t: 1.0, spare + t: 1.0})
    for mean in means:
        excess = {}
        for k, one in enumerate(columns):
            if one.task in mean.tasks:
                excess[traffic + k] = asked[one.task].weight * _excess(one, mean)
        add(-np.inf, 0.0, excess)
    for device, most in slots.slots.items():
        here = [(k, one) for k, one in enumerate(columns) if one.device == device]
        add(0.0, float(most), {k: float(one.slots) for k, one in here})
        if (memory := slots.memory_bytes.get(device)) is not None:
            add(0.0, memory / 2**20, {k: (one.size_bytes or 0) / 2**20 for k, one in here})
    if slots.budget_bytes is not None:
        sizes = {k: (one.size_bytes or 0) / 2**20 for k, one in enumerate(columns)}
        add(0.0, slots.budget_bytes / 2**20, sizes)
    cost = np.zeros(width)
    unit = max((one.price for one in columns), default=0.0)
    price = np.array([one.price / unit if unit else 1.0 for one in columns])
    cost[:count] = _TIE * price
    cost[traffic:unserved] = [-one.accuracy / total for one in columns]
    cost[unserved:added] = _UNSERVED / total
    if stay_s is not None:
        lost = [one.accuracy * one.carried_per_s * max(_LOAD_S, one.load_s) for one in columns]
        cost[added:] = np.array(lost) / stay_s / total
    copies_least, copies_most = np.zeros(width), np.full(width, np.inf)
    if fixed:
        copies_least[:count] = copies_most[:count] = there
    whole = np.zeros(width, np.int64)
    whole[:count] = 1
    with silence():
        solution: Any = milp(
            cost,
            integrality=whole,
            bounds=Bounds(copies_least, copies_most),
            constraints=_constraint(rows, limits, width),
            options={"mip_rel_gap": gap, "time_limit": _LIMIT_S},
        )
    if solution.x is None:
        return None
    found: Floats = solution.x
    copies: Ints = np.rint(found[:count]).astype(np.int64)
    keys = [one.key for one in columns]
    rates = dict(zip(keys, found[traffic:unserved].tolist(), strict=True))
    taken = {key: n for key, n in zip(keys, copies.tolist(), strict=True) if n > 0}
    # The solver's tolerance lets a little pass where there is no copy.
    carried = {key: rates[key] for key in taken if rates[key] > 1e-9 * total}
    left = (found[unserved:spare] + found[spare:added]).tolist()
    return Assignment(
        copies=taken,
        traffic_per_s=carried,
        unserved_per_s={
            name: max(0.0, rate) if rate > 1e-6 * asked[name].rate_per_s else 0.0
            for name, rate in zip(tasks, left, strict=True)
        },
        accuracy=sum(one.accuracy * carried.get(one.key, 0.0) for one in columns) / total,
        worth=-float(solution.fun),
    )


def _excess(option: Option, mean: JointMean) -> float:
    """Excess of one answer over the limit of a mean, which is at most 0 in sum."""
    if mean.accuracy is not None:
        return mean.accuracy - option.accuracy
    assert mean.energy is not None
    return option.energy / mean.energy - 1.0


def mean_over(
    mean: JointMean, options: Sequence[Option], traffic_per_s: Mapping[tuple[str, str, str], float]
) -> float | None:
    """Mean accuracy, 0..1, or energy, J, of the answers that a joint mean is over; None of none."""
    inside = [(one, traffic_per_s.get(one.key, 0.0)) for one in options if one.task in mean.tasks]
    answers = sum(rate for _, rate in inside)
    if answers <= 0.0:
        return None
    kind = "energy" if mean.accuracy is None else "accuracy"
    return sum(rate * float(getattr(one, kind)) for one, rate in inside) / answers


def _ask(
    add: Any,
    asked: Asked,
    task: str,
    columns: Sequence[Option],
    traffic: int,
    unserved: int,
    every: bool,
) -> None:
    """Add the rows of one task."""
    own = [(k, one) for k, one in enumerate(columns) if one.task == task]
    rate = asked.rate_per_s
    add(rate, rate, {unserved: 1.0} | {traffic + k: 1.0 for k, _ in own})
    if asked.target is not None:
        ahead = {traffic + k: one.accuracy - asked.target for k, one in own}
        add(0.0, np.inf, ahead)
    for most, values in (
        (asked.energy_budget, [one.energy for _, one in own]),
        (asked.latency_s, [one.service_s for _, one in own]),
    ):
        if most is not None:
            pairs = zip(own, values, strict=True)
            add(-np.inf, 0.0, {traffic + k: value / most - 1.0 for (k, _), value in pairs})
    if every and own:
        add(1.0, np.inf, {k: 1.0 for k, _ in own})
    for variant in dict.fromkeys(one.variant for _, one in own):
        least = asked.least.get(variant, 0)
        if least or asked.most is not None:
            most_copies = np.inf if asked.most is None else float(asked.most)
            row = {k: 1.0 for k, one in own if one.variant == variant}
            add(float(least), most_copies, row)


def _constraint(
    rows: Sequence[Mapping[int, float]], limits: Sequence[tuple[float, float]], width: int
) -> LinearConstraint:
    from scipy.optimize import LinearConstraint
    from scipy.sparse import coo_array

    entries = [
        (number, column, value) for number, row in enumerate(rows) for column, value in row.items()
    ]
    at, column, value = (np.array(one) for one in zip(*entries, strict=True))
    least, most = np.array(limits).T
    return LinearConstraint(
        coo_array((value, (at, column)), (len(rows), width)).tocsr(), least, most
    )


def fluid_bound(
    slots: Slots,
    options: Sequence[Option],
    rates_per_s: Mapping[str, float],
    reserves_per_s: Mapping[str, float] | None = None,
) -> float:
    """Greatest accuracy-weighted goodput over all requests, where devices can be divided at will.

    The program without whole numbers, copies to keep, targets and anything that waits: what is not
    served counts nothing. No assignment of these options does better at these rates.

    Parameters
    ----------
    slots, options
        As for `assign`.
    rates_per_s
        By task, 1/s.
    reserves_per_s
        By task, what devices are to carry beyond it, by whichever variant, as far as they can, 1/s.

    Returns
    -------
    float
        0 where nothing is asked for, or no option answers what is.
    """
    from inferway.dispatch.bounds import linear_program

    columns = [one for one in options if rates_per_s.get(one.task, 0.0) > 0.0]
    if not columns:
        return 0.0
    tasks = [name for name, rate in rates_per_s.items() if rate > 0.0]
    load = [
        [one.slots / one.carried_per_s / most if one.device == name else 0.0 for one in columns]
        for name, most in slots.slots.items()
    ]
    sums = np.array([[1.0 if one.task == name else 0.0 for one in columns] for name in tasks])
    rates = np.array([rates_per_s[name] for name in tasks])
    reserves = np.array([(reserves_per_s or {}).get(name, 0.0) for name in tasks])
    # Columns: traffic by option, what is held for the reserve, and what that lacks by task.
    held, none = np.array(load), np.zeros((len(load), len(tasks)))
    solution = linear_program(
        np.concatenate(
            [
                -np.array([one.accuracy for one in columns]),
                np.zeros(len(columns)),
                np.full(len(tasks), _UNSERVED),
            ]
        ),
        np.block(
            [
                [held, held, none],
                [sums, np.zeros_like(sums), np.zeros((len(tasks), len(tasks)))],
                [np.zeros_like(sums), -sums, -np.eye(len(tasks))],
            ]
        ),
        np.concatenate([np.ones(len(load)), rates, -reserves]),
    )
    return float(-solution.fun / rates.sum())
