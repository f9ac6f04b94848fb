"""A policy's view: the site, the request and the event, as plain arrays and numbers.

All of it is a view: the world writes it through `inferway.site.transitions`, policies only read.
Classes are ordered fastest first; the servers of class k are ``first[k] .. first[k + 1] - 1``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.site.devices import DeviceSlots
from inferway.site.fleet import Fleet

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Of servers and what stands at them: at 65,536 servers, halves of words stay in the caches.
Indices = NDArray[np.int32]
Flags = NDArray[np.bool_]

REJECT = -1  # Decision: no server takes this request
HOLD = -2  # Decision: the request waits in the site's central queue
ACCEPT = -3  # Decision on an answer: it is sent

# Bit mask of classes that leaves every class allowed. Masks are signed words: a Python integer
# above 2**63 costs a compiled call 30 us more.
ALL_CLASSES = -1
MAX_CLASSES = 62
SIZES = 8  # Sizes of run that service times are kept for: 1, 2, 4, 8, ... rows, S of them
RUN_ROWS = 64  # Rows of one run of a model, where nothing says it
WHOLE = 1 << 62  # Rows of one run where a request is never divided
MOST_SIZES = 64  # Sizes of batches that a class forms, at most

# Kinds of event: sent to a server, answered, left without an answer (a dispatch undone), and, for
# policies that settle, an answer is sent to whoever asked.
DISPATCHED, COMPLETED, WITHDRAWN, SETTLED = 0, 1, 2, 3


class NoDevices(NamedTuple):
    """Stands for the devices of a site whose servers never wait for each other."""

    nothing: int = 0


class Alone(NamedTuple):
    """Stands for the other tasks where one has its site's devices for itself."""

    nothing: int = 0


class JoinedDevices(NamedTuple):
    """Devices that several tasks share, of which this is one."""

    # `Site` of the servers and classes of all tasks, task by task; each task's arrays are parts of
    # its arrays. Of the site, that is what devices ask for.
    every: Any
    first: int  # This task's first server in it
    first_class: int = 0  # And its first class


class AllTasks(NamedTuple):
    """Marks the devices of such a site of all tasks."""

    task: Ints  # (K,) task of each class
    place: Ints  # (K,) which of its task's classes it is


class OneLine(NamedTuple):
    """Stands for the lines of other tasks where one has exclusive devices for itself."""

    nothing: int = 0


class JoinedLine(NamedTuple):
    """What is foreseen at exclusive devices that T tasks share, from each one's own queues."""

    sites: Any  # (T,) address of each one's `Site`, as if it were alone; the site, uncompiled
    like: Any  # One of these: all are of its type
    first: Ints  # (T,) first server of each among those of all
    # (T,) how long after it came a request of each is due, s, as devices order them.
    due_after_s: Floats


class NoChanges(NamedTuple):
    """Stands for what the devices of a site hold where each holds all of its variants."""

    nothing: int = 0


class Changes(NamedTuple):
    """What the exclusive devices of a site hold, one variant each, and what changing it takes.

    A run of another variant than the one held starts when nothing runs at the device: it takes all
    slots for as long as its variant takes to load, and its own from then on.
    """

    exclusive: Flags  # (D,) whether each device holds one variant at a time
    load_s: Floats  # (K,) time until the variant of each class is loaded, s
    held: Ints  # (D,) class whose variant each exclusive device holds; -1 for none
    loads: Ints  # (D,) server that each device is being changed for; -1 for none
    ready_s: Floats  # (D,) predicted end of that change
    # (N, 2) what the node's devices hold, as `inferway.site.claims` says it for all of its sites;
    # and which of its changes was the last one here, -1 for none.
    contents: Ints
    since: Ints  # (D,)
    after_s: Floats  # (1,) how long after it came the last request was due that asked for a turn, s
    # Predictions as of the last decision, of exclusive devices and their servers.
    then: Ints  # (D,) class that each holds behind all that waits
    done_s: Floats  # (n,) when each server has run what it has
    # (n,) start of the run that one more request would be part of; nan where it has a run of its
    # own.
    joins_s: Floats
    place: Ints  # (n,) scratch for the requests of each server that are foreseen
    rows: Ints  # (n,) scratch for the rows that are not
    # `JoinedLine` where other tasks share the devices. Then classes and servers above are numbered
    # among those of all, and arrays of them are this task's parts.
    line: Any = OneLine()


class SharedDevices(NamedTuple):
    """D devices with S slots at most, cores or accelerators, that the servers of a site share.

    A run holds slots of its class's device from its start to its end. A server whose run lacks
    them waits at the device, those first whose first requests are due first, and nobody overtakes.
    """

    device: Ints  # (K,) device of each class, -1 for none
    taken: Ints  # (K,) slots that a run of each class takes
    slots: Ints  # (D,) slots of each device
    widest: Ints  # (D,) most slots that a run takes of each; 0 where none runs there
    # (K,) time that each request takes of the slots of its run before that, s: what the server does
    # for it.
    lead_s: Floats
    used: Ints  # (D,) slots that runs hold
    shown: Ints  # (D,) slots that a run could have at once, as `Site.idle` says it
    holds: Flags  # (n,) whether a run of the server holds slots
    # Who waits, as a list from the first to the last for each device; -1 stands for nobody.
    waits: Flags  # (n,) whether the server waits at its device
    due_s: Floats  # (n,) when the first request of one that waits is due
    first: Ints  # (D,)
    last: Ints  # (D,)
    after: Ints  # (n,)
    before: Ints  # (n,)
    # (K,) healthy servers without requests; `Site.idle` counts those whose device has room for a
    # run at once, and that is all of a class or none.
    resting: Ints
    resting_classes: Ints  # (1,) bit k is set when class k has one
    # Predictions as of the last decision, in order of time.
    runs_end_s: Floats  # (D, S) when 1, 2, ... slots are free of the runs in progress
    free_s: Floats  # (D, S) when they are free for who comes now, behind all that waits
    work_s: Floats  # (n + M,) scratch for what each server has to do
    wide: Ints  # (n + M,) scratch for the slots that it does that in
    crowd: Floats  # (D, S) requests at the device's servers, in runs of 1, 2, ... of all its slots
    stale: Flags  # (D,) whether the last decision has not needed the predictions, and they are old
    # Shared with other sites of the node, as `inferway.site.claims` says; no row where there are
    # none. What is known of the others is as of the last step.
    claims: Floats  # (M, 8) of all sites
    at: int  # Row of the first server; M where there is no row
    number: Ints  # (D,) the node's number of each device
    own: Ints  # By such a number, the device; -1 where it is none of these
    others: Floats  # (M, 8) rows of the servers of others, the first `others_count` of them
    others_count: Ints  # (1,)
    others_used: Ints  # (D,) slots that their runs hold
    others_due_s: Floats  # (D,) when the first of them that waits is due; inf where none does
    others_first: Ints  # (D,) its row; -1 where none waits
    predicts: bool = True  # Whether these are kept up
    lazily: bool = False  # Whether that is left until they are asked for by `predicted_wait`
    # Whether at each decision a server with requests has a run or waits in line for one.
    prompt: bool = False
    changes: Any = NoChanges()  # `Changes` where a device is exclusive
    # `JoinedDevices` where other tasks share the devices; see `inferway.site.joined`.
    joined: Any = Alone()


class Site(NamedTuple):
    """One node's queues for one task; n servers, K classes, B places in each server's buffer."""

    # The fleet.
    first: Ints  # (K + 1,) first server of each class; the last entry is n
    server_class: Indices  # (n,) class of each server
    rate: Floats  # (K,) service rate of one server for requests of one row, 1/s
    accuracy: Floats  # (K,) accuracy, 0..1; 0 where it is unknown
    # Per server.
    queue: Indices  # (n,) requests at the server, the one in service included
    head: Ints  # (n,) place in the buffer of the request in service (the buffer is a ring)
    started_s: Floats  # (n,) start of the service in progress; nan when idle
    ends_s: Floats  # (n,) predicted end of the service in progress; nan when idle
    # (n,) `ends_s` and the predicted services of the queue behind it; in the past when idle.
    free_s: Floats
    arrived_s: Floats  # (n, B) arrival time by place in the buffer
    rows: Ints  # (n, B) rows of each request by place in the buffer
    expected_s: Floats  # (n, B) service time predicted at admission by place in the buffer, s
    # (n, S) predicted service time of one row in a run of 1, 2, 4, ... rows, s: the profile's, or
    # the running median of what was measured. Between these, a run's time is linear in its rows.
    row_s: Floats
    slow_s: Floats  # (n, S) the same, its running 0.95 quantile
    measured: Ints  # (n, S) services measured; all 0 where the world does not measure
    # (n,) rows of one run at most; a request of more is served in several, one after the other.
    most_rows: Ints
    healthy: Flags  # (n,) whether the server takes requests
    open: Flags  # (n,) healthy and with room in its buffer
    # Which servers are idle: without requests, and with room on their device for a run.
    idle: Ints  # (K,) healthy idle servers
    busy: Ints  # (K,) servers with requests, in service or waiting for their device
    # (n,) ``idle_server[first[k] : first[k] + idle[k]]`` are the idle servers of class k; the
    # others of the class stand behind them.
    idle_server: Indices
    idle_place: Indices  # (n,) where a server stands in `idle_server`
    idle_classes: Ints  # (1,) bit k is set when class k has an idle server
    busy_classes: Ints  # (1,) bit k is set when class k has a busy server
    # The site.
    clock_s: Floats  # (1,) time of the present event
    target: Floats  # (1,) accuracy target; 0 where none is set
    balance: Floats  # (1,) running sum of (accuracy - target) over dispatched answers
    held: Ints  # (1,) requests in the central queue
    # Behind the others, which kernels reach the sooner.
    in_system: Ints  # (K,) requests at the servers, those in service included
    # Batches of rows that servers of a class form, and what is known of those at a server. Where a
    # class forms none, its only size is 1, and the last two stay 0.
    sizes: Ints  # (K, MOST_SIZES) increasing, 0 behind the last
    pads: Flags  # (K,) whether rows that fill no size are run as the next one
    running: Ints  # (n,) requests of the run in service; 0 where the server waits for more
    waiting_rows: Ints  # (n,) rows of the requests behind these
    # Calibrated confidence in E bins; without any bin where no class has one.
    # (K, E) share of a class's answers in each bin; zeros where the class has no confidence.
    bin_mass: Floats
    # (K, E, K) expected accuracy, by who was asked first, bin of that confidence, and who answers.
    bin_accuracy: Floats
    bin_edges: Floats  # (K, E - 1) confidences at which the next bin begins; inf behind the last
    # Chances of servers that are left out for what was measured; see `inferway.site.chances`.
    first_s: Floats  # (n, S) `row_s` as it was before anything was measured
    # (1,) requests with a deadline that were decided on; -1 where no server has chances.
    asked: Ints
    again: Ints  # (n,) the one of these from which on it may have a chance; `TRIED` while it has
    chances: Ints  # (n,) those that it has had since it was last believed
    devices: Any = NoDevices()  # `SharedDevices` where servers share any


class Request(NamedTuple):
    """One request, as a policy sees it."""

    entered_s: float  # When it entered the site
    deadline_s: float  # Absolute; inf where there is none
    floor: float  # Least accuracy that it accepts; 0 where it does not say
    priority: int  # 1 is the highest; 0 where it does not say
    rows: int  # Answers that it asks for
    classes: int  # Bit mask of classes that may answer, by pin and accuracy floor
    # (n,) servers that may take it: healthy, with room, of an allowed class, in time.
    allowed: Flags
    narrowed: bool  # Whether `allowed` says more than `site.open`


class Answer(NamedTuple):
    """An answer that has come and is not sent yet, as `settle` sees it."""

    server: int  # Whose it is
    # (K,) expected accuracy of each class's answer to this request, now that the confidence is
    # known: of the answer in hand for its own class. The mean over the request's rows.
    expected: Floats
    answers: int  # Servers that have answered the request, this one included


class Event(NamedTuple):
    """Event that `learn` is told."""

    kind: int  # DISPATCHED, COMPLETED, WITHDRAWN or SETTLED
    server: int
    rows: int
    # Whether the request counts for the accuracy balance: pinned ones do not, nor do a request's
    # second dispatch and the undoing of that.
    counted: bool
    wait_s: float  # Time in the queue: predicted when dispatched, actual when completed
    service_s: float  # Service time: predicted when dispatched, actual when completed
    # Rows of the run that took so long, when completed; 0 where another request of the same run has
    # said it.
    run_rows: int = 0
    expected: float = 0.0  # Expected accuracy of the answer that is sent, when settled
    deadline_s: float = np.inf  # Of the request, absolute, when dispatched; inf where it has none


def empty_site(fleet: Fleet, target: float | None, places: int) -> Site:
    """A site with all servers idle and healthy.

    Parameters
    ----------
    fleet
        Classes, fastest first.
    target
        Accuracy target in 0..1, or None.
    places
        Places in each server's buffer, the one in service included; at least 1.

    Raises
    ------
    ValueError
        With more than 62 classes, or with no place.
    """
    classes, servers = len(fleet.rate), int(fleet.count.sum())
    if classes > MAX_CLASSES:
        raise ValueError(f"a site has at most {MAX_CLASSES} server classes, not {classes}")
    if places < 1:
        raise ValueError(f"a server's buffer has at least one place, not {places}")
    numbers: Any = np.arange(servers, dtype=np.int32)
    bins, devices = fleet.confidence, _shared(fleet)
    idle = np.where(_held_at_start(devices), fleet.count, 0).astype(np.int64)
    mass = np.zeros((classes, 0)) if bins is None else bins.mass.copy()
    return Site(
        first=fleet.first.copy(),
        server_class=np.repeat(np.arange(classes, dtype=np.int32), fleet.count),
        rate=fleet.rate.copy(),
        accuracy=fleet.accuracy.copy(),
        queue=np.zeros(servers, np.int32),
        head=np.zeros(servers, np.int64),
        started_s=np.full(servers, np.nan),
        ends_s=np.full(servers, np.nan),
        free_s=np.full(servers, -np.inf),
        arrived_s=np.zeros((servers, places)),
        rows=np.zeros((servers, places), np.int64),
        expected_s=np.zeros((servers, places)),
        row_s=np.repeat(1.0 / fleet.rate, fleet.count)[:, None].repeat(SIZES, axis=1),
        slow_s=np.repeat(1.0 / fleet.rate, fleet.count)[:, None].repeat(SIZES, axis=1),
        measured=np.zeros((servers, SIZES), np.int64),
        first_s=np.repeat(1.0 / fleet.rate, fleet.count)[:, None].repeat(SIZES, axis=1),
        asked=np.zeros(1, np.int64),
        again=np.zeros(servers, np.int64),
        chances=np.zeros(servers, np.int64),
        most_rows=np.full(servers, RUN_ROWS, np.int64),
        sizes=np.eye(1, MOST_SIZES, dtype=np.int64).repeat(classes, axis=0),
        pads=np.zeros(classes, np.bool_),
        running=np.zeros(servers, np.int64),
        waiting_rows=np.zeros(servers, np.int64),
        bin_mass=mass,
        bin_accuracy=np.zeros((classes, 0, classes)) if bins is None else bins.expected.copy(),
        bin_edges=np.zeros((classes, 0)) if bins is None else bins.edges.copy(),
        healthy=np.ones(servers, np.bool_),
        open=np.ones(servers, np.bool_),
        idle=idle,
        busy=np.zeros(classes, np.int64),
        in_system=np.zeros(classes, np.int64),
        idle_server=numbers.copy(),
        idle_place=numbers.copy(),
        idle_classes=np.array([sum(1 << k for k in range(classes) if idle[k] > 0)], np.int64),
        busy_classes=np.zeros(1, np.int64),
        clock_s=np.zeros(1),
        target=np.array([target or 0.0]),
        balance=np.zeros(1),
        held=np.zeros(1, np.int64),
        devices=devices,
    )


def copied(site: Any) -> Any:
    """Copy a site, or its devices, with arrays of its own."""
    return site._make(
        copied(one)
        if isinstance(one, tuple)
        else one.copy()
        if isinstance(one, np.ndarray)
        else one
        for one in site
    )


def _shared(fleet: Fleet) -> SharedDevices | NoDevices:
    """Devices without any run."""
    if (of := fleet.devices) is None:
        return NoDevices()
    servers, devices = fleet.servers, len(of.names)
    shape = (devices, int(of.slots.max()))
    return SharedDevices(
        device=of.device.astype(np.int64),
        taken=of.taken.astype(np.int64),
        slots=of.slots.astype(np.int64),
        widest=np.array([of.taken[of.device == d].max(initial=0) for d in range(devices)]),
        lead_s=of.lead_s,
        used=np.zeros(devices, np.int64),
        shown=of.slots.astype(np.int64),
        holds=np.zeros(servers, np.bool_),
        waits=np.zeros(servers, np.bool_),
        due_s=np.zeros(servers),
        first=np.full(devices, -1),
        last=np.full(devices, -1),
        after=np.full(servers, -1),
        before=np.full(servers, -1),
        resting=fleet.count.astype(np.int64),
        resting_classes=np.array([(1 << len(fleet.count)) - 1], np.int64),
        runs_end_s=np.zeros(shape),
        free_s=np.zeros(shape),
        work_s=np.zeros(servers),
        wide=np.zeros(servers, np.int64),
        crowd=np.zeros(shape),
        stale=np.zeros(devices, np.bool_),
        claims=np.zeros((0, 8)),
        at=0,
        number=np.arange(devices),
        own=np.arange(devices),
        others=np.zeros((0, 8)),
        others_count=np.zeros(1, np.int64),
        others_used=np.zeros(devices, np.int64),
        others_due_s=np.full(devices, np.inf),
        others_first=np.full(devices, -1),
        changes=_changes(of, servers),
    )


def _held_at_start(devices: SharedDevices | NoDevices) -> Any:
    """(K,) whether the device of each class holds its variant; one for all where none changes."""
    if isinstance(devices, NoDevices) or isinstance(devices.changes, NoChanges):
        return np.True_
    changes, of = devices.changes, devices.device
    return (of < 0) | ~changes.exclusive[of] | (changes.held[of] == np.arange(of.size))


def _changes(of: DeviceSlots, servers: int) -> Changes | NoChanges:
    """At the start an exclusive device holds the variant of its first class."""
    if not of.exclusive.any():
        return NoChanges()
    devices, classes = len(of.names), of.device.tolist()
    return Changes(
        exclusive=of.exclusive.astype(np.bool_),
        load_s=of.loads_s,
        held=np.array([classes.index(d) if d in classes else -1 for d in range(devices)]),
        loads=np.full(devices, -1),
        ready_s=np.zeros(devices),
        contents=np.array([[0, -1]] * devices, np.int64),
        since=np.zeros(devices, np.int64),
        after_s=np.zeros(1),
        then=np.full(devices, -1),
        done_s=np.zeros(servers),
        joins_s=np.full(servers, np.nan),
        place=np.zeros(servers, np.int64),
        rows=np.zeros(servers, np.int64),
    )
