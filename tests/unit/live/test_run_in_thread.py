"""Work in threads that nobody leaves behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from inferway.live.threads import run_in_thread


def test_whoever_is_canceled_waits_for_the_end_of_the_work() -> None:
    begun, told, gate = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert gate.wait(20)
        raise OSError("nobody hears it")

    async def main() -> None:
        waiting = asyncio.create_task(run_in_thread(work, told.set))
        await asyncio.to_thread(begun.wait, 20)
        waiting.cancel()
        await asyncio.to_thread(told.wait, 20)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


def test_the_outcome_is_the_works() -> None:
    async def main() -> None:
        assert await run_in_thread(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(lambda: 1 // 0)

    asyncio.run(main())
