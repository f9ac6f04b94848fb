"""The package's front door: what the documentation shows of `import inferway as iw` runs."""

from __future__ import annotations

import doctest
import hashlib
import json
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import inferway as iw
from inferway.site import REJECT

ROOT = Path(__file__).parents[2]
MEDIUM = "zoo://digits/medium"
WORK_S = 8e-3
"""CPU time that a program takes for itself between two requests."""
FLEET: dict[str, Any] = {
    "tasks": {
        "words": {
            "accuracy_target": 0.75,
            "variants": {
                "small": {"accuracy": 0.7, "service": {"mean": "1 s"}},
                "large": {"accuracy": 0.9, "service": {"mean": "4 s"}},
            },
        }
    },
    "nodes": {"here": {"instances": {"words/small": 4, "words/large": 4}, "buffer": 8}},
    "dispatch": {"policy": "tad-op"},
    "workload": {"words": {"arrivals": {"process": "poisson", "load": 0.5}}},
}
DEAR = 1e3


class Mine(NamedTuple):
    """The quickest server that leaves the mean at its target."""

    @classmethod
    def build(cls, fleet: Any, *, target: float, rate_per_s: float) -> Mine:
        return cls()

    def choose(self, site: Any, request: Any, draw: int) -> int:
        best, least = REJECT, np.inf
        for server in range(site.queue.size):
            k = site.server_class[server]
            cost = (1 + site.queue[server]) / site.rate[k]
            earned = site.accuracy[k] - site.target[0]
            if earned < 0 and site.balance[0] + earned < 0:
                cost += DEAR
            if request.allowed[server] and cost < least:
                best, least = server, cost
        return best


@pytest.fixture
def fleet() -> iw.Deployment:
    return iw.load(FLEET)


def test_the_package_s_own_example_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(iw)
    assert tried > 0
    assert failed == 0


def test_a_mapping_is_a_deployment_and_says_what_is_wrong(fleet: iw.Deployment) -> None:
    assert fleet.policy_of("words").policy == "tad-op"
    wrong = {**FLEET, "dispatch": {"policy": "tadop"}}
    with pytest.raises(
        iw.DeploymentError, match=r"^deployment: dispatch.policy: .*tad-op"
    ) as error:
        iw.load(wrong)
    assert ":1:" not in str(error.value)
    with pytest.raises(iw.DeploymentError, match=r"tasks\.words: expected .* not a object"):
        iw.load({"tasks": {"words": object()}})


def test_the_same_words_everywhere(fleet: iw.Deployment) -> None:
    other = fleet.with_(
        policy="tad", rate=2, target=0.8, deadline=9, seed=4, instances={"words/large": 2}
    )
    task = other.tasks["words"]
    assert (task.accuracy_target, task.deadline_s, other.seed) == (0.8, 9.0, 4)
    assert other.policy_of("words").policy == "tad"
    assert other.workload["words"].arrivals.rate == 2.0  # type: ignore[union-attr]
    assert other.nodes["here"].instances["words", "large"] == 2
    assert fleet.with_(**{"nodes.here.buffer": 3}).nodes["here"].buffer == 3
    assert fleet.policy_of("words").policy == "tad-op"  # the first one is as it was
    with pytest.raises(ValueError, match="cannot be given with load"):
        fleet.with_(rate=2, load=0.5)
    with pytest.raises(ValueError, match=r"did you mean load"):
        fleet.with_(lode=0.5)
    by_words = iw.simulate(fleet, policy="tad", target=0.8, load=0.3, queries=2000)
    by_file = iw.simulate(fleet.with_(policy="tad", target=0.8, load=0.3), queries=2000)
    assert by_words.tasks["words"].shares == by_file.tasks["words"].shares


def test_a_class_is_a_policy(fleet: iw.Deployment) -> None:
    found = iw.simulate(fleet, policy=Mine, queries=4000).tasks["words"]
    assert found.accuracy.mean >= 0.75 - 1e-3
    with pytest.raises(ValueError, match="a name or a class with `choose`, not 'dict'"):
        fleet.with_(policy=dict)


def test_a_class_of_a_notebook_is_written_down_with_all_it_refers_to(
    fleet: iw.Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import linecache
    import sys
    import types

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = (Path(__file__).read_text().partition("class Mine")[2]).partition("@pytest")[0]
    head = "import numpy as np\nfrom typing import Any, NamedTuple\nDEAR = 7.0\nREJECT = -1\n\n"
    cell = f"from __future__ import annotations\n{head}class Mine{source}"
    name = "<ipython-input-1>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    module = types.ModuleType("__notebook__")
    monkeypatch.setitem(sys.modules, "__notebook__", module)
    exec(compile(cell, name, "exec"), module.__dict__)
    policy = fleet.with_(policy=module.Mine).policy_of("words").policy
    written = Path(policy.rpartition(":")[0])
    assert written.is_relative_to(tmp_path)
    assert "DEAR = 7.0" in written.read_text()
    assert fleet.with_(policy=module.Mine).policy_of("words").policy == policy
    module.DEAR = object()
    with pytest.raises(ValueError, match="Mine refers to DEAR, a object"):
        fleet.with_(policy=module.Mine)


def test_check_and_bound_say_what_the_commands_say(fleet: iw.Deployment) -> None:
    assert [one.kind for one in iw.check(fleet)] == []
    assert "no `model`" in str(iw.check(fleet))
    beyond = iw.check(fleet.with_(instances={"words/large": 0}))
    assert "target-out-of-reach" in [one.kind for one in beyond.refused]
    load, findings = iw.check(fleet).plot().axes
    (bar,) = load.patches
    assert bar.get_height() == pytest.approx(0.5)
    assert [label.get_text() for label in findings.get_xticklabels()] == ["for the twin alone"]
    (counted,) = beyond.plot().axes
    assert "target-out-of-reach" in [label.get_text() for label in counted.get_xticklabels()]
    assert iw.bound(fleet)["words"].least_response_time_s is not None


def test_a_sweep_is_a_frame_and_a_figure(fleet: iw.Deployment) -> None:
    found = iw.sweep(
        fleet, load=np.array([0.2, 0.5]), policy=["tad", "priced"], queries=1000, workers=1
    )
    assert len(found.to_frame()) == 4
    assert set(found.to_frame()["policy"]) == {"tad", "priced"}
    assert found.plot().axes
    own = iw.sweep(fleet, policy=[Mine], queries=1000, workers=1).to_frame()
    assert list(own["policy"]) == ["Mine"]
    assert "response_time_s.mean" in found._repr_html_()
    assert "priced" in str(found)
    with pytest.raises(ValueError, match="a sweep needs values"):
        iw.sweep(fleet)


def test_a_plan_takes_a_latency(fleet: iw.Deployment) -> None:
    found = iw.plan(fleet, latency=4.0, rate=1.0, queries=20_000, tries=8)
    assert found.holds
    assert "instances" in found.yaml


def shown(found: Any, *words: str) -> None:
    """Look at a result in all four ways."""
    assert len(found.to_frame())
    assert found.plot().axes
    assert "<table" in found._repr_html_()
    for word in words:
        assert word in str(found)


def test_every_result_is_a_frame_a_figure_a_table_and_a_text(fleet: iw.Deployment) -> None:
    shown(iw.bound(fleet), "Task words", "greatest rate", "Routing tuples")
    shown(iw.bound(fleet.with_(rate=1e6)), "above the greatest")
    shown(iw.simulate(fleet, queries=2000), "Task words, simulated", "response time, p95")
    shown(iw.plan(fleet, latency=4.0, rate=1.0, queries=2000, tries=4), "planned", "nodes:")
    network = iw.load(ROOT / "examples" / "topology-1.yaml")
    shown(iw.place(network, slots=4), "Placement by infida-offline", "By tier")
    shown(iw.simulate(network, slots=4), "Network, simulated with infida", "By tier")


def test_what_is_shown_is_what_the_command_prints(
    fleet: iw.Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    from inferway.cli.app import app

    file = str(ROOT / "examples" / "paper-fleet.yaml")
    app(["bound", file], standalone_mode=False)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in str(iw.bound(iw.load(file))).splitlines()] == printed


def test_what_is_served_here_can_be_driven() -> None:
    deployment = iw.load(
        {
            "tasks": {
                "digits": {
                    "accuracy_target": 0.5,
                    "variants": {
                        "tiny": {"model": "zoo://digits/tiny"},
                        "medium": {"model": MEDIUM},
                    },
                }
            },
            "workload": {"digits": {"arrivals": {"process": "poisson", "rate": "50/s"}}},
        }
    )
    with iw.serve(deployment) as server:
        found = iw.drive(deployment, server.url, duration=1.0)
        assert "digits on http://127.0.0.1:" in repr(server)
    assert found.tasks["digits"].answered == found.tasks["digits"].offered > 10
    assert list(found.to_frame()["task"]) == ["digits"]
    assert found.plot().axes
    assert "answered" in str(found)
    assert repr(server) == "<inferway server: stopped>"
    with pytest.raises(Exception, match="address"):
        iw.serve(deployment, host="192.0.2.1")


def test_what_requests_take_of_a_server_is_measured_beside_other_work() -> None:
    """What the program does meanwhile, which is far more, is no request's."""
    image = np.zeros((1, 1, 32, 32), np.float32)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32]}
    body = json.dumps({"inputs": [tensor | {"data": image.ravel().tolist()}]}).encode()
    deployment = iw.load({"tasks": {"digits": {"variants": {"medium": {"model": MEDIUM}}}}})
    with iw.serve(deployment) as server:

        def read(path: str, sent: bytes | None = None) -> Any:
            with urllib.request.urlopen(path, sent, timeout=60) as answer:
                return answer.read()

        told, deadline_s = None, time.monotonic() + 180.0
        while told is None:
            assert time.monotonic() < deadline_s
            for _ in range(10):
                worked_s = time.thread_time()
                while time.thread_time() < worked_s + WORK_S:
                    hashlib.sha256(body).digest()
                read(f"{server.url}/v2/models/digits/infer", body)
            told = json.loads(read(f"{server.admin_url}/status")).get("overhead")
        page = read(f"{server.admin_url}/metrics").decode()
    assert told["by"] == "measured"
    assert 0.0 < told["seconds"] < WORK_S / 2
    assert "\ninferway_request_overhead_seconds " in page


def test_a_study_has_its_figure_and_its_claims(tmp_path: Path) -> None:
    found = iw.study("shuffle-pair").run("smoke", out=tmp_path, workers=0)
    assert found.figure.axes
    assert found.claims
    assert len(found.to_frame()) == len(found.results)
    assert "reproduces" in found._repr_html_()
