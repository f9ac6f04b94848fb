"""Why a deployment cannot be served."""


class ServeError(ValueError):
    """A deployment that cannot be served, with a sentence for each reason."""
