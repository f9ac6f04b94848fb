"""Table 2 of [Tan24] as printed, in ratios; what it leaves blank is absent."""

from __future__ import annotations

COLUMNS = (
    *("goodput", "rate", "violations"),
    *("goodput_bursty", "violations_bursty", "rejected_bursty", "late_bursty", "heavy_bursty"),
    *("goodput_normal", "violations_normal", "rejected_normal", "late_normal", "heavy_normal"),
)
"""In the table's order; ``rate`` in requests per second."""

_NAN = float("nan")
_ROWS = {
    ("map", "lw"): "77.69 14.72 0     77.69 0     0     0     -     77.69 0     0 0     -",
    ("map", "hw"): "41.43 7.851 49.95 0.089 99.89 48.11 51.78 -     82.78 0.007 0 0.007 -",
    ("map", "hw-e"): "69.05 13.08 16.61 55.31 33.19 33.19 0     -     82.78 0     0 0     -",
    ("map", "rl-po"): "79.24 15.01 1.447 75.85 2.891 1.499 1.393 12.78 82.62 0.003 0 0.003 96.25",
    ("map", "rl-fo"): "80.14 15.18 0.366 77.64 0.732 0.293 0.439 10.66 82.62 0     0 0     97.25",
    ("map", "rl-po-b"): "79.49 15.05 0.884 76.56 1.594 1.499 1.393 3.664 82.43 0.174 0 0.174 93.14",
    ("map", "rl-fo-b"): "80.18 15.19 0.079 77.82 0.161 0.064 0.096 5.099 82.54 0     0 0     93.69",
    ("map", "sq"): "79.59 15.08 0     78.86 0     0     0     22.85 80.37 0     0 0     52.65",
    ("map", "sa"): "80.39 15.23 0.499 78.01 0.998 0.102 0.895 19.99 82.78 0     0 0     99.99",
    ("map", "infaas"): "78.22 14.82 1.695 76.12 3.389 0.001 3.388 24.22 80.35 0     0 0     52.18",
    ("periodic", "lw"): "77.69 14.72 0     77.69 0     0     0     -     77.69 0     0 0     -",
    ("periodic", "hw"): "41.45 7.854 49.93 0.125 99.85 48.14 51.71 -     82.77 0.011 0 0.011 -",
    ("periodic", "hw-e"): "69.05 13.08 16.59 55.32 33.17 33.17 0     -     82.78 0     0 0     -",
    ("periodic", "rl-po"): "79.23 15.01 1.553 75.75 3.103 2.246 .857 12.11 82.72 .003 0 .003 98.78",
    ("periodic", "rl-fo"): "80.27 15.21 0.329 77.76 0.651 0.563 .008 11.63 82.77 .008 0 .008 99.93",
}


def _row(text: str) -> dict[str, float]:
    cells = [_NAN if cell == "-" else float(cell) for cell in text.split()]
    found = dict(zip(COLUMNS, cells, strict=True))
    return {name: cell if name == "rate" else cell / 100 for name, cell in found.items()}


PRINTED = {place: _row(text) for place, text in _ROWS.items()}
"""By workload and row."""
