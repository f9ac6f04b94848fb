"""Work beside a fleet's requests: the slots of its scheduler, and its recording."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

from inferway.dispatch.recording import Recording, RecordingGap, has_room
from inferway.scheduling import UNKNOWN, Controller

# A process that dies loses what has been recorded for so long at most.
FLUSH_S: Final = 1.0
# A section that is refused sooner came too early: the next one waits for longer.
STEADY_S: Final = 60.0
LONGEST_PAUSE_S: Final = 30.0


class SchedulerLoop:
    """Once a slot looks at the real queues and sets how requests are routed.

    These are of the controller's tasks, of one as a rule. Also at once when an instance fails or
    returns, so that the policy for those that are left takes over, and after a rejection where the
    controller asks for it ([Tan24], Sec. 6.2 and 6.3). The controller gets no `Signal`: a live
    server does not see the workload's state. The dispatchers are those of the moment. `report` is
    told of an error of the controller; the routing stays then.

    `slots` have begun; its decisions took `spent_s` of the event loop's time, together, and the
    longest `longest_s`.
    """

    def __init__(
        self,
        controller: Controller,
        dispatchers: Callable[[], Sequence[Any]],
        now: Callable[[], float],
        report: Callable[[Exception], None],
    ) -> None:
        self._controller, self._dispatchers = controller, dispatchers
        self._now, self._report = now, report
        self.slots, self.spent_s, self.longest_s = 0, 0.0, 0.0
        self._timer: asyncio.Handle | None = None
        self._soon: asyncio.Handle | None = None
        self._begun_s = math.nan

    def begin(self) -> None:
        """Begin the first slot."""
        self._decide()
        # The first call of each function is no measure of what a slot costs.
        self.spent_s = self.longest_s = 0.0
        self._begun_s = asyncio.get_running_loop().time()
        self._slot()

    def stop(self) -> None:
        """Begin no more slots."""
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._begun_s = math.nan

    def again(self) -> None:
        """Decide at once: the site is another than it was, or a request has been rejected."""
        self._soon = None
        if not math.isnan(self._begun_s):
            self._decide()

    def rejected(self) -> None:
        """A request has been rejected; all of one pass of the event loop are one event."""
        if self._controller.on_rejection and self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.again)

    def _slot(self) -> None:
        slot_s = self._controller.slot_s
        if slot_s < math.inf:
            loop = asyncio.get_running_loop()
            # A loop that was held up goes on with the slot that it is now.
            number = math.floor((loop.time() - self._begun_s) / slot_s + 1e-9)
            self._timer = loop.call_at(self._begun_s + (number + 1) * slot_s, self._slot)
        self.slots += 1
        self._decide()

    def _decide(self) -> None:
        began_s = perf_counter()
        dispatchers = self._dispatchers()
        try:
            now_s, views = self._now(), [one.site for one in dispatchers]
            for view in views:
                view.clock_s[0] = now_s
            routings = self._controller.decide(views, [UNKNOWN] * len(views))
            for dispatcher, routing in zip(dispatchers, routings, strict=True):
                dispatcher.route(*((None,) if routing is None else routing))
        except Exception as error:  # a controller that breaks must not end the slots
            self._report(error)
        took_s = perf_counter() - began_s
        self.spent_s += took_s
        self.longest_s = max(self.longest_s, took_s)


class Scheduler:
    """One task's share in a `SchedulerLoop`: all of it, but for a policy of several tasks.

    The loop begins when all of its tasks have begun, and ends with the first that ends: their
    fleets come and go together. What its decisions take is divided evenly among them.
    """

    def __init__(self, loop: SchedulerLoop, begun: list[bool], place: int) -> None:
        self._loop, self._begun, self._place = loop, begun, place
        # Of fleets before this one: slots, and what decisions took.
        self._before, self._longest_s = (0, 0.0), 0.0

    @property
    def slots(self) -> int:
        """Slots that have begun."""
        return self._before[0] + self._loop.slots

    @property
    def spent_s(self) -> float:
        """Part of this task in the time that decisions took."""
        return self._before[1] + self._loop.spent_s / len(self._begun)

    @property
    def longest_s(self) -> float:
        """The longest that one took, of all tasks."""
        return max(self._longest_s, self._loop.longest_s)

    def begin(self) -> None:
        """Begin the first slot, where all other tasks have begun."""
        self._begun[self._place] = True
        if all(self._begun):
            self._loop.begin()

    def go_on(self, before: Scheduler) -> None:
        """Count on from where another one is."""
        self._before = before.slots, before.spent_s
        self._longest_s = max(self._longest_s, before.longest_s)

    def stop(self) -> None:
        """Begin no more slots, of any of the tasks."""
        self._loop.stop()

    def again(self) -> None:
        """Decide at once, for all."""
        self._loop.again()

    def rejected(self) -> None:
        """A request of this task has been rejected."""
        self._loop.rejected()


async def keep_recording(recording: Recording, task: str, log: Any) -> None:
    """Bring a recording to the disk again and again, until canceled.

    Where the disk refused it, it goes on in a new section once there is room again, if it is told a
    folder. The log, if there is one, is told of both.
    """
    clock = asyncio.get_running_loop().time
    begun_s, pause_s, again_s, resumed = clock(), FLUSH_S, 0.0, False
    # The gap that has been said, and whose end has not.
    last: RecordingGap | None = None
    while True:
        await asyncio.sleep(FLUSH_S)
        recording.flush()
        gap, folder = recording.gap, str(recording.folder)
        if gap is None:
            if last is not None and last.until is not None and log is not None:
                log.warning(
                    "recording again",
                    task=task,
                    folder=folder,
                    missing_s=round(last.until - last.since, 1),
                    missing_decisions=last.decisions,
                    missing_events=last.events,
                )
            last, resumed = None, False
            continue
        if gap is not last or resumed:
            # Where the disk is full again and again, it is asked less and less often.
            flapping = clock() - begun_s < STEADY_S
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if flapping else FLUSH_S
            again_s = clock() + pause_s * flapping
            if gap is not last and log is not None:
                log.error("no longer recording", task=task, folder=folder, reason=gap.reason)
            last, resumed = gap, False
        if recording.following is None or clock() < again_s:
            continue
        if await asyncio.to_thread(has_room, recording.following.parent) and recording.go_on():
            begun_s, resumed = clock(), True
