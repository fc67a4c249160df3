"""DraftLab: train, calibrate, evaluate, schedule and ship draft models for speculative decoding."""

__version__ = "0.1.0"
