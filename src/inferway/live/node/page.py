"""What a node says of itself: ``GET /v2/node`` of its admin listener."""

from __future__ import annotations

import math
import resource
from typing import TYPE_CHECKING, Any

import msgspec

from inferway.live.control.control import Traffic

if TYPE_CHECKING:
    from inferway.live.node.node import Node


class Totals:
    """Letters and bytes over the control plane since the start, by kind."""

    def __init__(self) -> None:
        self._sent: dict[str, list[int]] = {}
        self._received: dict[str, list[int]] = {}

    def add(self, traffic: Traffic) -> None:
        """Add what has passed since the last time."""
        for total, counts in ((self._sent, traffic.sent), (self._received, traffic.received)):
            for (_, kind), (letters, size) in counts.items():
                own = total.setdefault(kind, [0, 0])
                own[0] += letters
                own[1] += size

    def to_json(self) -> dict[str, Any]:
        """Letters and bytes by kind, sent and received."""
        return {
            name: {
                kind: {"letters": letters, "bytes": size} for kind, (letters, size) in total.items()
            }
            for name, total in (("sent", self._sent), ("received", self._received))
        }


def described(node: Node) -> dict[str, Any]:
    """Describe a node, for people and scripts."""
    accounts, moves = node.accounts, node.mover.status()
    budget = node.position.budget_bytes
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "schema": 1,
        "node": node.name,
        "policy": node.policy_name,
        "ready": node.server.ready,
        "slot": node.rounds.slot,
        "slots": node.rounds.ended,
        "neighbors": list(node.position.links_s),
        "alive": sorted(node.plane.alive),
        "degraded": node.menu.degraded,
        "hops": {
            neighbor: {
                "usable": upstream.works,
                "reason": upstream.reason,
                "sent": upstream.sent,
                "lost": upstream.failures,
                "errors": upstream.errors,
                "asked": upstream.asked,
                "hung": upstream.hung,
            }
            for neighbor, upstream in node.upstreams.items()
        },
        "running": {
            f"{task}/{variant}": copies
            for (task, variant), copies in sorted(node.sites.running.items())
        },
        "offers": [
            {
                "task": one.task,
                "variant": one.variant,
                "node": one.node,
                "path": list(one.path),
                "spare_per_s": one.spare_per_s,
            }
            for one in node.menu.all
        ],
        "budget_bytes": budget if budget < math.inf else None,
        "used_bytes": moves.used_bytes,
        "moved_bytes": moves.moved_bytes,
        "moving": msgspec.to_builtins(moves.moving),
        "failures": msgspec.to_builtins(moves.failures),
        "arrived": accounts.arrived,
        "forwarded": accounts.forwarded,
        "served": accounts.served,
        "passed": accounts.passed,
        "failed": accounts.failed,
        "cpu_s": used.ru_utime + used.ru_stime,
        "control": node.totals.to_json(),
    }
