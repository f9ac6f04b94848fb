"""The guide to remote models: its files serve, and what it says of failures happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inferway import check, load
from inferway.catalog import testset as load_testset

BLOCK = re.compile(r"`(\w+\.yaml)`[^`]*```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
WARNING = "the remote server cannot be reached: connection refused"
SAID = "127.0.0.1:9000"


def test_the_files_of_the_guide_serve(start: Any, root: Path, tmp_path: Path) -> None:
    guide = (root / "docs" / "guides" / "serve-remote-models.md").read_text(encoding="utf-8")
    files = dict(BLOCK.findall(guide))
    assert list(files) == ["edge.yaml", "far.yaml"]
    assert all(text.count(SAID) == (name == "edge.yaml") for name, text in files.items())
    (tmp_path / "far.yaml").write_text(files["far.yaml"], encoding="utf-8")
    origin = start(deployment=load(tmp_path / "far.yaml"))
    (tmp_path / "edge.yaml").write_text(files["edge.yaml"].replace(SAID, origin.url))
    deployment = load(tmp_path / "edge.yaml")
    assert [one for one in check(deployment) if one.kind != "oversubscribed"] == []
    running = start(deployment=deployment)
    # Multiples of 1/64, as short texts.
    images = (load_testset().images[:40] * 64).round() / 64

    def answered() -> set[str]:
        found = set()
        for image in images:
            tensor = {"name": "image", "datatype": "FP32", "shape": [1, *image.shape]}
            tensor["data"] = image.ravel().tolist()
            answer = running.infer({"inputs": [tensor]})
            assert answer.status == 200, answer.body
            found.add(answer.json["model_version"])
        return found

    assert answered() == {"small", "large"}
    site = running.site
    assert running.call(lambda: site.pool.dispatcher.balance) > -0.1
    origin.wait(origin.server.stop(grace_s=0.0))
    assert answered() == {"small"}
    assert sum(site.stats.moved) <= 2
    assert running.call(lambda: site.pool.health.healthy) == [True, False, False]
    (found,) = (one for one in check(deployment) if one.kind == "unreachable")
    assert str(found) == f"tasks.digits.variants.large.remote: {WARNING}"
    assert f"edge.yaml:{found.line}: warning: {found}" in guide
