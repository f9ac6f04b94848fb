"""What a node remembers when it is killed: the slot, INFIDA's state, what it had loaded.

One row in SQLite, replaced in one transaction, with a write-ahead log that is on the disk before
`NodeState.save` returns: at any moment a kill, or a power failure, leaves the last state saved or
the one before. SQLite's pages carry no checksums, so that the row has one of its own.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from inferway.placement.infida import InfidaState

if TYPE_CHECKING:
    from inferway.network.delivery import DeliveryNetwork

__all__ = ["NodeState", "Saved", "StateError", "fingerprint"]

SCHEMA: Final = 1
_APPLICATION: Final = 0x494E4657  # tells a file of ours from any other database
_TYPES: Final = {"y": "<f8", "spread": "<f8", "steep": "<f8", "x": "u1", "slot": "<i8"}
_COLUMNS: Final = (*_TYPES, "loaded", "random")


class StateError(Exception):
    """A state that cannot be kept or taken up, with one sentence that says why."""


class Saved(NamedTuple):
    """What a node remembers.

    Attributes
    ----------
    infida
        Of the node alone: p pairs, one node.
    loaded
        Names of what was loaded, ``TASK/VARIANT#COPY``.
    random
        The state of the node's random numbers, as whoever draws them wrote it.
    """

    infida: InfidaState
    loaded: tuple[str, ...]
    random: bytes

    @classmethod
    def copied(cls, infida: InfidaState, loaded: Sequence[str], random: bytes) -> Saved:
        """Copy a state that goes on changing, so that it can be saved beside."""
        y, spread, steep, x, slot = infida
        copies = InfidaState(y.copy(), spread.copy(), steep.copy(), x.copy(), slot.copy())
        return cls(copies, tuple(loaded), random)


class NodeState:
    """One node's memory in a file; safe to call from any thread, one call at a time.

    Parameters
    ----------
    path
        The database; made if missing. No other process may have it open.
    fingerprint
        Of the network and the node that the arrays belong to; see `fingerprint`.

    Raises
    ------
    StateError
        When the file cannot be used: damaged, another program's, of a later version, in use.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path, self._fingerprint = path, fingerprint
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._base = sqlite3.connect(
                path, timeout=0.0, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise self._failure("opened", error) from None
        try:
            self._open()
        except sqlite3.Error as error:
            self._base.close()
            raise self._failure("opened", error) from None
        except BaseException:
            self._base.close()
            raise

    def save(self, saved: Saved) -> None:
        """Replace what is remembered; on the disk when this returns.

        It waits for the disk, so that an event loop calls it aside.

        Raises
        ------
        StateError
            When it cannot be written, as on a full disk; what was remembered before still is.
        """
        row = _row(saved)
        marks = ", ".join("?" * (len(row) + 3))
        try:
            with self._lock:
                self._base.execute(
                    f"INSERT OR REPLACE INTO state VALUES ({marks})",
                    (1, self._fingerprint, *row, _checksum(self._fingerprint, row)),
                )
        except sqlite3.Error as error:
            raise self._failure("written", error) from None

    def load(self) -> Saved | None:
        """Read what was saved last; None if nothing was.

        Raises
        ------
        StateError
            When it is another network's or damaged.
        """
        try:
            with self._lock:
                found = self._base.execute("SELECT * FROM state").fetchone()
        except sqlite3.Error as error:
            raise self._failure("read", error) from None
        if found is None:
            return None
        _, whose, *row, checksum = found
        if checksum != _checksum(whose, row):
            raise self._failure("read", "its content is damaged")
        if whose != self._fingerprint:
            raise StateError(
                f"{self._path} remembers another network, or another node of it: move it away, "
                "or name another folder for this one's state"
            )
        *arrays, loaded, random = row
        read = {
            name: np.frombuffer(one, dtype).astype(np.dtype(dtype).newbyteorder("="))
            for one, (name, dtype) in zip(arrays, _TYPES.items(), strict=True)
        }
        infida = InfidaState(**read)
        return Saved(infida, tuple(json.loads(loaded)), random)

    def close(self) -> None:
        """Let the file go, its log written back into it."""
        with self._lock, suppress(sqlite3.Error):
            self._base.close()

    def _open(self) -> None:
        base = self._base
        # Held for good, so that a second process with this file is refused at its start.
        base.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = base.execute("PRAGMA application_id").fetchone()
        (version,) = base.execute("PRAGMA user_version").fetchone()
        (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            raise self._failure("used", "it is another program's database")
        if version > SCHEMA:
            raise self._failure("used", f"it has version {version}, and this Inferway {SCHEMA}")
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")
        (sound,) = base.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise self._failure("used", "it is damaged")
        base.execute("BEGIN EXCLUSIVE")
        if version < SCHEMA:
            columns = ", ".join(f"{name} NOT NULL" for name in _COLUMNS)
            base.execute(
                "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), "
                f"fingerprint NOT NULL, {columns}, checksum NOT NULL)"
            )
            base.execute(f"PRAGMA application_id = {_APPLICATION}")
            base.execute(f"PRAGMA user_version = {SCHEMA}")
        base.execute("COMMIT")

    def _failure(self, done: str, reason: object) -> StateError:
        if isinstance(reason, sqlite3.OperationalError) and "locked" in str(reason):
            reason = "another process has it open; give each node a file of its own"
        elif isinstance(reason, sqlite3.DatabaseError) and not isinstance(
            reason, sqlite3.OperationalError
        ):
            reason = f"{reason}; move it away, and the node begins anew"
        return StateError(f"the node's state in {self._path} cannot be {done}: {reason}")


def fingerprint(network: DeliveryNetwork, node: int) -> str:
    """Hash what gives a node's arrays their meaning: the names of nodes, its budget, its pairs.

    Round trips and service times are left out: measured anew, they do not make what was learned
    worthless.
    """
    pairs = network.pairs
    own = range(int(pairs.first[node]), int(pairs.first[node + 1]))
    content: list[Any] = [
        list(network.nodes),
        network.nodes[node],
        repr(float(network.budget[node])),
        [[network.name(int(pairs.model[p])), repr(float(pairs.size[p]))] for p in own],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _row(saved: Saved) -> tuple[bytes | str, ...]:
    arrays = (
        np.ascontiguousarray(getattr(saved.infida, name), dtype).tobytes()
        for name, dtype in _TYPES.items()
    )
    return (*arrays, json.dumps(saved.loaded), saved.random)


def _checksum(whose: str, row: Sequence[bytes | str]) -> str:
    digest = hashlib.sha256(whose.encode())
    for part in row:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
