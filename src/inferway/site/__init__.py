"""One node's queues as arrays: the view that policies see, decisions and random words.

What a policy may import:

- `Site`, `Request`, `Answer`, `Event`: the views.
- `REJECT`, `HOLD`, `ACCEPT`; `DISPATCHED`, `COMPLETED`, `WITHDRAWN`, `SETTLED`.
- `uniform(draw, i)`, and the selections `idle_in`, `any_in`, `shortest_in`, ...
"""

from inferway.site.confidence import ConfidenceTables
from inferway.site.draw import uniform
from inferway.site.fleet import Fleet, fleet_of
from inferway.site.selection import (
    any_between,
    any_in,
    class_of_any,
    has_class,
    idle_classes,
    idle_in,
    predicted_join,
    predicted_service,
    predicted_wait,
    shortest_in,
)
from inferway.site.view import (
    ACCEPT,
    ALL_CLASSES,
    COMPLETED,
    DISPATCHED,
    HOLD,
    REJECT,
    SETTLED,
    WITHDRAWN,
    Answer,
    Event,
    Request,
    Site,
    empty_site,
)

__all__ = [
    "ACCEPT",
    "ALL_CLASSES",
    "COMPLETED",
    "DISPATCHED",
    "HOLD",
    "REJECT",
    "SETTLED",
    "WITHDRAWN",
    "Answer",
    "ConfidenceTables",
    "Event",
    "Fleet",
    "Request",
    "Site",
    "any_between",
    "any_in",
    "class_of_any",
    "empty_site",
    "fleet_of",
    "has_class",
    "idle_classes",
    "idle_in",
    "predicted_join",
    "predicted_service",
    "predicted_wait",
    "shortest_in",
    "uniform",
]
