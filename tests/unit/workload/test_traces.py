"""Real traces, read from where the user has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferway.deployment import load
from inferway.workload import mean_rate, times


@pytest.fixture
def traces(root: Path) -> Path:
    folder = root.parent / "shared" / "data" / "traces"
    if not folder.is_dir():
        pytest.skip(f"the Azure LLM inference traces are not in {folder}")
    return folder


@pytest.mark.parametrize(
    ("name", "rows", "last_s"),
    [
        ("AzureLLMInferenceTrace_code.csv", 8819, 3435.948),
        ("AzureLLMInferenceTrace_conv.csv", 19366, 3501.721),
    ],
)
def test_an_azure_trace_as_a_workload(
    traces: Path, tmp_path: Path, name: str, rows: int, last_s: float
) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        "tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}}}\n"
        f"workload: {{t: {{arrivals: {{process: trace, file: {traces / name}}}}}}}\n",
        encoding="utf-8",
    )
    arrivals = load(path).workload["t"].arrivals
    drawn = times(arrivals, count=rows)
    assert drawn[0] == 0
    assert (np.diff(drawn) >= 0).all()
    assert drawn[-1] == pytest.approx(last_s, abs=0.001)
    assert mean_rate(arrivals) == pytest.approx((rows - 1) / last_s, rel=1e-6)
    with pytest.raises(ValueError, match=f"holds {rows} arrivals"):
        times(arrivals, count=rows + 1)
