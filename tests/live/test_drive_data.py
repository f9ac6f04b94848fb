"""A drive of labeled data: each answer is scored, and the accuracy has an interval."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import inferway
from inferway.cli import main
from inferway.profiling import DataError
from inferway.protocol import Signature, Tensor

ROWS = 40
SIGNATURE = Signature(
    (Tensor("x", "FP32", (-1, 3)), Tensor("word", "BYTES", (-1,))),
    (Tensor("scores", "FP32", (-1, 3)), Tensor("echo", "BYTES", (-1,))),
)
FILE = """
tasks:
  digits:
    accuracy_target: 0.6
    variants:
      tiny: {{accuracy: 0.7, size: 1 MB, service: {{mean: 1 ms}}}}
      big: {{accuracy: 0.9, size: 1 MB, service: {{mean: 10 ms}}}}
  {more}
workload:
  digits: {{arrivals: {{process: poisson, rate: 100/s}}}}
  {load}
"""
NETWORK = """
tasks:
  digits:
    count: 2
    variants:
      tiny: {accuracy: 0.7, size: 1 MB, service: {mean: 1 ms}}
network: {tree: [{tier: cloud, nodes: 1, repository: true}, {tier: edge, nodes: 1, rtt: 9 ms}]}
placement: {policy: static-greedy}
workload: {digits: {arrivals: {process: poisson, rate: 100/s}}}
"""


class Model:
    """Gives its scores back as they came, and the word in capitals."""

    signature = SIGNATURE

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        words = np.array([bytes(one).upper() for one in inputs["word"]], object)
        return {"scores": inputs["x"], "echo": words}

    def close(self) -> None:
        pass


@pytest.fixture
def running(start: Callable[..., Any], site_of: Callable[..., Any]) -> Any:
    return start(site_of([Model(), Model()], signature=SIGNATURE))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yaml"
    path.write_text(FILE.format(more="", load=""))
    return path


def rows(wrong: int = 10) -> dict[str, Any]:
    """Draw rows whose class is at the greatest score, but for so many whose label is another."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 3, ROWS)
    x = np.eye(3, dtype=np.float32)[label]
    label[:wrong] = (label[:wrong] + 1) % 3
    word = np.array([f"w{i % 4}" for i in range(ROWS)])
    return {"x": x, "word": word, "labels": label}


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **(rows() | arrays))
    return path


def driven(running: Any, file: Path, data: Any, **options: Any) -> Any:
    return inferway.drive(
        inferway.load(file), f"http://{running.url}", duration=1.0, data=data, **options
    )


@pytest.mark.parametrize("binary", [True, False])
def test_each_answer_is_scored_by_its_label(
    running: Any, file: Path, tmp_path: Path, binary: bool
) -> None:
    found = driven(running, file, saved(tmp_path / "test.npz"), binary=binary, output="scores")
    record, summary = found.records["digits"], found.tasks["digits"]
    assert record.answered.all()
    assert len(record) > 40
    # Items are rows of the file, of which the first ten are labeled wrong.
    assert record.item.max() > 30
    np.testing.assert_array_equal(record.score, record.item >= 10)
    np.testing.assert_array_equal(record.label, rows()["labels"][record.item])
    right = (record.item >= 10).mean()
    assert summary.accuracy == pytest.approx(right)
    low, high = summary.accuracy_interval
    assert low < right < high
    # Rows that were sent again are no rows of their own.
    independent = 1.96 * np.sqrt(right * (1 - right) / len(record))
    assert high - low > 2.2 * independent
    assert summary.promise.labels == {"mean": summary.accuracy, "interval": (low, high)}
    again = driven(running, file, tmp_path / "test.npz", binary=binary, output="scores")
    np.testing.assert_array_equal(again.records["digits"].item, record.item)


@pytest.mark.parametrize(
    ("score", "labels", "right"),
    [
        ("exact-match", [f"W{i % 4}" if i % 5 else "other" for i in range(ROWS)], 0.8),
        ("top-2", None, None),
    ],
)
def test_scores_look_at_any_output(
    running: Any, file: Path, tmp_path: Path, score: str, labels: Any, right: float | None
) -> None:
    output = "echo" if score == "exact-match" else "scores"
    arrays = {} if labels is None else {"labels": np.array(labels)}
    # Ties count against an answer: of two zeros neither is among the first two.
    data = saved(tmp_path / "test.npz", **arrays)
    found = driven(running, file, data, score=score, output=output)
    record = found.records["digits"]
    assert record.answered.all()
    expected = record.item % 5 > 0 if right else record.item >= 10
    np.testing.assert_array_equal(record.score, expected)
    assert found.tasks["digits"].accuracy == pytest.approx(expected.mean())
    assert record.scored == score


def test_a_score_of_the_users_may_be_between_right_and_wrong(
    running: Any, file: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def half(outputs, labels):\n    return (labels == 1) * 0.5\n")
    found = driven(running, file, saved(tmp_path / "test.npz"), score=f"{mine}:half")
    record = found.records["digits"]
    np.testing.assert_array_equal(record.score, 0.5 * (rows()["labels"][record.item] == 1))
    assert not record.correct.any()


def test_f1_is_that_of_the_classes(running: Any, file: Path, tmp_path: Path) -> None:
    from sklearn.metrics import f1_score

    data = saved(tmp_path / "test.npz")
    found = driven(running, file, data, score="f1", output="scores")
    record = found.records["digits"]
    expected = f1_score(rows()["labels"][record.item], rows()["x"][record.item].argmax(axis=1),
                        average="macro")  # fmt: skip
    assert found.tasks["digits"].accuracy == pytest.approx(expected)
    low, high = found.tasks["digits"].accuracy_interval
    assert low < expected < high


def test_groups_make_the_interval_wider(running: Any, file: Path, tmp_path: Path) -> None:
    # The rows that are labeled wrong are one group, and so are those that are right.
    data = saved(tmp_path / "test.npz", who=np.arange(ROWS) // 10)
    found = driven(running, file, data, output="scores", group="who")
    alone = np.load(data)
    np.savez(tmp_path / "alone.npz", **{name: alone[name] for name in ("x", "word", "labels")})
    plain = driven(running, file, tmp_path / "alone.npz", output="scores")
    width, narrow = (np.ptp(one.tasks["digits"].accuracy_interval) for one in (found, plain))
    assert width > 1.5 * narrow


def test_the_command_shows_and_writes_it(
    running: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = saved(tmp_path / "test.npz")
    words = ["drive", str(file), "--url", f"http://{running.url}", "--duration", "0.8"]
    words += ["--data", str(data), "--output", "scores", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    table = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    mean = table["score"].mean()
    assert f"accuracy, by labels {mean:.3f} [" in shown
    assert main([*words, "--json"]) == 0
    task = json.loads(capsys.readouterr().out)["tasks"]["digits"]
    assert task["accuracy"] == pytest.approx(mean)
    low, high = task["accuracy_interval"]
    assert task["promise"]["labels"] == {"mean": task["accuracy"], "interval": [low, high]}
    assert low < mean < high


def test_each_task_has_data_of_its_own(
    start: Any, site_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("digits", "other")
    sites = [site_of([Model(), Model()], signature=SIGNATURE, task=name) for name in names]
    server = start(*sites)
    file = tmp_path / "two.yaml"
    more = "other: {variants: {a: {accuracy: 0.7, size: 1 MB, service: {mean: 1 ms}}}}"
    load = "other: {arrivals: {process: poisson, rate: 100/s}}"
    file.write_text(FILE.format(more=more, load=load))
    first = saved(tmp_path / "first.npz")
    second = saved(tmp_path / "second.npz", labels=(rows()["labels"] + 1) % 3)
    words = ["drive", str(file), "--url", f"http://{server.url}", "--duration", "0.8", "--json"]
    words += ["--data", f"digits={first}", "--data", f"other={second}", "--output", "scores"]
    assert main(words) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    # Of the second file's labels none is right, but maybe some that the first has wrong.
    assert tasks["digits"]["accuracy"] > 0.6
    assert tasks["other"]["accuracy"] < 0.4


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_is_sent_row_by_row(digits: Any, file: Path, tmp_path: Path, suffix: str) -> None:
    table = pd.DataFrame(np.arange(20.0).reshape(5, 4), columns=[*"abcd"]).assign(label=0)
    data = tmp_path / f"test.{suffix}"
    table.to_csv(data, index=False) if suffix == "csv" else table.to_parquet(data)
    # Its scores are zeros, of which the first counts.
    found = driven(digits, file, data)
    assert found.tasks["digits"].accuracy == 1.0
    assert {*found.records["digits"].item} == set(range(5))


def test_of_a_network_too(tmp_path: Path, start: Any, site_of: Any) -> None:
    sites = [site_of([Model(), Model()], signature=SIGNATURE, task=f"digits-{k}") for k in (0, 1)]
    server = start(*sites)
    file = tmp_path / "network.yaml"
    file.write_text(NETWORK)
    data = saved(tmp_path / "test.npz")
    found = inferway.drive(
        inferway.load(file), f"http://{server.url}", duration=1.5, data=data, output="scores"
    )
    (record,) = found.records.values()
    assert record.answered.all()
    assert {*record.to_frame()["task"]} == {"digits-0", "digits-1"}
    np.testing.assert_array_equal(record.score, record.item >= 10)
    assert found.network.whole.accuracy == pytest.approx((record.item >= 10).mean())
    assert found.tasks["digits"].accuracy_interval is not None


WRONG: list[tuple[list[str], dict[str, Any], str]] = [
    ([], {"x": np.zeros((ROWS, 4), np.float32)}, "'x' has rows of shape [4], and the input is x:"),
    ([], {"word": np.arange(ROWS)}, "'word' holds int64, and the input is word: BYTES[-1]"),
    ([], {"y": np.zeros(ROWS)}, "the array 'y' is no input of the model"),
    (["--output", "scores"], {"labels": np.arange(ROWS)}, "has 3 classes, 0 to 2, and a label is"),
    (["--output", "nothing"], {}, "there is no output 'nothing'; the model gives scores, echo"),
    (["--score", "clas"], {}, "there is no score 'clas'; did you mean class?"),
    (["--score", "./none.py:f"], {}, "none.py: cannot read the file"),
    (["--task", "digit"], {}, "has no workload of a task 'digit'; did you mean digits?"),
    (["--group", "who"], {}, "there is no array 'who', which is to group"),
]


@pytest.mark.parametrize(("words", "arrays", "sentence"), WRONG)
def test_what_does_not_fit_is_said_before_anything_is_measured(
    running: Any,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    arrays: dict[str, Any],
    sentence: str,
) -> None:
    data = saved(tmp_path / "test.npz", **arrays)
    command = ["drive", str(file), "--url", f"http://{running.url}", "--data", str(data), *words]
    assert main([*command, "--duration", "500"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    # One request at most has been sent, to see what is answered.
    assert sum(running.site.stats.rows) <= 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "none.npz"], "there is no file none.npz"),
        (["--data", "digit=test.npz"], "has no workload of a task 'digit'; did you mean digits?"),
        (["--data", "digits=a.npz", "--data", "digits=b.npz"], "two files of the task 'digits'"),
        (["--data", "a.npz", "--data", "b.npz"], "several files: say whose each is, as TASK=FILE"),
        (["--data", "digits=a.npz", "--data", "b.npz"], "say whose each is, as TASK=FILE"),
        (["--score", "f1"], "are of labeled data: add --data"),
        (["--data", "labels.txt"], "labeled data come as .npz, .csv or .parquet"),
    ],
)
def test_wrong_words_are_said(
    running: Any,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "test.npz")
    (tmp_path / "labels.txt").write_text("1 2 3")
    assert main(["drive", str(file), "--url", f"http://{running.url}", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert sum(running.site.stats.rows) == 0


def test_of_several_tasks_one_is_to_be_named(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    more = "other: {variants: {a: {accuracy: 0.7, service: {mean: 1 ms}}}}"
    file.write_text(FILE.format(more=more, load="other: {arrivals: {process: poisson, rate: 1/s}}"))
    with pytest.raises(DataError, match=r"tasks digits, other: say of which one .* digits=a\.npz"):
        inferway.drive(inferway.load(file), data="a.npz")
