"""What a node remembers."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.deployment import load
from inferway.live.node.balances import Balance
from inferway.live.node.state import DamagedError, NodeState, Saved, StateError, fingerprint
from inferway.network import network_of
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.counted import Counters
from inferway.placement.infida import Infida, InfidaState


def saved(slot: int = 7, pairs: int = 5) -> Saved:
    numbers = np.random.default_rng(slot)
    infida = InfidaState(
        y=numbers.random(pairs),
        spread=np.array([np.nextafter(0.0, 1.0)]),
        steep=np.array([1e300]),
        x=numbers.integers(0, 2, pairs).astype(np.uint8),
        slot=np.array([slot, slot - 1]),
    )
    counters = Counters('["reaching", [["größte", ["edge"], [0]]]]', numbers.random(pairs))
    balances = {"digits": Balance(0.9, -0.1 * slot), "größte": Balance(0.1 + 0.2, 1e-300)}
    loaded = ("digits/tiny#0", "digits/größte#1")
    return Saved(infida, loaded, b"\0\xff random", counters, balances)


def same(one: Saved | None, other: Saved) -> bool:
    if one is None or (one.counters is None) != (other.counters is None):
        return False
    pairs: list[tuple[Any, Any]] = [*zip(one.infida, other.infida, strict=True)]
    if one.counters is not None and other.counters is not None:
        pairs.append((one.counters.counts, other.counters.counts))
        if one.counters.of != other.counters.of:
            return False
    return (one.loaded, one.random, one.balances) == (
        other.loaded,
        other.random,
        other.balances,
    ) and all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    file = tmp_path / "node" / "state.db"
    state = NodeState(file, "one")
    assert state.load() is None
    state.save(saved(1))
    state.save(saved(2, pairs=0))
    state.save(saved(3))
    assert same(state.load(), saved(3))
    state.close()
    state = NodeState(file, "one")
    loaded = state.load()
    assert same(loaded, saved(3))
    assert loaded is not None
    assert all(array.flags.writeable for array in loaded.infida)
    state.close()
    assert [path.name for path in file.parent.iterdir()] == ["state.db"]


def test_a_copy_does_not_change_with_the_state(tmp_path: Path) -> None:
    infida = saved().infida
    counters, balances = Counters("", np.ones(3)), {"a": Balance(0.5, 1.0)}
    copy = Saved.copied(infida, ["a"], b"", counters, balances)
    infida.y[:], infida.x[:], infida.slot[:], counters.counts[:] = 9.0, 9, 9, 9.0
    balances.clear()
    counters = Counters("", np.ones(3))
    assert same(copy, Saved(saved().infida, ("a",), b"", counters, {"a": Balance(0.5, 1.0)}))


def version_1(file: Path, saved: Saved, *, whose: str = "one", damaged: bool = False) -> None:
    """Write a state as version 1 did: without counters, without balances."""
    names = ("y", "spread", "steep", "x", "slot", "loaded", "random")
    arrays = [
        np.ascontiguousarray(array, dtype).tobytes()
        for array, dtype in zip(saved.infida, ("<f8", "<f8", "<f8", "u1", "<i8"), strict=True)
    ]
    row: list[Any] = [*arrays, json.dumps(saved.loaded), saved.random]
    digest = hashlib.sha256(whose.encode())
    for part in row:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    checksum = digest.hexdigest()[damaged:]
    with closing(sqlite3.connect(file)) as base, base:
        base.execute("PRAGMA journal_mode = WAL")
        columns = ", ".join(f"{name} NOT NULL" for name in names)
        base.execute(
            "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), "
            f"fingerprint NOT NULL, {columns}, checksum NOT NULL)"
        )
        marks = ", ".join("?" * (len(row) + 3))
        base.execute(f"INSERT INTO state VALUES ({marks})", (1, whose, *row, checksum))
        base.execute(f"PRAGMA application_id = {0x494E4657}")
        base.execute("PRAGMA user_version = 1")


def test_a_state_of_version_1_is_taken_up(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    version_1(file, saved(4))
    for _ in range(2):
        state = NodeState(file, "one")
        assert state.damage == ""
        assert same(state.load(), saved(4)._replace(counters=None, balances={}))
        state.close()
    state = NodeState(file, "one")
    state.save(saved(5))
    assert same(state.load(), saved(5))
    state.close()
    version_1(tmp_path / "other.db", saved(4), whose="other")
    state = NodeState(tmp_path / "other.db", "one")
    with pytest.raises(StateError, match="remembers another network"):
        state.load()
    state.close()


def test_a_damaged_state_of_version_1_is_told(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    version_1(file, saved(4), damaged=True)
    state = NodeState(file, "one")
    assert state.damage == (
        f"the node's state in {file} is damaged: its content is not what was written"
    )
    assert state.load() is None
    state.save(saved(5))
    state.close()
    state = NodeState(file, "one")
    assert state.damage == ""
    assert same(state.load(), saved(5))
    state.close()


def test_another_networks_state_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved())
    state.close()
    state = NodeState(file, "other")
    with pytest.raises(StateError, match="remembers another network, or another node of it: move"):
        state.load()
    state.close()


def test_two_nodes_cannot_share_a_file(tmp_path: Path) -> None:
    state = NodeState(tmp_path / "state.db", "one")
    with pytest.raises(StateError, match="another process has it open; give each node a file"):
        NodeState(tmp_path / "state.db", "one")
    state.close()
    NodeState(tmp_path / "state.db", "one").close()


def test_files_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database" * 100)
    with pytest.raises(StateError, match="file is not a database; move it away"):
        NodeState(text, "one")
    assert text.read_text() == "no database" * 100
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE state (theirs)")
    base.close()
    with pytest.raises(StateError, match="cannot be used: it is another program's database"):
        NodeState(other, "one")
    with pytest.raises(StateError, match="cannot be opened: unable to open"):
        NodeState(tmp_path, "one")


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    NodeState(file, "one").close()
    with closing(sqlite3.connect(file)) as base, base:
        base.execute("PRAGMA user_version = 3")
    with pytest.raises(StateError, match="it has version 3, and this Inferway 2"):
        NodeState(file, "one")


def test_content_that_has_rotted_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved())
    state.close()
    content = bytearray(file.read_bytes())
    place = content.index(saved().infida.y.tobytes())
    content[place + 3] ^= 1
    file.write_bytes(content)
    state = NodeState(file, "one")
    with pytest.raises(DamagedError, match="is damaged: its content is not what was written"):
        state.load()
    state.save(saved(8))
    assert same(state.load(), saved(8))
    state.close()


def test_a_byte_that_has_rotted_anywhere_is_noticed_and_the_node_begins_anew(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved(pairs=80))
    state.close()
    content = file.read_bytes()
    found = {"whole": 0, "row": 0, "file": 0}
    # Before that is SQLite's head, by which a file is ours.
    used = [k for k in range(100, len(content)) if content[k]]
    for place in used[::11]:
        again = tmp_path / f"{place}.db"
        again.write_bytes(content[:place] + bytes([content[place] ^ 0x90]) + content[place + 1 :])
        state = NodeState(again, "one")
        if state.damage:
            assert "is damaged: " in state.damage
            assert "\n" not in state.damage
            kept = again.with_name(f"{place}.db.damaged")
            assert state.damage.endswith(f"; it is kept as {kept}")
            assert state.load() is None
            found["file"] += 1
        else:
            try:
                loaded = state.load()
                assert same(loaded, saved(pairs=80))
                found["whole"] += 1
            except DamagedError:
                found["row"] += 1
        state.save(saved(9))
        assert same(state.load(), saved(9))
        state.close()
    assert found["row"] > found["file"] > 0


@pytest.mark.parametrize(
    ("column", "content"),
    [
        ("y", None),
        ("y", 7),
        ("y", "text"),
        ("random", 1.5),
        ("fingerprint", b"one"),
        ("fingerprint", 1),
        ("balances", "{"),
        ("checksum", ""),
    ],
)
def test_what_somebody_else_wrote_into_the_row_is_noticed(
    tmp_path: Path, column: str, content: object
) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved())
    state.close()
    with closing(sqlite3.connect(file)) as base, base:
        base.execute("PRAGMA ignore_check_constraints = ON")
        if content is None:
            base.execute(f"ALTER TABLE state RENAME COLUMN {column} TO z")
        else:
            base.execute(f"UPDATE state SET {column} = ?", (content,))
    state = NodeState(file, "one")
    if content is None:
        assert "is damaged: its table is another than was made; it is kept as" in state.damage
        assert state.load() is None
    else:
        with pytest.raises(DamagedError, match="its content is not what was written"):
            state.load()
    state.save(saved(8))
    assert same(state.load(), saved(8))
    state.close()


def test_a_shortened_file_is_moved_aside(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved(pairs=3000))
    state.close()
    left = file.read_bytes()[:8192]
    file.write_bytes(left)
    state = NodeState(file, "one")
    assert state.damage.startswith(f"the node's state in {file} is damaged: ")
    assert (tmp_path / "state.db.damaged").read_bytes() == left
    assert state.load() is None
    state.save(saved(8))
    state.close()
    state = NodeState(file, "one")
    assert state.damage == ""
    assert same(state.load(), saved(8))
    state.close()


def test_a_log_that_was_cut_anywhere_gives_an_earlier_state(tmp_path: Path) -> None:
    """As a power failure may leave it: the log's last pages torn."""
    file, log = tmp_path / "state.db", tmp_path / "state.db-wal"
    state = NodeState(file, "one")
    state.save(saved(1))
    before = log.stat().st_size
    state.save(saved(2))
    base, written = file.read_bytes(), log.read_bytes()
    state.close()
    found = set()
    for cut in [*range(before, len(written), 97), len(written)]:
        again = tmp_path / f"{cut}.db"
        again.write_bytes(base)
        again.with_name(f"{cut}.db-wal").write_bytes(written[:cut])
        state = NodeState(again, "one")
        loaded = state.load()
        assert loaded is not None
        slot = int(loaded.infida.slot[0])
        assert same(loaded, saved(slot))
        found.add(slot)
        state.close()
    assert found == {1, 2}


FILE = """
tasks:
  seen:
    variants:
      a: {accuracy: 0.8, size: 1 GiB, service: {mean: 5 ms}}
      b: {accuracy: 0.9, size: 2 GiB, service: {mean: 50 ms}}
nodes:
  edge: {budget: 2 GiB}
  cloud: {budget: 16 GiB, repository: true}
network:
  links: [{between: [edge, cloud], rtt: 40 ms}]
placement: {policy: infida}
workload:
  seen: {arrivals: {process: poisson, rate: 10/s}, entries: {nodes: [edge]}}
"""


@pytest.fixture
def network(tmp_path: Path) -> DeliveryNetwork:
    file = tmp_path / "network.yaml"
    file.write_text(FILE)
    return network_of(load(file))


def test_a_fingerprint_is_of_what_gives_the_arrays_their_meaning(
    network: DeliveryNetwork,
) -> None:
    own = fingerprint(network, 0)
    assert own == fingerprint(network, 0)
    assert own != fingerprint(network, 1)
    assert own == fingerprint(replace(network, delay_s=network.delay_s * 2), 0)
    assert own != fingerprint(replace(network, budget=network.budget + 1), 0)
    other = network.pairs._replace(size=network.pairs.size + 1)
    assert own != fingerprint(replace(network, pairs=other), 0)
    assert own != fingerprint(replace(network, nodes=("else", *network.nodes[1:])), 0)
    assert len(Infida(network).state.y) == network.pairs.first[-1]
