"""An account of the bodies of requests that a server holds, whatever protocol brought them."""

from __future__ import annotations


class Bodies:
    """Counts the bytes of all bodies that are held: unfinished, unpacked, waiting.

    Parameters
    ----------
    limit
        Most bytes at a time, over all connections of all listeners.

    Attributes
    ----------
    held
        Bytes now.
    refused
        How many bodies found no room.
    """

    __slots__ = ("held", "limit", "refused")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0

    @property
    def reason(self) -> str:
        """Why a request is refused for want of room."""
        return (
            f"the bodies of all requests together would take more than the limit of {self.limit} "
            "bytes"
        )

    def reserve(self, size: int) -> bool:
        """Count `size` more bytes; without room for them count a refusal and say no."""
        held = self.held + size
        if held > self.limit:
            self.refused += 1
            return False
        self.held = held
        return True

    def release(self, size: int) -> None:
        """Count `size` bytes no more."""
        self.held -= size
