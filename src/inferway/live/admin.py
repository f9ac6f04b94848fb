"""The admin listener's pages: metrics for Prometheus, status for people and scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from inferway.live.headroom import Bodies
from inferway.live.http.exchange import Exchange
from inferway.live.http.routes import Routes
from inferway.live.metrics import registry_of
from inferway.live.process import Pauses
from inferway.live.request import Outcome
from inferway.live.security.keys import Guard, Role
from inferway.live.site import TaskSite
from inferway.site.view import WHOLE
from inferway.version import __version__

if TYPE_CHECKING:
    from inferway.dispatch.recording import Recording


def admin_routes(
    sites: Callable[[], Sequence[TaskSite]],
    ready: Callable[[], bool],
    apply: Callable[[Exchange], None],
    pauses: Pauses,
    guard: Guard | None = None,
    bodies: Bodies | None = None,
) -> Routes:
    """Lay out the admin pages of the tasks that are served; `apply` answers ``POST /apply``."""
    registry = registry_of(sites, pauses, guard, bodies)
    kind = CONTENT_TYPE_LATEST.encode()
    routes = Routes(lambda path: f"there is nothing at {path}; see /metrics and /status")
    routes.post("/apply", apply, Role.ADMIN)
    routes.read(
        "/metrics",
        lambda exchange: exchange.respond(200, generate_latest(registry), kind),
        Role.READ,
    )

    def show(exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode(status(sites(), ready())))

    routes.read("/status", show, Role.READ)
    return routes


def status(sites: Sequence[TaskSite], ready: bool) -> dict[str, Any]:
    """Describe the server: tasks, their accuracy, what each variant has done and has to do."""
    return {
        "schema": 1,
        "version": __version__,
        "ready": ready,
        "tasks": {site.task: _task(site) for site in sites},
    }


def _memory(site: TaskSite, k: int) -> dict[str, Any] | None:
    demand = site.pool.demands[k]
    if demand is None:
        return None
    return {
        "source": demand.source,
        "rows_per_run": demand.most_rows,
        "one_row_bytes": demand.runs[1],
        "largest_run_bytes": demand.runs[-1],
        "rows_per_request": None if demand.rows == WHOLE else demand.rows,
    }


def _task(site: TaskSite) -> dict[str, Any]:
    counters = site.stats
    rows = counters.total_rows
    variants = {}
    for k, name in enumerate(site.pool.variants):
        queues = site.pool.queues[site.pool.first[k] : site.pool.first[k + 1]]
        column = site.pool.columns[k]
        answered = counters.outcomes[Outcome.ANSWERED][column]
        variants[name] = {
            "accuracy": site.pool.accuracy[k],
            "profile_service_s": 1.0 / site.pool.rate[k],
            "mean_service_s": counters.service_sum_s[column] / answered if answered else None,
            "mean_latency_s": counters.latency_sum_s[column] / answered if answered else None,
            "instances": len(queues),
            "healthy": site.pool.health.healthy[site.pool.first[k] : site.pool.first[k + 1]],
            "queue": [len(queue) for queue in queues],
            "answers": counters.rows[column],
            "memory": _memory(site, k),
        }
    routing = site.pool.dispatcher.routing
    return {
        "ready": site.ready,
        "accuracy_target": site.target,
        "accuracy_mean": counters.accuracy_sum / rows if rows else None,
        "accuracy_balance": site.balance.item(),
        "requests": {outcome.name.lower(): counters.total(outcome) for outcome in Outcome},
        "held": len(site.pool.held),
        "slots": None if site.pool.scheduler is None else site.pool.scheduler.slots,
        "routing": None if routing is None else routing.tolist(),
        "recording": None if site.pool.recording is None else _recording(site.pool.recording),
        "variants": variants,
    }


def _recording(recording: Recording) -> dict[str, Any]:
    gap, losses = recording.gap, recording.losses
    return {
        "folder": str(recording.folder),
        "writing": gap is None,
        "reason": "" if gap is None else gap.reason,
        "since": None if gap is None else gap.since,
        "gaps": losses.gaps,
        "lost_decisions": losses.decisions,
        "lost_events": losses.events,
    }
