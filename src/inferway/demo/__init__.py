"""The demo: four policies on real models and real images, here and now."""

from inferway.demo.error import DemoError
from inferway.demo.result import DemoResult, PolicyResult
from inferway.demo.run import run

__all__ = ["DemoError", "DemoResult", "PolicyResult", "run"]
