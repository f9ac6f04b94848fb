"""Scores tell right answers from wrong ones, and refuse what they cannot judge."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.profiling import ScoreError, score_of

SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.35, 0.45]], np.float32)


def rows(name: str, outputs: dict[str, Any], labels: Any, **options: Any) -> list[float]:
    arrays = {key: np.asarray(value) for key, value in outputs.items()}
    given: list[float] = score_of(name, **options).rows(arrays, np.asarray(labels)).tolist()
    return given


def test_the_class_is_the_greatest_of_the_only_floats() -> None:
    assert rows("class", {"p": SCORES}, [1, 0, 1]) == [1, 1, 0]
    assert rows("class", {"p": SCORES}, [1.0, 0.0, 1.0]) == [1, 1, 0]


def test_a_class_that_is_said_counts_more_than_probabilities() -> None:
    # As skl2onnx writes it, with classes that are not 0, 1, ...
    outputs = {"label": np.array([20, 10, 30]), "probabilities": SCORES}
    assert rows("class", outputs, [20, 10, 20]) == [1, 1, 0]
    words = {"label": np.array([b"dog", b"cat", b"owl"], object), "probabilities": SCORES}
    assert rows("class", words, ["dog", "cat", "cat"]) == [1, 1, 0]
    assert rows("class", words, [1, 0, 1], output="probabilities") == [1, 1, 0]


def test_classes_may_stand_in_a_column() -> None:
    assert rows("class", {"label": [[1], [2]]}, [1, 1]) == [1, 0]


def test_an_answer_that_is_no_number_is_wrong() -> None:
    assert rows("class", {"p": [[np.nan, 0.0], [0.0, 1.0]]}, [0, 1]) == [0, 1]


def test_the_right_class_is_among_the_likely_ones() -> None:
    assert rows("top-2", {"p": SCORES}, [2, 1, 0]) == [1, 1, 0]
    assert rows("top-1", {"p": SCORES}, [1, 0, 1]) == [1, 1, 0]


def test_a_tie_is_no_help_to_the_right_class() -> None:
    assert rows("top-1", {"p": [[0.5, 0.5, 0.0]]}, [0]) == [0]


def test_an_answer_matches_in_all_that_it_says_or_not_at_all() -> None:
    assert rows("exact-match", {"words": [[1, 2], [3, 4]]}, [[1, 2], [3, 5]]) == [1, 0]
    texts = np.array([[b"a b"], [b"c"]], object)
    assert rows("exact-match", {"text": texts}, ["a b", "d"]) == [1, 0]


def test_a_row_of_f1_is_a_right_class() -> None:
    assert rows("f1", {"p": SCORES}, [1, 0, 1]) == [1, 1, 0]


def test_a_function_of_the_users_scores(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def near(outputs, labels):\n"
        "    return np.maximum(0, 1 - abs(outputs['y'][:, 0] - labels))\n"
    )
    score = score_of("./mine.py:near", folder=tmp_path)
    assert score.rows({"y": np.array([[1.0], [2.5]])}, np.array([1.0, 2])).tolist() == [1, 0.5]
    assert score.digest is not None
    assert score.digest.startswith("sha256:")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return outputs['z']", "./mine.py:f fails: KeyError: 'z' (line 2)"),
        ("return labels * 2", "./mine.py:f gave 4 in row 2; a score is 0 to 1"),
        ("return labels[:1]", "gave int64 of shape [1]; a score is one number for each of 3 rows"),
        ("return 'good'", "gave <U4 of shape []; a score is one number for each of 3 rows"),
        ("return labels / 0.0 * 0", "gave nan in row 1; a score is 0 to 1"),
    ],
)
def test_a_function_that_does_not_score_is_refused(
    body: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"def f(outputs, labels):\n    {body}\n")
    score = score_of("./mine.py:f", folder=tmp_path)
    with pytest.raises(ScoreError) as error, np.errstate(all="ignore"):
        score.rows({"p": SCORES}, np.array([0, 2, 1]))
    assert sentence in str(error.value)


def test_a_file_that_does_not_load_is_refused_and_an_edit_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ScoreError, match=r"mine\.py: cannot read the file: No such file"):
        score_of("./mine.py:f", folder=tmp_path)
    (tmp_path / "mine.py").write_text("def f(outputs, labels)\n    return labels\n")
    with pytest.raises(ScoreError, match=r"mine\.py does not load: SyntaxError: expected ':'"):
        score_of("./mine.py:f", folder=tmp_path)
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ScoreError, match=r"does not load: ModuleNotFoundError.*\(line 1\)"):
        score_of("./mine.py:f", folder=tmp_path)
    (tmp_path / "mine.py").write_text("f = 3\n")
    with pytest.raises(ScoreError, match="has no function 'f'"):
        score_of("./mine.py:f", folder=tmp_path)
    (tmp_path / "mine.py").write_text("def f(outputs, labels):\n    return labels == 1\n")
    score = score_of("./mine.py:f", folder=tmp_path)
    assert score.rows({}, np.array([1, 0])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "sentence"),
    [
        ("class", {"a": SCORES, "b": SCORES}, [0, 1, 2], "not clear, of a (float32), b (float32)"),
        ("class", {"y": SCORES[:, :1]}, [0, 1, 2], "output 'y' has float32 rows of shape [1]"),
        ("class", {"p": SCORES}, [1, 2, 3], "has 3 classes, 0 to 2, and a label is 3"),
        ("class", {"p": SCORES}, [1, 2, 0.5], "has 3 classes, 0 to 2, and a label is 0.5"),
        ("class", {"p": SCORES}, ["a", "b", "c"], "and the labels are texts; number them"),
        ("class", {"y": ["a", "b", "c"]}, [0, 1, 2], "'y' holds texts and the labels are numbers"),
        ("class", {"y": [0, 1, 2]}, ["a", "b", "c"], "'y' holds numbers and the labels are texts"),
        ("class", {"p": SCORES}, [[0], [1], [2]], "the labels have rows of shape [1]"),
        ("top-5", {"p": SCORES}, [0, 1, 2], "has 3 classes, so each is in the top 5"),
        (
            "exact-match",
            {"a": [1], "b": [2]},
            [1],
            "which output is to match is not clear, of a, b",
        ),
        ("exact-match", {"a": [[1, 2]]}, [1], "has rows of shape [2] and the labels have rows of"),
    ],
)
def test_answers_that_a_score_cannot_judge_are_refused(
    name: str, outputs: dict[str, Any], labels: Any, sentence: str
) -> None:
    with pytest.raises(ScoreError) as error:
        rows(name, outputs, labels)
    assert sentence in str(error.value)


def test_an_output_that_is_named_must_be_there() -> None:
    with pytest.raises(ScoreError, match="there is no output 'q'; the model gives p"):
        rows("class", {"p": SCORES}, [0, 1, 2], output="q")


def test_an_unknown_score_is_named_with_the_nearest() -> None:
    with pytest.raises(ScoreError, match="there is no score 'clas'; did you mean class"):
        score_of("clas")
    with pytest.raises(ScoreError, match="there are class, top-5, f1, exact-match"):
        score_of("rouge")


def test_f1_of_too_many_classes_is_refused() -> None:
    labels = np.arange(1_001)
    classes = score_of("f1").classes
    assert classes is not None
    with pytest.raises(ScoreError, match=r"f1 is over 1,000 classes at most, .* have 1,001"):
        classes({"label": labels[::-1]}, labels)


def test_a_users_file_prints_beside_the_answer_and_finds_its_neighbors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbor_of_mine.py").write_text("HALF = 0.5\n")
    (tmp_path / "mine.py").write_text(
        "from neighbor_of_mine import HALF\n"
        "print('loaded')\n"
        "def score(outputs, labels):\n"
        "    print('called')\n"
        "    return labels * 0 + HALF\n"
        "def leave(outputs, labels):\n"
        "    raise SystemExit('gone')\n"
    )
    before = list(sys.path)
    scored = score_of("./mine.py:score", folder=tmp_path).rows({}, np.arange(2))
    assert scored.tolist() == [0.5, 0.5]
    assert capsys.readouterr() == ("", "loaded\ncalled\n")
    with pytest.raises(ScoreError, match=r"leave fails: SystemExit: gone \(line 7\)"):
        score_of("./mine.py:leave", folder=tmp_path).rows({}, np.arange(2))
    (tmp_path / "gone.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ScoreError, match=r"does not load: SystemExit: 3 \(line 2\)"):
        score_of("./gone.py:score", folder=tmp_path)
    assert sys.path == before
