"""The open-loop load generator: requests go out at their times, whatever the answers do.

`drive` sends one task's requests, `replay` several tasks' at once, `run` a deployment's own
workload, `drive_network` that of a network to its nodes; `LabeledFiles` are the user's own inputs
and labels. `Access` is for servers that ask for a key or have certificates of an own authority.
`summary` and `network_summary` put a record into a few numbers, `measured_ntag` into the network
twin's terms.
"""

from inferway.loadgen.access import Access, AddressError, DriveError, addresses_of
from inferway.loadgen.labels import LabeledFiles
from inferway.loadgen.network_record import (
    MeasuredGain,
    NetworkRecord,
    NetworkSummary,
    measured_ntag,
    network_summary,
    profile_accuracy,
)
from inferway.loadgen.record import Record, Summary, summary
from inferway.loadgen.streams import URL, Stream, drive, drive_network, replay, run

__all__ = [
    "URL",
    "Access",
    "AddressError",
    "DriveError",
    "LabeledFiles",
    "MeasuredGain",
    "NetworkRecord",
    "NetworkSummary",
    "Record",
    "Stream",
    "Summary",
    "addresses_of",
    "drive",
    "drive_network",
    "measured_ntag",
    "network_summary",
    "profile_accuracy",
    "replay",
    "run",
    "summary",
]
