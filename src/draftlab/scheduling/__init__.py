"""Scheduling of verification: the SPS table and the choice of prefix lengths."""

from draftlab.scheduling.schedulers import (
    Asynchronous,
    Bypass,
    EarlyStop,
    Fixed,
    GlobalSearch,
    Scheduler,
    Threshold,
)
from draftlab.scheduling.throughput import Throughput

__all__ = ["Asynchronous", "Bypass", "EarlyStop", "Fixed", "GlobalSearch", "Scheduler", "Threshold", "Throughput"]
