"""What a node remembers when it is killed: slot, allocations, counters, balances, what was loaded.

One row in SQLite, replaced in one transaction, with a write-ahead log that is on the disk before
`NodeState.save` returns: at any moment a kill, or a power failure, leaves the last state saved or
the one before. SQLite's pages carry no checksums, so that the row has one of its own. What is
damaged all the same, from the first page to the last byte of the row, is put aside and told, and
nothing is remembered then: a node that has to learn anew is worth more than one that does not
start. What is not damaged but in use, out of reach or of a later version stays as it is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from inferway.live.node.balances import Balance
from inferway.placement.counted import Counters
from inferway.placement.infida import InfidaState

if TYPE_CHECKING:
    from inferway.network.delivery import DeliveryNetwork

SCHEMA: Final = 2
_APPLICATION: Final = 0x494E4657  # tells a file of ours from any other database
_TYPES: Final = {"y": "<f8", "spread": "<f8", "steep": "<f8", "x": "u1", "slot": "<i8"}
_SINCE_1: Final = (*_TYPES, "loaded", "random")
_COLUMNS: Final = (*_SINCE_1, "counters", "counted", "balances")
_NOTHING: Final = (b"", "", "{}")
"""What a row of version 1 says of what came with version 2."""

_UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
"""The second where the text of an error is none."""
_BESIDE: Final = ("", "-wal", "-shm", "-journal")
"""Endings of the names of a database's files."""
_TAKEN: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_STOPPING: Final = (*_TAKEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""SQLite's codes of what is no damage of the file."""
_IN_THE_WAY: Final = (errno.ENOENT, errno.EISDIR, errno.ENXIO, errno.ELOOP)
"""What opening says of a name that stands for no file, or none that could be a database."""
_LATEST: Final = 0xFFFF
"""No version will ever be later: more is a number that is damaged."""

_Row = Sequence[bytes | str]


class _Found(NamedTuple):
    """A row as it lies in the file, and whether it is what was written."""

    whose: str
    row: _Row
    sound: bool


class StateError(Exception):
    """A state that cannot be kept or taken up, with one sentence that says why."""


class DamagedError(StateError):
    """A state of ours that is damaged, so that there is none."""


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
    counters
        Of a policy that counts; None of any other, and where an earlier version saved.
    balances
        Accuracy balances by task, those at 0 left out. They move with each request, and what is
        saved is as of the end of the last slot, or of a node that was stopped: what a killed node
        answered after that is in no balance.
    """

    infida: InfidaState
    loaded: tuple[str, ...]
    random: bytes
    counters: Counters | None = None
    balances: Mapping[str, Balance] = MappingProxyType({})

    @classmethod
    def copied(
        cls,
        infida: InfidaState,
        loaded: Sequence[str],
        random: bytes,
        counters: Counters | None = None,
        balances: Mapping[str, Balance] = MappingProxyType({}),
    ) -> Saved:
        """Copy a state that goes on changing, so that it can be saved beside."""
        y, spread, steep, x, slot = infida
        copies = InfidaState(y.copy(), spread.copy(), steep.copy(), x.copy(), slot.copy())
        if counters is not None:
            counters = counters._replace(counts=counters.counts.copy())
        return cls(copies, tuple(loaded), random, counters, dict(balances))


class NodeState:
    """One node's memory in a file; safe to call from any thread, one call at a time.

    A file that is damaged is moved aside, to ``NAME.damaged`` (``NAME.damaged.2`` and so on), and a
    new one begun.

    Parameters
    ----------
    path
        The database; made if missing. No other process may have it open.
    fingerprint
        Of the network and the node that the arrays belong to; see `fingerprint`.

    Raises
    ------
    StateError
        When the file cannot be used, and stays untouched: it is another program's database, of a
        later version or in use, or rights or the disk forbid it.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path, self._fingerprint = path, fingerprint
        self._lock = threading.Lock()
        self.damage = ""
        """Why what was remembered is lost, in a sentence; empty if it is not."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._base = self._opened()
            except DamagedError as error:
                self.damage = f"{error}; it is kept as {self._set_aside()}"
                self._base = self._opened()
        except OSError as error:
            raise self._failure("opened", error) from None

    def save(self, saved: Saved) -> None:
        """Replace what is remembered, all at once; on the disk when this returns.

        It waits for the disk, so that an event loop calls it aside.

        Raises
        ------
        StateError
            When it cannot be written, as on a full disk; what was remembered before still is.
        """
        row = _row(saved)
        try:
            with self._lock:
                _put(self._base, self._fingerprint, row)
        except sqlite3.Error as error:
            raise self._failure("written", error) from None

    def begin_anew(self) -> Path:
        """Put aside what makes no sense to whoever has loaded it; return where it is.

        Raises
        ------
        StateError
            When that cannot be done.
        """
        with self._lock:
            self._base.close()
            try:
                aside = self._set_aside()
                self._base = self._opened()
            except OSError as error:
                raise self._failure("moved aside", error) from None
        return aside

    def load(self) -> Saved | None:
        """Read what was saved last; None if nothing was.

        Raises
        ------
        DamagedError
            When it is damaged.
        StateError
            When it is another network's, or the disk fails.
        """
        try:
            with self._lock:
                found = _found(self._base, _COLUMNS)
        except _UNREADABLE as error:
            if _corrupt(error):
                raise self._damaged(error) from None
            raise self._failure("read", error) from None
        if found is None:
            return None
        whose, row, sound = found
        if not sound:
            raise self._damaged("its content is not what was written")
        if whose != self._fingerprint:
            raise StateError(
                f"{self._path} remembers another network, or another node of it: move it away, "
                "or name another folder for this one's state"
            )
        try:
            return _saved(row)
        except (AttributeError, TypeError, ValueError) as error:
            raise self._damaged(f"what it says makes no sense: {error}") from None

    def close(self) -> None:
        """Let the file go, its log written back into it."""
        with self._lock, suppress(sqlite3.Error):
            self._base.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            base = sqlite3.connect(
                self._path, timeout=0.0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._refused(error) from None
        try:
            self._prepare(base)
        except _UNREADABLE as error:
            base.close()
            raise self._refused(error) from None
        except BaseException:
            base.close()
            raise
        return base

    def _prepare(self, base: sqlite3.Connection) -> None:
        # What is no text is noticed by the checksum.
        base.text_factory = partial(str, encoding="utf-8", errors="replace")
        # Held for good, so that a second process with this file is refused at its start.
        base.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = base.execute("PRAGMA application_id").fetchone()
        (version,) = base.execute("PRAGMA user_version").fetchone()
        (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (made,) = base.execute("SELECT min(sql) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            if made in (_table(_SINCE_1), _table(_COLUMNS)):
                raise self._damaged("it has lost the mark that it is ours")
            raise self._failure("used", "it is another program's database")
        if SCHEMA < version <= _LATEST:
            raise self._failure("used", f"it has version {version}, and this Inferway {SCHEMA}")
        if not 0 <= version <= SCHEMA or (tables and not version):
            raise self._damaged("it has lost its version")
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")
        (sound,) = base.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise self._damaged(sound.splitlines()[-1])  # below a heading
        base.execute("BEGIN EXCLUSIVE")
        known = {0: (), 1: _SINCE_1, SCHEMA: _COLUMNS}[version]
        if version:
            if tables != 1 or made != _table(known):
                raise self._damaged("its table is another than was made")
            if base.execute("SELECT 1 FROM state WHERE one <> 1").fetchone():
                raise self._damaged("it has another row than was made")
        before = _found(base, known) if version else None
        if before is not None and not before.sound:
            raise self._damaged("its content is not what was written")
        if version < SCHEMA:
            base.execute("DROP TABLE IF EXISTS state")
            base.execute(_table(_COLUMNS))
            if before is not None:
                _put(base, before.whose, (*before.row, *_NOTHING))
            base.execute(f"PRAGMA application_id = {_APPLICATION}")
            base.execute(f"PRAGMA user_version = {SCHEMA}")
        base.execute("COMMIT")
        # A head that says so makes a file read-only; nothing goes to the disk here.
        base.execute("BEGIN IMMEDIATE")
        base.execute(f"PRAGMA user_version = {SCHEMA}")
        base.execute("ROLLBACK")

    def _set_aside(self) -> Path:
        """Give a damaged file, and those beside it, a name that no other has."""
        number = 1
        while True:
            ending = ".damaged" if number == 1 else f".damaged.{number}"
            aside = self._path.with_name(f"{self._path.name}{ending}")
            if not any(os.path.lexists(f"{aside}{end}") for end in _BESIDE):
                break
            number += 1
        for end in _BESIDE:
            with suppress(FileNotFoundError):
                Path(f"{self._path}{end}").rename(f"{aside}{end}")
        return aside

    def _damaged(self, reason: object) -> DamagedError:
        return DamagedError(f"the node's state in {self._path} is damaged: {reason}")

    def _failure(self, done: str, reason: object) -> StateError:
        if isinstance(reason, sqlite3.Error) and _code(reason) in _TAKEN:
            reason = "another process has it open; give each node a file of its own"
        return StateError(f"the node's state in {self._path} cannot be {done}: {reason}")

    def _refused(self, error: sqlite3.Error | UnicodeDecodeError) -> StateError:
        """Tell damage from what is none, where SQLite could not begin; the file is closed."""
        places = (Path(f"{self._path}{end}") for end in _BESIDE)
        blocked = any(place.exists() and not place.is_file() for place in places)
        if _code(error) in _STOPPING and not (blocked and _code(error) == sqlite3.SQLITE_IOERR):
            return self._failure("opened", error)
        denied = self._denied()
        return self._damaged(error) if denied is None else self._failure("opened", denied)

    def _denied(self) -> str | None:
        """Why this process may not write the files, and others beside them."""
        for end in _BESIDE:
            try:
                os.close(os.open(f"{self._path}{end}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                if error.errno not in _IN_THE_WAY:
                    return os.strerror(error.errno or 0)
        folder = self._path.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"nothing can be written in {folder}"
        return None


def _code(error: BaseException) -> int:
    """SQLite's code of an error, without what says it more exactly; 0 without one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _corrupt(error: BaseException) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, 0)


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


def _table(columns: Sequence[str]) -> str:
    own = ", ".join(f"{name} NOT NULL" for name in columns)
    return (
        "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), "
        f"fingerprint NOT NULL, {own}, checksum NOT NULL)"
    )


def _put(base: sqlite3.Connection, whose: str, row: _Row) -> None:
    marks = ", ".join("?" * (len(_COLUMNS) + 3))
    values = (1, whose, *row, _checksum(whose, row))
    base.execute(f"INSERT OR REPLACE INTO state VALUES ({marks})", values)


def _found(base: sqlite3.Connection, columns: Sequence[str]) -> _Found | None:
    found = base.execute(
        f"SELECT fingerprint, {', '.join(columns)}, checksum FROM state"
    ).fetchone()
    if found is None:
        return None
    whose, *row, checksum = found
    # SQLite takes anything for any column.
    kinds = isinstance(whose, str) and all(isinstance(part, bytes | str) for part in row)
    return _Found(whose, row, kinds and checksum == _checksum(whose, row))


def _row(saved: Saved) -> tuple[bytes | str, ...]:
    arrays = (
        np.ascontiguousarray(getattr(saved.infida, name), dtype).tobytes()
        for name, dtype in _TYPES.items()
    )
    of, counts = ("", np.zeros(0)) if saved.counters is None else saved.counters
    return (
        *arrays,
        json.dumps(saved.loaded),
        saved.random,
        np.ascontiguousarray(counts, "<f8").tobytes(),
        of,
        json.dumps(dict(saved.balances)),
    )


def _saved(row: Sequence[Any]) -> Saved:
    *arrays, loaded, random, counts, of, balances = row
    infida = InfidaState(
        **{
            name: _array(one, dtype)
            for one, (name, dtype) in zip(arrays, _TYPES.items(), strict=True)
        }
    )
    return Saved(
        infida,
        tuple(json.loads(loaded)),
        random,
        Counters(of, _array(counts, "<f8")) if of else None,
        {task: Balance(*map(float, one)) for task, one in json.loads(balances).items()},
    )


def _array(content: Any, dtype: str) -> Any:
    return np.frombuffer(content, dtype).astype(np.dtype(dtype).newbyteorder("="))


def _checksum(whose: str, row: _Row) -> str:
    digest = hashlib.sha256(whose.encode())
    for part in row:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
