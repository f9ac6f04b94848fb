"""One row per request in a Parquet file, written while the run goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inferway.site.fleet import Fleet
from inferway.twin.kernel.state import Records, empty_records

OUTCOMES = ("answered", "late", "dropped", "rejected")  # By numbers of `twin.kernel.state`


class RecordFile:
    """A Parquet file of requests in the order in which they left; several threads may write.

    Raises
    ------
    OSError
        When it cannot be written.
    """

    def __init__(self, file: Path, fleet: Fleet) -> None:
        self._class_of = np.repeat(np.arange(len(fleet.variants), dtype=np.int32), fleet.count)
        self._variants = pa.array(fleet.variants)
        self._lock = threading.Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        empty = self._table(0, empty_records(0))
        self._writer = pq.ParquetWriter(file, empty.schema, compression="zstd")

    def write(self, replication: int, rows: Records) -> None:
        """Append the rows of a replication."""
        table = self._table(replication, rows)
        with self._lock:
            self._writer.write_table(table)

    def _table(self, replication: int, rows: Records) -> pa.Table:
        size = int(rows.size[0])
        columns = {name: getattr(rows, name)[:size] for name in Records._fields[:-1]}
        server, outcome = (columns[name].astype(np.int32) for name in ("server", "outcome"))
        variant = np.where(server >= 0, self._class_of[np.maximum(server, 0)], 0)
        named = pa.DictionaryArray.from_arrays
        return pa.table(
            {
                "replication": np.full(size, replication, np.int32),
                "arrived_s": columns["arrived_s"],
                "started_s": pa.array(columns["started_s"], from_pandas=True),
                "left_s": columns["left_s"],
                "server": pa.array(server, mask=server < 0),
                "variant": named(pa.array(variant, mask=server < 0), self._variants),
                "outcome": named(pa.array(outcome), pa.array(OUTCOMES)),
                "phase": columns["phase"].astype(np.int32),
            }
        )

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._writer.close()
