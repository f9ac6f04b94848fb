"""The version, which whatever names it can import without the package's face."""

__version__ = "0.2.0"
