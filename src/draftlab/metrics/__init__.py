"""torchmetrics with fixed-size sum states: conditional acceptance, accepted length, calibration error, ROC-AUC."""

from draftlab.metrics.acceptance import AcceptedLength, ConditionalAcceptance, reach
from draftlab.metrics.confidence import CalibrationError, RocAuc
from draftlab.metrics.sample import BlockSample

__all__ = ["AcceptedLength", "BlockSample", "CalibrationError", "ConditionalAcceptance", "RocAuc", "reach"]
