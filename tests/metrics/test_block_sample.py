"""A sample of blocks is uniform, whole, bounded, and the same however batches and ranks are cut."""

import pytest
import torch

from draftlab.metrics import BlockSample


def blocks(count, first=0):
    """Confidence and accept rate [count, 2] that name their block, and which slots were proposed."""
    number = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(-1) / 1000
    return number.expand(-1, 2), 1 - number.expand(-1, 2), torch.tensor([[True, False]]).expand(count, 2)


def test_all_blocks_are_kept_while_there_is_room():
    sample = BlockSample(block_size=2, size=50)
    sample.update(*(values.view(2, 5, 2) for values in blocks(10)), torch.Generator().manual_seed(0))
    sample.update(*blocks(7, first=10), torch.Generator().manual_seed(1))
    confidence, rate, proposed = sample.compute()
    assert sorted(confidence[:, 0].mul(1000).round().tolist()) == list(range(17))
    assert torch.equal(rate, 1 - confidence) and proposed.tolist() == [[True, False]] * 17


def test_beyond_its_size_every_block_is_as_likely_to_stay():
    kept = torch.zeros(40)
    for seed in range(400):
        sample, generator = BlockSample(block_size=2, size=10), torch.Generator().manual_seed(seed)
        for first in range(0, 40, 8):
            sample.update(*blocks(8, first), generator)
        chosen = sample.compute()[0][:, 0].mul(1000).round().long()
        assert len(chosen.unique()) == 10
        kept[chosen] += 1
    assert (kept / 400 - 0.25).abs().max() < 4 * (0.25 * 0.75 / 400) ** 0.5


def test_blocks_without_a_proposed_slot_are_left_out():
    sample = BlockSample(block_size=2, size=10)
    confidence, rate, proposed = blocks(6)
    sample.update(confidence, rate, proposed & (confidence[:, :1] > 0.0025), torch.Generator().manual_seed(0))
    assert sorted(sample.compute()[0][:, 0].mul(1000).round().tolist()) == [3, 4, 5]


def test_ranks_together_hold_the_sample_that_one_would():
    ranks = [BlockSample(block_size=2, size=6) for _ in range(2)]
    alone = BlockSample(block_size=2, size=6)
    for rank, sample in enumerate(ranks):
        for metric in (sample, alone):
            metric.update(*blocks(20, 20 * rank), torch.Generator().manual_seed(rank))
    states = {1: [sample.keys for sample in ranks], 3: [sample.slots for sample in ranks]}
    ranks[0].distributed_available_fn = lambda: True
    ranks[0].dist_sync_fn = lambda state, group: states[state.dim()]  # what all_gather would bring
    for ours, theirs in zip(ranks[0].compute(), alone.compute(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_empty_sample_has_no_rows_and_one_of_no_size_is_refused():
    assert [values.shape for values in BlockSample(2, 5).compute()] == [(0, 2)] * 3
    with pytest.raises(ValueError, match="at least 1 block"):
        BlockSample(2, 0)
