"""Errors of a live server: of its deployment, its listeners, its models and where they lie."""


class ServeError(ValueError):
    """A deployment that cannot be served, with a sentence for each reason."""


class LoadError(ValueError):
    """A model that cannot be served; the message begins with its variant."""


class WarmUpError(RuntimeError):
    """A model that cannot answer its first request."""


class PortError(OSError):
    """A listener that has no port.

    Parameters
    ----------
    listener
        `http`, `grpc`, `admin` or, of a node, `peer`.
    host, port
        Where it was to listen.
    why
        What is wrong with that.
    """

    def __init__(self, listener: str, host: str, port: int, why: str) -> None:
        super().__init__(f"the {listener} listener cannot have port {port} at {host}: {why}")
        self.listener, self.host, self.port, self.why = listener, host, port, why


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
