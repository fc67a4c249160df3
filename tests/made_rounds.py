"""Decode rounds drawn from known chances of acceptance, as rounds.parquet holds them; for tests of calibration and its report.

rounds = made_rounds(prompts=20, head=2.0)         # the head's logits are twice what they should be
"""

from __future__ import annotations

import numpy as np
import pandas as pd

LEVELS = {"math": 1.0, "code": 0.6, "chat": -0.2}  # mean logit of c* by domain
NO_HEAD = {"confidence": None}


def made_rounds(prompts=12, gamma=7, per_prompt=25, head=2.0, top=0.5, temperature=1.0, seed=0) -> pd.DataFrame:
    """``head`` and ``top`` are the temperatures that would make confidence and draft_top right; both see c* with noise, the head
    with less. Outcomes are drawn with c* (``expected``)."""
    generator = np.random.default_rng(seed)
    rows = []
    for domain, level in LEVELS.items():
        for index in range(prompts):
            shift = generator.normal(level, 0.3)
            for number in range(per_prompt):
                logit = generator.normal(shift, 1.6, gamma)
                rate = 1 / (1 + np.exp(-logit))
                accepted = int(np.cumprod(generator.random(gamma) < rate).sum())
                row = {"temperature": temperature, "benchmark": f"heldout-{domain}", "domain": domain}
                row |= {"prompt_id": f"{domain}-{index}", "round": number, "proposed": gamma, "accepted": accepted}
                row |= {"committed": accepted + 1, "expected": rate.astype(np.float32)}
                for name, factor, noise in (("confidence", head, 0.4), ("draft_top", top, 1.2)):
                    seen = factor * (logit + generator.normal(0, noise, gamma))
                    row[name] = (1 / (1 + np.exp(-seen))).astype(np.float32)
                rows.append(row)
    return pd.DataFrame(rows)
