"""What `deploy/` says, held to what the server does."""

from __future__ import annotations

import configparser
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from inferway.cli import main
from inferway.deployment import PolicySpec, load, times_file
from inferway.live import Limits, ServerOptions
from inferway.scheduling import Conditions, controller_of
from inferway.site import Fleet, fleet_of

PEER_PORT, CONTROL_PORT = 8003, 7447
"""Where a node listens for its neighbors, if nothing else is said."""
_TIMES = {"service": {"mean": "3 ms"}}
SHARED = {
    "tasks": {
        "digits": {
            "variants": {"tiny": {"accuracy": 0.7, **_TIMES}, "big": {"accuracy": 0.9, **_TIMES}}
        }
    },
    "nodes": {
        "here": {
            "devices": {"cpu": {"cores": 2}},
            "instances": {"digits/tiny": 1, "digits/big": 1},
        }
    },
}
"""Two variants that share a device."""


@pytest.fixture
def deploy(root: Path) -> Path:
    return root / "deploy"


def unit(file: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(file)
    return found


def preset(option: str) -> Any:
    """What a server does if nothing else is said."""
    return inspect.signature(ServerOptions).parameters[option].default


def families_of(running: Any) -> list[Any]:
    """What a server's metrics are."""
    text = running.get("/metrics", admin=True).body.decode()
    return list(text_string_to_metric_families(text))


def names_of(families: list[Any]) -> set[str]:
    found = {sample.name for family in families for sample in family.samples}
    found |= {family.name for family in families}
    # A counter without samples, as those of remote servers here, is only announced.
    return found | {f"{family.name}_total" for family in families if family.type == "counter"}


def test_the_dashboard_shows_metrics_that_there_are(deploy: Path, start: Any, site_of: Any) -> None:
    fleet = Fleet(("tiny", "big"), np.array([1e3, 1e2]), np.array([0.7, 0.9]), np.array([1, 1]))
    controller = controller_of(PolicySpec("lw", {}), [Conditions(fleet)])
    devices = fleet_of(load(SHARED), "digits").devices
    site = site_of(policy="alias", controller=controller, devices=devices)
    families = families_of(start(site))
    exported = names_of(families)
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    dashboard = json.loads((deploy / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 5
    named = set()
    for panel in dashboard["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for target in panel["targets"]:
            named |= set(re.findall(r"inferway_\w+", target["expr"]))
            shown = {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
            assert shown <= labels | {"outcome", "change"}
            assert target["expr"].count("(") == target["expr"].count(")")
    # What changes hands is told where devices do, which this server's do not.
    moving = {"inferway_device_changes_total", "inferway_placement_moves_total"}
    assert named <= exported | moving, named - exported
    # And all that there is, but for what a panel can do without.
    bases = {re.sub("_(total|bucket|sum|count|created)$", "", name) for name in named}
    assert {family.name for family in families} <= bases


@pytest.mark.parametrize("file", ["inferway.service", "inferway-node@.service"])
def test_the_unit_waits_longer_than_the_server_drains(deploy: Path, file: str) -> None:
    service = unit(deploy / file)["Service"]
    assert float(service["TimeoutStopSec"]) > preset("drain_delay_s") + preset("grace_s")
    assert service["KillSignal"] == "SIGTERM"
    for hardening in ("NoNewPrivileges", "DynamicUser", "PrivateTmp", "RestrictNamespaces"):
        assert service[hardening] == "yes"


@pytest.mark.parametrize("file", ["inferway.service", "inferway-node@.service"])
def test_the_unit_is_bounded_and_can_be_reloaded(deploy: Path, file: str) -> None:
    service = unit(deploy / file)["Service"]
    limits = Limits()
    (memory,) = re.findall(r"^(\d+)G$", service["MemoryMax"])
    # The process refuses long before the kernel kills it.
    assert int(memory) * 1024**3 > 3 * (limits.memory_bytes + limits.bodies_bytes)
    assert int(service["TasksMax"]) >= 256
    assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    said = (deploy / "README.md").read_text()
    assert f"`{service['MemoryMax']}`" in said
    assert f"`TasksMax={service['TasksMax']}`" in said


@pytest.mark.parametrize("file", ["inferway.service", "inferway-node@.service"])
def test_systemd_finds_nothing_wrong_with_the_unit(deploy: Path, tmp_path: Path, file: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    text = (deploy / file).read_text()
    # It looks whether the program is there.
    (tmp_path / file).write_text(text.replace("/opt/inferway/bin/inferway", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", ["inferway.service", "inferway-node@.service", "Containerfile"])
def test_what_is_kept_is_kept_where_it_can_be_written(
    deploy: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (deploy / file).read_text()
    # The places of systemd's folders, for a unit of the system.
    text = text.replace("%C", "/var/cache").replace("%S", "/var/lib").replace("%i", "edge-1")
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        (value,) = re.findall(rf"\b{variable}=(\S+)", text)
        monkeypatch.setenv(variable, value)
    # What `inferway compile` says of its folder is below the first of these.
    compiled = Path(os.environ["XDG_CACHE_HOME"]) / "inferway" / "compiled"
    kept = {compiled: "/var/cache/inferway", times_file(): "/var/lib/inferway"}
    if "@" in file:  # a folder for each node of the machine
        kept = {path: f"{folder}-node/edge-1" for path, folder in kept.items()}
        assert re.findall(r"--state (\S+)", text) == ["/var/lib/inferway-node/edge-1"]
    for path, writable in kept.items():
        assert path.is_relative_to(writable)
        folder = Path(writable)
        if file == "Containerfile":
            assert f'"{folder}"' in re.findall(r"^VOLUME (.*)$", text, re.MULTILINE)[0]
            assert str(folder) in re.findall(r"^RUN install -d (.*)$", text, re.MULTILINE)[0]
    if file == "inferway.service":
        service = unit(deploy / file)["Service"]
        assert service["CacheDirectory"] == service["StateDirectory"] == "inferway"
    if "@" in file:
        service = unit(deploy / file)["Service"]
        assert service["CacheDirectory"] == service["StateDirectory"] == "inferway-node/%i"


def test_the_commands_are_ones_that_inferway_knows(
    deploy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [shlex.split(unit(deploy / "inferway.service")["Service"]["ExecStart"])[1:]]
    words = shlex.split(unit(deploy / "inferway-node@.service")["Service"]["ExecStart"])[1:]
    # Unquoted at the end, where it is as many words as it has, or none.
    assert words.pop() == "$INFERWAY_NODE_OPTIONS"
    lines.append(words)
    container = (deploy / "Containerfile").read_text()
    said = re.sub(r"^# *", "", container, flags=re.MULTILINE).replace("\\\n", "")
    lines += [shlex.split(one) for one in re.findall(r" inferway ((?:serve|node) .*)$", said, re.M)]
    assert [name for name, *_ in lines] == ["serve", "node", "serve", "node"]
    (command,) = re.findall(r"^CMD (\[.*\])$", container, re.MULTILINE)
    lines.append(json.loads(command))
    for name, *arguments in lines:
        assert main([name, "--help"]) == 0
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
        assert {one for one in arguments if one.startswith("--")} <= options


def test_the_image_is_not_root_and_shows_the_ports(deploy: Path, root: Path) -> None:
    lines = (deploy / "Containerfile").read_text().splitlines()
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    (exposed,) = [line.split()[1:] for line in lines if line.startswith("EXPOSE")]
    assert {str(port) for port in (preset("http_port"), PEER_PORT, CONTROL_PORT)} <= set(exposed)
    assert str(preset("admin_port")) not in exposed
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            assert all((root / name).exists() for name in line.split()[1:-1])


def test_the_image_begins_with_what_can_be_pinned(deploy: Path) -> None:
    text = (deploy / "Containerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    froms = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert froms == ["${BASE}", "${BASE}"]
    for said in (text, (deploy / "README.md").read_text()):
        assert f"skopeo inspect --format '{{{{.Name}}}}@{{{{.Digest}}}}' docker://{base}" in said
        assert "--build-arg BASE=docker.io/library/python@sha256:" in said


def test_the_image_installs_nothing_without_a_hash(deploy: Path) -> None:
    text = (deploy / "Containerfile").read_text().replace("\\\n", " ")
    runs = " && ".join(re.findall(r"^RUN (.*)$", text, re.MULTILINE)).split("&&")
    pips = [shlex.split(one) for one in runs if "/pip " in one]
    assert len(pips) == 4
    for words in pips:
        hashed = "--require-hashes" in words
        # Else it is our own, made here.
        assert hashed or {"--no-deps", "--no-build-isolation"} <= {*words} or "--no-index" in words
        if hashed:
            assert (deploy / words[words.index("-r") + 1]).exists()


def locked(file: Path) -> dict[str, tuple[str, str]]:
    """Version and marker of each package in a list with hashes, by its normal name."""
    found = {}
    for entry in re.split(r"(?<!\\)\n", file.read_text()):
        if not entry or entry.startswith("#"):
            continue
        head, *hashes = entry.split(" \\\n    --hash=")
        name, version, marker = re.fullmatch(r"(\S+)==(\S+)(?: ; (.*))?", head).groups()  # type: ignore[union-attr]
        assert hashes, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), name
        found[normal(name)] = version, marker or ""
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_images_lists_are_of_the_versions_that_are_tested(deploy: Path, root: Path) -> None:
    pins = {
        normal(name): version
        for name, version in (
            line.split("==")
            for line in (root / "constraints.txt").read_text().splitlines()
            if not line.startswith("#")
        )
    }
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for extra in ("dashboard", "drift", "grpc", "network"):  # those of the image
        wanted += project["project"]["optional-dependencies"][extra]
    listed = locked(deploy / "requirements.txt")
    for name, (version, marker) in listed.items():
        assert pins.get(name, version if "win32" in marker else None) == version, name
    building = locked(deploy / "requirements-build.txt")
    assert all(pins.get(name, version) == version for name, (version, _) in building.items())
    for lines, list_of in ((wanted, listed), (project["build-system"]["requires"], building)):
        left = [Requirement(line) for line in lines]
        seen = set()
        while left:
            one = left.pop()
            name = normal(one.name)
            if name in seen or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
                continue
            seen.add(name)
            assert name in list_of, f"{name} is not in the list: `make constraints` renews it"
            assert one.specifier.contains(list_of[name][0], prereleases=True), one
            with suppress(PackageNotFoundError):
                left += map(Requirement, requires(name) or ())


def test_prometheus_scrapes_the_admin_port(deploy: Path) -> None:
    settings = YAML(typ="safe").load((deploy / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{preset('admin_port')}"]}]
    assert "metrics_path" not in job  # /metrics is the default
    assert settings["rule_files"] == ["alerts.yml"]


def test_alerts_go_by_metrics_that_there_are(
    deploy: Path, root: Path, start: Any, site_of: Any
) -> None:
    (group,) = YAML(typ="safe").load((deploy / "alerts.yml").read_text())["groups"]
    families = families_of(start(site_of()))
    exported = names_of(families)
    # Those of nodes are told by nodes alone, those of labels and of drift where a task has them.
    guide = (root / "docs" / "guides" / "read-the-metrics.md").read_text()
    exported |= set(re.findall(r"`(inferway_(?:neighbor|feedback|drift)_\w+)`", guide))
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) > 5
    for rule in group["rules"]:
        named = set(re.findall(r"inferway_\w+", rule["expr"]))
        assert named <= exported, named - exported
        assert named or "up{" in rule["expr"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()
        assert f"`{rule['alert']}`" in guide


# By alert, the series that raise it, and how long that takes.
RAISED = {
    "InferwayPromiseMissed": ({'inferway_promise_kept{task="t"}': "1 1 0x20"}, "4m"),
    "InferwayBalanceFalling": ({'inferway_accuracy_balance{task="t"}': "2-1x20"}, "13m"),
    "InferwayAccuracyDrifted": (
        {'inferway_drift_alarm_timestamp_seconds{task="t",variant="v"}': "_ 60x9"},
        "3m",
    ),
    "InferwayProfileTooHigh": (
        {
            'inferway_feedback_accuracy_high_ratio{task="t",variant="v"}': "1 0.9x9",
            'inferway_feedback_profile_ratio{task="t",variant="v"}': "0.95x9",
        },
        "3m",
    ),
    "InferwayMemoryBudget": (
        {"inferway_run_memory_bytes": "95x9", "inferway_run_memory_limit_bytes": "100x9"},
        "3m",
    ),
    "InferwayBodiesRefused": ({"inferway_bodies_refused_total": "0 0 3x9"}, "3m"),
    "InferwayNodeGone": ({'up{job="inferway"}': "1 0x9"}, "3m"),
    "InferwayNeighborLeftOut": ({'inferway_neighbor_usable{neighbor="b"}': "0x9"}, "2m"),
    "InferwayTaskNotReady": ({'inferway_task_ready{task="t"}': "0x9"}, "2m"),
    "InferwayInstanceResting": (
        {'inferway_instance_healthy{task="t",variant="v",exported_instance="0"}': "0x9"},
        "3m",
    ),
}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool here: Debian's prometheus has it")
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_promtool_finds_nothing_wrong_with_the_alerts(deploy: Path) -> None:
    done = promtool("check", "config", str(deploy / "prometheus.yml"))
    assert done.returncode == 0, done.stderr
    assert f"{len(RAISED)} rules found" in done.stdout


@pytest.mark.parametrize("alert", RAISED)
def test_an_alert_is_raised_by_what_it_is_for_and_by_nothing_else(
    deploy: Path, tmp_path: Path, alert: str
) -> None:
    rules = YAML(typ="safe").load((deploy / "alerts.yml").read_text())["groups"][0]["rules"]
    (rule,) = [one for one in rules if one["alert"] == alert]
    series, after = RAISED[alert]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": to} for name, to in values.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{one["alert"]}",alertstate="firing"}})',
                    "eval_time": after,
                    "exp_samples": [{"labels": "{}", "value": 1}] if one is raised else [],
                }
                for one in rules
            ],
        }
        for values, raised in ((series, rule), ({'up{job="inferway"}': "1x20"}, None))
    ]
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(deploy / "alerts.yml")], "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
