"""Targets over several tasks beside accuracies that labels correct: balances, and who explores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated import LIMIT_S, SIGNATURE, Gated

from inferway.dispatch import Dispatcher
from inferway.dispatch.joint import BALANCE
from inferway.dispatch.measured import EXPLORED
from inferway.dispatch.recording import SHARED
from inferway.dispatch.replay import events, replay
from inferway.live.options import PoolOptions
from inferway.live.pool import Pool
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import TaskSite
from inferway.live.targets import SharedTargets
from inferway.site import Fleet
from inferway.site.view import ALL_CLASSES

TOLD: Any = [
    {
        "name": "right", "tasks": ["a", "b"], "accuracy": 0.8,
        "start": 0.1, "scale": 0.1, "span": 0.2,
    },
    {"name": "frugal", "tasks": ["a", "b"], "energy": 2.0, "start": 1.0, "scale": 1.0, "span": 3.0},
    {
        "name": "others", "tasks": ["b"], "accuracy": 0.8,
        "start": 0.1, "scale": 0.1, "span": 0.2,
    },
]  # fmt: skip
RIGHT, FRUGAL, OTHERS = range(3)
BIG = 0b10


class Joint:
    """A task that shares targets with another one, and whose promise is on what is measured."""

    def __init__(self, target: float | None = None) -> None:
        fleet = Fleet(
            ("tiny", "big"),
            np.array([1e3, 1e2]),
            np.array([0.7, 0.9]),
            np.array([1, 1]),
            task="a",
            energy=np.array([1.0, 4.0]),
        )
        dispatcher = Dispatcher(fleet, "priced", target=target, targets=TOLD)
        self.tiny, self.big = Gated(), Gated()
        options = PoolOptions(target=target, measured=True)
        self.pool = Pool("a", SIGNATURE, dispatcher, [self.tiny, self.big], options)
        self.targets = SharedTargets(TOLD)
        self.targets.join([self.pool])
        self.site = TaskSite.of(self.pool)

    async def ask(
        self, classes: int = ALL_CLASSES, during: Callable[[], None] | None = None
    ) -> Any:
        """Ask for an answer, with something that happens while it is not there yet."""
        ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
        inputs = {"x": np.zeros((1, 2), np.float32)}
        self.site.submit(InferRequest(inputs, 1, ended.set_result, classes=classes))
        if during is not None:
            during()
        return await asyncio.wait_for(ended, LIMIT_S)


def test_what_is_taken_back_leaves_the_balances_of_all_targets_as_they_were(tmp_path: Path) -> None:
    """Another accuracy counts by then than when they were moved; a replay moves them likewise."""

    async def main() -> None:
        joint = Joint()
        await joint.site.start()
        pool, shared = joint.pool, joint.targets.shared
        pool.record(tmp_path / "run")
        joint.big.broken = True

        def correct() -> None:
            assert shared[RIGHT, BALANCE] == pytest.approx(0.9 - 0.8)
            assert shared[FRUGAL, BALANCE] == pytest.approx(2.0 - 4.0)
            pool.correct({"big": 0.5})
            joint.big.gate.set()

        for _ in range(2):
            pool.correct({"big": 0.9})
            joint.big.gate.clear()
            request = await joint.ask(BIG, correct)
            assert request.outcome is Outcome.FAILED
            assert shared[:, BALANCE] == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
        assert (await joint.ask()).outcome is Outcome.ANSWERED
        await joint.site.stop(LIMIT_S)

    asyncio.run(main())
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.losses) == (3, (), ())
    rows = np.concatenate([rows for _, rows in events(tmp_path / "run")])
    moved = rows["value"][(rows["kind"] == SHARED) & (rows["server"] == BALANCE)]
    assert moved == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("behind", [RIGHT, FRUGAL, OTHERS])
def test_nobody_explores_while_a_target_over_several_tasks_is_behind(behind: int) -> None:
    async def main() -> None:
        joint = Joint(target=0.4)
        await joint.site.start()
        joint.pool.correct({"tiny": 0.5})  # ruled out: labels say so much less than its profile
        shared, balance = joint.targets.shared, joint.pool.balance

        async def explored() -> int:
            """Count the requests that are asked of what is ruled out, of enough for one."""
            exploration, found = joint.pool._exploration, 0
            assert exploration is not None
            for _ in range(EXPLORED):
                shared[:, BALANCE], balance[0] = 50.0, 100.0
                shared[behind, BALANCE] = now
                turn = exploration._turn
                await joint.ask()
                found += exploration._turn - turn
            return found

        now = -50.0
        assert await explored() == (1 if behind == OTHERS else 0)
        now = 50.0
        assert await explored() == 1
        await joint.site.stop(LIMIT_S)

    asyncio.run(main())
