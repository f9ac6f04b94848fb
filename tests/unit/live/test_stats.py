from __future__ import annotations

from itertools import accumulate, pairwise

from inferway.live.request import Outcome
from inferway.live.stats import FINE_BOUNDS_S, LATENCY_BOUNDS_S, Stats, coarse


def test_answers_and_their_latency() -> None:
    counters = Stats(("tiny", "big"))
    counters.answered(1, 3, 0.9, LATENCY_BOUNDS_S[2], 0.5)
    counters.answered(1, 1, 0.9, LATENCY_BOUNDS_S[-1] + 1, 0.5)
    counters.answered(0, 1, 0.7, 0.0, 0.25)
    assert counters.rows == [1, 4]
    assert counters.total(Outcome.ANSWERED) == 3
    assert counters.accuracy_sum == 0.9 * 3 + 0.9 + 0.7
    assert counters.buckets[0][0] == 1
    # A bucket's upper end belongs to it, as Prometheus has it.
    metric = coarse(counters.buckets[1])
    assert metric[2] == metric[-1] == 1
    assert (len(metric), sum(metric)) == (len(LATENCY_BOUNDS_S) + 1, 2)
    assert counters.service_sum_s == [0.25, 1.0]


def test_latencies_are_counted_in_steps_of_an_eighth_and_told_in_those_of_the_metrics() -> None:
    counters = Stats(("tiny",))
    for end_s in FINE_BOUNDS_S:
        counters.answered(0, 1, 0.9, end_s, 0.0)
    assert counters.buckets[0] == [1] * len(FINE_BOUNDS_S) + [0]
    assert set(LATENCY_BOUNDS_S) <= set(FINE_BOUNDS_S)
    expected = [sum(end_s <= most_s for end_s in FINE_BOUNDS_S) for most_s in LATENCY_BOUNDS_S]
    assert list(accumulate(coarse(counters.buckets[0])))[:-1] == expected
    ratios = [high / low for low, high in pairwise(FINE_BOUNDS_S)]
    assert 1.1 < min(ratios) <= max(ratios) < 1.15


def test_a_promise_leaves_out_what_does_not_count_and_begins_anew() -> None:
    counters = Stats(("tiny", "big"))
    counters.answered(1, 3, 0.9, 0.0, 0.5)
    counters.answered(0, 2, 0.5, 0.0, 0.5, counted=False)
    assert (counters.promised, counters.promised_sum) == (3, 3 * 0.9)
    counters.promise_anew()
    counters.answered(0, 1, 0.5, 0.0, 0.5)
    assert (counters.promised, counters.promised_sum) == (1, 0.5)
    assert counters.total_rows == 6


def test_ends_without_a_variant_are_counted_apart() -> None:
    counters = Stats(("tiny", "big"))
    counters.ended(Outcome.REJECTED)
    counters.ended(Outcome.FAILED, 1)
    assert counters.outcomes[Outcome.REJECTED] == [0, 0, 1]
    assert counters.outcomes[Outcome.FAILED] == [0, 1, 0]


def test_a_variant_keeps_its_counts_while_it_is_away() -> None:
    counters = Stats(("tiny", "big"))
    counters.answered(1, 2, 0.9, 0.0, 0.25)
    counters.ended(Outcome.REJECTED)
    assert counters.columns(("mini", "tiny")) == [2, 0]
    counters.answered(2, 1, 0.5, 0.0, 0.25)
    assert counters.columns(("big",)) == [1]
    assert counters.outcomes[Outcome.ANSWERED] == [0, 1, 1, 0]
    assert counters.outcomes[Outcome.REJECTED] == [0, 0, 0, 1]
    assert (counters.rows, counters.total_rows) == ([0, 2, 1], 3)
