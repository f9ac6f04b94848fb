"""Policies of all three kinds: which name, file or class object means which.

- `policy_class`: the class of a dispatch, scheduling or placement policy by its name.
"""

from inferway.policies.registry import policy_class

__all__ = ["policy_class"]
