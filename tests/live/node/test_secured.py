"""Hops with certificates that `inferway certs` has made: nodes of the network, and nobody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from chain import BODY, LIMIT_S, line

from inferway.cli import main as inferway
from inferway.live.control.credentials import Credentials

FILE = Path(__file__).parents[3] / "examples" / "topology-2.yaml"
EDGE, METRO, CLOUD = "base-0", "isp", "cloud"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificates of the network, and those of another authority for the same names."""
    made = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    for folder in made:
        assert inferway(["certs", str(FILE), "--out", str(folder)]) == 0
    return made[0], made[1]


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


def test_requests_pass_several_nodes_over_tls(run: Any, folders: tuple[Path, Path]) -> None:
    async def main() -> None:
        certs = dict.fromkeys((EDGE, METRO, CLOUD), folders[0])
        async with line(EDGE, METRO, CLOUD, certs=certs) as (edge, _, cloud):
            await cloud.serve()
            await edge.serve(("tiny", CLOUD, METRO))
            client = await edge.client()
            for _ in range(3):
                answer = await client.ask()
                assert answer.status == 200, answer.error
                assert answer.headers["inferway-path"] == f"{EDGE},{METRO},{CLOUD}"
            assert edge.hops[METRO].opened == 1
            assert len(cloud.seen) == 3

    run(main())


def test_a_neighbor_with_another_authoritys_certificate_is_sent_nothing(
    run: Any, folders: tuple[Path, Path]
) -> None:
    async def main() -> None:
        ours, theirs = folders
        async with line(EDGE, CLOUD, certs={EDGE: ours, CLOUD: theirs}) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("big", CLOUD, CLOUD))
            client = await edge.client()
            answer = await client.ask(variant="big")
            assert answer.status == 503
            assert "its certificate does not pass" in answer.error
            assert answer.headers["inferway-unserved"] == "1"
            assert (await client.ask()).headers["inferway-node"] == EDGE
            assert cloud.seen == []
            assert not edge.hops[CLOUD].breaker.closed

    run(main())


def test_a_node_of_the_network_cannot_pass_for_another(
    run: Any, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    async def main() -> None:
        for kind in ("pem", "key"):
            stolen = folders[0] / f"office.{kind}"
            (tmp_path / f"{CLOUD}.{kind}").write_bytes(stolen.read_bytes())
        (tmp_path / "authority.pem").write_bytes((folders[0] / "authority.pem").read_bytes())
        async with line(EDGE, CLOUD, certs={EDGE: folders[0], CLOUD: tmp_path}) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("big", CLOUD, CLOUD))
            client = await edge.client()
            answer = await client.ask(variant="big")
            assert answer.status == 503
            assert "its certificate does not pass" in answer.error
            assert cloud.seen == []

    run(main())


def test_a_sender_with_another_authoritys_certificate_is_refused(
    run: Any, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    async def main() -> None:
        ours, theirs = folders
        # It trusts the right authority, so that it does send.
        for name, source in (("authority", ours), (EDGE, theirs)):
            (tmp_path / f"{name}.pem").write_bytes((source / f"{name}.pem").read_bytes())
        (tmp_path / f"{EDGE}.key").write_bytes((theirs / f"{EDGE}.key").read_bytes())
        async with line(EDGE, CLOUD, certs={EDGE: tmp_path, CLOUD: ours}) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("big", CLOUD, CLOUD))
            client = await edge.client()
            answer = await client.ask(variant="big")
            assert answer.status in (502, 503)
            assert f"node {CLOUD}" in answer.error
            assert cloud.seen == []
            assert cloud.site.stats.rows == [0]

    run(main())


@pytest.mark.parametrize("plain", [True, False])
def test_who_has_no_certificate_is_not_answered(
    run: Any, folders: tuple[Path, Path], plain: bool
) -> None:
    async def main() -> None:
        ours = folders[0]
        async with line(CLOUD, certs={CLOUD: ours}) as (cloud,):
            await cloud.serve()
            trusting = ssl.create_default_context(cafile=Credentials.of(CLOUD, ours).authority)
            how: dict[str, Any] = {} if plain else {"ssl": trusting, "server_hostname": CLOUD}
            reader, writer = await asyncio.open_connection("127.0.0.1", cloud.peers.port, **how)
            writer.write(
                b"POST /v2/models/task/infer HTTP/1.1\r\nHost: a\r\nInferway-Node: cloud\r\n"
                b"Inferway-Variant: tiny\r\nInferway-Path: base-0\r\nContent-Length: %d\r\n\r\n%s"
                % (len(BODY), BODY)
            )
            try:
                answer = await asyncio.wait_for(reader.read(), LIMIT_S)
            except (ssl.SSLError, ConnectionError):
                answer = b""
            assert b"HTTP" not in answer
            assert cloud.seen == []
            writer.transport.abort()

    run(main())
