"""Arguments and options that several commands have, what they are read as, and folders written to.

Commands that take a FILE open it here: read, with its policy replaced, its models measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

import inferway
from inferway.cli.terminal import FAILED, CommandError, complain, failing, reason, says
from inferway.spelling import closest

if TYPE_CHECKING:
    from inferway.deployment.policies import Kind
    from inferway.experiments.workers import Workers as Crew


folder = partial(says, metavar="DIR")


file = partial(says, metavar="FILE")


def _quantity(kind: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        from inferway.deployment import units

        try:
            value: float = getattr(units, kind).parse(text)
        except units.QuantityError as error:
            raise typer.BadParameter(str(error)) from None
        if value <= 0:
            raise typer.BadParameter(f"{text} is not above 0")
        return value

    return read


rate, time, size = map(_quantity, ("RATE", "TIME", "SIZE"))


def peak(text: str) -> float | str:
    """Read a peak, a number of times the mean or a percentile."""
    from inferway.workload.peak import read_peak

    try:
        return read_peak(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def count(example: str, most: float) -> Callable[[str], int]:
    """Make what reads a whole number of at least 1, such as the example, below the most."""

    def read(text: str) -> int:
        try:
            value = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number such as {example}") from None
        if not (1 <= value < most and value == int(value)):
            raise typer.BadParameter(f"{text} is not a whole number of at least 1")
        return int(value)

    return read


def completing(kind: Kind) -> Callable[[str], list[str]]:
    """Make what completes the name of a policy."""

    def names(incomplete: str) -> list[str]:
        from inferway.deployment.policies import ROWS

        return [name for name in ROWS[kind] if name.startswith(incomplete)]

    return names


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Deployment file (YAML), or a folder of models.")
]
Node = Annotated[str | None, says("Whose instances are meant, where there are several nodes.")]
Seed = Annotated[int | None, says("The file's if not given.", min=0)]
Policy = Annotated[
    str | None,
    says(
        "Dispatch policy in place of the file's: a name, or ./file.py:Class.",
        metavar="NAME",
        autocompletion=completing("dispatch"),
    ),
]
Workers = Annotated[
    str | None,
    says(
        "So many threads for simulations, processes for studies; or threads:N, processes:N, ray, "
        "ray://HOST:PORT, dask://HOST:PORT.",
        metavar="WORKERS",
        show_default="as many as cores",
    ),
]
KeyFile = Annotated[
    Path | None, file("Holds a key of the server; else INFERWAY_KEY in the environment.")
]


def workers(written: str | None, usual: str) -> Crew:
    """Read --workers, a number of which is so many of the usual engine."""
    from inferway.experiments.workers import workers as read

    with failing(ValueError):
        if written == "0":
            raise ValueError("--workers 0 computes nothing: at least 1")
        return read(written, usual)


def existing(path: Path) -> Path:
    """Return a path that is a file or a folder, or say what it might have been."""
    if path.is_file() or path.is_dir():
        return path
    sentence = f"there is no file {path}"
    near = path.parent if path.parent.is_dir() else Path()
    # Of names that all end alike, what stands before that counts.
    stems = {
        one.stem: one
        for suffix in ("*.yml", "*.yaml")
        for one in sorted(near.glob(suffix))
        if one.exists()  # and is no link to what has gone
    }
    if alike := closest(path.stem, sorted(stems)):
        sentence += f"; did you mean {stems[alike]}?"
    raise CommandError(sentence)


def loaded(path: Path) -> inferway.Deployment:
    """Load a deployment file, and say where its service times come from.

    Those of a zoo are said that this machine's own profiles give, from where and of when.
    """
    deployment = inferway.load(existing(path))
    variants = [one for task in deployment.tasks.values() for one in task.variants.values()]
    uris = {one.model.uri: one for one in variants if one.model is not None}
    for name in sorted({uri.split("/")[2] for uri in uris if uri.startswith("zoo://")}):
        from inferway.catalog import zoo

        kept = zoo.kept_profiles(name)
        taken = (
            one.mean_s == profile.mean_s
            for profile in zoo.profiles(name).values()
            if (variant := uris.get(f"{zoo.SCHEME}{name}/{profile.name}")) is not None
            for one in variant.service.values()
        )
        if kept is not None and any(taken):
            day = datetime.fromtimestamp(kept.stat().st_mtime).isoformat(" ", "minutes")
            complain(
                f"service times of {zoo.SCHEME}{name} are recalled: measured on this machine on "
                f"{day}, in {kept}"
            )
    return deployment


def recalled(deployment: inferway.Deployment) -> inferway.Deployment:
    """Say which overheads were measured by a server, as another machine knows none; return it."""
    for node in deployment.nodes.values():
        if deployment.network is None and (measured := node.measured_overhead) is not None:
            complain(f"the overhead of nodes.{node.name} is recalled: {measured.said}")
    return deployment


def opened(path: Path, policy: str | None = None) -> inferway.Deployment:
    """Load a deployment file, and measure the models whose service times it leaves out.

    A `policy` dispatches every task, in place of what the file says. What is wrong with it is said
    before anything is measured.
    """
    from inferway.deployment import measured

    deployment = loaded(path)
    return measured(deployment if policy is None else redirected(deployment, policy))


def redirected(deployment: inferway.Deployment, policy: str) -> inferway.Deployment:
    """Dispatch every task by this policy; CommandError where there is none of the name.

    A file name in it starts from the current folder, as file names on a command line do.
    """
    return deployment.with_(policy=dispatch_policy(policy))


def dispatch_policy(policy: str) -> str:
    """Return the name of a dispatch policy, its file from the root on; CommandError for none."""
    from inferway.dispatch.contract import POLICIES, policy_class

    if policy not in POLICIES:
        if alike := closest(policy, POLICIES):
            raise CommandError(f"no policy {policy!r}; did you mean {alike!r}?")
        path, colon, name = policy.rpartition(":")
        policy = f"{Path(path).resolve()}{colon}{name}" if colon else policy
        with failing(ValueError):
            policy_class(policy)
    return policy


def placement_policy(policy: str | None, *more: str) -> str | None:
    """Return the name of a placement policy, or say what it might have been.

    None stands for the file's; `more` are names that pass as well.
    """
    from inferway.placement.contract import POLICIES

    names = [*POLICIES, *more]
    if policy is None or policy in names:
        return policy
    alike = closest(policy, names)
    meant = f"did you mean {alike!r}?" if alike else f"there is {', '.join(names)}"
    raise CommandError(f"no placement policy {policy!r}; {meant}")


def server(url: str) -> str:
    """Return a server's address with scheme and port, or say that it is none."""
    from inferway.protocol.address import parse_server

    with failing(ValueError):
        return parse_server(url).url


def key(path: Path | None, role: str = "infer") -> str | None:
    """Read a key from a file, or else from the environment; None where neither is given.

    The file may be the server's own (`inferway.live.security.keys.keys_from`), with its comments
    and roles: the first key counts that has the role, else the first.
    """
    from inferway.live.security.keys import ROLES, parted

    if path is None:
        given = os.environ.get("INFERWAY_KEY")
        return given and parted(given)[1]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CommandError(f"{path} cannot be read: {why}") from error
    words = (word for line in lines if not line.lstrip().startswith("#") for word in line.split())
    keys = [parted(word) for word in words]
    if not keys:
        raise CommandError(f"{path} holds no key")
    return next((one for roles, one in keys if roles & ROLES[role]), keys[0][1])


def writable(out: Path | None, option: str = "--out") -> None:
    """Make a folder and try to write there, before the work whose results it is for."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=out, prefix=".inferway-"):
            pass
    except OSError as error:
        why = "it is no folder" if out.exists() and not out.is_dir() else reason(error)
        raise CommandError(f"nothing can be written to {option} {out}: {why}") from None


def saved(
    out: Path | None, write: Callable[[], list[Path]]
) -> tuple[list[Path], CommandError | None]:
    """Write files to a folder, if one is given; return them, and what to raise at the end."""
    try:
        return ([] if out is None else write()), None
    except OSError as error:
        return [], CommandError(f"not all could be written to {out}: {reason(error)}", FAILED)
