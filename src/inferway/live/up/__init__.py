"""All nodes of a deployment on this machine, each a process of its own.

- `Up`: starts them, tells where and how they are, kills and starts single ones, stops them all.
- `NodeProcess`: one node's process, over all its starts.
- `UpError`: why the nodes cannot be run, in a sentence.
"""

from inferway.live.up.error import UpError
from inferway.live.up.process import NodeProcess, State
from inferway.live.up.up import Up

__all__ = ["NodeProcess", "State", "Up", "UpError"]
