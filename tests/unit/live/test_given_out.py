"""What a server whose devices are given out anew refuses, begins with and lends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import inferway
from inferway.deployment.overhead import MeasuredOverhead
from inferway.live import ServeError, Server, ServerOptions
from inferway.live.assigned import DeviceAssignment
from inferway.live.build import check_served
from inferway.live.copy_moves import CopyMoves
from inferway.live.lent import lend
from inferway.live.log import logger
from inferway.live.overhead import FEWEST, ProcessCounts
from inferway.placement.assign import Step
from inferway.protocol import Signature
from inferway.protocol.schema import Tensor
from inferway.runtime import NullRuntime

FILE = """
tasks:
  a: &task
    deadline: 1 s
    variants:
      small: {model: zoo://digits/tiny, service: {mean: 10 ms}}
      large: {model: zoo://digits/large, service: {mean: 100 ms}}
  b: *task
nodes:
  here:
    devices: {cpu: {cores: 3}}
    instances: {a/small: 2, b/large: 1}
placement: {policy: assign}
dispatch: {policy: deadline}
"""
STATED = {("a", "small", "cpu"): 2, ("b", "large", "cpu"): 1}
OTHERS = {("a", "large", "cpu"): 1, ("b", "large", "cpu"): 2}


def load(folder: Path, text: str = FILE) -> inferway.Deployment:
    file = folder / "here.yaml"
    file.write_text(text)
    return inferway.load(file)


def made(folder: Path, before: DeviceAssignment | None = None, **options: Any) -> DeviceAssignment:
    text = options.pop("text", FILE)
    served = ServerOptions(assigned=folder / "kept" / "file.json", **options)
    return DeviceAssignment(load(folder, text), before, served, logger("critical"))


def keep(folder: Path, copies: dict[tuple[str, str, str], int], schema: int = 1) -> None:
    (folder / "kept").mkdir(exist_ok=True)
    demand = {"mean": {"a": 7.0}, "last": {"a": [7.0]}}
    kept = {"schema": schema, "copies": [[*key, n] for key, n in copies.items()], "demand": demand}
    (folder / "kept" / "file.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("written", "instead", "sentence"),
    [
        (
            "large: {model: zoo://digits/large,",
            "large: {accuracy: 0.9,",
            "tasks.b.variants: large has no `model`",
        ),
        (
            "large: {model: zoo://digits/large,",
            "large: {remote: {url: 'http://127.0.0.1:9/v2/models/m'}, accuracy: 0.9,",
            "tasks.a.variants.large.remote: what another server runs takes no device",
        ),
        (
            "deadline: 1 s",
            "deadline: 1 s\n    feedback: {}\n"
            "    canary: {variant: large, share: 0.1, at_least: 0.5}",
            "tasks.a.canary: a variant may be left without a copy",
        ),
    ],
)
def test_what_is_not_served_is_said(
    tmp_path: Path, written: str, instead: str, sentence: str
) -> None:
    text = FILE.replace(written, instead)
    with pytest.raises(ServeError) as refused:
        check_served(load(tmp_path, text))
    assert sentence in str(refused.value)


def test_copies_are_those_of_the_run_before_where_they_still_fit(tmp_path: Path) -> None:
    assert made(tmp_path).held == STATED
    keep(tmp_path, OTHERS)
    again = made(tmp_path)
    assert again.held == OTHERS
    # Demand is what the slots of before were.
    assert again.policy.forecast.see({"a": 1.0, "b": 0.0})[0]["a"] == pytest.approx(4.0 * 1.2)
    placed = again.deployment().nodes["here"].placed
    assert placed == {("a", "large"): {"cpu": 1}, ("b", "large"): {"cpu": 2}}
    for copies, schema in (
        (OTHERS | {("a", "small", "cpu"): 1}, 1),  # more than the device holds
        ({("a", "large", "cpu"): 1}, 1),  # nothing of b
        (OTHERS | {("a", "gone", "cpu"): 0}, 1),  # a variant that there is no more
        (OTHERS, 2),
    ):
        keep(tmp_path, copies, schema)
        assert made(tmp_path).held == STATED
    keep(tmp_path, OTHERS)
    assert made(tmp_path, dry_run=True).held == STATED


def test_a_file_that_is_applied_goes_on_as_far_as_it_can(tmp_path: Path) -> None:
    keep(tmp_path, OTHERS)
    before = made(tmp_path)
    before.slots, before.moved["a", "large", "cpu", "loaded"] = 5, 1
    keep(tmp_path, STATED)
    after = made(tmp_path, before, text=FILE.replace("1 s", "2 s"))
    assert after.held == OTHERS
    assert after.slots == 5
    assert after.moved is before.moved
    fewer = made(tmp_path, before, text=FILE.replace("cores: 3", "cores: 2"))
    assert sum(fewer.held.values()) == 2


def test_a_dry_run_goes_by_the_instances_of_a_file_that_is_applied(tmp_path: Path) -> None:
    before = made(tmp_path, dry_run=True)
    before.policy.forecast.see({"a": 9.0, "b": 1.0})
    text = FILE.replace("{a/small: 2, b/large: 1}", "{a/small: 1, b/large: 2}")
    after = made(tmp_path, before, text=text, dry_run=True)
    assert after.held == {("a", "small", "cpu"): 1, ("b", "large", "cpu"): 2}
    assert after.policy.forecast.to_json()["mean"] == {"a": 9.0, "b": 1.0}


def test_a_model_goes_when_its_last_loan_comes_back() -> None:
    closed = []
    spec = Tensor("x", "FP32", (-1, 2))
    runtime = NullRuntime(Signature((spec,), (spec,)))
    runtime.close = lambda: closed.append(True)  # type: ignore[method-assign]
    runtime.providers = ("CUDAExecutionProvider",)  # type: ignore[attr-defined]
    first = lend(runtime)
    assert first.providers == runtime.providers  # type: ignore[attr-defined]
    second = first.again()
    assert second is not None
    first.close()
    first.close()
    assert not closed
    assert first.again() is None
    with pytest.raises(RuntimeError, match="given back"):
        first.run({})
    second.close()
    assert closed == [True]


def test_a_pool_that_comes_takes_no_processes_from_the_one_that_goes() -> None:
    spec = Tensor("x", "FP32", (-1, 2))
    runtime, reserved = NullRuntime(Signature((spec,), (spec,))), list[int]()
    runtime.reserve = reserved.append  # type: ignore[attr-defined]
    goes = lend(runtime)
    comes = goes.again()
    assert goes.reserve is not None
    assert comes is not None
    assert comes.reserve is not None
    goes.reserve(3)
    comes.reserve(1)
    assert reserved == [3, 3]
    goes.close()
    assert reserved == [3, 3, 1]
    comes.close()
    assert reserved == [3, 3, 1]


def carried(one: DeviceAssignment) -> dict[tuple[str, str, str], float]:
    return {option.key: option.carried_per_s for option in one.policy.options}


def measured(own_s: float, beyond_s: float = 0.0) -> MeasuredOverhead:
    return MeasuredOverhead(own_s + beyond_s, 0.0, Path(), own_s)


def test_copies_are_weighed_with_what_requests_are_measured_to_take(tmp_path: Path) -> None:
    one = made(tmp_path)
    assert carried(one)["a", "small", "cpu"] == pytest.approx(1 / 10e-3)
    one.set_overhead(measured(4e-3, beyond_s=6e-3))
    assert carried(one)["a", "small", "cpu"] == pytest.approx(1 / 20e-3)
    assert carried(one)["b", "large", "cpu"] == pytest.approx(1 / 110e-3)
    # One that can no longer keep its deadline carries next to nothing, and is there all the same.
    one.set_overhead(measured(0.95))
    assert 0.0 < carried(one)["b", "large", "cpu"] < 0.01
    assert one.policy.step({"a": 1.0, "b": 1.0}, one.held).copies
    # What the file says stays.
    stated = made(tmp_path, text=FILE.replace("devices:", "overhead: 0 s\n    devices:"))
    stated.set_overhead(measured(10e-3))
    assert carried(stated)["a", "small", "cpu"] == pytest.approx(1 / 10e-3)


def test_decisions_go_by_what_the_server_measures(tmp_path: Path) -> None:
    """Also those of a file that comes later; what models take beyond their profiles counts."""

    async def main() -> None:
        options = ServerOptions(http_port=0, admin_port=0, log_level="critical", dry_run=True)
        server = Server(load(tmp_path), options)
        await server.start()
        try:
            now = ProcessCounts(0.0, 0.0, {1: 0.0}, 0, 0, {1: 0.0})
            for _ in range(FEWEST + 1):
                server.meter.estimate.take(now)
                now = now._replace(
                    at_s=now.at_s + 1,
                    cpu_s=now.cpu_s + 1.0,
                    ended=now.ended + 100,
                    stretched_s={1: now.stretched_s[1] + 0.5},
                )
            server.meter.look()
            assert server.assignment is not None
            assert carried(server.assignment)["a", "small", "cpu"] == pytest.approx(1 / 25e-3)
            before = server.assignment
            await server.apply(load(tmp_path, FILE.replace("1 s", "2 s")))
            assert server.assignment is not before
            assert carried(server.assignment)["a", "small", "cpu"] == pytest.approx(1 / 25e-3)
        finally:
            await server.stop(0.0)

    asyncio.run(main())


def test_explanations_are_told_what_is_warming_and_what_drains(tmp_path: Path) -> None:
    """While a fleet is made, what comes is warming; what goes drains until its fleet is gone."""
    small, large = ("a", "small", "cpu"), ("a", "large", "cpu")
    one, moves = made(tmp_path, now=lambda: 10.0), CopyMoves()
    site: Any = SimpleNamespace(log=SimpleNamespace(moves=moves))
    one._sites = lambda: {"a": site}
    gone = asyncio.Event()

    def states() -> list[tuple[str, str]]:
        return [(told["variant"], told["state"]) for told in moves.at(10.0)]

    async def refuse(*_: Any) -> None:
        assert states() == [("large", "warming")]
        raise ServeError("there is no room")

    async def swap(*_: Any) -> asyncio.Task[Any]:
        assert states() == [("large", "warming")]
        return asyncio.create_task(gone.wait())

    async def change() -> None:
        leaving: dict[asyncio.Task[None], list[Any]] = {}
        for replaced in (refuse, swap):
            one.shift.serving[small] -= 1
            one.shift.draining[small] += 1
            one.shift.loading[large] += 1
            steps = [Step("retire", small), Step("load", large)]
            await one._change("a", steps, replaced, leaving)
            assert states() == ([] if replaced is refuse else [("small", "draining")])
        gone.set()
        assert [*leaving.values()] == [[small]]
        await asyncio.wait(leaving)
        assert states() == [("small", "away")]

    asyncio.run(change())
