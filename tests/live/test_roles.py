"""Keys with roles, where deployments may come from, and clients whose keys are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc.service_pb2 import (
    ModelConfigRequest,
    ModelInferRequest,
    ModelStatisticsRequest,
    ServerMetadataRequest,
)
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

import inferway
from inferway.live import Keys, ServeError, apply

INFER, READ, ADMIN, FEEDBACK = (
    f"a-key-of-{role}-length" for role in ("infer", "read", "admin", "feedback")
)
PLAIN, BOTH = "plain+read=looks-like-a-role", "YWRtaW4taW4tYmFzZTY0LWxvb2tz="
KEYS = [
    f"infer={INFER}",
    f"read={READ}",
    f"admin={ADMIN}",
    f"feedback={FEEDBACK}",
    PLAIN,
    f"read+admin={BOTH}",
]
ROLES = {
    INFER: {"infer"},
    READ: {"read"},
    ADMIN: {"admin"},
    FEEDBACK: {"feedback"},
    PLAIN: {"infer", "read"},
    BOTH: {"read", "admin"},
}
ONE = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1] * 4}]}
FILE = """
tasks:
  digits: {{variants: {{tiny: {{model: zoo://digits/{variant}}}}}}}
{more}
"""
SECRET = "hunter2-is-the-password"
POLICY = '''
from pathlib import Path
from typing import NamedTuple

Path(__file__).with_suffix(".ran").touch()

class First(NamedTuple):
    """Always the first."""
    first: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(0)

    def choose(self, site, request, draw):
        return self.first
'''


def shown(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""


@pytest.fixture
def guarded(start: Callable[..., Any], site_of: Callable[..., Any]) -> Any:
    return start(site_of(), keys=Keys(KEYS), grpc_port=0)


PAGES = [
    ("GET", "/v2", "", False, "infer"),
    ("GET", "/v2/", "", False, "infer"),
    ("GET", "/v2/openapi.json", "", False, "infer"),
    ("GET", "/v2/models", "", False, "infer"),
    ("GET", "/v2/models/digits", "", False, "infer"),
    ("GET", "/v2/models/digits/config", "", False, "infer"),
    ("GET", "/v2/models/digits/versions/tiny/stats", "", False, "read"),
    ("GET", "/v2/models/stats", "", False, "read"),
    ("GET", "/v2/models/digits/ready", "", False, "infer"),
    ("GET", "/v2/models/digits/versions/tiny/ready", "", False, "infer"),
    ("POST", "/v2/models/digits/infer", json.dumps(ONE), False, "infer"),
    ("POST", "/v2/repository/index", "", False, "infer"),
    ("GET", "/v2/models/digits/explain/x", "", False, "read"),
    ("GET", "/v2/models/digits/%65xplain/x", "", False, "read"),
    ("GET", "http://x/v2/models/digits/explain/x?a=b", "", False, "read"),
    ("HEAD", "/v2/models/digits/explain/x", "", False, "read"),
    ("GET", "/v2/models/digits/accuracy", "", False, "read"),
    ("POST", "/v2/models/digits/feedback", "{}", False, "feedback"),
    ("DELETE", "/v2/models/digits/feedback/x", "", False, "feedback"),
    ("GET", "/metrics", "", True, "read"),
    ("GET", "/%6detrics?x", "", True, "read"),
    ("GET", "/status", "", True, "read"),
    ("POST", "/apply", "{}", True, "admin"),
    ("GET", "/apply", "", True, "admin"),
]


@pytest.mark.parametrize(("method", "path", "body", "admin", "role"), PAGES)
def test_every_page_asks_for_a_role(
    guarded: Any, method: str, path: str, body: str, admin: bool, role: str
) -> None:
    for key, roles in ROLES.items():
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{shown(key)}Content-Length: {len(body)}\r\n"
        answer = guarded.ask(f"{head}\r\n{body}".encode(), admin=admin)
        if role in roles:
            assert answer.status not in (401, 403, 429)
        else:
            assert answer.status == 403
            if method != "HEAD":
                sentence = f"the request needs a key with the role {role}, which this one has not"
                assert answer.json == {"error": sentence}
    raw = f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    assert guarded.ask(raw, admin=admin).status == 401


def test_the_part_before_a_key_is_not_sent(guarded: Any) -> None:
    for key in (f"infer={INFER}", f"read+admin={BOTH}", PLAIN.partition("=")[2]):
        assert (
            guarded.ask(f"GET /v2 HTTP/1.1\r\nHost: x\r\n{shown(key)}\r\n".encode()).status == 401
        )


def test_any_key_is_told_what_leads_nowhere(guarded: Any) -> None:
    for key in ROLES:
        raw = f"GET /v2/nowhere HTTP/1.1\r\nHost: x\r\n{shown(key)}\r\n".encode()
        assert guarded.ask(raw).status == 404
        assert guarded.ask(raw, admin=True).status == 404
    assert guarded.get("/v2/health/ready").status == 200


def test_calls_ask_for_a_role(guarded: Any) -> None:
    request = ModelInferRequest(model_name="digits")
    request.inputs.add(name="image", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    about, config = ServerMetadataRequest(), ModelConfigRequest(name="digits")
    statistics = ModelStatisticsRequest()
    with grpc.insecure_channel(f"127.0.0.1:{guarded.server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        for key, roles in ROLES.items():
            metadata = [("authorization", f"Bearer {key}")]
            for role, call in (
                ("infer", lambda given: stub.ModelInfer(request, metadata=given)),
                (
                    "infer",
                    lambda given: stub.ServerMetadata(about, metadata=given),
                ),
                ("infer", lambda given: stub.ModelConfig(config, metadata=given)),
                ("read", lambda given: stub.ModelStatistics(statistics, metadata=given)),
            ):
                if role in roles:
                    assert call(metadata)
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    call(metadata)
                error: Any = refused.value
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED
                sentence = f"the request needs a key with the role {role}, which this one has not"
                assert error.details() == sentence


def counts(running: Any) -> dict[str, float]:
    raw = f"GET /metrics HTTP/1.1\r\nHost: x\r\n{shown(READ)}\r\n".encode()
    text = running.ask(raw, admin=True).body.decode()
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "inferway_key_failures_total"
    }


def test_wrong_keys_are_counted_and_slowed_down(guarded: Any) -> None:
    def ask(key: str) -> Any:
        return guarded.ask(f"GET /v2 HTTP/1.1\r\nHost: x\r\n{shown(key)}\r\n".encode())

    answers = [ask(f"wrong-key-number-{number}") for number in range(60)]
    statuses = [answer.status for answer in answers]
    assert statuses[:20] == [401] * 20
    assert statuses.count(429) >= 10
    last = answers[-1]
    assert last.json == {"error": "too many wrong keys came from this address"}
    assert 1 <= int(last.headers["retry-after"]) <= 60
    # Others at the address, who have the right key or none, hear nothing of it.
    assert ask(INFER).status == 200
    assert ask("").status == 401
    assert ask(READ).status == 403
    with grpc.insecure_channel(f"127.0.0.1:{guarded.server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        for key, code in (("a-wrong-key-more", "RESOURCE_EXHAUSTED"), (INFER, "")):
            metadata = [("authorization", f"Bearer {key}")]
            if code:
                with pytest.raises(grpc.RpcError) as refused:
                    stub.ServerMetadata(ServerMetadataRequest(), metadata=metadata)
                error: Any = refused.value
                assert error.code().name == code
                assert "retry-after" in dict(error.trailing_metadata())
            else:
                stub.ServerMetadata(ServerMetadataRequest(), metadata=metadata)
    found = counts(guarded)
    assert found["wrong"] + found["limited"] == 61
    assert (found["missing"], found["role"]) == (1, 1)
    assert found["limited"] == statuses.count(429) + 1


# Where deployments may come from.


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder to apply from, and one that is none of the server's business."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "mine.py").write_text(POLICY)
        (folder / "secret").write_text(f"{SECRET}\n[section\n")
        (folder / "secrets.yaml").write_text(f"password: {SECRET}\n{SECRET}: 1\n")
        (folder / "digits.yaml").write_text(FILE.format(variant="tiny", more=""))
    return inside, outside


@pytest.fixture
def serving(start: Callable[..., Any], folders: tuple[Path, Path]) -> Any:
    file = folders[0] / "digits.yaml"
    running = start(deployment=inferway.load(file), keys=Keys(KEYS))
    running.admin = f"http://127.0.0.1:{running.server.admin_port}"
    return running


def post(running: Any, document: Any) -> Any:
    body = json.dumps(document)
    head = f"POST /apply HTTP/1.1\r\nHost: x\r\n{shown(ADMIN)}Content-Type: application/json\r\n"
    raw = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    return running.ask(raw, admin=True)


def test_files_come_out_of_the_folder_of_the_file_served(
    serving: Any, folders: tuple[Path, Path]
) -> None:
    inside, outside = folders
    other = inside / "below" / "other.yaml"
    other.parent.mkdir()
    other.write_text(FILE.format(variant="small", more="dispatch: {policy: ../mine.py:First}"))
    assert apply(other, serving.admin, key=ADMIN)["tasks"] == {"digits": ["tiny"]}
    assert inside.joinpath("mine.ran").exists()
    (inside / "link.yaml").symlink_to(outside / "digits.yaml")
    (inside / "away").symlink_to(outside)
    for path in (
        outside / "digits.yaml",
        inside / ".." / "outside" / "digits.yaml",
        inside / "link.yaml",
        inside / "away" / "digits.yaml",
        Path("/etc/passwd"),
        outside / "nowhere",
    ):
        refused = post(serving, {"path": str(path)})
        assert refused.status == 403
        sentence = "is outside of the folders to apply from, which `serve --apply-from` names"
        assert refused.json == {"error": f"{path} {sentence}"}


def test_a_page_that_comes_to_be_with_the_body_asks_for_its_role(
    serving: Any, folders: tuple[Path, Path]
) -> None:
    wire = serving.wire()
    head = f"POST /v2/models/other/infer HTTP/1.1\r\nHost: x\r\n{shown(READ)}Content-Length: 2\r\n"
    # The server says that the key will do, before there is a page.
    wire.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert wire.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    file = folders[0] / "other.yaml"
    file.write_text(FILE.format(variant="tiny", more="").replace("digits: {", "other: {"))
    assert apply(file, serving.admin, key=ADMIN)["tasks"] == {"other": ["tiny"]}
    wire.send(b"{}")
    assert wire.read().status == 403


@pytest.mark.parametrize("form", ["path", "content"])
@pytest.mark.parametrize(
    "more",
    [
        "dispatch: {{policy: '{outside}/mine.py:First'}}",
        "dispatch: {{policy: ../outside/mine.py:First}}",
        "dispatch: {{policy: link.py:First}}",
        "workload: {{digits: {{trace: {{file: '{outside}/secret'}}}}}}",
        "network: {{gml: '{outside}/secret'}}",
    ],
)
def test_what_a_file_names_comes_from_there_too(
    serving: Any, folders: tuple[Path, Path], more: str, form: str
) -> None:
    inside, outside = folders
    link = inside / "link.py"
    link.symlink_to(outside / "mine.py")
    if form == "content":
        more = more.replace("../outside", "{outside}").replace("link.py", "{link}")
    text = FILE.format(variant="tiny", more=more.format(outside=outside, link=link))
    file = inside / "other.yaml"
    file.write_text(text)
    refused = post(serving, {"path": str(file)} if form == "path" else {"content": text})
    assert refused.status == 400
    assert "outside of the folders to apply from" in refused.json["error"]
    assert SECRET not in refused.body.decode()
    assert not outside.joinpath("mine.ran").exists()


@pytest.mark.parametrize("model", ["{outside}/own.onnx", "file://{outside}/own.onnx"])
def test_models_come_from_there_too(serving: Any, folders: tuple[Path, Path], model: str) -> None:
    inside, outside = folders
    (outside / "own.onnx").write_bytes(b"x")
    file = inside / "other.yaml"
    text = FILE.format(variant="tiny", more="")
    file.write_text(text.replace("zoo://digits/tiny", f"'{model.format(outside=outside)}'"))
    refused = post(serving, {"path": str(file)})
    assert refused.status == 400
    assert "variants.tiny.model: is outside" in refused.json["error"]


def test_other_folders_may_be_named(start: Callable[..., Any], folders: tuple[Path, Path]) -> None:
    inside, outside = folders
    deployment = inferway.load(inside / "digits.yaml")
    running = start(deployment=deployment, keys=Keys(KEYS), apply_from=[outside])
    assert post(running, {"path": str(outside / "digits.yaml")}).status == 200
    assert post(running, {"path": str(inside / "digits.yaml")}).status == 403


@pytest.mark.parametrize("name", ["secret", "secrets.yaml", "mine.py"])
def test_nothing_is_quoted_of_what_is_no_deployment(
    serving: Any, folders: tuple[Path, Path], name: str
) -> None:
    inside, _ = folders
    content = (inside / name).read_text()
    refused = post(serving, {"path": str(inside / name)})
    assert refused.status == 400
    assert "this is no deployment file" in refused.json["error"]
    words = {word for line in content.splitlines() for word in line.split() if len(word) > 3}
    assert not [word for word in words if word in refused.json["error"]]
    # Nor where a deployment names it.
    for more in (
        "workload: {{digits: {{trace: {{file: {name}}}}}}}",
        "network: {{gml: {name}}}",
        "nodes: {{here: {{}}}}\nnetwork: {{gml: {name}}}",
    ):
        other = inside / "other.yaml"
        other.write_text(FILE.format(variant="tiny", more=more.format(name=name)))
        refused = post(serving, {"path": str(other)})
        assert refused.status == 400
        assert SECRET not in refused.body.decode()


def test_what_is_wrong_with_a_deployment_is_quoted(
    serving: Any, folders: tuple[Path, Path]
) -> None:
    file = folders[0] / "digits.yaml"
    file.write_text(FILE.format(variant="none", more=""))
    with pytest.raises(ServeError, match="none"):
        apply(file, serving.admin, key=ADMIN)
    with pytest.raises(ServeError, match="the role admin"):
        apply(file, serving.admin, key=PLAIN)
