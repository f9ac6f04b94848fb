"""One registry for three kinds: names of ours, a user's file, a class of the running program."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway as iw
from inferway.deployment.policies import ROWS, builtin_class
from inferway.policies import policy_class
from inferway.scheduling import UNKNOWN, Conditions, Routing, Signal
from inferway.site import Fleet

FLEET = {
    "tasks": {
        "words": {
            "variants": {
                "quick": {"accuracy": 0.6, "service": {"rate": "20/s"}},
                "good": {"accuracy": 0.9, "service": {"rate": "5/s"}},
            }
        }
    },
    "nodes": {"here": {"instances": {"words/quick": 1, "words/good": 1}}},
    "workload": {"words": {"arrivals": {"process": "poisson", "rate": "4/s"}}},
}
CHAIN = {
    "tasks": {
        "words": {
            "variants": {
                "tiny": {"accuracy": 0.6, "size": "1 GiB", "service": {"mean": "5 ms"}},
                "large": {"accuracy": 0.9, "size": "4 GiB", "service": {"mean": "20 ms"}},
            }
        }
    },
    "nodes": {"edge": {"budget": "2 GiB"}, "cloud": {"budget": "16 GiB", "repository": True}},
    "network": {"links": [{"between": ["edge", "cloud"], "rtt": "40 ms"}]},
    "workload": {
        "words": {
            "arrivals": {"process": "poisson", "rate": "10/s"},
            "entries": {"nodes": ["edge"]},
        }
    },
}


class Share:
    """Send a share of all requests to the first server."""

    slot_s = 1.0
    sees_phase = False
    on_rejection = False

    def __init__(self, fleet: Fleet, share: float) -> None:
        ones = np.ones(2, np.int64)
        self.routing = Routing(np.array([share, 1.0 - share]), ones, ones)

    @classmethod
    def build(cls, conditions: Conditions, *, share: float = 1.0) -> Share:
        """Make it."""
        return cls(conditions.fleet, share)

    def observe(self, site: Any, signal: Signal) -> None:
        """Nothing."""

    def act(self, observation: None) -> Routing:
        """The same always."""
        return self.routing


class Still:
    """Keep the first allocation that has everything pinned and nothing else."""

    fractional = None

    def __init__(self, network: Any) -> None:
        from inferway.placement import minimal

        self.allocation = minimal(network).astype(np.int32)

    @classmethod
    def build(cls, network: Any, *, seed: int = 0, batches: Any = None) -> Still:
        """Make it."""
        return cls(network)

    def step(self, observation: Any) -> Any:
        """Return the same allocation."""
        return self.allocation


def file_of(policy: type) -> str:
    return f"{Path(__file__)}:{policy.__name__}"


@pytest.mark.parametrize("kind", ROWS)
def test_every_row_names_a_class_with_build(kind: Any) -> None:
    for name in ROWS[kind]:
        assert callable(policy_class(kind, name).build), name
        assert policy_class(kind, name) is builtin_class(kind, name)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dispatch", "unknown policy 'best': expected one of fastest-only, .*, or ./file.py:Class"),
        ("scheduling", "unknown scheduling policy 'best': expected one of rl-po"),
        ("placement", "unknown placement policy 'best': expected one of infida"),
    ],
)
def test_an_unknown_name(kind: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy_class(kind, "best")


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("scheduling", "class A: ...", "A has no `build`, which a policy needs"),
        (
            "scheduling",
            "class A:\n build = act = 0\n def observe(self): ...",
            r"A.observe has to take \(self, site, signal\) \(line 3\)",
        ),
        (
            "placement",
            "class A:\n build = 0\n def step(self): ...",
            r"A.step has to take \(self, observation\) \(line 3\)",
        ),
        ("placement", "A = 1", "has no class 'A'"),
    ],
)
def test_a_class_that_lacks_what_the_contract_needs(
    tmp_path: Path, kind: Any, code: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(code + "\n")
    with pytest.raises(ValueError, match=said):
        policy_class(kind, "./mine.py:A", tmp_path)


def test_a_scheduler_of_ones_own_decides() -> None:
    section = {"policy": file_of(Share), "share": 0.0}
    deployment = iw.load(FLEET).with_(scheduling=section)
    assert deployment.policy_of("words").policy == "alias"
    result = iw.simulate(deployment, queries=2000).tasks["words"]
    assert result.accuracy.mean == pytest.approx(0.9)
    # The class itself, with its default.
    result = iw.simulate(iw.load(FLEET), scheduling=Share, queries=2000).tasks["words"]
    assert result.accuracy.mean == pytest.approx(0.6)


def test_what_a_scheduler_does_not_take_is_said() -> None:
    section = {"policy": file_of(Share), "shre": 0.5}
    with pytest.raises(ValueError, match="shre"):
        iw.simulate(iw.load(FLEET).with_(scheduling=section), queries=100)


def test_a_placement_of_ones_own_decides() -> None:
    own = iw.simulate(iw.load(CHAIN), placement=Still, slots=5)
    ours = iw.simulate(iw.load(CHAIN), placement="repository-only", slots=5)
    assert own.network is not None
    assert ours.network is not None
    assert np.array_equal(own.network.gain, ours.network.gain)
    assert file_of(Still) in own.network.policy


def test_a_file_names_policies_of_all_kinds() -> None:
    deployment = iw.load(
        {
            **CHAIN,
            "dispatch": {"policy": "priced", "wait": 2},
            "placement": {"policy": file_of(Still), "slot": "30 s", "more": [1]},
        }
    )
    assert deployment.placement is not None
    assert deployment.placement.policy == file_of(Still)
    assert deployment.placement.options == {"slot": 30.0, "more": [1]}


def test_a_signal_that_says_nothing_is_enough() -> None:
    built = Share.build(Conditions(fleet=None, policy="mine"))  # type: ignore[arg-type]
    assert built.act(built.observe(None, UNKNOWN)) is built.routing


def test_an_edit_is_seen_that_leaves_second_and_length_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for answer in "AB":
        path.write_text(
            "class Mine:\n"
            f"    answer = '{answer}'\n"
            "    @classmethod\n"
            "    def build(cls, conditions): ...\n"
            "    def observe(self, site, signal): ...\n"
            "    def act(self, observation): ...\n"
        )
        os.utime(path, (1e9, 1e9))
        found = policy_class("scheduling", "./mine.py:Mine", tmp_path)
        assert found.answer == answer
        py_compile.compile(str(path))
