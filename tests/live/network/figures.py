"""What a test has measured, for people and for `benchmarks/recovery.py`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "INFERWAY_FIGURES"
"""Names the file that figures are added to, a line of JSON for each scenario."""


def write(scenario: str, figures: Mapping[str, Any]) -> None:
    """Print a scenario's figures, and add them to the file if there is one."""
    line = json.dumps({"scenario": scenario, **{k: _rounded(v) for k, v in figures.items()}})
    print(line)
    if file := os.environ.get(VARIABLE):
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value
