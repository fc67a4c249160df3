"""Schedulers inside the decode loop: fewer tokens go to the target, the law stays the target's, counts are of verified tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from drafting import tiny_drafter
from draftlab.calibration import Calibration
from draftlab.decode.budget import Budget
from draftlab.decode.loop import Decoder, DecodeSettings, plain_decode
from draftlab.sampling import RowDraws, Sampling, sample
from draftlab.scheduling import Asynchronous, Bypass, Drafting, EarlyStop, Fixed, GlobalSearch, Threshold, Throughput
from draftlab.types import Proposal
from enumeration import Enumeration, output_law
from pairs import tiny_pair
from scripted import ScriptedDrafter

STEEP = Throughput([1, 2, 3, 8, 40], [1.0, 0.8, 0.5, 0.2, 0.05])
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [4, 5], [9, 8, 7, 6], [30, 31]]


class Confident(ScriptedDrafter):
    """A scripted drafter whose confidence depends on the token drafted, as a confidence head's does on the one before."""

    has_confidence = True

    def propose(self, *arguments, **options):
        proposal = super().propose(*arguments, **options)
        confidence = 0.3 + 0.6 * (proposal.tokens % 3).double() / 2
        confidence[:, 1:] = 0.3 + 0.6 * (proposal.tokens[:, :-1] % 3).double() / 2
        confidence[:, 0] = 0.7
        return type(proposal)(proposal.tokens, proposal.draft_probs, proposal.draft_ids, confidence)


def proposed(confidence, draft_top=None):
    """A proposal of which only the scores matter."""
    scores = [None if values is None else torch.tensor(values) for values in (confidence, draft_top)]
    return Proposal(torch.zeros(scores[0].shape, dtype=torch.int64), torch.zeros(0), None, *scores)


SCHEDULERS = {
    "fixed": lambda: Fixed(1),
    "threshold": lambda: Threshold(0.6),
    "early_stop": EarlyStop,
    "asynchronous": Asynchronous,
    "bypass": lambda: Bypass(EarlyStop()),
}


@pytest.mark.parametrize("name", [*SCHEDULERS, "global"])
def test_greedy_answers_are_the_plain_ones_whatever_is_verified(target, name):
    generator = torch.Generator().manual_seed(0)
    drafter = Confident(torch.randn(4, 64, 64, generator=generator).double() * 3)
    scheduler = SCHEDULERS[name]() if name != "global" else GlobalSearch()
    settings = DecodeSettings(20, Sampling(temperature=0.0), (), batch_size=3)
    generations = Decoder(target, drafter, settings, Budget(scheduler, STEEP)).run(PROMPTS)
    plain = plain_decode(target, PROMPTS, settings)
    assert [g.tokens for g in generations] == [g.tokens for g in plain]
    rounds = [counted for generation in generations for counted in generation.rounds]
    assert all(0 <= counted.accepted <= counted.proposed <= 4 for counted in rounds)
    assert all(counted.committed == counted.accepted + 1 for counted in rounds)
    assert all(len(counted.confidence) == counted.proposed for counted in rounds)
    assert sum(counted.proposed for counted in rounds) < 4 * len(rounds)


def test_a_threshold_sends_fewer_tokens_to_the_target(target, monkeypatch):
    """Case 18: counted at the target itself, in tokens of its passes."""
    sent = []
    forward = type(target).forward

    def counting(self, ids, *arguments, **options):
        sent.append(ids.numel())
        return forward(self, ids, *arguments, **options)

    monkeypatch.setattr(type(target), "forward", counting)
    settings = DecodeSettings(24, Sampling(temperature=0.0), (), batch_size=5)
    tokens = {}
    for value in (0.0, 0.9):
        sent.clear()
        drafter = Confident(torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0)).double())
        generations = Decoder(target, drafter, settings, Budget(Threshold(value))).run(PROMPTS)
        rounds = [counted for generation in generations for counted in generation.rounds]
        tokens[value] = sum(sent[1:])
        assert tokens[value] == sum(counted.proposed + 1 for counted in rounds)
    assert tokens[0.9] < tokens[0.0] / 2


class Forced:
    """Draws nothing: takes the path that ``digits`` spells, and multiplies its probability into ``weight``."""

    def __init__(self, digits):
        self.digits, self.weight, self.used = digits, 1.0, 0

    def draw(self, law, generator=None):
        token = self.digits[self.used] % law.shape[-1] if self.used < len(self.digits) else 0
        self.used += 1
        self.weight *= float(law[0, token] / law[0].sum())
        if law[0, token] == 0:  # an impossible path goes on with a possible outcome and weight 0
            token = int(law[0].argmax())
        return torch.tensor([token])


def law_of_first_two(scheduler, target, drafter, prompt, vocab, table, monkeypatch):
    """P(first two tokens of the answer) over every path of the loop with one request: depth-first over all outcomes."""
    found = torch.zeros(vocab, vocab, dtype=torch.float64)
    paths = [()]
    while paths:
        digits = paths.pop()
        forced, sizes = Forced(digits), []

        def draw(law, generator=None, forced=forced, sizes=sizes):
            sizes.append(law.shape[-1])
            return forced.draw(law)

        monkeypatch.setattr("draftlab.sampling._draw", draw)
        settings = DecodeSettings(2, Sampling(), (), batch_size=1)
        answer = Decoder(target, drafter, settings, Budget(scheduler(), table)).run([prompt])[0]
        if len(sizes) > len(digits):  # draws that the path does not name yet: take the first of them in all ways
            paths += [(*digits, value) for value in range(sizes[len(digits)])]
            continue
        found[answer.tokens[0], answer.tokens[1]] += forced.weight
    return found


COUNTER = Throughput([1, 2, 3], [1.0, 0.5, 0.45])


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(COUNTER, id="steps"),
        pytest.param(STEEP, id="steep", marks=pytest.mark.slow),
        pytest.param(Throughput([1, 2, 3], [1.0, 0.95, 0.9]), id="mild", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_law_of_the_loop_is_the_targets_with_every_lossless_scheduler(name, table, monkeypatch):
    """Exact enumeration, with confidences that depend on the drafted tokens."""
    vocab = 5
    target = tiny.tiny_target(vocab_size=vocab, hidden_size=16, dtype=torch.float64, spec={"mask_token_id": tiny.UNK})
    drafter = Confident(torch.randn(2, vocab, vocab, generator=torch.Generator().manual_seed(4)).double())
    prompt = [3, 1, 2]
    law = law_of_first_two(SCHEDULERS[name], target, drafter, prompt, vocab, table, monkeypatch)
    first = torch.softmax(target.logits(target(torch.tensor([prompt])).last_hidden[0, -1]), -1)
    texts = torch.tensor([[*prompt, token] for token in range(vocab)])
    second = torch.softmax(target.logits(target(texts).last_hidden[:, -1]), -1)
    torch.testing.assert_close(law, first[:, None] * second, rtol=1e-9, atol=1e-12)


def test_a_real_drafter_stays_lossless_when_rows_verify_unequal_prefixes():
    """All paths of one round as rows of one batch, each with its own number of verified tokens."""
    vocab, gamma = 5, 2
    target, drafter = tiny_pair("markov", vocab, gamma)
    prompt = [3, 1, 2]
    num_paths = vocab * vocab**gamma * (gamma + 1) * vocab
    paths = Enumeration(num_paths)
    settings = DecodeSettings(2, Sampling(), (), num_paths, prefill_tokens=10**9)
    budget = Budget(Threshold(0.5))
    drafter.confidence_head.proj.bias.data.zero_()
    with paths.running():
        answers = Decoder(target, drafter, settings, budget).run([prompt] * num_paths)
    lengths = {counted.proposed for answer in answers for counted in answer.rounds}
    assert len(lengths) > 1
    tokens = torch.tensor([answer.tokens for answer in answers])
    law = output_law(tokens, paths.weights, vocab).reshape(vocab, vocab)
    first = torch.softmax(target.logits(target(torch.tensor([prompt])).last_hidden[0, -1]), -1)
    second = torch.softmax(
        target.logits(target(torch.tensor([[*prompt, t] for t in range(vocab)])).last_hidden[:, -1]), -1
    )
    torch.testing.assert_close(law, first[:, None] * second, rtol=1e-9, atol=1e-12)


def test_confidences_are_calibrated_before_the_scheduler_sees_them():
    proposal = proposed(confidence=[[0.9, 0.9]])
    assert Budget(Threshold(0.8))(proposal).tolist() == [2]
    assert Budget(Threshold(0.8), calibration=Calibration([1.0, 5.0]))(proposal).tolist() == [1]


def test_a_calibration_says_which_scores_of_the_drafter_it_scales():
    proposal = proposed(confidence=[[0.9, 0.9, 0.9]], draft_top=[[0.9, 0.9, 0.1]])
    for source, lengths in (("confidence", [3]), ("draft_top", [2])):
        assert Budget(Threshold(0.8), calibration=Calibration([1.0] * 3, source=source))(proposal).tolist() == lengths
    with pytest.raises(ValueError, match="must be confidence or draft_top"):
        Calibration([1.0], source="expected")


def test_the_time_of_drafting_counts_in_the_table_a_scheduler_gets():
    seen = []

    class Seeing(Fixed):
        def __call__(self, confidence, table=None):
            seen.append(table)
            return super().__call__(confidence, table)

    Budget(Seeing(), STEEP, drafting=Drafting([1, 2], [0.25, 0.5]))(proposed([[1.0] * 3] * 2))
    assert seen[0](1) == pytest.approx(1 / (1 / 1.0 + 1 / 2.0)) and seen[0].passes(1) == 1.0


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(Fixed(9)), "schedule.length is 9"),
        (Budget(EarlyStop()), "needs an SPS table"),
        (Budget(Threshold(0.5), calibration=Calibration([1.0])), "1 temperatures"),
    ],
)
def test_a_budget_that_does_not_fit_the_drafter_is_refused(budget, message):
    with pytest.raises(ValueError, match=message):
        budget.check(tiny_drafter())


def test_a_scheduler_that_reads_confidences_needs_a_drafter_that_has_them():
    with pytest.raises(ValueError, match="no confidence head"):
        Budget(Threshold(0.5)).check(tiny_drafter("mtp"))
    Budget(Fixed()).check(tiny_drafter("mtp"))


def test_without_a_head_a_calibrated_top_probability_stands_in_for_it(target):
    """A chain has no confidences; with its calibration it is scheduled all the same, and answers are the plain ones."""
    drafter = tiny_drafter("mtp", spec=target.spec).attach(target.ends)
    gamma = drafter.block.block_size
    budget = Budget(EarlyStop(), STEEP, calibration=Calibration([1.0] * gamma, source="draft_top"))
    settings = DecodeSettings(12, Sampling(temperature=0.0), (), batch_size=3)
    generations = Decoder(target, drafter, settings, budget).run(PROMPTS)
    assert [g.tokens for g in generations] == [g.tokens for g in plain_decode(target, PROMPTS, settings)]
    rounds = [counted for generation in generations for counted in generation.rounds]
    assert {counted.proposed for counted in rounds} - {gamma}, "the scheduler chose"


def test_a_scheduler_that_reads_no_confidence_takes_no_calibration(tmp_path):
    """A chain that drafts more tokens than it was calibrated for is still served at a fixed length."""
    Calibration([1.0], drafter={"digest": "a"}, source="draft_top").save(tmp_path / "calibration.json")
    assert Budget.of_run(Fixed(), tmp_path, {"digest": "a"}).calibration is None
    assert Budget.of_run(Threshold(0.5), tmp_path, {"digest": "a"}).calibration.source == "draft_top"


def test_a_run_without_a_table_says_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match=r"schedule\.py profile"):
        Budget.of_run(EarlyStop(), tmp_path, {})
    assert Budget.of_run(Threshold(0.5), tmp_path, {}).table is None
    Calibration([1.0, 2.0], drafter={"digest": "a"}).save(tmp_path / "calibration.json")
    with pytest.raises(ValueError, match="another drafter: digest"):
        Budget.of_run(Threshold(0.5), tmp_path, {"digest": "b"})
    STEEP.save(tmp_path / "sps.json")
    assert Budget.of_run(EarlyStop(), tmp_path, {"digest": "a"}).table.look_up == "linear"


def test_rows_with_generators_of_their_own_draw_what_they_would_alone():
    laws = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)).double()
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6, 7)]
    together = RowDraws.of(generators, 2)
    first, second = sample(laws, together), sample(laws, together)
    for row, seed in enumerate((5, 6, 7)):
        alone = RowDraws.of([torch.Generator().manual_seed(seed)], 2)
        assert sample(laws[row : row + 1], alone) == first[row] and sample(laws[row : row + 1], alone) == second[row]
    assert np.isfinite(together.uniform.numpy()).all()
