"""Listings at random, of few names, so that they overlap."""

from __future__ import annotations

from hypothesis import strategies as st

from inferway.dispatch.offers import Offer
from inferway.live.node.listing import Listing, listed
from inferway.protocol import Signature, Tensor

SIGNATURES = [
    Signature((Tensor("x", "FP32", (-1, width)),), (Tensor("y", "FP32", (-1, 2)),))
    for width in (4, 8)
]
offers = st.builds(
    Offer,
    task=st.sampled_from(["digits", "faces"]),
    variant=st.sampled_from(["tiny", "wide"]),
    node=st.just("metro"),
    accuracy=st.sampled_from([0.8, 0.9]),
    service_s=st.just(0.001),
    rtt_s=st.just(0.0),
    spare_per_s=st.sampled_from([0.0, 95.0, 100.0, 200.0]),
    path=st.just(("metro",)),
    repository=st.booleans(),
) | st.builds(
    Offer,
    task=st.sampled_from(["digits", "faces", "cars"]),
    variant=st.just("wide"),
    node=st.just("cloud"),
    accuracy=st.just(0.95),
    service_s=st.just(0.004),
    rtt_s=st.sampled_from([0.01, 0.02]),
    spare_per_s=st.sampled_from([50.0, 51.0]),
    path=st.sampled_from([("metro", "cloud"), ("metro", "isp", "cloud")]),
    repository=st.just(True),
)
signatures = st.dictionaries(
    st.sampled_from(["digits", "faces", "cars"]), st.sampled_from(SIGNATURES)
)


def _listed(some: list[Offer], known: dict[str, Signature]) -> Listing:
    return listed(some, known.get)


listings = st.builds(_listed, st.lists(offers, max_size=8), signatures)
