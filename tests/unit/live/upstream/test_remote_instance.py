from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import numpy as np
import pytest
from doubling import SIGNATURE, Gate, One, give
from neighbor import LIMIT_S, Neighbor, Visit, until

from inferway.dispatch import Dispatcher
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.instance import RetryBudget
from inferway.live.upstream.remote import Forwarding
from inferway.live.upstream.upstream import Upstream
from inferway.protocol.inference import encode
from inferway.site import Fleet


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


def refusal(status: int, *, unserved: bool) -> bytes:
    body = msgspec.json.encode({"error": "no room"})
    extra = b"Inferway-Unserved: 1\r\n" if unserved else b""
    return (
        b"HTTP/1.1 %d Nope\r\nInferway-Node: cloud\r\nInferway-Path: edge,metro,cloud\r\n"
        b"Retry-After: 3\r\n%sContent-Length: %d\r\n\r\n%s" % (status, extra, len(body), body)
    )


def doubled(visit: Visit) -> bytes:
    """The answer to a binary request: its raw rows doubled."""
    at = int(visit.headers["inference-header-content-length"])
    x = np.frombuffer(visit.body[at:], "<f4").reshape(-1, 2)
    y = (2 * x).astype("<f4").tobytes()
    text = msgspec.json.encode(
        {
            "model_name": "task",
            "outputs": [
                {
                    "name": "y",
                    "datatype": "FP32",
                    "shape": list(x.shape),
                    "parameters": {"binary_data_size": len(y)},
                }
            ],
        }
    )
    return (
        b"HTTP/1.1 200 OK\r\nInferway-Node: cloud\r\nInferway-Path: edge,metro,cloud\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s%s"
        % (len(text), len(text) + len(y), text, y)
    )


def site_at(hop: Upstream, **options: Any) -> TaskSite:
    """`tiny` here (.7), and of cloud through metro `tiny` (.8, two servers) and `big` (.9)."""
    fleet = Fleet(
        ("tiny", "tiny@cloud", "big@cloud"),
        np.array([1e3, 1e2, 1e2]),
        np.array([0.7, 0.8, 0.9]),
        np.array([1, 2, 1]),
    )
    narrow = options.get("drop_late", True)
    dispatcher = Dispatcher(fleet, "jiq-accurate", target=0.8, narrow=narrow)
    tiny = Forwarding(hop, "cloud", "tiny", ("metro", "cloud"))
    big = Forwarding(hop, "cloud", "big", ("metro", "cloud"))
    gate = options.pop("gate", None) or Gate()
    return TaskSite.of(
        Pool(
            "task",
            SIGNATURE,
            dispatcher,
            [gate, tiny, tiny, big],
            PoolOptions(node="edge", **options),
        )
    )


async def begin(script: Any, **options: Any) -> tuple[Neighbor, Upstream, TaskSite]:
    neighbor = await Neighbor(script).start()
    hop = Upstream("metro", "127.0.0.1", neighbor.port)
    site = site_at(hop, **options)
    await site.start()
    return neighbor, hop, site


async def end(neighbor: Neighbor, hop: Upstream, site: TaskSite) -> None:
    await site.stop()
    hop.close()
    await neighbor.stop()
    assert site.in_flight == 0
    assert site.pool.dispatcher.site.queue.sum() == 0


async def echo(visit: Visit) -> None:
    visit.answer(doubled(visit))


def test_a_request_without_http_goes_as_binary_and_comes_back_as_arrays(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(echo)
        one = One(3.0, rows=2)
        give(site, one)
        assert await one.answer() == [[6.0, 6.0], [6.0, 6.0]]
        request, visit = one.request, neighbor.visits[0]
        assert (request.variant, request.node) == ("big", "cloud")
        assert visit.target == "/v2/models/task/infer"
        assert visit.headers["inferway-node"] == "cloud"
        assert visit.headers["inferway-variant"] == "big"
        assert visit.headers["inferway-path"] == "edge"
        assert "inferway-deadline-ms" not in visit.headers
        body, _ = encode(
            [(SIGNATURE.inputs[0], request.inputs[SIGNATURE.inputs[0].name])],
            SIGNATURE.outputs,
            binary=True,
        )
        assert visit.body == b"".join(body)
        assert site.stats.rows == [0, 0, 2]
        assert request.service_s > 0.0
        assert site.pool.dispatcher.balance == pytest.approx(2 * (0.9 - 0.8))
        await end(neighbor, hop, site)

    run(main())


def test_the_deadline_goes_along_as_what_is_left_of_it(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(echo)
        one = One(1.0)
        one.request.received_s = site.now()
        one.request.deadline_s = one.request.received_s + 5.0
        give(site, one)
        await one.answer()
        assert 4000.0 < float(neighbor.visits[0].headers["inferway-deadline-ms"]) < 5000.0
        await end(neighbor, hop, site)

    run(main())


def test_each_server_has_one_request_on_its_way_and_the_others_wait(run: Any) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def script(visit: Visit) -> None:
            await go.wait()
            visit.answer(doubled(visit))

        neighbor, hop, site = await begin(script)
        ones = [One(float(i)) for i in range(3)]
        for one in ones:
            one.request.classes = 1 << 2
        give(site, *ones)
        await until(lambda: len(neighbor.visits) == 1)
        assert len(hop._busy) == 1
        assert site.in_flight == 3
        site.cancel(ones[1].request)
        assert site.in_flight == 2
        go.set()
        assert await ones[0].answer() == [[0.0, 0.0]]
        assert await ones[2].answer() == [[4.0, 4.0]]
        assert len(neighbor.visits) == 2
        assert site.stats.total(Outcome.CANCELED) == 1
        await end(neighbor, hop, site)

    run(main())


def test_a_client_that_goes_closes_that_one_connection(run: Any) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            await asyncio.sleep(LIMIT_S)

        neighbor, hop, site = await begin(script)
        one = One(1.0)
        give(site, one)
        await until(lambda: len(neighbor.visits) == 1)
        site.cancel(one.request)
        await until(lambda: site.in_flight == 0)
        assert one.outcome is Outcome.CANCELED
        assert len(hop._busy) == 0
        assert site.pool.dispatcher.balance == 0.0
        assert hop.breaker.closed
        await end(neighbor, hop, site)

    run(main())


@pytest.mark.parametrize("status", [429, 503])
def test_what_was_certainly_not_run_goes_to_another_class_once(run: Any, status: int) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            visit.answer(refusal(status, unserved=True))

        neighbor, hop, site = await begin(script)
        one = One(1.0)
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        # big@cloud refuses, tiny@cloud does too; nobody is asked a third time.
        assert [visit.headers["inferway-variant"] for visit in neighbor.visits] == ["big", "tiny"]
        expected = Outcome.REJECTED if status == 429 else Outcome.UNAVAILABLE
        assert one.outcome is expected
        assert one.request.reason == f"node cloud answered {status}: no room"
        assert one.request.retry_after_s == 3.0
        assert site.stats.moved == [0, 0, 1]
        assert hop.breaker.closed
        await end(neighbor, hop, site)

    run(main())


def test_what_may_have_been_run_is_not_retried(run: Any) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            visit.answer(refusal(503, unserved=False))

        neighbor, hop, site = await begin(script)
        one = One(1.0)
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert one.outcome is Outcome.UNAVAILABLE
        assert len(neighbor.visits) == 1
        await end(neighbor, hop, site)

    run(main())


async def dies(visit: Visit) -> None:
    visit.writer.close()


def test_a_lost_request_of_an_idempotent_task_goes_to_who_does_not_share_its_way(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        gate.opened.set()
        neighbor, hop, site = await begin(dies, idempotent=True, gate=gate)
        one = One(1.0)
        give(site, one)
        assert await one.answer() == [[2.0, 2.0]]
        assert (one.request.variant, one.request.node) == ("tiny", "edge")
        assert [visit.headers["inferway-variant"] for visit in neighbor.visits] == ["big"]
        assert hop.breaker.closed
        assert site.stats.moved == [0, 0, 1]
        await end(neighbor, hop, site)

    run(main())


def test_a_lost_request_of_another_task_is_an_error(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(dies, idempotent=False)
        one = One(1.0)
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert (one.outcome, one.request.status) == (Outcome.FAILED, 502)
        assert one.request.reason == (
            "node metro closed the connection before it answered; the request may have been run"
        )
        assert len(neighbor.visits) == 1
        await end(neighbor, hop, site)

    run(main())


def test_a_lost_request_is_given_away_once(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(dies, idempotent=True)
        one = One(1.0)
        one.request.classes = 0b110  # there is no other way, so the same one is tried
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert (one.outcome, one.request.status) == (Outcome.FAILED, 502)
        assert [visit.headers["inferway-variant"] for visit in neighbor.visits] == ["big", "tiny"]
        await end(neighbor, hop, site)

    run(main())


def test_a_lost_request_is_given_away_within_the_budget(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = RetryBudget(0.0, first=0.0)
    monkeypatch.setattr("inferway.live.pool.RetryBudget", lambda: budget)

    async def main() -> None:
        neighbor, hop, site = await begin(dies, idempotent=True)
        one = One(1.0)
        one.request.classes = 0b110
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert one.outcome is Outcome.FAILED
        assert one.request.reason.endswith("the budget of retries is spent")
        assert (len(neighbor.visits), budget.refused) == (1, 1)
        await end(neighbor, hop, site)

    run(main())


def test_a_lost_request_whose_time_is_over_is_given_to_nobody(run: Any) -> None:
    async def main() -> None:
        now_s = 0.0

        async def script(visit: Visit) -> None:
            nonlocal now_s
            now_s = 2.0
            visit.writer.close()

        neighbor, hop, site = await begin(script, idempotent=True, now=lambda: now_s)
        one = One(1.0)
        one.request.deadline_s = 1.0
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert one.outcome is Outcome.FAILED
        assert len(neighbor.visits) == 1
        await end(neighbor, hop, site)

    run(main())


def test_what_a_node_on_the_way_has_lost_is_lost_as_well(run: Any) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            visit.answer(refusal(502, unserved=False))

        gate = Gate()
        gate.opened.set()
        neighbor, hop, site = await begin(script, idempotent=True, gate=gate)
        one = One(1.0)
        give(site, one)
        assert await one.answer() == [[2.0, 2.0]]
        assert (one.request.node, len(neighbor.visits)) == ("edge", 1)
        await end(neighbor, hop, site)

    run(main())


def test_what_was_lost_and_then_refused_may_have_been_run(run: Any) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            if visit.headers["inferway-variant"] == "big":
                visit.writer.close()
            else:
                visit.answer(refusal(503, unserved=True))

        neighbor, hop, site = await begin(script, idempotent=True)
        one = One(1.0)
        one.request.classes = 0b110
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert one.outcome is Outcome.UNAVAILABLE
        assert len(neighbor.visits) == 2
        assert not one.request.unserved
        assert not one.request.passed.unserved  # as its client is to read
        await end(neighbor, hop, site)

    run(main())


def test_a_neighbor_that_cannot_be_reached_is_left_out_at_once_and_taken_back(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(echo)
        await neighbor.stop()
        told: list[tuple[str, bool]] = []
        site.told = lambda name, works, _: told.append((name, works))
        one = One(1.0)
        give(site, one)
        assert await one.answer() == [[2.0, 2.0]]  # by its own variant, not by the same hop's
        assert (one.request.variant, one.request.node) == ("tiny", "edge")
        assert site.pool.health.healthy == [True, False, False, False]
        assert told == []  # of the neighbor whoever has the hop hears once, not of each server
        for _ in range(20):
            another = One(1.0)
            give(site, another)
            await another.answer()
        assert hop.sent == 1
        await neighbor.start()
        await until(lambda: all(site.pool.health.healthy))
        last = One(1.0)
        give(site, last)
        await last.answer()
        assert last.request.node == "cloud"
        await end(neighbor, hop, site)

    run(main())


def test_an_offer_that_is_taken_back_gets_nothing_until_it_comes_again(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(echo)
        site.pool.withdraw({("big", "cloud"), ("tiny", "cloud")})
        for _ in range(5):
            one = One(1.0)
            give(site, one)
            await one.answer()
            assert one.request.node == "edge"
        assert hop.sent == 0
        site.pool.withdraw(())
        assert all(site.pool.health.healthy)
        last = One(1.0)
        give(site, last)
        await last.answer()
        assert last.request.node == "cloud"
        # A hop that works again does not bring back what is not offered.
        site.pool.withdraw({("big", "cloud"), ("tiny", "cloud")})
        hop.lose("gone")
        await until(lambda: hop.breaker.closed)
        assert site.pool.health.healthy == [True, False, False, False]
        await end(neighbor, hop, site)

    run(main())


def test_retries_stay_within_their_budget(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = RetryBudget(0.2, first=1.0)
    monkeypatch.setattr("inferway.live.pool.RetryBudget", lambda: budget)

    async def main() -> None:
        async def script(visit: Visit) -> None:
            full = visit.headers["inferway-variant"] == "big"
            visit.answer(refusal(429, unserved=True) if full else doubled(visit))

        neighbor, hop, site = await begin(script)
        ends = []
        for _ in range(50):
            one = One(1.0)
            one.request.classes = 0b110  # of another node
            give(site, one)
            await asyncio.wait_for(one.ended, LIMIT_S)
            ends.append(one)
        served = sum(one.outcome is Outcome.ANSWERED for one in ends)
        assert served == budget.spent == site.stats.moved[2]
        assert 10 <= served <= 14  # a fifth of 50 and of the retries themselves
        refused = next(one for one in ends if one.outcome is not Outcome.ANSWERED)
        assert refused.request.reason.endswith("the budget of retries is spent")
        await end(neighbor, hop, site)

    run(main())


def test_what_runs_here_is_no_retry_of_anybody_elses(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = RetryBudget(0.0, first=0.0)
    monkeypatch.setattr("inferway.live.pool.RetryBudget", lambda: budget)

    async def main() -> None:
        async def script(visit: Visit) -> None:
            visit.answer(refusal(503, unserved=True))

        gate = Gate()
        gate.opened.set()
        neighbor, hop, site = await begin(script, gate=gate)
        for _ in range(20):
            one = One(1.0)
            give(site, one)
            await asyncio.wait_for(one.ended, LIMIT_S)
            assert one.outcome is Outcome.ANSWERED
            assert (one.request.variant, one.request.node) == ("tiny", "edge")
        assert budget.spent == 0
        assert all(visit.headers["inferway-variant"] == "big" for visit in neighbor.visits)
        await end(neighbor, hop, site)

    run(main())


def test_a_pin_covers_all_classes_of_a_variant(run: Any) -> None:
    async def main() -> None:
        neighbor, hop, site = await begin(echo)
        assert site.pool.versions == ("tiny", "big")
        assert site.pool.mask_of("tiny") == 0b011
        assert site.pool.mask_of("big") == 0b100
        assert site.pool.own_mask("tiny") == 0b001
        assert site.pool.own_mask("big") == 0
        one = One(1.0)
        one.request.classes = site.pool.mask_of("tiny")
        give(site, one)
        await one.answer()
        assert (one.request.variant, one.request.node) == ("tiny", "cloud")
        await end(neighbor, hop, site)

    run(main())


def test_a_connection_that_dies_in_mid_answer_is_told(run: Any) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            visit.answer(doubled(visit)[:-3])
            visit.writer.close()

        neighbor, hop, site = await begin(script)
        one = One(1.0)
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert one.outcome is Outcome.FAILED
        assert one.request.status == 502
        assert one.request.reason == (
            "node metro closed the connection in the middle of its answer; "
            "the request may have been run"
        )
        assert len(neighbor.visits) == 1
        await end(neighbor, hop, site)

    run(main())


@pytest.mark.parametrize("header", [b"", b"Inference-Header-Content-Length: two\r\n"])
def test_an_answer_that_does_not_fit_is_an_error_and_no_answer(run: Any, header: bytes) -> None:
    async def main() -> None:
        async def script(visit: Visit) -> None:
            visit.answer(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\n{}" % header)

        neighbor, hop, site = await begin(script)
        one = One(1.0)
        give(site, one)
        await asyncio.wait_for(one.ended, LIMIT_S)
        assert one.outcome is Outcome.FAILED
        assert "the answer of node cloud is wrong" in one.request.reason
        await end(neighbor, hop, site)

    run(main())


def test_the_end_waits_for_what_is_on_its_way(run: Any) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def script(visit: Visit) -> None:
            await go.wait()
            visit.answer(doubled(visit))

        neighbor, hop, site = await begin(script)
        one = One(1.0)
        give(site, one)
        await until(lambda: len(neighbor.visits) == 1)
        stopping = asyncio.create_task(site.stop(LIMIT_S))
        await asyncio.sleep(0)
        go.set()
        assert await one.answer() == [[2.0, 2.0]]
        await asyncio.wait_for(stopping, LIMIT_S)
        hop.close()
        await neighbor.stop()

    run(main())


def test_where_late_requests_are_served_no_deadline_goes_along(run: Any) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def script(visit: Visit) -> None:
            await go.wait()
            visit.answer(doubled(visit))

        neighbor, hop, site = await begin(script, drop_late=False, deadline_s=1.0)
        one = One(1.0)
        one.request.deadline_s = site.now() - 1.0
        give(site, one)
        go.set()
        await one.answer()
        assert one.request.late
        assert "inferway-deadline-ms" not in neighbor.visits[0].headers
        assert math.isfinite(one.request.deadline_s)
        await end(neighbor, hop, site)

    run(main())
