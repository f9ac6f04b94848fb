"""The generator's process: `python -m inferway.loadgen PLAN OUTCOME [-]`.

It reads the plan, sends it, writes the outcome, and prints `due ended` now and then. With `-`, what
gives access to the servers is the first line of its standard input. It stops early on SIGINT,
SIGTERM, or when its standard input is closed, as it is when its parent is gone.
Who starts it with SIGINT blocked may send that at any time: it waits until there is something to
stop.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from inferway.loadgen.access import OPEN, Access
from inferway.loadgen.generator import generate
from inferway.loadgen.plan import SendOutcome, SendPlan


def _report(due: int, ended: int) -> None:
    print(due, ended, flush=True)


async def _run(plan: SendPlan, access: Access) -> SendOutcome:
    loop = asyncio.get_running_loop()

    def started(stop: Callable[[], None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        loop.add_reader(sys.stdin.fileno(), stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    try:
        return await generate(plan, access, report=_report, started=started)
    finally:
        # Without the loop it would be an exception, and what was measured lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        loop.remove_reader(sys.stdin.fileno())


def main(arguments: list[str]) -> int:
    """Run a plan from a file; the arguments are the plan's path and the outcome's."""
    if len(arguments) != 2 and arguments[2:] != ["-"]:
        print("usage: python -m inferway.loadgen PLAN OUTCOME [-]", file=sys.stderr)
        return 2
    plan, outcome = map(Path, arguments[:2])
    access = OPEN
    if arguments[2:]:
        line = sys.stdin.buffer.readline()
        if not line:  # the parent is gone
            return 1
        access = Access.decode(line)
    # One connection per open request and server: the usual soft limit of 1,024 files is too few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_run(SendPlan.load(plan), access)).save(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
