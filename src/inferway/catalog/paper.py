"""Tables of variants as papers print them.

``paper/yolov4``: variants of YOLOv4 on two graphics cards, Table II of paper 000
(doi:10.1109/TNET.2023.3305922), whose values for the pruned variants are adapted from another work.
Accuracy is mAP@0.5 on MS COCO. The paper's MB are read as MiB, its GB as GiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["TABLES", "Entry"]

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant of a table.

    Attributes
    ----------
    name
        The variant.
    accuracy
        0..1.
    size_bytes
        Memory that one running copy takes.
    mean_s
        Mean time of one inference in seconds, by hardware.
    """

    name: str
    accuracy: float
    size_bytes: int
    mean_s: Mapping[str, float]


def _yolov4(name: str, points: float, mib: int, titan_rtx: float, gtx_980: float) -> Entry:
    mean = {"titan-rtx": 1 / titan_rtx, "gtx-980": 1 / gtx_980}
    return Entry(name, round(points / 100, 4), mib * _MIB, MappingProxyType(mean))


TABLES: Mapping[str, tuple[Entry, ...]] = MappingProxyType(
    {
        "paper/yolov4": (
            # variant, mAP in points, memory in MiB, frames per second on Titan RTX and GTX 980
            _yolov4("608p", 65.7, 1577, 41.7, 14.2),
            _yolov4("512p", 64.9, 1185, 55.5, 18.9),
            _yolov4("416p", 62.8, 1009, 73.8, 25.1),
            _yolov4("320p", 57.3, 805, 100, 34.1),
            _yolov4("3.99pruned", 55.1, 395, 209, 71.0),
            _yolov4("8.09pruned", 51.4, 195, 329, 112),
            _yolov4("10.10pruned", 50.9, 156, 371, 126),
            _yolov4("14.02pruned", 49.0, 112, 488, 166),
            _yolov4("tiny-416p", 38.7, 187, 888, 302),
            _yolov4("tiny-288p", 34.4, 160, 1272, 433),
        )
    }
)
