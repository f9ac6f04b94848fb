"""Certificates: made, kept, renewed, and refused where they do not hold."""

from __future__ import annotations

import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from inferway.live import ServeError
from inferway.live.security.authority import CertificateError, issue
from inferway.live.security.tls import Credentials

NODES = ["cloud", "edge-1", "Zürich 1/2"]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def states(issued: list) -> list[str]:
    return [one.state for one in issued]


def test_every_node_gets_a_certificate_that_holds(tmp_path: Path) -> None:
    issued = issue(NODES, tmp_path / "new" / "certs", days=30, at=START)
    assert [one.name for one in issued] == ["authority", *NODES]
    assert states(issued) == ["new"] * 4
    for node in NODES:
        expires = Credentials.of(node, tmp_path / "new" / "certs").check(node, START)
        assert expires == START + timedelta(days=30)


def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    issue(NODES, folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 8  # and nothing half-written beside them
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_another_tool_finds_them_right(tmp_path: Path) -> None:
    issue(["edge"], tmp_path)
    for purpose in ("sslserver", "sslclient"):
        subprocess.run(
            ["openssl", "verify", "-purpose", purpose, "-x509_strict", "-CAfile", "authority.pem",
             "edge.pem"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip


def test_they_are_kept_until_the_last_third_of_their_time(tmp_path: Path) -> None:
    first = issue(NODES, tmp_path, days=90, at=START)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert states(issue(NODES, tmp_path, days=90, at=START + timedelta(days=59))) == ["kept"] * 4
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    later = START + timedelta(days=61)
    again = issue(NODES, tmp_path, days=90, at=later)
    assert states(again) == ["kept", "renewed", "renewed", "renewed"]
    assert again[0].expires == first[0].expires
    assert again[1].reason == "it would have expired on 2026-05-30"
    assert again[1].expires == later + timedelta(days=90)
    Credentials.of("cloud", tmp_path).check("cloud", START + timedelta(days=150))


def test_a_node_that_is_new_gets_its_own_and_the_rest_is_kept(tmp_path: Path) -> None:
    issue(NODES, tmp_path)
    assert states(issue([*NODES, "edge-2"], tmp_path)) == ["kept"] * 4 + ["new"]


def test_an_authority_that_would_end_first_is_replaced_with_all_it_issued(tmp_path: Path) -> None:
    issue(NODES, tmp_path, at=START)
    later = START + timedelta(days=3600)
    issued = issue(NODES, tmp_path, days=90, at=later)
    assert states(issued) == ["renewed"] * 4
    assert issued[0].reason == "it holds until 2036-02-27 only"
    assert "was not issued by the authority" in issued[1].reason or "expired" in issued[1].reason
    for node in NODES:
        Credentials.of(node, tmp_path).check(node, later)


def test_what_was_damaged_is_made_again(tmp_path: Path) -> None:
    issue(NODES, tmp_path)
    (tmp_path / "cloud.key").unlink()
    (tmp_path / "edge-1.key").write_bytes((tmp_path / "authority.key").read_bytes())
    issued = issue(NODES, tmp_path)
    assert states(issued) == ["kept", "renewed", "renewed", "kept"]
    assert issued[1].reason.endswith("cloud.key: No such file or directory")
    assert issued[2].reason.endswith("edge-1.pem")


def test_the_authoritys_key_is_not_replaced_in_silence(tmp_path: Path) -> None:
    issue(NODES, tmp_path)
    (tmp_path / "authority.key").write_text("rubbish")
    with pytest.raises(CertificateError, match="are no authority with its key"):
        issue(NODES, tmp_path)
    (tmp_path / "authority.key").write_bytes((tmp_path / "cloud.key").read_bytes())
    with pytest.raises(CertificateError, match="is not the key of"):
        issue(NODES, tmp_path)


@pytest.mark.parametrize(
    ("nodes", "days", "sentence"),
    [
        (["a"], 0, "1 to 3650 days"),
        (["a"], 4000, "1 to 3650 days"),
        (["x" * 65], 9, "has 65 characters in its name"),
        (["a", "A"], 9, "node A and node a would have the same files"),
        (["authority"], 9, "node authority and the authority would have the same files"),
    ],
)
def test_what_no_certificate_can_say_is_refused(
    tmp_path: Path, nodes: list[str], days: int, sentence: str
) -> None:
    with pytest.raises(CertificateError, match=sentence):
        issue(nodes, tmp_path, days=days)
    assert list(tmp_path.iterdir()) == []


def test_credentials_that_would_be_refused_are_said_before_the_start(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    issue(["a", "b"], ours, days=10, at=START)
    issue(["a"], theirs, days=10, at=START)
    a, b = Credentials.of("a", ours), Credentials.of("b", ours)
    other = Credentials.of("a", theirs)
    at = START + timedelta(days=1)
    assert a.check("a", at) == START + timedelta(days=10)
    for wrong, name, when, sentence in [
        (a, "b", at, "is the certificate of a, not of node b"),
        (a._replace(key=b.key), "a", at, r"b\.key is not the key of .*a\.pem"),
        (other._replace(authority=a.authority), "a", at, "was not issued by the authority"),
        (a, "a", START + timedelta(days=11), r"a\.pem expired on 2026-03-11 12:00 UTC"),
        (a, "a", START - timedelta(days=1), "is this machine's clock right"),
        (a._replace(key=tmp_path / "no"), "a", at, "node a needs .*no: No such file"),
        (a._replace(key=a.certificate), "a", at, "does not hold a private key"),
        (a._replace(certificate=a.key), "a", at, r"a\.key does not hold a certificate"),
    ]:
        with pytest.raises(ServeError, match=sentence):
            wrong.check(name, when)


def test_certificates_bear_the_nodes_name_and_both_uses(tmp_path: Path) -> None:
    issue(["Zürich 1/2"], tmp_path)
    file = Credentials.of("Zürich 1/2", tmp_path).certificate
    assert file.parent == tmp_path
    found = x509.load_pem_x509_certificate(file.read_bytes())
    (name,) = found.subject
    assert name.value == "Zürich 1/2"
    uses = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert len(list(uses)) == 2
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
