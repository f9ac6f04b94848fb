"""A running server that changes what it serves."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.dispatch import recordings
from inferway.live import ServeError, apply

FILE = """
tasks:
  digits:
    accuracy_target: {target}
    variants:
      tiny: {{model: zoo://digits/tiny}}
      small: {{model: zoo://digits/small}}
      large: {{model: zoo://digits/large}}
nodes:
  here: {{instances: {{{instances}}}, buffer: 64}}
dispatch: {{policy: {policy}}}
"""
TWO = "digits/tiny: 1, digits/small: 1"
THREE = "digits/tiny: 2, digits/small: 1, digits/large: 1"


def write(
    folder: Path, *, target: float = 0.75, instances: str = TWO, policy: str = "priced"
) -> Path:
    file = folder / "digits.yaml"
    file.write_text(FILE.format(target=target, instances=instances, policy=policy))
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.fixture
def serving(start: Any, file: Path) -> Any:
    running = start(deployment=inferway.load(file), allow_apply=True)
    running.admin = f"http://127.0.0.1:{running.server.admin_port}"
    return running


def ask(post: Any, number: int) -> bytes:
    data = load_testset().images[number : number + 1]
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": list(data.shape),
        "parameters": {"binary_data_size": data.nbytes},
    }
    text = json.dumps({"inputs": [tensor]}).encode()
    raw: bytes = post(text + data.tobytes(), f"Inference-Header-Content-Length: {len(text)}\r\n")
    return raw


class Clients:
    """Connections that ask one request after another until they are told to stop."""

    def __init__(self, running: Any, count: int = 3) -> None:
        self.statuses: list[int] = []
        self.variants: set[str] = set()
        self._running = running
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(i,)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        wire = self._running.wire()
        raw = ask(self._running.post, number)
        while not self._stopping.is_set():
            wire.send(raw)
            answer = wire.read()
            self.statuses.append(answer.status)
            if answer.status == 200:
                length = int(answer.headers.get("inference-header-content-length", -1))
                text = answer.body[:length] if length > 0 else answer.body
                self.variants.add(json.loads(text)["model_version"])

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture
def clients(serving: Any) -> Iterator[Clients]:
    made = Clients(serving)
    yield made
    made.stop()


def test_no_request_is_lost_while_everything_changes(
    serving: Any, clients: Clients, file: Path, until: Any
) -> None:
    def more(count: int = 60) -> None:
        before = len(clients.statuses)
        until(lambda: len(clients.statuses) > before + count)

    more()
    site, first = serving.site, serving.site.pool
    changes: list[dict[str, Any]] = [
        {"instances": THREE, "target": 0.8, "policy": "jiq-accurate"},
        {"instances": "digits/large: 1", "target": 0.5},
        {"instances": TWO},
    ]
    for change in changes:
        served = apply(write(file.parent, **change), serving.admin)
        assert list(served["tasks"]) == ["digits"]
        assert len(served["tasks"]["digits"]) == len(serving.site.pool.variants)
        more()
    clients.stop()
    assert set(clients.statuses) == {200}
    assert "large" in clients.variants
    until(lambda: not site._retiring)
    assert serving.site is site
    assert not any(instance._thread.is_alive() for instance in first.instances)
    status = serving.get("/status", admin=True).json["tasks"]["digits"]
    assert status["requests"]["answered"] == len(clients.statuses)
    assert list(status["variants"]) == ["tiny", "small"]
    assert not any("large" in thread.name for thread in threading.enumerate())


def test_the_balance_goes_on_where_the_target_stays(serving: Any, file: Path) -> None:
    wire = serving.wire()
    for number in range(5):
        wire.send(ask(serving.post, number))
        answer = wire.read()
    identity = answer.headers["x-request-id"]
    before = serving.get("/status", admin=True).json["tasks"]["digits"]
    assert before["accuracy_balance"] != 0
    apply(write(file.parent, instances=THREE), serving.admin)
    after = serving.get("/status", admin=True).json["tasks"]["digits"]
    assert after["accuracy_balance"] == before["accuracy_balance"]
    assert after["accuracy_mean"] == before["accuracy_mean"]
    # What happened before can still be explained.
    assert serving.get(f"/v2/models/digits/explain/{identity}").status == 200
    apply(write(file.parent, target=0.7), serving.admin)
    assert serving.get("/status", admin=True).json["tasks"]["digits"]["accuracy_balance"] == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tasks: [", "digits.yaml"),
        (FILE.format(target=1.5, instances=TWO, policy="priced"), "accuracy_target"),
        (FILE.format(target=0.75, instances=TWO, policy="jsq"), "jsq"),
        (
            FILE.format(target=0.75, instances=TWO, policy="priced").replace(
                "zoo://digits/small", "zoo://digits/none"
            ),
            "none",
        ),
        (None, "digits.yaml"),
    ],
)
def test_an_invalid_file_changes_nothing(
    serving: Any, file: Path, text: str | None, sentence: str
) -> None:
    site = serving.site
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(ServeError, match=sentence):
        apply(file, serving.admin)
    assert serving.site is site
    wire = serving.wire()
    wire.send(ask(serving.post, 0))
    assert wire.read().status == 200


def test_a_request_whose_body_comes_late_finds_the_new_site(
    serving: Any, file: Path, until: Any
) -> None:
    raw = ask(serving.post, 0)
    wire = serving.wire()
    wire.send(raw[:-100])
    until(lambda: bool(serving.server._http.connections))
    site, first = serving.site, serving.site.pool
    apply(write(file.parent, instances=THREE), serving.admin)
    until(lambda: not site._retiring)
    assert site.pool is not first
    wire.send(raw[-100:])
    assert wire.read().status == 200


def test_content_is_as_good_as_a_file(serving: Any) -> None:
    text = FILE.format(target=0.8, instances=THREE, policy="tad-op").replace("digits:", "other:")
    body = json.dumps(
        {"content": text.replace("digits/", "other/").replace("zoo://other", "zoo://digits")}
    )
    head = f"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    kind = "Content-Type: application/json\r\n\r\n"
    answer = serving.ask(f"{head}{kind}{body}".encode(), admin=True)
    assert (answer.status, answer.json) == (
        200,
        {"schema": 1, "tasks": {"other": ["tiny", "small", "large"]}},
    )
    assert serving.get("/v2/models/other/ready").status == 200
    assert serving.get("/v2/models/digits").status == 404


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", '{"path": "/x"}', 415),
        ("application/json", "{}", 400),
        ("application/json", '{"path": "x.yaml"}', 400),
        ("application/json", '{"path": "/x", "content": "y"}', 400),
        ("application/json", '{"with": {}}', 400),
        ("application/json", '{"dry_run": true}', 400),
        ("application/json", '{"with": {"deadline": 1}}', 400),
        ("application/json", '{"with": {"target": "0.8"}}', 400),
        ("application/json", '{"file": "/x"}', 400),
        ("application/json", "[", 400),
    ],
)
def test_requests_to_apply_are_checked(serving: Any, kind: str, body: str, status: int) -> None:
    head = f"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    raw = f"{head}Content-Type: {kind}\r\n\r\n{body}".encode()
    assert serving.ask(raw, admin=True).status == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 400),
        ("127.0.0.1:8002", 400),
        ("[::1]:8002", 400),
        ("evil.example:8002", 403),
        ("", 403),
    ],
)
def test_only_who_names_this_machine_may_apply(serving: Any, host: str, status: int) -> None:
    head = f"POST /apply HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n"
    raw = f"{head}Content-Type: application/json\r\n\r\n{{}}".encode()
    assert serving.ask(raw, admin=True).status == status


def test_without_keys_nothing_is_applied_unasked(start: Any, file: Path) -> None:
    running = start(deployment=inferway.load(file))
    site = running.site
    with pytest.raises(ServeError, match="nothing: start it with --allow-apply"):
        apply(file, f"http://127.0.0.1:{running.server.admin_port}")
    assert running.site is site


def test_values_take_the_place_of_what_is_in_force_or_of_the_file(serving: Any, file: Path) -> None:
    site = serving.site
    apply(admin_url=serving.admin, target=0.8, policy="tad-op")
    assert serving.site is site
    assert (site.target, site.pool.dispatcher.policy_name) == (0.8, "tad-op")
    # What was changed is in force, and goes on to be where something else changes.
    apply(admin_url=serving.admin, policy="priced")
    assert (site.target, site.pool.dispatcher.policy_name) == (0.8, "priced")
    apply(file, serving.admin, target=0.7)
    assert site.target == 0.7
    content = serving.get("/deployment", admin=True).json["content"]
    assert content["tasks"]["digits"]["accuracy_target"] == 0.7
    assert content["dispatch"] == {"policy": "priced"}


def test_a_dry_run_tells_the_difference_and_changes_nothing(serving: Any, file: Path) -> None:
    site, pool = serving.site, serving.site.pool
    told = apply(admin_url=serving.admin, target=0.8, policy="tad-op", dry_run=True)
    assert told == {
        "schema": 1,
        "tasks": {"digits": ["tiny", "small"]},
        "difference": [
            {
                "field": "tasks.digits.accuracy_target",
                "before": 0.75,
                "after": 0.8,
                "hidden": False,
            },
            {"field": "dispatch.policy", "before": "priced", "after": "tad-op", "hidden": False},
        ],
    }
    write(file.parent, instances=THREE)
    told = apply(file, serving.admin, dry_run=True)
    assert told["tasks"] == {"digits": ["tiny", "small", "large"]}
    assert [one["field"] for one in told["difference"]] == [
        "nodes.here.instances.digits/tiny",
        "nodes.here.instances.digits/large",
    ]
    assert apply(admin_url=serving.admin, target=0.75, dry_run=True)["difference"] == []
    for wrong in ({"target": 0.999}, {"policy": "none"}, {"target": 2.0}):
        with pytest.raises(ServeError):
            apply(admin_url=serving.admin, dry_run=True, **wrong)
    assert (serving.site, serving.site.pool, site.target) == (site, pool, 0.75)


def test_a_policy_of_elsewhere_is_not_run(serving: Any, file: Path, tmp_path_factory: Any) -> None:
    # It would be told by what it does when it is imported.
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "mine.py"
    ran = elsewhere.with_suffix(".ran")
    elsewhere.write_text(f"open({str(ran)!r}, 'w')")
    for policy in (f"{elsewhere}:Mine", f"../{elsewhere.parent.name}/mine.py:Mine"):
        for dry_run in (True, False):
            for of in (None, file):
                with pytest.raises(ServeError, match="is outside of the folders to apply from"):
                    apply(of, serving.admin, policy=policy, dry_run=dry_run)
    assert not ran.exists()


def test_every_fleet_has_a_recording_of_its_own(start: Any, file: Path) -> None:
    running = start(deployment=inferway.load(file), record=file.parent / "run", allow_apply=True)
    admin = f"http://127.0.0.1:{running.server.admin_port}"
    clients = Clients(running, 2)
    try:
        apply(write(file.parent, instances=THREE), admin)
        apply(write(file.parent), admin)
    finally:
        clients.stop()
    running.wait(running.server.stop())
    found = [inferway.replay(one, requests=None) for one in recordings(file.parent / "run")]
    assert len(found) == 3
    assert sum(one.requests for one in found) == len(clients.statuses)
    assert [one.differences for one in found] == [(), (), ()]


def test_the_collector_leaves_what_is_applied_alone(
    serving: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serving.site
    settled: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: settled.append(serving.site is first))
    # Not in a process that is also somebody else's.
    apply(write(file.parent, target=0.8), serving.admin)
    assert settled == []
    first = serving.site
    serving.server._settles = True
    apply(write(file.parent, target=0.7), serving.admin)
    assert settled == [True]  # once, before a request came to what is new
    write(file.parent, policy="none-such")
    with pytest.raises(ServeError):
        apply(file, serving.admin)
    assert settled == [True]
