"""Instances that run a model: the steps that all of them take, and the copy that runs here."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from time import thread_time
from typing import Any, Final, NamedTuple

import numpy as np

from inferway.live.errors import WarmUpError
from inferway.live.headroom import ANSWER_COPIES, Headroom, MemoryNeed, is_closed, too_many
from inferway.live.instance import FAILURES, RETRY_S, Events
from inferway.live.request import BAD_GATEWAY, EXPIRED, Job, Outcome
from inferway.live.threads import TURN_S, ThreadClock, run_detached
from inferway.protocol import RefusalError, Signature
from inferway.runtime import Arrays, Fault, RemoteError, Runtime, Served, zeros
from inferway.site.view import RUN_ROWS

# The first run of a model allocates and tunes; the third is near what comes after.
WARM_UP_RUNS: Final = 3
# Runs below this are the loop's: to wake a thread and be woken by it takes as long.
BRIEF_S: Final = 50e-6
# To copy so many bytes takes the loop as long as to hand them to a thread, or less.
LIGHT_BYTES: Final = 64 * 1024
_LIGHT_TEXTS: Final = 64
# Requests that a process is asked at once.
_MOST_ASKED: Final = 8
# A run that was interrupted by other processes counts as no more than this.
_OUTLIER_S: Final = 4 * BRIEF_S
_WEIGHT: Final = 1 / 16
# To read a thread's clock takes a microsecond or two: of runs that take no longer than this, the
# clock of one in so many is read.
_READ_EACH_S: Final = 500e-6
_READ_ONE_IN: Final = 16


class CutShortError(Exception):
    """A request that is not worth its next run: how it ends, and why."""


class Verdict(NamedTuple):
    """Judgment of a failed run.

    It counts as so many failures. An instance rests after a `certain` one without being run on
    zeros first. Where it is `unserved`, the model has certainly not run, and another variant may be
    asked; where what ran it `died`, it may have been run, and another is asked of an idempotent
    task. `retry_after_s` says when another try may be worth it.
    """

    outcome: Outcome
    weight: int = 1
    certain: bool = False
    unserved: bool = False
    retry_after_s: float = 0.0
    died: bool = False


_OF_FAULT: Final = {
    Fault.REFUSED: Verdict(Outcome.INVALID),
    # It works; it has too much to do.
    Fault.OVERLOADED: Verdict(Outcome.REJECTED, weight=0),
    Fault.UNAVAILABLE: Verdict(Outcome.UNAVAILABLE, certain=True),
    Fault.UNREACHABLE: Verdict(Outcome.UNAVAILABLE, weight=FAILURES, certain=True),
    # To run a server on zeros that does not answer would take as long again.
    Fault.LATE: Verdict(Outcome.EXPIRED, certain=True),
    Fault.DIED: Verdict(Outcome.FAILED, weight=FAILURES, certain=True, died=True),
    Fault.BROKEN: Verdict(Outcome.FAILED),
    Fault.UNFIT: Verdict(Outcome.FAILED, weight=FAILURES, certain=True),
}


def verdict(error: Exception) -> Verdict:
    """Judge why a request has no answer."""
    if isinstance(error, RefusalError):  # of data that nobody had decoded before
        return Verdict(Outcome.INVALID, weight=0)
    if not isinstance(error, RemoteError):
        return Verdict(Outcome.FAILED)
    judged = _OF_FAULT[error.fault]._replace(unserved=error.unserved)
    if error.hung:
        judged = judged._replace(weight=FAILURES)
    if judged.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
        judged = judged._replace(retry_after_s=error.retry_after_s or RETRY_S)
    return judged


class ModelInstance(ABC):
    """The steps of an instance with a model: it warms up, runs requests and fails.

    A request of more rows than a run may have is answered in several runs, one after the other;
    between two of them it is seen whether anybody still waits for the answer. Steps are coroutines;
    where the model runs in this process, none of them is ever suspended.
    """

    name: str
    group = None
    resting = cold = proven = apart = False
    complaint = ""
    _drop_late: bool
    _now: Callable[[], float]

    def __init__(
        self,
        runtime: Served,
        sizes: Sequence[int],
        most_rows: int,
        headroom: Headroom | None,
        demand: MemoryNeed | None,
    ) -> None:
        self.runtime: Any = runtime
        self._sizes, self._most_rows = sizes, most_rows
        self._headroom, self._demand = headroom, demand
        # Of the request in service: its present run's peak, and how long it waited between two.
        self._run_bytes, self._waited_s, self._strikes = 0, 0.0, 0
        # Where open axes of length 1 do not fit, the last request answered shows what does.
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._over = False

    @abstractmethod
    async def _run(self, job: Job | None, inputs: Arrays) -> Arrays:
        """Run the model once, for a request or a batch, or for none."""

    @abstractmethod
    async def _wait(self, wait: Callable[..., None], *sizes: int) -> None:
        """Call what may wait for room."""

    def _is_down(self) -> bool:
        """Tell whether the model is of no use now, but may be later."""
        return False

    async def _warm_up(self) -> None:
        inputs = zeros(self.runtime.signature.inputs)
        try:
            for _ in range(WARM_UP_RUNS):
                await self._run(None, inputs)
        except Exception as error:  # whatever a runtime raises, the model cannot serve
            self.cold = not self._is_down() and not is_closed(self.runtime.signature)
            if self.cold or self.resting:
                return
            raise WarmUpError(f"{self.name} failed its warm-up: {_line(error)}") from error
        for rows in self._sizes:
            if rows == 1:
                continue
            offer = f"{self.name} cannot serve batches of {rows}, which its `batch` offers"
            batch = {name: np.repeat(array, rows, axis=0) for name, array in inputs.items()}
            try:
                outputs = await self._run(None, batch)
            except Exception as error:
                raise WarmUpError(
                    f"{offer}; export the model with a free first axis: {_line(error)}"
                ) from error
            # What a model's file says of its first axis need not be so.
            for output, array in outputs.items():
                if len(array) != rows:
                    raise WarmUpError(
                        f"{offer}: output {output!r} has {len(array)} rows then; export the model "
                        "with its batch as the first axis of every output"
                    )

    async def _try(self, told: Callable[[str], None]) -> None:
        """Run the model on zeros; one that leaves open what would fit goes on unprobed."""
        # One whose device holds another variant is loaded when it is asked again.
        absent = not getattr(self.runtime, "loaded", True)
        failure = "" if self.cold or absent else await self._failure()
        if not failure:
            # On trial: one more failure has it run on zeros, until it has answered.
            self._strikes, self.resting = FAILURES - 1, False
        told(failure)

    async def _failure(self) -> str:
        """Run the model on zeros; why it failed, or an empty string."""
        try:
            await self._run(None, zeros(self.runtime.signature.inputs, shapes=self._shapes))
        except Exception as error:
            return _line(error) or type(error).__name__
        return ""

    async def _serve(self, job: Job, headroom: Headroom, demand: MemoryNeed) -> None:
        """Answer a request, or a batch, as soon as there is memory for it."""
        rows = job.rows
        self._run_bytes = largest = demand.runs[min(rows, demand.most_rows)]
        answer = demand.answer(rows)
        if not headroom.begin_now(largest, answer):
            await self._wait(headroom.begin, largest, answer)
        if answer:
            job.kept_bytes = largest, answer
        try:
            await self._answer(job)
        finally:
            headroom.end(self._run_bytes)
            self._waited_s = 0.0
        if answer and job.outcome is not Outcome.ANSWERED:
            job.kept_bytes = None
            headroom.settle(largest, answer)

    async def _answer(self, job: Job) -> None:
        started_s = self._now()
        if self._drop_late and job.deadline_s < started_s:
            job.outcome, job.reason = Outcome.EXPIRED, EXPIRED
            return
        job.started_s = started_s
        try:
            if job.rows <= self._most_rows:
                job.outputs = await self._run(job, job.inputs)
            else:
                job.outputs = await self._run_in_parts(job)
        except Exception as error:  # a failing model must not end its instance
            job.service_s = self._now() - started_s - self._waited_s
            await self._fail(job, error)
        else:
            job.service_s = self._now() - started_s - self._waited_s
            self._succeed(job)

    def _succeed(self, job: Job) -> None:
        job.outcome, self._strikes = Outcome.ANSWERED, 0
        if self.cold:
            self._shapes = {name: array.shape for name, array in job.inputs.items()}

    async def _fail(self, job: Job, error: Exception) -> None:
        if isinstance(error, CutShortError):
            job.outcome, job.reason = error.args
            return
        judged = verdict(error)
        job.outcome, job.unserved, job.died = judged.outcome, judged.unserved, judged.died
        job.retry_after_s = judged.retry_after_s
        if judged.died:
            job.status = BAD_GATEWAY
        job.reason = f"{self.name} failed: {_line(error)}"
        if isinstance(error, RefusalError):
            job.status, job.reason = error.status, _line(error)
        # Where zeros do not fit either, nothing tells a bad request from a bad model.
        blamed = judged.outcome is Outcome.INVALID and self.cold
        if not judged.weight or blamed or job.abandoned:  # somebody stopped it
            return
        self.proven |= self._strikes == 0
        self._strikes += judged.weight
        if self._strikes >= FAILURES:
            self.resting = judged.certain or await self._failure() != ""
            self._strikes = 0

    async def _run_in_parts(self, job: Job) -> Arrays:
        """Run the model several times, on so many rows at most, and join what it answers."""
        rows, most, headroom = job.rows, self._most_rows, self._headroom
        inputs, whole = job.inputs, Arrays()
        for at in range(0, rows, most):
            size = min(most, rows - at)
            if at:
                when = f"after {at // most} of the request's {-(-rows // most)} runs"
                if self._over or job.abandoned:
                    raise CutShortError(Outcome.UNAVAILABLE, f"the server ended {when}")
                if self._drop_late and job.deadline_s < self._now():
                    raise CutShortError(Outcome.EXPIRED, f"the deadline passed {when}")
                if headroom is not None and self._demand is not None:
                    # The room of the last run becomes that of the next.
                    begun_s = self._now()
                    headroom.end(self._run_bytes)
                    self._run_bytes = self._demand.runs[size]
                    await self._wait(headroom.go_on, self._run_bytes)
                    self._waited_s += self._now() - begun_s
            part = {name: array[at : at + size] for name, array in inputs.items()}
            try:
                outputs = await self._run(job, part)
            except RemoteError as error:
                # What has run before cannot be called unserved.
                error.unserved = error.unserved and at == 0
                raise
            if not at and headroom is not None:
                # The first run shows what the whole answer would take.
                row_bytes = ANSWER_COPIES * sum(one.nbytes for one in outputs.values()) / most
                if row_bytes * rows > headroom.limit_bytes:
                    fitting = max(most, int(headroom.limit_bytes / row_bytes))
                    raise RefusalError(413, too_many(rows, fitting, headroom.limit_bytes))
            for name, array in outputs.items():
                if len(array) != size:
                    raise ValueError(f"the model answered {len(array)} rows to a run of {size}")
                if name not in whole:
                    whole[name] = np.empty((rows, *array.shape[1:]), array.dtype)
                joined = whole[name]
                if joined.shape[1:] != array.shape[1:]:
                    raise ValueError(
                        f"output {name!r} has rows of shape {list(array.shape[1:])} in one run and "
                        f"{list(joined.shape[1:])} in another; ask for at most {most} rows at once"
                    )
                joined[at : at + size] = array
        return whole


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _at_once(steps: Coroutine[Any, Any, None]) -> None:
    """Take steps to their end that never wait for an event loop."""
    for _ in steps.__await__():
        raise RuntimeError("a step that runs here has been suspended")


class LocalInstance(ModelInstance):
    """Answers requests in the order in which they were put in, in a thread of its own.

    Where its runs are so brief that waking the thread would take longer, the event loop does them.
    Of a model in processes of its own the loop has light requests answered, as `ask` of the runtime
    does; all that is not an answer at once is the thread's.
    The queue is as long as the dispatcher lets it become: only the site puts requests in, and the
    dispatcher admits none beyond the buffer.

    It has a name for the thread and for messages. A request whose deadline has passed is dropped,
    or served all the same (`drop_late`). `sizes` are rows that it may be given together, tried
    while it warms up; a run has `most_rows` at most. Requests run within `headroom`, taking what
    `demand` says; None where nothing bounds them, or that is not known.
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
        super().__init__(runtime, sizes, most_rows, headroom, demand)
        self.name, self._drop_late, self._now = name, drop_late, now
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Whoever pops a request from here owns it: the thread to run it, or the loop to cancel it.
        # A dictionary's pop is one atomic step.
        self._waiting: dict[Any, Job] = {}
        self._run_time = RunTime(runtime)
        # CPU time of the threads that called the model, while it ran; runs since their clock was
        # read, and in how many it is read.
        self.run_cpu_s = 0.0
        # How much longer these runs took than by the profile, which the pool gives by rows.
        self.stretched_s = 0.0
        self.profiled_s: Callable[[int], float] | None = None
        self._unread, self._reads_each = 0, 1
        self._events: Events
        # What the loop is to run, and how many requests the thread was given and is done with. The
        # loop is given none while the thread has some, nor the other way round: the order stays.
        self._here: deque[int] = deque()
        self._given = self._gone = self._serial = 0
        # Of a model that the loop may ask: whether it is about to or does, what it has asked, what
        # of that was not begun, and who waits for the end.
        self._ask: Any = getattr(runtime, "ask", None)
        self._weight = Weight(runtime.signature)
        self._asking = False
        self._asked: deque[Job] = deque()
        self._untaken: list[Job] = []
        self._told: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.clock = ThreadClock()

    async def start(self, events: Events) -> None:
        """Warm up, unless the model is warm, and start the thread; WarmUpError as `warm_up`."""
        warmed_s = getattr(self.runtime, "warmed_s", None)
        if warmed_s is None:
            await run_detached(self.warm_up)
        else:
            self._run_time.begin(warmed_s)
        self._events = events
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue a request or a batch; only the event loop does."""
        self._serial = serial = self._serial + 1
        job.serial = serial
        self._waiting[serial] = job
        self._here.append(serial)
        if self._asking:
            return
        idle = self._given == self._gone
        if idle and not self.resting and self._run_time.is_brief(job.rows):
            self._events.soon(self.run_next)
        elif idle and self._ask is not None:
            self._asking = True
            self._events.soon(self._ask_waiting)
        else:
            self._give_all()

    def run_next(self) -> Job | None:
        """Run the next that is the loop's; None where there is none."""
        while self._here and not self.resting:
            job = self._waiting.pop(self._here.popleft(), None)
            if job is not None:
                # Without a call to stop it by: whoever would, waits for the loop.
                _at_once(self._answer(job))
                if job.outcome is Outcome.ANSWERED:
                    self._run_time.observe_inline(job.service_s)
                return job
        self._here.clear()
        return None

    def _ask_waiting(self) -> None:
        """Have a process asked for what waits here, in one message; the thread has all it cannot.

        So many, that the last of them is soon answered.
        """
        jobs: list[Job] = []
        most, now_s = self._run_time.fitting, self._now()
        while self._here and len(jobs) < most and not self.resting and self._told is None:
            job = self._waiting.get(self._here[0])
            if job is not None and not self._may_ask(job, now_s):
                break
            self._here.popleft()
            if job is not None:
                jobs.append(job)
        begun = False
        if jobs:
            try:
                begun = self._ask([job.inputs for job in jobs], self._hear)
            except Exception:  # the thread meets the same, and tells it
                begun = False
        if not begun:
            self._here.extendleft(job.serial for job in reversed(jobs))
            self._ask_no_more()
            return
        for job in jobs:
            del self._waiting[job.serial]
            job.started_s = now_s
        self._asked.extend(jobs)

    def _may_ask(self, job: Job, now_s: float) -> bool:
        if job.rows > self._most_rows or (self._drop_late and job.deadline_s < now_s):
            return False
        try:
            return self._weight.is_light(job)
        except RefusalError:  # of data that nobody had decoded before
            return False

    def _hear(self, outputs: Arrays | None, error: Exception | None, took_s: float) -> None:
        """Take what has come of the first request that a process has been asked."""
        job, now_s = self._asked.popleft(), self._now()
        if self._asked:
            self._asked[0].started_s = now_s
        # Behind one that the thread has, all are told by the thread: the order stays.
        threaded = error is not None or self._given != self._gone
        if outputs is None and error is None:  # it has not begun
            job.started_s = 0.0
            self._untaken.append(job)
        else:
            job.outputs = outputs
            job.service_s = took_s if outputs is not None else now_s - job.started_s
            if threaded:
                self._given += 1
                self._inbox.put((job, error))
            else:
                self._weight.observe(job)
                self._run_time.observe_asked(took_s)
                self._succeed(job)
        if not self._asked:
            self._end_asking()
        if job.outcome is Outcome.ANSWERED and not threaded:
            self._events.done(job)

    def _end_asking(self) -> None:
        for job in reversed(self._untaken):
            self._waiting[job.serial] = job
            self._here.appendleft(job.serial)
        self._untaken.clear()
        if self._given == self._gone:
            self._ask_waiting()
        else:
            self._ask_no_more()

    def _ask_no_more(self) -> None:
        self._asking = False
        self._give_all()
        if self._told is not None:
            self._told.set()
        if self._over:  # nobody waits for the end any more
            self._inbox.put(None)

    def _give_all(self) -> None:
        while self._here:
            self._given += 1
            self._inbox.put(self._here.popleft())

    def cancel(self, job: Job) -> bool:
        """Take a request back; False when its service has begun."""
        return self._waiting.pop(job.serial, None) is not None

    def abort(self, job: Job) -> None:
        """Stop a run where the runtime can stop; else its answer comes and goes nowhere."""
        job.abandoned = True
        if job.call is not None:
            job.call.terminate = True

    def probe(self, told: Callable[[str], None]) -> None:
        """Run the model on zeros, in the thread; an instance that rests goes on if it answers."""
        self._inbox.put(told)

    async def close(self, limit_s: float) -> bool:
        """End the thread after what is queued now, and what was the loop's.

        Where the limit passes first, no further run begins of a request that takes several.
        """
        if self._asking:
            self._told, ends_s = asyncio.Event(), self._now() + limit_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), limit_s)
            if self._asking:
                self._over = True
                return False
            limit_s = max(0.0, ends_s - self._now())
        self._give_all()
        self._inbox.put(None)
        if self._thread.ident is None:
            return True
        await run_detached(self._thread.join, limit_s)
        self._over = self._thread.is_alive()
        return not self._over

    def warm_up(self) -> None:
        """Run the model on zeros; it is `cold` where the signature leaves open what would fit.

        WarmUpError when the model fails on an input that its signature describes completely, or
        answers a batch with another number of rows.
        """
        _at_once(self._warm_up())
        if not self.cold and hasattr(self.runtime, "warmed_s"):
            self.runtime.warmed_s = self._run_time.run_s

    def _work(self) -> None:
        self.clock.begin()
        try:
            self._work_on()
        finally:
            self.clock.end()

    def _work_on(self) -> None:
        take, waiting, posted = self._inbox.get, self._waiting, self._events.posted
        call = getattr(self.runtime, "call", None)
        while True:
            serial = take()
            if serial is None:
                return
            if callable(serial):  # who wants to know whether it works
                _at_once(self._try(serial))
                continue
            if isinstance(serial, tuple):  # what a process was asked
                job, error = serial
                if error is None:
                    self._succeed(job)
                else:
                    _at_once(self._fail(job, error))
                posted(job)
                del job, serial
                self._gone += 1
                continue
            # What is queued at an instance that rests stays there: the site gives it to others.
            job = None if self.resting else waiting.pop(serial, None)
            if job is not None:
                if call is not None:
                    job.call = call()
                    # Whoever abandons it sets this first and looks for the call then.
                    if job.abandoned:
                        job.call.terminate = True
                if self._headroom is None or self._demand is None:
                    _at_once(self._answer(job))
                else:
                    _at_once(self._serve(job, self._headroom, self._demand))
                if job.outcome is Outcome.ANSWERED and job.rows == 1:
                    self._run_time.observe_threaded(job.service_s)
                posted(job)
            # An idle instance must not keep the last request's tensors alive.
            del job
            self._gone += 1

    async def _run(self, job: Job | None, inputs: Arrays) -> Arrays:
        begun_s = self._now() if job is None else 0.0
        stop = () if job is None or job.call is None else (job.call,)
        self._unread += 1
        if self._unread < self._reads_each:
            outputs: Arrays = self.runtime.run(inputs, *stop)
        else:
            outputs = self._read_run(inputs, *stop)
        if job is None:
            self._run_time.begin(self._now() - begun_s)
        return outputs

    def _read_run(self, inputs: Arrays, *stop: Any) -> Arrays:
        """Run the model and read the thread's clock, for those before whose clock was not read."""
        stands_for, self._unread = self._unread, 0
        before_s = thread_time()
        try:
            outputs: Arrays = self.runtime.run(inputs, *stop)
        finally:
            took_s = thread_time() - before_s
            self.run_cpu_s += took_s * stands_for
            if self.profiled_s is not None:
                rows = max(1, len(next(iter(inputs.values()), ())))
                self.stretched_s += (took_s - self.profiled_s(rows)) * stands_for
            self._reads_each = 1 if took_s > _READ_EACH_S else _READ_ONE_IN
        return outputs

    async def _wait(self, wait: Callable[..., None], *sizes: int) -> None:
        wait(*sizes)


class Weight:
    """Bytes of a request and its answer, and whether the event loop may copy so many.

    They are known beforehand where the signature leaves no axis open but the first; else those of
    the answer are what they were before.
    """

    def __init__(self, signature: Signature) -> None:
        tensors = (*signature.inputs, *signature.outputs)
        texts = any(tensor.datatype == "BYTES" for tensor in tensors)
        self._row_bytes = 0
        if not texts and not any(-1 in tensor.shape[1:] for tensor in tensors):
            self._row_bytes = sum(
                math.prod(tensor.shape[1:]) * tensor.dtype.itemsize for tensor in tensors
            )
        self._heavy_answers = False

    def is_light(self, job: Job) -> bool:
        """Tell whether a request is the loop's."""
        if self._row_bytes:
            return self._row_bytes * job.rows <= LIGHT_BYTES
        return not self._heavy_answers and _is_light(job.inputs)

    def observe(self, job: Job) -> None:
        """Take an answer into account."""
        if not self._row_bytes and job.outputs is not None:
            self._heavy_answers |= not _is_light(job.outputs)


def _is_light(arrays: Arrays) -> bool:
    """Tell whether arrays are few bytes, and few texts."""
    size = 0
    for array in arrays.values():
        if not array.dtype.hasobject:
            size += array.nbytes
        elif array.size > _LIGHT_TEXTS:
            return False
        else:
            size += sum(map(len, array.ravel().tolist()))
    return size <= LIGHT_BYTES


class RunTime:
    """Duration of one row at a runtime, and whether that is brief.

    Only runtimes that say they are `steady` can be brief, only in requests of one row,
    and only where the signature leaves no other axis open: then the time does not depend on the
    request.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.steady = (
            bool(getattr(runtime, "steady", False))
            and is_closed(runtime.signature)
            and all(tensor.datatype != "BYTES" for tensor in runtime.signature.inputs)
        )
        self.run_s = float("inf")

    def is_brief(self, rows: int) -> bool:
        """Tell whether a request of so many rows is the loop's."""
        return rows == 1 and self.run_s <= BRIEF_S and self.steady

    @property
    def fitting(self) -> int:
        """Runs that take as long as the loop may leave its connections, so many at most."""
        return max(1, min(_MOST_ASKED, int(TURN_S / max(self.run_s, 1e-6))))

    def observe_asked(self, took_s: float) -> None:
        """Take a run in a process of its own into account."""
        if self.run_s == math.inf:
            self.run_s = took_s
        self.run_s += (min(took_s, 4 * TURN_S) - self.run_s) * _WEIGHT

    def begin(self, took_s: float) -> None:
        """Take a run on zeros into account: the least of them counts."""
        self.run_s = min(self.run_s, took_s)

    def observe_inline(self, took_s: float) -> None:
        """Take a run on the loop into account."""
        self.run_s += (min(took_s, _OUTLIER_S) - self.run_s) * _WEIGHT

    def observe_threaded(self, took_s: float) -> None:
        """Take a run in a thread into account, which can only be longer than one on the loop."""
        if took_s < self.run_s:
            self.observe_inline(took_s)
