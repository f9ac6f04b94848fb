"""Letters that take the file's time, where nodes share a machine."""

from __future__ import annotations

import asyncio

import pytest

from inferway.live.control.control import ControlPlane
from inferway.live.control.late import LatePlane

LINKS = {"metro": 0.1, "cloud": 0.02}


def test_letters_come_half_a_round_trip_later_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, bytes, float]] = []

    def note(plane: ControlPlane, neighbor: str, kind: str, data: bytes) -> bool:
        del plane, kind
        sent.append((neighbor, data, asyncio.get_running_loop().time()))
        return True

    monkeypatch.setattr(ControlPlane, "send", note)

    async def main() -> None:
        plane = LatePlane(
            "edge",
            links_s=LINKS,
            network="test",
            listen="127.0.0.1:1",
            neighbors=dict.fromkeys(LINKS),
            credentials=None,
        )
        begun_s = asyncio.get_running_loop().time()
        for number in range(50):
            # Nobody lives yet: that is said at once.
            assert plane.send("metro", "floor", b"%d" % number) is False
        plane.send("cloud", "floor", b"last")
        assert sent == []
        async with asyncio.timeout(10):
            while len(sent) < 51:
                await asyncio.sleep(0.001)
        assert sent[0][:2] == ("cloud", b"last")
        assert [data for _, data, _ in sent[1:]] == [b"%d" % number for number in range(50)]
        assert all(at_s - begun_s >= LINKS[to] / 2 - 1e-3 for to, _, at_s in sent)
        with pytest.raises(ValueError, match="far is no neighbor of edge"):
            plane.send("far", "floor", b"")

    asyncio.run(main())
