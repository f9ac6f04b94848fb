"""Run the cells of a notebook of the documentation anew; with --write, keep what they show.

    python docs/execute.py docs/tour.ipynb [--write]

A cell with the tag `learn` runs where PyTorch is installed; elsewhere what it showed stays. What is
kept is small: figures have few colors, and the text that stands for a table or a figure is cut.
"""

from __future__ import annotations

import argparse
import base64
import io
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import nbformat
import numpy as np
from nbclient import NotebookClient
from pack import in_few_colors
from PIL import Image

LONGEST_TEXT: Final = 200
"""Characters of a text that no reader sees, as there is a table or a figure to show."""


def execute(notebook: Path) -> nbformat.NotebookNode:
    """Run all cells in one kernel, in the notebook's folder; an error in one ends it."""
    found = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        found,
        timeout=1800,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(notebook.parent)}},
    )
    with client.setup_kernel():
        for place, cell in enumerate(found.cells):
            if cell.cell_type != "code":
                continue
            if "learn" in cell.metadata.get("tags", ()) and find_spec("torch") is None:
                continue
            client.execute_cell(cell, place, execution_count=place + 1)
    count = 0
    for cell in found.cells:
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            # What the console is told, such as how far something is, is not the result.
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for one in cell.outputs:
                if one.output_type == "execute_result":
                    one.execution_count = count
    return found


def shrink(shown: MutableMapping[str, str]) -> None:
    """Make smaller what a cell shows, in its several forms by media type."""
    if "image/png" in shown:
        with Image.open(io.BytesIO(base64.b64decode(shown["image/png"]))) as drawn:
            few = Image.fromarray(in_few_colors(np.asarray(drawn.convert("RGB"))))
        packed = io.BytesIO()
        in_palette = few.quantize(256, dither=Image.Dither.NONE)
        in_palette.save(packed, "PNG", optimize=True)
        shown["image/png"] = base64.b64encode(packed.getvalue()).decode()
    if len(shown) > 1 and len(shown.get("text/plain", "")) > LONGEST_TEXT:
        shown["text/plain"] = shown["text/plain"][:LONGEST_TEXT] + "..."


def main() -> None:
    """Run one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="keep what the cells show")
    options = parser.parse_args()
    found = execute(options.notebook.resolve())
    if options.write:
        for cell in found.cells:
            for one in cell.get("outputs", ()):
                shrink(one.get("data", {}))
        nbformat.write(found, options.notebook)
    outputs = [one for cell in found.cells for one in cell.get("outputs", ())]
    figures = sum("image/png" in one.get("data", {}) for one in outputs)
    print(f"{options.notebook}: {len(found.cells)} cells, {figures} figures")


if __name__ == "__main__":
    main()
