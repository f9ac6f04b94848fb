"""``inferway simulate`` on a file with a network: slot by slot, or request by request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from inferway.cli import failure, terminal
from inferway.cli.failure import REFUSED, CommandError
from inferway.cli.file import saved
from inferway.spelling import closest

if TYPE_CHECKING:
    from inferway.deployment import Deployment


def simulate_network(
    deployment: Deployment,
    *,
    slots: int,
    policy: str | None,
    seed: int | None,
    regret: bool,
    events: bool,
    fetch_rate: float | None,
    out: Path | None,
    json: bool,
    progress: Callable[[str, int], None] | None,
) -> Callable[[], None]:
    """Run the network twin.

    Returns
    -------
    callable
        Prints what was found and writes figures to `out`, once the progress bar is gone.
    """
    import inferway
    from inferway.twin.simulation import INTERRUPTED

    result = inferway.simulate(
        deployment,
        slots=slots,
        policy=known(policy, written=True),
        seed=seed,
        regret=regret,
        events=events,
        fetch_rate=fetch_rate,
        progress=progress,
    )
    found = result.network
    assert found is not None  # the file has a network
    document = result.to_json()

    def tell() -> None:
        images: list[Path] = []
        failed: CommandError | None = None
        if out is not None:
            from inferway.experiments.networks import figures
            from inferway.network import topology_of

            title = f"{deployment.path.name}, {found.policy}"
            topology = topology_of(deployment)
            images, failed = saved(out, lambda: figures(found, topology, out, title=title))
        if json:
            extra: dict[str, Any] = {"figures": [str(one) for one in images]} if images else {}
            terminal.document({**document, **extra})
        else:
            from inferway.experiments.networks import tables

            terminal.show(*tables(found), *(str(one) for one in images))
        if failed is not None:
            raise failed
        if INTERRUPTED in found.notes:
            raise typer.Exit(failure.INTERRUPTED)

    return tell


def requests_in(deployment: Deployment, slots: int) -> int:
    """Tell how many requests come in so many slots, on average; none where nothing says it."""
    from inferway.network import demand_of

    return round(float(demand_of(deployment).expected(0).sum()) * slots)


def known(policy: str | None, *, written: bool = False) -> str | None:
    """Return the name of a placement policy, or say what it might have been.

    Parameters
    ----------
    policy
        None stands for the file's.
    written
        Whether what the file lists is one of them.
    """
    from inferway.placement.table import POLICIES
    from inferway.placement.written import WRITTEN

    names = [*POLICIES, WRITTEN] if written else list(POLICIES)
    if policy is None or policy in names:
        return policy
    alike = closest(policy, names)
    meant = f"did you mean {alike!r}?" if alike else f"there is {', '.join(names)}"
    raise CommandError(f"no placement policy {policy!r}; {meant}", REFUSED)
