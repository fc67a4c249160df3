"""Calibration: Sequential Temperature Scaling, its measures, and its file."""

from draftlab.calibration.fitting import calibrate
from draftlab.calibration.measures import CONDITIONAL, SURVIVAL, measure_table
from draftlab.calibration.record import FILE, Calibration
from draftlab.calibration.sts import calibrated, confidence_logits, fit

__all__ = [
    "CONDITIONAL",
    "FILE",
    "SURVIVAL",
    "Calibration",
    "calibrate",
    "calibrated",
    "confidence_logits",
    "fit",
    "measure_table",
]
