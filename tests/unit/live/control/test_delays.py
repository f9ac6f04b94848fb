"""What is said takes the file's time, where nodes share a machine."""

from __future__ import annotations

import asyncio

import pytest

from inferway.live.control.link import PeerLink
from inferway.live.control.peers import Peers

DELAYS = {"metro": 0.05, "cloud": 0.01}


def test_all_that_is_said_comes_later_and_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str, bytes | None, float]] = []

    def note(_: Peers, link: PeerLink, key: str, data: bytes | None) -> None:
        sent.append((link.neighbor, key, data, asyncio.get_running_loop().time()))

    monkeypatch.setattr(Peers, "_transmit", note)

    async def main() -> None:
        peers = Peers(
            "edge",
            network="test",
            listen="127.0.0.1:1",
            neighbors=dict.fromkeys(DELAYS),
            credentials=None,
            delays_s=DELAYS,
        )
        for link in peers._links.values():
            link.see("1", True)
        begun_s = asyncio.get_running_loop().time()
        for number in range(50):
            peers.send("metro", "needed", b"%d" % number)
            peers.put("metro", "floor", "1", b"%d" % number)
        peers.publish("cloud", "menu", {"1": b"last"})
        assert sent == []
        # Who asks meanwhile is told what the link has carried.
        assert peers._links["cloud"].values == {}
        async with asyncio.timeout(10):
            while len(sent) < 101:
                await asyncio.sleep(0.001)
        assert sent[0][:3] == ("cloud", "menu/1", b"last")
        assert [(key, data) for _, key, data, _ in sent[1:]] == [
            (key, b"%d" % number) for number in range(50) for key in ("needed", "floor/1")
        ]
        assert all(at_s - begun_s >= DELAYS[to] - 1e-3 for to, _, _, at_s in sent)
        with pytest.raises(KeyError):
            peers.send("far", "floor", b"")

    asyncio.run(main())
