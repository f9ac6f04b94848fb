"""Running, stopping and going on, with real points: the tolerances of Fig. 5 need no simulation."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time

import pytest

from inferway.experiments.runner import Point
from inferway.experiments.study import Study, seeded
from inferway.studies import run, stored, study
from inferway.studies.queueing.rate import tolerance
from inferway.studies.queueing.system import FOUR_CLASSES

LOADS = (0.4, 0.6, 0.8)


def points(loads):
    return [
        Point(
            {"load": load},
            tolerance,
            {"system": FOUR_CLASSES.arguments(), "servers": 64, "target": 0.76, "load": load},
        )
        for load in loads
    ]


def small(loads=LOADS, **changed):
    made = Study(
        name="small",
        source="here",
        shows="Little.",
        scales={"smoke": tuple(loads), "quick": tuple(loads), "paper": tuple(loads)},
        points=points,
        figure=lambda settings, results: None,
        claims=lambda settings, results: [],
        code=("dispatch",),
    )
    return dataclasses.replace(made, **changed)


class Watch:
    """Keeps what a run says of itself."""

    def __init__(self):
        self.seen = []

    def __call__(self, progress):
        self.seen.append(progress)

    @property
    def computed(self):
        return self.seen[-1].done - self.seen[0].done


def test_rows_come_in_the_order_of_the_points(tmp_path):
    results = run(small(), "smoke", out=tmp_path, workers=0)
    assert [row["load"] for row in results.rows] == list(LOADS)
    assert all(row["no_waiting_error"] <= row["stable_error"] for row in results.rows)


def test_what_is_known_is_not_computed_again(tmp_path):
    first = run(small(LOADS[:2]), "smoke", out=tmp_path, workers=0)
    watch = Watch()
    again = run(small(), "smoke", out=tmp_path, workers=0, progress=watch)
    assert watch.computed == 1
    assert again.rows[:2] == first.rows
    assert watch.seen[-1].done == watch.seen[-1].total == 3
    assert watch.seen[-1].share == 1.0
    assert watch.seen[-1].seconds_left == 0.0


def test_other_code_makes_rows_stale(tmp_path):
    run(small(), "smoke", out=tmp_path, workers=0)
    assert stored(small(), "smoke", out=tmp_path)[1] == 0
    changed = small(code=("dispatch", "site"))
    results, missing = stored(changed, "smoke", out=tmp_path)
    assert (len(results), missing) == (0, 3)
    watch = Watch()
    run(changed, "smoke", out=tmp_path, workers=0, progress=watch)
    assert watch.computed == 3
    # And what is stale is not kept for ever.
    lines = (tmp_path / "small" / "smoke" / "points.jsonl").read_text().splitlines()
    assert len(lines) == 3


def test_scales_are_kept_apart_and_an_unknown_one_refused(tmp_path):
    run(small(), "smoke", out=tmp_path, workers=0)
    assert stored(small(), "quick", out=tmp_path)[1] == 3
    with pytest.raises(ValueError, match="unknown scale 'tiny'"):
        run(small(), "tiny", out=tmp_path)


def test_another_seed_moves_every_seed_and_is_kept_beside(tmp_path):
    def drawn(loads):
        return [Point({"trial": k}, kept, {"seed": k + 1, "other": 7}) for k in range(3)]

    one = small(points=drawn)
    assert [row["got"] for row in run(one, "smoke", out=tmp_path, workers=0).rows] == [1, 2, 3]
    watch = Watch()
    other = run(one, "smoke", out=tmp_path, seed=5, workers=0, progress=watch)
    assert [row["got"] for row in other.rows] == [5, 6, 7]
    assert watch.computed == 3
    assert [row["got"] for row in stored(one, "smoke", out=tmp_path)[0].rows] == [1, 2, 3]
    assert (tmp_path / "small" / "smoke-seed-5" / "points.jsonl").exists()
    with pytest.raises(ValueError, match="the first seed is 1 or more, not 0"):
        run(one, "smoke", out=tmp_path, seed=0)


def kept(seed, other):
    return {"got": seed}


def test_points_without_a_seed_stay_what_they_are(tmp_path):
    assert seeded(points(LOADS), 9) == points(LOADS)


def test_a_failing_point_stops_no_other_and_is_named(tmp_path):
    loads = (0.4, 2.0, 0.6)
    with pytest.raises(RuntimeError, match=r"1 of 3 points of small failed.*2\.0.*ValueError"):
        run(
            small(points=lambda settings: [*points(loads[:1]), _broken(), *points(loads[2:])]),
            "smoke",
            out=tmp_path,
            workers=0,
        )
    whole, missing = stored(small((0.4, 0.6)), "smoke", out=tmp_path)
    assert (len(whole), missing) == (2, 0)


def _broken():
    arguments = {"system": FOUR_CLASSES.arguments(), "servers": 63, "target": 0.76, "load": 2.0}
    return Point({"load": 2.0}, tolerance, arguments)


def test_processes_give_what_one_alone_gives(tmp_path):
    alone = run(small(), "smoke", out=tmp_path / "a", workers=0)
    watch = Watch()
    together = run(small(), "smoke", out=tmp_path / "b", workers=2, progress=watch)
    assert together.rows == alone.rows
    assert watch.computed == 3


def test_a_failing_point_in_a_process_is_named(tmp_path):
    with pytest.raises(
        RuntimeError, match=r"1 of 1 points of small failed.*ValueError: 63 servers"
    ):
        run(small(points=lambda _: [_broken()]), "smoke", out=tmp_path, workers=1)


def test_ctrl_c_keeps_what_is_done_and_a_second_start_goes_on(tmp_path):
    command = ["study", "run", "wrong-pair", "--scale", "quick", "--workers", "1"]
    file = tmp_path / "wrong-pair" / "quick" / "points.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "inferway", *command, "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (file.exists() and file.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    one = study("wrong-pair")
    results, missing = stored(one, "quick", out=tmp_path)
    assert len(results) >= 2
    assert len(results) + missing == len(one.points(one.scales["quick"]))
