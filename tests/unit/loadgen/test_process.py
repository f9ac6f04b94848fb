"""The generator against a server that behaves badly in known ways."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from inferway.loadgen import DriveError, Stream, drive, replay
from prepared import INTERRUPTIBLE, prepared


def test_what_is_sent_and_what_is_read(serve, images):
    server = serve()
    times = np.linspace(0.0, 0.2, 40)
    record = drive(server.url, "t", times, images, labels=[0, 1, 2, 0])
    assert record.status.tolist() == [200] * 40
    assert record.intended_s.tolist() == times.tolist()
    assert record.predicted_class.tolist() == [0, 1, 2, 3] * 10
    assert record.correct.sum() == 30
    assert set(record.variants) == {"even", "odd"}
    assert np.all(record.predicted_s == 0.25)
    assert np.all(record.sent_s >= record.intended_s)
    assert np.all(record.done_s > record.sent_s)
    assert not record.waited.any()
    assert record.cpu_s > 0
    assert record.generated == 40


def test_json_says_the_same_as_binary(serve, images):
    server = serve()
    record = drive(server.url, "t", np.zeros(8), images, binary=False, parameters={"accuracy": 0.5})
    assert sorted(record.predicted_class.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    body = json.loads(server.requests[0][1])
    assert body["parameters"] == {"accuracy": 0.5}
    assert body["inputs"][0]["shape"] == [1, 4]


def test_requests_keep_their_times_while_the_server_stalls(serve, images):
    """A closed loop would send few requests during the stall, and report few slow ones."""
    stall_s = 0.5

    async def behave(number: int) -> int:
        if number == 20:
            time.sleep(stall_s)  # the whole server stands still
        return 200

    times = np.arange(200) * 0.01
    server = serve(behave)
    record = drive(server.url, "t", times, images)
    assert record.status.tolist() == [200] * 200
    # Each of the 50 requests due during the stall waited for its end.
    end_s = record.done_s[20]
    during = (times > times[20]) & (times < times[20] + 0.9 * stall_s)
    assert during.sum() >= 40
    # A closed loop would be late by half of the stall in the middle of it.
    assert np.median(record.lag_s[during]) < 0.2 * stall_s
    assert np.all(record.latency_s[during] > 0.95 * (end_s - times[during]) - 0.02)
    assert np.percentile(record.latency_s, 95) > 0.3 * stall_s
    # Connections grew instead of requests being held back.
    assert server.connections > 32


def test_waiting_for_a_connection_counts_as_latency(serve, images):
    async def behave(number: int) -> int:
        await asyncio.sleep(0.05)
        return 200

    record = drive(serve(behave).url, "t", np.zeros(4), images, connections=1)
    assert record.status.tolist() == [200] * 4
    assert record.waited.tolist() == [False, True, True, True]
    np.testing.assert_array_less(np.arange(1, 5) * 0.05, record.latency_s)


def test_refusals_and_lost_connections_are_told_apart(serve, images):
    async def behave(number: int) -> int:
        return (200, 429, 503, 0)[number % 4]

    record = drive(serve(behave).url, "t", np.arange(40) * 0.005, images)
    counts = {int(s): int((record.status == s).sum()) for s in np.unique(record.status)}
    assert counts == {0: 10, 200: 10, 429: 10, 503: 10}
    assert record.rejected.sum() == 20
    assert np.isnan(record.latency_s[record.status != 200]).all()


def test_answers_that_never_come_end_with_the_grace(serve, images):
    async def behave(number: int) -> int:
        await asyncio.sleep(60 if number == 3 else 0)
        return 200

    began = time.monotonic()
    record = drive(serve(behave).url, "t", np.arange(6) * 0.01, images, grace_s=3)
    assert time.monotonic() - began < 45  # and not 60
    assert (record.status == 0).sum() == 1
    assert np.isnan(record.done_s[record.status == 0]).all()


def test_every_request_without_an_answer_has_a_reason(serve, images):
    async def behave(number: int) -> int:
        if number == 0:
            await asyncio.sleep(60)
        return (200, 429, 0)[number % 3] if number else 200

    # One connection: the first request never ends, so that the others never get theirs.
    record = drive(serve(behave).url, "t", np.zeros(3), images, connections=1, grace_s=0.2)
    assert record.failures() == {
        "no answer: no connection was free before the end": 2,
        "no answer: no answer before the end": 1,
    }
    record = drive(serve(behave).url, "t", np.arange(9) * 0.01, images, grace_s=3)
    assert record.failures() == {
        "429: no": 3,
        "no answer: the connection ended before the answer": 3,
        "no answer: no answer before the end": 1,
    }


def test_only_the_first_sentences_of_a_status_are_kept(serve, images):
    async def behave(number: int) -> int:
        return 500

    server = serve(behave)
    server.complaint = "request {number} broke"
    record = drive(server.url, "t", np.arange(30) * 0.005, images)
    assert record.failures().pop("500: other reasons") == 22
    assert sum(record.failures().values()) == 30
    assert len(record.failures()) == 9


def test_a_server_that_goes_away_is_told_by_its_error(serve, images):
    server = serve()

    async def behave(number: int) -> int:
        if number == 5:
            server.listener.close()
            return 0
        return 200 if number < 5 else 0

    server.behave = behave
    record = drive(server.url, "t", np.arange(60) * 0.01, images, connections=40)
    # Where the generator begins late, requests come at once, and in any order.
    assert (record.status == 200).sum() == 5
    reasons = record.failures()
    assert sum(reasons.values()) == 55
    assert reasons["no answer: no connection: connection refused"] > 10


def test_streams_share_one_clock(serve, images):
    server = serve()
    a = Stream("t", [0.0, 0.1, 0.2], images, labels=[0, 1, 2, 3], item=[3, 2, 1])
    b = Stream("t", [0.05, 0.15], images, variant="even", labels=[3, 2, 1, 0])
    first, second = replay(server.url, [a, b])
    assert first.predicted_class.tolist() == [3, 2, 1]
    assert first.label.tolist() == [3, 2, 1]
    assert second.intended_s.tolist() == [0.05, 0.15]
    assert second.label.tolist() == [3, 2]
    paths = [path for path, _ in server.requests]
    pins = ("", "/versions/even", "", "/versions/even", "")
    assert paths == [f"/v2/models/t{pin}/infer" for pin in pins]


def test_progress_reaches_the_end_or_near(serve, images):
    seen: list[tuple[int, int, int]] = []
    drive(serve().url, "t", np.arange(50) * 0.01, images, progress=lambda *n: seen.append(n))
    assert seen
    assert all(ended <= due <= planned == 50 for due, ended, planned in seen)
    assert seen[-1][0] > 25


def test_ctrl_c_keeps_what_is_known(serve, images):
    server = serve()

    def press() -> None:
        deadline = time.monotonic() + 20
        while len(server.requests) < 10 and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    record = drive(server.url, "t", np.arange(6000) * 0.01, images)
    finger.join()
    assert record.interrupted
    assert 10 <= len(record) < 5000
    assert (record.status == 200).sum() >= 10


SCRIPT = """
import sys
import numpy as np
from inferway.loadgen import drive

print("begins", flush=True)
try:
    drive(sys.argv[1], "t", np.arange(6000) * 0.01, np.eye(4, dtype=np.float32))
except KeyboardInterrupt:
    print("interrupted")
"""


def generators(parent: int) -> list[int]:
    """Find the generators' processes that a process has started."""
    return [
        int(child)
        for thread in Path(f"/proc/{parent}/task").glob("*/children")
        for child in thread.read_text().split()
        if b"inferway.loadgen" in Path("/proc", child, "cmdline").read_bytes().split(b"\0")
    ]


def until(true, deadline_s=30.0):
    deadline = time.monotonic() + deadline_s
    while not (found := true()) and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return found


@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="children by /proc")
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_before_the_generator_has_begun_is_silent(serve, presses):
    server = serve()
    with subprocess.Popen(
        prepared(INTERRUPTIBLE, sys.executable, "-c", SCRIPT, server.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "begins\n"
        (generator,) = until(lambda: generators(process.pid))
        for press in range(presses):
            if press:
                threading.Event().wait(0.02)
            process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    if presses == 1:
        assert (out, errors) == ("interrupted\n", "")
        assert process.returncode == 0
    assert until(lambda: not Path("/proc", str(generator)).exists())
    assert [path for path, _ in server.requests if path.endswith("/infer")] == []


def test_nobody_there(images):
    with pytest.raises(
        DriveError, match=r"no server answers at http://127.0.0.1:9 \(connection re"
    ):
        drive("http://127.0.0.1:9", "t", [0.0], images)


def test_not_ready_and_unknown(serve, images):
    server = serve()
    with pytest.raises(DriveError, match="does not serve a task 'u'"):
        drive(server.url, "u", [0.0], images)
    server.ready = False
    with pytest.raises(DriveError, match="is not ready"):
        drive(server.url, "t", [0.0], images)


@pytest.mark.parametrize("url", ["ftp://here", "http://", "http://here:port", "http://[::1"])
def test_bad_addresses(url, images):
    with pytest.raises(DriveError, match="is no server address"):
        drive(url, "t", [0.0], images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((2, 5))}, r"do not fit the task 't': it takes x: FP32\[-1, 4\]"),
        ({"times_s": [-1.0]}, "negative"),
        ({"item": [0, 1]}, "has 1 times but 2 items"),
        ({"item": [7]}, "outside its 4 inputs"),
        ({"labels": [1]}, "has 4 inputs but 1 labels"),
        ({"connections": 0}, "at least one"),
    ],
)
def test_streams_that_do_not_fit(serve, images, changes, message):
    arguments = {"times_s": [0.0], "images": images} | changes
    with pytest.raises(DriveError, match=message):
        drive(serve().url, "t", **arguments)
