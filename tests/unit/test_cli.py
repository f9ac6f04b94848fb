"""The command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.cli import main
from inferway.cli.terminal import CommandError, report

COMMANDS = [
    "demo",
    "train",
    "serve",
    "apply",
    "drive",
    "bound",
    "check",
    "replay",
    "schema",
    "conformance",
    "simulate",
    "plan",
    "study",
    "zoo",
]
HEAVY = ("numba", "scipy", "matplotlib", "onnxruntime", "onnx", "torch", "sklearn", "pydantic")
TWO_VARIANTS = """
tasks:
  words:
    accuracy_target: 0.8
    variants:
      small: {accuracy: 0.7, service: {distribution: exponential, mean: 1 s}}
      large: {accuracy: 0.9, service: {distribution: exponential, mean: 4 s}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a deployment file without models."""
    path = tmp_path / "words.yaml"
    path.write_text(TWO_VARIANTS)
    return path


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as a person does, in a process of its own."""
    command = [sys.executable, "-m", "inferway", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Run a command with --json and return its one document."""
    assert main([*map(str, arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    found = json.loads(output.out)
    assert isinstance(found, dict)
    return found


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that fails and return the one line that it prints."""
    assert main([*map(str, arguments)]) != 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert output.err.startswith("inferway: ")
    assert output.err.count("\n") == 1
    return output.err


# --- as a whole


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from inferway.cli import main; main(['--help'])\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_every_command_has_json_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    alone = [[one] for one in COMMANDS if one != "study"]
    below = [["zoo", "build"], ["zoo", "profile"], ["study", "list"], ["study", "run"]]
    for words in alone + below:
        assert main([*words, "--help"]) == 0
        assert "--json" in capsys.readouterr().out, words


def test_help_says_what_defaults_stand_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "Such as 120/s. [default: (the file's workload)]" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"inferway {inferway.__version__}\n"


def test_shells_can_complete_commands_and_policies() -> None:
    def completions(words: str) -> list[str]:
        environment = os.environ | {
            "_INFERWAY_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        code = "from inferway.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        return done.stdout.split()

    assert completions("inferway bo") == ["bound"]
    assert completions("inferway serve x.yaml --policy tad") == ["tad", "tad-op"]


def test_a_mistyped_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bund"]) == 2
    assert "Did you mean 'bound'?" in capsys.readouterr().err


def test_usage_errors_are_one_sentence(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "'FILE'" in sentence(capsys, "bound")
    assert "--nope" in sentence(capsys, "bound", file, "--nope")
    assert "inferway serve --help" in sentence(capsys, "serve", file, "--http-port", "70000")
    assert main(["bound"]) == 2


def test_a_mistyped_file_is_guessed(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    error = sentence(capsys, "bound", file.with_name("word.yaml"))
    assert "there is no file" in error
    assert "did you mean" in error
    assert "words.yaml" in error
    assert main(["bound", str(file.with_name("word.yaml"))]) == 2
    capsys.readouterr()
    # A link to what has gone is no guess.
    gone = file.with_name("gone.yaml")
    gone.symlink_to(file.with_name("moved.yaml"))
    assert "did you mean" not in sentence(capsys, "bound", gone)
    # A folder is one of models, and says how these would stand in it.
    assert main(["bound", str(file.parent)]) == 2
    assert "holds no model" in capsys.readouterr().err


def test_a_wrong_file_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(TWO_VARIANTS.replace("accuracy_target: 0.8", "accuracy_target: 0.95"))
    done = run("bound", path, "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"{path}:4: tasks.words.accuracy_target: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (CommandError("no", 7), 7, "inferway: no\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 1, ""),
        (ValueError("the port is taken"), 1, "inferway: the port is taken\n"),
        (PermissionError(13, "Permission denied", "a.png"), 1, "inferway: a.png: Permission"),
        (OSError(28, "No space left on device"), 1, "inferway: No space left on device\n"),
        (ModuleNotFoundError("x", name="torch"), 1, "pip install 'inferway[learn]'"),
        (ModuleNotFoundError("x", name="numba"), 1, "reinstall"),
        (KeyError("k"), 1, "this is a bug in inferway: KeyError: 'k'"),
    ],
)
def test_errors_become_a_sentence_and_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    assert report(error) == code
    assert words in capsys.readouterr().err


def test_a_traceback_comes_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWAY_DEBUG", "1")
    report(KeyError("k"))
    assert "KeyError" in capsys.readouterr().err.splitlines()[0]


def test_ctrl_c_ends_quietly(tmp_path: Path) -> None:
    pipe = tmp_path / "never.yaml"
    os.mkfifo(pipe)
    # `existing` wants a plain file, so the wait is made inside `load`.
    code = (
        "import os, sys, time, inferway.cli.options as f\n"
        "from inferway.cli import main\n"
        "f.existing = lambda path: (print('waiting', flush=True), time.sleep(60))\n"
        f"sys.exit(main(['bound', {str(pipe)!r}]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == ""


# --- bound


def test_bound_of_the_paper_fleet(capsys: pytest.CaptureFixture[str], examples: Path) -> None:
    found = document(capsys, "bound", examples / "paper-fleet.yaml")
    assert found["schema"] == 1
    assert found["network"] is None
    (task,) = found["tasks"].values()
    assert task["max_rate_normalized"] == pytest.approx(0.708333, abs=1e-6)
    assert task["max_rate_per_s"] == pytest.approx(64 * 0.708333, abs=1e-4)
    assert task["least_response_time_s"] == pytest.approx(0.866667, abs=1e-6)
    assert task["rate_per_s"] == pytest.approx(0.5 * task["max_rate_per_s"])
    assert sum(task["shares"].values()) == pytest.approx(1)
    for one in task["tuples"]:
        assert set(one) == {"variants", "routing", "cost_s"}
        assert len(one["variants"]) == len(one["routing"])


def test_bound_of_asking_twice(
    capsys: pytest.CaptureFixture[str], examples: Path, tmp_path: Path
) -> None:
    text = (examples / "paper-fleet.yaml").read_text()
    line = "    accuracy_target: 0.76\n"
    assert line in text
    file = tmp_path / "sure.yaml"
    file.write_text(text.replace(line, f"{line}    difficulty: {{quality: 0.9}}\n"))
    (task,) = document(capsys, "bound", file, "--escalate")["tasks"].values()
    twice = task["escalate"]
    assert set(twice) == {"max_rate_per_s", "least_response_time_s", "first", "then"}
    assert twice["max_rate_per_s"] > task["max_rate_per_s"]
    assert twice["least_response_time_s"] < task["least_response_time_s"]
    assert sum(twice["first"].values()) == pytest.approx(1)
    for one in twice["then"]:
        assert set(one) == {"from", "bin", "to", "share"}
        assert one["share"] <= twice["first"][one["from"]] / 20 + 1e-9
    assert main(["bound", str(file), "--escalate"]) == 0
    assert "Where a second variant may be asked" in capsys.readouterr().out
    (plain,) = document(capsys, "bound", file)["tasks"].values()
    assert "escalate" not in plain


def test_bound_without_a_rate(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    task = document(capsys, "bound", file)["tasks"]["words"]
    # One instance each: the large one runs full, 0.25/s, and pays for as much on the small one.
    assert task["max_rate_per_s"] == pytest.approx(0.5)
    assert task["rate_per_s"] is None
    assert task["least_response_time_s"] is None


def test_bound_in_words(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert main(["bound", str(file)]) == 0
    words = capsys.readouterr().out
    assert "0.5/s" in words
    assert "none in the file" in words
    assert "small + large" in words


# --- check


def test_check_of_a_good_file(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    found = document(capsys, "check", file)
    assert found["errors"] == []
    assert found["tasks"]["words"]["policy"] == "priced"
    assert found["tasks"]["words"]["variants"] == ["small", "large"]
    # Variants without models are for the twin.
    assert any("words" in one for one in found["unserved"])


def test_check_says_errors_with_file_line_and_field(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(TWO_VARIANTS.replace("accuracy: 0.7", "acuracy: 0.7"))
    assert main(["check", str(file), "--json"]) == 1
    (error, *_) = json.loads(capsys.readouterr().out)["errors"]
    assert error["file"] == str(file)
    assert error["line"] == 6
    assert error["field"].startswith("tasks.words.variants.small")
    assert main(["check", str(file)]) == 1
    assert f"{file}:6: error: tasks.words.variants.small" in capsys.readouterr().out


def test_check_warns_and_strict_fails(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(TWO_VARIANTS + "      idle: {accuracy: 0.6, service: {mean: 2 s}}\n")
    warnings = document(capsys, "check", file)["warnings"]
    assert any("idle" in one["field"] + one["message"] for one in warnings)
    assert main(["check", str(file)]) == 0
    assert "warning: " in capsys.readouterr().out
    assert main(["check", str(file), "--strict"]) == 1


# --- schema and zoo


def test_schema_is_the_published_one(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    found = document(capsys, "schema")
    assert found == json.loads((root / "docs" / "deployment.schema.json").read_text())


def test_zoo_lists_the_ladder(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "zoo")
    digits = found["zoos"]["digits"]
    times = [one["service"][0]["mean_s"] for one in digits["profiles"]]
    assert 5 <= len(times) <= 8
    assert times == sorted(times)
    assert main(["zoo"]) == 0
    words = capsys.readouterr().out
    assert all(one["name"] in words for one in digits["profiles"])


# --- serve


def test_serve_with_and_without_grpc_at_once_is_refused(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    options = ("--grpc-port", "8001", "--no-grpc")
    assert "cannot be given together" in sentence(capsys, "serve", file, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--http-port 8011 --admin-port 8011", "--http-port and --admin-port are both 8011"),
        ("--http-port 8002 --no-grpc", "--http-port and --admin-port are both 8002"),
        ("--grpc-port 8000 --admin-host ::1", "--http-port and --grpc-port are both 8000"),
        ("--host 0.0.0.0 --http-port 8002", "--http-port and --admin-port are both 8002"),
        ("--http-port 1 --host 192.0.2.1", "--http-port 1 at 192.0.2.1: Cannot assign"),
    ],
)
def test_serve_says_which_port_cannot_be(
    capsys: pytest.CaptureFixture[str], examples: Path, options: str, said: str
) -> None:
    arguments = ["serve", examples / "digits.yaml", "--log-level", "error", *options.split()]
    assert sentence(capsys, *arguments).startswith(f"inferway: {said}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["serve", "{file}", "--tls-cert", "c.pem"], "--tls-cert and --tls-key go together"),
        (["serve", "{file}", "--tls-cert", "c", "--tls-key", "k"], "TLS is not possible with c"),
        (["serve", "{file}", "--keys", "none"], "the keys cannot be read from none: No such file"),
        (
            ["serve", "{file}", "--record", "{file}/x", "--log-level", "error"],
            "nothing can be recorded in {file}/x: Not a directory",
        ),
        (["serve", "{file}", "--admin-host", "0.0.0.0"], "would be open to the network"),
        (["serve", "none.yaml"], "there is no file none.yaml"),
        (["serve", "{file}", "--policy", "./none.py:Mine"], "there is no policy file"),
        (["apply", "none.yaml"], "there is no file none.yaml"),
        (["apply", "{file}", "--key-file", "none"], "none cannot be read: No such file"),
        (["drive", "{file}", "--key-file", "none"], "none cannot be read: No such file"),
        (["replay", "{blocked}"], "recording.json cannot be read: Is a directory"),
        (["apply", "{file}", "--admin-url", "ftp://here"], "ftp://here"),
        (["drive", "{file}", "--url", "http://here:x"], "http://here:x"),
        (["conformance", "http://"], "http://"),
        (["replay", "none"], "holds no recording"),
        (["replay", "none", "--requests", "-1"], "Invalid value for '--requests'"),
        (["bund"], "No such command"),
        (["plan", "{file}", "--peak", "much"], "Invalid value for '--peak': a peak is a number of"),
        (["bound", "{tree}"], "the file lists no `nodes`"),
        (["bound", "{tree}", "--node", "base-0"], "the file lists no `nodes`"),
        (["bound", "{file}", "--node", "mars"], "unknown node 'mars'"),
        (["drive", "{tree}"], "nothing says where that node listens"),
        (["drive", "{tree}", "--addresses", "none.json"], "none.json cannot be read"),
        (["drive", "{tree}", "--addresses", "{file}"], "holds no addresses"),
    ],
)
def test_what_makes_no_sense_is_2(
    capsys: pytest.CaptureFixture[str],
    examples: Path,
    tmp_path: Path,
    words: list[str],
    why: str,
) -> None:
    (tmp_path / "recording.json").mkdir()
    ports = ["--http-port", "0", "--admin-port", "0", "--no-grpc"] * (words[0] == "serve")
    files = {"file": examples / "digits.yaml", "tree": examples / "delivery-network.yaml"}
    files["blocked"] = tmp_path
    arguments = [word.format(**files) for word in words] + ports
    said = sentence(capsys, *arguments)
    assert why.format(**files) in said
    assert "Errno" not in said
    assert main(arguments) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["apply", "{file}", "--admin-url", "http://127.0.0.1:9"],
        ["drive", "{file}", "--url", "http://127.0.0.1:9", "--duration", "0.1"],
        ["conformance", "http://127.0.0.1:9"],
    ],
)
def test_what_does_not_work_is_1(
    capsys: pytest.CaptureFixture[str], examples: Path, words: list[str]
) -> None:
    arguments = [word.format(file=examples / "digits.yaml") for word in words]
    assert "127.0.0.1:9" in sentence(capsys, *arguments)
    assert main(arguments) == 1


def test_serve_guesses_a_mistyped_policy(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "did you mean 'tad-op'?" in sentence(capsys, "serve", file, "--policy", "tadop")
    assert "unknown policy" in sentence(capsys, "serve", file, "--policy", "xyz")
    assert "lost.py" in sentence(capsys, "serve", file, "--policy", "./lost.py:Mine")


def test_serve_refuses_what_it_cannot_run(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert main(["serve", str(file), "--http-port", "0", "--admin-port", "0"]) != 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "words" in output.err


def test_replay_finds_nothing_or_says_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    from inferway.dispatch import Dispatcher
    from inferway.dispatch.recording import EVENT, Recording
    from inferway.site import Fleet

    fleet = Fleet(
        ("a", "b"), np.array([9.0, 1.0]), np.array([0.6, 0.9]), np.array([1, 1]), task="t"
    )
    dispatcher = Dispatcher(fleet, "priced", target=0.7)
    recording = Recording(dispatcher, tmp_path / "run" / "t")
    for step in range(40):
        recording.finish(recording.arrive(float(step), step), step + 0.5, 0.1)
    recording.close()
    found = document(capsys, "replay", tmp_path / "run")["tasks"]["t"]
    assert (found["requests"], found["differing"], found["same_code"]) == (40, 0, True)
    file = tmp_path / "run" / "t" / "000001.events"
    rows = np.fromfile(file, EVENT)
    rows["server"][0] = 1 - rows["server"][0]
    rows["server"][1] = rows["server"][0]
    rows.tofile(file)
    assert main(["replay", str(tmp_path / "run")]) == 1
    told = capsys.readouterr()
    assert "request 0 at 0.000000 s" in told.out
    assert told.err == ""
    assert "holds no recording" in sentence(capsys, "replay", tmp_path / "nothing")
    # Killed while it wrote, and read by other code.
    file.write_bytes(rows.tobytes()[:-1])
    head = tmp_path / "run" / "t" / "recording.json"
    head.write_text(head.read_text().replace(json.loads(head.read_text())["code"], "older"))
    assert main(["replay", str(tmp_path / "run")]) == 1
    cut, other = capsys.readouterr().err.splitlines()
    assert cut.startswith(f"inferway: warning: t: {file} ends within an event")
    assert other == (
        "inferway: warning: t: other code of policies and site than this made the recording; the "
        "differences may be the code's"
    )
    head.write_text("{")
    assert main(["replay", str(tmp_path / "run")]) == 2
