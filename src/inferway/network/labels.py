"""Names for nodes that a deployment file can use, from the labels of a graph file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence


def unique_names(
    labels: Sequence[str], ids: Sequence[str], skip: set[int]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Name every node; a label that several share gets their ids.

    Parameters
    ----------
    labels, ids
        (n,) of the file; a label may be empty or ``None``.
    skip
        Nodes that need no name of their own.

    Returns
    -------
    (n,) names, and (label, name) where they differ.
    """
    plain_ids = [plain(one) for one in ids]
    names = [plain(label) for label in labels]
    names = [
        f"node-{plain_ids[k]}" if name.lower() in {"", "none"} else name
        for k, name in enumerate(names)
    ]
    times = Counter(name for k, name in enumerate(names) if k not in skip)
    taken = {name for name, count in times.items() if count == 1}
    renamed = []
    for k, name in enumerate(names):
        if k in skip:
            continue
        if times[name] > 1:
            candidate, tries = f"{name}-{plain_ids[k]}", 2
            while candidate in taken:
                candidate, tries = f"{name}-{plain_ids[k]}-{tries}", tries + 1
            names[k] = candidate
            taken.add(candidate)
        if names[k] != labels[k]:
            renamed.append((labels[k], names[k]))
    return names, renamed


def plain(label: str) -> str:
    """Turn a label into a name: New York is New-York."""
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in label)
    return re.sub("-+", "-", kept).strip("-.")[:150].rstrip("-.")
