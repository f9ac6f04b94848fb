"""The engines against the plain simulator, event for event, and against each other."""

from __future__ import annotations

from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from systems import VERSATILE, compare, systems

from inferway.twin import Scenario

REQUESTS = 120
# To shrink a path takes minutes and makes it little shorter; the first difference says it all.
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
WIDE = settings(QUICK, max_examples=300, derandomize=False)
seeds = st.integers(0, 2**31)


@QUICK
@given(systems(VERSATILE), seeds)
def test_general_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")
