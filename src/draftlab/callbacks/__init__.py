"""Lightning callbacks: acceptance by position, confidence quality, throughput, progress."""

from draftlab.callbacks.acceptance import AcceptanceCallback
from draftlab.callbacks.confidence import ConfidenceCallback
from draftlab.callbacks.progress import ProgressLines, progress_bar
from draftlab.callbacks.throughput import ThroughputCallback

__all__ = ["AcceptanceCallback", "ConfidenceCallback", "ProgressLines", "ThroughputCallback", "progress_bar"]
