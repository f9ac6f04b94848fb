"""One running copy of a variant: a thread of its own that runs the model, unless that is brief."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from inferway.live.errors import WarmUpError
from inferway.live.headroom import ANSWER_COPIES, Headroom, MemoryNeed, too_many
from inferway.live.inline import RunTime
from inferway.live.instance import FAILURES, Events
from inferway.live.request import EXPIRED, Arrays, Job, Outcome
from inferway.live.threads import run_detached
from inferway.protocol import Signature
from inferway.protocol.refusal import RefusalError
from inferway.runtime import Runtime
from inferway.site.view import RUN_ROWS

OUTLIVED = "the deadline passed after {} of the request's {} runs"
GONE = "the server ended after {} of the request's {} runs"
WARM_UP_RUNS = 3
"""The first run of a model allocates and tunes; the third is near what comes after."""


class CutShortError(Exception):
    """A request of several runs that is not worth the next one."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class LocalInstance:
    """Answers requests in the order in which they were put in, in a thread of its own.

    Where its runs are so brief that waking the thread would take longer, the event loop does them.
    A request of more rows than a run may have is answered in several runs, one after the other;
    between two of them it is seen whether anybody still waits for the answer. The queue is as long
    as the dispatcher lets it become: only the site puts requests in, and the dispatcher admits none
    beyond the buffer.

    Parameters
    ----------
    name
        For the thread and for messages.
    runtime
        The model.
    drop_late
        Whether a request whose deadline has passed is dropped instead of run.
    now
        The clock of deadlines and service times, seconds.
    sizes
        Rows that it may be given together, to be tried while it warms up.
    most_rows
        Of one run.
    headroom
        Lets requests run within the memory that there is; None where nothing bounds it.
    demand
        What they take; None where that is not known.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        *,
        drop_late: bool = True,
        now: Callable[[], float] = time.monotonic,
        sizes: Sequence[int] = (1,),
        most_rows: int = RUN_ROWS,
        headroom: Headroom | None = None,
        demand: MemoryNeed | None = None,
    ) -> None:
        self.name, self.most_rows = name, most_rows
        self.runtime = runtime
        self._drop_late = drop_late
        self._now = now
        self._sizes = sizes
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Whoever pops a request from here owns it: the thread to run it, or the loop to cancel it.
        # A dictionary's pop is one atomic step.
        self._waiting: dict[Any, Job] = {}
        self._serial = 0
        self._over = False
        self._headroom, self._demand = headroom, demand
        # Of the request in service: its present run's peak, and how long it waited between two.
        self._run_bytes, self._waited_s = 0, 0.0
        self._run_time = RunTime(runtime)
        self._events: Events
        # What the loop is to run, and how many requests the thread was given and is done with. The
        # loop is given none while the thread has some, nor the other way round: the order stays.
        self._here: deque[int] = deque()
        self._given = self._gone = 0
        self._strikes = 0
        self.cold = False
        """Whether its signature leaves open what would fit: it comes back on trial unprobed."""
        # Where open axes of length 1 do not fit, the last request answered shows what does.
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.resting = False
        """Whether it fails at zeros too and takes nothing from its queue; set where it runs."""
        self.complaint = ""
        """Why it rests from the start."""
        self.proven = False
        """Whether it has answered a request between its last rest and its last failures."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def group(self) -> None:
        """Nothing: it stands for itself."""
        return None

    async def start(self, events: Events) -> None:
        """Warm up, unless the model is warm, and start the thread; brief runs are the loop's.

        Raises
        ------
        WarmUpError
            As `warm_up`.
        """
        warmed_s = getattr(self.runtime, "warmed_s", None)
        if warmed_s is None:
            await run_detached(self.warm_up)
        else:
            self._run_time.begin(warmed_s)
        self._events = events
        self._thread.start()

    def put(self, request: Job) -> None:
        """Queue a request or a batch; only the event loop does."""
        self._serial = serial = self._serial + 1
        request.serial = serial
        self._waiting[serial] = request
        idle = self._given == self._gone
        if idle and not self.resting and self._run_time.is_brief(request.rows):
            self._here.append(serial)
            self._events.soon(self)
            return
        self._give_all()
        self._give(serial)

    def run_next(self) -> Job | None:
        """Run the next that is the loop's; None where there is none."""
        while self._here and not self.resting:
            request = self._waiting.pop(self._here.popleft(), None)
            if request is not None:
                # Without a call to stop it by: whoever would, waits for the loop.
                self._answer(request, None)
                if request.outcome is Outcome.ANSWERED:
                    self._run_time.observe_inline(request.service_s)
                return request
        self._here.clear()
        return None

    def _give_all(self) -> None:
        while self._here:
            self._give(self._here.popleft())

    def _give(self, serial: int) -> None:
        self._given += 1
        self._inbox.put(serial)

    def cancel(self, request: Job) -> bool:
        """Take a request back; False when its service has begun."""
        return self._waiting.pop(request.serial, None) is not None

    def abort(self, request: Job) -> None:
        """Stop a run where the runtime can stop; else its answer comes and goes nowhere."""
        request.abandoned = True
        if request.call is not None:
            request.call.terminate = True

    async def close(self, limit_s: float) -> bool:
        """End the thread after what is queued now, and what was the loop's.

        Where the limit passes first, no further run begins of a request that takes several.
        """
        self._give_all()
        self._inbox.put(None)
        if self._thread.ident is None:
            return True
        await run_detached(self._thread.join, limit_s)
        self._over = self._thread.is_alive()
        return not self._over

    def warm_up(self) -> bool:
        """Run the model on zeros; False when the signature leaves open what would fit.

        Raises
        ------
        WarmUpError
            When the model fails on an input that its signature describes completely, or answers a
            batch with another number of rows.
        """
        inputs = zeros(self.runtime.signature)
        try:
            for _ in range(WARM_UP_RUNS):
                begun_s = self._now()
                self.runtime.run(inputs)
                self._run_time.begin(self._now() - begun_s)
        except Exception as error:  # whatever a runtime raises, the model cannot serve
            if any(-1 in tensor.shape[1:] for tensor in self.runtime.signature.inputs):
                self.cold = True
                return False
            raise WarmUpError(f"{self.name} failed its warm-up: {spoken(error)}") from error
        for rows, many in batches_of(inputs, self._sizes):
            try:
                outputs = self.runtime.run(many)
            except Exception as error:
                raise no_batches(self.name, rows, error) from error
            check_batch(self.name, rows, outputs)
        if hasattr(self.runtime, "warmed_s"):
            self.runtime.warmed_s = self._run_time.run_s
        return True

    def probe(self, told: Callable[[str], None]) -> None:
        """Run the model on zeros; an instance that rests goes on if it answers.

        Parameters
        ----------
        told
            Called in the instance's thread with why it failed, or with an empty string; one that
            is `cold` goes on unprobed, and it is called at once.
        """
        if self.cold:
            self._inbox.put(lambda: True)
            told("")
        else:
            self._inbox.put(partial(self._probe, told))

    def _probe(self, told: Callable[[str], None]) -> bool:
        failure = self._failure()
        told(failure)
        return not failure

    def _failure(self) -> str:
        """Run the model on zeros; why it failed, or an empty string."""
        try:
            self.runtime.run(zeros(self.runtime.signature, self._shapes))
        except Exception as error:
            return spoken(error) or type(error).__name__
        return ""

    def _work(self) -> None:
        take, waiting, posted = self._inbox.get, self._waiting, self._events.posted
        call = getattr(self.runtime, "call", None)
        while True:
            serial = take()
            if serial is None:
                return
            if callable(serial):  # a probe
                if serial():
                    # On trial: one more failure has it run on zeros, until it has answered.
                    self._strikes, self.resting = FAILURES - 1, False
                continue
            # What is queued at an instance that rests stays there: the site gives it to others.
            request = None if self.resting else waiting.pop(serial, None)
            if request is not None:
                if self._headroom is None or self._demand is None:
                    self._answer(request, call)
                else:
                    self._answer_within(self._headroom, self._demand, request, call)
                if request.outcome is Outcome.ANSWERED and request.rows == 1:
                    self._run_time.observe_threaded(request.service_s)
                posted(request)
            # An idle instance must not keep the last request's tensors alive.
            del request
            self._gone += 1

    def _answer_within(
        self, headroom: Headroom, demand: MemoryNeed, job: Job, call: Callable[[], Any] | None
    ) -> None:
        rows, most = job.rows, demand.most_rows
        self._run_bytes = largest = demand.runs[min(rows, most)]
        answer = demand.answer(rows)
        headroom.begin(largest, answer)
        if answer:
            job.kept_bytes = largest, answer
        try:
            self._answer(job, call)
        finally:
            headroom.end(self._run_bytes)
            self._waited_s = 0.0
        if answer and job.outcome is not Outcome.ANSWERED:
            job.kept_bytes = None
            headroom.settle(largest, answer)

    def _answer(self, request: Job, call: Callable[[], Any] | None) -> None:
        now = self._now
        if self._drop_late and request.deadline_s < now():
            request.outcome = Outcome.EXPIRED
            request.reason = EXPIRED
            return
        request.started_s = started_s = now()
        try:
            if request.rows <= self.most_rows:
                request.outputs = self._run(request, request.inputs, call)
            else:
                request.outputs = self._run_in_parts(request, call)
            request.outcome = Outcome.ANSWERED
            request.service_s = now() - started_s - self._waited_s
            self._strikes = 0
            if self.cold:
                self._shapes = {name: array.shape for name, array in request.inputs.items()}
        except CutShortError as error:
            request.outcome, request.reason = error.outcome, str(error)
            request.service_s = now() - started_s - self._waited_s
        except Exception as error:  # a failing model must not end its instance
            malformed = isinstance(error, RefusalError)
            request.unserved, request.retry_after_s = False, 0.0
            request.outcome = Outcome.INVALID if malformed else Outcome.FAILED
            request.reason = spoken(error) if malformed else f"{self.name} failed: {spoken(error)}"
            if isinstance(error, RefusalError):
                request.status = error.status
            request.service_s = now() - started_s - self._waited_s
            if not malformed and not request.abandoned:  # nobody stopped it
                self.proven |= self._strikes == 0
                self._strikes += 1
                if self._strikes >= FAILURES:
                    self.resting = self._failure() != ""
                    self._strikes = 0

    def _run(self, job: Job, inputs: Arrays, call: Callable[[], Any] | None) -> Arrays:
        run: Any = self.runtime.run
        outputs: Arrays
        if call is None:
            outputs = run(inputs)
            return outputs
        job.call = call()
        # Whoever abandons it sets this first and looks for the call then.
        if job.abandoned:
            job.call.terminate = True
        outputs = run(inputs, job.call)
        return outputs

    def _run_in_parts(self, job: Job, call: Callable[[], Any] | None) -> Arrays:
        rows, most = job.rows, self.most_rows
        inputs, whole = job.inputs, Arrays()
        for at in range(0, rows, most):
            if at:
                late = self._drop_late and job.deadline_s < self._now()
                check_wanted(job, at // most, -(-rows // most), over=self._over, late=late)
                self._wait_for_room(min(most, rows - at))
            part = {name: array[at : at + most] for name, array in inputs.items()}
            outputs = self._run(job, part, call)
            if not at and self._headroom is not None:
                check_room(self._headroom.limit_bytes, outputs, rows, most)
            join_rows(whole, outputs, at, most, rows)
        return whole

    def _wait_for_room(self, rows: int) -> None:
        """Have the room of the last run become that of the next, of so many rows."""
        if self._headroom is None or self._demand is None:
            return
        begun_s = self._now()
        self._headroom.end(self._run_bytes)
        self._run_bytes = self._demand.runs[rows]
        self._headroom.go_on(self._run_bytes)
        self._waited_s += self._now() - begun_s


def spoken(error: Exception) -> str:
    """Write an error in one line."""
    return " ".join(str(error).split())


def batches_of(inputs: Arrays, sizes: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
    """Repeat one row as often as each size of a batch says."""
    for rows in sizes:
        if rows > 1:
            yield rows, {name: np.repeat(array, rows, axis=0) for name, array in inputs.items()}


def no_batches(name: str, rows: int, why: Exception | str) -> WarmUpError:
    """Say that a model cannot serve the batches that it offers."""
    offer = f"{name} cannot serve batches of {rows}, which its `batch` offers"
    if isinstance(why, str):
        return WarmUpError(f"{offer}: {why}")
    return WarmUpError(f"{offer}; export the model with a free first axis: {spoken(why)}")


def check_batch(name: str, rows: int, outputs: Arrays) -> None:
    """Refuse a model that answers another number of rows than it was asked."""
    # What a model's file says of its first axis need not be so.
    for output, array in outputs.items():
        if len(array) != rows:
            raise no_batches(
                name,
                rows,
                f"output {output!r} has {len(array)} rows then; export the model with its batch "
                "as the first axis of every output",
            )


def check_room(limit_bytes: int, outputs: Arrays, rows: int, most: int) -> None:
    """Refuse an answer that would take more than there is, once its first run has shown it."""
    least = min(rows, most)
    row_bytes = ANSWER_COPIES * sum(array.nbytes for array in outputs.values()) / least
    if row_bytes * rows > limit_bytes:
        fitting = max(least, int(limit_bytes / row_bytes))
        raise RefusalError(413, too_many(rows, fitting, limit_bytes))


def check_wanted(job: Job, done: int, runs: int, *, over: bool, late: bool) -> None:
    """End a request of several runs before its next one, if nobody waits for that."""
    if over or job.abandoned:
        raise CutShortError(Outcome.UNAVAILABLE, GONE.format(done, runs))
    if late:
        raise CutShortError(Outcome.EXPIRED, OUTLIVED.format(done, runs))


def join_rows(whole: Arrays, outputs: Arrays, at: int, most: int, all_rows: int) -> None:
    """Put what one run answered, `most` rows from `at` on, into the answer as a whole."""
    rows = min(most, all_rows - at)
    for name, array in outputs.items():
        if len(array) != rows:
            raise ValueError(f"the model answered {len(array)} rows to a run of {rows}")
        joined = whole.get(name)
        if joined is None:
            joined = whole[name] = np.empty((all_rows, *array.shape[1:]), array.dtype)
        elif joined.shape[1:] != array.shape[1:]:
            raise ValueError(
                f"output {name!r} has rows of shape {list(array.shape[1:])} in one run and "
                f"{list(joined.shape[1:])} in another; ask for at most {most} rows at once"
            )
        joined[at : at + rows] = array


def zeros(signature: Signature, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Arrays:
    """Make one row of zeros (empty strings for BYTES) per input.

    Parameters
    ----------
    signature
        Of the model.
    shapes
        Of inputs that fit, for the open axes; those of others get length 1.
    """
    shapes = shapes or {}
    return {
        tensor.name: np.full(
            [1, *map(abs, shapes.get(tensor.name, tensor.shape)[1:])],
            _nothing(tensor.datatype),
            dtype=tensor.dtype,
        )
        for tensor in signature.inputs
    }


def _nothing(datatype: str) -> Any:
    return b"" if datatype == "BYTES" else 0
