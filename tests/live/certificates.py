"""Certificates as ``inferway certs`` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferway.cli import main as inferway

_FILE = """\
tasks: {{task: {{variants: {{only: {{accuracy: 0.8, size: 1 MB, service: {{rate: 1/s}}}}}}}}}}
nodes: {{{nodes}}}
network: {{links: [{links}]}}
"""


def issue(nodes: Sequence[str], folder: Path) -> None:
    """Make or renew a certificate per node, and the authority of all of them."""
    # A network has two nodes at least.
    nodes = nodes if len(nodes) > 1 else (*nodes, "another")
    file = folder.with_name(f"{folder.name}-of.yaml")
    listed = ", ".join(f"{node}: {{repository: {str(node == nodes[0]).lower()}}}" for node in nodes)
    links = (f"{{between: [{nodes[0]}, {node}], rtt: 1 ms}}" for node in nodes[1:])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_FILE.format(nodes=listed, links=", ".join(links)), encoding="utf-8")
    assert inferway(["certs", str(file), "--out", str(folder), "--json"]) == 0
