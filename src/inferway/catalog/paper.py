"""Tables of variants as papers print them.

``paper/yolov4``: variants of YOLOv4 on two graphics cards, Table II of [SiSalem23]
(doi:10.1109/TNET.2023.3305922), which adapts the values of the pruned ones from another work.
Accuracy is mAP@0.5 on MS COCO. The paper's MB are read as MiB, as its GB are as GiB.
"""

from __future__ import annotations

from types import MappingProxyType

from inferway.catalog.entry import Entry

_MIB = 2**20


def _variant(name: str, points: float, mib: int, titan_rtx: float, gtx_980: float) -> Entry:
    mean = {"titan-rtx": 1 / titan_rtx, "gtx-980": 1 / gtx_980}
    return Entry(name, round(points / 100, 4), mib * _MIB, MappingProxyType(mean))


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
