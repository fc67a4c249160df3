"""The draft vocabulary covers what the answers use most, and says how much of them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from draftlab.data.vocabulary import choose_draft_vocabulary, token_counts


def test_the_most_frequent_tokens_are_chosen_with_their_share():
    """Against collections.Counter."""
    ids = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0)).square() % 50
    counter = Counter(ids.tolist())
    chosen = choose_draft_vocabulary(token_counts([ids[:150].int(), ids[150:]], 50), size=10)
    least = min(counter[int(token)] for token in chosen.ids)
    assert all(count <= least for token, count in counter.items() if token not in chosen.ids.tolist())
    assert chosen.coverage == pytest.approx(sum(counter[int(token)] for token in chosen.ids) / 400)
    assert chosen.ids.tolist() == sorted(set(chosen.ids.tolist())) and chosen.ids.dtype == torch.int64


def test_ties_and_unseen_tokens_go_to_lower_ids():
    counts = torch.tensor([0, 2, 0, 2, 2, 0])
    assert choose_draft_vocabulary(counts, 2).ids.tolist() == [1, 3]
    assert choose_draft_vocabulary(counts, 5).ids.tolist() == [0, 1, 2, 3, 4]
    assert choose_draft_vocabulary(counts, 6).coverage == 1.0


def test_impossible_sizes_and_empty_counts_are_refused():
    for size in (0, 7):
        with pytest.raises(ValueError, match=r"draft_vocab_size must lie in 1..6"):
            choose_draft_vocabulary(torch.ones(6, dtype=torch.int64), size)
    with pytest.raises(ValueError, match="no supervised token"):
        choose_draft_vocabulary(torch.zeros(6, dtype=torch.int64), 2)


def test_ids_of_another_tokenizer_are_refused():
    with pytest.raises(ValueError, match="token id 9 is outside of the target's vocabulary of 8"):
        token_counts([torch.tensor([9])], 8)
