"""Schedulers: equal to loops, lossless by enumeration or shown not to be (cases 18, 19, 21)."""

from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from draftlab.decode.verify import verify
from draftlab.sampling import Sampling
from draftlab.scheduling import Asynchronous, Bypass, EarlyStop, Fixed, GlobalSearch, Threshold, Throughput
from draftlab.types import Proposal

CONF = Path(__file__).parents[2] / "conf" / "schedule"
STAIRCASE = Throughput([1, 2, 3], [1.0, 0.5, 0.45])


def walk(confidence, table):
    """Algorithm 1 as a loop over candidates; yields (throughput, prefix lengths) for 0, 1, … admitted tokens."""
    rows, gamma = confidence.shape
    candidates = [(-float(np.prod(confidence[r, : j + 1])), r, j) for r in range(rows) for j in range(gamma)]
    lengths, tokens, committed = [0] * rows, rows, float(rows)
    yield committed * float(table(tokens)), list(lengths)
    for negative, row, _ in sorted(candidates):
        tokens, committed = tokens + 1, committed - negative
        lengths[row] += 1
        yield committed * float(table(tokens)), list(lengths)


def early_stop_twin(confidence, table):
    best, kept = -1.0, None
    for throughput, lengths in walk(confidence, table):
        if throughput <= best:
            break
        best, kept = throughput, lengths
    return kept


def random_case(seed):
    generator = np.random.default_rng(seed)
    rows, gamma = int(generator.integers(1, 9)), int(generator.integers(1, 7))
    confidence = generator.uniform(0.0, 1.0, (rows, gamma)).round(1)  # rounded: many equal survivals, zeros and ones
    tokens = np.unique(generator.integers(1, rows * (gamma + 1) + 1, 6))
    tokens = np.union1d(tokens, [1, rows * (gamma + 1) + 1])
    seconds = 1.0 + generator.uniform(0.0, 0.1) * tokens + generator.uniform(0.0, 0.3, len(tokens))
    return confidence, Throughput(tokens, 1.0 / seconds)


@pytest.mark.parametrize("seed", range(40))
def test_early_stop_and_global_search_equal_the_loops(seed):
    confidence, table = random_case(seed)
    assert EarlyStop()(confidence, table).tolist() == early_stop_twin(confidence, table)
    steps = list(walk(confidence, table))
    best = max(throughput for throughput, _ in steps)
    chosen = GlobalSearch()(confidence, table)
    reached = next(throughput for throughput, lengths in steps if sum(lengths) == chosen.sum())
    assert reached == pytest.approx(best) and chosen.tolist() in [lengths for _, lengths in steps]


def test_a_flat_table_verifies_everything_and_a_staircase_separates_early_stop_from_global_search():
    """Case 21."""
    confidence = np.full((2, 3), 0.9)
    flat = Throughput([1, 100], [1.0, 1.0])
    for scheduler in (EarlyStop(), GlobalSearch()):
        assert scheduler(confidence, flat).tolist() == [3, 3]
    bumpy = Throughput([1, 2, 3, 4, 5, 6, 7, 8], [1.0, 1.0, 0.6, 0.9, 0.5, 0.8, 0.4, 0.7])
    assert len(bumpy.bumps) == 3
    assert EarlyStop()(confidence, bumpy).tolist() == [0, 0]
    assert GlobalSearch()(confidence, bumpy).sum() > 0


@pytest.mark.parametrize("seed", range(20))
def test_early_stop_over_the_convex_table_finds_what_global_search_finds_there(seed):
    confidence, table = random_case(seed)
    scheduler = EarlyStop(smooth=True)
    for seconds in (0.0, 5.0, 0.5):  # of drafting, which a larger budget makes up for
        with_draft = table.plus(seconds)
        expected = GlobalSearch()(confidence, with_draft.convex()).tolist()
        assert scheduler(confidence, with_draft).tolist() == expected


def test_early_stop_over_the_convex_table_does_not_halt_before_a_rise_that_pays_off():
    confidence = np.full((2, 3), 0.9)
    bumpy = Throughput([1, 2, 3, 4, 5, 6, 7, 8], [1.0, 1.0, 0.6, 0.9, 0.5, 0.8, 0.4, 0.7])
    assert EarlyStop()(confidence, bumpy).sum() == 0 and EarlyStop(smooth=True)(confidence, bumpy).sum() > 0
    scheduler = EarlyStop(smooth=True)
    dear = Throughput([1, 2, 3, 4, 8], [1.0, 0.5, 0.2, 0.1, 0.05])
    assert scheduler(confidence, bumpy).sum() == 6 and scheduler(confidence, dear).sum() == 0, "each has its own form"
    costly = Throughput([1, 2, 3, 4, 8], [1.0, 0.5, 0.2, 0.1, 0.05]).plus(100.0)
    assert scheduler(confidence, costly).sum() == 6, "beside slow drafting a pass costs next to nothing"


def test_a_threshold_cuts_a_block_at_its_first_doubt():
    confidence = np.array([[0.95, 0.5, 0.95], [0.95, 0.92, 0.91], [0.1, 1.0, 1.0]])
    assert Threshold(0.9)(confidence).tolist() == [1, 3, 0]
    assert Threshold(0.0)(confidence).tolist() == [3, 3, 3]


def test_a_fixed_length_is_everyones_and_a_longer_one_than_the_block_is_refused():
    confidence = np.full((2, 3), 0.5)
    assert Fixed()(confidence).tolist() == [3, 3] and Fixed(2)(confidence).tolist() == [2, 2]
    drafted = [Fixed(length).draft_length(3) for length in (None, 2, 0, 9)]
    assert drafted == [3, 2, 0, 3], "what is not verified is not drafted"
    with pytest.raises(ValueError, match="gamma"):
        Fixed(4)(confidence)


def test_the_budget_of_the_asynchronous_scheduler_is_that_of_lag_steps_ago():
    table = Throughput([1, 2, 3, 4, 5], [1.0, 0.9, 0.85, 0.5, 0.4])
    sure, unsure = np.array([[0.99, 0.98]]), np.array([[0.01, 0.01]])
    budgets = {"sure": GlobalSearch()(sure, table).sum(), "unsure": GlobalSearch()(unsure, table).sum()}
    assert budgets == {"sure": 2, "unsure": 0}
    scheduler = Asynchronous(lag=2)
    given = [int(scheduler(step, table).sum()) for step in (unsure, unsure, sure, sure, sure)]
    assert given == [2, 2, 0, 0, 2], "two steps of the whole block, then what was best two steps before"
    scheduler.reset()
    assert scheduler(unsure, table).sum() == 2


def test_the_asynchronous_budget_is_a_share_of_the_requests_that_are_there():
    table = Throughput([1, 3, 4, 100], [1.0, 0.99, 0.98, 0.97])
    scheduler = Asynchronous(lag=1)
    scheduler(np.full((4, 2), 0.9), table)
    assert scheduler(np.full((1, 2), 0.9), table).tolist() == [2]


def first_token_law(scheduler, warm_up=()):
    """P(first output token = A) of the counterexample of method 5, over every draft and every draw of the verification."""
    target, draft = np.array([0.7, 0.3]), np.array([0.5, 0.5])
    confidences = {0: [0.8, 0.9], 1: [0.8, 0.0]}  # the second knows the first token
    law = np.zeros(2)
    for token, confidence in confidences.items():
        scheduler.reset()
        for step in warm_up:
            scheduler(np.array([step]), STAIRCASE)
        verified = int(scheduler(np.array([confidence]), STAIRCASE)[0])
        law += draft[token] * outcome(target, draft, token, verified)
    return law


def outcome(target, draft, token, verified):
    """Law of the first output token, from many seeded draws of the real verification when that one token is fixed."""
    draws, rows = np.zeros(2), 20000
    proposal = Proposal(
        torch.full((rows, 2), token), torch.tensor(draft, dtype=torch.float32).expand(rows, 2, 2), None, None
    )
    logits = torch.tensor(np.log(target), dtype=torch.float32).expand(rows, 3, 2)
    lengths = torch.full((rows,), verified)
    verdict = verify(proposal, logits, Sampling(), torch.Generator().manual_seed(token), lengths)
    first = torch.where(verdict.accepted > 0, proposal.tokens[:, 0], verdict.next_token)
    for value in (0, 1):
        draws[value] = float((first == value).float().mean())
    return draws


@pytest.mark.parametrize(
    ("scheduler", "expected", "warm_up"),
    [
        (EarlyStop(), 0.70, ()),
        (Asynchronous(lag=2), 0.70, ()),
        (Asynchronous(lag=2), 0.70, ([0.9, 0.9], [0.1, 0.1])),
        (Asynchronous(lag=2), 0.70, ([0.1, 0.1], [0.9, 0.9])),
        (Bypass(EarlyStop()), 0.70, ()),
        (Fixed(1), 0.70, ()),
        (GlobalSearch(), 0.85, ()),
    ],
)
def test_early_stop_and_the_asynchronous_scheduler_keep_the_law_and_global_search_does_not(
    scheduler, expected, warm_up
):
    """Case 19: the counterexample of the paper's Appendix A, with p_t(A) = 0.7."""
    assert first_token_law(scheduler, warm_up)[0] == pytest.approx(expected, abs=0.01)
    assert scheduler.is_lossless == (expected == 0.70)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(-1), "at least 0"),
        (lambda: Threshold(1.5), r"\[0, 1\]"),
        (lambda: Asynchronous(lag=0), "at least 1"),
        (lambda: EarlyStop()(np.array([[0.5]])), "needs an SPS table"),
        (lambda: EarlyStop()(np.array([[np.nan]]), STAIRCASE), "finite"),
        (lambda: Threshold(0.5)(np.array([0.5])), "shape"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_schedule_choice_builds_a_scheduler_that_works(path):
    scheduler = hydra.utils.instantiate(OmegaConf.load(path))
    assert 1 <= scheduler.draft_length(4) <= 4
    lengths = scheduler(np.full((3, 4), 0.8), STAIRCASE)
    assert lengths.shape == (3,) and lengths.dtype == np.int64
    assert scheduler(np.zeros((0, 4)), STAIRCASE).shape == (0,), "a step without requests"
