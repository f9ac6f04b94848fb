"""The demo, a few seconds of it: real processes, real models, real images."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from dashboards import Page

from inferway import catalog
from inferway.cli import main
from inferway.studies.live import DemoError, SeenServer, compare_policies, launch
from ports import free_ports

_EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    seen: list[float] = []
    looked: list[tuple[str, list[SeenServer]]] = []
    out = tmp_path_factory.mktemp("demo") / "out"
    found = compare_policies(
        out=out,
        duration_s=3.0,
        within_s=600.0,  # also where others use the machine, no stream is shortened
        policies=("fastest-only", "tad-op", "escalate"),
        progress=lambda doing, part: seen.append(part),
        look=lambda doing, servers: looked.append((doing, list(servers))),
    )
    assert seen == sorted(seen)
    assert 0.8 < seen[-1] <= 1.0
    check_looks(looked)
    return found


def check_looks(looked: list[tuple[str, list[SeenServer]]]) -> None:
    """Each server is seen before its turn, and told to have ended after it."""
    turns = [(doing, [one.ended for one in servers]) for doing, servers in looked]
    assert turns[0] == ("measuring this machine: starting a server", [])
    asked, ended = (turns.index(("fastest-only", [one])) for one in (False, True))
    assert asked < ended < turns.index(("tad-op", [False, True]))
    assert turns[-1] == ("simulating what was recorded", [True, True, True])
    servers = looked[-1][1]
    assert [one.name for one in servers] == ["escalate", "tad-op", "fastest-only"]
    assert len({one.url for one in servers}) == 3


def test_all_policies_got_the_same_requests_and_answered(result):
    assert [one["policy"] for one in result.rows] == ["fastest-only", "tad-op", "escalate"]
    offered, *others = (one["offered"] for one in result.rows)
    assert others == [offered, offered]
    assert offered > 100
    for policy in result.rows:
        assert policy["failed"] == 0
        assert sum(policy["shares"].values()) == pytest.approx(1)
        assert 0 < policy["p50_s"] <= policy["p95_s"] <= policy["p99_s"]
        low, high = policy["accuracy_interval"]
        assert low <= policy["accuracy"] <= high


def test_measured_accuracy_is_the_profiles(result):
    """The labels, the images and the answers belong together: a mix-up would show chance, 0.1."""
    fastest, tad_op, escalate = result.rows
    assert fastest["shares"] == {"tiny": 1.0}
    for policy in (fastest, tad_op, escalate):
        low, high = policy["accuracy_interval"]
        margin = high - low
        assert low - margin < policy["profile_accuracy"] < high + margin
    assert tad_op["accuracy"] > fastest["accuracy"] + 0.2


def test_the_load_follows_from_the_machine(result):
    load, bound = result.found["load"], result.found["bound"]
    assert load["mean_per_s"] > load["most_accurate_per_s"]
    assert load["burst_per_s"] < load["feasible_per_s"]
    assert bound["rate_per_s"] == pytest.approx(load["mean_per_s"], rel=0.05)
    assert bound["rate_per_s"] < bound["max_rate_per_s"]
    twice = bound["escalate"]
    assert twice["least_response_time_s"] < bound["least_response_time_s"]
    assert twice["max_rate_per_s"] > bound["max_rate_per_s"]
    assert sum(twice["shares"].values()) == pytest.approx(1)
    assert twice["line"][-1][0] > bound["line"][-1][0]  # more accurate than any variant
    for of in (bound, twice):
        line = [latency for _, latency in of["line"]]
        assert line == pytest.approx(sorted(line), rel=1e-9)  # flat pieces: equal but for rounding


def test_what_it_wrote(result):
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert list(document["twin"]) == ["fastest-only", "tad-op", "escalate"]
    for path in document["figure"]:
        assert Path(path).stat().st_size > 5_000
    *_, serve, curl = result.closing[-1].splitlines()
    assert Path(serve.split()[-1]).read_text() == _EXAMPLE.read_text()
    assert curl.endswith(f"-d @{document['request']}")


def test_the_sample_request_works_as_curl_would_send_it(result):
    with launch(_EXAMPLE) as launched:
        parts = urlsplit(launched.address().url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
        connection.request(
            "POST",
            "/v2/models/digits/infer",
            Path(result.found["request"]).read_bytes(),
            {"Content-Type": "application/x-www-form-urlencoded"},
        )
        answer = json.loads(connection.getresponse().read())
        connection.close()
    scores = answer["outputs"][0]["data"]
    assert len(scores) == 10
    assert answer["model_name"] == "digits"


def test_the_shipped_file_is_the_example():
    shipped = files("inferway.studies.live").joinpath("digits.yaml").read_text(encoding="utf-8")
    assert shipped == _EXAMPLE.read_text(encoding="utf-8")
    assert len(catalog.testset()) > 1000


def test_a_server_that_cannot_start_says_why(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("tasks: {}\n")
    with launch(path) as launched, pytest.raises(DemoError, match=r"ended.*\n.*wrong\.yaml"):
        launched.address()


def test_a_server_that_is_stuck_is_given_up(tmp_path):
    with launch(_EXAMPLE) as launched:
        os.kill(launched.process.pid, signal.SIGSTOP)
        with pytest.raises(DemoError, match=r"not ready within 0\.2 s"):
            launched.address(0.2)
        os.kill(launched.process.pid, signal.SIGCONT)
    assert launched.process.returncode is not None


def test_ctrl_c_waits_for_no_server():
    with pytest.raises(KeyboardInterrupt), launch(_EXAMPLE) as launched:
        raise KeyboardInterrupt
    # Still importing or compiling, it would have ended only after that.
    assert launched.process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_the_whole_demo_shows_what_it_says(tmp_path: Path) -> None:
    # The demo's own claim is a thousandth; what else runs on a machine of tests costs more, as
    # balance that is not paid back when the requests end: 0.4 to 0.7 points at a load of 5.
    short = 0.01
    result = compare_policies(out=tmp_path)
    by_name = {row["policy"]: row for row in result.rows}
    names = ["fastest-only", "most-accurate-only", "tad-op", "priced", "escalate"]
    assert list(by_name) == names
    target = result.found["target"]
    for name in ("tad-op", "priced", "escalate"):
        one = by_name[name]
        # tad-op owes nothing: where bursts fill the cores it falls short, as its twin does.
        foreseen = result.found["twin"][name]["twin"]["accuracy"]
        least = (min(target, foreseen) if name == "tad-op" else target) - short
        assert one["profile_accuracy"] >= least
        assert one["accuracy_interval"][1] >= least
        assert by_name["most-accurate-only"]["p95_s"] >= 3 * one["p95_s"]
    assert by_name["fastest-only"]["accuracy_interval"][1] < target
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.slow
def test_it_is_watched_on_a_page_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
    short = partial(compare_policies, duration_s=3.0, policies=("fastest-only",), within_s=600.0)
    monkeypatch.setattr("inferway.studies.live.compare_policies", short)
    (port,) = free_ports(1)
    told: list[dict[str, Any]] = []
    over = threading.Event()

    def look() -> None:
        page = Page(f"http://127.0.0.1:{port}/")
        while not over.is_set():
            with suppress(OSError, http.client.HTTPException):  # not there yet
                told.extend(page.events())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    options = ["--out", str(tmp_path), "--dashboard", "--dashboard-port", str(port), "--json"]
    assert main(["demo", *options]) == 0
    over.set()
    looking.join(60.0)
    out, errors = capsys.readouterr()
    assert json.loads(out)["policies"][0]["policy"] == "fastest-only"
    assert errors == f"inferway: a page shows it at http://127.0.0.1:{port}/\n"
    assert told[0]["doing"] in ("starting", "measuring this machine: starting a server")
    last = told[-1]["tasks"]
    assert [(one["source"], one["ended"]) for one in last] == [("fastest-only", True)]
    assert last[0]["promise"]["answers"] > 100
    assert last[0]["variants"][0]["share"] == 1.0
