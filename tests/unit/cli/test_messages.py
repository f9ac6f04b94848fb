"""Messages that say what to do: each names the place and what would be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import inferway
from inferway.catalog import zoo
from inferway.cli import main
from inferway.deployment.overhead import overhead_key, times_file
from inferway.dispatch.service_times import remember_overhead

FILE = """
tasks:
  words:
    {promise}
    variants:
      small: {{accuracy: 0.7, service: {{mean: 1 ms}}{model}}}
      large: {{accuracy: 0.9, service: {{mean: 4 ms}}}}
nodes: {{here: {{instances: {{words/small: 1, words/large: 1}}}}}}
dispatch: {{policy: {policy}}}
workload: {{words: {{arrivals: {{process: poisson, rate: 120/s}}}}}}
"""
POLICY = """
from typing import NamedTuple


class Mine(NamedTuple):
    zero: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls({built})

    def choose(self, site, request, draw):
        {choose}
"""


def written(
    folder: Path, *, policy: str = "tad", model: str = "", promise: str = "accuracy_target: 0.8"
) -> Path:
    path = folder / "words.yaml"
    path.write_text(FILE.format(policy=policy, model=model, promise=promise))
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that is refused, and return all that it prints."""
    assert main([str(one) for one in arguments]) in (1, 2)
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    assert "bug" not in output.err
    return output.out + output.err


@pytest.mark.parametrize(
    ("choose", "built", "why"),
    [
        ("return 1 // self.zero", "0", "divides by zero (mine.py, line 13)"),
        ("return 0", "1 // 0", "ZeroDivisionError: integer division or modulo by zero (mine.py, l"),
        ("return site.queue + 'a'", "0", "does not compile: there is no add(array(int32, 1d, C)"),
        ("return nothere", "0", "compile: name 'nothere' is not defined (mine.py, line 13)"),
        ("return site.speed[0]", "0", "Unknown attribute 'speed' of type site (mine.py, line 13)"),
        ("pass", "0", "`choose` returns no number on some way through it (mine.py, line 12)"),
        ("with open('x') as x: return 0", "0", "construct is not supported (mine.py, line 13)"),
    ],
)
def test_a_wrong_policy_is_the_policys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, choose: str, built: str, why: str
) -> None:
    (tmp_path / "mine.py").write_text(POLICY.format(choose=choose, built=built))
    found = said(capsys, "check", written(tmp_path, policy="./mine.py:Mine"))
    (line,) = [one for one in found.splitlines() if "error:" in one]
    assert why in line
    assert "words.yaml:3: error: tasks.words.dispatch: policy ./mine.py:Mine" in line
    assert len(line) < 320


def test_a_policy_with_other_arguments_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = POLICY.format(choose="return 0", built="0").replace(", draw)", ")")
    (tmp_path / "mine.py").write_text(text)
    found = said(capsys, "check", written(tmp_path, policy="./mine.py:Mine"))
    assert "Mine.choose has to take (self, site, request, draw) (line 12)" in found


@pytest.mark.parametrize(
    ("name", "export"),
    [
        ("net.pt", "`inferway export FILE.py:NAME`"),
        ("net.pt2", "`inferway export FILE.py:NAME`"),
        ("net.pkl", "`inferway export FILE.py:NAME`"),
        ("net.joblib", "`inferway export FILE.py:NAME`"),
        ("net.h5", "tf2onnx"),
        ("net.safetensors", "`inferway export FILE.py:NAME`"),
        ("net.skops", "`inferway export`, which reads it"),
        ("net.ubj", "`inferway export`, which reads it"),
    ],
)
def test_a_model_of_another_format_says_how_to_export(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, export: str
) -> None:
    (tmp_path / name).write_bytes(b"x\n")
    found = said(capsys, "check", written(tmp_path, model=f", model: {name}"))
    assert f"{name}: " in found
    assert "only ONNX can be run" in found
    assert export in found


def test_an_output_of_maps_says_how_to_export(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _write_zipmap(tmp_path / "classifier.onnx")
    found = said(capsys, "check", written(tmp_path, model=", model: classifier.onnx"))
    assert "output 'probabilities' is a list of dictionaries" in found
    assert "export it with `inferway export`, or with options={'zipmap': False}" in found


def _write_zipmap(path: Path) -> None:
    """Write a classifier as skl2onnx does: its probabilities in a map for each row."""
    helper = onnx.helper
    weights = [onnx.numpy_helper.from_array(np.ones((4, 2), np.float32), "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node(
            "ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
        ),
    ]
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
        )
    )
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 4])],
        [helper.make_value_info("probabilities", maps)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize(
    ("cert", "key", "why"),
    [
        ("none.pem", "key.pem", "none.pem: No such file or directory"),
        ("cert.pem", "none.pem", "none.pem: No such file or directory"),
        ("junk.pem", "key.pem", "junk.pem: it holds no certificate in PEM"),
        ("key.pem", "cert.pem", "key.pem: it holds no certificate in PEM"),
        ("cert.pem", "junk.pem", "junk.pem: it holds no private key in PEM"),
        ("cert.pem", "locked.pem", "locked.pem: the key is encrypted"),
        ("cert.pem", "other.pem", "cert.pem and other.pem: the key is not that of the certif"),
    ],
)
def test_the_wrong_one_of_two_tls_files_is_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    pem: Path,
    cert: str,
    key: str,
    why: str,
) -> None:
    tls = ["--tls-cert", pem / cert, "--tls-key", pem / key]
    found = said(capsys, "serve", written(tmp_path), *tls)
    assert found.replace(f"{pem}/", "").startswith(f"inferway: TLS is not possible with {why}")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, another key, a locked one and no PEM at all."""
    folder = tmp_path_factory.mktemp("pem")
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    new += ["-subj", "/CN=localhost", "-days", "2"]
    for words in (
        [*new, "-keyout", "key.pem", "-out", "cert.pem"],
        [*new, "-keyout", "other.pem", "-out", "another.pem"],
        ["pkcs8", "-topk8", "-in", "key.pem", "-passout", "pass:abcd", "-out", "locked.pem"],
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    (folder / "junk.pem").write_text("junk\n")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["apply", "{file}", "--admin-url", "http://127.0.0.1:9"],
        ["drive", "{file}", "--url", "http://127.0.0.1:9", "--duration", "0.1"],
        ["conformance", "http://127.0.0.1:9"],
    ],
)
def test_a_refused_connection_is_said_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    found = said(capsys, *[word.format(file=written(tmp_path)) for word in words])
    assert "connection refused" in found
    assert "Errno" not in found


@pytest.mark.parametrize(
    ("name", "meant"),
    [("wrods.yaml", True), ("word.yml", True), ("a.yaml", False), ("lists.yaml", False)],
)
def test_only_a_near_file_is_suggested(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, meant: bool
) -> None:
    file = written(tmp_path)
    found = said(capsys, "check", tmp_path / name)
    assert found.strip().endswith(f"did you mean {file}?") == meant
    assert ("did you mean" in found) == meant


def test_times_of_an_earlier_measurement_say_from_where_and_of_when(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    examples = Path(__file__).parents[3] / "examples"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["bound", str(examples / "digits.yaml")]) == 0
    assert "recalled" not in capsys.readouterr().err
    zoo.save(zoo.load("digits"), zoo.user_folder("digits"))
    for words in (["bound"], ["check"], ["simulate", "--queries", "1000"]):
        assert main([words[0], str(examples / "digits.yaml"), *words[1:]]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("inferway: service times of zoo://digits are recalled: measured on")
        assert line.endswith(f"in {zoo.user_folder('digits') / 'profiles.json'}")
    assert main(["bound", str(written(tmp_path))]) == 0
    assert "recalled" not in capsys.readouterr().err


def test_an_overhead_that_a_server_measured_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file, stated = Path(__file__).parents[3] / "examples" / "digits.yaml", tmp_path / "stated.yaml"
    stated.write_text(file.read_text().replace("  here:\n", "  here:\n    overhead: 0 s\n"))
    sweep = ["simulate", "--queries", "1000", "--sweep", "load=0.5", "--out", str(tmp_path)]
    plan = ["plan", "--rate", "50/s", "--latency", "300ms"]
    for words in (["bound"], plan, ["simulate", "--queries", "1000"], sweep):
        times_file().unlink(missing_ok=True)
        assert main([words[0], str(file), *words[1:]]) == 0
        assert "recalled" not in capsys.readouterr().err
        remember_overhead(times_file(), overhead_key(inferway.load(file).tasks), 250e-6, 250e-6)
        assert main([words[0], str(file), *words[1:]]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("inferway: the overhead of nodes.here is recalled: 250 us, which a")
        assert line.endswith(f"by {times_file()}")
        assert main([words[0], str(stated), *words[1:]]) == 0
        assert "recalled" not in capsys.readouterr().err


def test_plan_names_its_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = said(capsys, "plan", written(tmp_path))
    assert "tasks.words: has no deadline to plan for" in found
    assert "--latency" in found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--admin-host 0.0.0.0", "would be open to the network: give keys"),
        ("--keys none.txt", "the keys cannot be read from none.txt: No such file"),
        ("--keys {short}", "key 1 has 2 characters"),
        ("--keys {keys} --admin-host 192.0.2.1", "--admin-port 8002 at 192.0.2.1: Cannot assign"),
        ("--host no.invalid", "--http-port 8000 at no.invalid: "),
        ("--tls-cert {short} --tls-key {short}", "it holds no certificate in PEM"),
        ("--policy nothing", "unknown policy 'nothing'"),
        ("--policy {file}:Mine", "unknown policy"),
    ],
)
def test_wrong_options_are_found_before_a_model_is_measured(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: str,
    why: str,
) -> None:
    def measured(*_: object, **__: object) -> None:
        pytest.fail("a model was measured")

    monkeypatch.setattr("inferway.deployment.measured", measured)
    names = {"short": tmp_path / "short", "keys": tmp_path / "keys", "file": written(tmp_path)}
    names["short"].write_text("ab\n")
    names["keys"].write_text("a-key-of-16-letters-or-more\n")
    words = [word.format(**names) for word in options.split()]
    assert why in said(capsys, "serve", names["file"], "--no-grpc", *words)


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("grpc", ["serve", "{file}", "--grpc-port", "0"], "inferway[grpc]"),
        ("grpc", ["node", "{tree}", "--name", "cloud", "--grpc-port", "0"], "inferway[grpc]"),
        ("zenoh", ["node", "{tree}", "--name", "cloud"], "the extra `network`"),
        ("zenoh", ["up", "{tree}", "--run", "{run}"], "the extra `network`"),
        ("torch", ["train", "{file}"], "--extra-index-url https://download.pytorch.org/whl/cpu"),
    ],
)
def test_a_missing_extra_is_named_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    missing: str,
    words: list[str],
    extra: str,
) -> None:
    examples = Path(__file__).parents[3] / "examples"
    names = {"file": examples / "digits.yaml", "tree": examples / "delivery-network.yaml"}
    names["run"] = tmp_path / "run"
    for module in [one for one in sys.modules if one.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    for module in [one for one in sys.modules if one.startswith("inferway.live.grpc.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    found = said(capsys, *[word.format(**names) for word in words])
    assert missing in found
    assert extra in found
    assert not names["run"].exists()
