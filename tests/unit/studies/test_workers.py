"""Workers of all kinds compute the same, outlive one that dies, and are refused with a sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import inferway
from inferway.cli import main
from inferway.experiments.runner import Point
from inferway.experiments.workers import Workers, by_workers, workers
from inferway.studies import run, study


def squared(number):
    return {"square": number**2}


def dying(number, folder):
    """Kill the worker at the first call with this number."""
    fallen = Path(folder, "fallen")
    if number == 3 and not fallen.exists():
        fallen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(number)


def always_dying():
    os.kill(os.getpid(), signal.SIGKILL)


def staying(folder):
    """Never end, once the worker has told its process."""
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()


OWNER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_workers import Point, Workers, by_workers, staying
points = [Point({"number": i}, staying, {"folder": sys.argv[2]}) for i in range(2)]
list(by_workers(points, Workers("processes", 2)))
"""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, Workers("processes")),
        (8, Workers("processes", 8)),
        ("8", Workers("processes", 8)),
        (0, Workers("here")),
        ("threads:3", Workers("threads", 3)),
        ("processes", Workers("processes")),
        ("ray", Workers("ray")),
        ("ray://far:10001", Workers("ray", None, "far:10001")),
        ("dask://[::1]:8786", Workers("dask", None, "[::1]:8786")),
    ],
)
def test_workers_are_read(written, expected):
    assert workers(written, "processes") == expected


@pytest.mark.parametrize(
    "written", ["-1", "many", "processes:0", "ray:3", "spark://a:1", "ray://far", "dask", ""]
)
def test_what_are_no_workers_is_refused(written):
    with pytest.raises(ValueError, match=r"workers are a number, .* not "):
        workers(written, "threads")


def test_a_process_that_dies_costs_its_chunk_alone(tmp_path):
    points = [Point({"number": i}, dying, {"number": i, "folder": str(tmp_path)}) for i in range(6)]
    rows = {one.place: one.result for one in by_workers(points, Workers("processes", 2))}
    assert rows == {i: {"square": i**2} for i in range(6)}
    assert (tmp_path / "fallen").exists()


def test_processes_end_with_the_one_that_asked_though_it_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(Path(__file__).parent), tmp_path])
    try:
        waited(lambda: len([*tmp_path.iterdir()]) == 2 or owner.poll() is not None)
        started = [psutil.Process(int(file.name)) for file in tmp_path.iterdir()]
        assert len(started) == 2
    finally:
        owner.kill()
        owner.wait()
    waited(lambda: not any(map(alive, started)))


def alive(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE  # which whoever adopts it may leave so
    return False


def waited(ended):
    """Wait until something is so; a busy machine has two minutes."""
    deadline = time.monotonic() + 120
    while not ended():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_point_that_kills_every_process_is_named():
    with pytest.raises(RuntimeError, match=r"workers of point {'only': 7} died 3 times"):
        list(by_workers([Point({"only": 7}, always_dying, {})], Workers("processes", 1)))


def test_short_points_go_in_chunks_and_each_comes_once():
    points = [Point({"number": i}, squared, {"number": i}, 0.01) for i in range(40)]
    seen = [one.place for one in by_workers(points, Workers("threads", 2))]
    assert sorted(seen) == list(range(40))


def test_a_sweep_is_the_same_by_threads_and_by_processes(write):
    deployment = inferway.load(write(SITE))
    asked = {"load": [0.3, 0.6], "queries": 1000, "warmup": 100}
    threads = inferway.sweep(deployment, workers=2, **asked).to_frame()
    by_processes = inferway.sweep(deployment, workers="processes:2", **asked).to_frame()
    measured = [name for name in threads if "cpu" not in name]
    assert threads[measured].equals(by_processes[measured])


@pytest.fixture
def write(tmp_path):
    def written(text):
        file = tmp_path / "site.yaml"
        file.write_text(text)
        return file

    return written


SITE = """
tasks:
  words:
    accuracy_target: 0.8
    variants:
      small: {accuracy: 0.7, service: {mean: 10ms}}
      large: {accuracy: 0.9, service: {mean: 40ms}}
nodes:
  here: {instances: {words/small: 2, words/large: 2}}
dispatch: {policy: tad}
workload:
  words: {arrivals: {process: poisson, rate: 60/s}}
"""


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_no_cluster_or_no_extra_is_one_sentence(engine, write, capsys):
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"{engine}://127.0.0.1:{unheard.getsockname()[1]}"
        command = ["simulate", str(write(SITE)), "--sweep", "load=0.3,0.6", "--workers", address]
        assert main([*command, "--out", str(write(SITE).parent / "out")]) == 1
    said = capsys.readouterr().err.strip()
    assert f"in the extra `{engine}`" in said or f"cluster answers at {address}" in said
    assert len(said.splitlines()) == 1


def test_one_simulation_takes_threads_alone(write, capsys):
    assert main(["simulate", str(write(SITE)), "--workers", "processes:2"]) == 2
    assert "--workers processes:2 is for a --sweep" in capsys.readouterr().err


def untimed(rows):
    return [{name: row[name] for name in row if "cpu" not in name} for row in rows]


@pytest.mark.slow
def test_ray_gives_the_same_though_a_raylet_is_killed(tmp_path, write):
    ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
    from ray.cluster_utils import Cluster

    one = study("wrong-pair")
    alone = run(one, "smoke", out=tmp_path / "a", workers=2)
    deployment = inferway.load(write(SITE))
    asked = {"load": [0.2, 0.3, 0.4, 0.5, 0.6], "queries": 1000, "warmup": 100}
    threads = inferway.sweep(deployment, workers=2, **asked).to_frame()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        killing = threading.Lock()
        killed = []

        def kill(progress):
            with killing:
                if progress.done >= 1 and not killed:
                    killed.append(progress.done)
                    cluster.remove_node(second, allow_graceful=False)

        together = run(one, "smoke", out=tmp_path / "b", workers="ray", progress=kill)
        assert killed
        assert untimed(together.rows) == untimed(alone.rows)
        frame = inferway.sweep(deployment, workers="ray", **asked).to_frame()
        measured = [name for name in threads if "cpu" not in name]
        assert threads[measured].equals(frame[measured])
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_dask_gives_the_same_though_a_worker_is_killed(tmp_path):
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: the extra `dask`"
    )
    points = [Point({"number": i}, dying, {"number": i, "folder": str(tmp_path)}) for i in range(6)]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        crew = workers(address, "processes")
        rows = {one.place: one.result for one in by_workers(points, crew)}
    assert rows == {i: {"square": i**2} for i in range(6)}
    assert (tmp_path / "fallen").exists()
