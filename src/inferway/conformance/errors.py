"""What ends a check before it has its evidence."""


class ViolationError(Exception):
    """The server did what its clause does not allow; the message is the evidence."""


class NotOfferedError(Exception):
    """The server does without something optional; the message is the evidence."""
