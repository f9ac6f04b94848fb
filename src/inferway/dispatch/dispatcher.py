"""The dispatcher: one site and one policy bound together, one compiled call per event.

The world that owns the site calls it: `arrive`, `finish`, `withdraw`, `mark`; where servers take
batches also `pull` and `begin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from inferway.dispatch import steps, turns
from inferway.dispatch.alias import set_routing
from inferway.dispatch.contract import build_policy
from inferway.dispatch.measured import correct
from inferway.dispatch.steps import (
    AS_DECIDED,
    CREDIT,
    IN_HAND,
    NO_SERVER,
    PREDICTED_SERVICE,
    PREDICTED_WAIT,
    Binding,
    Handles,
    bind,
    compiled,
)
from inferway.dispatch.turns import compiled_turn
from inferway.policies.fault import COMPILE_ERRORS, compile_reason, division
from inferway.site.claims import COLUMNS, joined
from inferway.site.fleet import Fleet
from inferway.site.view import ALL_CLASSES, Changes, Floats, Ints, Site, copied, empty_site

# Places at a server of a fleet without a buffer limit: memory is finite, and so is patience.
UNBOUNDED_PLACES = 1024
# What has been tried in this process, by the policy's class and its fields' types.
_TRIED: set[tuple[object, ...]] = set()


class PolicyError(RuntimeError):
    """A policy that does not keep its contract."""


def no_server(policy: str, fleet: Fleet, others: str = "REJECT nor HOLD") -> PolicyError:
    """Say that the policy's decision is none: no server, nor any of the others that there are."""
    return PolicyError(
        f"policy {policy} returned a number that is neither a server of "
        f"0..{fleet.servers - 1} nor {others}"
    )


@contextmanager
def faults_of(name: str, policy: Any, *, error: type[Exception] = PolicyError) -> Iterator[None]:
    """Say of a policy that it does not compile, a ValueError, or has divided by zero."""
    try:
        yield
    except COMPILE_ERRORS as wrong:
        reason = compile_reason(wrong, type(policy))
        raise ValueError(f"policy {name} does not compile: {reason}") from wrong
    except ZeroDivisionError as wrong:
        if (where := division(wrong, type(policy))) is None:
            raise
        raise error(f"policy {name} {where}") from wrong


class RetunedPolicy(NamedTuple):
    """A policy's memory at an arrival rate; see `Dispatcher.plan`."""

    rate_per_s: float
    policy: Any


class FormedBatch(NamedTuple):
    """A batch that a free server takes by itself; see `Dispatcher.form`."""

    rows: int
    run_s: float  # Predicted time of the run, s


class Dispatcher:
    """A site and its policy, for a world that works request by request.

    Parameters
    ----------
    fleet
        Server classes.
    policy
        Its name: one of `inferway.dispatch.POLICIES`, or ``./file.py:Class``.
    target
        Accuracy target in 0..1, or None.
    rate_per_s
        Expected arrival rate, 1/s, or None where it is not known.
    folder
        Where a relative policy file starts.
    measure
        Whether predictions follow the service times that `finish` reports, or stay the fleet's.
    narrow
        Whether servers that are predicted to miss a request's deadline are left out; else the
        policy alone decides what a deadline means.
    max_wait_s
        A server whose predicted wait is longer is saturated, and left out; None for no limit.
    **options
        The policy's own.

    Raises
    ------
    ValueError
        Where the policy is unknown, lacks what it needs, or does not compile, or for a longest
        wait below 0.

    Notes
    -----
    Not thread-safe: one thread owns a dispatcher.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: str,
        *,
        target: float | None,
        rate_per_s: float | None = None,
        folder: Path | None = None,
        measure: bool = False,
        narrow: bool = True,
        max_wait_s: float | None = None,
        **options: Any,
    ) -> None:
        if max_wait_s is not None and not max_wait_s >= 0.0:
            raise ValueError(f"the longest wait is 0 s or more, not {max_wait_s:g} s")
        self.fleet, self.policy_name, self.options = fleet, policy, options
        self.target, self.rate_per_s, self.folder = target, rate_per_s, folder
        self.measure, self.narrow, self.max_wait_s = measure, narrow, max_wait_s
        self.lasting = 0  # Bit mask of classes that are never saturated
        self.policy: Any = build_policy(
            policy, fleet, target=target, rate_per_s=rate_per_s, folder=folder, **options
        )
        self.site = empty_site(fleet, target, fleet.buffer or UNBOUNDED_PLACES)
        with faults_of(policy, self.policy, error=ValueError):
            self._bind(self._binding(self.policy, self.site))
            self._arrive = compiled(steps.arrive, self._handles.whole)
            self._finish = compiled(steps.finish, self._handles.learning)
            self._withdraw = compiled(steps.withdraw, self._handles.learning)
            self._mark = compiled(steps.mark, self._handles.silent)
            kind = (type(self.policy), *map(_kind, cast("tuple[Any, ...]", self.policy)))
            if kind not in _TRIED:
                self._try()
                _TRIED.add(kind)
        self.prepare(batches=self.pulls)

    # Steps that not every world takes are compiled when they are first asked for.
    @cached_property
    def _begin(self) -> Any:
        return compiled(steps.begin, self._handles.silent)

    @cached_property
    def _form(self) -> Any:
        return compiled(steps.form, self._handles.silent)

    @cached_property
    def _predict(self) -> Any:
        return compiled(steps.predict, self._handles.silent)

    @cached_property
    def _pull(self) -> Any:
        return compiled(steps.pull, self._handles.pulling)

    @cached_property
    def _settle(self) -> Any:
        return compiled(steps.settle, self._handles.whole)

    @cached_property
    def _fall_back(self) -> Any:
        return compiled(steps.fall_back, self._handles.learning)

    @cached_property
    def _shift(self) -> Any:
        return compiled(steps.shift, self._handles.silent)

    @cached_property
    def _turns(self) -> tuple[Any, ...]:
        of = (
            *(turns.ask_turn, turns.start_run, turns.end_run),
            *(turns.leave_line, turns.next_turn, turns.look),
        )
        return tuple(compiled_turn(step, self._handles.silent) for step in of)

    @cached_property
    def _changes(self) -> tuple[Any, ...]:
        of = turns.begin_change, turns.end_change
        return tuple(compiled_turn(step, self._handles.silent) for step in of)

    def prepare(self, *, batches: bool = False, shifts: bool = False) -> None:
        """Compile now what not every world asks for; else its first call takes a moment.

        Batches are `pull`, `form` and `begin`, for servers that take several requests at once;
        shifts are `shift`, for times that change from outside.
        """
        _ = (self._begin, self._form, self._pull) if batches else None
        _ = self._shift if shifts else None
        _ = self._turns if self.shares else None
        _ = self._changes if self.changes else None

    @property
    def shares(self) -> bool:
        """Tell whether servers share devices, and so take turns there."""
        return self.fleet.devices is not None

    @property
    def changes(self) -> bool:
        """Tell whether a device holds one variant at a time."""
        return isinstance(getattr(self.site.devices, "changes", None), Changes)

    @property
    def pulls(self) -> bool:
        """Tell whether the policy forms its own batches."""
        return hasattr(self.policy, "pull")

    @property
    def settles(self) -> bool:
        """Tell whether the policy may ask a second server, so that `settle` hears of answers."""
        return hasattr(self.policy, "settle")

    def _try(self) -> None:
        """Make every call once, on a copy of the site: a first request must not find a fault."""
        spare = bind(self._binding(self._copied(), copied(self.site)))
        whole, silent, learning, pulling = (one.handle for one in spare)
        # Whatever the policy decides, this goes to server 0.
        request = (0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, True, 0)
        self._arrive(whole, *request)
        self._withdraw(learning, 0, 0, 0.0, True)
        self._arrive(whole, *request)
        self._finish(learning, 0, 0.0, 0.0, 0)
        self._mark(silent, 0, False, 0.0)
        if self.pulls:
            self._pull(pulling, 0, 0.0, 1)
        if self.settles:
            last = self.fleet.servers - 1
            self._arrive(whole, *request)
            self._finish(learning, 0, 0.0, 0.0, 0)
            asked = (0, 0.0, 1, 0.0, np.inf, 0.0, 0, ALL_CLASSES, 1)
            self._settle(whole, *asked, np.zeros(1), 0.5, 1, True, last)
            self._fall_back(learning, last, 0, 0.0, 0, 0.5, 0.5, True)
        if self.routed:
            set_routing(self.policy, self.policy.probabilities)

    def _bind(self, binding: Binding, before: Handles | None = None) -> None:
        """Lay out the policy and the site as they are called from now on."""
        self._needs, self._decision = binding, binding.decision
        self._handles = bind(binding, before)
        self._bound, self._silent, self._learning, self._pulling = (
            one.handle for one in self._handles
        )

    def _copied(self) -> Any:
        """The policy with memory of its own."""
        fields = (part.copy() if isinstance(part, np.ndarray) else part for part in self.policy)
        return type(self.policy)(*fields)

    def _binding(self, policy: Any, site: Site) -> Binding:
        most_s = np.inf if self.max_wait_s is None else float(self.max_wait_s)
        allowed, decision = np.zeros(len(site.queue), np.bool_), np.full(4, np.nan)
        rules = self.measure, self.narrow, most_s, self.lasting
        return Binding(site, allowed, decision, np.zeros(len(site.rate)), *rules, policy)

    def arrive(
        self,
        now_s: float,
        draw: int,
        deadline_s: float = np.inf,
        floor: float = 0.0,
        priority: int = 0,
        classes: int = ALL_CLASSES,
        rows: int = 1,
        counted: bool = True,
    ) -> int:
        """Decide for one request, admit it, move the balance, let the policy learn.

        Parameters
        ----------
        now_s
            The time, s, on a clock that never goes back.
        draw
            The request's random word, a signed 64-bit integer.
        deadline_s
            Absolute, on the same clock; servers predicted to be late are not considered.
        floor
            Least accuracy that the request accepts.
        priority
            1 is the highest, 0 says nothing.
        classes
            Bit mask of classes that may answer.
        rows
            Answers that it asks for.
        counted
            False for a request pinned to a variant: it does not move the balance.

        Returns
        -------
        int
            A server, REJECT or HOLD.

        Raises
        ------
        PolicyError
            Where the policy decides for a server that there is not, or divides by zero; nothing has
            happened then.
        """
        try:
            server = self._arrive(
                self._bound,
                now_s,
                draw,
                deadline_s,
                floor,
                priority,
                classes,
                rows,
                counted,
                AS_DECIDED,
            )
        except ZeroDivisionError:
            with faults_of(self.policy_name, self.policy):
                raise
        if server == NO_SERVER:
            raise no_server(self.policy_name, self.fleet)
        return server

    def follow(
        self,
        now_s: float,
        draw: int,
        deadline_s: float,
        floor: float,
        priority: int,
        classes: int,
        rows: int,
        counted: bool,
        taken: int,
    ) -> int:
        """As `arrive`, but what happens is `taken`; what this policy would have decided.

        So a decision is compared with a recorded one.
        """
        return self._arrive(
            self._bound, now_s, draw, deadline_s, floor, priority, classes, rows, counted, taken
        )

    def begin(self, server: int, taken: int, now_s: float) -> None:
        """The server serves its first `taken` requests as one batch; with 0 it waits for more.

        Called where the world asks `pull`; without it a server serves one request after another.
        """
        self._begin(self._silent, server, taken, now_s)

    def ask_turn(self, server: int, due_s: float, now_s: float) -> bool:
        """Ask whether a free server may run now, as its device has room; else it waits there.

        Those wait in the order in which their first requests are due. For sites that share devices,
        as are the next four.
        """
        return bool(self._turns[0](self._silent, server, due_s, now_s))

    def start_run(self, server: int, taken: int, now_s: float) -> None:
        """The server, whose turn it is, serves its first `taken` requests as one run."""
        self._turns[1](self._silent, server, taken, now_s)

    def end_run(self, server: int, now_s: float) -> None:
        """The server's run has ended, and its device has room again; before its requests leave."""
        self._turns[2](self._silent, server, now_s)

    def leave_line(self, server: int, now_s: float) -> None:
        """The server waits at its device no longer."""
        self._turns[3](self._silent, server, now_s)

    def next_turn(self, server: int, now_s: float) -> int:
        """The next whose turn it is at the device of the server, to be started; -1 for nobody.

        Where one of another dispatcher comes first that shares the device, -2 - its row of
        `share_devices`.
        """
        return int(self._turns[4](self._silent, server, now_s))

    def look(self, now_s: float) -> None:
        """Have the site say what is idle now, beside the runs of others, and tell them of its own.

        Nothing that a policy decides by changes, as every step does this before.
        """
        self._turns[5](self._silent, now_s)

    def needs_change(self, server: int) -> bool:
        """Tell whether the device of a server holds another variant, which has to go first.

        For sites with exclusive devices alone, as are the next three.
        """
        devices = self.site.devices
        k = self.site.server_class.item(server)
        d = devices.device.item(k)
        changes = devices.changes
        return d >= 0 and bool(changes.exclusive[d]) and changes.held.item(d) != k

    def begin_change(self, server: int, now_s: float) -> None:
        """The device of a server whose turn it is begins to load its variant; nothing runs there.

        Its run may start without another turn when that has ended.
        """
        self._changes[0](self._silent, server, now_s)

    def end_change(self, server: int, works: bool, now_s: float) -> None:
        """That has ended: the device holds the variant, or none where it could not be loaded."""
        self._changes[1](self._silent, server, works, now_s)

    def hold_nothing(self) -> None:
        """No variant has been loaded yet on a device that holds one at a time."""
        changes = self.site.devices.changes
        for k in {k for k in changes.held.tolist() if k >= 0}:
            self.end_change(int(self.fleet.first[k]), False, float(self.site.clock_s[0]))
        changes.since[:] = -1

    def set_load_time(self, k: int, load_s: float) -> None:
        """Predict from now on that it takes so long until the variant of class k is loaded."""
        self.site.devices.changes.load_s[k] = load_s

    def set_overhead(self, device: int, seconds: float) -> None:
        """Predict from now on that each request takes so much of a device before it runs, s.

        For sites that share devices alone.
        """
        devices = self.site.devices
        devices.lead_s[devices.device == device] = seconds

    def finish(self, server: int, now_s: float, service_s: float, measured: int = 0) -> None:
        """The first request at the server is answered after `service_s`; the next one starts.

        The service time is learned for so many measured rows: those of the whole batch, for its
        first answer; 0 for the request's own; below 0 where it has been learned already.
        """
        try:
            self._finish(self._learning, server, now_s, service_s, measured)
        except ZeroDivisionError:
            with faults_of(self.policy_name, self.policy):
                raise

    def settle(
        self,
        server: int,
        now_s: float,
        draw: int,
        confidence: Floats,
        credit: float,
        count: int = 1,
        entered_s: float = 0.0,
        deadline_s: float = np.inf,
        floor: float = 0.0,
        priority: int = 0,
        classes: int = ALL_CLASSES,
        rows: int = 1,
        counted: bool = True,
        taken: int = AS_DECIDED,
    ) -> int:
        """Decide on an answer that has come; a policy that `settles` only.

        Parameters
        ----------
        server
            Whose answer it is.
        now_s, draw, deadline_s, floor, priority, classes, rows, counted
            As in `arrive`; the word is another one than the request was dispatched with.
        confidence
            (rows,) of each row; empty where the answer has none. Not looked at from the second
            answer on.
        credit
            `credit` after the request was dispatched, or asked again.
        count
            Servers that have answered it, this one included.
        entered_s
            When the request entered the site.
        taken
            What happens, ACCEPT or a server; by default what the policy decides.

        Returns
        -------
        int
            ACCEPT, and the answer is sent; or a server, which the request has joined: the answer
            in hand is kept until that one's has come.

        Raises
        ------
        PolicyError
            Where the policy decides for a server that there is not, or divides by zero; nothing has
            happened then.
        """
        try:
            decided: int = self._settle(
                self._bound,
                server,
                now_s,
                draw,
                entered_s,
                deadline_s,
                floor,
                priority,
                classes,
                rows,
                confidence,
                credit,
                count,
                counted,
                taken,
            )
        except ZeroDivisionError:
            with faults_of(self.policy_name, self.policy):
                raise
        if decided == NO_SERVER:
            raise no_server(self.policy_name, self.fleet, "ACCEPT")
        return decided

    def fall_back(
        self,
        server: int,
        position: int,
        now_s: float,
        *,
        first: int,
        in_hand: float,
        credit: float,
        counted: bool = True,
    ) -> None:
        """A request that was asked again leaves its second server; the answer in hand is sent.

        `in_hand` is that answer's expected accuracy, of server `first`, or NaN where none is sent,
        as the client has gone; position and credit are as in `withdraw` and `settle`.
        """
        self._fall_back(self._learning, server, position, now_s, first, in_hand, credit, counted)

    def withdraw(self, server: int, position: int, now_s: float, counted: bool = True) -> None:
        """A request leaves without an answer; position 0 is in service, 1 the next in the queue."""
        self._withdraw(self._learning, server, position, now_s, counted)

    def mark(self, server: int, healthy: bool, now_s: float) -> None:
        """The server takes requests from now on, or does not."""
        self._mark(self._silent, server, healthy, now_s)

    def shift(self, low: int, high: int, by_s: float, least_s: float, now_s: float) -> None:
        """Services at servers low .. high - 1 take `by_s` longer from now on, or less below 0.

        Predictions follow at once, for what is queued, too; `least_s`, above 0, is where they do
        not fall below. What is measured later goes on from there.
        """
        self._shift(self._silent, low, high, by_s, least_s, now_s)

    def set_lasting(self, lasting: int) -> None:
        """Never count these classes, a bit mask, as saturated from now on, and all others again."""
        if lasting != self.lasting:
            self.lasting = lasting
            self._bind(self._needs._replace(lasting=lasting), self._handles)

    def share_balance(self, balance: Floats) -> None:
        """Keep the balance in this (1,) array from now on, as other dispatchers of the task do."""
        self.site = self.site._replace(balance=balance)
        self._bind(self._needs._replace(site=self.site), self._handles)

    def share_devices(
        self, claims: Floats, at: int, numbers: Ints, contents: Ints | None = None
    ) -> None:
        """Share the devices with other dispatchers from now on; see `inferway.site.claims.joined`.

        With an array without rows, share them with nobody.
        """
        devices = joined(self.site.devices, claims, at, numbers, contents)
        self.site = self.site._replace(devices=devices)
        self._bind(self._needs._replace(site=self.site), self._handles)

    def share_targets(self, shared: Floats) -> None:
        """Keep targets over several tasks in this array from now on, as their dispatchers do."""
        self.policy = self.policy._replace(shared=shared)
        self._bind(self._needs._replace(policy=self.policy), self._handles)

    def correct(self, accuracy: Floats) -> None:
        """Count these (K,) accuracies from now on, and what confidences say as they correct it.

        The fleet's are those of profiles, and stay. ValueError where they are none of its classes.
        """
        correct(self.site, self.policy, self.fleet, accuracy)

    def pull(self, server: int, now_s: float, draw: int) -> tuple[int, int]:
        """Number of requests that a free server drops and takes: (drop, take)."""
        return self._pull(self._pulling, server, now_s, draw)

    def route(
        self,
        probabilities: Floats | None,
        smallest: Ints | None = None,
        largest: Ints | None = None,
    ) -> None:
        """Have a policy that a scheduler steers route so from now on.

        (n,) probabilities are by server; None leaves the decisions to the policy that `steered`
        falls back to. (K,) batch sizes by class stay as they are by default. ValueError where these
        are no probabilities or no batch sizes; nothing has happened then.
        """
        if probabilities is not None:
            set_routing(self.policy, probabilities, smallest, largest)
        if hasattr(self.policy, "steered"):
            self.policy.steered[0] = probabilities is not None

    def form(self, server: int, rows: int, left_s: float = np.inf) -> FormedBatch:
        """Form the batch that a free server takes by itself of `rows` that wait.

        It serves the most rows per second among the sizes that its class offers and that keep the
        first request in time, whose deadline is `left_s` away.
        """
        return FormedBatch(*self._form(self._silent, server, rows, left_s))

    def predict(self, server: int, rows: int, now_s: float) -> tuple[float, float]:
        """Predicted wait and service time of a request that joined the server now, s."""
        wait_s, service_s = self._predict(self._silent, server, rows, now_s)
        return wait_s, service_s

    def predictions(self, seen: Mapping[str, Any], rows: int, now_s: float) -> Floats:
        """(n, 2) what `predict` said of each server when the site's arrays were as in `seen`."""
        arrays = {name: np.array(array) for name, array in seen.items()}
        devices = self.site.devices
        if (holds := arrays.pop("holds", None)) is not None:
            claims = arrays.pop("others", np.zeros((0, COLUMNS)))
            devices = joined(copied(devices), claims, len(claims), devices.number)
            devices = devices._replace(holds=holds)
        if (lead_s := arrays.pop("leads", None)) is not None:
            devices = devices._replace(lead_s=lead_s)
        if (foreseen := arrays.pop("foreseen", None)) is not None:
            devices = _with_foreseen(devices, foreseen)
        site = self.site._replace(clock_s=np.zeros(1), devices=devices, **arrays)
        silent = bind(self._binding(self.policy, site)).silent  # which keeps what the handle is of
        servers = range(len(site.queue))
        return np.array([self._predict(silent.handle, server, rows, now_s) for server in servers])

    @property
    def foreseen(self) -> bytes:
        """What was foreseen of the devices for the last decision, for `predictions`."""
        return b"".join(array.astype(float).tobytes() for array in _foreseen(self.site.devices))

    @property
    def routed(self) -> bool:
        """Tell whether the policy has an alias table, which a scheduler can set."""
        return hasattr(self.policy, "threshold")

    @property
    def routing(self) -> Floats | None:
        """(n,) probabilities that requests are routed by; None where the policy goes by others."""
        if not self.routed or not getattr(self.policy, "steered", (1,))[0]:
            return None
        return cast("Floats", self.policy.probabilities)

    def retune(self, rate_per_s: float) -> None:
        """Tell the policy another arrival rate, if it wants one: `plan` and `adopt` in one."""
        self.adopt(self.plan(rate_per_s))

    def plan(self, rate_per_s: float) -> RetunedPolicy:
        """Compute the policy's memory at another arrival rate.

        Touches nothing of the dispatcher's, so that another thread may call it.
        """
        if not hasattr(self.policy, "retune"):
            return RetunedPolicy(rate_per_s, None)
        policy = self._copied()
        policy.retune(self.fleet, target=self.target, rate_per_s=rate_per_s)
        return RetunedPolicy(rate_per_s, policy)

    def adopt(self, plan: RetunedPolicy) -> None:
        """Take what `plan` gave as the policy's memory."""
        if plan.policy is not None:
            for own, planned in zip(self.policy, plan.policy, strict=True):
                if isinstance(own, np.ndarray):
                    np.copyto(own, planned)

    @property
    def predicted_wait_s(self) -> float:
        """Predicted wait of the last request dispatched, s."""
        return float(self._decision[PREDICTED_WAIT])

    @property
    def predicted_service_s(self) -> float:
        """Predicted service time of the last request dispatched, s."""
        return float(self._decision[PREDICTED_SERVICE])

    @property
    def credit(self) -> float:
        """Expected accuracy that the balance counts for the request decided on last."""
        return float(self._decision[CREDIT])

    @property
    def in_hand(self) -> float:
        """Expected accuracy of the answer that was decided on last."""
        return float(self._decision[IN_HAND])

    @property
    def balance(self) -> float:
        """Accuracy balance."""
        return float(self.site.balance[0])


def _foreseen(devices: Any) -> tuple[Any, ...]:
    changes = devices.changes
    return (
        *(devices.runs_end_s, devices.free_s),
        *(changes.then, changes.done_s, changes.joins_s, changes.load_s),
    )


def _with_foreseen(devices: Any, foreseen: Floats) -> Any:
    """The devices with these predictions, which stay as they are."""
    devices, at = copied(devices)._replace(predicts=False), 0
    for array in _foreseen(devices):
        array.flat[:] = foreseen[at : at + array.size]
        at += array.size
    return devices


def _kind(part: object) -> object:
    return (part.dtype.str, part.ndim) if isinstance(part, np.ndarray) else type(part)
