"""Confidence is read from outputs, one finite number per row, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.profiling.confidence import ConfidenceError, confidence_of, offers_probabilities

SHARES = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], np.float32)


def test_probabilities_are_taken_as_they_are() -> None:
    found = confidence_of("probability", {"p": SHARES})
    np.testing.assert_allclose(found.values, [0.7, 0.5], rtol=1e-6)
    assert not found.softmax


def test_what_does_not_sum_to_1_goes_through_the_softmax() -> None:
    found = confidence_of("probability", {"p": np.log(SHARES) + 100})
    np.testing.assert_allclose(found.values, [0.7, 0.5], rtol=1e-4)
    assert found.softmax


def test_probabilities_that_rounding_makes_too_large_are_1() -> None:
    rows = np.array([[1 + 1e-4, -1e-4], [0.6, 0.4]])
    for kind, expected in (("probability", [1, 0.6]), ("margin", [1, 0.2])):
        found = confidence_of(kind, {"p": rows})
        assert found.values.tolist() == pytest.approx(expected, abs=1e-12)
        assert found.values.max() == 1
        assert not found.softmax


def test_a_row_that_misses_the_sum_does_not_change_the_others() -> None:
    rows = np.repeat(SHARES, 50, axis=0)
    rows[7] *= 1.01
    found = confidence_of("probability", {"p": rows})
    np.testing.assert_allclose(found.values[[0, 99]], [0.7, 0.5], rtol=1e-6)
    assert not found.softmax
    assert confidence_of("probability", {"p": np.where(rows > 0.6, 3, rows)}).softmax


def test_the_margin_is_above_the_second() -> None:
    np.testing.assert_allclose(confidence_of("margin", {"p": SHARES}).values, [0.5, 0.2], rtol=1e-5)


def test_an_output_may_be_the_confidence() -> None:
    outputs = {"label": np.array([1, 2]), "sure": np.array([[3.0], [-1.0]]), "p": SHARES}
    assert confidence_of("sure", outputs).values.tolist() == [3, -1]
    assert confidence_of("probability", outputs).values.tolist() == pytest.approx([0.7, 0.5])


def test_a_function_of_the_users_may_be_the_confidence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def sure(outputs):\n    return -outputs['p'].std(axis=1)\n"
        "def broken(outputs):\n    return outputs['q']\n"
    )
    found = confidence_of("./mine.py:sure", {"p": SHARES}, folder=tmp_path)
    np.testing.assert_allclose(found.values, -SHARES.std(axis=1))
    with pytest.raises(ConfidenceError, match=r"mine\.py:broken fails: KeyError: 'q' \(line 4\)"):
        confidence_of("./mine.py:broken", {"p": SHARES}, folder=tmp_path)
    with pytest.raises(ConfidenceError, match="No such file"):
        confidence_of("./none.py:broken", {"p": SHARES}, folder=tmp_path)


@pytest.mark.parametrize(
    ("kind", "outputs", "sentence"),
    [
        ("sure", {"p": SHARES}, "there is no output 'sure', and 'sure' is neither probability nor"),
        ("p", {"p": SHARES}, "output 'p' gave float32 of shape [2, 3]; a confidence is one number"),
        ("t", {"t": np.array(["a", "b"])}, "output 't' gave <U1 of shape [2, 1]; a confidence is"),
        ("probability", {"a": SHARES, "b": SHARES}, "not clear, of a (float32 [3]), b (float32"),
        ("margin", {"y": SHARES[:, :1]}, "which output holds one number per class is not clear"),
        ("s", {"s": np.array([1.0, np.inf])}, "output 's' gave inf in row 2, which is not finite"),
        ("probability", {"p": SHARES * np.nan}, "output 'p' holds what is not finite"),
    ],
)
def test_what_is_no_confidence_is_refused(
    kind: str, outputs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfidenceError) as error:
        confidence_of(kind, outputs)
    assert sentence in str(error.value)


def test_one_of_several_outputs_can_be_named() -> None:
    outputs = {"a": SHARES, "b": SHARES[:, ::-1] ** 2}
    assert confidence_of("probability", outputs, output="a").values.tolist() == pytest.approx(
        [0.7, 0.5]
    )
    assert not offers_probabilities(outputs)
    assert offers_probabilities(outputs, "b")
    assert not offers_probabilities({"label": np.array([1])})


def test_the_output_of_the_answer_need_not_hold_the_probabilities() -> None:
    outputs = {"label": np.array([0, 1]), "probabilities": SHARES}
    np.testing.assert_array_equal(
        confidence_of("probability", outputs, output="label").values, SHARES.max(axis=1)
    )
    assert offers_probabilities(outputs, "label")
    assert not offers_probabilities({"label": outputs["label"], "more": SHARES[:, :1]}, "label")
    with pytest.raises(ConfidenceError, match="is not clear"):
        confidence_of("probability", {**outputs, "also": SHARES}, output="label")
