"""A node's memory over restarts: slot, allocations, counters, balances, and what was loaded.

One row in SQLite, replaced in one transaction, with a write-ahead log that is on the disk before
`NodeState.save` returns: at any moment a kill, or a power failure, leaves the last state saved or
the one before. SQLite's pages carry no checksums, so that the row has one. A damaged file is put
aside and reported, and nothing is remembered then: a node that has to learn anew is worth more than
one that does not start. A file that is in use, out of reach or of a later version stays as it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from inferway.live.site import Balance
from inferway.placement.agent import Counters
from inferway.placement.infida import InfidaState

if TYPE_CHECKING:
    from inferway.network.delivery import DeliveryNetwork

SCHEMA: Final = 3
_APPLICATION: Final = 0x494E4657  # tells a file of ours from any other database
_TABLE: Final = (
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), "
    "content BLOB NOT NULL, checksum BLOB NOT NULL)"
)
# Endings of the names of a database's files.
_FILES: Final = ("", "-wal", "-shm", "-journal")
_TAKEN: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
# No version will ever be later: more is a number that is damaged.
_LATEST: Final = 0xFFFF


class StateError(Exception):
    """A state that cannot be kept or taken up, with one sentence that says why."""


class DamagedStateError(StateError):
    """A state of ours that is damaged, so that there is none."""


class Saved(NamedTuple):
    """A node's memory.

    Attributes
    ----------
    infida
        Of the node alone: p pairs, one node.
    loaded
        Names of what was loaded, ``TASK/VARIANT#COPY``.
    random
        The state of the node's random numbers, as whoever draws them wrote it.
    counters
        Of a policy that counts; None of any other.
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


class NodeState:
    """One node's memory in a file; safe to call from any thread, one call at a time.

    The database is made if missing, and no other process may have it open; the fingerprint is of
    the network and the node that the arrays belong to. A file that is damaged is moved aside, to
    ``NAME.damaged`` (``NAME.damaged.2`` and so on), and a new one begun: `damage` says why what was
    remembered is lost, in a sentence, empty if it is not. StateError when the file cannot be used,
    and stays untouched: it is another program's database, of a later version or in use, or rights
    or the disk forbid it.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path, self._fingerprint, self.damage = path, fingerprint, ""
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._base = self._opened()
            except DamagedStateError as error:
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
        row = saved._replace(balances=dict(saved.balances))
        content = msgspec.msgpack.encode(
            (self._fingerprint, row), enc_hook=lambda array: (array.dtype.str, array.tobytes())
        )
        values = (content, hashlib.sha256(content).digest())
        try:
            with self._lock:
                self._base.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", values)
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
        DamagedStateError
            When it is damaged.
        StateError
            When it is another network's, or the disk fails.
        """
        try:
            with self._lock:
                content = self._content(self._base)
        except sqlite3.Error as error:
            raise self._fault("read", error) from None
        if content is None:
            return None
        whose, (infida, loaded, random, counters, balances) = msgspec.msgpack.decode(content)
        if whose != self._fingerprint:
            raise StateError(
                f"{self._path} remembers another network, or another node of it: move it away, "
                "or name another folder for this one's state"
            )
        return Saved(
            InfidaState(*map(_to_array, infida)),
            tuple(loaded),
            random,
            counters and Counters(counters[0], _to_array(counters[1])),
            {task: Balance(*one) for task, one in balances.items()},
        )

    def close(self) -> None:
        """Let the file go, its log written back into it."""
        with self._lock, suppress(sqlite3.Error):
            self._base.close()

    def _opened(self) -> sqlite3.Connection:
        self._check_rights()
        with ExitStack() as stack:
            try:
                base = sqlite3.connect(
                    self._path, timeout=0.0, isolation_level=None, check_same_thread=False
                )
                stack.callback(base.close)
                self._prepare(base)
            # The second where the text of an error is none.
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._fault("opened", error) from None
            stack.pop_all()
            return base

    def _check_rights(self) -> None:
        """Tell a lack of rights from damage; nothing is opened, which would lose locks."""
        for place in (Path(f"{self._path}{end}") for end in _FILES):
            if place.exists() and not os.access(place, os.R_OK | os.W_OK):
                raise self._failure("opened", f"nothing can be written in {place}")
            if place.exists() and not place.is_file():
                raise self._damaged(f"{place} is no file")
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise self._failure("opened", f"nothing can be written in {self._path.parent}")

    def _prepare(self, base: sqlite3.Connection) -> None:
        base.text_factory = bytes  # what is damaged may be no text
        # Held for good, so that a second process with this file is refused at its start.
        base.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = base.execute("PRAGMA application_id").fetchone()
        (version,) = base.execute("PRAGMA user_version").fetchone()
        tables = [sql for (sql,) in base.execute("SELECT sql FROM sqlite_master")]
        ours = [_TABLE.encode()]
        if tables and application != _APPLICATION and tables != ours:
            raise self._failure("used", "it is another program's database")
        if SCHEMA < version <= _LATEST:
            raise self._failure("used", f"it has version {version}, and this Inferway {SCHEMA}")
        if (application, version, tables) not in ((0, 0, []), (_APPLICATION, SCHEMA, ours)):
            raise self._damaged("its table is another than was made")
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")
        (sound,) = base.execute("PRAGMA quick_check(1)").fetchone()
        if sound != b"ok":
            raise self._damaged(sound.decode(errors="replace").splitlines()[-1])  # below a heading
        base.execute("BEGIN EXCLUSIVE")
        if not tables:
            base.execute(_TABLE)
        # Also where nothing changes: a head that is damaged may forbid to write.
        base.execute(f"PRAGMA application_id = {_APPLICATION}")
        base.execute(f"PRAGMA user_version = {SCHEMA}")
        base.execute("ROLLBACK" if tables else "COMMIT")
        self._content(base)

    def _content(self, base: sqlite3.Connection) -> bytes | None:
        row = base.execute("SELECT content, checksum FROM state").fetchone()
        if row is None:
            return None
        content, checksum = row
        # SQLite takes anything for any column.
        if not isinstance(content, bytes) or hashlib.sha256(content).digest() != checksum:
            raise self._damaged("its content is not what was written")
        return content

    def _set_aside(self) -> Path:
        """Give a damaged file, and those beside it, a name that no other has."""
        endings = itertools.chain(("",), map(".{}".format, itertools.count(2)))
        names = (self._path.with_name(f"{self._path.name}.damaged{end}") for end in endings)
        aside = next(
            name for name in names if not any(os.path.lexists(f"{name}{end}") for end in _FILES)
        )
        for end in _FILES:
            with suppress(FileNotFoundError):
                Path(f"{self._path}{end}").rename(f"{aside}{end}")
        return aside

    def _damaged(self, reason: object) -> DamagedStateError:
        return DamagedStateError(f"the node's state in {self._path} is damaged: {reason}")

    def _failure(self, done: str, reason: object) -> StateError:
        if _code(reason) in _TAKEN:
            reason = "another process has it open; give each node a file of its own"
        return StateError(f"the node's state in {self._path} cannot be {done}: {reason}")

    def _fault(self, done: str, error: Exception) -> StateError:
        """Tell damage from what is none."""
        if _code(error) in (*_TAKEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return self._failure(done, error)
        return self._damaged(error)


def _code(error: object) -> int:
    """SQLite's code of an error, without what says it more exactly; 0 without one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def fingerprint(network: DeliveryNetwork, node: int) -> str:
    """Hash what gives a node's arrays their meaning: the names of nodes, its budget, its pairs.

    Round trips and service times are left out: measured anew, they do not make what was learned
    worthless.
    """
    own = range(*network.pairs.first[node : node + 2].tolist())
    models, sizes = network.pairs.model.tolist(), network.pairs.size.tolist()
    content: list[Any] = [
        list(network.nodes),
        network.nodes[node],
        repr(float(network.budget[node])),
        [[network.name(models[p]), repr(sizes[p])] for p in own],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _to_array(packed: tuple[str, bytes]) -> Any:
    dtype, content = packed
    return np.frombuffer(content, dtype).copy()
