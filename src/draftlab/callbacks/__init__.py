"""Lightning callbacks: acceptance by position, confidence quality, throughput, progress, the newest state."""

from draftlab.callbacks.acceptance import AcceptanceCallback
from draftlab.callbacks.confidence import ConfidenceCallback
from draftlab.callbacks.latest import LatestCheckpoint
from draftlab.callbacks.progress import ProgressLines, progress_bar
from draftlab.callbacks.throughput import ThroughputCallback

__all__ = [
    "AcceptanceCallback",
    "ConfidenceCallback",
    "LatestCheckpoint",
    "ProgressLines",
    "ThroughputCallback",
    "progress_bar",
]
