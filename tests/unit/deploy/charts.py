"""The chart rendered with many values.

It is done in a process of its own: Helm is a library of Go, with threads and signals of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[3] / "deploy"
NETWORK = (DEPLOY / "network.yaml").read_text(encoding="utf-8")
SITE = "tasks: {}\n"
TIERS: list[dict[str, Any]] = [
    {"name": "cloud", "resources": {"limits": {"memory": "9Gi"}}, "storage": {"size": ""}},
    {"name": "middle"},
    {"name": "edge", "nodes": 3, "clients": True, "nodeSelector": {"zone": "edge"}},
]
SECURED: dict[str, Any] = {
    "keys": {"secret": "own-keys"},
    "tls": {"secret": "own-tls"},
    "dashboard": {"enabled": True},
    "monitoring": {"serviceMonitor": True, "rules": True, "grafana": True},
    "networkPolicy": {
        "clients": [{"podSelector": {"matchLabels": {"client": "yes"}}}],
        "monitoring": [{"namespaceSelector": {}}],
        "egress": [{"ports": [{"port": 443}]}],
    },
    "options": ["--log-level=debug", "--max-memory=100"],
    "environment": [{"name": "OTEL_SERVICE_NAME", "value": "digits"}],
    "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "edge", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "service": {"type": "LoadBalancer", "annotations": {"c": "d"}},
}
CASES: dict[str, dict[str, Any]] = {
    "site": {"deployment": SITE},
    "site, secured": {"deploymentConfigMap": "own", "storage": {"claim": "kept"}, **SECURED},
    "site, no gRPC": {"deployment": SITE, "grpc": False, "replicas": 3},
    "network": {"mode": "network", "deployment": NETWORK, "tiers": TIERS},
    "network, secret": {
        "mode": "network",
        "deployment": NETWORK,
        "tiers": TIERS,
        "certificates": {"secret": "own-certs"},
        **SECURED,
    },
    "network, cert-manager": {
        "mode": "network",
        "deploymentConfigMap": "own",
        "tiers": TIERS,
        "certificates": {"certManager": {"issuer": "own", "issuerKind": "ClusterIssuer"}},
    },
    "kserve": {"mode": "none", "kserve": {"enabled": True}},
}
"""Values that reach every template, and both sides of what they choose."""

_RENDER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import helm_python, render
told = {"cases": {}, "refused": [], "manifests": {}}
given = json.load(sys.stdin)
for name, values in given["cases"].items():
    told["cases"][name] = render.render(values, name="demo")
for values in given["refused"]:
    try:
        render.render(values)
        told["refused"].append(None)
    except helm_python.HelmError as error:
        told["refused"].append(str(error))
told["manifests"] = {name: render.manifest(name) for name in render.DEPLOYMENTS}
told["lint"] = helm_python.lint(render.CHART, given["cases"]["site"], strict=True)
json.dump(told, sys.stdout)
"""

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "give the deployment file"),
    ({"deployment": SITE, "mode": "cluster"}, "mode"),
    ({"deployment": SITE, "replica": 2}, "replica"),
    ({"deployment": SITE, "replicas": -1}, "replicas"),
    ({"deployment": SITE, "tiers": TIERS}, "mode: network"),
    ({"deployment": SITE, "mode": "network"}, "needs `tiers`"),
    ({"deployment": SITE, "mode": "network", "tiers": [{"name": "Edge"}]}, "name"),
    ({"deployment": SITE, "drain": {"preStop": 0}}, "preStop"),
    ({"deployment": SITE, "monitoring": {"serviceMonitor": True}}, "give `keys.secret`"),
    ({"deployment": SITE, "dashboard": {"enabled": True}}, "give `keys.secret`"),
    ({"deployment": SITE, "replicas": 2, **SECURED}, "`replicas: 1`"),
    (
        {
            "mode": "network",
            "deployment": SITE,
            "tiers": TIERS,
            "certificates": {"secret": "a", "certManager": {"issuer": "b"}},
        },
        "not from both",
    ),
]


def rendered() -> dict[str, Any]:
    """Render all cases with Helm: `cases`, `refused`, `manifests` and `lint`."""
    given = {"cases": CASES, "refused": [values for values, _ in REFUSED]}
    done = subprocess.run(
        [sys.executable, "-c", _RENDER, str(DEPLOY)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
