"""The paper's site, its printed table and the curve of batches."""

from __future__ import annotations

import math

import pytest

import inferway
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.burst import HEAVY_PHI, LIGHT_PHI, batch_service_s
from inferway.studies.scheduling.table_2 import PRINTED
from inferway.twin import scenario_of


@pytest.mark.parametrize(
    ("file", "phis"),
    [("edge-burst.yaml", None), ("edge-burst-batches.yaml", (LIGHT_PHI, HEAVY_PHI))],
)
def test_the_example_files_are_the_study(examples, file, phis):
    written = scenario_of(inferway.load(examples / file), "recognise")
    ours = burst.scenario(phis=phis)
    assert written.fleet.variants == ours.fleet.variants
    for name in ("rate", "accuracy", "count"):
        assert getattr(written.fleet, name) == pytest.approx(getattr(ours.fleet, name))
    assert written.fleet.buffer == ours.fleet.buffer
    assert written.deadline_s == pytest.approx(ours.deadline_s)
    assert written.arrivals == ours.arrivals
    for there, here in zip(written.batches, ours.batches, strict=False):
        assert (there is None) == (here is None)
        if here is not None:
            assert (there.sizes, there.min, there.max) == (here.sizes, here.min, here.max)
            assert there.service_s == pytest.approx(here.service_s)


def test_both_workloads_have_the_rate_of_the_table():
    for workload in burst.WORKLOADS:
        rate = burst.scenario(workload).rate_per_s
        assert rate == pytest.approx(burst.mean_rate_per_s())
    printed = PRINTED["map", "lw"]
    assert printed["rate"] / printed["goodput"] == pytest.approx(rate, rel=1e-3)


def test_an_unknown_workload_is_refused():
    with pytest.raises(ValueError, match="expected one of map, periodic"):
        burst.arrivals_of("weekly")


def test_training_rewards_by_other_data():
    control = burst.control("rl-po")
    assert control.gains == burst.GAINS
    assert tuple(control.scenario.fleet.accuracy) == burst.ACCURACY
    assert burst.control("rl-fo-b").batches
    assert burst.control("rl-fo-b").sees_phase


@pytest.mark.parametrize("place", PRINTED)
def test_overall_is_the_mean_of_both_states(place):
    row = PRINTED[place]
    assert row["goodput"] == pytest.approx(
        (row["goodput_bursty"] + row["goodput_normal"]) / 2, abs=3e-4
    )
    assert row["violations"] == pytest.approx(
        (row["violations_bursty"] + row["violations_normal"]) / 2, abs=3e-4
    )
    if place == ("map", "rl-po-b"):  # its cells are another row's
        return
    for state in ("bursty", "normal"):
        lost = row[f"rejected_{state}"] + row[f"late_{state}"]
        assert lost == pytest.approx(row[f"violations_{state}"], abs=9e-4)


def test_blank_cells_are_absent():
    assert math.isnan(PRINTED["map", "hw"]["heavy_bursty"])


def test_the_batch_curve():
    assert batch_service_s(0.01, 0.7) == pytest.approx((0.01, 0.016, 0.022))
    assert batch_service_s(0.01, 0.0) == pytest.approx((0.01, 0.03, 0.05))
    with pytest.raises(ValueError, match=r"0\.\.1, not 1\.2"):
        batch_service_s(0.01, 1.2)
