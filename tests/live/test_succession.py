"""One site takes over from another while requests are on their way."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from inferway.live import Outcome, Request, ServeError, Site
from inferway.live.succession import inherit, retire


def submit(site: Site) -> Request:
    """Give a site one request that nobody waits for."""
    one = Request({"image": np.zeros((1, 4), np.float32)}, 1, lambda _: None)
    site.submit(one)
    return one


def test_what_an_old_site_undoes_is_undone_where_the_task_is_by_then(
    site_of: Any, gates: Any
) -> None:
    async def main() -> None:
        for gate in gates:
            gate.opened.set()
        first, second, third = sites = site_of(gates), site_of(), site_of()
        for site in sites:
            await site.start()
        gates[0].opened.clear()
        served, queued, last = [submit(first) for _ in range(3)]
        inherit(second, first)
        ending = asyncio.create_task(retire(first))
        # Before the task has run for the first time.
        first.cancel(queued)
        inherit(third, second)
        await retire(second)
        assert not second.ready
        first.cancel(last)
        gates[0].opened.set()
        await ending
        assert served.outcome is Outcome.ANSWERED
        assert third.pool.dispatcher.balance == pytest.approx(0.7 - 0.8)
        assert third.stats.total(Outcome.ANSWERED) == 1
        assert third.stats.total(Outcome.CANCELED) == 2
        await third.stop()

    asyncio.run(main())


def test_a_balance_of_another_promise_is_left(site_of: Any, gates: Any) -> None:
    async def main() -> None:
        for gate in gates:
            gate.opened.set()
        first, second, third = sites = site_of(gates), site_of(target=0.75), site_of()
        for site in sites:
            await site.start()
        gates[0].opened.clear()
        _, queued = submit(first), submit(first)
        inherit(second, first)
        inherit(third, second)
        first.cancel(queued)
        gates[0].opened.set()
        await retire(first)
        assert third.pool.dispatcher.balance == 0.0
        for site in (second, third):
            await site.stop()

    asyncio.run(main())


def test_what_the_policy_has_learned_goes_on(site_of: Any) -> None:
    old = site_of(policy="priced")
    old.pool.dispatcher.policy.price[0] = price = 0.123
    same, larger, other, plain = (
        site_of(policy="priced"),
        site_of(policy="priced", count=(2, 1)),
        site_of(policy="priced", target=0.75),
        site_of(),
    )
    for new in (same, larger, other, plain):
        inherit(new, old)
    assert same.pool.dispatcher.policy.price[0] == larger.pool.dispatcher.policy.price[0] == price
    assert other.pool.dispatcher.policy.price[0] != price


def test_nothing_is_applied_to_a_server_that_stopped_meanwhile(
    start: Any, site_of: Any, gates: Any, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    running = start(site_of())
    new = site_of(gates)
    monkeypatch.setattr("inferway.live.roster.check_served", lambda _: None)
    monkeypatch.setattr("inferway.live.roster.sites_of", lambda *_: [new])
    applying = running.begin(running.server.apply(object()))
    until(lambda: gates[0].runs > 0)
    running.wait(running.server.stop(grace_s=0.0))
    for gate in gates:
        gate.opened.set()
    with pytest.raises(ServeError, match="nothing has been applied"):
        applying.result(20)
    assert running.server.sites != [new]
    assert not new.ready
    assert not any(instance._thread.is_alive() for instance in new.pool.instances)
