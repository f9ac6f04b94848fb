"""Copies of a variant on several devices of a node, served, told, recorded and replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_recording import ask_all

import inferway
from inferway.deployment import times_file
from inferway.dispatch import recordings
from inferway.live.overhead import ENOUGH, FEWEST

FILE = """
tasks:
  digits:
    accuracy_target: 0.6
    feedback: {}
    variants:
      tiny: {model: zoo://digits/tiny}
      small: {model: zoo://digits/small}
nodes:
  here:
    devices: {big: {hardware: cpu, cores: 2}, little: {hardware: cpu, cores: 1}}
    overhead: 200 us
    instances: {digits/tiny: {big: 2, little: 1}, digits/small: {big: 1}}
    buffer: 8
dispatch: {policy: POLICY}
"""


def served(folder: Path, policy: str = "priced") -> inferway.Deployment:
    file = folder / "digits.yaml"
    file.write_text(FILE.replace("POLICY", policy))
    return inferway.load(file)


@pytest.mark.parametrize("policy", ["priced", "deadline"])
def test_copies_on_several_devices_answer_as_one_variant(
    start: Any, tmp_path: Path, policy: str
) -> None:
    running = start(deployment=served(tmp_path, policy), record=tmp_path / "run")
    pool = running.site.pool
    assert set(pool.variants) == {"tiny:big", "tiny:little", "small"}
    assert set(pool.versions) == {"tiny", "small"}
    assert pool.mask_of("tiny").bit_count() == 2
    metadata = json.loads(running.get("/v2/models/digits").body)
    assert set(metadata["versions"]) == {"tiny", "small"}
    statuses = ask_all(running, 600)
    assert statuses[200] > 100
    status = json.loads(running.get("/status", admin=True).body)
    assert set(status["tasks"]["digits"]["variants"]) == set(pool.variants)
    book = running.site.answers
    assert set(book.measured) == {"tiny", "small"}
    running.wait(running.server.stop())
    (recorded,) = recordings(tmp_path / "run")
    found = inferway.replay(recorded, requests=None)
    assert found.differences == ()
    assert found.requests >= 600


def test_both_devices_of_a_variant_take_its_requests(start: Any, tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    running = start(deployment=served(tmp_path), times=times)
    pool = running.site.pool
    ask_all(running, 600)
    ended = running.call(
        lambda: {
            name: sum(counts[column] for counts in pool.stats.outcomes)
            for name, column in zip(pool.variants, pool.columns, strict=True)
        }
    )
    assert ended["tiny:big"] > 0
    assert ended["tiny:little"] > 0
    running.wait(running.server.stop())
    kept = json.loads(times.read_text())["services"]
    assert {key.rpartition(" on ")[2] for key in kept} >= {"cpu at big", "cpu at little"}


def test_predictions_have_the_overhead(start: Any, tmp_path: Path) -> None:
    dispatcher = start(deployment=served(tmp_path)).site.pool.dispatcher
    for server, k in enumerate(dispatcher.site.server_class.tolist()):
        # It is of the first device with cores.
        lead_s = 200e-6 if dispatcher.fleet.runs_on[k] == "big" else 0.0
        model_s = dispatcher.site.row_s[server, 0]
        assert dispatcher.predict(server, 1, 0.0) == pytest.approx((0.0, model_s + lead_s))


def measure(running: Any) -> float:
    """Have a server measure what requests take, as it does each second; s."""
    meter = running.server.meter
    running.call(meter.look)
    while meter.estimate.intervals < FEWEST:
        ask_all(running, 2 * ENOUGH)
        running.call(meter.look)
    seconds = meter.estimate.seconds
    assert seconds is not None
    return float(seconds)


def test_what_requests_take_is_measured_and_predicted(start: Any, tmp_path: Path) -> None:
    text = FILE.replace("    overhead: 200 us\n", "").replace("POLICY", "priced")
    (tmp_path / "digits.yaml").write_text(text)
    (tmp_path / "stated.yaml").write_text(FILE.replace("POLICY", "priced"))
    times = tmp_path / "times.json"
    deployment = inferway.load(tmp_path / "digits.yaml")
    running = start(deployment=deployment, times=times, record=tmp_path / "run")

    def leads_s() -> dict[str, float]:
        dispatcher = running.site.pool.dispatcher
        pairs = zip(dispatcher.fleet.runs_on, dispatcher.site.devices.lead_s, strict=True)
        return {device: float(lead_s) for device, lead_s in pairs}

    def told() -> Any:
        return json.loads(running.get("/status", admin=True).body).get("overhead")

    assert leads_s() == {"big": 0.0, "little": 0.0}
    assert told() is None
    assert "request_overhead" not in running.get("/metrics", admin=True).body.decode()
    ask_all(running, 50)
    seconds = measure(running)
    assert seconds > 0.0
    assert leads_s() == {"big": seconds, "little": 0.0}
    assert told() == {
        **{"seconds": seconds, "by": "measured"},
        **{"measured_s": seconds, "intervals": FEWEST},
    }
    metric = f"inferway_request_overhead_seconds {seconds}"
    assert metric in running.get("/metrics", admin=True).body.decode()
    ask_all(running, 50)
    # Copies that come count on with it; a file that says how much has the last word.
    running.wait(running.server.apply(deployment))
    assert leads_s() == {"big": seconds, "little": 0.0}
    running.wait(running.server.apply(inferway.load(tmp_path / "stated.yaml")))
    assert leads_s() == {"big": 200e-6, "little": 0.0}
    measure(running)
    assert leads_s() == {"big": 200e-6, "little": 0.0}
    assert told()["by"] == "file"
    running.wait(running.server.stop())
    for recorded in recordings(tmp_path / "run"):
        found = inferway.replay(recorded, requests=None)
        assert (found.losses, found.differences) == ((), ())


def test_what_requests_take_is_kept_for_the_next_run(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text = FILE.replace("    overhead: 200 us\n", "").replace("POLICY", "priced")
    (tmp_path / "digits.yaml").write_text(text)
    running = start(deployment=inferway.load(tmp_path / "digits.yaml"), times=times_file())
    running.call(running.server.meter.begin)
    seconds = measure(running)
    running.wait(running.server.stop())
    deployment = inferway.load(tmp_path / "digits.yaml")
    measured = deployment.nodes["here"].measured_overhead
    assert measured is not None
    assert measured.own_s == pytest.approx(seconds, rel=0.5)
    # Simulations count what models take beyond their profiles as well; servers measure that.
    kept_s = measured.own_s
    assert deployment.nodes["here"].leads_s["big"] == measured.seconds >= kept_s
    again = start(deployment=deployment, times=times_file())
    told = json.loads(again.get("/status", admin=True).body)["overhead"]
    assert (told["seconds"], told["by"]) == (kept_s, "earlier run")
    assert set(again.site.pool.dispatcher.site.devices.lead_s) == {0.0, kept_s}
    forgetful = start(deployment=deployment)
    assert set(forgetful.site.pool.dispatcher.site.devices.lead_s) == {0.0}


BY_HARDWARE = """
tasks:
  digits:
    deadline: 1 s
    variants:
      tiny:
        model: zoo://digits/tiny
        service: {fast: {mean: 2 ms}, slow: {mean: 20 ms}, plain: {mean: 9 ms}}
        batch:
          fast: {sizes: [1, 4], service: [2 ms, 3 ms]}
          slow: {sizes: [2], service: [39 ms]}
nodes:
  here:
    devices: {big: {hardware: fast, cores: 2}, little: {hardware: LITTLE, cores: 1}}
    overhead: 200 us
    instances: {digits/tiny: {big: 2, little: 1}}
"""


def test_each_device_batches_as_its_hardware_does(start: Any, tmp_path: Path) -> None:
    """Predictions, what is told of the fleet and a renewed file go by the hardware's own table."""
    file = tmp_path / "digits.yaml"
    file.write_text(BY_HARDWARE.replace("LITTLE", "plain"))
    running = start(deployment=inferway.load(file))

    def told() -> dict[str, tuple[list[int] | None, int]]:
        """By class, the sizes that are told, and the largest batch that is formed."""
        fleet = json.loads(running.get("/deployment/digits", admin=True).body)
        rules = running.site.pool.options.rules
        return {
            one["name"]: (one["batch"] and one["batch"]["sizes"], rules[k].largest)
            for k, one in enumerate(fleet["classes"])
        }

    assert told() == {"tiny:big": ([1, 4], 4), "tiny:little": (None, 1)}
    dispatcher = running.site.pool.dispatcher
    for k, name in enumerate(dispatcher.fleet.variants):
        # The overhead is of the first device with cores, once for each row of a run.
        rows, run_s = (4, 3.8e-3) if name == "tiny:big" else (1, 9e-3)
        predicted = dispatcher.predict(int(dispatcher.site.first[k]), rows, 0.0)
        assert predicted == pytest.approx((0.0, run_s))
    assert ask_all(running, 200)[200] > 0
    # The same file, whose little device is of a hardware that has a table.
    file.write_text(BY_HARDWARE.replace("LITTLE", "slow"))
    running.wait(running.server.apply(inferway.load(file)))
    assert told() == {"tiny:big": ([1, 4], 4), "tiny:little": ([2], 2)}
    assert ask_all(running, 20)[200] > 0


DRIVEN = """
dispatch: {policy: deadline}
workload: {digits: {arrivals: {process: poisson, rate: 200/s}}}
"""


def test_a_twin_beside_a_drive_tells_shares_of_variants(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers name the variant, whichever device it was on, and so does the twin's table."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text = FILE.partition("dispatch:")[0].replace("    overhead: 200 us\n", "") + DRIVEN
    (tmp_path / "digits.yaml").write_text(text)
    deployment = inferway.load(tmp_path / "digits.yaml")
    running = start(deployment=deployment)

    def drive(host: str = "127.0.0.1", **options: Any) -> Any:
        url = f"http://{running.url}".replace("127.0.0.1", host)
        return inferway.drive(deployment, url, duration=1.0, twin=True, **options)

    plain = drive()
    shares = plain.to_json()["digits"]["twin"]["shares"]
    assert set(shares) <= {"tiny", "small"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(plain.to_json()["digits"]["shares"]) <= {"tiny", "small"}
    # What a server here has measured is of the twin, but where it is to forget that.
    measuring = start(deployment=deployment, times=times_file())
    measuring.call(measuring.server.meter.begin)
    measure(measuring)
    measuring.wait(measuring.server.stop())
    kept = json.loads(times_file().read_text())
    for one in kept["overheads"].values():
        one |= {"seconds": 4e-3, "beyond_profile_s": 4e-3}
    times_file().write_text(json.dumps(kept))
    told = drive().twin["digits"].mean_s
    forgotten = drive(forget=True).twin["digits"].mean_s
    assert told > forgotten + 3e-3
    assert forgotten == pytest.approx(plain.twin["digits"].mean_s)
    # Of a server that is elsewhere, nothing is known here.
    monkeypatch.setattr("inferway.experiments.driven.is_here", lambda host: host != "127.0.0.1")
    assert drive().twin["digits"].mean_s == pytest.approx(forgotten)


def test_another_file_takes_over_from_copies_on_several_devices(start: Any, tmp_path: Path) -> None:
    running = start(deployment=served(tmp_path))
    ask_all(running, 96)
    before = sum(map(sum, running.site.stats.outcomes))
    one = FILE.replace("{big: 2, little: 1}", "{little: 1}").replace("POLICY", "priced")
    (tmp_path / "other.yaml").write_text(one)
    running.wait(running.server.apply(inferway.load(tmp_path / "other.yaml")))
    assert set(running.site.pool.variants) == {"tiny", "small"}
    assert ask_all(running, 96)[200] > 0
    assert sum(map(sum, running.site.stats.outcomes)) > before
