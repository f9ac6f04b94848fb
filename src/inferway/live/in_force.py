"""The deployment in force, as it is told to whoever may read: what the file says, and the fleets.

No secret goes out. Values of environment variables are left out, and so are texts whose key says
that they are secret and addresses with a password or a query; what is left out is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from inferway.deployment import Batch, Deployment
from inferway.deployment.errors import Place, field_name
from inferway.live.http.exchange import Exchange, Handler
from inferway.live.options import HELD_LIMIT
from inferway.live.pool import Pool
from inferway.live.recent import site_named
from inferway.live.site import TaskSite
from inferway.live.upstream.remote import Forwarding
from inferway.protocol import RefusalError
from inferway.site.confidence import ConfidenceTables
from inferway.site.devices import DeviceSlots

_SECRET: Final = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
# What looks like it and is none: the name of the variable that holds the key.
_NAMED: Final = ("remote", "key")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def deployment_page(deployed: Callable[[], Deployment | None]) -> Handler:
    """Make what answers ``/deployment``: the content of the file in force; null without one."""

    def answer(exchange: Exchange) -> None:
        deployment = deployed()
        found: dict[str, Any] = {"schema": 1, "file": None, "content": None, "left_out": []}
        if deployment is not None:
            content, left_out = told(deployment.source.data)
            found |= {"content": content, "left_out": left_out, "file": deployment.path.name}
        exchange.respond(200, msgspec.json.encode(found))

    return answer


def fleet_page(
    deployed: Callable[[], Deployment | None], sites: Callable[[], Mapping[str, TaskSite]]
) -> Callable[[Exchange, bytes], None]:
    """Make what answers ``/deployment/TASK``: the fleet that answers the task."""

    def answer(exchange: Exchange, name: bytes) -> None:
        try:
            site = site_named(name, sites())
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
            return
        if site.present is None:
            exchange.refuse(503, site.unready)
            return
        found = {"schema": 1, **fleet_told(site.present, deployed())}
        exchange.respond(200, msgspec.json.encode(found))

    return answer


def told(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Copy a file's data without its secrets; and the fields that were left out.

    Lists keep their entries: of a secret one the text is empty.
    """
    left_out: list[str] = []
    return _copied(data, (), left_out), left_out


def _copied(value: Any, place: Place, left_out: list[str]) -> Any:
    if isinstance(value, Mapping):
        kept = {}
        for key, one in value.items():
            if _is_secret(one, (*place, key)):
                left_out.append(field_name((*place, key)))
            else:
                kept[key] = _copied(one, (*place, key), left_out)
        return kept
    if isinstance(value, list | tuple):
        entries = []
        for index, one in enumerate(value):
            secret = _is_secret(one, (*place, index))
            if secret:
                left_out.append(field_name((*place, index)))
            entries.append("" if secret else _copied(one, (*place, index), left_out))
        return entries
    return value


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List what differs between two files' data, by field; None stands for what is not given.

    Secrets are `hidden`: that they differ is told, and no more. Lists are compared as a whole.
    """
    found: list[dict[str, Any]] = []

    def compare(one: Any, other: Any, place: Place) -> None:
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            for key in dict.fromkeys((*one, *other)):
                compare(one.get(key), other.get(key), (*place, key))
        elif one != other:
            hidden = _is_secret(one, place) or _is_secret(other, place)
            shown = (
                [None, None] if hidden else [_copied(value, place, []) for value in (one, other)]
            )
            found.append(
                {
                    "field": field_name(place),
                    "before": shown[0],
                    "after": shown[1],
                    "hidden": hidden,
                }
            )

    compare(before, after, ())
    return found


def _is_secret(value: Any, place: Place) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return False
    if len(place) > 1 and place[-2] == "environment":
        return True
    if not isinstance(value, str):
        return False
    key = next((one for one in reversed(place) if isinstance(one, str)), "")
    if place[-2:] != _NAMED and _SECRET.search(key):
        return True
    return bool(_ADDRESS.match(value)) and _has_secret(value)


def _has_secret(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.username or parts.password or parts.query)
    except ValueError:  # it is none
        return True


def fleet_told(pool: Pool, deployment: Deployment | None) -> dict[str, Any]:
    """Describe the fleet that answers a task: by class what serves, how many, and how well.

    Those of other nodes are told with their node and the neighbor on the way there.
    """
    kind = None if deployment is None else deployment.named().get(pool.task)
    fleet, options = pool.dispatcher.fleet, pool.options
    classes = []
    for k, name in enumerate(pool.variants):
        servers, runtime = slice(*pool.first[k : k + 2]), pool.runtimes[pool.first[k]]
        variant, node = pool.names[k]
        by = runtime.upstream.name if isinstance(runtime, Forwarding) else ""
        classes.append(
            {
                "name": name,
                "variant": variant,
                "node": node,
                "by": by,
                "instances": len(pool.queues[servers]),
                "healthy": sum(pool.health.healthy[servers]),
                "accuracy": pool.accuracy[k],
                "service_s": 1.0 / pool.rate[k],
                "energy": float(fleet.energy[k]),
                "price": 0.0 if fleet.price is None else float(fleet.price[k]),
                "batch": _batch_told(options.batches, k),
                **_device_told(fleet.devices, k),
                **_load_told(pool, k),
            }
        )
    return {
        "task": pool.task,
        "kind": pool.task if kind is None else kind.name,
        "node": options.node,
        "target": options.target,
        "deadline_s": options.deadline_s,
        "balance": None if options.target is None else pool.balance.item(),
        "policy": pool.dispatcher.policy_name,
        "told_rate_per_s": pool.dispatcher.rate_per_s,
        "buffer": _buffer(pool),
        "queue": "central" if options.in_order else "per-server",
        "late": "drop" if options.drop_late else "serve",
        "classes": classes,
        "confidence": _confidence_told(pool.facts.confidence),
        # Only of a fleet that shares some.
        **({} if fleet.devices is None else _devices_told(fleet.devices)),
        **({"targets": [one.name for one in pool.targets]} if pool.targets else {}),
    }


def _confidence_told(tables: ConfidenceTables | None) -> dict[str, Any] | None:
    """Tell what confidences say, by class in the order told; an edge that none reaches is null."""
    if tables is None:
        return None
    return {name: table.tolist() for name, table in tables._asdict().items()}


def _devices_told(devices: DeviceSlots) -> dict[str, Any]:
    """Tell the slots of each device by its name, and what requests take there before they run."""
    return {
        "devices": dict(zip(devices.names, devices.slots.tolist(), strict=True)),
        "overheads_s": dict(zip(devices.names, devices.overhead_s.tolist(), strict=True)),
    }


def _device_told(devices: DeviceSlots | None, k: int) -> dict[str, Any]:
    """Tell the device of a class, null for none, and how many of its slots a run takes."""
    if devices is None:
        return {}
    d = int(devices.device[k])
    return {"device": devices.names[d] if d >= 0 else None, "slots": int(devices.taken[k])}


def _load_told(pool: Pool, k: int) -> dict[str, float]:
    """Tell how long the device of a class is predicted to load it, s, where it holds one alone."""
    held = pool.held_variants
    if held is None or k not in held.device_of:
        return {}
    return {"load_s": float(pool.dispatcher.site.devices.changes.load_s[k])}


def _buffer(pool: Pool) -> int | None:
    """Tell the places at each instance, as a file says them; None for no limit."""
    fleet, options = pool.dispatcher.fleet, pool.options
    if not options.in_order:
        return fleet.buffer
    return None if options.room == HELD_LIMIT else options.room // fleet.servers + 1


def _batch_told(batches: Sequence[Batch | None], k: int) -> dict[str, Any] | None:
    """Tell the batches of a class on the hardware that it runs on."""
    batch = batches[k] if batches else None
    return None if batch is None else msgspec.to_builtins(batch)
