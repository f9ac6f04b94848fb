"""A link that carries nothing and says nothing: noticed after the lease, used again when healed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from peering import Heard, addresses_of
from wire import Wire

from inferway.live.control.peers import LEASE_S, Peers
from inferway.live.security.authority import issue
from inferway.live.security.tls import Credentials

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)

# What a machine that does other things adds.
SLACK_S = 1.5


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_link_that_is_cut_in_silence(tmp_path: Path, encrypted: bool) -> None:
    issue(["a", "b"], tmp_path)

    async def main() -> None:
        addresses = addresses_of(("a", "b"))
        wire = Wire(addresses["a"])
        await wire.open()

        def opened(name: str, neighbors: dict[str, str | None]) -> Heard:
            return Heard(
                Peers(
                    name,
                    network="test",
                    listen=addresses[name],
                    neighbors=neighbors,
                    credentials=Credentials.of(name, tmp_path) if encrypted else None,
                )
            )

        a, b = opened("a", {"b": None}), opened("b", {"a": wire.address})
        try:
            for one in (a, b):
                await one.peers.open()
            await a.met("b")
            await b.met("a")
            wire.cut()
            cut = time.monotonic()
            a.peers.send("b", "needed", b"lost")
            await a.until(lambda: not a.peers.alive)
            await b.until(lambda: not b.peers.alive)
            noticed = time.monotonic() - cut
            a.peers.cut()
            a.peers.send("b", "needed", b"not even tried")
            a.peers.put("b", "menu", "1", b"kept until it comes")
            assert a.peers.cut() == ({}, {}, {("b", "gone"): 1})
            wire.heal()
            healed = time.monotonic()
            await a.met("b")
            await b.met("a")
            back = time.monotonic() - healed
            a.peers.send("b", "needed", b"on")
            await b.until(lambda: ("a", "needed", b"on") in b.messages)
            assert b.values == {("a", "menu", "1"): b"kept until it comes"}
            print(f"noticed after {noticed:.3f} s, back after {back:.3f} s")
            assert LEASE_S / 2 < noticed < LEASE_S + SLACK_S
            # An attempt that began while the link was cut is given up after 3 s.
            assert back < 3.0 + SLACK_S
            assert a.seen == [("b", True), ("b", False), ("b", True)]
        finally:
            for one in (a, b):
                await one.peers.close()
            await wire.close()

    asyncio.run(main())
