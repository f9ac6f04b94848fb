"""The command line as a whole."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer
import typer.main

from inferway.cli import (
    clients,
    dashboard,
    export,
    files,
    profile,
    serve,
    simulate,
    study,
    terminal,
    train,
    up,
)
from inferway.cli.terminal import says
from inferway.version import __version__

app = typer.Typer(
    name="inferway",
    help="Serve several variants of a model; keep the mean accuracy promised, at the least "
    "latency.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"inferway {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, says("Print the version.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keep the mean accuracy promised, at the least latency."""


_COMMANDS = (
    study.demo, serve.serve, up.up, serve.node, dashboard.dashboard, clients.apply, clients.drive,
    files.bound, files.check, profile.profile, files.init, files.compile_, export.export,
    simulate.simulate, files.place, files.plan, train.train, simulate.replay, files.schema,
    up.certs, clients.conformance,
)  # fmt: skip
for command in _COMMANDS:
    app.command(command.__name__.rstrip("_"))(command)
app.add_typer(study.app, name="study")
app.add_typer(train.zoo, name="zoo")


# Reads the commands' signatures, once: a program may run hundreds of commands.
_commands = functools.cache(partial(typer.main.get_command, app))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments
        Without the program's name; `sys.argv` if not given.

    Returns
    -------
    int
        Exit code: 0 if all went well, 1 if the command failed, 2 if what was asked makes no sense,
        130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _fill_standard_files()
    try:
        with _interruptible():
            code = _commands()(given, prog_name="inferway", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        # CPython remembers a Ctrl-C that came inside of `exec`, which dataclasses use, and would
        # end as if the signal had killed it, whatever the exit code; the next `exec` forgets it.
        exec("")
        return terminal.report(error)
    return code if isinstance(code, int) else 0


def _fill_standard_files() -> None:
    """Open nothing where standard input, output or error are closed.

    The next file or connection would take their number, and what is meant for people go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT end a command that a shell has started in its background.

    Shells without job control start it, and so all that it starts, with that signal ignored, and
    Python leaves it so. What is meant to outlive a terminal ignores SIGHUP, which stays as it is.
    """
    deaf = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    )
    if deaf:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if deaf:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
