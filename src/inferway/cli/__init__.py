"""The commands; each one calls the Python API and shows what it returns."""

from inferway.cli.app import main

__all__ = ["main"]
