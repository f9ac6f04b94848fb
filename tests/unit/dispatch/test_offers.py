"""What nodes tell each other that they serve, and the fleets that they make of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from offering import own_offer

from inferway.deployment.nodes import MAX_HOPS
from inferway.dispatch import Dispatcher
from inferway.network.offers import (
    Offer,
    OfferBook,
    fleet_at,
    passed_on,
    prune,
    received,
    servers_for,
)
from inferway.site.view import MAX_CLASSES

LARGE = Offer("digits", "large", "cloud", 0.99, 0.02, 0.0, 100.0, ("cloud",), True)
SMALL = Offer("digits", "small", "metro", 0.9, 0.005, 0.0, 40.0, ("metro",), False)
TINY = own_offer("edge", "digits", "tiny", 0.8, 0.002, 300.0)


def test_an_offer_goes_over_the_wire_as_it_is() -> None:
    data = msgspec.msgpack.encode([LARGE, SMALL])
    assert msgspec.msgpack.decode(data, type=list[Offer]) == [LARGE, SMALL]


def test_down_a_path_round_trips_add_up_and_the_path_grows() -> None:
    at_metro = received(LARGE, "cloud", 0.04, me="metro")
    (told,) = passed_on("metro", [], [at_metro], neighbor="edge")
    at_edge = received(told, "metro", 0.006, me="edge")
    assert at_edge.rtt_s == pytest.approx(0.046)
    assert at_edge.path == ("metro", "cloud")
    assert (at_edge.node, at_edge.repository, at_edge.service_s) == ("cloud", True, 0.02)


def test_a_node_tells_first_what_it_runs_itself() -> None:
    own, heard = passed_on("edge", [TINY], [received(SMALL, "metro", 0.006)])
    assert own == Offer("digits", "tiny", "edge", 0.8, 0.002, 0.0, 300.0, ("edge",), False)
    assert heard.path == ("edge", "metro")


def test_offers_that_are_beaten_are_left_out() -> None:
    heard = received(SMALL, "metro", 0.006)  # 11 ms for 0.9
    quick, accurate = (
        own_offer("edge", "digits", "a", 0.9, 0.011, 1.0),
        own_offer("edge", "digits", "b", 0.95, 0.0111, 1.0),
    )
    assert prune([quick], [heard]) == []
    assert prune([accurate], [heard]) == [heard]  # it is slower
    assert prune([replace(accurate, service_s=0.01)], [heard]) == []
    assert prune([replace(quick, accuracy=0.899)], [heard]) == [heard]
    assert prune([replace(quick, task="letters")], [heard]) == [heard]


def test_a_full_instance_beats_nothing() -> None:
    heard = received(SMALL, "metro", 0.006)
    full = own_offer("edge", "digits", "small", 0.9, 0.005, 0.0)
    assert prune([full], [heard]) == [heard]
    assert prune([full, replace(full, spare_per_s=1.0)], [heard]) == []


def test_the_repository_s_offers_stay() -> None:
    heard = received(LARGE, "cloud", 0.04)
    best = own_offer("edge", "digits", "large", 0.99, 0.001, 50.0)
    assert prune([best], [heard]) == [heard]
    assert prune([best], [replace(heard, repository=False)]) == []


def test_an_instance_that_takes_more_energy_beats_nothing() -> None:
    heard = replace(received(SMALL, "metro", 0.006), energy=2.0)
    own = own_offer("edge", "digits", "small", 0.9, 0.005, 50.0)
    for energy, kept in ((3.0, [heard]), (2.0, []), (1.0, []), (None, [])):
        assert prune([replace(own, energy=energy)], [heard]) == kept
    assert prune([replace(own, energy=3.0)], [replace(heard, energy=None)]) != []


def test_energy_is_told_as_it_is_from_node_to_node() -> None:
    metro = OfferBook("metro", "cloud")
    mine = replace(TINY, node="metro", path=("metro",), energy=0.3)
    assert metro.offer([mine])
    assert not metro.offer([replace(mine, spare_per_s=mine.spare_per_s + 1.0)])
    assert metro.offer([replace(mine, energy=0.4)])  # worth telling at once
    metro.heard["cloud"] = [received(replace(LARGE, energy=5.0), "cloud", 0.04)]
    metro.look(["cloud"])
    told = metro.news("edge", ["cloud"], 0.0)
    assert told is not None
    assert [(one.variant, one.energy) for one in told] == [("large", 5.0), ("tiny", 0.4)]


def test_of_several_ways_the_shortest_counts() -> None:
    long = replace(LARGE, rtt_s=0.08, path=("other", "cloud"))
    short = replace(LARGE, rtt_s=0.05, path=("metro", "isp", "cloud"))
    even = replace(short, path=("metro", "cloud"))
    assert prune([], [long, short]) == [short]
    assert prune([], [short, even]) == prune([], [even, short]) == [even]
    other = replace(long, variant="small")
    assert prune([], [long, other]) == [long, other]


def test_nothing_is_told_to_a_node_that_it_leads_back_to() -> None:
    by_other = replace(LARGE, rtt_s=0.05, path=("other", "cloud"))
    by_metro = replace(LARGE, rtt_s=0.08, path=("metro", "cloud"))
    assert passed_on("edge", [], [by_other], neighbor="cloud") == []
    # The shorter way leads back, the longer one does not.
    (told,) = passed_on("edge", [], [by_other, by_metro], neighbor="other")
    assert told.path == ("edge", "metro", "cloud")
    assert passed_on("metro", [], [by_metro], neighbor="edge") == []


def test_offers_end_after_so_many_hops() -> None:
    way = tuple(f"n{number}" for number in range(MAX_HOPS))
    far = replace(LARGE, path=(*way[:-1], "cloud"))
    assert received(far, "n0", 0.01).rtt_s == 0.01
    assert passed_on("edge", [], [far]) == []
    near = replace(LARGE, path=(*way[1:-1], "cloud"))
    (told,) = passed_on("edge", [], [near])
    assert len(received(told, "edge", 0.0).path) == MAX_HOPS
    with pytest.raises(ValueError, match=f"over {MAX_HOPS + 1} nodes, more than {MAX_HOPS}"):
        received(replace(far, path=("edge", *far.path)), "edge", 0.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"path": ()}, "by no path"),
        ({"path": ("isp", "cloud")}, "does not lead from the one to the other"),
        ({"path": ("metro", "isp")}, "does not lead from the one to the other"),
        ({"path": ("metro", "isp", "metro", "cloud")}, "by a loop"),
        ({"path": ("metro", "edge", "cloud")}, "by a loop"),
        ({"accuracy": 1.1}, "accuracy 1.1"),
        ({"accuracy": float("nan")}, "accuracy nan"),
        ({"service_s": 0.0}, "service 0 s"),
        ({"service_s": float("inf")}, "service inf s"),
        ({"rtt_s": -1.0}, "round trip -1 s"),
        ({"spare_per_s": -1.0}, "spare -1/s"),
        ({"together": -1}, "-1 in one run"),
        ({"energy": -1.0}, "energy -1 J"),
        ({"energy": float("inf")}, "energy inf J"),
        ({"energy": float("nan")}, "energy nan J"),
    ],
)
def test_offers_that_cannot_be_meant_are_refused(changes: dict[str, object], reason: str) -> None:
    offer = replace(LARGE, path=("metro", "cloud"))
    assert received(offer, "metro", 0.006, me="edge").path == ("metro", "cloud")
    with pytest.raises(ValueError, match=f"metro offers large at cloud .*{reason}"):
        received(replace(offer, **changes), "metro", 0.006, me="edge")


def test_servers_follow_what_is_under_way() -> None:
    offer = replace(SMALL, rtt_s=0.045)  # 50 ms each
    assert servers_for(offer) == 3  # 2 under way at 40/s, and one more
    assert servers_for(replace(offer, spare_per_s=41.0)) == 4
    assert servers_for(replace(offer, spare_per_s=0.0)) == 1
    assert servers_for(replace(offer, spare_per_s=1e300)) == 64
    assert servers_for(replace(offer, repository=True)) == 64


def test_where_batches_are_formed_so_many_more_may_be_under_way() -> None:
    offer = replace(SMALL, rtt_s=0.045, together=8)
    assert servers_for(offer) == 3 + 8
    assert servers_for(replace(offer, spare_per_s=0.0)) == 1 + 8
    assert servers_for(offer, 0.001) == 3 + 8
    assert servers_for(replace(offer, repository=True), 100.0) == 10 + 8
    assert servers_for(replace(offer, together=10**30)) == 1024
    # It is told as it is, from node to node.
    (told,) = passed_on("metro", [replace(TINY, node="metro", path=("metro",), together=4)], [])
    assert told.together == 4
    (further,) = passed_on("edge", [], [received(told, "metro", 0.006)])
    assert further.together == 4


def test_a_fleet_knows_what_a_request_takes_here_and_elsewhere() -> None:
    offers = [received(LARGE, "cloud", 0.04), received(replace(SMALL, energy=0.5), "metro", 0.006)]
    own = [("small", 0.9, 100.0, 1), ("tiny", 0.8, 500.0, 2)]
    # What an offer says counts more than the file, which stands in where it says nothing.
    by_file = {"small": 2.0, "tiny": 1.0, "large": 9.0}
    fleet, _ = fleet_at("digits", own, offers, 8, energies=by_file)
    assert dict(zip(fleet.variants, fleet.energy.tolist(), strict=True)) == {
        "tiny": 1.0, "small": 2.0, "small@metro": 0.5, "large@cloud": 9.0
    }  # fmt: skip
    unknown, _ = fleet_at("digits", own, offers, 8)
    assert sorted(unknown.energy.tolist()) == [0.0, 0.0, 0.0, 0.5]


def test_a_fleet_of_own_instances_and_offers() -> None:
    offers = [received(LARGE, "cloud", 0.04), received(SMALL, "metro", 0.006)]
    offers.append(replace(offers[0], task="letters"))
    own = [("small", 0.9, 100.0, 1), ("tiny", 0.8, 500.0, 2)]
    fleet, stands_for = fleet_at("digits", own, offers, 8, node="edge")
    assert fleet.variants == ("tiny", "small", "small@metro", "large@cloud")
    assert stands_for == [None, None, offers[1], offers[0]]
    np.testing.assert_allclose(1 / fleet.rate, [0.002, 0.01, 0.011, 0.06])
    assert fleet.accuracy.tolist() == [0.8, 0.9, 0.9, 0.99]
    assert fleet.count.tolist() == [2, 1, 2, 64]
    assert (fleet.buffer, fleet.task, fleet.node) == (8, "digits", "edge")
    # Policies take it as any other fleet.
    assert Dispatcher(fleet, "most-accurate-only", target=None).arrive(0.0, 0) >= 5


def test_a_fleet_may_be_of_offers_alone_and_not_of_nothing() -> None:
    fleet, stands_for = fleet_at("digits", [], [LARGE], None)
    assert (fleet.variants, stands_for) == (("large@cloud",), [LARGE])
    with pytest.raises(ValueError, match="nothing runs for task 'letters' at edge or is offered"):
        fleet_at("letters", [], [LARGE], None, node="edge")


def test_of_too_many_offers_the_repository_s_and_the_quickest_are_taken() -> None:
    many = [
        replace(SMALL, node=f"n{number}", rtt_s=0.001 * number, path=(f"n{number}",))
        for number in range(80)
    ]
    far = replace(LARGE, rtt_s=10.0)
    fleet, stands_for = fleet_at("digits", [("tiny", 0.8, 500.0, 1)], [*many, far], None)
    assert len(fleet.variants) == MAX_CLASSES
    assert stands_for[-1] is far
    assert stands_for[0] is None
    assert stands_for[1:-1] == many[: MAX_CLASSES - 2]


def test_what_may_come_bounds_what_is_under_way() -> None:
    offer = replace(LARGE, service_s=0.01, rtt_s=0.09, repository=True, spare_per_s=0.0)
    assert servers_for(offer, 0.0) == servers_for(offer, 30.0) == 8
    assert servers_for(offer, 100.0) == 20  # twice what 100/s keep under way for 0.1 s
    assert servers_for(offer, 7500.0) == 1024
    assert servers_for(replace(offer, repository=False, spare_per_s=55.0), 100.0) == 7
