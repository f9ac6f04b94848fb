"""Tells Gymnasium of `inferway/EdgeSite-v0`; imported with `inferway` where Gymnasium is there."""

from __future__ import annotations

import gymnasium

ID = "inferway/EdgeSite-v0"
SLOTS = 1000  # Length of an episode that `gymnasium.make` and `gymnasium.make_vec` give by default

if ID not in gymnasium.registry:
    gymnasium.register(
        id=ID,
        entry_point="inferway.learning.environment:edge_site",
        vector_entry_point="inferway.learning.environment:edge_sites",
        max_episode_steps=SLOTS,
    )
