"""The version, which whatever names it can import without the package's face."""

__version__ = "0.2.0"

NODE_PROTOCOL = 1
"""Version of all that nodes say to each other, with requests and over the control plane.

A node leaves aside what it does not know: header lines, and fields behind those that it knows. The
version is raised where that is not enough; what says a later one is refused.
"""
