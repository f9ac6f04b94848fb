"""What `deploy/` starts in containers, run as these are meant to be: from request to drain."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest
from ruamel.yaml import YAML

import inferway
from inferway.catalog import model_path
from inferway.cli import main
from inferway.lab import Emulation, EmulationError, NodeProcess, State
from inferway.network import Topology, topology_of

sys.path.insert(0, str(Path(__file__).parent))

from container import ROOT, USER, Mount, command, owned

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

DEPLOY: Final = ROOT / "deploy"
LIMIT_S: Final = 240.0
READER: Final = "reader-of-metrics"
CLIENT: Final = "client-of-digits"
COMPOSE_KEY: Final = "key-of-all-services"
NODES: Final = ("cloud", "middle", "edge")


class Container:
    """A container that runs on a node of the machine's network."""

    def __init__(self, machine: Emulation, node: str, words: list[str], log: Path) -> None:
        self.machine, self.node, self.changed = machine, node, threading.Condition()
        self.process = NodeProcess(
            node,
            machine.command(node, words),
            log,
            os.environ,
            restart=False,
            changed=self.changed,
            told=lambda _: None,
        )
        self.process.start()

    def ask(self, url: str, body: bytes | None = None, key: str = "") -> tuple[int, Any, bytes]:
        """Ask from the node's own network: status, headers and body."""

        def asked() -> tuple[int, Any, bytes]:
            request = urllib.request.Request(url, body)
            if key:
                request.add_header("Authorization", f"Bearer {key}")
            try:
                with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                    return answer.status, answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.headers, error.read()

        return self.machine.within(self.node, asked)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for it, as long as the process runs."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            with suppress(OSError):
                if holds():
                    return
            assert self.process.state is not State.ENDED, self.process.last_words()
            assert time.monotonic() < end_s, self.process.log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Ask it to end, as Kubernetes and compose do, and wait for it."""
        self.process.send(signal.SIGTERM)
        with self.changed:
            assert self.changed.wait_for(lambda: self.process.over, LIMIT_S)


@pytest.fixture
def machine() -> Iterator[Emulation]:
    """Make a network of the three nodes."""
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("containers are made with util-linux's unshare and setpriv")
    topology = topology_of(inferway.load(DEPLOY / "network.yaml"))
    # The round trips are for another test; here all that matters is who is who's neighbor.
    near = Topology(topology.nodes, topology.links, topology.rtt_s * 0)
    try:
        emulation = Emulation(near)
    except EmulationError as error:
        pytest.skip(str(error))
    with emulation:
        yield emulation


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Mount:
    """Make a folder with what this machine has compiled; containers share it."""
    folder = owned(tmp_path_factory.mktemp("shared") / "compiled")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for file in (cache / "inferway" / "compiled").glob("*.nbc"):
        with suppress(FileNotFoundError):  # other tests may remove old ones
            shutil.copy(file, folder)
            os.chown(folder / file.name, USER, USER)
    return Mount("/var/cache/inferway/compiled", folder)


class Volumes:
    """What a kubelet mounts, of the manifest's objects and what stands beside it."""

    def __init__(self, objects: list[dict[str, Any]], folder: Path) -> None:
        self._folder = folder
        self._data: dict[str, dict[str, bytes]] = {
            one["metadata"]["name"]: {key: text.encode() for key, text in one["data"].items()}
            for one in objects
            if one["kind"] == "ConfigMap"
        }

    def add(self, name: str, data: Mapping[str, bytes]) -> None:
        """Keep a Secret."""
        self._data[name] = dict(data)

    def of(self, pod: dict[str, Any], name: str, environment: Mapping[str, str]) -> list[Mount]:
        """Make the volumes of a pod, and say where its only container has them."""
        (container,) = pod["containers"]
        given = {one["name"]: one for one in pod["volumes"]}
        made: dict[str, Path] = {}
        mounts = []
        for one in container["volumeMounts"]:
            volume = given.get(one["name"], {})
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                mounts.append(Mount(one["mountPath"]))
                continue
            if one["name"] not in made:
                made[one["name"]] = self._made(self._folder / name / one["name"], volume)
            sub = put_in(one.get("subPathExpr", one.get("subPath", "")), environment)
            source = made[one["name"]] / sub
            if not source.exists():
                owned(source)
            mounts.append(Mount(one["mountPath"], source, not one.get("readOnly", False)))
        return mounts

    def _made(self, folder: Path, volume: dict[str, Any]) -> Path:
        """Make a volume: its files are root's, and fsGroup may read what the owner may."""
        owned(folder)
        (kind,) = volume.keys() - {"name"} or {"claim"}
        if kind in ("emptyDir", "claim"):
            return folder
        said = volume[kind]
        whole = {"name": said.get("secretName", said.get("name"))}
        sources = [part for one in said.get("sources", ()) for part in one.values()] or [whole]
        mode = said.get("defaultMode", 0o644)
        for source in sources:
            data = self._data[source["name"]]
            for item in source.get("items", [{"key": key, "path": key} for key in data]):
                file = folder / item["path"]
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(data[item["key"]])
                os.chown(file, 0, USER)
                file.chmod(mode | (mode & 0o400) >> 3)
        return folder


def put_in(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)


def digit(metadata: bytes) -> bytes:
    """A request of zeros, of the shape that the task takes."""
    (tensor,) = json.loads(metadata)["inputs"]
    shape = [max(one, 1) for one in tensor["shape"]]
    count = 1
    for one in shape:
        count *= one
    inputs = [{**tensor, "shape": shape, "data": [0.0] * count}]
    return json.dumps({"inputs": inputs}).encode()


def answers(one: Container, url: str, key: str = "") -> list[str]:
    """Ask for a digit; the nodes by which the answer came, or the URL of a site."""
    status, _, metadata = one.ask(url, key=key)
    assert status == 200
    status, headers, body = one.ask(f"{url}/infer", digit(metadata), key)
    assert status == 200, body
    assert json.loads(body)["outputs"]
    return str(headers.get("Inferway-Path", url)).split(",")


def served(edge: Container, key: str) -> list[str]:
    """Ask the edge with a key, and without it in vain; the nodes by which the answer came."""
    url = "http://127.0.0.1:8000/v2/models/digits-0"
    assert edge.ask(f"{url}/infer", b"{}")[0] == 401
    return answers(edge, url, key)


def names(machine: Emulation, more: Mapping[str, str]) -> str:
    """Give what is known by name in the cluster: the nodes of the machine, and these."""
    known = {**machine.addresses, **{name: machine.addresses[node] for name, node in more.items()}}
    return "127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in known.items())


class Pods:
    """Starts pods on the machine's nodes, and stops them at the end."""

    def __init__(
        self, machine: Emulation, volumes: Volumes, hosts: Mapping[str, str], folder: Path
    ) -> None:
        self.machine, self.volumes, self.folder = machine, volumes, folder
        self.hosts = folder / "hosts"
        self.hosts.write_text(names(machine, hosts))
        self._stack = ExitStack()

    def start(self, node: str, name: str, pod: dict[str, Any], *more: Mount) -> Container:
        """Start the only container of a pod, as its specification says."""
        (container,) = pod["containers"]
        rights = pod.get("securityContext", {}) | container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is rights["runAsNonRoot"] is True
        assert rights["runAsUser"] == rights["runAsGroup"] == USER
        environment = {one["name"]: one["value"] for one in container.get("env", ())}
        (self.folder / name).mkdir()
        words = command(
            self.folder / name,
            self.hosts,
            [*self.volumes.of(pod, name, environment), *more],
            [put_in(one, environment) for one in container["args"]],
            environment,
        )
        found = Container(self.machine, node, words, self.folder / f"{name}.log")
        self._stack.callback(found.stop)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def probed(one: Container, pod: dict[str, Any]) -> dict[str, int]:
    """Wait until all of its probes succeed; the ports by name."""
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        if kind in container:
            asked = container[kind]["httpGet"]
            port = ports.get(asked["port"], asked["port"])
            one.until(lambda: one.ask(f"http://127.0.0.1:{port}{asked['path']}")[0] == 200)  # noqa: B023
    return ports


def objects_of(name: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(DEPLOY / "kubernetes" / f"{name}.yaml"))


def pods_of(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """By its name, the pod of each such object."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] == kind
    }


@pytest.mark.slow
def test_the_pods_of_a_network_serve_and_drain(
    machine: Emulation, tmp_path: Path, compiled: Mount
) -> None:
    objects = objects_of("network")
    volumes = Volumes(objects, tmp_path / "volumes")
    keys = f"infer={CLIENT}\nread={READER}\n"
    volumes.add("inferway-keys", {"keys": keys.encode(), "reader": READER.encode()})
    certs = tmp_path / "certs"
    assert main(["certs", str(DEPLOY / "network.yaml"), "--out", str(certs)]) == 0
    for node in NODES:  # as cert-manager writes them
        parts = {"ca.crt": "authority.pem", "tls.crt": f"{node}.pem", "tls.key": f"{node}.key"}
        data = {key: (certs / file).read_bytes() for key, file in parts.items()}
        volumes.add(f"inferway-node-{node}", data)
    sets = pods_of(objects, "StatefulSet")
    hosts = {f"inferway-{node}-0.inferway-nodes": node for node in NODES}
    with Pods(machine, volumes, hosts, tmp_path) as pods:
        nodes = {node: pods.start(node, node, sets[f"inferway-{node}"], compiled) for node in NODES}
        # It is a neighbor of both others, so that all are reached from there.
        page = pods_of(objects, "Deployment")["inferway-dashboard"]
        shown = pods.start("middle", "page", page, compiled)
        ports = {node: probed(one, sets[f"inferway-{node}"]) for node, one in nodes.items()}
        assert served(nodes["edge"], CLIENT)[0] == "edge"
        for node in NODES:  # as Prometheus does, with the key that it is given
            url = f"http://{machine.addresses[node]}:{ports[node]['admin']}/metrics"
            status, _, text = nodes["middle"].ask(url, key=READER)
            assert status == 200
            assert b"inferway_task_ready" in text
            assert nodes["middle"].ask(url)[0] == 401
        probed(shown, page)
        everybody_answers(shown)
        for one in (*nodes.values(), shown):
            not_root(one)
        drained(nodes["edge"], ports["edge"]["http"])


@pytest.mark.slow
def test_the_pod_of_a_site_serves_and_drains(machine: Emulation, tmp_path: Path) -> None:
    # With an empty cache, as on a new machine.
    objects = objects_of("site")
    (pod,) = pods_of(objects, "Deployment").values()
    with Pods(machine, Volumes(objects, tmp_path / "volumes"), {}, tmp_path) as pods:
        one = pods.start("edge", "site", pod)
        port = probed(one, pod)["http"]
        assert answers(one, f"http://127.0.0.1:{port}/v2/models/digits")
        not_root(one)
        drained(one, port)


@pytest.mark.slow
def test_kserves_runtime_serves_a_folder_and_drains(
    machine: Emulation, tmp_path: Path, compiled: Mount
) -> None:
    (runtime,) = objects_of("kserve")
    models = tmp_path / "models"
    for variant in ("tiny", "small"):
        (models / "digits" / variant).mkdir(parents=True)
        shutil.copy(model_path("digits", variant), models / "digits" / variant / "model.onnx")
    with Pods(machine, Volumes([], tmp_path / "volumes"), {}, tmp_path) as pods:
        # Where KServe's own container has put what the service names.
        mounted = Mount("/mnt/models", models, writable=False)
        one = pods.start("edge", "runtime", runtime["spec"], mounted, compiled)
        port = probed(one, runtime["spec"])["http1"]
        assert answers(one, f"http://127.0.0.1:{port}/v2/models/digits")
        not_root(one)
        drained(one, port)


def composed(
    services: dict[str, Any], name: str, folder: Path
) -> tuple[list[Mount], dict[str, str]]:
    """Make what a service of compose.yaml mounts; and its environment, with the key put in."""
    mounts = [Mount(path) for path in services[name]["tmpfs"]]
    for one in services[name]["volumes"]:
        outside, inside = one.removesuffix(":ro").split(":")
        if outside.startswith("./"):
            source = folder / "files" / Path(outside).name
            source.parent.mkdir(exist_ok=True)
            shutil.copy(DEPLOY / outside, source)
        else:
            source = owned(folder / "volumes" / outside)
        mounts.append(Mount(inside, source, not one.endswith(":ro")))
    given = services[name]["environment"].items()
    key = r"\$\{INFERWAY_KEY:[^}]*\}"
    return mounts, {variable: re.sub(key, COMPOSE_KEY, str(value)) for variable, value in given}


@pytest.mark.slow
def test_the_services_of_compose_serve_and_are_scraped(
    machine: Emulation, tmp_path: Path, compiled: Mount
) -> None:
    services = YAML(typ="safe").load(DEPLOY / "compose.yaml")["services"]
    hosts = tmp_path / "hosts"
    hosts.write_text(names(machine, {}))
    running: dict[str, Container] = {}
    with ExitStack() as stack:
        for name in (*NODES, "page"):
            assert services[name]["read_only"] is True
            mounts, environment = composed(services, name, tmp_path)
            (tmp_path / name).mkdir()
            arguments = services[name]["command"]
            words = command(tmp_path / name, hosts, [*mounts, compiled], arguments, environment)
            node = name if name in NODES else "middle"
            running[name] = Container(machine, node, words, tmp_path / f"{name}.log")
            stack.callback(running[name].stop)
        for name in NODES:
            one = running[name]
            one.until(lambda: one.ask("http://127.0.0.1:8000/v2/health/ready")[0] == 200)  # noqa: B023
            not_root(one)
        assert served(running["edge"], COMPOSE_KEY)[0] == "edge"
        page = running["page"]
        page.until(lambda: page.ask("http://127.0.0.1:8004/enter")[0] == 200)
        everybody_answers(page, COMPOSE_KEY)
        if shutil.which("prometheus") is not None:
            scraped(running["middle"], tmp_path, stack)
        drained(running["edge"], 8000)


def scraped(one: Container, folder: Path, stack: ExitStack) -> None:
    """Run Prometheus with compose's file beside a node, until it has all three and the rules."""
    key, home = folder / "key", folder / "prometheus"
    key.write_text(COMPOSE_KEY)
    home.mkdir()
    text = (DEPLOY / "compose" / "prometheus.yml").read_text()
    (home / "prometheus.yml").write_text(text.replace("/run/secrets/inferway-key", str(key)))
    shutil.copy(DEPLOY / "alerts.yml", home)
    words = ["prometheus", f"--config.file={home / 'prometheus.yml'}"]
    words += [f"--storage.tsdb.path={home / 'data'}", "--web.listen-address=127.0.0.1:9090"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            one.machine.command(one.node, words), stdout=log, stderr=subprocess.STDOUT
        )
    stack.callback(process.wait)
    stack.callback(process.terminate)

    def up() -> bool:
        status, _, body = one.ask("http://127.0.0.1:9090/api/v1/query?query=up")
        found = json.loads(body)["data"]["result"] if status == 200 else []
        return [each["value"][1] for each in found] == ["1"] * len(NODES)

    one.until(up)
    _, _, body = one.ask("http://127.0.0.1:9090/api/v1/rules")
    (group,) = json.loads(body)["data"]["groups"]
    assert {rule["name"] for rule in group["rules"]} >= {"InferwayNodeGone"}
    assert all(rule["health"] != "err" for rule in group["rules"])


def everybody_answers(page: Container, key: str = READER) -> None:
    """Enter the page with a key, and look at it until it says that all nodes answer."""

    def look() -> set[str]:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open("http://127.0.0.1:8004/enter", f"key={key}".encode(), LIMIT_S) as answer:
            assert answer.url == "http://127.0.0.1:8004/"
        with opener.open("http://127.0.0.1:8004/events", timeout=LIMIT_S) as events:
            while not (line := events.readline()).startswith(b"data: "):
                pass
        return {one["name"] for one in json.loads(line[6:])["sources"] if one["state"] == "answers"}

    page.until(lambda: page.machine.within(page.node, look) == set(NODES))


def not_root(one: Container) -> None:
    """Look at the process: its user, its rights, and what it could write to."""
    status = Path(f"/proc/{one.process.pid}/status").read_text()
    said = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert set(said["Uid"].split() + said["Gid"].split()) == {str(USER)}
    assert said["Groups"].strip() == ""
    assert said["NoNewPrivs"] == "1"
    assert all(int(said[kind], 16) == 0 for kind in ("CapEff", "CapPrm", "CapBnd"))
    mounts = Path(f"/proc/{one.process.pid}/mounts").read_text().splitlines()
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts}
    assert "ro" in options["/"]


def drained(one: Container, port: int) -> None:
    """End it as a pod ends: it answers as long as it listens, and ends by itself."""
    one.process.send(signal.SIGTERM)
    with suppress(OSError):
        while True:
            ready = one.ask(f"http://127.0.0.1:{port}/v2/health/ready")[0]
            assert one.ask(f"http://127.0.0.1:{port}/v2/health/live")[0] == 200
            assert ready in (200, 503)
    with one.changed:
        assert one.changed.wait_for(lambda: one.process.over, LIMIT_S)
    assert one.process.code == 0
