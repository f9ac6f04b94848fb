"""Why a model is not in the store."""

from __future__ import annotations


class StoreError(Exception):
    """A model that cannot be had, with one sentence that says why."""


class ForbiddenSourceError(StoreError):
    """A URI, a host or an address that models must not come from: trying again is useless."""


class UnavailableError(StoreError):
    """The source does not answer, or not with a model: it may later."""


class DamagedError(StoreError):
    """The source has another file than the digest says."""


class NoRoomError(StoreError):
    """The model is larger than what the store, or its disk, has room for now."""
