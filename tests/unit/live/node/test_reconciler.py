"""A node's copies on their way from what runs to what is wanted, with real models."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patient import Patient

import inferway
from inferway.catalog import zoo
from inferway.live import ServeError
from inferway.live.node.models import LoadedModels, Pair
from inferway.live.node.reconciler import Reconciler
from inferway.live.store.store import ModelStore, Progress
from inferway.runtime import Runtime, zeros

A, B, C = PAIRS = (("digits", "a"), ("digits", "b"), ("digits", "c"))
FILES = {"a": "tiny", "b": "mini", "c": "small"}
SIZES: dict[Pair, float] = {A: 30, B: 50, C: 70}
LIMIT_S = 20.0


class Node:
    """A models, a reconciler, and in the place of sites whoever borrows what runs.

    Every step looks at what the budget holds by the node's own count.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        lines = "".join(
            f"      {name}: {{model: {name}.onnx, accuracy: 0.9, size: 1 MB, "
            "service: {mean: 1 ms}}\n"
            for name in FILES
        )
        for name in FILES:
            self.heal(name)
        file = folder / "deployment.yaml"
        file.write_text(f"tasks:\n  digits:\n    deadline: 1 s\n    variants:\n{lines}")
        self.store = ModelStore(folder / "store", limit_bytes=10_000_000)
        self.models = Watched(inferway.load(file), self.store)
        self.models.node = self
        self.budget = options.setdefault("budget_bytes", 100)
        options.setdefault("sizes", SIZES)
        self.reconciler = Reconciler(self.models, self.announce, **options)
        self.told: list[dict[Pair, int]] = []
        """What has been announced."""
        self.borrowed: list[tuple[Pair, Runtime]] = []
        self.draining: list[tuple[Pair, Runtime]] = []
        self.drained: asyncio.Event | None = None
        """What leaving copies wait for, if for anything."""
        self.refused: set[Pair] = set()

    def heal(self, name: str) -> None:
        content = zoo.model_path("digits", FILES[name]).read_bytes()
        (self.folder / f"{name}.onnx").write_bytes(content)

    def damage(self, name: str) -> None:
        (self.folder / f"{name}.onnx").write_bytes(b"no model")

    async def announce(self, running: Mapping[Pair, int]) -> None:
        self.look()
        if self.refused & running.keys():
            raise ServeError("its policy cannot be made")
        old = self.borrowed
        self.borrowed = [
            (pair, self.models.acquire(*pair))
            for pair, count in running.items()
            for _ in range(count)
        ]
        self.told.append(dict(running))
        self.draining += old
        if self.drained is not None:
            await self.drained.wait()
        while self.draining:
            self.draining.pop()[1].close()
        for _, runtime in self.borrowed:
            runtime.run(zeros(runtime.signature.inputs))
        self.look()

    def look(self, coming: Pair | None = None) -> None:
        """Hold what is in memory against the budget: as many copies of each as run or drain."""
        now, before = Counter(one for one, _ in self.borrowed), Counter[Pair]()
        before.update(one for one, _ in self.draining)
        held = now | before
        if coming is not None:
            held[coming] += 1
        used = sum(SIZES[pair] * count for pair, count in held.items())
        assert used <= self.budget
        assert used <= self.reconciler.moves.used_bytes <= self.budget

    async def close(self) -> None:
        self.models.close()
        self.store.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await work()
            await self.close()

        asyncio.run(bounded())


class Watched(LoadedModels):
    """A models at which each load looks at the budget, and waits for a gate if there is one."""

    node: Node
    gate: asyncio.Event | None = None
    entered: asyncio.Event | None = None

    async def load(self, task: str, variant: str, progress: Progress | None = None) -> None:
        self.node.look((task, variant))
        if self.entered is not None:
            self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        await super().load(task, variant, progress)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit_s, "the condition did not come true"
        await asyncio.sleep(0)


def test_what_comes_runs_before_what_it_replaces_goes(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 1})
        assert await node.reconciler.toward({B: 1})
        assert node.told == [{A: 1}, {A: 1, B: 1}, {B: 1}]
        assert node.reconciler.running == {B: 1}
        assert (node.reconciler.moves.used_bytes, node.reconciler.moves.moved_bytes) == (50, 80)
        assert A not in node.models

    node.run(main)


def test_where_there_is_no_room_what_is_not_wanted_goes_first(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 1, B: 1})
        assert await node.reconciler.toward({C: 1, A: 1})
        assert node.told == [{A: 1}, {A: 1, B: 1}, {A: 1}, {A: 1, C: 1}]
        assert await node.reconciler.toward({})
        assert node.told[4:] == [{}]
        assert node.reconciler.moves.used_bytes == 0
        assert not any(pair in node.models for pair in PAIRS)

    node.run(main)


def test_copies_share_the_weights_and_count_each(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 3})
        # The second and the third cost no loading, so that one announcement does for both.
        assert node.told == [{A: 1}, {A: 3}] or node.told == [{A: 3}]
        assert (node.reconciler.moves.used_bytes, node.reconciler.moves.moved_bytes) == (90, 90)
        assert await node.reconciler.toward({A: 1})
        assert A in node.models
        assert node.reconciler.moves.used_bytes == 30

    node.run(main)


def test_pinned_copies_come_without_being_asked_for_and_stay(tmp_path: Path) -> None:
    node = Node(tmp_path, pinned={A: 1})

    async def main() -> None:
        assert await node.reconciler.toward({B: 1})
        assert node.reconciler.running == {A: 1, B: 1}
        assert not await node.reconciler.toward({C: 1, B: 1})
        assert node.reconciler.running == {A: 1, B: 1}
        assert await node.reconciler.toward({C: 1})
        assert node.reconciler.running == {A: 1, C: 1}
        # A pinned copy is nothing that placement has moved.
        assert node.reconciler.moves.moved_bytes == 120

    node.run(main)


def test_what_fails_is_told_and_tried_after_longer_and_longer_waits(
    patient: Patient, run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    node = Node(tmp_path, now=patient.time)
    node.damage("b")

    async def main() -> None:
        assert not await node.reconciler.toward({A: 1, B: 1})
        persisting = asyncio.create_task(node.reconciler.persist())
        assert node.reconciler.running == {A: 1}
        (failure,) = node.reconciler.status()["failures"]
        assert (failure["name"], failure["times"], failure["again_s"]) == ("digits/b", 1, 1.0)
        assert failure["reason"].startswith("digits/b: b.onnx: not a whole ONNX model")
        waits = []
        for times in range(2, 13):
            await patient.let(node.reconciler.status()["failures"][0]["again_s"] - 0.001)
            assert node.reconciler.status()["failures"][0]["times"] == times - 1
            await patient.let(0.002)
            await until(
                lambda times=times: node.reconciler.status()["failures"][0]["times"] == times
            )  # type: ignore[misc]
            waits.append(node.reconciler.status()["failures"][0]["again_s"])
        assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0, 300.0]
        # Another file lies there by the next try.
        node.heal("b")
        await patient.let(300.0)
        await until(lambda: B in node.reconciler.running)
        await until(lambda: not node.reconciler.status()["failures"])
        assert node.told[-1] == {A: 1, B: 1}
        persisting.cancel()
        await asyncio.wait({persisting})
        await node.close()

    run(main())


def test_the_old_copy_stays_where_the_new_one_cannot_be_had(node: Node) -> None:
    """Though it would have to go first: the new one's file is looked at while it still runs."""

    async def main() -> None:
        assert await node.reconciler.toward({A: 1, B: 1})
        node.damage("c")
        assert not await node.reconciler.toward({C: 1})
        assert node.reconciler.running == {A: 1, B: 1}
        assert node.told[-1] == {A: 1, B: 1}
        assert [one["name"] for one in node.reconciler.status()["failures"]] == ["digits/c"]
        # What is not wanted any more is forgotten when its time has come, or when it works.
        assert await node.reconciler.toward({B: 1})

    node.run(main)


def test_a_copy_that_sites_cannot_take_up_goes_again(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 1})
        node.refused = {B}
        assert not await node.reconciler.toward({A: 1, B: 1})
        assert node.reconciler.running == node.told[-1] == {A: 1}
        assert B not in node.models
        (failure,) = node.reconciler.status()["failures"]
        assert failure["reason"] == "digits/b could not be taken up: its policy cannot be made"
        assert node.reconciler.moves.used_bytes == 30

    node.run(main)


def test_where_nothing_new_is_to_blame_the_announcement_is_made_again(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 1, B: 1})
        node.refused = {A}
        with pytest.raises(ServeError, match="its policy"):
            await node.reconciler.toward({A: 1})
        assert node.reconciler.moves.used_bytes == 80
        node.refused = set()
        assert await node.reconciler.toward({A: 1})
        assert node.told[-1] == {A: 1}
        assert B not in node.models

    node.run(main)


def test_a_later_wish_takes_the_place_of_the_one_before(node: Node) -> None:
    async def main() -> None:
        node.models.gate, node.models.entered = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(node.reconciler.toward({A: 1, B: 1}))
        await node.models.entered.wait()
        assert [one["step"] for one in node.reconciler.status()["moving"]] == ["loading"]
        assert node.reconciler.moves.used_bytes == 30
        second = asyncio.create_task(node.reconciler.toward({C: 1}))
        await until(first.done)
        assert not first.result()
        node.models.gate.set()
        assert await second
        # The load that was under way ended: nobody wanted it any more.
        assert node.told == [{C: 1}]
        assert A not in node.models

    node.run(main)


def test_a_later_wish_goes_on_with_a_load_that_it_wants_too(node: Node) -> None:
    async def main() -> None:
        node.models.gate, node.models.entered = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(node.reconciler.toward({A: 1, B: 1}))
        await node.models.entered.wait()
        second = asyncio.create_task(node.reconciler.toward({A: 1}))
        await asyncio.sleep(0)
        node.models.gate.set()
        assert not await first
        assert await second
        assert node.told == [{A: 1}]
        assert node.reconciler.moves.moved_bytes == 30

    node.run(main)


def test_what_is_leaving_counts_until_it_is_gone(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 1, B: 1})
        node.drained = asyncio.Event()
        moving = asyncio.create_task(node.reconciler.toward({C: 1}))
        await until(lambda: len(node.told) == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert node.told[2:] == [{A: 1}]
        assert node.reconciler.moves.used_bytes == 80
        assert node.reconciler.running == {A: 1}
        moving_now = node.reconciler.status()["moving"]
        assert [(one["name"], one["step"]) for one in moving_now] == [("digits/b", "leaving")]
        node.drained.set()
        assert await moving
        assert node.told[3:] == [{A: 1, C: 1}, {C: 1}]

    node.run(main)


def test_memory_that_is_still_lent_is_not_free(node: Node) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({B: 1})
        stuck = node.models.acquire(*B)
        assert not await node.reconciler.toward({C: 1})
        assert node.reconciler.moves.used_bytes == 50
        assert B in node.models
        persisting = asyncio.create_task(node.reconciler.persist())
        stuck.close()
        await until(lambda: node.told[-1] == {C: 1})
        assert B not in node.models
        persisting.cancel()
        await asyncio.wait({persisting})

    node.run(main)


@pytest.mark.parametrize("after", [*range(0, 60, 3), 100, 200])
def test_canceled_anywhere_it_loses_nothing(node: Node, after: int) -> None:
    async def main() -> None:
        assert await node.reconciler.toward({A: 1, B: 1})
        moving = asyncio.create_task(node.reconciler.toward({C: 1}))
        for _ in range(after):
            await asyncio.sleep(0)
        moving.cancel()
        await asyncio.wait({moving})
        node.look()
        loaded = {pair for pair in PAIRS if pair in node.models}
        moving_now = node.reconciler.status()["moving"]
        assert not any(one["step"] == "loading" for one in moving_now)
        assert sum(SIZES[pair] for pair in loaded) == node.reconciler.moves.used_bytes
        assert await node.reconciler.toward({A: 1, B: 1})
        assert node.told[-1] == {A: 1, B: 1}
        assert all(one.uses == 0 for one in node.store.contents())

    node.run(main)


def test_a_wish_that_no_budget_can_hold_is_refused(node: Node) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="digits/z has no size"):
            await node.reconciler.toward({("digits", "z"): 1})
        with pytest.raises(ValueError, match="-1 copies of digits/a cannot run"):
            await node.reconciler.toward({A: -1})
        # More than there is room for is no mistake: what fits runs.
        assert not await node.reconciler.toward({A: 9})
        assert node.reconciler.running == {A: 3}

    node.run(main)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"budget_bytes": -1.0}, "a budget of -1 bytes"),
        ({"sizes": {A: float("nan")}}, "digits/a has a size of nan"),
    ],
)
def test_sizes_and_budgets_are_checked(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Node(tmp_path, **options)


WISHES = st.lists(
    st.tuples(
        st.fixed_dictionaries({}, optional=dict.fromkeys(PAIRS, st.integers(0, 3))),
        st.sets(st.sampled_from("abc"), max_size=2),  # files that are damaged meanwhile
        st.none() | st.integers(0, 80),  # how long the next one waits for it
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25)
@given(wishes=WISHES, pinned=st.sampled_from([None, {A: 1}]))
def test_the_budget_is_never_exceeded(
    tmp_path_factory: pytest.TempPathFactory,
    wishes: list[tuple[dict[Pair, int], set[str], int | None]],
    pinned: dict[Pair, int] | None,
) -> None:
    clock = [0.0]
    node = Node(tmp_path_factory.mktemp("node"), pinned=pinned, now=lambda: clock[0])

    async def main() -> None:
        moving = []
        for wanted, damaged, steps in wishes:
            for name in FILES:
                (node.damage if name in damaged else node.heal)(name)
            moving.append(asyncio.create_task(node.reconciler.toward(wanted)))
            if steps is None:
                await moving[-1]
            for _ in range(steps or 0):
                await asyncio.sleep(0)
                assert node.reconciler.moves.used_bytes <= node.budget
        await asyncio.gather(*moving)
        node.look()
        failed = {one["name"] for one in node.reconciler.status()["failures"]}
        for pair in pinned or {}:
            assert pair in node.reconciler.running or "/".join(pair) in failed
        for name in FILES:
            node.heal(name)
        clock[0] += 1000.0
        assert await node.reconciler.toward({})
        assert node.reconciler.running == (pinned or {})
        assert node.reconciler.moves.used_bytes == sum(SIZES[pair] for pair in pinned or {})
        assert not node.reconciler.status()["failures"]

    node.run(main)
