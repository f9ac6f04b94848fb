"""A placement in words and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from inferway.experiments.networks import maps
from inferway.experiments.text import percent, seconds, shown_as, table, text
from inferway.placement import offline
from inferway.placement.offline import Placement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from inferway.network import Topology

_PROOF = {
    True: "Proven to be the best; the gap is what sharing instances by arrival costs.",
    False: "The time limit came before the proof: a better placement may exist.",
    None: None,
}


@dataclass(frozen=True, eq=False)
class PlacementResult(Placement):
    """The placement that `inferway.place` gives."""

    def to_frame(self) -> pd.DataFrame:
        """One row for each node and variant of a task that runs there."""
        import pandas as pd

        rows = [
            (node, *instance.rsplit("/", 1), count)
            for node, instances in self.nodes.items()
            for instance, count in instances.items()
        ]
        return pd.DataFrame(rows, columns=["node", "task", "variant", "instances"])

    def plot(self) -> Figure:
        """Draw how many copies of each variant a node of each tier holds."""
        from inferway.experiments.networks import by_tier, heat_maps

        grid = by_tier(self.network, np.asarray(self.allocation, np.float64))
        return heat_maps([grid], label="copies per node", title=f"placement by {self.policy}")

    def _repr_html_(self) -> str:
        import pandas as pd

        rows = [
            {"tier": name, "served": tier.share, "budget used": tier.used, **tier.copies}
            for name, tier in self.tiers.items()
        ]
        return str(pd.DataFrame(rows).fillna(0).to_html(index=False, float_format="{:.3g}".format))

    def __str__(self) -> str:
        return text(*tables(self))


place = shown_as(lambda found: PlacementResult(**vars(found)))(offline.place)


def tables(found: Placement) -> list[RenderableType]:
    """The whole, and what runs on each tier."""
    rows = [
        ["gain per request", f"{found.gain_ms:.4g} ms"],
        ["latency, mean", seconds(found.latency_s)],
        ["inaccuracy, mean", percent(found.inaccuracy, 2)],
    ]
    if found.bound_ms is not None:
        rows += [
            ["no static placement gains more than", f"{found.bound_ms:.4g} ms"],
            ["gap", percent(found.gap, 3)],
        ]
    rows += [["for so many slots", str(found.slots)], ["computed in", seconds(found.seconds)]]
    title = f"Placement by {found.policy}"
    parts = [
        [
            name,
            percent(tier.share, 2),
            percent(tier.used, 1),
            ", ".join(f"{count} {variant}" for variant, count in tier.copies.items()) or "-",
        ]
        for name, tier in found.tiers.items()
    ]
    columns = ["tier", "served", "budget used", "copies, of all tasks"]
    return [
        table(title, ["", "offline"], rows, caption=_PROOF[found.proven]),
        Text(),
        table("By tier", columns, parts, left=(0, 3)),
        Text(),
    ]


def figures(found: Placement, topology: Topology, folder: Path, *, title: str = "") -> list[Path]:
    """Write the heat map per tier and the map, PNG and SVG each; return the PNG files.

    A network of too many nodes has no map.
    """
    from inferway.experiments.figure import save

    presence = np.asarray(found.allocation, np.float64)
    drawn = maps(found.network, presence, found.served, topology, title)
    return [save(figure, folder / name)[0] for name, figure in drawn.items()]
