"""Renders the chart in `helm` as plain manifests in `kubernetes`, with Helm as a library.

    python deploy/render.py

needs no `helm`; it is the same as `helm template inferway deploy/helm --namespace inferway` with
the values of `kubernetes/NAME.values.yaml` and, as `--set-file deployment=`, the deployment file
that `DEPLOYMENTS` names, but for the order of the objects and the comments in front of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import helm_python as helm
from ruamel.yaml import YAML

HERE: Final = Path(__file__).parent
CHART: Final = HERE / "helm"
DEPLOYMENTS: Final = {
    "site": HERE.parent / "examples" / "digits.yaml",
    "network": HERE / "network.yaml",
    "kserve": None,
}
"""Manifests, and the deployment file of each."""

# Objects that others need come first.
_FIRST: Final = ("ConfigMap", "Certificate", "NetworkPolicy", "PodDisruptionBudget", "Service")


def render(values: Mapping[str, Any], name: str = "inferway") -> list[str]:
    """Render the chart; each object as its YAML, those first that others need.

    `helm_python.HelmError` where the values do not fit their schema or cannot work.
    """
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name=name, namespace="inferway")
    parts = [
        part.strip("\n")
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for part in f"\n{text}".split("\n---\n")
    ]
    objects = [part for part in parts if part.strip()]
    return sorted(objects, key=_place)


def _place(text: str) -> int:
    (kind,) = (line[6:] for line in text.splitlines() if line.startswith("kind: "))
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def values_of(name: str) -> dict[str, Any]:
    """Read the values of a manifest, its deployment file included."""
    values: dict[str, Any] = YAML(typ="safe").load(HERE / "kubernetes" / f"{name}.values.yaml")
    file = DEPLOYMENTS[name]
    return values if file is None else {**values, "deployment": file.read_text(encoding="utf-8")}


def manifest(name: str) -> str:
    """Render one of the manifests."""
    head = f"# Rendered from the chart by deploy/render.py: change {name}.values.yaml.\n"
    return head + "".join(f"---\n{one}\n" for one in render(values_of(name)))


def main() -> None:
    """Write all of them."""
    for name in DEPLOYMENTS:
        file = HERE / "kubernetes" / f"{name}.yaml"
        file.write_text(manifest(name), encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
