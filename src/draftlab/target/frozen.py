"""FrozenTarget: any causal LM of Hugging Face as a frozen reader of tokens, and as the plain generator.

    features    = [H^(l1); …; H^(lm)]   raw outputs of the tapped decoder layers, by forward hooks       (method 2.1)
    last_hidden = norm(H^(L-1))         the last hidden state after the final norm; logits(last_hidden) = p_t's logits

The final norm matters: teacher states taken before it train without a visible fault and lose a third of the accepted
length, so :meth:`FrozenTarget.self_check` compares against the model's own logits (case 1). Model families differ here
by structure only (:mod:`draftlab.target.structure`). The module knows nothing of chats, drafters or training.

    target = FrozenTarget(model, spec)
    output = target(input_ids)                             # TargetOutput(features [B, Q, M*D], last_hidden [B, Q, D])
"""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftlab.sampling import Sampling
from draftlab.target.attention import LayerMasks
from draftlab.target.ends import TargetEnds
from draftlab.target.flat import Flat, flat_attention
from draftlab.target.products import freeze_products
from draftlab.target.spec import TargetSpec
from draftlab.target.structure import decoder_and_layers, end_tensors, eos_token_ids, generation_config
from draftlab.types import Batch

LOGIT_ELEMENTS = 1 << 24  # largest [positions, V] of logits held at a time: 64 MB in float32
CACHED_ELEMENTS = 1 << 22  # the same where logits should fit into a CPU's caches


@dataclass(frozen=True)
class TargetOutput:
    """What the target says of Q tokens."""

    features: Tensor  # [B, Q, M*D], in the order of target_layer_ids
    last_hidden: Tensor  # [B, Q, D], after the final norm


class FrozenTarget(nn.Module):
    """A causal LM that never trains and never enters a checkpoint.

    The model is kept outside of the module tree: ``parameters()`` and ``state_dict()`` are empty, so optimizers,
    checkpoints and data-parallel wrappers do not see it, while ``.to(device)`` still moves it.

    Args:
        model: a causal LM of transformers.
        spec: its description; the ends take scales and cap from it.

    Raises:
        ValueError: a model without decoder layers, LM head or enough layers for ``target_layer_ids``.
    """

    def __init__(self, model: nn.Module, spec: TargetSpec) -> None:
        from transformers import GenerationConfig

        super().__init__()
        super().train(False)
        model.eval().requires_grad_(False)
        freeze_products(model)
        object.__setattr__(self, "model", model)
        # The end ids are known from here on, and the spec checks again that none of them is the mask id (case 15).
        self.spec = dataclasses.replace(spec, eos_token_ids=spec.eos_token_ids or eos_token_ids(model))
        self.eos_token_ids = self.spec.eos_token_ids
        # Penalties and cuts that a model's files suggest would leave p_t; all sampling is said explicitly.
        model.generation_config = GenerationConfig()
        decoder, layers = decoder_and_layers(model)
        if len(layers) <= spec.target_layer_ids[-1] + 1:
            raise ValueError(
                f"target.target_layer_ids {list(spec.target_layer_ids)} do not fit a model of {len(layers)} layers; "
                f"use ids of at most {len(layers) - 2}"
            )
        object.__setattr__(self, "_decoder", decoder)
        object.__setattr__(self, "_layers", layers)
        self._masks = LayerMasks(model.config)
        accepted = inspect.signature(decoder.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self.ends = TargetEnds(*end_tensors(model), spec.embedding_scale, spec.logit_scale, spec.logit_softcap)

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers, from the first; frozen like everything here."""
        return list(self._layers)

    @property
    def device(self) -> torch.device:
        """Device of the frozen weights."""
        return self.ends.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the frozen weights, and so of features and last hidden states."""
        return self.ends.embedding.dtype

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache=None,
        flat: Flat | None = None,
    ):
        """Read Q tokens and return their :class:`TargetOutput`; no logits are computed.

        Args:
            input_ids: [B, Q].
            positions: token positions [B, Q]; None counts on from the cache, or from 0.
            attention_mask: bool [B, Q], True on real tokens, without a cache; or bool [B, 1, Q, K] that says for every
                query which cache slots it sees, slot index = token position. Sliding windows are added per layer.
            cache: a transformers cache that the new keys and values are written to.
            flat: input_ids and positions are [1, T], rows laid end to end like this; the mask stays [B, 1, Q, K].
        """
        options = {self._cache_name: cache, "use_cache": cache is not None}
        if positions is not None:
            options["position_ids"] = positions
        windows = {}
        if attention_mask is not None and attention_mask.dim() == 4:
            if positions is None:
                raise ValueError("an explicit attention mask [B, 1, Q, K] needs the positions [B, Q] of its queries")
            options["attention_mask"] = self._masks.full(attention_mask, self.dtype)
            queries = positions if flat is None else flat.pad(positions[0])
            windows = self._masks.per_layer(attention_mask, queries, self.dtype)
        elif attention_mask is not None:
            options["attention_mask"] = attention_mask.long()
        tapped: dict[int, Tensor] = {}
        hooks = self._hook(tapped, windows)
        try:
            with nullcontext() if flat is None else flat_attention(self.model.config, flat):
                last_hidden = self._decoder(input_ids=input_ids, return_dict=True, **options).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return TargetOutput(torch.cat([tapped[i] for i in self.spec.target_layer_ids], dim=-1), last_hidden)

    def _hook(self, tapped: dict[int, Tensor], windows: dict[int, Tensor]) -> list:
        """Hooks for one forward pass: fill ``tapped`` with layer outputs, hand each windowed layer its own mask."""

        def keep_input(module, args, kwargs):
            tapped[-1] = args[0] if args else kwargs["hidden_states"]

        def keep_output(index):
            def hook(module, args, output):
                tapped[index] = output[0] if isinstance(output, tuple) else output

            return hook

        def replace_mask(mask):
            def hook(module, args, kwargs):
                return args, kwargs | {"attention_mask": mask}

            return hook

        hooks = [self._layers[i].register_forward_hook(keep_output(i)) for i in self.spec.target_layer_ids if i >= 0]
        if -1 in self.spec.target_layer_ids:
            hooks.append(self._layers[0].register_forward_pre_hook(keep_input, with_kwargs=True))
        for i, mask in windows.items():
            hooks.append(self._layers[i].register_forward_pre_hook(replace_mask(mask), with_kwargs=True))
        return hooks

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's logits [..., V] of last hidden states [..., D]."""
        return self.ends.logits(hidden)

    @torch.no_grad()
    def read(self, batch: Batch, log_normalizer: bool = True) -> Batch:
        """Fill in ``features``, ``last_hidden`` and, if asked, ``log_normalizer`` of a right-padded batch.

        Values at padding are finite and mean nothing.
        """
        # No mask: padding stands at the right, where causal attention hides it, and unmasked attention is faster.
        output = self(batch.input_ids)
        normalizer = self.log_normalizer(output.last_hidden) if log_normalizer else None
        return dataclasses.replace(
            batch, features=output.features, last_hidden=output.last_hidden, log_normalizer=normalizer
        )

    @torch.no_grad()
    def log_normalizer(self, last_hidden: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """log Σ_v exp(logit_v) [...] over the whole vocabulary, float32, a few rows of logits at a time.

        ``dtype`` is that of the product with the LM head; None: the target's own. The sum is always float32.
        """
        rows = last_hidden.reshape(-1, last_hidden.shape[-1])
        dtype = dtype or self.dtype
        head = None if dtype == self.dtype else self.ends.head.to(dtype)
        # A CPU's bfloat16 products outrun its memory, so that their logits must stay in its caches.
        elements = CACHED_ELEMENTS if self.device.type == "cpu" and dtype == torch.bfloat16 else LOGIT_ELEMENTS
        step = max(1, elements // self.ends.vocab_size)
        parts = [torch.logsumexp(self.ends.logits(part, rows=head).float(), dim=-1) for part in rows.split(step)]
        total = torch.cat(parts) if parts else rows.new_zeros(0)
        return total.reshape(last_hidden.shape[:-1]).float()

    @torch.no_grad()
    def self_check(
        self, input_ids: Tensor, last_hidden: Tensor | None = None, compute_dtype: torch.dtype | None = None
    ) -> None:
        """Refuse teacher states whose logits are not the target's own (case 1).

        Args:
            input_ids: real tokens [B, Q] without padding, from position 0.
            last_hidden: stored states [B, Q, D] to check; None checks what :meth:`forward` returns.
            compute_dtype: of the matrix products that made the stored states; None: the target's own.

        Raises:
            ValueError: LM head over the states differs from the model's logits, or the embedding scale is wrong.
        """
        input_ids = input_ids.to(self.device)
        if last_hidden is None:
            last_hidden = self(input_ids).last_hidden
        expected = self.model(input_ids=input_ids, use_cache=False).logits.float()
        error = (self.ends.logits(last_hidden.to(self.device)).float() - expected).abs().max().item()
        # Another dtype of the stored states costs their rounding (bfloat16: 8 bits); a missing norm costs everything.
        dtypes = (last_hidden.dtype, self.dtype, compute_dtype or self.dtype)
        coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
        allowed = max(1e-3, 8 * coarsest) * expected.abs().max().item()
        if not error <= allowed:
            raise ValueError(
                f"target {self.spec.name!r}: the LM head over the last hidden state differs from the model's own "
                f"logits by {error:.3g} (allowed {allowed:.3g}). The state must be taken after the final norm, and "
                f"target.logit_scale ({self.spec.logit_scale}) and target.logit_softcap ({self.spec.logit_softcap}) "
                "must be the model's own"
            )
        self._check_embedding_scale(input_ids)

    def _check_embedding_scale(self, input_ids: Tensor) -> None:
        """The first layer's input must be the scaled embedding, unless the family adds positions to it."""
        seen: list[Tensor] = []
        hook = self._layers[0].register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        try:
            self._decoder(input_ids=input_ids, use_cache=False)
        finally:
            hook.remove()
        ours, theirs = self.ends.embed(input_ids).float(), seen[0].float()
        factor = ((ours * theirs).sum() / ours.square().sum()).item()
        multiple = torch.allclose(ours * factor, theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())
        if multiple and abs(factor - 1) > 0.01:
            raise ValueError(
                f"target {self.spec.name!r}: target.embedding_scale is {self.spec.embedding_scale:.6g}, but the model "
                f"multiplies its embeddings by {self.spec.embedding_scale * factor:.6g}; set it to that"
            )

    @torch.no_grad()
    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        seed: int | None = None,
    ) -> list[list[int]]:
        """Write answers by plain decoding: new tokens of every prompt, up to and including its first end token.

        Args:
            prompts: token ids of each prompt; they are left-padded together.
            sampling: law of the tokens; None takes the target's recommended one.
            max_new_tokens: length at which an answer is cut.
            seed: makes the draws repeatable without touching the global random state; None draws from the global one.
        """
        if not prompts or not all(prompts):
            raise ValueError("generate needs at least one prompt, and every prompt at least one token")
        longest, pad = max(map(len, prompts)), self.pad_token_id
        rows = [[pad] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        config = generation_config(sampling or self.spec.sampling, max_new_tokens, self.eos_token_ids, pad)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            output = self.model.generate(
                input_ids=torch.tensor(rows, device=self.device),
                attention_mask=torch.tensor(mask, device=self.device),
                generation_config=config,
            )
        return [self._until_end(row) for row in output[:, longest:].tolist()]

    @property
    def pad_token_id(self) -> int:
        """Filler of shorter rows; it is masked everywhere, so any id serves."""
        return self.spec.pad_token_id if self.spec.pad_token_id is not None else (*self.eos_token_ids, 0)[0]

    def _until_end(self, tokens: list[int]) -> list[int]:
        ends = [i for i, token in enumerate(tokens) if token in self.eos_token_ids]
        return tokens[: ends[0] + 1] if ends else tokens

    def train(self, mode: bool = True):
        """Stay in evaluation mode whatever the module around is told."""
        return super().train(False)

    def _apply(self, fn, recurse: bool = True):
        """Move or cast the frozen model too, and keep the ends sharing its tensors."""
        super()._apply(fn, recurse)
        self.model._apply(fn)
        self.ends.share(*end_tensors(self.model))
        return self
