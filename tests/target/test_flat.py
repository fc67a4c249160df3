"""A flattened pass over rows of unequal length gives every row what a pass over it alone gives, with every family."""

from __future__ import annotations

import pytest
import torch

import tiny
from draftlab.decode.cache import RowCache
from draftlab.target import flat as module
from draftlab.target.flat import Flat

FAMILIES = sorted(tiny.FAMILIES)


def test_rows_are_laid_end_to_end_and_padded_back():
    flat = Flat.of([3, 1, 2])
    assert flat.starts.tolist() == [0, 3, 4] and not flat.is_full and Flat.of([2, 2]).is_full
    padded = torch.arange(9).reshape(3, 3)
    assert flat.take(padded).tolist() == [0, 1, 2, 3, 6, 7]
    assert flat.pad(flat.take(padded)).tolist() == [[0, 1, 2], [3, 0, 0], [6, 7, 0]]
    assert Flat.of([2, 2]).pad(torch.arange(4)).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("lengths", [[], [2, 0]])
def test_a_row_without_a_token_is_refused(lengths):
    with pytest.raises(ValueError, match="at least one token a row"):
        Flat.of(lengths)


@pytest.mark.parametrize("most_padding", [100.0, 0.0], ids=["padded queries", "row by row"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_a_flattened_pass_equals_a_pass_over_it_alone(family, most_padding, monkeypatch):
    monkeypatch.setattr(module, "MOST_PADDING", most_padding)
    target = tiny.tiny_target(family, dtype=torch.float64)
    if target.model.config.get_text_config(decoder=True)._attn_implementation != "sdpa":
        pytest.skip("the family has no SDPA attention")
    texts = torch.randint(4, 64, (3, 16), generator=torch.Generator().manual_seed(3))
    begins, lengths = [9, 4, 11], [2, 5, 1]
    cache = RowCache(3)
    width = max(begins)
    mask = cache.place_prompts(torch.arange(3), width)
    target(texts[:, :width], cache.positions, mask, cache)
    flat = Flat.of(lengths)
    positions = torch.tensor(begins)[flat.rows] + flat.columns
    ids = texts[flat.rows, positions]
    output = target(ids[None], positions[None], cache.place_flat(flat, positions), cache, flat)
    for row, (begin, length, start) in enumerate(zip(begins, lengths, flat.starts.tolist(), strict=True)):
        alone = target(texts[row : row + 1, : begin + length])
        for name in ("features", "last_hidden"):
            got, expected = getattr(output, name)[0, start : start + length], getattr(alone, name)[0, begin:]
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_the_models_own_attention_is_back_after_a_flattened_pass(target):
    cache, flat = RowCache(1), Flat.of([2])
    positions = torch.arange(2)
    target(torch.tensor([[5, 6]]), positions[None], cache.place_flat(flat, positions), cache, flat)
    assert target.model.config._attn_implementation == "sdpa"


def test_a_cache_of_other_rows_is_refused():
    with pytest.raises(ValueError, match="2 rows"):
        RowCache(2).place_flat(Flat.of([1]), torch.tensor([0]))
