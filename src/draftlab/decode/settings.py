"""How to decode: sampling, length, stop tokens, batch. It knows nothing of models.

DecodeSettings(max_new_tokens=128, sampling=Sampling(0.7), eos_token_ids=(2,))
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftlab.decode.exits import ExitPolicy
from draftlab.sampling import Sampling


@dataclass(frozen=True)
class DecodeSettings:
    """How to decode.

    Args:
        max_new_tokens: tokens a prompt gets at most.
        sampling: transforms of both laws; the drafter draws with the same.
        eos_token_ids: stop tokens; the first one ends a row and is its last token.
        batch_size: rows at a time.
        prefill_tokens: padded prompt tokens that one forward pass reads at most (one prompt always goes).
        exit: what may be left out of drafting; None: nothing.

    Raises:
        ValueError: a value outside its range.
    """

    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    eos_token_ids: tuple[int, ...] = ()
    batch_size: int = 16
    prefill_tokens: int = 4096
    exit: ExitPolicy | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "prefill_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be at least 1 and whole, got {value!r}")
