"""Work beside a fleet's requests: the slots of its scheduler, and its recording."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from inferway.dispatch.recording import Recording, RecordingGap, has_room
from inferway.scheduling import Controller
from inferway.scheduling.contract import UNKNOWN

# A process that dies loses what has been recorded for so long at most.
FLUSH_S: Final = 1.0
# A section that is refused sooner came too early: the next one waits for longer.
STEADY_S: Final = 60.0
LONGEST_PAUSE_S: Final = 30.0


class SchedulerLoop:
    """Once a slot looks at the real queues and sets how requests are routed.

    Also at once when an instance fails or returns, so that the policy for those that are left takes
    over, and after a rejection where the controller asks for it ([Tan24], Sec. 6.2 and 6.3). The
    controller gets no `Signal`: a live server does not see the workload's state. The dispatcher is
    the one of the moment. `report` is told of an error of the controller; the routing stays then.

    `slots` have begun; its decisions took `spent_s` of the event loop's time, together, and the
    longest `longest_s`.
    """

    def __init__(
        self,
        controller: Controller,
        dispatcher: Callable[[], Any],
        now: Callable[[], float],
        report: Callable[[Exception], None],
    ) -> None:
        self._controller, self._dispatcher = controller, dispatcher
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

    def go_on(self, before: SchedulerLoop) -> None:
        """Count on from where another one is."""
        self.slots += before.slots
        self.spent_s += before.spent_s
        self.longest_s = max(self.longest_s, before.longest_s)

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
        dispatcher = self._dispatcher()
        try:
            view = dispatcher.site
            view.clock_s[0] = self._now()
            routing = self._controller.act(self._controller.observe(view, UNKNOWN))
            dispatcher.route(*((None,) if routing is None else routing))
        except Exception as error:  # a controller that breaks must not end the slots
            self._report(error)
        took_s = perf_counter() - began_s
        self.spent_s += took_s
        self.longest_s = max(self.longest_s, took_s)


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
