"""Paths and who answers them, as the Open Inference Protocol v2 names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from inferway.live.explain import KEPT
from inferway.live.http.compression import decompress
from inferway.live.http.exchange import Exchange
from inferway.live.http.inference import Infer
from inferway.live.http.limits import Limits
from inferway.live.http.openapi import document
from inferway.live.intake import Intake
from inferway.live.intake import unknown as why_unknown
from inferway.live.security.keys import ANY_KEY, ANYBODY, Role
from inferway.live.site import Site
from inferway.protocol import Tensor
from inferway.protocol.messages import (
    IndexEntry,
    ServerMetadata,
    TaskMetadata,
    TensorMetadata,
    decode_index,
    encode,
)
from inferway.protocol.refusal import RefusalError
from inferway.unreadable import UNREADABLE, fault
from inferway.version import __version__

Handler = Callable[[Exchange], None]

EXTENSIONS: Final = ["binary_tensor_data"]
_READ: Final = (b"GET", b"HEAD")
_LONGEST_INDEX: Final = 64 * 1024
"""Bytes that a packed question for the repository's index may unpack to."""


class Routes:
    """A table from paths to handlers by method.

    `unknown` says in a sentence why a path leads nowhere; `otherwise` finds who answers what this
    table does not have, by default a 404.
    """

    def __init__(
        self,
        unknown: Callable[[str], str],
        otherwise: Callable[[bytes, bytes], Handler] | None = None,
    ) -> None:
        self._unknown = unknown
        self._otherwise = otherwise
        self._paths: dict[bytes, dict[bytes, Handler]] = {}
        self._below: dict[bytes, Callable[[Exchange, bytes], None]] = {}
        self._roles: dict[bytes, int] = {}

    def read(self, path: str, handler: Handler, role: int) -> None:
        """Answer GET and HEAD of who has the role."""
        for method in _READ:
            self._add(method, path, handler, role)

    def read_below(self, path: str, handler: Callable[[Exchange, bytes], None], role: int) -> None:
        """Answer GET and HEAD of whatever stands after the path and a slash."""
        start = f"{path}/".encode()
        self._below[start], self._roles[start] = handler, role

    def post(self, path: str, handler: Handler, role: int) -> None:
        """Answer POST of who has the role."""
        self._add(b"POST", path, handler, role)

    def clear(self, path: str) -> None:
        """Forget a path and all that is below it."""
        for start in {path.encode(), quote(path).encode()}:
            for table in (self._paths, self._below, self._roles):
                for known in [*table]:
                    if known == start or known.startswith(start + b"/"):
                        del table[known]

    def role(self, target: bytes) -> int:
        """Tell which role a target asks for; what leads nowhere is told to any key."""
        # A path with a slash at its end may be the start of others, and none itself.
        if target in self._paths:
            return self._roles[target]
        path = plain_path(target)
        if path in self._paths:
            return self._roles[path]
        start = self._start_of(path)
        return ANY_KEY if start is None else self._roles[start]

    def find(self, method: bytes, target: bytes) -> Handler:
        """Find who answers; whoever does not know the path or the method says so."""
        methods = self._paths.get(target)
        if methods is None:
            methods = self._paths.get(path := plain_path(target))
            if methods is None:
                if (below := self._find_below(path)) is not None:
                    return below if method in _READ else _not_allowed(method, _READ)
                if self._otherwise is not None:
                    return self._otherwise(method, target)
                reason = self._unknown(path.decode("utf-8", "replace")[:256])
                return lambda exchange: exchange.refuse(404, reason)
        handler = methods.get(method)
        if handler is None:
            return _not_allowed(method, methods)
        return handler

    def _find_below(self, path: bytes) -> Handler | None:
        start = self._start_of(path)
        if start is None:
            return None
        answer, rest = self._below[start], path[len(start) :]
        return lambda exchange: answer(exchange, rest)

    def _start_of(self, path: bytes) -> bytes | None:
        for start in self._below:
            if path.startswith(start) and len(path) > len(start):
                return start
        return None

    def _add(self, method: bytes, path: str, handler: Handler, role: int) -> None:
        for spelling in {path, quote(path)}:
            written = spelling.encode()
            self._paths.setdefault(written, {})[method] = handler
            # A key is looked at before the method is of interest.
            before = self._roles.get(written, role)
            assert before == role, f"{path} has two roles"
            self._roles[written] = role


def _not_allowed(method: bytes, methods: Iterable[bytes]) -> Handler:
    allowed = b", ".join(methods)
    reason = f"{method.decode('latin-1')} is not answered here; use {allowed.decode()}"
    return lambda exchange: exchange.refuse(405, reason, b"Allow: %s\r\n" % allowed)


def plain_path(target: bytes) -> bytes:
    """Reduce a request target to its path: no scheme, host, query or percent signs."""
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):
        _, scheme, rest = path.partition(b"://")
        path = b"/" + rest.partition(b"/")[2] if scheme else path
    return unquote_to_bytes(path)


def inference_routes(
    sites: Mapping[str, Site], ready: Callable[[], bool], limits: Limits
) -> Routes:
    """Lay out the protocol's paths for the tasks of sites.

    `ready` tells whether the server as a whole is.
    """

    def served() -> list[Site]:
        return [site for site in sites.values() if site.present is not None]

    def unknown(path: str) -> str:
        parts = path.split("/")
        if parts[:3] == ["", "v2", "models"] and len(parts) > 3:
            named = parts[5] if len(parts) > 5 and parts[4] == "versions" else None
            site = sites.get(parts[3])
            if site is None or site.present is None or (named and named not in site.versions):
                return why_unknown(served(), parts[3], named)
        return f"there is nothing at {path}"

    routes = Routes(unknown)
    metadata = encode(ServerMetadata("inferway", __version__, EXTENSIONS))
    routes.read("/v2", lambda exchange: exchange.respond(200, metadata), Role.INFER)
    routes.read("/v2/", lambda exchange: exchange.respond(200, metadata), Role.INFER)
    described = encode(document())
    routes.read("/v2/openapi.json", lambda exchange: exchange.respond(200, described), Role.INFER)
    routes.read("/v2/health/live", lambda exchange: exchange.respond(200), ANYBODY)
    routes.read(
        "/v2/health/ready", lambda exchange: exchange.respond(200 if ready() else 503), ANYBODY
    )
    routes.post("/v2/repository/index", _index(served, ready, limits), Role.INFER)
    for site in sites.values():
        _lay_out(routes, site, ready, limits)
    return routes


def lay_out(routes: Routes, site: Site, ready: Callable[[], bool], limits: Limits) -> None:
    """Lay out a task's paths anew: another fleet answers, or none."""
    routes.clear(f"/v2/models/{site.task}")
    _lay_out(routes, site, ready, limits)


def _lay_out(routes: Routes, site: Site, ready: Callable[[], bool], limits: Limits) -> None:
    own = f"/v2/models/{site.task}"
    if site.present is None:
        routes.post(f"{own}/infer", _unserved(site.task), Role.INFER)
        routes.read(f"{own}/ready", _unserved(site.task), Role.INFER)
        return

    def explain(exchange: Exchange, identity: bytes) -> None:
        found = site.log.explain(identity)
        if found is None:
            shown = identity.decode("utf-8", "replace")[:128]
            exchange.refuse(
                404, f"no request {shown!r} among the last {KEPT} of task {site.task!r}"
            )
        else:
            exchange.respond(200, encode(found))

    routes.read_below(f"{own}/explain", explain, Role.READ)
    body = encode(_metadata(site))
    for variant in (None, *site.versions):
        base = own if variant is None else f"{own}/versions/{variant}"
        routes.read(base, _told(body), Role.INFER)
        routes.read(f"{base}/ready", _ready(site, variant, ready), Role.INFER)
        routes.post(f"{base}/infer", Infer(Intake(site, variant, limits)), Role.INFER)


def _unserved(task: str) -> Handler:
    reason = f"nothing that can answer task {task!r} is within reach now"
    return lambda exchange: exchange.refuse(503, reason, b"Retry-After: 1\r\n")


def _index(
    served: Callable[[], Iterable[Site]], ready: Callable[[], bool], limits: Limits
) -> Handler:
    """Answer the repository's index: an entry for each variant of each task, or what is ready."""

    def entry(site: Site, variant: str, all_ready: bool) -> IndexEntry:
        reason = "" if site.serves(variant) else "no instance of it is healthy"
        reason = reason if all_ready else "the server is not ready"
        state: Any = "UNAVAILABLE" if reason else "READY"
        return IndexEntry(site.task, variant, state, reason)

    def answer(exchange: Exchange) -> None:
        body = exchange.body
        try:
            if exchange.encoding is not None:
                limit = min(_LONGEST_INDEX, limits.body_bytes)
                body = bytes(decompress(body, exchange.encoding, limit))
            # Clients of Triton send no body at all where they want everything.
            only_ready = bool(body) and decode_index(body).ready
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except UNREADABLE as error:
            exchange.refuse(400, f"the request is not valid: {fault(error)}")
        else:
            all_ready = ready()
            entries = (entry(site, one, all_ready) for site in served() for one in site.versions)
            listed = [one for one in entries if not only_ready or one.state == "READY"]
            exchange.respond(200, encode(listed))

    return answer


def _told(body: bytes) -> Handler:
    return lambda exchange: exchange.respond(200, body)


def _ready(site: Site, variant: str | None, ready: Callable[[], bool]) -> Handler:
    return lambda exchange: exchange.respond(200 if ready() and site.serves(variant) else 503)


def _metadata(site: Site) -> TaskMetadata:
    return TaskMetadata(
        site.task,
        list(site.versions),
        "inferway",
        [_tensor(tensor) for tensor in site.signature.inputs],
        [_tensor(tensor) for tensor in site.signature.outputs],
    )


def _tensor(tensor: Tensor) -> TensorMetadata:
    return TensorMetadata(tensor.name, tensor.datatype, tensor.shape)
