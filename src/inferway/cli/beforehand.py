"""``inferway compile``: what a deployment's policies need, compiled before it is needed."""

from __future__ import annotations

from inferway.cli import terminal
from inferway.cli.file import File, Policy, opened


def compile_(
    file: File,
    policy: Policy = None,
    json: terminal.Json = False,
) -> None:
    """Compile the file's policies for the live server and for the twin.

    What has been compiled is kept, so that the next start takes a second. A change of a policy's
    code, another version of Numba or another processor compiles again.
    """
    from inferway.site.cache import cache_root
    from inferway.twin.simulation import compile_beforehand

    deployment = opened(file, policy)
    with terminal.compiling(not json):
        made = compile_beforehand(deployment)
    seconds = sum(one.seconds for one in made)
    if json:
        terminal.document(
            {
                "schema": 1,
                "folder": str(cache_root()),
                "compiled": [one._asdict() for one in made],
                "seconds": seconds,
            }
        )
    elif made:
        terminal.show(f"Compiled {len(made)} functions in {seconds:.1f} s; kept in {cache_root()}.")
    else:
        terminal.show(f"Nothing to do: all is compiled, in {cache_root()}.")
