"""What a node remembers."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferway.deployment import load
from inferway.live.node.state import NodeState, Saved, StateError, fingerprint
from inferway.network import network_of
from inferway.network.delivery import DeliveryNetwork
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
    return Saved(infida, ("digits/tiny#0", "digits/größte#1"), b"\0\xff random")


def same(one: Saved | None, other: Saved) -> bool:
    return (
        one is not None
        and (one.loaded, one.random) == (other.loaded, other.random)
        and all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for a, b in zip(one.infida, other.infida, strict=True)
        )
    )


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
    copy = Saved.copied(infida, ["a"], b"")
    infida.y[:], infida.x[:], infida.slot[:] = 9.0, 9, 9
    assert same(copy, Saved(saved().infida, ("a",), b""))


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
    with sqlite3.connect(file) as base:
        base.execute("PRAGMA user_version = 2")
    base.close()
    with pytest.raises(StateError, match="it has version 2, and this Inferway 1"):
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
    with pytest.raises(StateError, match="cannot be read: its content is damaged"):
        state.load()
    state.save(saved(8))
    assert same(state.load(), saved(8))
    state.close()


def test_a_shortened_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved(pairs=3000))
    state.close()
    file.write_bytes(file.read_bytes()[:8192])
    with pytest.raises(StateError, match=r"move it away, and the node begins anew|it is damaged"):
        NodeState(file, "one")


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
