"""Published tables of variants, built in or timm's own: facts without models.

``paper/yolov4``: variants of YOLOv4 on two graphics cards, Table II of [SiSalem23]
(doi:10.1109/TNET.2023.3305922), which adapts the values of the pruned ones from another work.
Accuracy is mAP@0.5 on MS COCO. The paper's MB are read as MiB, as its GB are as GiB.

``timm/pareto``: facts of the results that timm publishes (huggingface/pytorch-image-models, folder
``results``, Apache-2.0): top-1 accuracy on ImageNet (``results-imagenet.csv``, best weights of the
model at that image size), millions of parameters, and images per second on an RTX 3090 (PyTorch
2.4, mixed precision, large batches) and on one Core i9-10940X (PyTorch 2.4, compiled, batch 1).
These are the models that no other beats in both accuracy and speed on the RTX 3090, without timm's
own test models and without second forms of one model (``levit_conv``).

A folder of the user's with timm's results (Apache-2.0) holds ``results-imagenet.csv`` (accuracy)
and tables of inference speed, ``benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv`` and the like;
they are read where they lie. A variant is a model at an image size, as ``efficientnet_b0-224``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from inferway.catalog.zoo import CatalogError
from inferway.spelling import closest


class Entry(NamedTuple):
    """One variant of a table.

    Attributes
    ----------
    name
        The variant.
    accuracy
        0..1.
    size_bytes
        Memory that one running copy takes of a node's budget.
    mean_s
        Mean time of one inference in seconds, by hardware.
    """

    name: str
    accuracy: float
    size_bytes: int
    mean_s: Mapping[str, float]


def tables() -> tuple[str, ...]:
    """Name the built-in tables."""
    return tuple(_TABLES)


def table(name: str) -> tuple[Entry, ...]:
    """Return a built-in table.

    Raises
    ------
    CatalogError
        If there is none of that name.
    """
    if name not in _TABLES:
        raise CatalogError(f"there is no catalog {name!r}; there is {' and '.join(tables())}")
    return _TABLES[name]


def pareto(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Keep the entries that no other beats in both accuracy and speed.

    An entry stays if that holds on some hardware. Of two that are equal in both, the first stays.
    """
    given = list(entries)
    kept: set[int] = set()
    for hardware in {name for entry in given for name in entry.mean_s}:
        fastest_first = sorted(
            (entry.mean_s[hardware], -entry.accuracy, k)
            for k, entry in enumerate(given)
            if hardware in entry.mean_s
        )
        best = -1.0
        for _, negated, k in fastest_first:
            if -negated > best:
                best = -negated
                kept.add(k)
    return tuple(entry for k, entry in enumerate(given) if k in kept)


def chosen(
    entries: Sequence[Entry], variants: Literal["pareto", "all"] | Sequence[str]
) -> tuple[Entry, ...]:
    """Choose among entries as a deployment file says it.

    A name is understood whatever its case, dashes and underscores, so ``EfficientNet-B0`` is
    efficientnet_b0; the entry keeps the name as asked for. Where a table has a model at several
    image sizes, as ``efficientnet_b0-224``, the name without the size is the most accurate of them.

    Raises
    ------
    CatalogError
        If there is no entry of a name.
    """
    if variants == "all":
        return tuple(entries)
    if variants == "pareto":
        return pareto(entries)
    by_name: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.accuracy):
        model, dash, size = entry.name.rpartition("-")
        if dash and size.isdecimal():
            by_name[_plain(model)] = entry
    by_name |= {_plain(entry.name): entry for entry in entries}
    for name in variants:
        if _plain(name) not in by_name:
            close = closest(_plain(name), by_name)
            hint = f"; did you mean {by_name[close].name}?" if close else ""
            raise CatalogError(f"the catalog has no variant {name}{hint}")
    return tuple(by_name[_plain(name)]._replace(name=name) for name in variants)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_BYTES_PER_PARAMETER = 4  # single precision, as timm's weights are stored


def _variant(name: str, points: float, mib: int, titan_rtx: float, gtx_980: float) -> Entry:
    mean = {"titan-rtx": 1 / titan_rtx, "gtx-980": 1 / gtx_980}
    return Entry(name, round(points / 100, 4), mib * 2**20, MappingProxyType(mean))


def _classifier(name: str, top1: float, millions: float, rtx3090: float, i9_10940x: float) -> Entry:
    mean = {"rtx3090": 1 / rtx3090, "i9_10940x": 1 / i9_10940x}
    size = round(millions * 1e6) * _BYTES_PER_PARAMETER
    return Entry(name, round(top1 / 100, 5), size, MappingProxyType(mean))


YOLOV4 = (
    # variant, mAP in points, memory in MiB, frames per second on Titan RTX and on GTX 980
    _variant("608p", 65.7, 1577, 41.7, 14.2),
    _variant("512p", 64.9, 1185, 55.5, 18.9),
    _variant("416p", 62.8, 1009, 73.8, 25.1),
    _variant("320p", 57.3, 805, 100, 34.1),
    _variant("3.99pruned", 55.1, 395, 209, 71.0),
    _variant("8.09pruned", 51.4, 195, 329, 112),
    _variant("10.10pruned", 50.9, 156, 371, 126),
    _variant("14.02pruned", 49.0, 112, 488, 166),
    _variant("tiny-416p", 38.7, 187, 888, 302),
    _variant("tiny-288p", 34.4, 160, 1272, 433),
)

CLASSIFIERS = (
    # model and image size, top-1 in percent, million parameters, images/s on RTX 3090 and on CPU
    _classifier("tinynet_e-106", 59.874, 2.04, 76700.9, 298.2),
    _classifier("efficientvit_m0-224", 63.304, 2.35, 48377.1, 135.04),
    _classifier("mobilenetv3_small_075-224", 65.284, 2.04, 42488.7, 253.25),
    _classifier("mobilenetv3_small_100-224", 67.636, 2.54, 39045.8, 249.8),
    _classifier("efficientvit_m1-224", 68.34, 2.98, 37693.2, 144.48),
    _classifier("efficientvit_m2-224", 70.796, 4.19, 33886.7, 137.23),
    _classifier("mobilenetv4_conv_small-224", 73.756, 3.77, 30965.4, 246.85),
    _classifier("efficientvit_m4-224", 74.344, 8.8, 28086.4, 105.66),
    _classifier("mobilenetv4_conv_small-256", 74.644, 3.77, 23522.7, 215.85),
    _classifier("levit_128s-224", 76.52, 7.78, 23026.4, 252.75),
    _classifier("efficientvit_m5-224", 77.092, 12.47, 19162.3, 87.3),
    _classifier("levit_128-224", 78.486, 9.21, 15600.0, 188.71),
    _classifier("levit_192-224", 79.858, 10.95, 13743.1, 190.44),
    _classifier("levit_256-224", 81.506, 18.89, 9996.4, 137.56),
    _classifier("levit_384-224", 82.6, 39.13, 6010.0, 89.69),
    _classifier("vit_base_patch32_clip_224-224", 83.304, 88.22, 5121.5, 59.16),
    _classifier("hgnetv2_b4-224", 83.7, 19.8, 4999.8, 71.76),
    _classifier("convnext_tiny-224", 84.192, 28.59, 3120.2, 68.68),
    _classifier("tiny_vit_21m_224-224", 85.088, 33.22, 3034.4, 50.8),
    _classifier("nextvit_base-224", 85.186, 44.82, 2056.2, 34.7),
    _classifier("vit_base_patch32_clip_384-384", 85.398, 88.3, 1763.2, 36.96),
    _classifier("nextvit_large-224", 85.514, 57.87, 1645.1, 26.22),
    _classifier("vit_base_patch16_clip_224-224", 86.204, 86.57, 1570.6, 32.07),
    _classifier("beitv2_base_patch16_224-224", 86.494, 86.53, 1520.9, 31.94),
    _classifier("vit_mediumd_patch16_reg4_gap_256-256", 86.608, 64.11, 1247.9, 23.05),
    _classifier("convnextv2_base-224", 86.752, 88.72, 731.9, 21.75),
    _classifier("maxvit_rmlp_base_rw_224-224", 86.908, 116.14, 618.8, 11.49),
    _classifier("vit_mediumd_patch16_reg4_gap_384-384", 87.438, 64.27, 547.1, 13.02),
    _classifier("eva_large_patch14_196-196", 88.59, 304.14, 485.2, 7.05),
    _classifier("eva02_base_patch14_448-448", 88.678, 87.12, 194.4, 5.73),
    _classifier("eva_large_patch14_336-336", 89.238, 304.53, 158.2, 3.05),
    _classifier("eva02_large_patch14_448-448", 90.056, 305.08, 61.5, 1.79),
)

_TABLES: Final = {"paper/yolov4": YOLOV4, "timm/pareto": CLASSIFIERS}

ACCURACY = "results-imagenet.csv"
_SPEED = re.compile(r"benchmark-infer-.*?pt(?P<torch>\d+)-(?:cu\d+|cpu)-(?P<hardware>[^-]+)(-.*)?")

Sized = tuple[str, str]  # model without its training tag, image size


def read_timm(folder: Path, hardware: str | None = None) -> list[Entry]:
    """Read a folder of timm's results.

    A speed table does not say which trained weights it ran, as speed does not depend on them; the
    most accurate weights of that model at that image size count. Models whose accuracy at the size
    of the speed test is unknown are left out.

    With `hardware`, such as ``rtx3090``, only its speed table is read; the nodes of a network name
    their hardware alike. Entries come fastest first. `mean_s` is one over the images per second of
    the benchmark: at its batch size, so that on graphics cards (batches of hundreds) an image that
    comes alone takes longer. `size_bytes` is that of the weights, 4 bytes per parameter; what
    running them takes beyond that, timm does not say. CatalogError if a file is missing or is not
    one of timm's.
    """
    tables = speed_tables(folder)
    if hardware is not None:
        if hardware not in tables:
            known = ", ".join(tables) or "none"
            raise CatalogError(f"{folder} has no speed table for {hardware} (known: {known})")
        tables = {hardware: tables[hardware]}
    if not tables:
        raise CatalogError(f"{folder} holds no speed tables (benchmark-infer-*-HARDWARE.csv)")
    right = accuracies(folder / ACCURACY)
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
