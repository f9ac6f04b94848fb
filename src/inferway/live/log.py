"""Structured logs: JSON lines on standard error, or a human form on a terminal."""

from __future__ import annotations

import sys
from typing import Any

import structlog


def logger(level: str = "info") -> structlog.typing.FilteringBoundLogger:
    """Make a logger of the server's own; structlog's global settings stay the application's.

    Parameters
    ----------
    level
        ``debug``, ``info``, ``warning`` or ``error``: the least that is written.
    """
    terminal = sys.stderr.isatty()
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if terminal:
        processors.append(structlog.dev.ConsoleRenderer(sort_keys=False))
    else:
        processors += [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    wrapped: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return wrapped
