"""File descriptors: a process that has none left drops connections, and has to say so."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any, Final

AGAIN: Final = 60
"""Looks, one a second, after which it is said again."""


class Descriptors:
    """Says in the log when no file descriptor is left, and when there are some again.

    The event loop accepts what it cannot keep, closes it at once, and tells nobody.

    Parameters
    ----------
    log
        Where it says so.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._out = 0

    def look(self) -> None:
        """See whether one can be had; to be called every second."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return
            if self._out % AGAIN == 0:
                whose = "process" if error.errno == errno.EMFILE else "system"
                self._log.error(
                    f"no file descriptor of the {whose} is left: new connections are dropped; "
                    "raise the limit, or lower --max-connections",
                    limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                )
            self._out += 1
        else:
            if self._out:
                self._log.info("there are file descriptors again", seconds=self._out)
            self._out = 0
