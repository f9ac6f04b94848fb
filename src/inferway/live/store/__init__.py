"""Models that a node fetches and keeps, each known by its digest.

- `ModelStore`: a folder of models, and the way to each.
- `Allowed`: where models may come from.
- `StoreError` and what it is made of: why a model cannot be had, in a sentence.
"""

from inferway.live.errors import (
    DamagedError,
    ForbiddenSourceError,
    NoRoomError,
    StoreError,
    UnavailableError,
)
from inferway.live.store.allowed import Allowed
from inferway.live.store.store import ModelStore

__all__ = [
    "Allowed",
    "DamagedError",
    "ForbiddenSourceError",
    "ModelStore",
    "NoRoomError",
    "StoreError",
    "UnavailableError",
]
