"""What a node counts of requests: those of its clients, of neighbors, and those that only pass."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.live.node.placement import LocalDemand
from inferway.live.request import InferRequest, Outcome

TYPES = {("digits", "edge"): 3, ("digits", "metro"): 4}


class Exchange:
    def __init__(self, path: bytes) -> None:
        self.path = path


def request(
    outcome: Outcome = Outcome.ANSWERED,
    *,
    variant: str = "mini",
    node: str = "metro",
    rows: int = 1,
    path: bytes | None = b"",
) -> InferRequest:
    made = InferRequest({}, rows, lambda request: None)
    made.outcome, made.variant, made.node = outcome, variant, node
    made.raw = None if path is None else Exchange(path)
    return made


@pytest.fixture
def demand() -> LocalDemand:
    return LocalDemand("metro", TYPES)


def test_a_client_s_request_arrives_and_is_served_by_its_rows(demand: LocalDemand) -> None:
    demand.ended("digits", request(rows=8))
    assert (demand.arrived, demand.served, demand.forwarded) == (8, 8, 0)
    assert demand.for_clients == {("digits", "mini"): 8}
    assert demand.cut() == ({4: 8.0}, {4: 8.0}, {(4, "mini"): 8.0})
    # The next slot begins anew; totals go on.
    assert demand.cut() == ({}, {}, {})
    assert demand.arrived == 8


def test_what_another_node_answered_was_forwarded(demand: LocalDemand) -> None:
    demand.ended("digits", request(variant="large", node="cloud", rows=2))
    assert (demand.arrived, demand.forwarded, demand.served) == (2, 2, 0)
    assert not demand.for_clients
    assert demand.cut() == ({4: 2.0}, {4: 2.0}, {})


@pytest.mark.parametrize("first_node", ["metro", "cloud"])
def test_a_first_answer_that_was_not_sent_has_taken_time_where_it_was_run(
    demand: LocalDemand, first_node: str
) -> None:
    asked = request(variant="large", node="cloud", rows=2)
    asked.escalated_from, asked.first_node = "mini", first_node
    demand.ended("digits", asked)
    here = {("digits", "mini"): 2} if first_node == "metro" else {}
    assert demand.for_clients == here
    # What placement counts are answers.
    assert (demand.arrived, demand.forwarded, demand.served) == (2, 2, 0)
    assert demand.cut() == ({4: 2.0}, {4: 2.0}, {})


@pytest.mark.parametrize(
    "outcome", [outcome for outcome in Outcome if outcome is not Outcome.ANSWERED]
)
def test_what_is_not_answered_has_arrived_all_the_same(
    demand: LocalDemand, outcome: Outcome
) -> None:
    demand.ended("digits", request(outcome, rows=3))
    assert (demand.arrived, demand.failed, demand.forwarded, demand.served) == (3, 3, 0, 0)
    assert demand.cut() == ({4: 3.0}, {4: 3.0}, {})


def test_a_neighbor_s_request_counts_once_for_where_it_entered(demand: LocalDemand) -> None:
    demand.ended("digits", request(rows=8, path=b"edge"))
    assert (demand.arrived, demand.served, demand.passed) == (0, 8, 0)
    assert not demand.for_clients
    # As many reached as were served: nothing was passed on.
    assert demand.cut() == ({}, {3: 8.0}, {(3, "mini"): 8.0})


def test_what_only_passes_counts_one_row(demand: LocalDemand) -> None:
    demand.came("digits", "edge")
    assert (demand.passed, demand.arrived, demand.served) == (1, 0, 0)
    assert demand.cut() == ({}, {3: 1.0}, {})


def test_names_of_entries_are_read_as_headers_have_them() -> None:
    demand = LocalDemand("metro", {("digits", "a,b ü"): 7})
    demand.ended("digits", request(path=b"a%2Cb%20%C3%BC,edge"))
    assert demand.cut()[1] == {7: 1.0}


@pytest.mark.parametrize("path", [b"", b"nowhere", None])
def test_what_is_of_no_type_is_served_and_not_measured(path: Any) -> None:
    demand = LocalDemand("cloud", TYPES)
    demand.ended("digits", request(path=path, node="cloud"))
    demand.came("digits", "nowhere")
    assert demand.served == 1
    assert demand.cut() == ({}, {}, {})


def test_what_requests_took_here_is_added_up_by_variant(demand: LocalDemand) -> None:
    def ran(wait_s: float, service_s: float, members: int = 0, **more: Any) -> InferRequest:
        made = request(**more)
        made.received_s, made.started_s = 10.0, 10.0 + wait_s
        made.service_s, made.together = service_s, (members, members)
        return made

    demand.ended("digits", ran(0.5, 0.25))
    demand.ended("digits", ran(0.25, 0.5, 4, path=b"edge"))  # a neighbor's, in a batch
    demand.ended("digits", ran(0.0, 1.0, variant="large"))
    # These say nothing of a copy here.
    demand.ended("digits", ran(1.0, 1.0, node="cloud"))
    demand.ended("digits", ran(1.0, 1.0, outcome=Outcome.FAILED))
    for name, value in (("escalated_from", "large"), ("moved", True), ("started_s", 0.0)):
        one = ran(1.0, 1.0)
        setattr(one, name, value)
        demand.ended("digits", one)
    assert demand.sojourns() == {
        ("digits", "mini"): (2.0, 0.75, 0.75, 0.375),
        ("digits", "large"): (1.0, 1.0, 0.0, 1.0),
    }
    assert demand.sojourns() == {}
