"""A server starts from times of the file, its profile, an earlier run, the zoo, in this order."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from profiles import DATA, measured

import inferway
from inferway.catalog import zoo
from inferway.catalog.profile import TaskProfile
from inferway.deployment.profile import DeploymentProfile, write_profile
from inferway.live.build import pools_of
from inferway.live.headroom import Growths, Headroom
from inferway.live.log import logger
from inferway.live.options import ServerOptions
from inferway.live.pool import Pool

GIB = 1024**3
FILE = """
tasks:
  digits:
    variants:
      stated: {model: tiny.onnx, accuracy: 0.3, service: {mean: 11 ms}}
      profiled: {model: mini.onnx}
      shipped: {model: zoo://digits/small}
nodes:
  here:
    instances: {digits/stated: 1, digits/profiled: 1, digits/shipped: 1}
"""


RECALLED_S = 44e-3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("tiny", "mini"):
        shutil.copy(zoo.model_path("digits", name), tmp_path / f"{name}.onnx")
    file = tmp_path / "digits.yaml"
    file.write_text(FILE)
    digest = "sha256:" + hashlib.sha256((tmp_path / "mini.onnx").read_bytes()).hexdigest()
    known = TaskProfile(DATA, {"profiled": measured(digest, mean_s=22e-3)})
    write_profile(file, DeploymentProfile(tasks={"digits": known}))
    return file


@contextmanager
def started(file: Path) -> Iterator[Pool]:
    options, log = ServerOptions(times=file.parent / "times.json"), logger("critical")
    growths = Growths(None, log, GIB)
    (pool,) = pools_of(inferway.load(file), options, Headroom(GIB), growths, log)
    yield pool
    asyncio.run(pool.close(0.0))


def seconds_by_variant(pool: Pool) -> dict[str, float]:
    dispatcher = pool.dispatcher
    return dict(zip(dispatcher.fleet.variants, 1 / dispatcher.site.rate, strict=True))


def test_a_server_starts_from_recalled_times_where_neither_file_nor_profile_has_some(
    file: Path,
) -> None:
    with started(file) as pool:
        before = seconds_by_variant(pool)
        for step in range(3 * 50):
            server = pool.dispatcher.arrive(float(step), step, classes=1 << step % 3)
            pool.dispatcher.finish(server, step + RECALLED_S, RECALLED_S)
    assert before["stated"] == pytest.approx(11e-3)
    assert before["profiled"] == pytest.approx(22e-3)
    assert before["shipped"] == pytest.approx(zoo.profiles()["small"].mean_s)
    with started(file) as pool:
        after = seconds_by_variant(pool)
    assert {name for name, s in after.items() if s != before[name]} == {"shipped"}
    assert after["shipped"] == pytest.approx(RECALLED_S, rel=0.05)
