"""Targets: their spec, the frozen model that gives features, and where weights come from."""

from draftlab.hardware import find_device
from draftlab.target.derive import check_against_config, derive_spec
from draftlab.target.ends import TargetEnds
from draftlab.target.frozen import FrozenTarget, TargetOutput
from draftlab.target.spec import TargetSpec
from draftlab.target.weights import load_ends, load_target, load_tokenizer

__all__ = [
    "FrozenTarget",
    "TargetEnds",
    "TargetOutput",
    "TargetSpec",
    "check_against_config",
    "derive_spec",
    "find_device",
    "load_ends",
    "load_target",
    "load_tokenizer",
]
