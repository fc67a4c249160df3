"""Scheduling of verification: the SPS table and the choice of prefix lengths."""

from draftlab.scheduling.bypass import Bypass
from draftlab.scheduling.drafting import Drafting
from draftlab.scheduling.schedulers import (
    Asynchronous,
    EarlyStop,
    Fixed,
    GlobalSearch,
    Scheduler,
    Threshold,
)
from draftlab.scheduling.throughput import Throughput

__all__ = [
    "Asynchronous",
    "Bypass",
    "Drafting",
    "EarlyStop",
    "Fixed",
    "GlobalSearch",
    "Scheduler",
    "Threshold",
    "Throughput",
]
