"""``inferway schema``: the deployment file's grammar, for editors."""

from __future__ import annotations

from inferway.cli import terminal


def schema(json: terminal.Json = False) -> None:
    """Print the JSON Schema of the deployment file, with which editors complete and check it."""
    import inferway

    terminal.document(inferway.schema())
