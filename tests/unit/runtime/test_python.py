"""Python classes in processes of their own: what they may do, and what becomes of it."""

from __future__ import annotations

import os
import py_compile
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_classes import PATIENCE_S, ROW, Heard, Make, X, echo, lives, until

from inferway.protocol import Signature, Tensor
from inferway.runtime import (
    ArtifactError,
    Fault,
    PythonCode,
    PythonRuntime,
    UnsaidSignatureError,
    WorkerError,
)
from inferway.runtime.bell import Bell
from inferway.runtime.worker_process import WorkerProcess


def test_a_class_answers_and_says_its_signature(make: Make) -> None:
    runtime = make(echo())
    assert runtime.signature == ROW
    answer = runtime.run({"x": X})
    np.testing.assert_array_equal(answer["y"], X)
    # What is answered is the caller's own: the next call does not change it.
    runtime.run({"x": X + 1})
    np.testing.assert_array_equal(answer["y"], X)


def test_it_starts_with_little(make: Make) -> None:
    runtime = make(
        echo(
            "self.modules = sorted(m for m in sys.modules if m.startswith('inferway'))\n"
            "assert not self.modules, self.modules\n"
            "assert 'numba' not in sys.modules and 'scipy' not in sys.modules\n"
        )
    )
    runtime.run({"x": X})


def test_it_runs_in_its_folder_beside_its_modules_with_its_variables(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7.0\n")
    (tmp_path / "weights.txt").write_text("3")
    runtime = make(
        """
        def __init__(self):
            import beside
            self.factor = beside.VALUE * float(open("weights.txt").read()) * float(os.environ["K"])
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"y": ("FP64", [-1])}
        def predict(self, inputs):
            assert os.environ["OMP_NUM_THREADS"] == "3"
            return {"y": inputs["x"].sum(axis=1).astype(float) * self.factor}
        """,
        environment={"K": "2", "OMP_NUM_THREADS": "3"},
    )
    np.testing.assert_allclose(runtime.run({"x": X})["y"], X.sum(axis=1) * 42)


@pytest.mark.parametrize(
    ("said", "datatype"),
    [
        ('"FP16"', "FP16"),
        ('"BOOL"', "BOOL"),
        ("bool", "BOOL"),
        ("np.float32", "FP32"),
        ('"float64"', "FP64"),
        ('np.dtype(">i4")', "INT32"),
        ("np.uint8", "UINT8"),
        ("int", "INT64"),
        ("str", "BYTES"),
        ("bytes", "BYTES"),
        ("object", "BYTES"),
        ('"BYTES"', "BYTES"),
    ],
)
def test_types_may_be_the_protocols_or_numpys(make: Make, said: str, datatype: str) -> None:
    runtime = make(
        f"""
        inputs = {{"x": ({said}, [-1, 2])}}
        outputs = {{"y": ({said}, (None, 2))}}
        def predict(self, inputs):
            return {{"y": inputs["x"]}}
        """
    )
    assert runtime.signature.inputs == (Tensor("x", datatype, (-1, 2)),)
    assert runtime.signature.outputs == (Tensor("y", datatype, (-1, 2)),)
    dtype = runtime.signature.inputs[0].dtype
    given = np.array([[b"a", "ü"], [b"", b"\xff"]], object) if dtype.hasobject else None
    x = np.array([[1, 0], [1, 1]]).astype(dtype) if given is None else given
    answer = runtime.run({"x": x})["y"]
    assert answer.dtype == dtype
    expected = [[b"a", "ü".encode()], [b"", b"\xff"]] if dtype.hasobject else x.tolist()
    assert answer.tolist() == expected


def test_texts_of_fixed_length_are_bytes(make: Make) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"label": (str, [-1])}
        def predict(self, inputs):
            return {"label": np.array(["cat", "häher"])}
        """
    )
    assert runtime.run({"x": X})["label"].tolist() == [b"cat", "häher".encode()]


def test_attributes_may_be_the_instances(make: Make) -> None:
    runtime = make(
        """
        def __init__(self):
            self.inputs, self.outputs = {"x": ("FP32", [-1, 4])}, {"y": ("FP32", [-1, 4])}
        def predict(self, inputs):
            return {"y": inputs["x"]}
        """
    )
    assert runtime.signature == ROW


def test_what_others_say_holds_where_a_class_says_nothing(make: Make) -> None:
    body = "def predict(self, inputs):\n    return {'y': inputs['x']}\n"
    assert make(body, signature=ROW).signature is ROW
    with pytest.raises(UnsaidSignatureError, match="has no `inputs` and `outputs`, and nothing"):
        make(body)


def test_the_order_of_tensors_is_the_tasks(make: Make) -> None:
    a, b = Tensor("a", "FP32", (-1, 1)), Tensor("b", "FP32", (-1, 1))
    runtime = make(
        """
        outputs = {"b": ("FP32", [-1, 1]), "a": ("FP32", [-1, 1])}
        inputs = {"b": ("FP32", [-1, 1]), "a": ("FP32", [-1, 1])}
        def predict(self, inputs):
            return {"a": inputs["b"], "b": inputs["a"], "more": None}
        """,
        signature=Signature((a, b), (a, b)),
    )
    assert runtime.signature == Signature((a, b), (a, b))
    ones = np.ones((1, 1), np.float32)
    answer = runtime.run({"a": ones, "b": 2 * ones})
    assert list(answer) == ["a", "b"]
    assert (answer["a"].item(), answer["b"].item()) == (2.0, 1.0)


PREDICT = "def predict(self, inputs):\n    return {'y': inputs['x']}\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "it has no method `predict(self, inputs)`"),
        ("def __init__(self):\n    1 / 0", r"Model() raised ZeroDivisionError: division by zero"),
        (PREDICT + "inputs = 3", "its `inputs` is a value of type int; expected {name:"),
        (PREDICT + "inputs = {}", "its `inputs` is a value of type dict; expected {name:"),
        (PREDICT + "inputs = {'x': 'FP32'}", "its `inputs` says of 'x': 'FP32'; expected such as"),
        (PREDICT + "inputs = {'x': ('FP32', 4)}", "its `inputs` says of 'x': ('FP32', 4)"),
        (PREDICT + "inputs = {'x': ('FP32', ['n'])}", "its `inputs` says of 'x'"),
        (PREDICT + "inputs = {'x': (3, [-1])}", "its `inputs` says of 'x': (3, [-1])"),
        (PREDICT + "inputs = {'x': ('FP32', [-1])}", "has no `outputs`; it needs both or neither"),
        (
            PREDICT + "inputs = outputs = {'x': ('FP33', [-1])}",
            "its `inputs` says of 'x' the type 'FP33'; expected one of BOOL, UINT8",
        ),
        (PREDICT + "inputs = outputs = {'x': (complex, [-1])}", "the type '<c16'; expected one of"),
        (
            PREDICT + "inputs = outputs = {'x': ('FP32', [4])}",
            "the shape [4], whose first axis is not the batch; write [-1, 4] if that is",
        ),
        (PREDICT + "inputs = outputs = {'x': ('FP32', [])}", "the shape [], whose first axis"),
        (PREDICT + "inputs = outputs = {'x': ('FP32', [-1, 0])}", "an axis is 1 or more long, or"),
        (
            PREDICT + "def warm_up(self):\n    raise OSError('no file')",
            "warm_up raised OSError: no",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(make: Make, body: str, said: str) -> None:
    known = None if "inputs" in body.replace("self, inputs", "").replace("inputs[", "") else ROW
    with pytest.raises(ArtifactError) as refused:
        make(body, signature=known)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import no_such_module", "its file does not load: ModuleNotFoundError: No module named"),
        ("sys.exit(3)", "its file does not load: SystemExit: 3"),
        ("os._exit(7)", "its worker ended with exit code 7 before it was ready"),
        ("os.kill(os.getpid(), 11)", "its worker was ended by SIGSEGV before it was ready"),
        ("def f(:", "its file does not load: SyntaxError"),
        ("raise ValueError('a\\nb')", "its file does not load: ValueError: a b"),
    ],
)
def test_a_file_that_does_not_load_is_said(make: Make, before: str, said: str) -> None:
    with pytest.raises(ArtifactError) as refused:
        make(PREDICT, before=before, signature=ROW)
    assert said in str(refused.value)


def test_a_class_or_a_folder_that_is_not_there_is_said(make: Make, tmp_path: Path) -> None:
    make(PREDICT, signature=ROW)
    with pytest.raises(ArtifactError, match="its file has no class 'Other'"):
        PythonRuntime(PythonCode(tmp_path / "mine.py", "Other", tmp_path), signature=ROW)
    with pytest.raises(ArtifactError, match="its worker cannot be started"):
        PythonRuntime(PythonCode(tmp_path / "mine.py", "Model", tmp_path / "no"), signature=ROW)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("None", "predict returned None; expected a dict of arrays by output's name"),
        ("{}", "predict returned no output 'y'; it returned nothing"),
        ("{'z': inputs['x']}", "predict returned no output 'y'; it returned 'z'"),
        ("{'y': [1.0]}", "output 'y' as a value of type list; expected a NumPy array"),
        (
            "{'y': inputs['x'].astype(float)}",
            "output 'y' as float64; expected float32, and nothing",
        ),
        ("{'y': inputs['x'][:1]}", "of shape [1, 4] to 2 rows; expected [2, 4]"),
        ("{'y': inputs['x'].T}", "of shape [4, 2] to 2 rows; expected [2, 4]"),
        ("{'y': inputs['x'][:, 0]}", "of shape [2] to 2 rows; expected [2, 4]"),
        ("inputs['z']", "predict raised KeyError: 'z'"),
        ("sys.exit('enough')", "predict raised SystemExit: enough"),
        ("(_ for _ in ()).throw(ValueError('a\\nb'))", "predict raised ValueError: a b"),
    ],
)
def test_what_predict_does_wrong_is_said_and_the_worker_lives_on(
    make: Make, answer: str, said: str
) -> None:
    runtime = make(
        f"""
        inputs = {{"x": ("FP32", [-1, 4])}}
        outputs = {{"y": ("FP32", [-1, 4])}}
        def predict(self, inputs):
            return {answer} if inputs["x"][0, 0] == 0 else {{"y": inputs["x"]}}
        """
    )
    before = runtime.workers
    with pytest.raises(WorkerError) as failed:
        runtime.run({"x": X})
    assert said in str(failed.value)
    assert failed.value.fault is Fault.BROKEN
    assert not failed.value.unserved
    np.testing.assert_array_equal(runtime.run({"x": X + 1})["y"], X + 1)
    assert (runtime.workers, runtime.restarts) == (before, 0)


def test_elements_of_bytes_must_be_text_or_bytes(make: Make) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"y": (str, [-1])}
        def predict(self, inputs):
            return {"y": np.array([b"a", 3], object)}
        """
    )
    with pytest.raises(WorkerError, match="output 'y' with an element of type int; expected bytes"):
        runtime.run({"x": X})


def test_text_that_cannot_be_encoded_costs_the_request_alone(make: Make) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"y": (str, [-1])}
        def predict(self, inputs):
            return {"y": np.array([chr(0xd800), "a"], object)}
        """
    )
    before = runtime.workers
    with pytest.raises(WorkerError, match="what predict returned cannot be sent: UnicodeEncode"):
        runtime.run({"x": X})
    assert runtime.workers == before


def test_the_traceback_of_an_exception_is_logged(make: Make, log: Heard) -> None:
    runtime = make(echo("raise ValueError('no such row')"))
    with pytest.raises(WorkerError, match=r"^predict raised ValueError: no such row$"):
        runtime.run({"x": X})
    (event,) = log.events("predict raised")
    assert 'mine.py", line' in event["traceback"]
    assert "worker.py" not in event["traceback"]


def test_what_is_printed_is_logged_by_lines(make: Make, log: Heard) -> None:
    runtime = make(
        echo(
            """
            print("to output")
            print("to error", file=sys.stderr)
            os.write(1, b"to the descriptor\\n")
            import ctypes
            ctypes.CDLL(None).puts(b"from C")
            print("long " + "x" * 5000)
            """
        ),
        before="print('at import')",
        # Where it is set, the interpreter has each line go out, and nobody else need do it.
        environment={"PYTHONUNBUFFERED": ""},
    )
    runtime.run({"x": X})
    until(lambda: len(log.lines) >= 6)
    assert log.lines[:5] == ["at import", "to output", "to error", "to the descriptor", "from C"]
    assert len(log.lines[5]) == 2003
    assert log.lines[5].endswith("x...")


def test_a_flood_of_lines_is_counted_and_does_not_hold_a_call(make: Make, log: Heard) -> None:
    runtime = make(echo("for i in range(100_000): print('line', i)"))
    runtime.run({"x": X})
    runtime.close()
    runtime.wait()
    assert 0 < len(log.lines) <= 30_000
    left_out = sum(more["lines"] for more in log.events("left out"))
    assert left_out + len(log.lines) == 100_000


def test_a_call_that_hangs_is_killed_and_the_next_is_answered(make: Make) -> None:
    runtime = make(echo("if inputs['x'][0, 0] == 0: time.sleep(1000)"), timeout_s=5.0)
    (before,) = runtime.workers
    with pytest.raises(WorkerError, match=r"predict took longer than its `timeout`, 5 s") as late:
        runtime.run({"x": X})
    assert late.value.fault is Fault.LATE
    np.testing.assert_array_equal(runtime.run({"x": X + 1})["y"], X + 1)
    assert runtime.workers != [before]
    assert runtime.restarts == 1
    until(lambda: not lives(before))


def test_one_that_holds_the_interpreter_is_killed_as_well(make: Make) -> None:
    hang = "import ctypes\nif inputs['x'][0, 0] == 0: ctypes.PyDLL(None).sleep(1000)"
    runtime = make(echo(hang), timeout_s=5.0)
    with pytest.raises(WorkerError, match="took longer"):
        runtime.run({"x": X})
    runtime.run({"x": X + 1})


@pytest.mark.parametrize(
    ("death", "said"),
    [
        ("os._exit(5)", "its worker ended with exit code 5"),
        ("os.kill(os.getpid(), 9)", "its worker was ended by SIGKILL, as the system does where"),
        ("import ctypes; ctypes.string_at(0)", "its worker was ended by SIGSEGV"),
        ("os.kill(os.getpid(), 15)", "its worker was ended by SIGTERM"),
    ],
)
def test_a_worker_that_dies_costs_the_request_in_its_hands(
    make: Make, log: Heard, death: str, said: str
) -> None:
    runtime = make(echo(f"if inputs['x'][0, 0] == 0:\n    {death}"))
    with pytest.raises(WorkerError) as failed:
        runtime.run({"x": X})
    assert said in str(failed.value)
    assert failed.value.fault is Fault.BROKEN
    np.testing.assert_array_equal(runtime.run({"x": X + 1})["y"], X + 1)
    assert runtime.restarts == 1
    assert [more["reason"] for more in log.events("a worker ended")] == [str(failed.value)]


def test_what_dies_between_two_calls_costs_none(make: Make) -> None:
    runtime = make(echo())
    for _ in range(3):
        (pid,) = runtime.workers
        os.kill(pid, signal.SIGKILL)
        # The call may come before anybody has seen the end of the process.
        np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)
        assert runtime.workers != [pid]


def test_what_a_worker_has_started_ends_with_it(make: Make, tmp_path: Path) -> None:
    runtime = make(
        echo(
            """
            import subprocess
            child = subprocess.Popen(["sleep", "1000"])
            open("child", "w").write(str(child.pid))
            os._exit(1)
            """
        )
    )
    with pytest.raises(WorkerError):
        runtime.run({"x": X})
    child = int((tmp_path / "child").read_text())
    until(lambda: not lives(child))


def test_repeated_crashes_wait_longer_and_others_are_asked_meanwhile(make: Make) -> None:
    runtime = make(echo("os._exit(1)"))
    faults = []
    ends_s = time.monotonic() + PATIENCE_S
    while Fault.UNREACHABLE not in faults:
        assert time.monotonic() < ends_s
        with pytest.raises(WorkerError) as failed:
            runtime.run({"x": X})
        faults.append(failed.value.fault)
    assert faults[0] is Fault.BROKEN
    # Nothing has run, so that another variant may be asked.
    assert failed.value.unserved
    assert "exit code 1; another one is started in" in str(failed.value)


def test_one_that_cannot_be_started_again_is_tried_until_it_can(make: Make, tmp_path: Path) -> None:
    runtime = make(echo("os._exit(1)"))
    path = tmp_path / "mine.py"
    good = path.read_text().replace("os._exit(1)", "pass")
    path.write_text("raise ValueError('broken now')\n")
    with pytest.raises(WorkerError, match="exit code 1"):
        runtime.run({"x": X})
    with pytest.raises(WorkerError, match="ValueError: broken now; another one is started in"):
        runtime.run({"x": X})
    path.write_text(good)
    until(lambda: runtime.workers)
    np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)


def test_another_signature_after_a_restart_is_refused(make: Make, tmp_path: Path) -> None:
    runtime = make(echo("os._exit(1)"))
    path = tmp_path / "mine.py"
    # What Python has compiled of the old text is, by second and length, that of the new one.
    changed_ns = path.stat().st_mtime_ns
    py_compile.compile(str(path))
    path.write_text(path.read_text().replace("[-1, 4]", "[-1, 5]"))
    os.utime(path, ns=(changed_ns, changed_ns))
    with pytest.raises(WorkerError, match="exit code 1"):
        runtime.run({"x": X})
    with pytest.raises(WorkerError, match=r"its signature .* is not what it was before"):
        runtime.run({"x": X})


def test_a_worker_that_leaks_is_replaced_between_two_calls(make: Make, log: Heard) -> None:
    runtime = make(
        """
        kept = []
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"y": ("FP32", [-1, 4])}
        def predict(self, inputs):
            self.kept.append(np.ones(4_000_000))
            return {"y": inputs["x"]}
        """,
        memory_bytes=200 * 2**20,
    )
    first = runtime.workers
    ends_s = time.monotonic() + PATIENCE_S
    while not runtime.restarts:
        assert time.monotonic() < ends_s
        np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)
    assert runtime.workers != first
    (event,) = log.events("is replaced")
    assert event["bytes"] > event["limit"] == 200 * 2**20
    assert not log.events("a worker ended")


def test_one_that_is_replaced_answers_until_its_successor_is_ready(
    make: Make, tmp_path: Path
) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"y": ("FP32", [-1, 4])}
        def __init__(self):
            if os.path.exists("slow"):
                open("loading", "w").close()
                while not os.path.exists("ready"): time.sleep(0.01)
        def predict(self, inputs):
            return {"y": inputs["x"]}
        """,
        memory_bytes=200 * 2**20,
    )
    (tmp_path / "slow").touch()
    (first,) = runtime.workers
    object.__setattr__(runtime.code, "memory_bytes", 1)
    runtime.run({"x": X})
    until((tmp_path / "loading").exists)
    for _ in range(10):
        np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)
    assert runtime.restarts == 0
    object.__setattr__(runtime.code, "memory_bytes", None)
    (tmp_path / "ready").touch()
    until(lambda: first not in runtime.workers)
    np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)
    assert len(runtime.workers) == runtime.restarts == 1


WITHOUT_FILES = """
import os, resource, signal, sys, time, numpy as np
from pathlib import Path
from inferway.runtime import ArtifactError, PythonCode, PythonRuntime

class Log:
    failed = 0
    def error(self, event, **more):
        self.failed += event == "a worker could not be started"
    info = warning = error

def until(condition):
    ends_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.01)

files = lambda: len(os.listdir("/proc/self/fd"))
log = Log()
runtime = PythonRuntime(PythonCode(Path(sys.argv[1]), "Model"), log=log)
x = {"x": np.ones((1, 4), np.float32)}
runtime.run(x)
before = files()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for room in range(10):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, hard))
    try:
        runtime.reserve(2)
    except ArtifactError as error:
        print("Too many open files" in str(error))
    else:
        print("no error with", room)
resource.setrlimit(resource.RLIMIT_NOFILE, (before - 8, hard))
os.kill(runtime.workers[0], signal.SIGKILL)
until(lambda: log.failed)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
until(lambda: runtime.workers)
print(runtime.run(x)["y"].sum())
print(files() - before)
runtime.close()
runtime.wait()
"""


def test_without_files_a_start_fails_is_said_and_tried_again(make: Make, tmp_path: Path) -> None:
    make(echo())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES, str(tmp_path / "mine.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["True"] * 10 + ["4.0", "0"], done.stdout + done.stderr


def test_one_that_ends_before_it_is_spoken_to_is_said_to(tmp_path: Path, log: Heard) -> None:
    (tmp_path / "mine.py").touch()
    code = PythonCode(tmp_path / "mine.py", "Model", environment={"PYTHONHOME": "/nonexistent"})
    worker = WorkerProcess(code, log, Bell())
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ArtifactError, match="ended with exit code 1 before it was ready"):
        worker.begin(ROW)


def test_keys_of_the_server_are_none_of_a_workers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWAY_KEYS", "admin=one")
    monkeypatch.setenv("INFERWAY_KEY", "one")
    runtime = make(
        echo(
            "assert os.environ.get('INFERWAY_KEY') == 'own'\n"
            "assert 'INFERWAY_KEYS' not in os.environ"
        ),
        environment={"INFERWAY_KEY": "own"},
    )
    runtime.run({"x": X})


def test_each_instance_has_a_worker_and_they_run_at_once(make: Make, tmp_path: Path) -> None:
    # Each call waits until all three are under way.
    runtime = make(
        echo(
            """
            open(f"here-{os.getpid()}", "w").close()
            while sum(name.startswith("here-") for name in os.listdir()) < 3: time.sleep(0.01)
            """
        )
    )
    runtime.reserve(3)
    assert len(runtime.workers) == 3
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda i: runtime.run({"x": X + i})["y"], range(3)))
    for i, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, X + i)
    runtime.reserve(1)
    until(lambda: len(runtime.workers) == 1)
    assert runtime.restarts == 0
    np.testing.assert_array_equal(runtime.run({"x": X})["y"], X)


def test_other_calls_go_on_while_one_worker_is_killed(make: Make) -> None:
    runtime = make(echo("time.sleep(0.002)\nif inputs['x'][0, 0] < 0: os._exit(1)"))
    runtime.reserve(2)
    failed: list[Exception] = []

    def call(i: int) -> bool:
        try:
            given = np.full((1, 4), -1.0 if i % 20 == 10 else i, np.float32)
            return bool((runtime.run({"x": given})["y"] == given).all())
        except WorkerError as error:
            failed.append(error)
            return False

    with ThreadPoolExecutor(2) as threads:
        answered = list(threads.map(call, range(60)))
    assert answered.count(False) == len(failed) == 3
    assert [i for i, right in enumerate(answered) if not right] == [10, 30, 50]


def test_large_arrays_go_through_memory_that_grows_and_is_given_back(make: Make) -> None:
    runtime = make(echo())
    (pid,) = runtime.workers
    for rows in (1, 1_000_000, 3, 2_000_000):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(runtime.run({"x": x})["y"], x)

    def shared() -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("RssShmem:")[2].split()[0])

    until(lambda: shared() < 4096)


def test_a_large_request_that_kills_its_worker_is_not_tried_again(make: Make) -> None:
    runtime = make(echo("if len(inputs['x']) > 2: os._exit(1)"))
    with pytest.raises(WorkerError, match="exit code 1"):
        runtime.run({"x": np.zeros((1_000_000, 4), np.float32)})
    runtime.run({"x": X})
    assert runtime.restarts == 1


def test_no_rows_of_what_has_open_axes(make: Make) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, -1])}
        outputs = {"y": ("FP32", [-1, -1]), "n": ("INT64", [-1])}
        def predict(self, inputs):
            x = inputs["x"]
            return {"y": x[:, x[0] > 0], "n": np.full(len(x), x.shape[1])}
        """
    )
    answer = runtime.run({"x": -np.ones((2, 3), np.float32)})
    assert answer["y"].shape == (2, 0)
    assert answer["n"].tolist() == [3, 3]


def test_what_is_not_contiguous_is_copied_right(make: Make) -> None:
    runtime = make(echo().replace('inputs["x"]}', 'inputs["x"][::-1].T.copy().T}'))
    x = np.arange(64, dtype=np.float32).reshape(4, 16)[:, ::4]
    np.testing.assert_array_equal(runtime.run({"x": x})["y"], x[::-1])


def test_warm_up_and_close_are_called_once(make: Make, log: Heard) -> None:
    runtime = make(
        """
        inputs = {"x": ("FP32", [-1, 4])}
        outputs = {"y": ("FP32", [-1, 4])}
        def warm_up(self): print("warm")
        def close(self): print("closed")
        def predict(self, inputs): return {"y": inputs["x"]}
        """
    )
    (pid,) = runtime.workers
    runtime.run({"x": X})
    runtime.close()
    runtime.close()
    runtime.wait()
    assert log.lines == ["warm", "closed"]
    assert not lives(pid)
    with pytest.raises(RuntimeError, match="the runtime is closed"):
        runtime.run({"x": X})


def test_a_call_under_way_still_ends_when_it_is_closed(make: Make, tmp_path: Path) -> None:
    runtime = make(
        echo("open('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(.01)")
    )
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(runtime.run({"x": X})["y"]))
    thread.start()
    until((tmp_path / "begun").exists)
    runtime.close()
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    np.testing.assert_array_equal(answers[0], X)


def test_the_time_to_close_begins_after_the_call_and_all_who_wait_are_told(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferway.runtime.worker_process.CLOSE_S", 0.1)
    runtime = make(echo("open('begun', 'w').close()\ntime.sleep(1)"))
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(runtime.run, {"x": X})
        until((tmp_path / "begun").exists)
        others = [threads.submit(runtime.run, {"x": X}) for _ in range(3)]
        runtime.close()
        np.testing.assert_array_equal(first.result(PATIENCE_S)["y"], X)
        for other in others:
            with pytest.raises(RuntimeError, match="the runtime is closed"):
                other.result(20.0)  # less than they would wait for a worker


def test_a_worker_that_does_not_close_in_time_is_said_to_be_killed_by_us(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferway.runtime.worker_process.CLOSE_S", 0.1)
    runtime = make(echo() + "    def close(self): time.sleep(1000)\n")
    (worker,) = runtime._workers
    runtime.close()
    until(lambda: worker.ending)
    assert worker.ending == "its worker was to end and was killed"


SCRIPT = """
import sys, time, numpy as np
from pathlib import Path
from inferway.runtime import PythonCode, PythonRuntime
runtime = PythonRuntime(PythonCode(Path(sys.argv[1]), "Model", Path(sys.argv[2])))
print(*runtime.workers, flush=True)
if sys.argv[3] == "stay":
    runtime.run({"x": np.zeros((1, 4), np.float32)})
"""


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_no_worker_outlives_its_server(make: Make, tmp_path: Path, end: str) -> None:
    # It holds the interpreter, so that no thread of its own could end it.
    make(echo("import ctypes\nctypes.PyDLL(None).sleep(1000)"))
    stays = "stay" if end == "kill" else "leave"
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "mine.py"), str(tmp_path), stays],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    with program:
        pid = int(program.stdout.readline())
        assert os.getpgid(pid) == pid
        if end == "kill":
            assert lives(pid)
            program.kill()
    until(lambda: not lives(pid))


def test_lines_of_those_without_a_log_go_to_standard_error(
    make: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(echo("print('a line')"))
    code = PythonCode(tmp_path / "mine.py", "Model", tmp_path)
    with closing(PythonRuntime(code, name="own")) as runtime:
        runtime.run({"x": X})
    runtime.wait()
    assert capfd.readouterr().err.splitlines() == ["own: a line"]
