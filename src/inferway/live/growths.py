"""What runs of models take: looked up where it is known, else measured, and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inferway.runtime.growth import Growth, growth_of

if TYPE_CHECKING:
    from inferway.deployment import Model

_ZOO: Final = "zoo://"


def identity(model: Model, path: Path) -> str:
    """Say which model a measurement is true of."""
    if model.digest is not None:
        return model.digest
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"


class Growths:
    """Finds how much memory runs of a model take; any thread may ask.

    Parameters
    ----------
    file
        That keeps them from one run to the next, beside the service times; None keeps none.
    log
        Where it is said what was measured, or why not.
    limit_bytes
        That all runs together may take.
    measure
        Measures a model, as `growth_of`.
    """

    def __init__(
        self,
        file: Path | None,
        log: Any,
        limit_bytes: int,
        measure: Callable[[Path, int, int, str | None], Growth] = growth_of,
    ) -> None:
        self._file, self._log, self._limit_bytes = file, log, limit_bytes
        self._measure = measure
        self._known: dict[str, tuple[Growth, str] | None] = {}

    def of(self, model: Model, path: Path, largest: int) -> tuple[Growth, str] | None:
        """Find a model's peaks and where they come from; None where they cannot be measured.

        Parameters
        ----------
        model
            As the file names it.
        path
            Where its file is.
        largest
            Rows of its largest run.
        """
        key = identity(model, path)
        if key not in self._known:
            self._known[key] = self._found(model, path, largest, key)
        return self._known[key]

    def _found(self, model: Model, path: Path, largest: int, key: str) -> tuple[Growth, str] | None:
        from inferway.dispatch.service_times import recall_growth, remember_growth

        growth = _profiled(model)
        if growth is not None:
            return growth, "profile"
        if self._file is not None:
            growth = recall_growth(self._file, key, largest)
            if growth is not None:
                return growth, "recalled"
        try:
            growth = self._measure(path, largest, self._limit_bytes, model.digest)
        except ValueError as error:
            self._log.warning("memory of runs not known", model=model.uri, reason=str(error))
            return None
        self._log.info("memory of runs measured", model=model.uri, peaks=list(growth.peaks))
        if self._file is not None:
            remember_growth(self._file, key, growth)
        return growth, "measured"


def _profiled(model: Model) -> Growth | None:
    if not model.uri.startswith(_ZOO):
        return None
    from inferway.catalog import zoo

    _, profile = zoo.resolve(model.uri)
    return Growth.of_peaks(profile.peaks) if profile.peaks else None
