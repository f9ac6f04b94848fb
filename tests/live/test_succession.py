"""Another file takes over from the one that is served while requests are on their way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from inferway import Deployment, load
from inferway.live import ServeError
from scripted import Asked, Scripted

FILE = """
tasks:
  double:
    accuracy_target: {target}
    variants:
      tiny: {{remote: {{url: "{url}", timeout: 1 min}}, accuracy: 0.7, service: {{mean: 1 ms}}}}
      big: {{remote: {{url: "{url}", timeout: 1 min}}, accuracy: 0.9, service: {{mean: 10 ms}}}}
nodes: {{here: {{instances: {{double/tiny: {tiny}, double/big: 1}}, buffer: 8}}}}
dispatch: {{policy: {policy}}}
"""
ONE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]}]}
INFER = "/v2/models/double/infer"


@pytest.fixture
def upstream() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@pytest.fixture
def written(tmp_path: Path, upstream: Scripted) -> Callable[..., Deployment]:
    """Write a file whose variants are both at the upstream server, and read it."""
    path = tmp_path / "served.yaml"

    def write(
        target: float = 0.8, policy: str = "fastest-only", tiny: int = 1, url: str = upstream.url
    ) -> Deployment:
        path.write_text(FILE.format(target=target, policy=policy, tiny=tiny, url=url))
        return load(path)

    return write


def hang(upstream: Scripted) -> None:
    """Let requests wait from now on, but for zeros, by which a server warms up."""

    def script(asked: Asked) -> bytes | None:
        zeros = asked.body.endswith(bytes(8))
        return None if zeros or not asked.path.endswith("/infer") else upstream.hang(asked)

    upstream.script = script


def metric(running: Any, name: str) -> float:
    """Read the value of one line of the metrics."""
    page: str = running.get("/metrics", admin=True).body.decode()
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name)]
    return sum(map(float, found))


def ended(running: Any, outcome: str) -> float:
    """Count the requests with an outcome."""
    page: str = running.get("/metrics", admin=True).body.decode()
    lines = [line for line in page.splitlines() if line.startswith("inferway_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'outcome="{outcome}"' in line)


def sent(running: Any, until: Any, count: int) -> list[Any]:
    """Send requests that nobody answers yet, each on a connection of its own."""
    wires = []
    site = running.site
    for i in range(count):
        wires.append(running.wire())
        wires[-1].send(running.post(ONE, path=INFER))
        until(lambda i=i: running.call(lambda: site.in_flight) == i + 1)
    return wires


def test_what_is_undone_later_is_undone_where_the_task_is_by_then(
    start: Any, written: Callable[..., Deployment], upstream: Scripted, until: Any
) -> None:
    running = start(deployment=written())
    hang(upstream)
    served, queued, last = sent(running, until, 3)
    assert metric(running, "inferway_accuracy_balance{") == pytest.approx(3 * (0.7 - 0.8))
    site = running.site
    running.wait(running.server.apply(written()))
    queued.close()
    until(lambda: running.call(lambda: site.in_flight) == 2)
    running.wait(running.server.apply(written()))
    last.close()
    until(lambda: running.call(lambda: site.in_flight) == 1)
    upstream.released.set()
    assert served.read().status == 200
    until(lambda: ended(running, "canceled") == 2)
    until(lambda: ended(running, "answered") == 1)
    balance = pytest.approx(0.7 - 0.8)
    until(lambda: metric(running, "inferway_accuracy_balance{") == balance)


def test_a_balance_of_another_promise_is_left(
    start: Any, written: Callable[..., Deployment], upstream: Scripted, until: Any
) -> None:
    running = start(deployment=written())
    hang(upstream)
    served, queued = sent(running, until, 2)
    site = running.site
    for target in (0.75, 0.8):
        running.wait(running.server.apply(written(target=target)))
    queued.close()
    until(lambda: running.call(lambda: site.in_flight) == 1)
    upstream.released.set()
    assert served.read().status == 200
    until(lambda: ended(running, "canceled") == ended(running, "answered") == 1)
    assert metric(running, "inferway_accuracy_balance{") == 0.0


LEARNING = '''
from typing import NamedTuple

import numpy as np

from inferway.site import DISPATCHED

class Turns(NamedTuple):
    """The fast variant twice, the other one ever after."""
    arrived: np.ndarray
    last: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(np.zeros(1), int(fleet.first[-1]) - 1)

    def learn(self, site, event):
        if event.kind == DISPATCHED:
            self.arrived[0] += 1.0

    def choose(self, site, request, draw):
        return self.last if self.arrived[0] > 1.5 else 0
'''


def test_what_the_policy_has_learned_goes_on(
    start: Any, written: Callable[..., Deployment], tmp_path: Path
) -> None:
    (tmp_path / "turns.py").write_text(LEARNING)
    turns = {"policy": "./turns.py:Turns"}
    running = start(deployment=written(**turns))

    def answered() -> str:
        answer = running.infer(ONE, path=INFER)
        assert answer.status == 200, answer.body
        variant: str = answer.json["model_version"]
        return variant

    assert [answered() for _ in range(2)] == ["tiny", "tiny"]
    for same in (written(**turns), written(**turns, tiny=2)):
        running.wait(running.server.apply(same))
        assert answered() == "big"
    running.wait(running.server.apply(written(**turns, target=0.75)))
    assert answered() == "tiny"


def test_nothing_is_applied_to_a_server_that_stopped_meanwhile(
    start: Any, written: Callable[..., Deployment], upstream: Scripted, until: Any
) -> None:
    running = start(deployment=written())
    assert upstream.open
    first = running.site
    other = Scripted()
    try:
        other.script = lambda asked: other.hang(asked) if asked.path.endswith("/infer") else None
        applying = running.begin(running.server.apply(written(url=other.url)))
        assert other.entered.acquire(timeout=20)  # it warms up
        running.wait(running.server.stop(grace_s=0.0))
        other.released.set()
        with pytest.raises(ServeError, match="nothing has been applied"):
            applying.result(20)
        assert running.server.served() == [first]
        until(lambda: not (upstream.open or other.open))
    finally:
        other.close()
