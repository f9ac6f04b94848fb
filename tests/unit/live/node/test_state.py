"""What a node remembers."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from inferway.deployment import load
from inferway.live.node.state import DamagedStateError, NodeState, Saved, StateError, fingerprint
from inferway.live.site import Balance
from inferway.network import network_of
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.agent import Counters
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


def test_a_state_of_an_earlier_version_is_kept_aside(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    with closing(sqlite3.connect(file)) as base, base:
        base.execute("CREATE TABLE state (one INTEGER PRIMARY KEY, y NOT NULL)")
        base.execute(f"PRAGMA application_id = {0x494E4657}")
        base.execute("PRAGMA user_version = 2")
    state = NodeState(file, "one")
    assert state.damage.endswith(
        f"is damaged: its table is another than was made; it is kept as {file}.damaged"
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
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE state (theirs)")
    base.close()
    with pytest.raises(StateError, match="cannot be used: it is another program's database"):
        NodeState(other, "one")
    assert [path.name for path in tmp_path.iterdir()] == ["other.db"]


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    NodeState(file, "one").close()
    with closing(sqlite3.connect(file)) as base, base:
        base.execute("PRAGMA user_version = 4")
    with pytest.raises(StateError, match="it has version 4, and this Inferway 3"):
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
    assert "is damaged: its content is not what was written; it is kept as" in state.damage
    assert state.load() is None
    state.save(saved(8))
    assert same(state.load(), saved(8))
    state.close()


def test_what_rots_while_it_is_in_use_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved())
    state._base.execute("UPDATE state SET content = x'00'")
    with pytest.raises(DamagedStateError, match="is damaged: its content is not what was written"):
        state.load()
    assert state.begin_anew() == tmp_path / "state.db.damaged"
    assert state.load() is None
    state.save(saved(8))
    state.close()
    state = NodeState(file, "one")
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
    found = {"whole": 0, "damaged": 0}
    version = content.index(b"INFW") - 5  # its lowest byte, which another version may have
    used = [k for k in range(len(content)) if content[k] or k < 100]
    for place in sorted({*used[:100], *used[100::11]} - {version, version - 1}):
        again = tmp_path / f"{place}.db"
        again.write_bytes(content[:place] + bytes([content[place] ^ 0x90]) + content[place + 1 :])
        state = NodeState(again, "one")
        if state.damage:
            assert "is damaged: " in state.damage
            assert "\n" not in state.damage
            kept = again.with_name(f"{place}.db.damaged")
            assert state.damage.endswith(f"; it is kept as {kept}")
            assert kept.is_file()
            assert state.load() is None
            found["damaged"] += 1
        else:
            assert same(state.load(), saved(pairs=80))
            found["whole"] += 1
        state.save(saved(9))
        assert same(state.load(), saved(9))
        state.close()
    assert found["damaged"] > found["whole"] > 0


def test_whatever_is_damaged_is_kept_aside_and_a_new_state_begun(tmp_path: Path) -> None:
    """Bytes that rot, pages that are lost, a file cut short, alone and with its log beside it."""
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    for slot in range(6):
        state.save(saved(slot, pairs=3000))
    beside = file.read_bytes(), file.with_name("state.db-wal").read_bytes()
    state.close()
    alone = file.read_bytes(), b""
    choose = random.Random(12)
    damages: list[Callable[[bytearray], object]] = [
        lambda content: content.__setitem__(slice(0, 100), bytes(100)),
        lambda content: content.__setitem__(slice(0, 4096), bytes(4096)),
        lambda content: content.__setitem__(slice(0, 4096), choose.randbytes(4096)),
        lambda content: content.clear(),
        lambda content: content.__setitem__(slice(0, None), choose.randbytes(len(content))),
    ]
    damages += [
        lambda content, size=size: content.__delitem__(slice(size, None))
        for size in range(0, len(alone[0]), 4096)
    ]
    for _ in range(60):
        damages.append(lambda content: content.__delitem__(slice(choose.randrange(1, 9999), None)))
        damages.append(
            lambda content: [
                content.__setitem__(choose.randrange(len(content)), choose.randrange(256))
                for _ in range(choose.choice((1, 3, 30, 300)))
            ]
        )
        damages.append(
            lambda content: content.__setitem__(
                slice(at := choose.randrange(8) * 4096, at + 4096), bytes(4096)
            )
        )
    anew = 0
    for number, damage in enumerate(damages):
        for main, log in (alone, beside):
            for hit in (0, 1):
                again = tmp_path / f"{number}-{len(log)}-{hit}" / "state.db"
                again.parent.mkdir()
                contents = [bytearray(main), bytearray(log)]
                if contents[hit]:
                    damage(contents[hit])
                again.write_bytes(contents[0])
                if log:
                    again.with_name("state.db-wal").write_bytes(contents[1])
                state = NodeState(again, "one")
                loaded = state.load()
                if state.damage:
                    assert loaded is None
                    kept = Path(state.damage.partition("; it is kept as ")[2])
                    assert kept.name == "state.db.damaged"
                    assert kept.read_bytes() == contents[0]
                    anew += 1
                elif loaded is not None:
                    assert any(same(loaded, saved(slot, pairs=3000)) for slot in range(6))
                state.save(saved(9))
                state.close()
                state = NodeState(again, "one")
                assert state.damage == ""
                assert same(state.load(), saved(9))
                state.close()
    assert anew > len(damages) // 2


@pytest.mark.parametrize("ending", ["", "-wal", "-journal", "-shm"])
@pytest.mark.parametrize("what", ["garbage", "nothing", "folder", "link"])
def test_what_stands_in_the_files_place_goes_aside_or_is_passed_over(
    tmp_path: Path, ending: str, what: str
) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved(3))
    state.close()
    place = file.with_name(f"state.db{ending}")
    place.unlink(missing_ok=True)
    if what == "folder":
        (place / "within").mkdir(parents=True)
    elif what == "link":
        place.symlink_to(tmp_path / "not there" / "state")
    else:
        place.write_bytes(random.Random(1).randbytes(20_000) if what == "garbage" else b"")
    state = NodeState(file, "one")
    loaded = state.load()
    if state.damage:
        assert loaded is None
        kept = {path.name for path in tmp_path.iterdir() if "damaged" in path.name}
        assert f"state.db.damaged{ending}" in kept
    else:
        assert loaded is None if not ending else same(loaded, saved(3))
    state.save(saved(9))
    assert same(state.load(), saved(9))
    state.close()


def test_each_damaged_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    for number in range(3):
        file.write_bytes(b"no database %d" % number * 100)
        NodeState(file, "one").close()
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["state.db", *(f"state.db.damaged{end}" for end in ("", ".2", ".3"))]
    assert (tmp_path / "state.db.damaged.3").read_bytes().startswith(b"no database 2")


NOBODY = """\
import os, sys
from pathlib import Path
from inferway.live.node.state import NodeState, StateError
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for line in sys.stdin:
    try:
        NodeState(Path(line.rstrip()), "one").close()
        print("opened", flush=True)
    except StateError as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.fixture(scope="module")
def nobody() -> Iterator[Callable[[Path], str]]:
    """Give a function by which a process without rights opens a state and says what it met."""
    if os.geteuid() != 0:
        pytest.skip("to give up rights it has to have them: needs root")
    with subprocess.Popen(
        [sys.executable, "-c", NOBODY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def opens(file: Path) -> str:
            print(file, file=process.stdin, flush=True)
            return process.stdout.readline()  # type: ignore[union-attr]

        yield opens
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("closed", ["file", "folder", "log"])
@pytest.mark.parametrize("damaged", [False, True])
def test_what_may_not_be_written_stays_as_it_is(
    nobody: Callable[[Path], str], closed: str, damaged: bool
) -> None:
    with TemporaryDirectory(prefix="inferway-state-") as name:
        folder, file = Path(name), Path(name, "state.db")
        state = NodeState(file, "one")
        state.save(saved(3))
        if closed != "log":
            state.close()
        if damaged:
            file.write_bytes(bytes(200) + file.read_bytes()[200:])
        for path in folder.iterdir():
            path.chmod(0o666)
        folder.chmod(0o777)
        {"file": file, "folder": folder, "log": Path(f"{file}-wal")}[closed].chmod(
            0o555 if closed == "folder" else 0o400
        )
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        said = nobody(file)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        state.close()
    assert said.startswith(f"StateError the node's state in {file} cannot be opened: ")


def test_a_damaged_file_that_is_in_use_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = NodeState(file, "one")
    state.save(saved(3))
    # All in another process: to close a file takes the locks away that one's own has on it.
    program = """if True:
        import sys
        from pathlib import Path
        from inferway.live.node.state import NodeState
        file = Path(sys.argv[1])
        with file.open("r+b") as head:
            head.write(bytes(100))
        try:
            NodeState(file, "one")
        finally:
            assert not any(file.read_bytes()[:100])
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False
    )
    assert "StateError: the node's state in " in done.stderr.splitlines()[-1]
    assert "another process has it open" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.db", "state.db-wal"]
    state.close()


@pytest.mark.parametrize(
    ("column", "content"),
    [
        ("content", None),
        ("content", 7),
        ("content", "text"),
        ("content", b""),
        ("content", b"one"),
        ("checksum", 1.5),
        ("checksum", b"one"),
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
    reason = (
        "table is another than was made" if content is None else "content is not what was written"
    )
    assert f"is damaged: its {reason}; it is kept as" in state.damage
    assert state.load() is None
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


def test_a_state_that_cannot_be_written_leaves_the_last_one(disk: Path) -> None:
    state = NodeState(disk / "state.db", "one")
    state.save(saved(1, 10))
    (disk / "another's").write_bytes(bytes(shutil.disk_usage(disk).free - 50_000))
    with pytest.raises(StateError, match="cannot be written: database or disk is full"):
        state.save(saved(2, 100_000))
    state.save(saved(3, 10))
    loaded = state.load()
    assert loaded is not None
    assert loaded.infida.slot[0] == 3
    state.close()
