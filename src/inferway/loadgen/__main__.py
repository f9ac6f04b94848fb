"""The generator's process: `python -m inferway.loadgen OUTCOME`, with the plan on standard input.

It sends the plan, writes the outcome, and prints `due ended` now and then. It stops early on
SIGINT, SIGTERM, or when its standard input is closed, as it is when its parent is gone. Who starts
it with SIGINT blocked may send that at any time: it waits until there is something to stop.
"""

from __future__ import annotations

import asyncio
import pickle
import resource
import signal
import sys
from pathlib import Path

import uvloop

from inferway.loadgen.access import Access
from inferway.loadgen.generator import Generator, SendOutcome, SendPlan


def main(arguments: list[str]) -> int:
    """Read a plan from standard input, and write its outcome to the file named."""
    if len(arguments) != 1:
        print("usage: python -m inferway.loadgen OUTCOME < PLAN", file=sys.stderr)
        return 2
    try:
        plan, access = pickle.load(sys.stdin.buffer)
    except (EOFError, pickle.UnpicklingError):  # the parent is gone
        return 1
    # One connection per open request and server: the usual soft limit of 1,024 files is too few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    outcome = uvloop.run(_run(plan, access))
    Path(arguments[0]).write_bytes(pickle.dumps(outcome))
    return 0


async def _run(plan: SendPlan, access: Access) -> SendOutcome:
    generator = Generator(plan, access, lambda due, ended: print(due, ended, flush=True))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, generator.stop)
    loop.add_reader(sys.stdin.fileno(), generator.stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return await generator.run()
    finally:
        # Without the loop it would be an exception, and what was measured lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
