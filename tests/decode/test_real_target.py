"""On the real offline target: greedy speculative output is plain greedy output, token for token, for 24 prompts (case 22).

In float32 another batch shape may round the two best logits apart or together; where outputs differ, that must be a tie.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from draftlab.data.chat import Chat
from draftlab.data.prompts import builtin_prompts
from draftlab.decode.loop import DecodeSettings, speculative_decode
from draftlab.sampling import Sampling
from draftlab.target import load_target, load_tokenizer
from draftlab.training.build import build
from draftlab.types import Proposal
from scripted import ScriptedDrafter

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
GREEDY = Sampling(temperature=0.0)
TIE = 1e-3  # of logits; float32 sums over 30 layers and 576 wide states differ by less


@pytest.fixture(scope="module")
def parts():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return build(compose("train", ["target.dtype=float32"]))


@pytest.fixture(scope="module")
def real_target(parts):
    return load_target(parts.spec)


@pytest.fixture(scope="module")
def prompts(parts):
    chat = Chat(load_tokenizer(parts.spec), parts.spec.thinking, parts.spec.eos_token_ids)
    return [chat.prompt_ids(list(prompt.messages)) for prompt in builtin_prompts(24, split="heldout")]


class RecallingDrafter(ScriptedDrafter):
    """Knows the answers, but drafts a wrong token now and then, so that rows advance unequally."""

    def __init__(self, texts, gamma, vocab_size):
        super().__init__(torch.zeros(gamma, 1, vocab_size))
        self.texts = texts

    def propose(self, context, cache, sampling, generator=None, num_tokens=None):
        cache.see(context)
        gamma, vocab_size = len(self.table), self.table.shape[-1]
        tokens = torch.zeros(len(cache.rows), gamma, dtype=torch.int64)
        for row, (ids, _) in enumerate(cache.rows):
            text = next((text for text in self.texts if text[: len(ids)] == ids), [])
            ahead = text[len(ids) + 1 : len(ids) + 1 + gamma]
            wrong = (5 * len(ids) + row) % (gamma + 3)
            ahead = [(token + 1) % vocab_size if slot == wrong else token for slot, token in enumerate(ahead)]
            tokens[row, : len(ahead)] = torch.tensor(ahead, dtype=torch.int64)
        laws = torch.nn.functional.one_hot(tokens, vocab_size).float()
        return Proposal(tokens, laws, None, None)


def assert_equal_up_to_ties(target, prompt, expected, got):
    """Equal, or at the first difference both tokens are the target's two best within rounding."""
    if expected == got:
        return
    at = next(i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b)
    hidden = target.forward(torch.tensor([prompt + expected[:at]])).last_hidden[0, -1]
    best = target.logits(hidden).topk(2)
    assert {expected[at], got[at]} == set(best.indices.tolist()), f"token {at} is not one of the two best"
    gap = float(best.values[0] - best.values[1])
    assert gap < TIE, f"outputs differ at token {at} where the best two logits are {gap:.2g} apart: no tie"


def test_greedy_speculative_output_is_plain_greedy_output_on_the_real_target(real_target, prompts):
    expected = [real_target.generate([prompt], GREEDY, max_new_tokens=40)[0] for prompt in prompts]
    texts = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]
    drafter = RecallingDrafter(texts, gamma=5, vocab_size=real_target.spec.vocab_size)
    settings = DecodeSettings(40, GREEDY, real_target.eos_token_ids, batch_size=8)
    generations = speculative_decode(real_target, drafter, prompts, settings)
    for prompt, answer, generation in zip(prompts, expected, generations, strict=True):
        assert_equal_up_to_ties(real_target, prompt, answer, generation.tokens)
    accepted = {counted.accepted for generation in generations for counted in generation.rounds}
    assert accepted >= set(range(6)), "rows must accept from none to all of a block"


def test_an_untrained_dspark_changes_nothing_on_the_real_target(real_target, parts, prompts):
    drafter = parts.drafter.eval().attach(real_target.ends)
    drafter.set_draft_vocabulary(torch.arange(drafter.draft_vocab_size))
    settings = DecodeSettings(12, GREEDY, real_target.eos_token_ids, batch_size=3)
    generations = speculative_decode(real_target, drafter, prompts[:6], settings)
    for prompt, generation in zip(prompts[:6], generations, strict=True):
        (answer,) = real_target.generate([prompt], GREEDY, max_new_tokens=12)
        assert_equal_up_to_ties(real_target, prompt, answer, generation.tokens)
