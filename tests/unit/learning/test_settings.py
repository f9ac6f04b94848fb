"""Settings of a training: their ranges and schedules."""

from __future__ import annotations

import pytest

from inferway.learning.settings import Settings


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sites": 0}, "sites is at least 1"),
        ({"sites": 7}, "no whole number"),
        ({"discount": 1.5}, "discount is in 0..1"),
        ({"sigma": 0.0}, "sigma is above 0"),
        ({"sigma": float("nan")}, "sigma is above 0"),
        ({"norm": -1.0}, "norm is above 0"),
        ({"entropy": -1.0}, "entropy is at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Settings(**changes)  # type: ignore[arg-type]


def test_schedules() -> None:
    settings = Settings(slots=100, final_rate=0.5, final_sigma=0.2, critic_rate=1e-3)
    assert settings.scheduled
    assert settings.at(0)[:2] == (2.5e-4, 1e-3)
    assert settings.at(50)[:2] == pytest.approx((1.875e-4, 7.5e-4))
    assert settings.at(100)[2] == pytest.approx(0.2)
    assert settings.at(1000)[2] == pytest.approx(0.2)
    constant = Settings(slots=100)
    assert not constant.scheduled
    assert (constant.at(70)[0], constant.at(70)[2]) == (2.5e-4, 0.698)
