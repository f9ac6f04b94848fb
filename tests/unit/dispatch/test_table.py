"""Policies from files of the user's, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferway.dispatch import Dispatcher, PolicyError, policy_class
from inferway.site import Fleet

EXAMPLES = Path(__file__).parents[3] / "examples"
FLEET = Fleet(
    ("quick", "good"),
    np.array([10.0, 1.0]),
    np.array([0.6, 0.9]),
    np.array([2, 1]),
    price=np.array([4.0, 1.0]),
)


def test_the_example_runs_compiled() -> None:
    dispatcher = Dispatcher(FLEET, "./cheapest.py:Cheapest", target=0.8, folder=EXAMPLES)
    # Prices plus one: 5 for each of the two quick servers, 2 for the good one.
    assert [dispatcher.arrive(0.0, 0) for _ in range(5)] == [2, 2, 0, 1, 2]


def test_an_edited_policy_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = (EXAMPLES / "cheapest.py").read_text()
    file.write_text(text)
    assert Dispatcher(FLEET, "mine.py:Cheapest", target=None, folder=tmp_path).arrive(0.0, 0) == 2
    file.write_text(text.replace("cost < least", "cost > least").replace("np.inf", "-np.inf"))
    assert Dispatcher(FLEET, "mine.py:Cheapest", target=None, folder=tmp_path).arrive(0.0, 0) == 0


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        (None, "gone.py:Mine", "there is no policy file"),
        ("x = 1", "mine.py:Mine", "has no class 'Mine'"),
        ("class Mine: pass", "mine.py:Mine", "is not a NamedTuple"),
        (
            "from typing import NamedTuple\nclass Mine(NamedTuple):\n    x: int\n",
            "mine.py:Mine",
            "has no `build`",
        ),
        ("import nonsense_of_mine", "mine.py:Mine", "does not load: ModuleNotFoundError"),
        ("def", "mine.py:Mine", "does not load: SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, text: str | None, name: str, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        policy_class(name, tmp_path)


def test_a_policy_that_does_not_compile_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import NamedTuple\n"
        "class Mine(NamedTuple):\n"
        "    x: int\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n"
        "        return cls(1)\n"
        "    def choose(self, site, request, draw):\n"
        "        return open('file').read()\n"
    )
    with pytest.raises(ValueError, match=r"policy mine\.py:Mine does not compile: ") as caught:
        Dispatcher(FLEET, "mine.py:Mine", target=None, folder=tmp_path)
    assert "open" in str(caught.value)
    assert "(mine.py, line 8)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_division_by_zero_is_the_policys(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import NamedTuple\n"
        "class Mine(NamedTuple):\n"
        "    x: int\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n"
        "        return cls(0)\n"
        "    def choose(self, site, request, draw):\n"
        "        return 1 // self.x if draw > 1 else 0\n"
    )
    dispatcher = Dispatcher(FLEET, "mine.py:Mine", target=0.8, folder=tmp_path)
    with pytest.raises(PolicyError, match=r"mine\.py:Mine divides by zero \(mine\.py, line 8\)"):
        dispatcher.arrive(0.0, 2)
    assert dispatcher.arrive(0.0, 0) == 0


@pytest.mark.parametrize("number", [3, 999, 10**9, -3, -7])
def test_a_number_that_is_no_server_is_refused_and_nothing_happens(
    tmp_path: Path, number: int
) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import NamedTuple\n"
        "class Mine(NamedTuple):\n"
        "    x: int\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s, number):\n"
        "        return cls(number)\n"
        "    def choose(self, site, request, draw):\n"
        "        return self.x if draw else 0\n"
    )
    dispatcher = Dispatcher(FLEET, "mine.py:Mine", target=0.8, folder=tmp_path, number=0)
    dispatcher = Dispatcher(FLEET, "mine.py:Mine", target=0.8, folder=tmp_path, number=number)
    with pytest.raises(PolicyError, match=r"neither a server of 0\.\.2 nor REJECT nor HOLD"):
        dispatcher.arrive(0.0, 1)
    assert dispatcher.site.queue.sum() == 0
    assert dispatcher.arrive(0.0, 0) == 0
