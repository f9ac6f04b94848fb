"""Nodes with certificates that `inferway certs` has made: those of the network, and nobody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import issue
from row import BODY, LIMIT_S, Member, row

NAMES = EDGE, METRO, CLOUD = "base-0", "isp", "cloud"
HOP = (
    b"POST /v2/models/task/infer HTTP/1.1\r\nHost: a\r\nInferway-Node: cloud\r\n"
    b"Inferway-Variant: big\r\nInferway-Path: base-0\r\nContent-Length: %d\r\n\r\n%s"
    % (len(BODY), BODY)
)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


class Stranger:
    """Who listens in a node's place, with a certificate, and counts what it is sent."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.met, self.heard = 0, bytearray()
        self.address = ""

    async def __aenter__(self) -> Stranger:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        try:
            await writer.start_tls(self._context)
            while data := await reader.read(65536):
                self.heard += data
        except (OSError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()


def context_of(folder: Path, name: str, *, authority: Path | None = None) -> ssl.SSLContext:
    """Make a server's context of a node's certificate; the authority is who others must be of."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    made.load_verify_locations(authority or folder / "authority.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def test_requests_pass_several_nodes_over_tls(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *NAMES, encrypted=True) as (edge, metro, cloud):
            client = await edge.client()
            for _ in range(3):
                answer = await client.ask()
                assert answer.status == 200, answer.error
                assert answer.headers["inferway-path"] == f"{EDGE},{METRO},{CLOUD}"
            # What is carried is TLS, on one connection.
            assert edge.wire.connections == metro.wire.connections == 1
            assert b"HTTP" not in edge.wire.asked + metro.wire.asked
            assert cloud.status()["served"] == 3

    run(main())


@asynccontextmanager
async def impostor(
    tmp_path: Path, context: ssl.SSLContext
) -> AsyncIterator[tuple[Member, Stranger]]:
    async with row(tmp_path, EDGE, CLOUD, encrypted=True) as (edge, cloud):
        async with Stranger(context) as stranger:
            edge.wire.target = stranger.address
            yield edge, stranger
        assert cloud.status()["served"] == 0


async def refused(edge: Member, stranger: Stranger) -> None:
    """Look that a request for the one in whose place another listens is not sent to that."""
    client = await edge.client()
    answer = await client.ask(variant="big")
    assert answer.status == 503
    assert "its certificate does not pass" in answer.error
    assert answer.headers["inferway-unserved"] == "1"
    assert (await client.ask()).node == EDGE
    assert not edge.hop(CLOUD).usable
    assert stranger.met
    assert stranger.heard == b""


def test_a_neighbor_with_another_authoritys_certificate_is_sent_nothing(
    run: Any, tmp_path: Path
) -> None:
    issue([CLOUD], tmp_path / "theirs")

    async def main() -> None:
        # Even where it trusts ours.
        issue([EDGE, CLOUD], tmp_path / "certs")
        theirs = context_of(
            tmp_path / "theirs", CLOUD, authority=tmp_path / "certs" / "authority.pem"
        )
        async with impostor(tmp_path, theirs) as (edge, stranger):
            await refused(edge, stranger)

    run(main())


def test_a_node_of_the_network_cannot_pass_for_another(run: Any, tmp_path: Path) -> None:
    issue([EDGE, CLOUD, "office"], tmp_path / "certs")

    async def main() -> None:
        stolen = context_of(tmp_path / "certs", "office")
        async with impostor(tmp_path, stolen) as (edge, stranger):
            await refused(edge, stranger)

    run(main())


async def sent(cloud: Member, **how: Any) -> bytes:
    """Send a request to the peer port as a node does; what comes back."""
    host, _, port = cloud.at.peer.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), **how)
        writer.write(HOP)
        try:
            return await asyncio.wait_for(reader.read(100), LIMIT_S)
        finally:
            writer.transport.abort()
    except (ssl.SSLError, ConnectionError):
        return b""


def test_who_has_no_certificate_of_the_authority_is_not_answered(run: Any, tmp_path: Path) -> None:
    issue([EDGE], tmp_path / "theirs")

    async def main() -> None:
        async with row(tmp_path, EDGE, CLOUD, encrypted=True) as (_, cloud):
            ours = tmp_path / "certs"

            def trusting(folder: Path | None) -> dict[str, Any]:
                # It trusts the right authority, so that it does send.
                made = ssl.create_default_context(cafile=ours / "authority.pem")
                if folder is not None:
                    made.load_cert_chain(folder / f"{EDGE}.pem", folder / f"{EDGE}.key")
                return {"ssl": made, "server_hostname": CLOUD}

            for how in ({}, trusting(None), trusting(tmp_path / "theirs")):
                assert b"HTTP" not in await sent(cloud, **how)
            assert cloud.status()["served"] == 0
            # The same words are answered where the certificate is a node's.
            assert (await sent(cloud, **trusting(ours))).startswith(b"HTTP/1.1 200 ")
            assert cloud.status()["served"] == 1

    run(main())
