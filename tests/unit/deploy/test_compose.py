"""The compose file, held to the program, its network and the files that it mounts."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from charts import DEPLOY
from ruamel.yaml import YAML

import inferway
from inferway.cli.app import app
from inferway.live import ServerOptions
from inferway.live.node.addresses import ADMIN_PORT, CONTROL_PORT, HTTP_PORT, PEER_PORT, read
from inferway.live.security.keys import PLAIN, parted
from inferway.network import topology_of
from inferway.version import __version__

COMMANDS: Any = typer.main.get_command(app)
NODES = ("cloud", "middle", "edge")
OURS = (*NODES, "page")
PROMETHEUS_PORT = 9090


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(DEPLOY / name)
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = loaded("compose.yaml")["services"]
    return found


def options(service: dict[str, Any]) -> dict[str, Any]:
    """Its options, as the program's own parser reads them."""
    name, *rest = service["command"]
    found: dict[str, Any] = COMMANDS.commands[name].make_context(name, list(rest)).params
    return found


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """By its path inside, what is mounted."""
    parts = [one.removesuffix(":ro").split(":") for one in service["volumes"]]
    return {inside: outside for outside, inside in parts}


def test_nodes_are_those_of_the_network_and_are_reached_by_their_names(
    services: dict[str, Any],
) -> None:
    names = set(topology_of(inferway.load(DEPLOY / "network.yaml")).nodes)
    assert names == set(NODES)
    places = read(DEPLOY / "compose" / "addresses.json")
    assert places.keys() == names
    for name in NODES:
        said = options(services[name])
        assert (said["name"], said["bind"]) == (name, "0.0.0.0")
        inside = mounts(services[name])
        assert inside[str(said["file"])] == "./network.yaml"
        assert inside[str(said["addresses"])] == "./compose/addresses.json"
        at = places[name]
        assert (at.http, at.peer, at.control) == (
            f"{name}:{HTTP_PORT}",
            f"{name}:{PEER_PORT}",
            f"{name}:{CONTROL_PORT}",
        )
        # From outside of the container, for Prometheus and the page; so there have to be keys.
        assert at.admin == f"0.0.0.0:{ADMIN_PORT}"
        roles, _ = parted(services[name]["environment"]["INFERWAY_KEYS"])
        assert roles == PLAIN
    (published,) = services["edge"]["ports"]
    assert published == f"127.0.0.1:{HTTP_PORT}:{HTTP_PORT}"


def test_the_page_asks_every_node(services: dict[str, Any]) -> None:
    said = options(services["page"])
    assert set(said["urls"]) == {f"http://{name}:{ADMIN_PORT}" for name in NODES}
    assert services["page"]["ports"] == [f"127.0.0.1:{said['port']}:{said['port']}"]
    assert {"INFERWAY_KEY", "INFERWAY_KEYS"} <= services["page"]["environment"].keys()
    assert f":{said['port']}/enter" in services["page"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", OURS)
def test_a_container_has_few_rights_and_time_to_drain(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in service["tmpfs"]
    usual = inspect.signature(ServerOptions).parameters
    drained_s = usual["drain_delay_s"].default + usual["grace_s"].default
    assert float(service["stop_grace_period"].removesuffix("s")) > drained_s
    # Where the image writes, each has a volume of its own.
    image = (DEPLOY / "Containerfile").read_text()
    (written,) = re.findall(r"^VOLUME (.*)$", image, re.MULTILINE)
    volumes = loaded("compose.yaml")["volumes"]
    for path in json.loads(written):
        assert mounts(service)[path] in volumes
        assert mounts(service)[path].startswith(f"{name}-")
    assert service["image"] == f"inferway:{__version__}"
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_what_is_mounted_is_there(services: dict[str, Any]) -> None:
    known = loaded("compose.yaml")["volumes"]
    for service in services.values():
        for outside in mounts(service).values():
            assert (DEPLOY / outside).is_file() if outside.startswith("./") else outside in known


def test_prometheus_scrapes_the_nodes_and_has_the_alerts(services: dict[str, Any]) -> None:
    service, settings = services["prometheus"], loaded("compose/prometheus.yml")
    inside = mounts(service)
    (config,) = [one.partition("=")[2] for one in service["command"] if "config.file" in one]
    assert inside[config] == "./compose/prometheus.yml"
    (job,) = settings["scrape_configs"]
    assert job["job_name"] == "inferway"  # by which the alerts go
    (target,) = job["static_configs"]
    assert set(target["targets"]) == {f"{name}:{ADMIN_PORT}" for name in NODES}
    (secret,) = service["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret['target']}"
    assert loaded("compose.yaml")["secrets"][secret["source"]] == {"environment": "INFERWAY_KEY"}
    (rules,) = settings["rule_files"]
    assert inside[str(Path(config).parent / rules)] == "./alerts.yml"


def test_grafana_has_the_source_and_the_dashboard(services: dict[str, Any]) -> None:
    inside = mounts(services["grafana"])
    base = "/etc/grafana/provisioning"
    assert inside[f"{base}/datasources/inferway.yaml"] == "./compose/grafana-sources.yaml"
    assert inside[f"{base}/dashboards/inferway.yaml"] == "./compose/grafana-dashboards.yaml"
    (source,) = loaded("compose/grafana-sources.yaml")["datasources"]
    assert source["isDefault"] is True
    assert source["url"] == f"http://prometheus:{PROMETHEUS_PORT}"
    assert services["prometheus"]["ports"] == [f"127.0.0.1:{PROMETHEUS_PORT}:{PROMETHEUS_PORT}"]
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    (variable,) = [one for one in board["templating"]["list"] if one["type"] == "datasource"]
    assert variable["query"] == source["type"]
    (provider,) = loaded("compose/grafana-dashboards.yaml")["providers"]
    (shown,) = [path for path, file in inside.items() if file == "./grafana-dashboard.json"]
    assert Path(shown).parent == Path(provider["options"]["path"])
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == shown
