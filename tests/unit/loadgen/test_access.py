"""Servers that ask for a key or have certificates of an own authority."""

from __future__ import annotations

import pickle
import ssl
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httptools
import numpy as np
import pytest

from inferway.live import Certificate
from inferway.live.security.authority import issue
from inferway.loadgen import Access, DriveError, Stream, drive, replay, summary
from inferway.loadgen.access import OPEN, signature
from inferway.loadgen.generator import SendPlan, carry_out
from inferway.loadgen.message import head
from inferway.protocol.address import ServerAddress

KEY = "a-key-of-enough-length"


@pytest.fixture(scope="module")
def certs(tmp_path_factory) -> Path:
    """A folder with an authority and certificates of it for localhost."""
    folder = tmp_path_factory.mktemp("certs")
    issue(["localhost"], folder)
    return folder


@pytest.fixture(scope="module")
def strangers(tmp_path_factory) -> Path:
    """An authority of the same name that has signed nothing here."""
    folder = tmp_path_factory.mktemp("strangers")
    issue(["localhost"], folder)
    return folder / "authority.pem"


@pytest.fixture
def secured(serve, certs):
    """A server with TLS."""
    return serve(tls=Certificate(certs / "localhost.pem", certs / "localhost.key").context())


@pytest.mark.parametrize(
    "key", ["", "two words", "line\r\nHost: there", "schlüssel-länge", "tab\t"]
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key):
    with pytest.raises(DriveError, match="the key") as caught:
        Access(key)
    assert not key or key not in str(caught.value)


def test_a_key_is_not_shown_by_its_access():
    access = Access(KEY)
    assert KEY not in repr(access)
    assert access.hidden(f"{KEY} is no key") == "(the key) is no key"
    assert access == Access(KEY) != Access(KEY + "x")


def test_an_access_goes_to_another_process_whole(certs):
    for access in (OPEN, Access(KEY), Access(KEY, certs / "authority.pem")):
        again = pickle.loads(pickle.dumps(access))
        assert again.key == access.key
        assert str(again.authority) == str(access.authority)
        assert again.lines == access.lines


def test_a_request_with_a_key_is_one_request_with_one_more_header():
    found = {}

    class Reader:
        def on_header(self, name: bytes, value: bytes) -> None:
            found[name] = value

        def on_body(self, body: bytes) -> None:
            found[b""] = body

    first, rest = head(ServerAddress("h", 1, False, ""), "t"), b"Content-Length: 1\r\n\r\n!"
    httptools.HttpRequestParser(Reader()).feed_data(first + Access(KEY).lines + rest)
    authorization = f"Bearer {KEY}".encode()
    assert found == {
        **{b"Host": b"h:1", b"Authorization": authorization},
        **{b"Content-Length": b"1", b"": b"!"},
    }
    assert OPEN.lines == b""


def test_files_that_are_no_authority_are_refused(certs, tmp_path):
    for name, content in (("empty", b""), ("der", b"\x30\x82"), ("key", None)):
        file = tmp_path / name
        file.write_bytes((certs / "localhost.key").read_bytes() if content is None else content)
        with pytest.raises(DriveError, match=f"{name} does not hold a certificate in PEM"):
            Access(authority=file)
    with pytest.raises(DriveError, match="none cannot be read: No such file"):
        Access(authority=tmp_path / "none")


def test_every_request_shows_the_key(serve, images):
    server = serve()
    server.asks = f"Bearer {KEY}"
    record = drive(server.url, "t", np.arange(40) * 0.002, images, access=Access(KEY))
    assert record.status.tolist() == [200] * 40
    assert {shown for _, shown in server.shown} == {server.asks}
    paths = [path for path, _ in server.shown]
    assert paths[:2] == ["/v2/health/ready", "/v2/models/t"]
    assert len(paths) == 42


def test_without_a_key_none_is_sent(serve, images):
    server = serve()
    replay(server.url, [Stream("t", [0.0, 0.01], images)])
    assert {shown for _, shown in server.shown} == {""}


def test_a_server_that_asks_for_a_key_is_told_from_one_that_refuses_it(serve, images):
    server = serve()
    server.asks = f"Bearer {KEY}"
    how = r"give one with --key-file FILE or in INFERWAY_KEY$"
    with pytest.raises(DriveError, match=rf"the server at {server.url} asks for a key: {how}"):
        drive(server.url, "t", [0.0], images)
    with pytest.raises(DriveError, match=rf"does not take the key that was given: {how}") as caught:
        drive(server.url, "t", [0.0], images, access=Access(KEY[::-1]))
    assert KEY[::-1] not in str(caught.value)
    assert server.requests == []


def test_a_key_that_ends_in_mid_run_is_told_and_not_shown(serve, images, tmp_path):
    server = serve()

    async def behave(number: int) -> int:
        if number == 9:
            server.asks = "Bearer another"
        return 200

    server.behave = behave
    # Shortened as all long sentences are, and a part of a key is not to be seen either.
    server.complaint = "no " * 64 + "{shown}"
    record = drive(server.url, "t", np.arange(20) * 0.02, images, access=Access(KEY), connections=1)
    assert record.status.tolist() == [200] * 10 + [401] * 10
    assert record.failures() == {f"401: {'no ' * 64}Bearer (the key)"[:205]: 10}
    (warning,) = [one for one in summary(record).warnings if "401" in one]
    assert warning.startswith("10 requests were refused for want of a valid key (401)")
    assert warning.endswith("with --key-file FILE or in INFERWAY_KEY")
    record.save(tmp_path / "record.npz")
    assert KEY.encode() not in (tmp_path / "record.npz").read_bytes()


def _plan(server, count: int) -> SendPlan:
    tls = server.tls is not None
    address = ServerAddress("localhost" if tls else "127.0.0.1", server.port, tls, "")
    return SendPlan(
        addresses=[address],
        heads=[head(address, "t")],
        target=[0],
        bodies=[b'Content-Length: 37\r\n\r\n{"inputs": [{"data": [1, 0, 0, 0]}]} '],
        due_s=np.arange(count) * 0.05,
        head=np.zeros(count, np.int64),
        body=np.zeros(count, np.int64),
        connections=4,
        grace_s=5.0,
    )


def test_degradations_do_not_show_the_key(serve):
    server = serve()
    server.headers = f"Inferway-Degraded: {KEY} is about to end\r\n".encode()
    outcome = carry_out(_plan(server, 3), Access(KEY))
    assert outcome.columns["status"].tolist() == [200] * 3
    assert "(the key) is about to end" in outcome.degradations
    assert not any(KEY in one for one in outcome.degradations)


@pytest.mark.skipif(sys.platform != "linux", reason="what others may see is read from /proc")
def test_others_of_the_machine_do_not_see_the_key(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[bytes] = []

    def look(*_: int) -> None:
        if seen:
            return
        for task in Path("/proc/self/task").iterdir():
            for child in (task / "children").read_text().split():
                process = Path("/proc", child)
                if b"inferway.loadgen" in (process / "cmdline").read_bytes():
                    seen.extend((process / one).read_bytes() for one in ("cmdline", "environ"))
        seen.extend(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())

    server = serve()
    server.asks = f"Bearer {KEY}"
    outcome = carry_out(_plan(server, 20), Access(KEY), look)
    assert outcome.columns["status"].tolist() == [200] * 20
    assert len(seen) == 2  # its arguments and its environment: nothing is in a file
    assert not any(KEY.encode() in one for one in seen)
    assert KEY.encode() not in pickle.dumps(outcome)


def test_a_server_of_an_own_authority_is_driven(secured, certs, images):
    secured.asks = f"Bearer {KEY}"
    access = Access(KEY, certs / "authority.pem")
    record = drive(secured.url, "t", np.arange(40) * 0.005, images, access=access)
    assert record.status.tolist() == [200] * 40
    assert record.predicted_class.tolist() == [0, 1, 2, 3] * 10
    assert signature(secured.url, "t", access=Access(KEY, str(certs / "authority.pem")))


def test_a_certificate_of_nobody_known_is_said_and_what_to_do(secured, strangers, certs):
    hint = r"name the authority that signed it with --ca FILE\.pem$"
    for access in (OPEN, Access(KEY, strangers)):
        why = rf"no connection to {secured.url}: its certificate is not trusted \(.+\): {hint}"
        with pytest.raises(DriveError, match=why):
            signature(secured.url, "t", access=access)
        with pytest.raises(DriveError, match=why):  # the generator's own
            carry_out(_plan(secured, 1), access)
    assert secured.shown == []
    elsewhere = secured.url.replace("localhost", "127.0.0.1")
    with pytest.raises(DriveError, match=r"is not trusted \(IP address mismatch.+'\)$"):
        signature(elsewhere, "t", access=Access(authority=certs / "authority.pem"))


def test_an_expired_certificate_is_no_matter_of_authorities(serve, tmp_path):
    issue(["localhost"], tmp_path, days=1, at=datetime.now(UTC) - timedelta(days=2))
    expired = Certificate(tmp_path / "localhost.pem", tmp_path / "localhost.key")
    with pytest.raises(DriveError, match=r"is not trusted \(certificate has expired\)$"):
        signature(
            serve(tls=expired.context()).url,
            "t",
            access=Access(authority=tmp_path / "authority.pem"),
        )


def test_the_system_s_authorities_hold_unless_another_is_named(secured, certs, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certs / "authority.pem"))
    assert signature(secured.url, "t", access=Access(KEY))
    assert carry_out(_plan(secured, 2), Access(KEY)).columns["status"].tolist() == [200] * 2


def test_with_an_authority_nothing_goes_without_tls(serve, certs, images):
    server = serve()
    access = Access(KEY, certs / "authority.pem")
    with pytest.raises(DriveError, match=f"{server.url} has no TLS, and --ca names an authority"):
        drive(server.url, "t", [0.0], images, access=access)
    assert server.connections == 0


def test_a_server_with_tls_behind_an_address_without_is_guessed(secured):
    plain = secured.url.replace("https:", "http:")
    with pytest.raises(DriveError, match=r"with TLS the address begins with https://\)"):
        signature(plain, "t")


def test_the_context_is_made_once():
    access = Access(KEY)
    assert access.context is access.context
    assert access.context.verify_mode is ssl.CERT_REQUIRED
    assert access.context.check_hostname
