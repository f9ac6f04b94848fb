"""Exported policies: reading, running, and refusing what is none or is for something else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.scheduling.neural_policy import fits, pairs_of, read
from inferway.scheduling.store import routings_of
from inferway.site import Fleet

Export = Callable[..., Path]
BATCHES = {"policy": "rl-po-b", "batch_sizes": ((1, 3, 5), (1, 3, 5))}


def test_forward_is_two_tanh_layers(export: Export) -> None:
    path = export()
    network, arrays = read(path), dict(np.load(path))
    observation = np.linspace(0, 1, 132, dtype=np.float32)
    values = observation.astype(float)
    for i in (0, 1):
        values = np.tanh(values @ arrays[f"weight_{i}"] + arrays[f"bias_{i}"])
    values = values @ arrays["weight_2"] + arrays["bias_2"]
    assert network.forward(observation) == pytest.approx(values, abs=1e-5)
    assert network.forward(np.array([observation] * 3)).shape == (3, 4)
    (routing,) = routings_of(network, network.forward(observation))
    assert routing.probabilities == pytest.approx(np.exp(values) / np.exp(values).sum(), abs=1e-6)
    assert (routing.smallest.tolist(), routing.largest.tolist()) == ([1, 1], [1, 1])


def test_batch_sizes_are_the_pair_with_the_greatest_output(export: Export) -> None:
    network = read(export(**BATCHES))
    assert pairs_of((1, 3, 5)) == [(1, 1), (1, 3), (1, 5), (3, 3), (3, 5), (5, 5)]
    outputs = np.zeros(4 + 6 + 6)
    outputs[4 + 2] = 1.0
    outputs[10 + 4] = 1.0
    (routing,) = routings_of(network, outputs)
    assert (routing.smallest.tolist(), routing.largest.tolist()) == ([1, 3], [5, 5])
    assert routing.probabilities.tolist() == [0.25] * 4


def damaged(path: Path, **changes: Any) -> Path:
    arrays = dict(np.load(path)) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_what_is_no_policy_is_refused(export: Export, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no trained policy"):
        read(tmp_path / "gone.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.npz is not a trained policy"):
        read(tmp_path / "text.npz")
    (tmp_path / "text.npz.xz").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.npz\.xz is not a trained policy: .*format"):
        read(tmp_path / "text.npz.xz")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="is not a trained policy"):
        read(tmp_path / "pickle.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match="is not a trained policy"):
        read(tmp_path / "one.npy")
    with pytest.raises(ValueError, match="it holds no bias_2"):
        read(damaged(export(), bias_2=None))
    with pytest.raises(ValueError, match="numbers in weight_1 that are not finite"):
        read(damaged(export(), weight_1=np.full((90, 60), np.nan, np.float32)))
    with pytest.raises(ValueError, match="its layers do not fit each other"):
        read(damaged(export(), weight_1=np.zeros((91, 60), np.float32)))
    with pytest.raises(ValueError, match="weight_0 is int64"):
        read(damaged(export(), weight_0=np.zeros((132, 90), np.int64)))
    with pytest.raises(ValueError, match=r"takes 131 numbers and gives 4; .* be 132 and 4"):
        read(damaged(export(), weight_0=np.zeros((131, 90), np.float32)))
    with pytest.raises(ValueError, match="does not say what it was trained for"):
        read(damaged(export(), about=np.array("{")))
    with pytest.raises(ValueError, match="its schema is 2, and 1 is what is read"):
        read(damaged(export(), about=np.array(json.dumps({"schema": 2}))))


def test_nothing_is_unpickled(export: Export) -> None:
    class Fire:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit('executed')",))

    with pytest.raises(ValueError, match="is not a trained policy"):
        read(damaged(export(), about=np.array([Fire()], dtype=object)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"counts": (2, 1)}, "was trained for 2 light and 1 heavy, not for 2 light and 2 heavy"),
        ({"variants": ("light", "huge")}, "for 2 light and 2 huge, not for 2 light and 2 heavy"),
        ({"buffer": 14}, "was trained for a buffer of 14, and the node has one of 15"),
        ({"deadline_s": 0.25}, "for a deadline of 250 ms, and the task has 300 ms"),
        ({"deadline_s": np.inf}, "was trained for no deadline, and the task has 300 ms"),
        ({"slot_s": 0.5}, "was trained with slots of 0.5 s, not of 1 s"),
        ({"policy": "rl-fo", "phases": 2}, "was trained as rl-fo, not as rl-po"),
    ],
)
def test_a_policy_for_something_else(
    export: Export, fleet: Fleet, changes: dict[str, Any], sentence: str
) -> None:
    fits(read(export()), fleet, policy="rl-po", deadline_s=0.3, slot_s=1.0)
    fits(read(export(deadline_s=np.inf)), fleet, policy="rl-po", deadline_s=None, slot_s=1.0)
    with pytest.raises(ValueError, match=sentence):
        fits(read(export(**changes)), fleet, policy="rl-po", deadline_s=0.3, slot_s=1.0)
