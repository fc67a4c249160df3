"""Lightning callbacks: acceptance by position, confidences before and after scaling, throughput, progress, the newest state."""

from draftlab.callbacks.acceptance import AcceptanceCallback
from draftlab.callbacks.calibration import CalibrationCallback
from draftlab.callbacks.confidence import ConfidenceCallback
from draftlab.callbacks.latest import LatestCheckpoint
from draftlab.callbacks.progress import ProgressLines, progress_bar
from draftlab.callbacks.throughput import ThroughputCallback

__all__ = [
    "AcceptanceCallback",
    "CalibrationCallback",
    "ConfidenceCallback",
    "LatestCheckpoint",
    "ProgressLines",
    "ThroughputCallback",
    "progress_bar",
]
