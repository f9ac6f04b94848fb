"""A listening port for gRPC, on the event loop of the server that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import msgspec
from google.protobuf.json_format import ParseDict

from inferway.live.extensions import config_of, statistics_of
from inferway.live.grpc import messages
from inferway.live.grpc.arrivals import FULL, CallTraffic, peer_of
from inferway.live.grpc.inference import CODES, CallError, answer, ask, refused, retry
from inferway.live.grpc.messages import decode
from inferway.live.headroom import Bodies
from inferway.live.http.exchange import Limits
from inferway.live.http.routes import EXTENSIONS
from inferway.live.intake import Intake, unknown
from inferway.live.security.keys import Denied, Guard, Role
from inferway.live.site import TaskSite
from inferway.protocol import RefusalError
from inferway.protocol.address import joined
from inferway.version import __version__

Method = Callable[[Any], Awaitable[Any]]
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Endpoint:
    """Answers the Open Inference Protocol and gRPC's health protocol on one address.

    `ready` tells whether the server as a whole is, and `broken` is told of an exception in a
    handler. `bodies` is the account of the bodies that are held, with other listeners'. `guard`
    looks at the keys of calls, but for health, live and ready, which are anybody's; None lets
    everybody in. `certificate` is private key and certificate chain, both PEM, for TLS.
    """

    def __init__(
        self,
        ready: Callable[[], bool],
        broken: Callable[[BaseException], None],
        limits: Limits | None = None,
        *,
        bodies: Bodies | None = None,
        guard: Guard | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        self.port = 0
        self._ready, self._broken, self._guard = ready, broken, guard
        self._limits = limits or Limits()
        self._certificate: Any = None
        if certificate is not None:
            self.renew(certificate)
        self._shown = self._certificate
        self._bodies = bodies or Bodies(self._limits.bodies_bytes)
        self._traffic = CallTraffic(self._bodies, self._limits)
        # Set, and replaced, when whoever watches the health is to look again.
        self._changed = asyncio.Event()
        self._ended = False
        self._sites: Sequence[TaskSite] | None = None
        self._bare: dict[str, TaskSite] = {}
        self._intakes: dict[tuple[str, str], Intake] = {}
        self._server: Any = None
        self._aborting: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, told in `port`. OSError when the address cannot be had.

        Health can be asked for at once; until `serve` everything else is unavailable.
        """
        limits = self._limits
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.body_bytes),
                # Packed messages are unpacked where that is counted and done in pieces.
                ("grpc.per_message_decompression", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", limits.head_bytes),
                ("grpc.absolute_max_metadata_size", limits.head_bytes),
                ("grpc.max_concurrent_streams", limits.pipelined),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                # A window that grows with the link would let messages in that nobody has asked for.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_connection_idle_ms", limits.idle_s * 1000),
                ("grpc.server_handshake_timeout_ms", limits.receive_s * 1000),
                # Clients that went without a word are found out after a minute or so.
                ("grpc.keepalive_time_ms", limits.receive_s * 1000),
                # A taken port is an error, not shared with whoever has it.
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers(self._handlers())
        address = joined(host, port)
        try:
            if self._certificate is None:
                self.port = server.add_insecure_port(address)
            else:
                credentials = grpc.dynamic_ssl_server_credentials(self._certificate, self._newer)
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {address}: is the port taken?") from error
        await server.start()
        self._server = server
        self._traffic.port = self.port

    def serve(self, sites: Sequence[TaskSite], bare: Sequence[TaskSite] = ()) -> None:
        """Answer for these tasks from now on; called again whenever they change.

        Of the `bare` ones, which no fleet answers, it is said so.
        """
        self._sites, self._bare = sites, {site.task: site for site in bare}
        before, self._intakes = self._intakes, {}
        for site in sites:
            for variant in ("", *site.pool.versions):
                intake = before.get((site.task, variant))
                # One task's fleet changes at a time, and there may be hundreds.
                if intake is None or not intake.sees(site):
                    intake = Intake(site, variant or None, self._limits)
                self._intakes[site.task, variant] = intake
        self.announce()

    def announce(self) -> None:
        """Tell those who watch the health that readiness may have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def renew(self, certificate: tuple[bytes, bytes]) -> None:
        """Show another certificate, private key first, to connections yet to come."""
        self._certificate = grpc.ssl_server_certificate_configuration([certificate])

    def _newer(self) -> Any:
        # Asked by gRPC's own threads before every handshake; None is what it has.
        if self._shown is self._certificate:
            return None
        self._shown = self._certificate
        return self._shown

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and cancel those that are not answered within the grace period."""
        # A stream that stays open would hold up the end.
        self._ended = True
        self.announce()
        self._traffic.close()
        if self._server is not None:
            await self._server.stop(grace_s)
        self._traffic.end()

    def abort(self) -> None:
        """Cancel what is still in flight; `stop`, waiting, then returns."""
        if self._server is not None and self._aborting is None:
            self._aborting = asyncio.ensure_future(self._server.stop(None))

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        # One message looks on the wire like a stream of one. As such the methods ask for it
        # themselves, when they know the metadata, and decode it: what gRPC's own decoding refuses
        # is called INTERNAL.
        one, many = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        services: dict[str, dict[str, tuple[Any, Method]]] = {
            messages.INFERENCE: {
                "ServerLive": (one, self._server_live),
                "ServerReady": (one, self._server_ready),
                "ServerMetadata": (one, self._guarded(self._server_metadata)),
                "ModelReady": (one, self._guarded(self._model_ready)),
                "ModelMetadata": (one, self._guarded(self._model_metadata)),
                "ModelInfer": (one, self._guarded(self._model_infer)),
                "ModelConfig": (one, self._guarded(self._model_config)),
                "ModelStatistics": (one, self._guarded(self._model_statistics, Role.READ)),
            },
            messages.HEALTH: {"Check": (one, self._check), "Watch": (many, self._watch)},
        }
        return tuple(
            grpc.method_handlers_generic_handler(
                service,
                {
                    name: kind(self._safe(method), response_serializer=_serialize)
                    for name, (kind, method) in methods.items()
                },
            )
            for service, methods in services.items()
        )

    def _safe(self, method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(_messages: Any, context: Any) -> Any:
            try:
                return await method(context)
            except CallError as error:
                end = error
            except RefusalError as refusal:
                end = refused(refusal)
                refusal.__traceback__ = refusal.__context__ = None
            except (grpc.aio.AbortError, grpc.aio.InternalError):
                raise  # gRPC's own: the call has been ended, or there is nobody to write to
            except Exception as error:
                self._broken(error)
                end = refused(RefusalError(500, "the server failed to answer"))
            # gRPC keeps what ends a call in a circle with the call. Left out of it is where it was
            # raised, for messages are there, and they would stay until the garbage is collected.
            end.__traceback__ = end.__context__ = None
            return await context.abort(end.code, end.reason, end.trailing)

        return call

    def _guarded(self, method: Method, role: int = Role.INFER) -> Method:
        guard = self._guard
        if guard is None:
            return method

        async def call(context: Any) -> Any:
            keys = [
                value for name, value in context.invocation_metadata() if name == "authorization"
            ]
            # Two keys are as good as none: what stands before this server may check the other one.
            key = keys[0] if len(keys) == 1 else ""
            roles = guard.look(key, role, lambda: peer_of(context.peer())[0])
            if isinstance(roles, Denied):
                reason, after = roles.reason, retry(roles.retry_s) if roles.retry_s else ()
                if roles.status == 401:
                    reason = "the call needs a valid key: authorization: Bearer KEY"
                raise CallError(CODES[roles.status], reason, after)
            return await method(context)

        return call

    # Of what has nothing to say the message is never asked for.

    async def _server_live(self, _context: Any) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def _server_ready(self, _context: Any) -> Any:
        return messages.ServerReadyResponse(ready=self._ready())

    async def _server_metadata(self, _context: Any) -> Any:
        return messages.ServerMetadataResponse(
            name="inferway", version=__version__, extensions=EXTENSIONS
        )

    async def _check(self, context: Any) -> Any:
        data = await self._traffic.receive(context, keyless=True)
        name = decode(data, messages.HealthCheckRequest).service
        status = self._status(name)
        if status == SERVICE_UNKNOWN:
            raise RefusalError(404, f"unknown service {name!r}; there is '', and each task")
        return messages.HealthCheckResponse(status=status)

    async def _watch(self, context: Any) -> None:
        """Send the status now and whenever it changes; an unknown service may become known."""
        data = await self._traffic.receive(context, keyless=True)
        name, told = decode(data, messages.HealthCheckRequest).service, None
        while True:
            changed, status = self._changed, self._status(name)
            if status != told:
                await context.write(messages.HealthCheckResponse(status=status))
                told = status
            if self._ended:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            await changed.wait()

    def _status(self, service: str) -> int:
        ready = self._ready()
        if service not in ("", messages.INFERENCE):
            intake = self._intakes.get((service, ""))
            if intake is None:
                return SERVICE_UNKNOWN
            ready = intake.site.ready and ready
        return SERVING if ready else NOT_SERVING

    async def _model_ready(self, context: Any) -> Any:
        asked = decode(await self._traffic.receive(context), messages.ModelReadyRequest)
        intake = self._intakes.get((asked.name, asked.version))
        # Of what is not served the answer is no, as Triton's is, and not an error.
        ready = intake is not None and intake.site.serves(asked.version or None) and self._ready()
        return messages.ModelReadyResponse(ready=ready)

    async def _model_metadata(self, context: Any) -> Any:
        asked = decode(await self._traffic.receive(context), messages.ModelMetadataRequest)
        pool = self._find(asked.name, asked.version).site.pool
        answer = messages.ModelMetadataResponse(
            name=pool.task, versions=pool.versions, platform="inferway"
        )
        for side, tensors in (
            (answer.inputs, pool.signature.inputs), (answer.outputs, pool.signature.outputs),
        ):  # fmt: skip
            for one in tensors:
                side.add(name=one.name, datatype=one.datatype, shape=one.shape)
        return answer

    async def _model_config(self, context: Any) -> Any:
        asked = decode(await self._traffic.receive(context), messages.ModelConfigRequest)
        site = self._find(asked.name, asked.version).site
        config = config_of(site, asked.version or None)
        return _filled(messages.ModelConfigResponse, config=config)

    async def _model_statistics(self, context: Any) -> Any:
        asked = decode(await self._traffic.receive(context), messages.ModelStatisticsRequest)
        if asked.name:
            sites: Sequence[TaskSite] = [self._find(asked.name, asked.version).site]
        elif asked.version:
            raise RefusalError(400, f"version {asked.version[:256]!r} is asked for without a name")
        else:
            sites = self._sites or ()
        listed = statistics_of(sites, asked.version or None)
        return _filled(messages.ModelStatisticsResponse, model_stats=listed)

    async def _model_infer(self, context: Any) -> Any:
        data = await self._traffic.receive(context)
        size = len(data)
        if not self._bodies.reserve(size):
            raise RefusalError(503, FULL)
        try:
            message = decode(data, messages.ModelInferRequest)
            if (bare := self._bare.get(message.model_name)) is not None:
                bare.entered += 1  # whoever decides on copies is to know
            intake = self._find(message.model_name, message.model_version)
            request = ask(message, intake, context)
            # What waits for an answer is the request's arrays alone.
            del data, message
            packed = _serialize(await answer(intake.site, request))
        finally:
            self._bodies.release(size)
        self._traffic.follow(context, len(packed))
        return packed

    def _find(self, task: str, variant: str) -> Intake:
        intake = self._intakes.get((task, variant))
        if intake is None:
            if self._sites is None:
                raise RefusalError(503, "the server is starting")
            if (bare := self._bare.get(task)) is not None:
                raise RefusalError(503, bare.unready)
            raise RefusalError(404, unknown(self._sites, task[:256], variant[:256]))
        return intake


def _filled(kind: Any, **fields: Any) -> Any:
    """Make a message of what HTTP would be answered: the names are the same."""
    return ParseDict(msgspec.to_builtins(fields), kind())


def _serialize(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
