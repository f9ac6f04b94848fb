"""Classes of the user's own are measured as models are; one that says no signature gets one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.deployment.profile import read_profile
from inferway.machine import machine_hash
from inferway.profiling.measuring import ProfilingError
from inferway.protocol import Signature, Tensor

MUTE = """
import os
import numpy as np

class Sum:
    def predict(self, inputs):
        print("asked")
        sums = inputs["x"].sum(axis=1, dtype=np.float32)
        return {"scores": np.stack([-sums, sums], axis=1), "where": np.full(len(sums), os.getcwd())}

class Rowless:
    def predict(self, inputs):
        return {"scores": np.zeros(3)}

class Wordy:
    def predict(self, inputs):
        return "a dog"

class Broken:
    def predict(self, inputs):
        raise RuntimeError("no such weights")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MUTE)
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 3)).astype(np.float32)
    labels = (x.sum(axis=1) + random.normal(size=200) > 0).astype(int)
    np.savez(tmp_path / "test.npz", x=x, labels=labels)
    return written(tmp_path / "own.yaml", "Sum")


def written(path: Path, name: str) -> Path:
    path.write_text(
        "tasks: {sign: {accuracy_target: 0.6, variants: "
        f"{{sum: {{python: './mine.py:{name}', batch: {{sizes: [1, 2]}}}}}}}}}}"
    )
    return path


def profiled(file: Path, output: str = "scores") -> None:
    data = file.parent / "test.npz"
    inferway.profile(file, data, rounds=1, write=True, output=output)


def test_a_mute_class_is_measured_and_its_file_says_its_signature_then(file: Path) -> None:
    profiled(file)
    known = read_profile(file)
    assert known is not None
    one = known.tasks["sign"].variants["sum"]
    assert one.accuracy is not None
    assert one.accuracy.value == pytest.approx(0.83, abs=0.12)
    assert one.confidence is not None
    assert one.confidence.softmax
    here = one.machines[machine_hash()]
    assert [each.batch for each in here.alone] == [1, 2]
    assert here.memory_bytes is not None
    assert here.memory_bytes > 10e6  # a process of its own
    variant = inferway.load(file).tasks["sign"].variants["sum"]
    assert variant.accuracy == one.accuracy.value
    assert variant.python is not None
    assert variant.python.signature == Signature(
        (Tensor("x", "FP32", (-1, 3)),),
        (Tensor("scores", "FP32", (-1, 2)), Tensor("where", "BYTES", (-1,))),
    )


def test_an_edit_of_the_class_makes_its_profile_stale(file: Path) -> None:
    profiled(file)
    source = file.parent / "mine.py"
    source.write_text(source.read_text().replace("axis=1, dtype", "axis=-1, dtype"))
    with pytest.raises(inferway.DeploymentError, match="was measured on another model"):
        inferway.load(file)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Rowless", "sign/sum: predict returned output 'scores' of shape [3] to 1 rows"),
        ("Wordy", "sign/sum: predict returned no dict of arrays by output's name"),
        ("Broken", "sign/sum: no such weights"),
    ],
)
def test_a_class_that_does_not_answer_is_said(file: Path, name: str, sentence: str) -> None:
    with pytest.raises(ProfilingError) as error:
        profiled(written(file, name))
    assert sentence in str(error.value)


def test_a_class_that_is_slow_is_asked_about_few_rows_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nimport numpy as np\n"
        "class Slow:\n"
        "    inputs, outputs = {'x': ('FP32', (-1, 2))}, {'label': ('INT64', (-1,))}\n"
        "    def predict(self, inputs):\n"
        "        if (count := len(inputs['x'])) > 8:\n"
        "            time.sleep(60)\n"
        "        time.sleep(0.2 * count)\n"
        "        return {'label': np.zeros(count, np.int64)}\n"
    )
    np.savez(tmp_path / "test.npz", x=np.zeros((12, 2), np.float32), labels=np.zeros(12, int))
    file = tmp_path / "slow.yaml"
    file.write_text(
        "tasks: {t: {variants: {slow: {batch: {sizes: [1, 32]}, "
        "python: {class: './slow.py:Slow', timeout: 4 s}}}}}"
    )
    with pytest.raises(ProfilingError, match="4 s"):  # the size that the file names
        inferway.profile(file, tmp_path / "test.npz", rounds=1, write=True)
    known = read_profile(file)
    assert known is not None
    accuracy = known.tasks["t"].variants["slow"].accuracy
    assert accuracy is not None
    assert accuracy.value == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("{'a' if len(x) == 1 else 'b': x}", "returned outputs a to 1 row, and b to 2 rows"),
        ("{'a': x.reshape((-1,) + (1,) * len(x) + (3,))}", "as float32 of 3 axes to 1 row, and as"),
    ],
)
def test_outputs_that_change_with_the_rows_are_refused(file: Path, answer: str, said: str) -> None:
    (file.parent / "mine.py").write_text(
        "class Odd:\n"
        "    def predict(self, inputs):\n"
        "        x = inputs['x']\n"
        f"        return {answer}\n"
    )
    with pytest.raises(ProfilingError, match=said):
        profiled(written(file, "Odd"))
