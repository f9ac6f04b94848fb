"""The admin listener's pages: metrics for Prometheus, status for people and scripts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from inferway import __version__
from inferway.live.http.exchange import JSON, Exchange
from inferway.live.http.refusal import RefusalError
from inferway.live.http.routes import Routes
from inferway.live.metrics import registry_of
from inferway.live.request import Outcome
from inferway.live.site import Site

if TYPE_CHECKING:
    from inferway.deployment import Deployment


def admin_routes(
    sites: Sequence[Site], ready: Callable[[], bool], apply: Callable[[Exchange], None]
) -> Routes:
    """Lay out the admin pages; `apply` answers ``POST /apply``."""
    registry = registry_of(sites)
    kind = CONTENT_TYPE_LATEST.encode()
    routes = Routes(lambda path: f"there is nothing at {path}; see /metrics and /status")
    routes.post("/apply", apply)
    routes.read("/metrics", lambda exchange: exchange.respond(200, generate_latest(registry), kind))

    def show(exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode(status(sites, ready())))

    routes.read("/status", show)
    return routes


def status(sites: Sequence[Site], ready: bool) -> dict[str, Any]:
    """Describe the server: tasks, their accuracy, what each variant has done and has to do."""
    return {
        "schema": 1,
        "version": __version__,
        "ready": ready,
        "tasks": {site.task: _task(site) for site in sites},
    }


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /apply``: a file of this machine, or what would be in one."""

    path: str | None = None
    content: str | None = None


def host_name(header: bytes) -> str:
    """The host that a Host header names, without its port and an address's brackets."""
    text = header.decode("latin-1").strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def asked_deployment(exchange: Exchange) -> Deployment:
    """Load the deployment that ``POST /apply`` asks for; takes seconds.

    Raises
    ------
    RefusalError
        When the request does not say which.
    ValueError
        When the file is not valid.
    """
    from inferway.deployment import load, measured

    # A page in somebody's browser can send forms to loopback, but no JSON unasked.
    kind = (exchange.content_type or b"").partition(b";")[0].strip().lower()
    if kind != JSON:
        raise RefusalError(415, "send the request as Content-Type: application/json")
    assert isinstance(exchange.body, bytes)
    try:
        asked = msgspec.json.decode(exchange.body, type=Asked)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusalError(400, f"the request is not valid: {error}") from None
    if (asked.path is None) == (asked.content is None):
        raise RefusalError(400, 'give {"path": FILE} or {"content": TEXT}, and not both')
    if asked.path is not None:
        path = Path(asked.path)
        if not path.is_absolute():
            raise RefusalError(400, f"path is {asked.path}; give an absolute one")
        try:
            return measured(load(path))
        except OSError as error:
            raise RefusalError(400, f"{path} cannot be read: {error}") from None
    assert asked.content is not None
    with tempfile.TemporaryDirectory(prefix="inferway-") as folder:
        path = Path(folder) / "content.yaml"
        path.write_text(asked.content, encoding="utf-8")
        return measured(load(path))


def _task(site: Site) -> dict[str, Any]:
    counters = site.counters
    rows = counters.total_rows
    variants = {}
    for k, name in enumerate(site.variants):
        queues = site.queues[site.first[k] : site.first[k + 1]]
        answered = counters.outcomes[Outcome.ANSWERED][k]
        variants[name] = {
            "accuracy": site.accuracy[k],
            "profile_service_s": 1.0 / site.rate[k],
            "mean_service_s": counters.service_sum_s[k] / answered if answered else None,
            "mean_latency_s": counters.latency_sum_s[k] / answered if answered else None,
            "instances": len(queues),
            "queue": [len(queue) for queue in queues],
            "answers": counters.rows[k],
        }
    return {
        "ready": site.ready,
        "accuracy_target": site.target,
        "accuracy_mean": counters.accuracy_sum / rows if rows else None,
        "accuracy_balance": site.dispatcher.balance,
        "requests": {outcome.name.lower(): counters.total(outcome) for outcome in Outcome},
        "held": len(site.held),
        "variants": variants,
    }
