"""Placement policies one after another on five nodes of this machine, with the same requests.

The nodes are processes of their own that stand as far from each other as the file says, by delays
that they add themselves. Each policy starts anew, is driven for some slots by one generator, and is
stopped; both twins then predict, from the file alone, what was measured. In the middle of the run
other tasks become popular. Where none do, static greedy, which is told the mean requests of all
slots beforehand, gains the most; here it is left behind by what adapts and was told nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

import inferway
from inferway.deployment import Deployment
from inferway.deployment.policies import HINDSIGHT
from inferway.experiments.claim import Claim
from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.figure import save
from inferway.experiments.runner import Point, in_turn
from inferway.experiments.text import milliseconds, percent, relative, table
from inferway.loadgen import NetworkRecord, drive_network, network_summary
from inferway.machine import cores
from inferway.studies.live.comparison import (
    ABOVE_ZERO,
    TASK,
    Contest,
    LiveComparison,
    Onlooker,
    Progress,
    Row,
    SeenServer,
    Steps,
    late,
    ours,
    with_service,
    write,
)
from inferway.studies.live.servers import DemoError, NodesWatch, Reading, network

# The policy that places nothing; its gain is what serving and forwarding cost.
REPOSITORY: Final = "repository"
STATIC: Final = "static-greedy"  # The winner where nothing changes
POLICIES: Final = ("exchange", "infida", STATIC, REPOSITORY)
SLOTS: Final = 6  # for each policy
LEAST: Final = 5 / 6  # of these, however long nodes take to start
# What the whole comparison may take: below three minutes, also where compiling takes long.
WITHIN_S: Final = 165.0
CLOSE: Final = 0.1  # how far the measured gain may be from the event twin's
# Share of the machine's CPU time that nodes and generator may take, for the gain to say much.
MOST_CPU: Final = 0.5
# How long a model of the zoo takes from the order to its first request: the files are here, and
# the nodes' log had 10 to 50 ms between one copy and the next.
LOAD_S: Final = 0.03
# Of a row, in JSON. Rows have more: gains and moved bytes by slot; how often popularity `changes`;
# `twin`, what both twins say, None where not run; `cpu_share`, the CPU time of all nodes and the
# generator, of what the machine's cores have; `other_share`, that of all other programs, None where
# nobody says it.
PRINTED: Final = (
    *("policy", "ntag_ms", "predicted_ntag_ms", "slot_ntag_ms", "latency_s", "accuracy"),
    *("moved_bytes_per_slot", "lost", "errors"),
)

_FILE: Final = "network.yaml"
_NAMES: Final = {REPOSITORY: "repository-only"}
# Guesses of how long the parts besides the requests take.
_CALIBRATION_S: Final = 8.0
_START_S: Final = 10.0
_AROUND_S: Final = 4.0  # waiting for a slot to begin, the last answers, stopping the nodes
_TWIN_S: Final = 2.0


def gain_table(rows: Sequence[Row], slots: int, slot_s: float, rate_per_s: float) -> Table:
    """Lay out gains and latencies, live and in both twins."""

    def cells(row: Row) -> list[str]:
        gains, latency_s, twin = ["-", "", "-", "-"], None, row["twin"]
        if twin is not None:
            error, apart_ms = gain_error(row), row["ntag_ms"] - twin["ntag_ms"]
            apart = f"{apart_ms:+.1f} ms" if error is None else relative(error)
            by_slots = (f"{twin[name]:.1f}" for name in ("slot_ntag_ms", "fixed_ntag_ms"))
            gains = [f"{twin['ntag_ms']:.1f}", apart, *by_slots]
            latency_s = twin["latency_s"]
        latencies = milliseconds(row["latency_s"]), milliseconds(latency_s)
        return [row["policy"], f"{row['ntag_ms']:.1f}", *gains, *latencies]

    return table(
        "Five nodes, live and in the twins: gain per request and latency, in ms",
        ["policy", "gain", "event twin", "apart", "slot twin", "fixed", "latency", "twin"],
        [cells(row) for row in rows],
        caption=(
            f"{slots} slots of {slot_s:g} s for each policy, {rate_per_s:.0f} requests/s, the same "
            "ones. Gain (NTAG): what a request costs less than the cloud alone would let it cost, "
            "a point of inaccuracy counting as a millisecond. Fixed: the slot twin's where "
            f"popularity stays as it begins. {STATIC} knows the mean requests of all slots "
            "beforehand, with their changes; the others have to see them first."
        ),
    )


def service_table(rows: Sequence[Row]) -> Table:
    """Lay out what was answered, and what it took."""

    def moved(row: Row | None) -> str:
        return "-" if row is None else f"{row['moved_bytes_per_slot'] / 2**20:.2f}"

    def cells(row: Row) -> list[str]:
        twin = row["twin"]
        accuracies = percent(row["accuracy"]), percent((twin or {}).get("accuracy"))
        counts = moved(row), moved(twin), str(row["lost"]), str(row["errors"])
        shares = percent(row["cpu_share"], 0), percent(row["other_share"], 0)
        return [row["policy"], *accuracies, *counts, *shares]

    return table(
        "What was answered, and what it took",
        ["policy", "accuracy", "twin", "MiB/slot", "twin", "lost", "errors", "CPU", "others'"],
        [cells(row) for row in rows],
        caption=(
            f"Of {max(row['offered'] for row in rows)} requests each. Accuracy by true "
            "labels, the event twin's by profiles; bytes that nodes loaded; CPU of all nodes "
            f"and the generator, of {cores()} cores; others': of all other programs."
        ),
    )


def gain_error(row: Row) -> float | None:
    """By how much the gain is above the event twin's, as a share of that."""
    known = row["twin"] is not None and row["policy"] != REPOSITORY
    return float(row["ntag_ms"] / row["twin"]["ntag_ms"] - 1.0) if known else None


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Check what is to be shown; nothing about policies without a prediction."""
    found = []
    others = [row["ntag_ms"] for row in rows if row["policy"] != REPOSITORY]
    for row in rows:
        if (error := gain_error(row)) is not None:
            says = f"the gain of {row['policy']} is within {CLOSE:.0%} of the event twin's"
            found.append(ours(says=says, value=abs(error), at_most=CLOSE, why=f"{error:+.1%}"))
        elif row["twin"] is not None and others:
            why = (
                f"which is {row['ntag_ms'] - row['twin']['ntag_ms']:+.1f} ms from the event twin's"
            )
            says = f"every other policy gains more than {REPOSITORY}"
            margin_ms = min(others) - row["ntag_ms"]
            found.append(ours(says=says, value=margin_ms, at_least=ABOVE_ZERO, why=why))
    return found + _left_behind(rows)


def _left_behind(rows: Sequence[Row]) -> list[Claim]:
    """Check that what wins where nothing changes falls behind what adapts where something does."""
    static = next((row for row in rows if row["policy"] == STATIC), None)
    adapting = [row for row in rows if row["policy"] not in (*HINDSIGHT, REPOSITORY)]
    if static is None or not static["changes"] or not adapting:
        return []

    def listed(gains_ms: Mapping[str, float]) -> str:
        return ", ".join(f"{policy} {gain_ms:.1f} ms" for policy, gain_ms in gains_ms.items())

    live_ms = {row["policy"]: row["ntag_ms"] for row in (*adapting, static)}
    best = max(adapting, key=lambda row: float(row["ntag_ms"]))["policy"]
    known = f"{STATIC} knows the mean requests of all slots beforehand"
    found = [
        ours(
            says=f"where popularity changes, {best} gains more than {STATIC}",
            value=live_ms[best] - live_ms[STATIC],
            at_least=ABOVE_ZERO,
            why=f"{listed(live_ms)}; {known}, with their changes, and {best} sees them first",
        )
    ]
    if all(row["twin"] is not None for row in (*adapting, static)):
        fixed_ms = {row["policy"]: row["twin"]["fixed_ntag_ms"] for row in (*adapting, static)}
        others_ms = max(fixed_ms[row["policy"]] for row in adapting)
        found.append(
            ours(
                says=f"where it stays as it begins, {STATIC} gains the most, by the slot twin",
                value=fixed_ms[STATIC] - others_ms,
                at_least=ABOVE_ZERO,
                why=f"{listed(fixed_ms)}; there, too, {known}",
            )
        )
    return found


def changes_within(deployment: Deployment, duration_s: float) -> int:
    """Count how often other tasks become popular within so many seconds."""
    popularity = deployment.workload[TASK].popularity
    if popularity is None or popularity.sliding is None:
        return 0
    return max(0, math.ceil(duration_s / popularity.sliding.every) - 1)


def unchanged(deployment: Deployment) -> Deployment:
    """Return the deployment with a popularity that stays as it begins."""
    popularity = deployment.workload[TASK].popularity
    if popularity is None or popularity.sliding is None:
        return deployment
    still: dict[str, Any] = {f"workload.{TASK}.popularity": {"zipf": popularity.zipf}}
    return deployment.with_(**still)


def compare_placements(
    *,
    out: Path = Path("out"),
    seed: int = 1,
    policies: Sequence[str] = POLICIES,
    slots: int = SLOTS,
    within_s: float = WITHIN_S,
    progress: Progress | None = None,
    look: Onlooker | None = None,
) -> LiveComparison:
    """Run a delivery network on this machine under one placement policy after another.

    Every policy gets the same images at the same times at the same nodes. Service times are
    measured at the start, and are those that nodes, placement and twins go by.

    Parameters
    ----------
    out
        Folder for the figure, the requests and slots (Parquet) and the deployment file; made if
        needed.
    seed
        Of the requests and the choice of images.
    policies
        Which to run, in this order: `repository`, or names of `inferway.placement.POLICIES`.
    slots
        How many to drive each policy for.
    within_s
        Drive for fewer slots, so that all ends within this time, seconds; for `LEAST` of them in
        any case, so that some come after popularity has changed.
    progress
        Called with what is being done and the part of all that is done, 0..1.
    look
        Called with what is being done and the nodes there are, whenever either changes.

    Returns
    -------
    LiveComparison
        After Ctrl-C of those policies for which something is known.

    Raises
    ------
    DemoError
        When nodes do not start or answer nothing.
    KeyboardInterrupt
        After Ctrl-C before anything was known.
    """
    out.mkdir(parents=True, exist_ok=True)
    steps, interrupted = Steps(progress, 0.0, look), False
    by_policy: dict[str, Row] = {}
    records: dict[str, NetworkRecord] = {}
    with Contest.of(_FILE, seed, within_s, steps) as contest:
        placement, count = contest.deployment.placement, len(policies)
        assert placement is not None
        slot_s = float(placement.options["slot"])
        steps.expect(_CALIBRATION_S + count * (slots * slot_s + _START_S + _AROUND_S + _TWIN_S))
        service_s = contest.alone(_CALIBRATION_S, 0.6)
        left = write(with_service(contest.deployment, service_s), out / _FILE)
        deployment = inferway.load(left)

        def drive(policy: str) -> None:
            """Keep what a policy's nodes answer in whole slots, also where Ctrl-C ends it."""
            nonlocal slots
            began_s = time.monotonic()
            steps.begin(f"{policy}: starting the nodes", _START_S)
            data = placed(deployment, _NAMES.get(policy, policy), slots)
            file = write(data, contest.folder / f"{policy}.yaml")
            with network(inferway.load(file), contest.folder / policy) as nodes:
                if not by_policy:
                    # The other networks may take a fifth longer to start than the first.
                    others_s = (count - 1) * 1.2 * (time.monotonic() - began_s)
                    others_s += count * (_AROUND_S + _TWIN_S)
                    left_s = contest.end_s - time.monotonic() - others_s
                    fit = max(math.floor(left_s / count / slot_s), math.ceil(LEAST * slots))
                    slots = min(fit, slots)
                    steps.expect(others_s + count * slots * slot_s)
                seen = [SeenServer(f"http://{at.admin}") for at in nodes.addresses.values()]
                steps.begin(policy, slots * slot_s + _AROUND_S)
                steps.show(seen)
                with NodesWatch(nodes, slot_s) as watch:
                    record = drive_network(
                        deployment,
                        {node: nodes.url(node) for node in nodes.nodes},
                        duration_s=slots * slot_s,
                        seed=seed,
                        with_slots=True,
                        progress=lambda doing, part: steps.tell(f"{policy}: {doing}", part),
                    )
                steps.show(one._replace(ended=True) for one in seen)
            whole = slots
            if record.interrupted:
                whole = math.floor(record.sent_s[-1] / slot_s) if len(record) else 0
                record = record.only(record.slot < whole)
            if whole:
                records[policy] = record
                usage = watch.usage(record.began_s, whole)
                by_policy[policy] = _row(policy, record, *usage, deployment)
            if record.interrupted:
                raise KeyboardInterrupt

        def foresee(policy: str) -> None:
            """Have both twins predict what a policy led to."""
            row, entered, doing = by_policy[policy], 0, f"{policy}: simulating"
            steps.begin(doing, _TWIN_S)

            def tell(number: int) -> None:
                nonlocal entered
                entered += number
                steps.tell(doing, entered / row["offered"])

            name = _NAMES.get(policy, policy)
            row["twin"] = twin = predict(deployment, name, slots=slots, seed=seed, progress=tell)
            row |= {"predicted_ntag_ms": twin["ntag_ms"], "slot_ntag_ms": twin["slot_ntag_ms"]}

        calls = [(call, one) for call in (drive, foresee) for one in policies]
        try:
            in_turn(Point({"policy": one}, call, {"policy": one}) for call, one in calls)
        except KeyboardInterrupt:
            if not by_policy:
                raise
            interrupted = True
    rows = list(by_policy.values())
    rate_per_s = float(np.mean([row["offered"] / len(row["gain_ms"]) for row in rows])) / slot_s
    drawn, frames = draw(out / "network", rows, slot_s), _written(out, rows, records, slot_s)
    written = [str(path) for path in (*drawn, *frames, left)]
    return contest.result(
        rows=rows,
        found={
            "policies": [{name: row[name] for name in PRINTED} for row in rows],
            "slots": slots,
            "slot_s": slot_s,
            "service_s": service_s,
            "cpu_share": {row["policy"]: row["cpu_share"] for row in rows},
            "other_share": {row["policy"]: row["other_share"] for row in rows},
            "files": written,
            "interrupted": interrupted,
        },
        claims=claims(rows),
        tables=[gain_table(rows, slots, slot_s, rate_per_s), service_table(rows)],
        closing=["\n" + "\n".join(written)],
        warnings=_warnings(rows),
        interrupted=interrupted,
    )


def placed(deployment: Deployment, policy: str, slots: int) -> dict[str, Any]:
    """Return the data of the deployment under a placement policy, as nodes can run it.

    One that knows the requests beforehand gives the section `nodes` that it leads to: nodes run
    just that, as they cannot know how long they will be asked.
    """
    from ruamel.yaml import YAML

    data = deployment.with_(placement=policy).source.data
    if policy not in HINDSIGHT:
        return data
    nodes: dict[str, Any] = YAML(typ="safe").load(
        inferway.place(deployment, policy=policy, slots=slots).yaml
    )
    return {name: part for name, part in data.items() if name != "placement"} | nodes


def predict(
    deployment: Deployment,
    policy: str,
    *,
    slots: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Row:
    """Simulate a policy slot by slot and request by request, with this machine's service times.

    With the seed that the nodes were driven by, the event twin has the very requests that they got,
    and the slot twin as many by the same law. `progress` is called with how many requests more have
    entered the event twin, now and then.
    """
    from inferway.twin.network.events import simulate_events
    from inferway.twin.result import NetworkResult
    from inferway.twin.slots import simulate_slots

    def by_slot(result: NetworkResult) -> list[float]:
        gain_ms = result.gain / np.where(result.requests > 0, result.requests, np.nan)
        return [float(one) for one in gain_ms]

    run: dict[str, Any] = {"slots": slots, "seed": seed, "policy": policy}
    rough, fixed = (simulate_slots(one, **run) for one in (deployment, unchanged(deployment)))
    fine = simulate_events(
        deployment, **run, fetch_rate=math.inf, start_s=LOAD_S, progress=progress
    )
    return {
        "ntag_ms": fine.ntag_ms,
        "slot_ntag_ms": rough.ntag_ms,
        "fixed_ntag_ms": fixed.ntag_ms,
        "latency_s": fine.latency_s,
        "accuracy": fine.accuracy,
        "moved_bytes_per_slot": fine.mu_bytes_per_slot,
        "gain_ms": by_slot(fine),
        "slot_gain_ms": by_slot(rough),
    }


def _row(
    policy: str,
    record: NetworkRecord,
    usage: Reading,
    moved_bytes: Sequence[float],
    deployment: Deployment,
) -> Row:
    found = network_summary(record, deployment)
    whole = found.whole
    if not whole.answered or whole.accuracy is None or whole.profile_accuracy is None:
        raise DemoError(
            f"{policy}: none of {whole.offered} requests was answered: {whole.failures}"
        )
    have_s, own_s = usage.time_s * cores(), usage.cpu_s + record.cpu_s
    other_s = None if usage.machine_s is None else max(0.0, usage.machine_s - own_s)
    return {
        "policy": policy,
        "ntag_ms": found.gain.ntag_ms,
        "predicted_ntag_ms": None,
        "slot_ntag_ms": None,
        "latency_s": whole.mean_s,
        "accuracy": whole.accuracy,
        "profile_accuracy": whole.profile_accuracy,
        "moved_bytes_per_slot": float(np.mean(moved_bytes)),
        "offered": whole.offered,
        "lost": whole.offered - whole.answered,
        "errors": whole.failed,
        "gain_ms": found.gain.gain_ms.tolist(),
        "changes": changes_within(deployment, len(found.gain.gain_ms) * record.slot_s),
        "moved_bytes": moved_bytes,
        "cpu_share": own_s / have_s,
        "other_share": None if other_s is None else other_s / have_s,
        "send_lag_p99_s": whole.send_lag_p99_s,
        "twin": None,
    }


def _written(
    out: Path, rows: Sequence[Row], records: Mapping[str, NetworkRecord], slot_s: float
) -> tuple[Path, Path]:
    import pandas as pd

    requests = pd.concat(
        [pd.DataFrame(one.to_frame()).assign(policy=policy) for policy, one in records.items()],
        ignore_index=True,
    )
    # Names repeat on every row.
    names = [name for name in requests.columns if requests[name].dtype == object]
    requests = requests.astype(dict.fromkeys(names, "category"))

    def by_slot(row: Row) -> pd.DataFrame:
        count = len(row["gain_ms"])
        twin = row["twin"] or dict.fromkeys(("gain_ms", "slot_gain_ms"), [math.nan] * count)
        return pd.DataFrame(
            {
                "policy": pd.Categorical([row["policy"]] * count),
                "slot": range(count),
                "time_s": [slot * slot_s for slot in range(count)],
                "gain_ms": row["gain_ms"],
                "predicted_gain_ms": twin["gain_ms"][:count],
                "slot_gain_ms": twin["slot_gain_ms"][:count],
                "moved_bytes": row["moved_bytes"],
            }
        )

    paths = (out / "network-requests.parquet", out / "network-slots.parquet")
    for frame, path in zip((requests, pd.concat(map(by_slot, rows))), paths, strict=True):
        frame.to_parquet(path, index=False)
    return paths


def draw(path: Path, rows: Sequence[Row], slot_s: float) -> tuple[Path, Path]:
    """Draw the gain by slot of each policy, measured and by both twins; PNG and SVG."""
    curves: dict[str, list[Curve]] = {}
    for row in rows:
        twin = row["twin"] or {}
        looks = {
            "measured": (row["gain_ms"], "-"),
            "event twin": (twin.get("gain_ms"), "--"),
            "slot twin": (twin.get("slot_gain_ms"), ":"),
        }
        curves[row["policy"]] = [
            Curve(label, [(k + 0.5) * slot_s for k in range(len(y))], y, color=color, dash=dash)
            for color, (label, (y, dash)) in enumerate(looks.items())
            if y is not None
        ]
    every = [y for shown in curves.values() for one in shown for y in one.y if math.isfinite(y)]
    low, high = min([0.0, *every]), max([0.0, *every])
    room = 0.05 * max(high - low, 1.0)
    shown = [
        Panel(policy, "time, s", "gain per request, ms", own, limits_up=(low - room, high + room))
        for policy, own in curves.items()
    ]
    title = "Gain by slot, the same requests for each policy"
    return save(panels(shown, columns=2, title=title), path)


def _warnings(rows: Sequence[Row]) -> list[str]:
    said: dict[str, bool] = {}
    for row in rows:
        policy, share, other_share = row["policy"], row["cpu_share"], row["other_share"] or 0.0
        said |= {
            f"{policy}: nodes and generator took {share:.0%} of this machine's CPU time, more than "
            f"{MOST_CPU:.0%}: they wait for each other, so the gain says little": share > MOST_CPU,
            f"{policy}: other programs took {other_share:.0%} of this machine's CPU time, so "
            "latencies are partly theirs": other_share > 0.15,
            f"{policy}: {late(row)}, and its own lateness counts": row["send_lag_p99_s"] > 5e-3,
        }
    return [sentence for sentence, holds in said.items() if holds]
