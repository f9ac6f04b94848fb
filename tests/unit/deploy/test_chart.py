"""The chart: valid, and true to the program that it starts."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
from charts import CASES, DEPLOY, NETWORK, REFUSED, SECURED, TIERS
from kubernetes_validate.utils import latest_version
from ruamel.yaml import YAML

import inferway
from inferway.cli.app import app
from inferway.cli.dashboard import PORT as PAGE_PORT
from inferway.live import ServerOptions
from inferway.live.node.addresses import ADMIN_PORT, CONTROL_PORT, HTTP_PORT, PEER_PORT, read
from inferway.live.security.tls import Credentials
from inferway.network import topology_of
from inferway.version import __version__

COMMANDS: Any = typer.main.get_command(app)
GRPC_PORT = 8001
PORTS = {
    "http": HTTP_PORT,
    "grpc": GRPC_PORT,
    "admin": ADMIN_PORT,
    "peer": PEER_PORT,
    "control": CONTROL_PORT,
    "page": PAGE_PORT,
}
# Of these kinds the cluster's schemas say nothing but for the pod of a runtime: they are looked at
# as YAML.
CUSTOM = {"Certificate", "ServiceMonitor", "PrometheusRule", "ClusterServingRuntime"}
Objects = list[dict[str, Any]]


def pods(objects: Objects) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each object that makes pods, and the specification of these."""
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one, one["spec"]["template"]["spec"]
        elif one["kind"] == "ClusterServingRuntime":
            yield one, one["spec"]


def arguments(container: dict[str, Any]) -> list[str]:
    """Its arguments, with variables of its environment put in as the kubelet does."""
    variables = {"POD_INDEX": "0"}
    for one in container.get("env", ()):
        if "value" in one:
            variables[one["name"]] = put_in(one["value"], variables)
    return [put_in(word, variables) for word in container["args"]]


def put_in(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)


def parsed(container: dict[str, Any]) -> dict[str, Any]:
    """Its options, as the program's own parser reads them."""
    name, *rest = arguments(container)
    found: dict[str, Any] = COMMANDS.commands[name].make_context(name, rest).params
    return found


def pod_labels(one: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = one["spec"]["template"]["metadata"]["labels"]
    return found


def chosen(selector: dict[str, str], objects: Objects) -> Objects:
    return [
        one
        for one, _ in pods(objects)
        if "template" in one["spec"] and selector.items() <= pod_labels(one).items()
    ]


def of_kind(objects: Objects, kind: str) -> Objects:
    return [one for one in objects if one["kind"] == kind]


def core(one: dict[str, Any]) -> dict[str, Any] | None:
    """The part of an object of which the cluster's schemas say something: of a runtime, a pod."""
    if one["kind"] == "ClusterServingRuntime":
        spec = {
            key: value for key, value in one["spec"].items() if key in ("containers", "volumes")
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": spec}
    return None if one["kind"] in CUSTOM else one


def test_core_kinds_are_valid_and_named_once(objects: Objects) -> None:
    oldest = re.search(r">=([\d.]+)-0", (DEPLOY / "helm" / "Chart.yaml").read_text())
    assert oldest is not None
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    for one in objects:
        whole = core(one)
        assert one["data"] if one["kind"] == "ConfigMap" else one["spec"]
        if whole is not None:
            for version in (oldest[1], latest_version()):
                kubernetes_validate.validate(whole, version, strict=True)


def test_every_option_is_one_that_the_program_takes(objects: Objects) -> None:
    seen = 0
    for _, pod in pods(objects):
        for container in pod["containers"]:
            assert parsed(container)
            seen += 1
    assert seen


def test_ports_are_those_of_the_program(objects: Objects) -> None:
    assert PORTS["http"] == inspect.signature(ServerOptions).parameters["http_port"].default
    for made, pod in pods(objects):
        (container,) = pod["containers"]
        shown = {port["name"]: port["containerPort"] for port in container["ports"]}
        options = parsed(container)
        if made["kind"] == "ClusterServingRuntime":
            assert shown == {"http1": options["http_port"]}
            continue
        assert shown.items() <= PORTS.items()
        if container["args"][0] == "serve":
            assert options["http_port"] == shown["http"]
            assert options["no_grpc"] == ("grpc" not in shown)
            # Whether the admin listener can be reached: refused by the program without keys.
            assert (options["admin_host"] == "0.0.0.0") == ("admin" in shown)
        elif container["args"][0] == "node":
            assert options["grpc_port"] == shown.get("grpc")
        else:
            assert options["port"] == shown["page"]
        if "admin" in shown:
            assert options["keys"] is not None
    for service in of_kind(objects, "Service"):
        targets = chosen(service["spec"]["selector"], objects)
        assert targets
        for target in targets:
            (container,) = target["spec"]["template"]["spec"]["containers"]
            names = {port["name"]: port["containerPort"] for port in container["ports"]}
            for port in service["spec"]["ports"]:
                assert names[port["targetPort"]] == port["port"]


def test_probes_ask_for_paths_that_there_are(objects: Objects) -> None:
    paths = json.loads((DEPLOY.parent / "docs" / "openapi.json").read_text())["paths"]
    for _, pod in pods(objects):
        (container,) = pod["containers"]
        named = {port["name"] for port in container["ports"]}
        named |= {port["containerPort"] for port in container["ports"]}
        secured = "--tls-cert=/run/inferway/tls/tls.crt" in container["args"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if container["args"][0] == "dashboard":
                if kind == "startupProbe":
                    continue
                expected = "/enter"
            else:
                side = "ready" if kind == "readinessProbe" else "live"
                expected = f"/v2/health/{side}"
                assert "get" in paths[expected]
            asked = container[kind]["httpGet"]
            assert asked["path"] == expected
            assert asked["port"] in named
            assert (asked.get("scheme", "HTTP") == "HTTPS") == secured


def test_a_pod_is_given_the_time_that_its_drain_takes(objects: Objects) -> None:
    usual = inspect.signature(ServerOptions).parameters
    for made, pod in pods(objects):
        (container,) = pod["containers"]
        if container["args"][0] == "dashboard":
            continue
        options = parsed(container)
        assert options["drain_delay"] == usual["drain_delay_s"].default
        assert options["grace"] == usual["grace_s"].default
        before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert before > 0
        if made["kind"] != "ClusterServingRuntime":  # KServe's pods have Kubernetes' own 30 s
            given = pod["terminationGracePeriodSeconds"]
        else:
            given = 30
        assert given > before + options["drain_delay"] + options["grace"] + 2


def test_nothing_has_rights_that_it_does_not_need(objects: Objects) -> None:
    for made, pod in pods(objects):
        (container,) = pod["containers"]
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        if made["kind"] == "ClusterServingRuntime":
            whole = rights
        else:
            whole = pod["securityContext"]
            assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
        assert whole["runAsNonRoot"] is True
        image = (DEPLOY / "Containerfile").read_text()
        assert f"USER {whole['runAsUser']}:{whole['runAsGroup']}" in image
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["resources"]["limits"]["memory"]


def test_what_is_written_has_a_place_and_all_that_is_mounted_is_there(objects: Objects) -> None:
    image = (DEPLOY / "Containerfile").read_text()
    (volumes,) = re.findall(r"^VOLUME (.*)$", image, re.MULTILINE)
    for made, pod in pods(objects):
        (container,) = pod["containers"]
        claims = [one["metadata"]["name"] for one in made["spec"].get("volumeClaimTemplates", ())]
        known = [*claims, *(volume["name"] for volume in pod["volumes"])]
        assert len(set(known)) == len(known)
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} == set(known)
        for path in ("/tmp", *json.loads(volumes)):
            mount = mounts[path]
            assert not mount.get("readOnly")
            (kind,) = [
                volume.keys() - {"name"}
                for volume in pod["volumes"]
                if volume["name"] == mount["name"]
            ] or [{"persistentVolumeClaim"}]
            assert kind <= {"emptyDir", "persistentVolumeClaim"}
        # What the arguments name is mounted.
        for name in re.findall(r"(?<!:)/(?:run|etc|mnt)/[\w./-]+", " ".join(container["args"])):
            if not name.startswith("/mnt/models"):  # KServe's own mount
                assert any(Path(name).is_relative_to(path) for path in mounts), name


def nodes_of(objects: Objects) -> dict[str, tuple[dict[str, Any], int]]:
    """By node, the StatefulSet that runs it, and the number of its pod there."""
    found = {}
    for one in of_kind(objects, "StatefulSet"):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        for number in range(one["spec"]["replicas"]):
            variables = {"POD_INDEX": str(number)}
            (name,) = [
                each["value"] for each in container["env"] if each["name"] == "INFERWAY_NODE"
            ]
            found[put_in(name, variables)] = one, number
    return found


ALL_NETWORKS = pytest.mark.parametrize(
    "case", [name for name in CASES if name.startswith("network")], indirect=True
)


@ALL_NETWORKS
def test_each_node_has_a_pod_and_is_reached_at_its_name(case: Objects, tmp_path: Path) -> None:
    written = NETWORK.replace("{tier: edge,   nodes: 1,", "{tier: edge,   nodes: 3,")
    file = tmp_path / "network.yaml"
    file.write_text(written)
    topology = topology_of(inferway.load(file))
    nodes = nodes_of(case)
    assert set(topology.nodes) == set(nodes)
    (addresses,) = [
        one["data"]["addresses.json"]
        for one in of_kind(case, "ConfigMap")
        if "addresses.json" in one["data"]
    ]
    (tmp_path / "addresses.json").write_text(addresses)
    places = read(tmp_path / "addresses.json")
    assert places.keys() == nodes.keys()
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(case, "Service")}
    for name, (made, number) in nodes.items():
        host = f"{made['metadata']['name']}-{number}.{made['spec']['serviceName']}"
        assert len(host.partition(".")[0]) <= 63
        at = places[name]
        assert (at.http, at.peer, at.control) == (
            f"{host}:{HTTP_PORT}",
            f"{host}:{PEER_PORT}",
            f"{host}:{CONTROL_PORT}",
        )
        keys = any(
            "--keys" in one for one in made["spec"]["template"]["spec"]["containers"][0]["args"]
        )
        assert at.admin == ("0.0.0.0:8002" if keys else f"127.0.0.1:{ADMIN_PORT}")
        # It has a name before it is ready.
        service = services[made["spec"]["serviceName"]]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"] is True
        assert service["selector"].items() <= pod_labels(made).items()
    assert services["demo-inferway-edge"]["selector"]["inferway/tier"] == "edge"


@pytest.mark.parametrize("case", ["network, secret", "network, cert-manager"], indirect=True)
def test_each_node_sees_its_own_certificate_where_it_looks_for_it(case: Objects) -> None:
    made = {one["metadata"]["name"]: one["spec"] for one in of_kind(case, "Certificate")}
    for name, (one, _) in nodes_of(case).items():
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        folder = parsed(container)["certs"]
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(folder)]
        assert mount["subPathExpr"] == "$(INFERWAY_NODE)"
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        wanted = {f"{name}/{file.name}" for file in Credentials.of(name, folder)}
        given: dict[str, tuple[str, str]] = {
            item["path"]: (source["secret"]["name"], item["key"])
            for source in volume["projected"]["sources"]
            for item in source["secret"]["items"]
        }
        assert wanted <= given.keys()
        for path in wanted:
            secret, key = given[path]
            assert "authority.key" not in key
            if made:
                spec = made[secret]
                assert spec["secretName"] == secret
                assert spec["commonName"] == name
                assert {"server auth", "client auth"} <= set(spec["usages"])
                ends = {
                    "authority.pem": "ca.crt",
                    f"{name}.pem": "tls.crt",
                    f"{name}.key": "tls.key",
                }
                assert key == ends[path.partition("/")[2]]
            else:
                assert (secret, key) == ("own-certs", path.partition("/")[2])


def test_only_those_who_may_reach_a_port(objects: Objects) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    for made, pod in pods(objects):
        if made["kind"] == "ClusterServingRuntime":
            continue
        (policy,) = [
            one["spec"]
            for one in policies
            if one["spec"]["podSelector"]["matchLabels"].items() <= pod_labels(made).items()
        ]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        opened = {
            port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]
        }
        shown = {port["name"] for port in pod["containers"][0]["ports"]}
        assert opened.keys() <= shown
        for port in ("peer", "control"):
            if port in shown:
                (peers,) = opened[port]
                labels = peers["podSelector"]["matchLabels"]
                assert labels["app.kubernetes.io/component"] == "node"
        if "admin" in shown:
            assert {"namespaceSelector": {}} in opened["admin"]
        assert opened.get("http", True) is None or opened.get("http") != []


def test_a_budget_of_disruption_is_for_each_set_of_pods(objects: Objects) -> None:
    budgets = [one["spec"] for one in of_kind(objects, "PodDisruptionBudget")]
    assert all(budget["maxUnavailable"] == 1 for budget in budgets)
    covered = [
        one["metadata"]["name"]
        for budget in budgets
        for one in chosen(budget["selector"]["matchLabels"], objects)
    ]
    made = [
        one["metadata"]["name"]
        for one, pod in pods(objects)
        if "template" in one["spec"] and pod["containers"][0]["args"][0] != "dashboard"
    ]
    assert sorted(covered) == sorted(made)


@pytest.mark.parametrize("case", ["site, secured", "network, secret"], indirect=True)
def test_prometheus_and_grafana_get_what_is_in_deploy(case: Objects) -> None:
    (monitor,) = [one["spec"] for one in of_kind(case, "ServiceMonitor")]
    wanted = monitor["selector"]["matchLabels"]
    (service,) = [
        one
        for one in of_kind(case, "Service")
        if wanted.items() <= one["metadata"]["labels"].items()
    ]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["scheme"] == "https"
    # The alerts go by this job.
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "inferway"
    assert endpoint["authorization"]["credentials"]["name"] == SECURED["keys"]["secret"]
    (rules,) = [one["spec"] for one in of_kind(case, "PrometheusRule")]
    assert rules == YAML(typ="safe").load(DEPLOY / "alerts.yml")
    (board,) = [
        one["data"]
        for one in of_kind(case, "ConfigMap")
        if "grafana_dashboard" in one["metadata"]["labels"]
    ]
    (text,) = board.values()
    assert json.loads(text) == json.loads((DEPLOY / "grafana-dashboard.json").read_text())


@pytest.mark.parametrize("case", ["site, secured", "network, secret"], indirect=True)
def test_the_page_asks_every_server(case: Objects) -> None:
    (page,) = [
        pod["containers"][0]
        for _, pod in pods(case)
        if pod["containers"][0]["args"][0] == "dashboard"
    ]
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(case, "Service")}
    urls = parsed(page)["urls"]
    assert len(urls) == (len(nodes_of(case)) or 1)
    for url in urls:
        scheme, host, port = re.fullmatch(r"(\w+)://([\w.-]+):(\d+)", url).groups()  # type: ignore[union-attr]
        assert (scheme, int(port)) == ("https", ADMIN_PORT)
        service = services[host.rpartition(".")[2]]
        assert ADMIN_PORT in {one["port"] for one in service["ports"]}
        assert service["clusterIP"] == "None"


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda k: REFUSED[k][1])
def test_what_cannot_work_is_refused_with_a_sentence(told: dict[str, Any], number: int) -> None:
    _, sentence = REFUSED[number]
    said = told["refused"][number]
    assert said is not None
    assert sentence in said


def test_the_linter_finds_nothing_but_the_missing_icon(told: dict[str, Any]) -> None:
    said = [one["error"] for one in told["lint"]["messages"]]
    assert told["lint"]["errors"] == []
    assert said == ["icon is recommended"]


def test_every_value_has_its_place_in_the_schema() -> None:
    schema = json.loads((DEPLOY / "helm" / "values.schema.json").read_text())
    values = YAML(typ="safe").load(DEPLOY / "helm" / "values.yaml")

    def compare(value: Any, place: dict[str, Any], path: str) -> None:
        if "$ref" in place:
            place = schema["definitions"][place["$ref"].rpartition("/")[2]]
        if isinstance(value, dict) and "properties" in place:
            known = place["properties"].keys() - {"global"}
            assert value.keys() == known, path
            assert place["additionalProperties"] is False
            for key, inner in value.items():
                compare(inner, place["properties"][key], f"{path}.{key}")

    compare(values, schema, "")
    assert TIERS[0].keys() <= schema["definitions"]["tier"]["properties"].keys()


def test_the_chart_is_of_the_version_of_the_package() -> None:
    chart = YAML(typ="safe").load(DEPLOY / "helm" / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("name", ["site", "network", "kserve"])
def test_manifests_are_what_the_chart_renders(told: dict[str, Any], name: str) -> None:
    file = DEPLOY / "kubernetes" / f"{name}.yaml"
    assert file.read_text() == told["manifests"][name], "python deploy/render.py renews them"


@pytest.mark.parametrize("name", ["site", "network"])
def test_manifests_serve_a_file_that_can_be_served(name: str, tmp_path: Path) -> None:
    objects = list(YAML(typ="safe").load_all(DEPLOY / "kubernetes" / f"{name}.yaml"))
    (text,) = [
        one["data"]["deployment.yaml"]
        for one in of_kind(objects, "ConfigMap")
        if "deployment.yaml" in one["data"]
    ]
    file = tmp_path / "deployment.yaml"
    file.write_text(text)
    deployment = inferway.load(file)
    refused = deployment.unserved() if name == "site" else deployment.unserved_at_node()
    assert refused == []
    assert name == "site" or set(topology_of(deployment).nodes) == set(nodes_of(objects))


def test_links_in_the_chart_lead_to_files_of_deploy() -> None:
    for file in (DEPLOY / "helm" / "files").iterdir():
        assert os.path.samefile(file, DEPLOY / file.name)  # noqa: PTH121 - of a link
