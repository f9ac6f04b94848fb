"""A request that cannot be served, and why."""

from __future__ import annotations


class RefusalError(ValueError):
    """Ends a request with an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def long_json(limit: int) -> str:
    """Say that the JSON of a request is too long, and what is not."""
    return (
        f"the JSON is larger than the limit of {limit} bytes; send large tensors in binary form, "
        "with Inference-Header-Content-Length and binary_data_size"
    )
