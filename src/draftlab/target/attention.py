"""Explicit attention masks for every layer of a target: full, sliding-window and chunked layers.

A decode cache with rows of unequal length says itself which slots a query sees. Families with windows restrict that
further, each layer by its own rule (q, k token positions; w window; c chunk):

    full: as given        sliding: k > q - w        chunked: k // c == q // c

transformers takes an explicit mask as it is for all layers, so the windows are added here. Knows nothing of caches.

    masks = LayerMasks(model.config).per_layer(visible, positions, torch.float32)     # {layer index: mask}
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerMasks:
    """Turns one explicit mask into what each layer of a model needs.

    Args:
        config: the model's transformers config, nested or plain.
    """

    def __init__(self, config) -> None:
        text = config.get_text_config(decoder=True)
        self._implementation = getattr(text, "_attn_implementation", None)
        self._window = getattr(text, "sliding_window", None)
        self._chunk = getattr(text, "attention_chunk_size", None)
        types = getattr(text, "layer_types", None)
        if types is None:  # one rule for all layers, as transformers' own masking has it
            rule = "sliding_attention" if self._window else "chunked_attention" if self._chunk else "full_attention"
            types = [rule] * text.num_hidden_layers
        self.layer_types = tuple(types)

    def full(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask [B, 1, Q, K] as the attention implementation wants it: bool for SDPA, else additive in ``dtype``.

        A query that sees nothing (padding) would get NaN and spread it through its keys; it sees everything instead.
        """
        visible = visible | ~visible.any(-1, keepdim=True)
        if self._implementation == "sdpa":
            return visible
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)

    def per_layer(self, visible: Tensor, positions: Tensor, dtype: torch.dtype) -> dict[int, Tensor]:
        """Masks of the layers that restrict ``visible`` [B, 1, Q, K] further, by layer index.

        Args:
            visible: slots that each query may see; slot index = token position.
            positions: token positions of the queries [B, Q].
            dtype: of additive masks.

        Raises:
            ValueError: a layer that is no attention over all slots, such as a recurrent one.
        """
        queries = positions[:, None, :, None]
        slots = torch.arange(visible.shape[-1], device=visible.device)
        built: dict[str, Tensor] = {}
        for kind in set(self.layer_types) - {"full_attention"}:
            if kind == "sliding_attention":
                inside = slots > queries - self._window
            elif kind == "chunked_attention":
                inside = slots // self._chunk == queries // self._chunk
            else:
                raise ValueError(
                    f"a target with layers of type {kind!r} cannot be decoded with per-row cache positions; "
                    "only full, sliding-window and chunked attention can"
                )
            built[kind] = self.full(visible & inside, dtype)
        return {i: built[kind] for i, kind in enumerate(self.layer_types) if kind in built}
