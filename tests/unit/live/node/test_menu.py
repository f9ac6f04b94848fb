"""Offers between neighbors, over a plane that is only a list of letters."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from inferway.dispatch.offers import Own
from inferway.live.node.heard import EXPIRES_S
from inferway.live.node.listing import Change
from inferway.live.node.menu import MENU, Menu
from inferway.live.node.telling import Ask, Letter, Same, Tell, packed, unpacked
from inferway.live.node.told import REFRESH_S
from inferway.protocol import Signature, Tensor

TINY = Own("digits", "tiny", 0.8, 0.001, 100.0)
WIDE = Own("digits", "wide", 0.95, 0.004, 50.0, repository=True)


class Wires:
    """Joins menus; letters wait until they are carried."""

    def __init__(self, *links: tuple[str, str]) -> None:
        self.links = links
        self.planes: dict[str, Plane] = {}
        self.mail: list[tuple[str, str, str, bytes]] = []
        self.time_s = 100.0

    def menu(
        self,
        node: str,
        upstream: str | None,
        told: list[set[str]] | None = None,
        signature: Callable[[str], Signature | None] = lambda task: None,
    ) -> Menu:
        ends = [pair for pair in self.links if node in pair]
        links = {a if b == node else b: 0.01 for a, b in ends}
        self.planes[node] = plane = Plane(self, node)
        return Menu(
            node,
            plane,  # type: ignore[arg-type]
            links_s=links,
            upstream=upstream,
            changed=(told if told is not None else []).append,
            signature=signature,
            now=lambda: self.time_s,
        )

    def join(self, *nodes: str) -> None:
        for one, other in self.links:
            if one in nodes and other in nodes:
                self.planes[one].sees(other, True)
                self.planes[other].sees(one, True)

    def letters(self, sender: str, to: str) -> list[Letter]:
        """What is on its way."""
        return [unpacked(data) for one, other, _, data in self.mail if (one, other) == (sender, to)]

    async def told(self) -> None:
        """Wait until what is to be told is on its way."""
        await asyncio.sleep(0.03)

    async def settle(self) -> None:
        """Carry letters until nothing is told any more."""
        for _ in range(50):
            await asyncio.sleep(0.03)
            mail, self.mail = self.mail, []
            for sender, to, kind, data in mail:
                if to in self.planes[sender].alive:
                    for taker in self.planes[to].takers:
                        taker(sender, kind, data)
            if not mail:
                return
        raise AssertionError("they never stop")


class Plane:
    def __init__(self, wires: Wires, node: str) -> None:
        self.wires, self.node = wires, node
        self.alive: set[str] = set()
        self.takers: list[Callable[[str, str, bytes], None]] = []
        self.watchers: list[Callable[[str, bool], None]] = []
        self.sent: list[str] = []
        self.full = False

    def on_letter(self, taker: Any) -> None:
        self.takers.append(taker)

    def on_neighbor(self, watcher: Any) -> None:
        self.watchers.append(watcher)

    def send(self, neighbor: str, kind: str, data: bytes) -> bool:
        if self.full:
            return False
        self.sent.append(neighbor)
        self.wires.mail.append((self.node, neighbor, kind, data))
        return True

    def sees(self, neighbor: str, alive: bool) -> None:
        (self.alive.add if alive else self.alive.discard)(neighbor)
        for watcher in self.watchers:
            watcher(neighbor, alive)


def ways(menu: Menu) -> dict[str, tuple[str, ...]]:
    return {f"{one.variant}@{one.node}": one.path for one in menu.offers("digits")}


async def line() -> tuple[Wires, dict[str, Menu], list[set[str]]]:
    """edge - metro - cloud."""
    told: list[set[str]] = []
    wires = Wires(("edge", "metro"), ("metro", "cloud"))
    menus = {
        "edge": wires.menu("edge", "metro", told),
        "metro": wires.menu("metro", "cloud"),
        "cloud": wires.menu("cloud", None),
    }
    for menu in menus.values():
        menu.begin()
    menus["metro"].offer([TINY])
    menus["cloud"].offer([WIDE])
    wires.join("edge", "metro", "cloud")
    await wires.settle()
    return wires, menus, told


def test_offers_come_down_with_their_ways_and_round_trips() -> None:
    async def main() -> None:
        wires, menus, told = await line()
        assert ways(menus["edge"]) == {
            "tiny@metro": ("metro",),
            "wide@cloud": ("metro", "cloud"),
        }
        far = next(one for one in menus["edge"].offers("digits") if one.node == "cloud")
        assert far.rtt_s == pytest.approx(0.02)
        assert told[-1] == {"digits"}
        assert menus["edge"].next_hop("cloud") == "metro"
        assert menus["edge"].next_hop("nowhere") is None
        assert all(menu.degraded == "" for menu in menus.values())
        # A repository relies on nobody.
        assert menus["cloud"].offers("digits") == ()
        # Whom a node relies on is not told of ways back through itself.
        assert ways(menus["metro"]) == {"wide@cloud": ("cloud",)}
        for menu in menus.values():
            menu.end()
        del wires

    asyncio.run(main())


def test_one_that_dies_is_forgotten_at_once_and_all_below_hear_of_it() -> None:
    async def main() -> None:
        wires, menus, told = await line()
        told.clear()
        wires.planes["metro"].sees("cloud", False)
        assert menus["metro"].degraded == "node metro reaches no repository: cloud does not answer"
        await wires.settle()
        assert told == [{"digits"}]
        assert ways(menus["edge"]) == {"tiny@metro": ("metro",)}
        assert menus["edge"].degraded == "node edge reaches no repository beyond metro"
        wires.planes["metro"].sees("cloud", True)
        wires.planes["cloud"].sees("metro", True)
        await wires.settle()
        assert "wide@cloud" in ways(menus["edge"])
        assert menus["edge"].degraded == ""
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_another_path_is_taken_where_there_is_one() -> None:
    async def main() -> None:
        # A ring: edge - left - cloud - right - edge.
        wires = Wires(("edge", "left"), ("left", "cloud"), ("cloud", "right"), ("right", "edge"))
        menus = {
            "edge": wires.menu("edge", "left"),
            "left": wires.menu("left", "cloud"),
            "right": wires.menu("right", "cloud"),
            "cloud": wires.menu("cloud", None),
        }
        for menu in menus.values():
            menu.begin()
        menus["cloud"].offer([WIDE])
        wires.join(*menus)
        await wires.settle()
        assert ways(menus["edge"]) == {"wide@cloud": ("left", "cloud")}
        wires.planes["edge"].sees("left", False)
        wires.planes["left"].sees("edge", False)
        assert ways(menus["edge"]) == {"wide@cloud": ("right", "cloud")}
        # And around the link from left to the cloud, which goes next, there is no way for left.
        wires.planes["left"].sees("cloud", False)
        await wires.settle()
        assert ways(menus["left"]) == {}
        # Over edge and right there is, once edge answers again.
        wires.planes["edge"].sees("left", True)
        wires.planes["left"].sees("edge", True)
        await wires.settle()
        assert ways(menus["left"]) == {"wide@cloud": ("edge", "right", "cloud")}
        assert ways(menus["edge"]) == {"wide@cloud": ("right", "cloud")}
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_a_request_goes_by_no_neighbor_that_it_has_come_through_where_another_leads_on() -> None:
    async def main() -> None:
        # Around the link from left to the cloud there are two ways: by edge and right, and by far
        # and away.
        wires = Wires(
            *(("edge", "left"), ("left", "cloud"), ("cloud", "right"), ("right", "edge")),
            *(("left", "far"), ("far", "away"), ("away", "cloud")),
        )
        upstream = {"edge": "left", "left": "cloud", "right": "cloud", "far": "away"}
        menus = {
            node: wires.menu(node, upstream.get(node, "cloud")) for node in (*upstream, "away")
        }
        menus["cloud"] = wires.menu("cloud", None)
        for menu in menus.values():
            menu.begin()
        menus["cloud"].offer([WIDE])
        wires.join(*menus)
        await wires.settle()
        wires.planes["left"].sees("cloud", False)
        wires.planes["cloud"].sees("left", False)
        await wires.settle()
        left = menus["left"]
        assert left.next_hop("cloud") == "edge"
        assert left.next_hop("cloud", {b"edge"}) == "far"
        # Nor by one that would go back there.
        assert left.next_hop("cloud", {b"right"}) == "far"
        assert left.next_hop("cloud", {b"edge", b"away"}) == "edge"
        assert left.next_hop("nowhere", {b"edge"}) is None
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_one_that_answers_no_requests_is_no_way_though_it_writes_letters() -> None:
    async def main() -> None:
        wires = Wires(("edge", "left"), ("left", "cloud"), ("cloud", "right"), ("right", "edge"))
        menus = {
            "edge": wires.menu("edge", "left"),
            "left": wires.menu("left", "cloud"),
            "right": wires.menu("right", "cloud"),
            "cloud": wires.menu("cloud", None),
        }
        for menu in menus.values():
            menu.begin()
        menus["cloud"].offer([WIDE])
        wires.join(*menus)
        await wires.settle()
        menus["edge"].reach("left", False)
        assert ways(menus["edge"]) == {"wide@cloud": ("right", "cloud")}
        assert menus["edge"].next_hop("cloud") == "right"
        assert menus["edge"].next_hop("left") is None
        assert menus["edge"].degraded == ""
        menus["edge"].reach("right", False)
        assert ways(menus["edge"]) == {}
        assert menus["edge"].degraded == "node edge reaches no repository: left does not answer"
        # No letter has to come for it to be used again.
        menus["edge"].reach("left", True)
        assert ways(menus["edge"]) == {"wide@cloud": ("left", "cloud")}
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_offers_expire_and_garbage_is_counted() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        edge = wires.planes["edge"]
        whole = packed(Tell(1, 0, 7, 5, 9, Change()))
        bomb = zlib.compress(bytes(32 << 20))
        for data in (b"", b"\xff garbage", zlib.compress(b"\x96\x00"), whole[:-3], bomb):
            edge.takers[0]("metro", MENU, data)
        assert menus["edge"].refused["metro", "no menu"] == 5
        edge.takers[0]("metro", MENU, whole)
        assert menus["edge"].refused["metro", "out of order"] == 1
        assert "wide@cloud" in ways(menus["edge"])
        for menu in (menus["metro"], menus["cloud"]):
            menu.end()
        wires.time_s += EXPIRES_S + 1.0
        await asyncio.sleep(REFRESH_S / 2 + 0.1)
        assert ways(menus["edge"]) == {}
        assert menus["edge"].degraded == "node edge reaches no repository beyond metro"
        menus["edge"].end()

    asyncio.run(main())


def test_what_has_ended_tells_nothing_more() -> None:
    async def main() -> None:
        wires = Wires(("edge", "metro"))
        menu = wires.menu("metro", None)
        plane = wires.planes["metro"]
        plane.sees("edge", True)
        menu.begin()
        menu.offer([TINY])
        await asyncio.sleep(0.0)  # a refresh tells what was gathered
        assert "edge" in plane.sent
        plane.sent.clear()
        menu.offer([WIDE])
        menu.end()
        await wires.told()
        assert plane.sent == []

    asyncio.run(main())


def test_small_changes_wait_for_the_next_refresh() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        metro = wires.planes["metro"]
        metro.sent.clear()
        menus["metro"].offer([TINY._replace(spare_per_s=95.0)])
        await wires.settle()
        assert metro.sent == []
        menus["metro"].offer([TINY._replace(spare_per_s=20.0)])
        await wires.settle()
        assert "edge" in metro.sent
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_what_a_task_takes_is_told_along() -> None:
    takes = Signature((Tensor("x", "FP32", (-1, 4)),), (Tensor("y", "FP32", (-1, 2)),))

    async def main() -> None:
        told: list[set[str]] = []
        wires = Wires(("edge", "metro"), ("metro", "cloud"))
        known: dict[str, Signature] = {}
        menus = {
            "edge": wires.menu("edge", "metro", told),
            "metro": wires.menu("metro", "cloud"),
            "cloud": wires.menu("cloud", None, signature=known.get),
        }
        for menu in menus.values():
            menu.begin()
        menus["cloud"].offer([WIDE])
        wires.join("edge", "metro", "cloud")
        await wires.settle()
        assert menus["edge"].offers("digits")
        assert menus["edge"].signature("digits") is None
        # It is loaded there only now; the offers are the same as before.
        known["digits"] = takes
        told.clear()
        for _ in range(2):
            wires.time_s += REFRESH_S
            for menu in menus.values():
                menu._tell()
            await wires.settle()
        assert menus["edge"].signature("digits") == takes
        assert told == [{"digits"}]
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        Tensor("x", "FP7", (-1, 4)),
        Tensor("x", "FP32", ()),
        Tensor("x", "FP32", (3, 4)),
        Tensor("x", "FP32", (-1, -4)),
    ],
)
def test_signatures_that_are_none_are_refused(wrong: Tensor) -> None:
    async def main() -> None:
        wires = Wires(("edge", "cloud"))
        known = {"digits": Signature((wrong,), (Tensor("y", "FP32", (-1, 2)),))}
        edge = wires.menu("edge", "cloud")
        cloud = wires.menu("cloud", None, signature=known.get)
        for menu in (edge, cloud):
            menu.begin()
        cloud.offer([WIDE])
        wires.join("edge", "cloud")
        await wires.settle()
        assert edge.offers("digits")
        assert edge.signature("digits") is None
        assert edge.refused["cloud", "no signature"] >= 1
        for menu in (edge, cloud):
            menu.end()

    asyncio.run(main())


def test_a_node_that_stumbles_goes_on_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        monkeypatch.setattr("inferway.live.node.menu.REFRESH_S", 0.02)
        wires = Wires(("edge", "cloud"))
        cloud, sound = wires.menu("cloud", None), Menu._look
        wires.planes["cloud"].alive.add("edge")

        def stumbling(menu: Menu) -> None:
            if not reported:
                raise ZeroDivisionError
            sound(menu)

        monkeypatch.setattr(Menu, "_look", stumbling)
        cloud.begin()
        async with asyncio.timeout(10):
            while not wires.mail:
                await asyncio.sleep(0.01)
        assert [type(error) for error in reported] == [ZeroDivisionError]
        cloud.end()

    asyncio.run(main())


def test_only_changes_are_told_and_then_that_nothing_changes() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        busy = TINY._replace(spare_per_s=20.0)
        menus["metro"].offer([busy])
        await wires.told()
        (letter,) = wires.letters("metro", "edge")
        assert isinstance(letter, Tell)
        assert letter.since
        assert letter.change == Change(rates=((0, 20.0),))
        await wires.settle()
        wires.time_s += REFRESH_S
        menus["metro"]._tell()
        assert wires.letters("metro", "edge") == [Same(letter.run, letter.serial)]
        menus["metro"].leave()
        await wires.told()
        *_, letter = wires.letters("metro", "edge")
        assert isinstance(letter, Tell)
        assert letter.change == Change(gone=(0, 1))
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_what_is_lost_is_asked_for_and_till_then_what_was_heard_holds() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        before = ways(menus["edge"])
        menus["metro"].offer([])
        await wires.told()
        wires.mail.clear()
        wires.time_s += REFRESH_S
        menus["metro"]._tell()
        for sender, to, kind, data in wires.mail:
            if (sender, to) == ("metro", "edge"):
                wires.planes["edge"].takers[0]("metro", kind, data)
                # However often it hears that it has missed something.
                wires.planes["edge"].takers[0]("metro", kind, data)
        assert wires.letters("edge", "metro") == [Ask()]
        assert menus["edge"].refused["metro", "missed"] == 2
        assert ways(menus["edge"]) == before
        await wires.settle()
        assert ways(menus["edge"]) == {"wide@cloud": ("metro", "cloud")}
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_however_often_it_is_asked_all_is_told_once_at_a_time() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        for _ in range(1000):
            wires.planes["metro"].takers[0]("edge", MENU, packed(Ask()))
        await wires.told()
        (letter,) = wires.letters("metro", "edge")
        assert isinstance(letter, Tell)
        assert letter.since == 0
        assert len(letter.change.offers) == 2
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_what_was_not_sent_is_told_in_the_next_letter() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        metro = wires.planes["metro"]
        metro.full = True
        menus["metro"].offer([])
        await wires.told()
        metro.full = False
        menus["metro"]._tell()
        (letter,) = wires.letters("metro", "edge")
        assert isinstance(letter, Tell)
        assert letter.since == 0
        await wires.settle()
        assert ways(menus["edge"]) == {"wide@cloud": ("metro", "cloud")}
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_a_neighbor_that_restarts_unseen_is_not_taken_for_what_it_was() -> None:
    async def main() -> None:
        wires, menus, _ = await line()
        menus["metro"].end()
        again = menus["metro"] = wires.menu("metro", "cloud")
        wires.planes["metro"].alive |= {"edge", "cloud"}
        again.offer([TINY._replace(variant="other")])
        again._tell()
        wires.mail.clear()
        # Its serials are as before, and its first letter is lost.
        again.begin()
        wires.time_s += REFRESH_S
        again._tell()
        await wires.settle()
        assert ways(menus["edge"]).keys() >= {"other@metro"}
        assert "tiny@metro" not in ways(menus["edge"])
        for menu in menus.values():
            menu.end()

    asyncio.run(main())


def test_larger_batches_are_told_at_once_and_change_what_it_goes_by() -> None:
    async def main() -> None:
        wires, menus, told = await line()
        menus["metro"].offer([TINY])
        await wires.settle()
        told.clear()
        menus["metro"].offer([TINY._replace(together=4)])
        await wires.settle()
        assert told == [{"digits"}]
        assert [one.together for one in menus["edge"].offers("digits") if one.node == "metro"] == [
            4
        ]
        for menu in menus.values():
            menu.end()

    asyncio.run(main())
