"""Offers between neighbors, over links that are only a list of what was said."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from offering import own_offer
from wires import Wires

from inferway.live.node.offer_table import EXPIRES_S, NeighborOffers, OfferTable
from inferway.network.offers import REFRESH_S
from inferway.protocol import Signature, Tensor

TINY = own_offer("metro", "digits", "tiny", 0.8, 0.001, 100.0)
WIDE = own_offer("cloud", "digits", "wide", 0.95, 0.004, 50.0, repository=True)
TAKES = Signature((Tensor("x", "FP32", (-1, 4)),), (Tensor("y", "FP32", (-1, 2)),))


def ways(table: OfferTable) -> dict[str, tuple[str, ...]]:
    return {f"{one.variant}@{one.node}": one.path for one in table.offers("digits")}


async def line() -> tuple[Wires, dict[str, OfferTable], list[set[str]]]:
    """edge - metro - cloud."""
    changes: list[set[str]] = []
    wires = Wires(("edge", "metro"), ("metro", "cloud"))
    tables = {
        "edge": wires.table("edge", "metro", changes),
        "metro": wires.table("metro", "cloud"),
        "cloud": wires.table("cloud", None),
    }
    for table in tables.values():
        table.begin()
    tables["metro"].offer([TINY])
    tables["cloud"].offer([WIDE])
    wires.join("edge", "metro", "cloud")
    await wires.settle()
    return wires, tables, changes


def test_offers_come_down_with_their_ways_and_round_trips() -> None:
    async def main() -> None:
        wires, tables, changes = await line()
        assert ways(tables["edge"]) == {
            "tiny@metro": ("metro",),
            "wide@cloud": ("metro", "cloud"),
        }
        far = next(one for one in tables["edge"].offers("digits") if one.node == "cloud")
        assert far.rtt_s == pytest.approx(0.02)
        assert changes[-1] == {"digits"}
        assert tables["edge"].next_hop("cloud") == "metro"
        assert tables["edge"].next_hop("nowhere") is None
        assert all(table.degraded == "" for table in tables.values())
        # A repository relies on nobody.
        assert tables["cloud"].offers("digits") == ()
        # Whom a node relies on is not told of ways back through itself.
        assert ways(tables["metro"]) == {"wide@cloud": ("cloud",)}
        for table in tables.values():
            table.end()
        del wires

    asyncio.run(main())


def test_one_that_dies_is_forgotten_at_once_and_all_below_hear_of_it() -> None:
    async def main() -> None:
        wires, tables, changes = await line()
        changes.clear()
        wires.peers["metro"].sees("cloud", False)
        assert tables["metro"].degraded == "node metro reaches no repository: cloud does not answer"
        await wires.settle()
        assert changes == [{"digits"}]
        assert ways(tables["edge"]) == {"tiny@metro": ("metro",)}
        assert tables["edge"].degraded == "node edge reaches no repository beyond metro"
        wires.peers["metro"].sees("cloud", True)
        wires.peers["cloud"].sees("metro", True)
        await wires.settle()
        assert "wide@cloud" in ways(tables["edge"])
        assert tables["edge"].degraded == ""
        for table in tables.values():
            table.end()

    asyncio.run(main())


def test_another_path_is_taken_where_there_is_one() -> None:
    async def main() -> None:
        # A ring: edge - left - cloud - right - edge.
        wires = Wires(("edge", "left"), ("left", "cloud"), ("cloud", "right"), ("right", "edge"))
        tables = {
            "edge": wires.table("edge", "left"),
            "left": wires.table("left", "cloud"),
            "right": wires.table("right", "cloud"),
            "cloud": wires.table("cloud", None),
        }
        for table in tables.values():
            table.begin()
        tables["cloud"].offer([WIDE])
        wires.join(*tables)
        await wires.settle()
        assert ways(tables["edge"]) == {"wide@cloud": ("left", "cloud")}
        wires.peers["edge"].sees("left", False)
        wires.peers["left"].sees("edge", False)
        assert ways(tables["edge"]) == {"wide@cloud": ("right", "cloud")}
        # And around the link from left to the cloud, which goes next, there is no way for left.
        wires.peers["left"].sees("cloud", False)
        await wires.settle()
        assert ways(tables["left"]) == {}
        # Over edge and right there is, once edge answers again.
        wires.peers["edge"].sees("left", True)
        wires.peers["left"].sees("edge", True)
        await wires.settle()
        assert ways(tables["left"]) == {"wide@cloud": ("edge", "right", "cloud")}
        assert ways(tables["edge"]) == {"wide@cloud": ("right", "cloud")}
        for table in tables.values():
            table.end()

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
        tables = {
            node: wires.table(node, upstream.get(node, "cloud")) for node in (*upstream, "away")
        }
        tables["cloud"] = wires.table("cloud", None)
        for table in tables.values():
            table.begin()
        tables["cloud"].offer([WIDE])
        wires.join(*tables)
        await wires.settle()
        wires.peers["left"].sees("cloud", False)
        wires.peers["cloud"].sees("left", False)
        await wires.settle()
        left = tables["left"]
        assert left.next_hop("cloud") == "edge"
        assert left.next_hop("cloud", {b"edge"}) == "far"
        # Nor by one that would go back there.
        assert left.next_hop("cloud", {b"right"}) == "far"
        assert left.next_hop("cloud", {b"edge", b"away"}) == "edge"
        assert left.next_hop("nowhere", {b"edge"}) is None
        for table in tables.values():
            table.end()

    asyncio.run(main())


def test_one_that_answers_no_requests_is_no_way_though_it_offers_much() -> None:
    async def main() -> None:
        wires = Wires(("edge", "left"), ("left", "cloud"), ("cloud", "right"), ("right", "edge"))
        tables = {
            "edge": wires.table("edge", "left"),
            "left": wires.table("left", "cloud"),
            "right": wires.table("right", "cloud"),
            "cloud": wires.table("cloud", None),
        }
        for table in tables.values():
            table.begin()
        tables["cloud"].offer([WIDE])
        wires.join(*tables)
        await wires.settle()
        tables["edge"].reach("left", False)
        assert ways(tables["edge"]) == {"wide@cloud": ("right", "cloud")}
        assert tables["edge"].next_hop("cloud") == "right"
        assert tables["edge"].next_hop("left") is None
        assert tables["edge"].degraded == ""
        tables["edge"].reach("right", False)
        assert ways(tables["edge"]) == {}
        assert tables["edge"].degraded == "node edge reaches no repository: left does not answer"
        # Nothing has to come for it to be used again.
        tables["edge"].reach("left", True)
        assert ways(tables["edge"]) == {"wide@cloud": ("left", "cloud")}
        for table in tables.values():
            table.end()

    asyncio.run(main())


def test_what_a_task_takes_is_told_along() -> None:
    async def main() -> None:
        changes: list[set[str]] = []
        wires = Wires(("edge", "metro"), ("metro", "cloud"))
        known: dict[str, Signature] = {}
        tables = {
            "edge": wires.table("edge", "metro", changes),
            "metro": wires.table("metro", "cloud"),
            "cloud": wires.table("cloud", None, signature=known.get),
        }
        for table in tables.values():
            table.begin()
        tables["cloud"].offer([WIDE])
        wires.join("edge", "metro", "cloud")
        await wires.settle()
        assert tables["edge"].offers("digits")
        assert tables["edge"].signature("digits") is None
        # It is loaded there only now; the offers are the same as before.
        known["digits"] = TAKES
        changes.clear()
        for _ in range(2):
            wires.time_s += REFRESH_S
            for table in tables.values():
                table._tell()
            await wires.settle()
        assert tables["edge"].signature("digits") == TAKES
        assert changes == [{"digits"}]
        for table in tables.values():
            table.end()

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
        edge = wires.table("edge", "cloud")
        cloud = wires.table("cloud", None, signature=known.get)
        for table in (edge, cloud):
            table.begin()
        cloud.offer([WIDE])
        wires.join("edge", "cloud")
        await wires.settle()
        assert edge.offers("digits")
        assert edge.signature("digits") is None
        assert edge.refused["cloud", "no signature"] >= 1
        for table in (edge, cloud):
            table.end()

    asyncio.run(main())


def test_a_node_that_stumbles_goes_on_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        monkeypatch.setattr("inferway.live.node.offer_table.REFRESH_S", 0.02)
        wires = Wires(("edge", "cloud"))
        cloud, sound = wires.table("cloud", None), OfferTable._look
        wires.peers["cloud"].alive.add("edge")

        def stumbling(table: OfferTable) -> None:
            if not reported:
                raise ZeroDivisionError
            sound(table)

        monkeypatch.setattr(OfferTable, "_look", stumbling)
        cloud.begin()
        async with asyncio.timeout(10):
            while not wires.mail:
                await asyncio.sleep(0.01)
        assert [type(error) for error in reported] == [ZeroDivisionError]
        cloud.end()

    asyncio.run(main())


def test_larger_batches_are_told_at_once_and_change_what_it_goes_by() -> None:
    async def main() -> None:
        wires, tables, changes = await line()
        tables["metro"].offer([TINY])
        await wires.settle()
        changes.clear()
        tables["metro"].offer([replace(TINY, together=4)])
        await wires.settle()
        assert changes == [{"digits"}]
        assert [one.together for one in tables["edge"].offers("digits") if one.node == "metro"] == [
            4
        ]
        for table in tables.values():
            table.end()

    asyncio.run(main())


def test_offers_expire_and_hold_again_when_it_is_said_that_they_do() -> None:
    async def main() -> None:
        wires, tables, changes = await line()
        before = ways(tables["edge"])
        for node in ("metro", "cloud"):
            tables[node].end()
        wires.time_s += EXPIRES_S + 1.0
        await asyncio.sleep(REFRESH_S / 2 + 0.1)
        assert ways(tables["edge"]) == {}
        assert tables["edge"].degraded == "node edge reaches no repository beyond metro"
        changes.clear()
        wires.peers["edge"].hears("metro", "", b"")
        assert ways(tables["edge"]) == before
        assert changes == [{"digits"}]
        tables["edge"].end()

    asyncio.run(main())


def test_what_has_ended_tells_nothing_more() -> None:
    async def main() -> None:
        wires = Wires(("edge", "metro"))
        wires.table("edge", "metro")
        table = wires.table("metro", None)
        wires.peers["metro"].sees("edge", True)
        table.begin()
        table.offer([TINY])
        await asyncio.sleep(0.0)  # a refresh tells what was gathered
        assert wires.said("metro", "edge")
        wires.mail.clear()
        table.offer([WIDE])
        table.end()
        await wires.told()
        assert wires.mail == []

    asyncio.run(main())


def test_small_changes_wait_for_the_next_refresh() -> None:
    async def main() -> None:
        wires, tables, _ = await line()
        tables["metro"].offer([replace(TINY, spare_per_s=95.0)])
        await wires.told()
        assert wires.mail == []
        wires.time_s += REFRESH_S
        tables["metro"]._tell()
        assert wires.said("metro", "edge").keys() == {"loads/0"}
        await wires.settle()
        tables["metro"].offer([replace(TINY, spare_per_s=20.0)])
        await wires.told()
        assert wires.said("metro", "edge").keys() == {"loads/0"}
        await wires.settle()
        assert [one.spare_per_s for one in tables["edge"].offers("digits")] == [20.0, 50.0]
        for table in tables.values():
            table.end()

    asyncio.run(main())


def test_only_changes_are_told_and_then_that_nothing_changes() -> None:
    async def main() -> None:
        wires, tables, _ = await line()
        assert wires.peers["metro"].values["edge"].keys() == {
            *("offers/0", "loads/0", "offers/1", "loads/1", "takes")
        }
        tables["metro"].offer([TINY, replace(TINY, variant="other")])
        await wires.told()
        assert wires.said("metro", "edge").keys() == {"offers/2", "loads/2"}
        await wires.settle()
        wires.time_s += REFRESH_S
        tables["metro"]._tell()
        assert wires.said("metro", "edge") == {"": b""}
        tables["metro"].offer([])
        await wires.told()
        gone = {f"{part}/{number}": None for part in ("offers", "loads") for number in (0, 2)}
        assert wires.said("metro", "edge") == {"": b""} | gone
        await wires.settle()
        assert ways(tables["edge"]).keys() == {"wide@cloud"}
        tables["metro"].leave()
        await wires.settle()
        assert wires.peers["metro"].values == {"edge": {}, "cloud": {}}
        assert ways(tables["edge"]) == {}
        for table in tables.values():
            table.end()

    asyncio.run(main())


def test_who_comes_late_or_again_goes_by_what_is_current() -> None:
    async def main() -> None:
        wires, tables, _ = await line()
        edge = wires.peers["edge"]
        edge.sees("metro", False)
        wires.peers["metro"].sees("edge", False)
        assert ways(tables["edge"]) == {}
        tables["metro"].offer([replace(TINY, variant="other")])
        await wires.told()
        assert wires.said("metro", "edge") == {}
        edge.sees("metro", True)
        await asyncio.sleep(0.0)
        assert ways(tables["edge"]).keys() == {"other@metro", "wide@cloud"}
        for table in tables.values():
            table.end()

    asyncio.run(main())


FIXED = ["digits", "wide", "cloud", 0.95, 0.0, 0.01, 0.0, ["metro", "cloud"], True, 0]


def read(**values: Any) -> tuple[NeighborOffers, Counter[tuple[str, str]]]:
    """Read values, each `_` in their names for a slash."""
    refused: Counter[tuple[str, str]] = Counter()
    reader = NeighborOffers("edge", "metro", 0.01, refused)
    for name, value in values.items():
        reader.take(name.replace("_", "/"), read_as(value))
    reader.put_together()
    return reader, refused


def test_an_offer_is_one_once_its_load_is_known() -> None:
    reader, refused = read(offers_1=FIXED, loads_2=[0.1, 5.0])
    assert reader.offers == ()
    reader.take("loads/1", msgspec.msgpack.encode([0.1, 5.0]))
    reader.put_together()
    (offer,) = reader.offers
    assert (offer.service_s, offer.spare_per_s, offer.rtt_s) == (0.1, 5.0, 0.02)
    assert offer.energy is None  # as of a release that knew none
    assert reader.ways == {"cloud": {(0.02, ("metro", "cloud"))}}
    reader.take("offers/1", None)
    reader.put_together()
    assert (reader.offers, reader.ways) == ((), {})
    assert not refused


def test_fields_of_a_later_release_are_left_aside() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 4], "layout": "NHWC"}
    signature = {"inputs": [tensor], "outputs": [tensor], "states": []}
    reader, refused = read(
        offers_1=[*FIXED, 1.5, "later", 7],
        loads_1=[0.1, 5.0, 3],
        takes=[[signature, ["digits"], 1]],
    )
    (offer,) = reader.offers
    assert (offer.service_s, offer.spare_per_s, offer.energy) == (0.1, 5.0, 1.5)
    assert reader.takes["digits"].inputs == (Tensor("x", "FP32", (-1, 4)),)
    assert not refused


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("offers_1", b"", "no menu"),
        ("offers_1", b"\xff garbage", "no menu"),
        ("offers_1", b"\x91" * 50_000, "no menu"),
        ("offers_1", FIXED[:-2], "no menu"),
        ("offers_1", [*FIXED[:3], "much", *FIXED[4:]], "no menu"),
        ("loads_1", [0.1], "no menu"),
        ("takes", [["x", ["digits"]]], "no menu"),
        ("rumors_1", [0.1, 5.0], "no menu"),
        ("loads_1", [0.0, 5.0], "impossible"),
        ("loads_1", [0.1, -5.0], "impossible"),
        ("loads_1", [0.1, float("nan")], "impossible"),
        ("offers_1", [*FIXED, "much"], "no menu"),
        ("offers_1", [*FIXED, -1.0], "impossible"),
        ("offers_1", [*FIXED[:7], ["metro", "edge", "cloud"], True, 0], "impossible"),
        ("offers_1", [*FIXED[:7], ["isp", "cloud"], True, 0], "impossible"),
    ],
)
def test_values_that_make_no_sense_are_counted(name: str, value: Any, reason: str) -> None:
    sound = {"offers_1": FIXED, "loads_1": [0.1, 5.0], "offers_0": FIXED, "loads_0": [0.1, 6.0]}
    reader, refused = read(**sound)
    reader.take(name.replace("_", "/"), read_as(value))
    reader.put_together()
    assert refused == {("metro", reason): 1}
    # The same at the same node counts once, and what it is heard with hurts no other.
    assert len(reader.offers) == 1


def read_as(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
