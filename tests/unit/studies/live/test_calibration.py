from __future__ import annotations

import numpy as np
import pytest

from inferway.loadgen import Record
from inferway.site.fleet import Fleet
from inferway.studies.live import servers
from inferway.studies.live.servers import DemoError


def _record(took_s: np.ndarray, status: int = 200) -> Record:
    count = len(took_s)
    sent = np.concatenate([[0.0], np.cumsum(took_s)[:-1]])
    return Record(
        task="t",
        variants=("v",),
        intended_s=np.zeros(count),
        sent_s=sent,
        done_s=sent + took_s,
        status=np.full(count, status, np.int16),
        variant=np.zeros(count, np.int16),
        predicted_class=np.zeros(count, np.int32),
        predicted_s=np.zeros(count),
        item=np.zeros(count, np.int32),
        label=np.zeros(count, np.int32),
        waited=np.zeros(count, np.bool_),
        cpu_s=0.0,
        generated=count,
    )


@pytest.fixture
def calibrate(monkeypatch):
    """Calibrate with given records in place of a server's answers; also shows the streams."""

    def run(expected: dict[str, float], records: list[Record]):
        streams = []

        def replay(url, sent, *, connections, **_):
            assert connections == 1  # one after another
            streams.extend(sent)
            return records

        monkeypatch.setattr(servers, "replay", replay)
        rate = 1 / np.array(list(expected.values()))
        fleet = Fleet(tuple(expected), rate, np.ones_like(rate), np.ones(len(rate), int))
        return servers.calibrate("http://h", fleet), streams

    return run


def test_median_and_tenth_percentile_without_the_first_few(calibrate):
    took = np.concatenate([[9.0] * 5, np.linspace(1.0, 2.0, 101)])
    found, (stream,) = calibrate({"v": 0.01}, [_record(took)])
    assert found.service_s["v"] == pytest.approx(1.5)
    assert found.least_s["v"] == pytest.approx(1.1)
    assert stream.variant == "v"
    assert np.all(np.asarray(stream.times_s) == 0)


def test_slow_variants_get_fewer_requests(calibrate):
    records = [_record(np.ones(20)) for _ in range(3)]
    _, streams = calibrate({"fast": 1e-5, "middle": 1.47e-2, "slow": 1.0}, records)
    assert [len(np.asarray(s.times_s)) for s in streams] == [300, 100, 20]


def test_noise_does_not_change_the_order(calibrate):
    """Times that contradict the profiles' order are averaged, the others stay."""
    records = [_record(np.full(20, t)) for t in (0.3, 0.1, 0.5, 0.4, 2.0)]
    found, _ = calibrate(dict.fromkeys("abcde", 0.1), records)
    assert list(found.service_s.values()) == pytest.approx([0.2, 0.2, 0.45, 0.45, 2.0])


def test_a_variant_that_refuses_is_named(calibrate):
    with pytest.raises(DemoError, match="variant v did not answer 20 requests"):
        calibrate({"v": 0.01}, [_record(np.ones(20), status=503)])
