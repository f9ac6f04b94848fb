from __future__ import annotations

import asyncio
import os
import threading

import pytest

from inferway.live.threads import Wakeup


@pytest.mark.parametrize("eventfd", [True, False])
def test_rings_from_threads_reach_the_loop(eventfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)

    async def main() -> None:
        left: list[int] = []
        found: list[int] = []
        answers = 0
        ended = asyncio.Event()
        home = threading.get_ident()

        def answer() -> None:
            nonlocal answers
            answers += 1
            assert threading.get_ident() == home
            while left:
                found.append(left.pop())
            if len(found) == 2000:
                ended.set()

        bell = Wakeup(asyncio.get_running_loop(), answer)

        def work(start: int) -> None:
            for i in range(start, start + 1000):
                left.append(i)
                bell.ring()

        threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1000)]
        for thread in threads:
            thread.start()
        # No ring may be lost, however the threads and the loop take turns.
        await asyncio.wait_for(ended.wait(), 10)
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(2000))
        assert 1 <= answers <= 2001
        bell.close()

    asyncio.run(main())


@pytest.mark.parametrize("eventfd", [True, False])
def test_a_second_close_takes_no_file_from_anybody(
    eventfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell = Wakeup(loop, lambda: None)
        bell.close()
        heard = asyncio.Event()
        other = Wakeup(loop, heard.set)  # its file has the number that has become free
        bell.mute()
        bell.close()
        other.ring()
        await asyncio.wait_for(heard.wait(), 10)
        other.close()

    asyncio.run(main())


def test_a_ring_while_the_loop_looks_is_answered() -> None:
    async def main() -> None:
        answers: list[int] = []
        again = asyncio.Event()

        def answer() -> None:
            answers.append(1)
            if len(answers) == 1:
                thread = threading.Thread(target=bell.ring)
                thread.start()
                thread.join()
            else:
                again.set()

        bell = Wakeup(asyncio.get_running_loop(), answer)
        bell.ring()
        await asyncio.wait_for(again.wait(), 10)
        bell.close()

    asyncio.run(main())


def test_a_muted_bell_may_be_rung() -> None:
    async def main() -> None:
        answers: list[int] = []
        bell = Wakeup(asyncio.get_running_loop(), lambda: answers.append(1))
        bell.mute()
        bell.ring()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert answers == []
        bell.close()

    asyncio.run(main())
