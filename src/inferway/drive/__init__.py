"""The open-loop load generator: requests go out at their times, whatever the answers do.

`drive` sends one task's requests, `replay` several tasks' at once, `run` a deployment's own
workload; `summary` puts a record into a few numbers.
"""

from inferway.drive.address import DriveError
from inferway.drive.process import drive, replay
from inferway.drive.record import Record
from inferway.drive.stream import Stream
from inferway.drive.summary import Summary, summary
from inferway.drive.workload import run

__all__ = ["DriveError", "Record", "Stream", "Summary", "drive", "replay", "run", "summary"]
