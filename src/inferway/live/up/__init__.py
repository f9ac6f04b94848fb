"""All nodes of a deployment on this machine, each a process of its own.

- `Up`: starts them, tells where and how they are, kills and starts single ones, stops them all.
- `NodeProcess`: one node's process, over all its starts.
- `Watch`: how all of them are, a `Glance` at each at a time.
- `UpError`: why the nodes cannot be run, in a sentence.
"""

from inferway.live.up.error import UpError
from inferway.live.up.process import NodeProcess, State
from inferway.live.up.up import Up
from inferway.live.up.watch import Glance, Watch

__all__ = ["Glance", "NodeProcess", "State", "Up", "UpError", "Watch"]
