"""Where a training stands, in one file of plain arrays that is replaced whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.learning.export import write_npz
from inferway.unreadable import fault

__all__ = ["CHECKPOINT", "SCHEMA", "Checkpoint", "alone"]

CHECKPOINT = "checkpoint.npz"
SCHEMA = 2


class Checkpoint:
    """The file ``checkpoint.npz`` in a folder.

    Parameters
    ----------
    folder
        Made when the first checkpoint is written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHECKPOINT

    def write(self, about: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> None:
        """Keep a state and what it is one of; on the disk when this returns."""
        text = json.dumps({"schema": SCHEMA, **about}, allow_nan=False)
        write_npz(self.path, {"about": np.array(text), **state})
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        """What was written last; None where nothing was.

        Raises
        ------
        ValueError
            Where the file is none of ours, or of another version.
        """
        if not self.path.exists():
            return None
        try:
            # NumPy leaves a file that is no archive open.
            with self.path.open("rb") as bytes_, np.load(bytes_, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays.pop("about")[()]))
            schema = about["schema"]
        except Exception as error:  # whatever the parts of NumPy's reader raise
            raise ValueError(f"{self.path} is not a checkpoint: {fault(error)}") from None
        if schema != SCHEMA:
            raise ValueError(
                f"{self.path} is of another version of inferway and cannot be gone on with: it has "
                f"schema {schema}, and {SCHEMA} is what is read. Name another --out, or remove it."
            )
        return about, arrays


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder; RuntimeError where another training does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(
                f"another training writes to {folder}: wait for it, or name another --out"
            ) from None
        yield
