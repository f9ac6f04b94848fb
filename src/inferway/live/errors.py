"""Why a deployment cannot be served, a listener has no port, a model cannot run."""


class ServeError(ValueError):
    """A deployment that cannot be served, with a sentence for each reason."""


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
