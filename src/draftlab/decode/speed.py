"""Wall-clock speed of speculative against plain decoding, on the same prompts in the same run.

    ratio = (tokens/s speculative) / (tokens/s plain)        both with the same loop, cache, batching and prefill

The two sides take turns, batch by batch, so that a machine that slows down slows both. It knows nothing of text.

    compare_speed(target, drafter, prompts, DecodeSettings(max_new_tokens=64, batch_size=1))["ratio"]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from draftlab.decode.budget import Budget
from draftlab.decode.loop import Decoder, DecodeSettings


def compare_speed(
    target, drafter, prompts: Sequence[list[int]], settings: DecodeSettings, budget: Budget | None = None
) -> dict[str, Any]:
    """Tokens per second of plain and speculative decoding of the same ``prompts``, batch by batch in turns.

    A short warm-up of both sides is not counted; reading the prompts is. ``identical_outputs`` counts prompts that got
    the same tokens from both, which at temperature 0 is all of them, up to ties broken by rounding. ``rounds`` are those
    of batches, so that (draft_seconds + verify_seconds) / rounds is the latency of a round at ``batch_size``.
    """
    seconds, tokens, answers = [0.0, 0.0], [0, 0], [[], []]
    clocks: dict[str, float] = {"draft": 0.0, "verify": 0.0, "schedule": 0.0, "prefill": 0.0}
    rounds = 0
    drafters = (None, drafter)
    for side in drafters:
        Decoder(target, side, replace(settings, max_new_tokens=2)).run(prompts[:1])
    for start in range(0, len(prompts), settings.batch_size):
        for side, chosen in enumerate(drafters):
            decoder = Decoder(target, chosen, settings, budget)
            generator = torch.Generator(device=target.device).manual_seed(start)
            begin = time.perf_counter()
            generations = decoder.run(prompts[start : start + settings.batch_size], generator)
            seconds[side] += time.perf_counter() - begin
            answers[side] += [generation.tokens for generation in generations]
            tokens[side] += sum(len(generation.tokens) for generation in generations)
            if chosen is not None:
                rounds += decoder.clock.times["verify"]
                clocks = {name: spent + decoder.clock.seconds[name] for name, spent in clocks.items()}
    plain, speculative = (count / spent for count, spent in zip(tokens, seconds, strict=True))
    return {
        "temperature": settings.sampling.temperature,
        "plain_tokens_per_s": plain,
        "speculative_tokens_per_s": speculative,
        "ratio": speculative / plain,
        **{f"{name}_seconds": spent for name, spent in clocks.items()},
        "rounds": rounds,
        "prompts": len(prompts),
        "batch_size": settings.batch_size,
        "max_new_tokens": settings.max_new_tokens,
        "identical_outputs": sum(a == b for a, b in zip(*answers, strict=True)),
    }
