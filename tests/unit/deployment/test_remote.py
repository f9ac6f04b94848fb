"""Variants behind other servers, as files say them and as they are measured and checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from inferway.deployment import DeploymentError, Remote, check, load, measured
from inferway.deployment.warnings import check_remotes
from inferway.runtime import RemoteError
from scripted import METADATA, Scripted

Write = Callable[..., Path]
URL = "http://127.0.0.1:8080/v2/models/digits"
NODES = "nodes: {here: {instances: {t/far: %d}}}\n"


def task(remote: str, more: str = "service: {mean: 9 ms}") -> str:
    """A task of one remote variant."""
    return f"tasks: {{t: {{variants: {{far: {{accuracy: 0.9, remote: {remote}, {more}}}}}}}}}\n"


@pytest.fixture
def upstream() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


def test_a_url_is_enough_and_more_can_be_said(write: Write) -> None:
    far = load(write(task(f'"{URL}"'))).tasks["t"].variants["far"]
    assert far.remote == Remote(URL)
    assert far.runnable
    text = task(f'{{url: "{URL}", concurrency: 3, timeout: 250 ms, key: A_KEY}}')
    deployment = load(write(text))
    assert deployment.tasks["t"].variants["far"].remote == Remote(URL, 3, 0.25, "A_KEY")
    # As many instances as the server takes requests, where the file says nothing of it.
    assert deployment.nodes["here"].instances == {("t", "far"): 3}
    assert load(write(text + "nodes: {here: {}}\n")).nodes["here"].instances == {("t", "far"): 3}
    assert load(write(text + NODES % 2)).nodes["here"].instances == {("t", "far"): 2}
    assert deployment.unserved() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (task("http://127.0.0.1:8080"), "remote: 'http://127.0.0.1:8080' is no model's URL: write"),
        (task('{url: "ftp://a/v2/models/m"}'), "remote.url: 'ftp://a/v2/models/m' is no model's"),
        (task('"http://a:b@c/v2/models/m"'), "remote: a URL with a password in it would be in"),
        (task("{}"), "remote.url: is needed and not given"),
        (task("7"), "remote: expected keys such as url, concurrency, timeout, got 7"),
        (task(f'{{url: "{URL}", concurency: 2}}'), "unknown key; did you mean concurrency?"),
        (task(f'{{url: "{URL}", concurrency: 0}}'), "remote.concurrency: must be 1 or more"),
        (task(f'{{url: "{URL}", timeout: 0 s}}'), "a time must be above 0"),
        (task(f'{{url: "{URL}", key: s3-cret}}'), "remote.key: expected the name of an environ"),
        (task(f'"{URL}"', "model: a.onnx"), "remote: a variant has a `model` here or one at a ser"),
        (task(f'"{URL}"', "digest: 'sha256:" + "0" * 64 + "'"), "digest: a digest belongs to a"),
        (
            task(f'{{url: "{URL}", concurrency: 4}}') + NODES % 5,
            "nodes.here.instances.t/far: 5 instances would send so many requests at once, and "
            "`concurrency` of far is 4",
        ),
        (f"tasks: {{t: {{variants: {{a: {{model: '{URL}'}}}}}}}}\n", "a `remote`"),
    ],
)
def test_what_is_wrong_is_said(write: Write, text: str, said: str) -> None:
    with pytest.raises(DeploymentError) as error:
        load(write(text))
    (line,) = str(error.value).splitlines()
    assert said in line


def test_it_takes_nothing_of_a_budget_unless_it_says_so(write: Write) -> None:
    node = "nodes: {here: {budget: 1 MiB, instances: {t/far: 1}}}\n"
    load(write(task(f'"{URL}"') + node))
    with pytest.raises(DeploymentError, match="cannot hold what runs here"):
        load(write(task(f'"{URL}"', "service: {mean: 9 ms}, size: 2 MiB") + node))


def test_it_runs_elsewhere_so_that_this_machines_cores_are_no_limit(write: Write) -> None:
    found = check(load(write(task(f'"{URL}"') + NODES % 4096)))
    assert [one.kind for one in found] == []


def test_its_service_time_is_measured_there_and_back(write: Write, upstream: Scripted) -> None:
    deployment = load(write(task(f'"{upstream.url}"', "size: 1 MiB")))
    assert [one.kind for one in check(deployment)] == ["unmeasured"]
    far = measured(deployment, seconds=0.001).tasks["t"].variants["far"]
    assert 1e-5 < far.service_on("any").mean_s < 1.0
    assert len(upstream.infers) >= 5
    upstream.close()
    with pytest.raises(ValueError, match=r"far has no `service`, and its server .* refused"):
        measured(deployment)


def test_the_key_is_the_environments(
    write: Write, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = load(write(task(f'{{url: "{upstream.url}", key: FAR_KEY}}')))
    remote = deployment.tasks["t"].variants["far"].remote
    assert remote is not None
    monkeypatch.delenv("FAR_KEY", raising=False)
    with pytest.raises(ValueError, match="environment variable FAR_KEY"):
        remote.runtime()
    (found,) = check_remotes(deployment)
    assert (found.kind, found.line) == ("unreachable", 1)
    monkeypatch.setenv("FAR_KEY", "s3cret\n")
    runtime = remote.runtime()
    runtime.learn()
    runtime.close()
    assert upstream.asked[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(deployment)


LOCAL = """\
tasks:
  t:
    variants:
      near: {model: near.onnx, accuracy: 0.8, service: {mean: 1 ms}}
      far:
        accuracy: 0.9
        service: {mean: 9 ms}
        remote: "URL"
"""


def test_check_asks_the_servers(
    write: Write, upstream: Scripted, model: Callable[..., Path]
) -> None:
    model("near.onnx", 2, 2)
    deployment = load(write(LOCAL.replace("URL", upstream.url)))
    assert check_remotes(deployment) == []
    upstream.metadata = METADATA | {"outputs": METADATA["inputs"]}
    (found,) = check_remotes(deployment)
    assert (found.kind, found.field, found.line) == (
        "remote-unfit",
        "tasks.t.variants.far.remote",
        8,
    )
    assert "differs from (x: FP32[-1, 2]) -> (y: FP32[-1, 2])" in found.message
    upstream.script = upstream.hang
    upstream.close()
    (found,) = check_remotes(deployment)
    assert str(found) == (
        "tasks.t.variants.far.remote: the remote server cannot be reached: connection refused"
    )
    assert found.kind == "unreachable"


def test_without_a_model_here_the_first_server_says_the_signature(
    write: Write, upstream: Scripted
) -> None:
    other = Scripted()
    other.metadata = METADATA | {"outputs": METADATA["inputs"]}
    variants = ", ".join(
        f'{name}: {{accuracy: 0.9, service: {{mean: 9 ms}}, remote: "{server.url}"}}'
        for name, server in (("one", upstream), ("two", other))
    )
    (found,) = check_remotes(load(write(f"tasks: {{t: {{variants: {{{variants}}}}}}}\n")))
    other.close()
    assert (found.kind, found.field) == ("remote-unfit", "tasks.t.variants.two.remote")


def test_a_runtime_that_cannot_reach_its_server_says_so(write: Write) -> None:
    runtime = Remote("http://127.0.0.1:1/v2/models/m").runtime()
    with pytest.raises(RemoteError, match="connection refused"):
        runtime.learn()
