"""Calls of workers that an event loop begins: their ends are heard in order, whatever they are."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_classes import PATIENCE_S, Heard, Make, X, echo, until

from inferway.runtime import Fault, PythonRuntime, WorkerError

COMMANDS = """
command = inputs["x"][0, 0]
if command == -1: raise ValueError("as asked")
if command == -2: os.kill(os.getpid(), 9)
if command == -3: time.sleep(1000)
if command == -4:
    open("here", "w").close()
    while not os.path.exists("go"): time.sleep(0.01)
"""
RAISE, DIE, HANG, WAIT = -1.0, -2.0, -3.0, -4.0


def batch(command: float, rows: int = 1) -> dict[str, Any]:
    return {"x": np.full((rows, 4), command, np.float32)}


class Ends:
    """What became of calls, in the order in which it was told."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self.runtime, self.said, self._told = runtime, list[Any](), asyncio.Event()

    def ask(self, *commands: float) -> bool:
        return self.runtime.ask([batch(one) for one in commands], self._ended)

    def _ended(self, outputs: Any, error: WorkerError | None, took_s: float) -> None:
        assert outputs is None or error is None
        assert outputs is None or took_s > 0.0
        self.said.append(None if outputs is None else float(outputs["y"][0, 0]))
        if error is not None:
            self.said[-1] = error.fault, str(error)
        self._told.set()

    async def are(self, count: int) -> list[Any]:
        """Wait until so many calls have ended."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.said) < count:
                self._told.clear()
                await self._told.wait()
        return self.said


def told(runtime: PythonRuntime, steps: Callable[[Ends], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await steps(Ends(runtime))

    return asyncio.run(main())


def asked(runtime: PythonRuntime, commands: Sequence[float]) -> list[Any]:
    async def steps(ends: Ends) -> list[Any]:
        assert ends.ask(*commands)
        assert not ends.said  # nobody is told before it is known that all have begun
        return await ends.are(len(commands))

    said: list[Any] = told(runtime, steps)
    return said


def test_each_is_answered_in_its_order(make: Make) -> None:
    runtime = make(echo(COMMANDS))

    async def steps(ends: Ends) -> None:
        for first in range(20):
            values = [float(first + i) for i in range(1 + first % 8)]
            seen = len(ends.said)
            assert ends.ask(*values)
            assert (await ends.are(seen + len(values)))[seen:] == values

    told(runtime, steps)
    # Another loop may go on where the first has ended, and so may a thread.
    assert asked(runtime, [1.0, 2.0]) == [1.0, 2.0]
    np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)


def test_texts_and_rows_of_any_number_lie_one_behind_the_other(make: Make) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, -1]), "name": (str, [-1])}
        outputs = {"name": (str, [-1]), "y": ("FP32", [-1, -1])}
        def predict(self, inputs):
            return {"y": inputs["x"].T.copy().T * 2, "name": inputs["name"]}
        """
    )
    given = [
        {"x": np.full((rows, axis), rows, np.float32)[:, ::2], "name": np.array(names, object)}
        for rows, axis, names in ((1, 2, [b"a"]), (3, 70, [b"", b"\xff", b"long" * 99]))
    ]
    answers: list[Any] = []

    async def main() -> None:
        done = asyncio.Event()

        def ended(outputs: Any, error: Any, _: float) -> None:
            assert error is None
            answers.append(outputs)
            if len(answers) == 2:
                done.set()

        assert runtime.ask(given, ended)
        await asyncio.wait_for(done.wait(), PATIENCE_S)

    asyncio.run(main())
    for one, answer in zip(given, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * one["x"])
        assert answer["name"].tolist() == one["name"].tolist()


def test_one_that_raises_is_told_and_the_others_are_answered(make: Make) -> None:
    runtime = make(echo(COMMANDS))
    before = runtime.workers
    first, raised, last = asked(runtime, [1.0, RAISE, 2.0])
    assert (first, last) == (1.0, 2.0)
    assert raised == (Fault.BROKEN, "predict raised ValueError: as asked")
    assert runtime.workers == before


def test_one_that_kills_its_worker_costs_itself_alone(make: Make) -> None:
    runtime = make(echo(COMMANDS))
    first, died, *behind = asked(runtime, [1.0, DIE, 2.0, 3.0])
    assert first == 1.0
    assert died[0] is Fault.BROKEN
    assert died[1].startswith("its worker was ended by SIGKILL")
    # They have not begun, and may be run again.
    assert behind == [None, None]
    np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)
    assert runtime.restarts == 1


def test_one_that_hangs_is_late_and_holds_nobody_up_who_is_answered(make: Make) -> None:
    runtime = make(echo(COMMANDS), timeout_s=1.0)

    async def steps(ends: Ends) -> list[Any]:
        assert ends.ask(1.0, HANG, 2.0)
        assert await ends.are(1) == [1.0]  # the time limit has not passed
        return await ends.are(3)

    _, late, behind = told(runtime, steps)
    assert late[0] is Fault.LATE
    assert late[1].startswith("predict took longer than its `timeout`, 1 s, so its worker was")
    assert behind is None
    np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)


def test_the_time_limit_is_of_one_call_and_not_of_all(make: Make) -> None:
    runtime = make(echo("time.sleep(0.4)"), timeout_s=2.0)
    assert asked(runtime, [float(i) for i in range(8)]) == [float(i) for i in range(8)]
    assert runtime.restarts == 0


def test_one_that_leaks_is_replaced_and_what_it_prints_is_logged(make: Make, log: Heard) -> None:
    runtime = make(
        echo("print('asked')\nself.kept = [*getattr(self, 'kept', []), np.ones(4_000_000)]"),
        memory_bytes=200 * 2**20,
    )
    (first,) = runtime.workers

    async def steps(ends: Ends) -> None:
        asked = 0
        async with asyncio.timeout(PATIENCE_S):
            while first in runtime.workers:
                asked += ends.ask(float(asked))
                await asyncio.sleep(0.01)
        # Its successor may answer before it has.
        assert sorted(await ends.are(asked)) == [float(i) for i in range(asked)]
        until(lambda: len(log.lines) == asked)

    told(runtime, steps)
    assert runtime.restarts  # its successor may leak as much meanwhile
    assert log.events("is replaced")


def test_without_a_free_worker_it_says_so(make: Make, tmp_path: Path) -> None:
    runtime = make(echo(COMMANDS))

    async def steps(ends: Ends) -> None:
        assert ends.ask(WAIT)
        assert not ends.ask(1.0)
        (tmp_path / "go").touch()
        await ends.are(1)
        assert ends.ask(1.0)
        await ends.are(2)
        (pid,) = runtime.workers
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in runtime.workers)
        until(lambda: runtime.workers)
        while not ends.ask(2.0):  # its successor is ready soon
            await asyncio.sleep(0.01)
        assert (await ends.are(3))[1:] == [1.0, 2.0]

    told(runtime, steps)


def test_threads_and_the_loop_share_workers(make: Make, tmp_path: Path) -> None:
    runtime = make(echo(COMMANDS))
    runtime.reserve(2)

    async def steps(ends: Ends) -> None:
        thread = threading.Thread(target=runtime.run, args=(batch(WAIT),))
        thread.start()
        while not (tmp_path / "here").exists():
            await asyncio.sleep(0.01)
        for value in range(50):
            assert ends.ask(float(value))
            await ends.are(value + 1)
        (tmp_path / "go").touch()
        thread.join(PATIENCE_S)
        assert ends.said == [float(value) for value in range(50)]

    told(runtime, steps)


def test_a_call_under_way_still_ends_when_it_is_closed(make: Make, tmp_path: Path) -> None:
    runtime = make(echo(COMMANDS))
    bell = runtime._calls.bell

    async def steps(ends: Ends) -> None:
        assert ends.ask(WAIT, 1.0)
        runtime.close()
        assert not ends.ask(2.0)
        (tmp_path / "go").touch()
        assert await ends.are(2) == [WAIT, 1.0]
        loop = asyncio.get_running_loop()
        while loop.remove_reader(bell.heard_at):
            pytest.fail("it still listens")

    told(runtime, steps)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(bell.heard_at, 1)


def test_nothing_is_left_to_look_for_once_it_is_closed(make: Make) -> None:
    runtime = make(echo(COMMANDS))

    async def steps(ends: Ends) -> None:
        loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
        call_at = loop.call_at

        def noted(*told: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(call_at(*told, **more))
            return timers[-1]

        loop.call_at = noted  # type: ignore[method-assign]
        assert ends.ask(1.0)
        assert timers  # that of the time limit
        assert await ends.are(1) == [1.0]
        runtime.close()
        closed = asyncio.Event()
        loop.call_soon(closed.set)  # after the runtime's own
        await closed.wait()
        assert all(timer.cancelled() for timer in timers)

    told(runtime, steps)
