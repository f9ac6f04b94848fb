"""``inferway demo``: what it refuses."""

from __future__ import annotations

import pytest

from inferway.cli import main


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["demo", "nope"], "for 'what': 'nope' is not one of 'policies', 'burst', 'network'."),
        (["serve", "a.yaml", "--log-level", "loud"], "for '--log-level': 'loud' is not one of"),
    ],
)
def test_a_word_that_is_no_choice(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(words) == 2
    assert f"inferway: Invalid value {sentence}" in capsys.readouterr().err
