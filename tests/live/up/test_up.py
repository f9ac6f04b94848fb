"""Nodes as processes: started in order, watched, killed, started again, and never left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import astuple

from inferway.deployment import Deployment, load
from inferway.lab import ClusterError, LocalCluster, State, StatusPoller

Raise = Callable[..., LocalCluster]
LIMIT_S = 30.0
STAND_IN = Path(__file__).parent / "stand_in.py"
OWNER = """\
import sys, time
from pathlib import Path
from inferway.deployment import load
from inferway.lab import LocalCluster
class StandIns(LocalCluster):
    def node_command(self, name):
        return [sys.executable, "-S", "-u", sys.argv[2], name, str(self.addresses_file)]
with StandIns(load(sys.argv[1]), run=Path(sys.argv[3])) as up:
    print(*(one.pid for one in up.nodes.values()), flush=True)
    time.sleep(600)
"""


def gone(pid: int | None) -> bool:
    """Whether a process has ended; one that nobody has waited for has."""
    if pid is None:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Heard:
    """What was told, to be waited for."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.new = threading.Event()

    def __call__(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self.new.set()


def test_nodes_run_each_in_a_process_until_they_are_stopped(raised: Raise, tmp_path: Path) -> None:
    with raised() as up:
        assert list(up.nodes) == list(up.topology.nodes)
        assert {one.state for one in up.nodes.values()} == {State.READY}
        pids = {one.pid for one in up.nodes.values()}
        assert len(pids) == 3
        told = {name: up.admin(name) for name in up.nodes}
        assert {one["pid"] for one in told.values()} == pids
        assert [one["node"] for one in told.values()] == list(up.nodes)
        written = json.loads(up.addresses_file.read_text())
        assert written == msgspec.to_builtins(up.addresses)
        assert up.url("edge") == f"http://{up.addresses['edge'].http}"
        assert up.entries == {"digits": ("edge",)}
        assert "starting metro" in (tmp_path / "run" / "metro.log").read_text()
        assert (tmp_path / "run" / "state" / "metro").is_dir()
    assert all(gone(pid) for pid in pids)
    assert [one.code for one in up.nodes.values()] == [0, 0, 0]
    up.stop()


def test_a_run_folder_is_for_one_at_a_time(raised: Raise, tmp_path: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {one: one.read_bytes() for one in (tmp_path / "run").rglob("*") if one.is_file()}

    with raised() as up:
        before = content()
        with pytest.raises(ClusterError, match=r"^another `up` runs in \S+/run: stop it first, or"):
            raised(state=tmp_path / "other").begin()
        assert content() == before
        assert not (tmp_path / "other").exists()
        assert up.admin("edge")["node"] == "edge"
    raised().begin()


def test_a_killed_one_leaves_its_run_folder_free(
    raised: Raise, deployment: Deployment, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", OWNER, deployment.path, STAND_IN, tmp_path / "run"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert len(owner.stdout.readline().split()) == 3
        with pytest.raises(ClusterError, match="another `up` runs in"):
            raised().begin()
        owner.kill()
    up = raised()
    up.begin()
    assert up.admin("edge")["node"] == "edge"


def test_repositories_start_first_and_all_addresses_differ(raised: Raise) -> None:
    seen: list[list[str]] = []
    up = raised()
    up.begin(ready=lambda names: seen.append(list(names)))
    # In the order of their start.
    assert seen[-1] == ["cloud", *(name for name in up.nodes if name != "cloud")]
    every = [
        a for one in up.addresses.values() for a in (one.http, one.peer, one.control, one.admin)
    ]
    assert len(set(every)) == 12


def test_a_killed_node_stays_away_until_it_is_started_and_has_its_place_again(
    raised: Raise,
) -> None:
    heard = Heard()
    with raised(tell=heard, restart=True) as up:
        was = up.nodes["metro"].pid
        up.kill("metro")
        assert gone(was)
        assert (up.nodes["metro"].state, up.nodes["metro"].code) == (State.ENDED, -signal.SIGKILL)
        with pytest.raises(ClusterError, match="node metro does not answer at 127"):
            up.admin("metro")
        assert up.admin("cloud")["node"] == "cloud"
        up.start("metro")
        assert up.admin("metro")["pid"] == up.nodes["metro"].pid != was
        assert up.nodes["metro"].starts == 2
        up.start("metro")
        assert up.nodes["metro"].starts == 2
    assert heard.sentences == []  # it was ended on purpose


def test_a_node_that_ends_by_itself_is_told_and_the_others_stay(raised: Raise) -> None:
    heard = Heard()
    with raised(tell=heard) as up:
        pid = up.nodes["metro"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert heard.new.wait(LIMIT_S)
        assert heard.sentences == [
            f"node metro was ended by SIGKILL; its log is {up.nodes['metro'].log}"
        ]
        assert up.nodes["edge"].state is State.READY
        assert not up.wait(0.0)
        glances = StatusPoller(up).poll()
        assert [one.state for one in glances if one.node == "metro"] == ["ended"]


def test_a_node_that_ends_by_itself_is_started_again_if_asked(raised: Raise) -> None:
    heard = Heard()
    with raised(tell=heard, restart=True) as up:
        metro = up.nodes["metro"]
        pid = metro.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with up._changed:
            assert up._changed.wait_for(
                lambda: metro.starts == 2 and metro.state is State.READY, LIMIT_S
            )
        assert up.admin("metro")["pid"] == metro.pid != pid
    assert len(heard.sentences) == 1
    assert "; it is started again; " in heard.sentences[0]


def test_a_node_that_keeps_ending_is_not_started_in_a_rush_and_can_be_stopped(
    raised: Raise,
) -> None:
    heard = Heard()
    up = raised({"metro": "ends"}, tell=heard, restart=True)
    up.begin()
    assert heard.new.wait(LIMIT_S)
    start_s = time.monotonic()
    up.stop()
    assert time.monotonic() - start_s < LIMIT_S / 2
    assert up.nodes["metro"].state is State.ENDED
    assert up.nodes["metro"].starts <= 2
    assert all(one.over for one in up.nodes.values())


def test_a_node_that_does_not_start_ends_it_all_with_its_last_words(raised: Raise) -> None:
    up = raised({"edge": "fails"}, restart=True)
    with pytest.raises(
        ClusterError,
        match=r"^node edge ended with exit code 3: the model is not there$",
    ):
        up.begin()
    assert all(one.over and one.pid is None for one in up.nodes.values())


def test_a_node_that_is_never_ready_is_named(raised: Raise) -> None:
    up = raised({"metro": "slow"})
    with pytest.raises(ClusterError, match="metro is not ready after a long while: starting metro"):
        up.begin(patience_s=2.0)
    assert all(one.over for one in up.nodes.values())


def test_a_node_that_does_not_answer_for_all_tasks_is_named(raised: Raise) -> None:
    up = raised({"edge": "unready"})
    with pytest.raises(
        ClusterError, match="node edge does not answer for task digits: the cloud is away"
    ):
        up.begin(patience_s=5.0)
    assert all(one.over for one in up.nodes.values())


def test_what_does_not_end_when_asked_is_killed(raised: Raise) -> None:
    up = raised({"metro": "deaf"})
    up.begin()
    up.terminate("cloud")
    assert up.nodes["cloud"].code == 0
    up.stop(0.2)
    assert up.nodes["metro"].code == -signal.SIGKILL
    assert up.nodes["edge"].code == 0


def test_what_is_no_node_is_said_so(raised: Raise) -> None:
    with raised({"metro": "garbles"}) as up:
        with pytest.raises(ClusterError, match="there is no node mars; there are "):
            up.url("mars")
        with pytest.raises(ClusterError, match="node metro answers what is no JSON at 127"):
            up.admin("metro")
        assert up.command_at("edge", "curl") == ["curl"]


def test_a_watch_tells_rates(raised: Raise) -> None:
    clock = [0.0]
    with raised() as up:
        watch = StatusPoller(up, now=lambda: clock[0])
        first = {one.node: one for one in watch.poll()}
        assert first["edge"].per_s == {}
        clock[0] = 2.0
        second = {one.node: one for one in watch.poll()}
        told, before = second["edge"].told, first["edge"].told
        assert second["edge"].per_s["served"] == (told["served"] - before["served"]) / 2
        assert second["edge"].per_s["forwarded"] == 0
        assert second["edge"].state == "ready"
        os.kill(told["pid"], signal.SIGSTOP)
        try:
            assert {one.node: one.state for one in watch.poll()}["edge"] == "silent"
        finally:
            os.kill(told["pid"], signal.SIGCONT)
        watch.close()


def test_files_that_nodes_cannot_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 3/s}}}}}\n")
    with pytest.raises(ClusterError) as caught:
        LocalCluster(load(path))
    assert str(caught.value).splitlines() == [
        f"{path}: network: there is none, so there is one node alone; `inferway serve` runs it",
        f"{path}: tasks.t.variants: a has no `model`, so nothing can answer requests",
    ]


def test_missing_certificates_are_said_before_anything_starts(
    deployment: Deployment, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    with pytest.raises(
        ClusterError, match=r"needs .*authority\.pem: .*; `inferway certs` makes the"
    ):
        LocalCluster(deployment, certs=tmp_path / "none", run=tmp_path)


def test_a_folder_that_cannot_be_made_is_said(raised: Raise, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="cannot be made: Not a directory"):
        raised(state=tmp_path / "file" / "state").begin()


def test_the_command_of_a_node(deployment: Deployment, tmp_path: Path) -> None:
    up = LocalCluster(deployment, run=tmp_path / "run", state=tmp_path / "kept")
    up._prepare()
    assert up.nodes["edge"].command == (
        *(sys.executable, "-m", "inferway", "node", str(deployment.path.resolve())),
        *("--name", "edge", "--addresses", str(up.addresses_file)),
        *("--state", str(tmp_path / "kept" / "edge"), "--emulate-rtt"),
    )
    up.stop(0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell a parent's end")
def test_nodes_do_not_outlive_a_killed_owner(deployment: Deployment, tmp_path: Path) -> None:
    arguments: list[Any] = [deployment.path, STAND_IN, tmp_path / "run"]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 3
    ends = [os.pidfd_open(pid) for pid in pids]
    owner.kill()
    owner.wait()
    over = [bool(select.select([end], [], [], LIMIT_S)[0]) for end in ends]
    for end, done in zip(ends, over, strict=True):
        if not done:
            signal.pidfd_send_signal(end, signal.SIGKILL)
        os.close(end)
    assert over == [True, True, True]


def test_each_node_has_a_folder_to_record_in(deployment: Deployment, tmp_path: Path) -> None:
    up = LocalCluster(deployment, run=tmp_path / "run", record=tmp_path / "recorded")
    up._prepare()
    for name in ("edge", "metro", "cloud"):
        command = up.nodes[name].command
        assert command[command.index("--record") + 1] == str(tmp_path / "recorded" / name)
    plain = LocalCluster(deployment, run=tmp_path / "other")
    plain._prepare()
    assert "--record" not in plain.nodes["edge"].command
    up.stop(0.0)
    plain.stop(0.0)


def test_addresses_are_written_for_others(raised: Raise) -> None:
    up = raised()
    up._prepare()
    found = json.loads(up.addresses_file.read_text())
    assert set(found) == {"edge", "metro", "cloud"}
    assert set(found["edge"]) == {"http", "peer", "control", "admin"}


def test_no_two_clusters_at_once_have_a_port_in_common(raised: Raise, tmp_path: Path) -> None:
    up = [raised(run=tmp_path / str(k)) for k in range(2)]
    for one in up:
        one._prepare()
    claim = socket.socket(type=socket.SOCK_DGRAM)
    with claim, pytest.raises(OSError, match="in use"):
        claim.bind(("127.0.0.1", int(up[0].addresses["edge"].http.rpartition(":")[2])))
    ports = [address for one in up for at in one.addresses.values() for address in astuple(at)]
    assert len(set(ports)) == 24
