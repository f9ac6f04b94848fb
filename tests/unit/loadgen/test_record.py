from __future__ import annotations

import math

import numpy as np
import pytest

from inferway.loadgen import DriveError, Record, summary


def make(**changes: object) -> Record:
    """Ten requests, one per 0.1 s, of which the last three got no answer."""
    count = 10
    intended = np.arange(count) * 0.1
    columns: dict[str, object] = {
        "task": "t",
        "variants": ("fast", "slow", "unused"),
        "intended_s": intended,
        "sent_s": np.where(np.arange(count) == 9, np.nan, intended + 1e-5),
        "done_s": intended + np.arange(1, count + 1) * 0.01,
        "status": np.array([200] * 7 + [429, 503, 0], np.int16),
        "variant": np.array([0, 0, 0, 0, 0, 1, 1, -1, -1, -1], np.int16),
        "predicted_class": np.array([1, 1, 1, 0, 0, 1, 1, -1, -1, -1], np.int32),
        "predicted_s": np.full(count, 0.01),
        "item": np.arange(count, dtype=np.int32),
        "label": np.ones(count, np.int32),
        "waited": np.zeros(count, np.bool_),
        "cpu_s": 1e-3,
        "generated": 20,
        "reasons": ("the queue is full", "the connection ended before the answer"),
        "reason": np.array([-1] * 7 + [0, 0, 1], np.int16),
    }
    return Record(**(columns | changes))


def test_what_is_saved_is_what_is_loaded(tmp_path):
    record = make(interrupted=True)
    record.save(tmp_path / "r.npz")
    loaded = Record.load(tmp_path / "r.npz")
    assert loaded.task == "t"
    assert loaded.variants == record.variants
    assert loaded.interrupted is True
    assert loaded.generated == 20
    for name, column in record.to_frame().items():
        np.testing.assert_array_equal(loaded.to_frame()[name], column)
        assert loaded.to_frame()[name].dtype == column.dtype


def test_a_file_that_is_no_record(tmp_path):
    path = tmp_path / "r.npz"
    path.write_bytes(b"no")
    with pytest.raises(DriveError, match="holds no record"):
        Record.load(path)
    np.savez(path, task="t")
    with pytest.raises(DriveError, match="holds no record"):
        Record.load(path)


def test_frame_names_the_variants():
    frame = make().to_frame()
    assert frame["variant"].tolist() == ["fast"] * 5 + ["slow"] * 2 + [""] * 3
    assert len({len(column) for column in frame.values()}) == 1


def test_failures_are_counted_with_their_reasons():
    record = make()
    assert record.failures() == {
        "429: the queue is full": 1,
        "503: the queue is full": 1,
        "no answer: the connection ended before the answer": 1,
    }
    assert record.after(0.8).failures() == {
        "503: the queue is full": 1,
        "no answer: the connection ended before the answer": 1,
    }
    # A record that was made without reasons has none, and counts all the same.
    bare = make(reasons=(), reason=np.empty(0, np.int16))
    assert bare.failures() == {"429": 1, "503": 1, "no answer": 1}
    assert make(status=np.full(10, 200, np.int16)).failures() == {}
    assert record.to_frame()["reason"].tolist()[6:8] == ["", "the queue is full"]


def test_summary_counts_only_answers_in_latency_and_accuracy():
    found = summary(make(), {"fast": 0.5, "slow": 1.0, "unused": 0.0})
    assert (found.offered, found.answered, found.rejected, found.failed) == (10, 7, 2, 1)
    assert found.p50_s == pytest.approx(0.04)
    assert found.mean_s == pytest.approx(0.04)
    assert found.shares == {"fast": 5 / 7, "slow": 2 / 7}
    assert found.profile_accuracy == pytest.approx((5 * 0.5 + 2) / 7)
    assert found.accuracy == pytest.approx(5 / 7)
    assert found.rate_per_s == pytest.approx(10)
    assert found.cpu_per_request_s == pytest.approx(5e-5)
    assert found.send_lag_p99_s == pytest.approx(1e-5)
    assert found.warnings == ()


def test_summary_of_a_run_without_answers():
    found = summary(make(status=np.full(10, 503, np.int16)), {"fast": 0.5})
    assert found.rejected == 10
    assert math.isnan(found.p95_s)
    assert found.accuracy is None
    assert found.profile_accuracy is None
    assert found.to_dict()["p95_s"] is None


def test_accuracy_is_unknown_without_labels_or_profiles():
    found = summary(make(label=np.full(10, -1, np.int32)), {"fast": 0.5})
    assert found.accuracy is None
    assert found.profile_accuracy is None


def test_warnings_say_what_spoils_the_measurement():
    late = make(sent_s=np.arange(10) * 0.1 + 0.02)
    assert "the generator was late: 1 request in 100 was sent 20.0 ms" in summary(late).warnings[0]
    waited = make(waited=np.arange(10) > 6)
    assert summary(waited).warnings[0].startswith("3 requests waited for a connection")
    assert summary(make(interrupted=True)).warnings == ("the run was stopped before its end",)


def test_after_leaves_out_the_beginning():
    rest = make().after(0.5)
    assert len(rest) == 5
    assert rest.intended_s[0] == pytest.approx(0.5)
    assert rest.variants == make().variants
