"""The open-loop load generator: requests go out at their times, whatever the answers do.

`drive` sends one task's requests, `replay` several tasks' at once, `run` a deployment's own
workload, `drive_network` that of a network to its nodes; `Access` is for servers that ask for a key
or have certificates of an own authority. `summary` and `network_summary` put a record into a few
numbers, `measured_ntag` into the network twin's.
"""

from inferway.drive.access import Access
from inferway.drive.addresses import addresses_of
from inferway.drive.error import AddressError, DriveError
from inferway.drive.measured import MeasuredGain, measured_ntag
from inferway.drive.network import drive_network
from inferway.drive.network_record import NetworkRecord
from inferway.drive.network_summary import NetworkSummary, network_summary
from inferway.drive.process import drive, replay
from inferway.drive.record import Record
from inferway.drive.stream import Stream
from inferway.drive.summary import Summary, summary
from inferway.drive.workload import run

__all__ = [
    "Access",
    "AddressError",
    "DriveError",
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
    "replay",
    "run",
    "summary",
]
