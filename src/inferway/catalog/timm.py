"""Image classifiers from the results files of timm (huggingface/pytorch-image-models, Apache-2.0).

A folder of the user's holds ``results-imagenet.csv`` (accuracy) and tables of inference speed,
``benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv`` and the like; they are read where they lie. A
variant is a model at an image size, named ``efficientnet_b0-224``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from inferway.catalog.published import Entry
from inferway.catalog.zoo import CatalogError

ACCURACY = "results-imagenet.csv"
_SPEED = re.compile(r"benchmark-infer-.*?pt(?P<torch>\d+)-(?:cu\d+|cpu)-(?P<hardware>[^-]+)(-.*)?")
_BYTES_PER_PARAMETER = 4  # single precision, as timm's weights are stored

Sized = tuple[str, str]  # model without its training tag, image size


def read(folder: Path, hardware: str | None = None, *, accuracy: str = ACCURACY) -> list[Entry]:
    """Read a folder of results.

    A speed table does not say which trained weights it ran, as speed does not depend on them; the
    most accurate weights of that model at that image size count. Models whose accuracy at the size
    of the speed test is unknown are left out.

    Parameters
    ----------
    folder
        Where the files are.
    hardware
        Read only this speed table, such as ``rtx3090``; all of the folder if not given. The nodes
        of a network name their hardware alike.
    accuracy
        Which results count: ``results-imagenet.csv``, or one for another test set.

    Returns
    -------
    list of Entry
        Fastest first. `mean_s` is one over the images per second of the benchmark: at its batch
        size, so that on graphics cards (batches of hundreds) an image that comes alone takes
        longer. `size_bytes` is that of the weights, 4 bytes per parameter; what running them takes
        beyond that, timm does not say.

    Raises
    ------
    CatalogError
        If a file is missing or is not one of timm's.
    """
    tables = speed_tables(folder)
    if hardware is not None:
        if hardware not in tables:
            known = ", ".join(tables) or "none"
            raise CatalogError(f"{folder} has no speed table for {hardware} (known: {known})")
        tables = {hardware: tables[hardware]}
    if not tables:
        raise CatalogError(f"{folder} holds no speed tables (benchmark-infer-*-HARDWARE.csv)")
    right = accuracies(folder / accuracy)
    times: dict[Sized, dict[str, float]] = {}
    size: dict[Sized, int] = {}
    for name, path in tables.items():
        for line, row in _rows(path):
            sized = (row["model"], row["infer_img_size"])
            if sized in right and name not in times.get(sized, {}):
                speed = _number(path, line, row, "infer_samples_per_sec")
                if speed <= 0:
                    raise CatalogError(f"{path} line {line}: {speed:g} images/s is not a speed")
                times.setdefault(sized, {})[name] = 1.0 / speed
                millions = _number(path, line, row, "param_count")
                size[sized] = round(millions * 1e6) * _BYTES_PER_PARAMETER
    if not times:
        raise CatalogError(f"no model of {folder} has both an accuracy and a speed")
    found = [
        Entry(f"{model}-{pixels}", right[model, pixels], size[model, pixels], mean)
        for (model, pixels), mean in times.items()
    ]
    return sorted(found, key=lambda entry: (min(entry.mean_s.values()), entry.name))


def speed_tables(folder: Path) -> dict[str, Path]:
    """Find the speed tables of a folder by hardware; of several for one, the newest PyTorch's."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.glob("benchmark-infer-*.csv")):
        match = _SPEED.fullmatch(path.stem)
        if match is not None:
            this = (int(match["torch"]), path.name)
            found[match["hardware"]] = max(found.get(match["hardware"], (0, "")), this)
    return {hardware: folder / name for hardware, (_, name) in sorted(found.items())}


def accuracies(path: Path) -> Mapping[Sized, float]:
    """Read the best top-1 accuracy, 0..1, of each model at each image size.

    Raises
    ------
    CatalogError
        If it cannot be read.
    """
    best: dict[Sized, float] = {}
    for line, row in _rows(path):
        model, _, _ = row["model"].partition(".")
        points = _number(path, line, row, "top1")
        if not 0 <= points <= 100:
            raise CatalogError(f"{path} line {line}: a top-1 accuracy of {points:g} %")
        key = (model, row["img_size"])
        best[key] = max(best.get(key, 0.0), round(points / 100, 5))
    return best


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    needs = {"model"} | (
        {"infer_img_size", "infer_samples_per_sec", "param_count"}
        if path.name.startswith("benchmark")
        else {"img_size", "top1"}
    )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = needs - set(reader.fieldnames or ())
            if missing:
                raise CatalogError(f"{path} has no column {', '.join(sorted(missing))}")
            for row in reader:
                if any(row[key] is None for key in needs):
                    raise CatalogError(f"{path} line {reader.line_num} is cut short")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CatalogError(f"{path} cannot be read: {reason}") from None


def _number(path: Path, line: int, row: Mapping[str, str], key: str) -> float:
    try:
        return float(row[key].replace(",", ""))  # "1,014.45" million parameters
    except ValueError:
        raise CatalogError(f"{path} line {line}: {key} is {row[key][:40]!r}, no number") from None
