"""Run the cells of a notebook of the documentation anew; with --write, keep what they show.

    python docs/execute.py docs/tour.ipynb [--write]

A cell with the tag `learn` runs where PyTorch is installed; elsewhere what it showed stays.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient


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


def main() -> None:
    """Run one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="keep what the cells show")
    options = parser.parse_args()
    found = execute(options.notebook.resolve())
    if options.write:
        nbformat.write(found, options.notebook)
    outputs = [one for cell in found.cells for one in cell.get("outputs", ())]
    figures = sum("image/png" in one.get("data", {}) for one in outputs)
    print(f"{options.notebook}: {len(found.cells)} cells, {figures} figures")


if __name__ == "__main__":
    main()
