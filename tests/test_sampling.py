"""Sampling laws: temperature, top-k, top-p, min-p, residual."""

import pytest
import torch

from draftlab.sampling import Sampling, probs, residual, sample, top_probability


def random_logits(seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(6, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_top_probability_is_that_of_the_untempered_law():
    logits = 30 * random_logits()
    expected = [max(row) for row in torch.softmax(logits, -1).tolist()]
    assert top_probability(logits).tolist() == pytest.approx(expected)


def slow_law(logits: list[float], sampling: Sampling) -> list[float]:
    """The same cuts on one row, token by token, in the documented order."""
    weights = torch.softmax(torch.tensor(logits, dtype=torch.float64) / sampling.temperature, -1).tolist()
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if sampling.top_k:
        weights = [w if token in order[: sampling.top_k] else 0.0 for token, w in enumerate(weights)]
        weights = [w / sum(weights) for w in weights]
    if sampling.top_p < 1:
        kept, mass = set(), 0.0
        for token in order:
            if mass >= sampling.top_p:
                break
            kept.add(token)
            mass += weights[token]
        weights = [w if token in kept else 0.0 for token, w in enumerate(weights)]
        weights = [w / sum(weights) for w in weights]
    if sampling.min_p:
        weights = [w if w >= sampling.min_p * max(weights) else 0.0 for w in weights]
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=3),
        Sampling(temperature=1.3, top_p=0.8),
        Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1),
    ],
)
def test_laws_equal_the_token_by_token_twin(sampling):
    logits = random_logits()
    expected = torch.tensor([slow_law(row, sampling) for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(probs(logits, sampling), expected)


def test_temperature_zero_is_one_hot_on_the_argmax():
    logits = random_logits()
    law = probs(logits, Sampling(temperature=0.0))
    assert torch.equal(law.argmax(-1), logits.argmax(-1))
    assert torch.equal(law.sum(-1), torch.ones(6, dtype=torch.float64)) and law.max() == 1


def test_half_precision_logits_give_a_float32_law():
    assert probs(random_logits().bfloat16(), Sampling()).dtype == torch.float32


def test_samples_follow_the_law():
    law = probs(random_logits()[:1], Sampling(top_k=4))
    drawn = sample(law.expand(20_000, -1), torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.bincount(drawn, minlength=11) / 20_000.0, law[0].float(), atol=0.015, rtol=0)


def test_accepting_and_correcting_restores_the_target_law():
    draft, target = probs(random_logits(1), Sampling()), probs(random_logits(2), Sampling(top_p=0.9))
    kept = torch.minimum(draft, target)
    restored = kept + (1 - kept.sum(-1, keepdim=True)) * residual(target, draft)
    torch.testing.assert_close(restored, target)


def test_equal_laws_leave_the_target_law_as_residual():
    law = probs(random_logits(), Sampling())
    assert torch.equal(residual(law, law), law)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-5),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", 1.0),
    ],
)
def test_values_outside_their_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        Sampling(**{field: value})


def test_samples_follow_the_law_and_never_take_an_impossible_token():
    law = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 7.0]])
    drawn = sample(law.unsqueeze(1).expand(-1, 20_000, -1), torch.Generator().manual_seed(0))
    counts = torch.nn.functional.one_hot(drawn, 6).double().mean(1)
    torch.testing.assert_close(counts, law.double() / law.double().sum(-1, keepdim=True), rtol=0, atol=0.01)
    assert (counts[law == 0] == 0).all()


def test_a_law_without_mass_or_with_nan_is_refused():
    for broken in (torch.zeros(2, 3), torch.tensor([[0.5, float("nan")]])):
        with pytest.raises(ValueError, match="no mass or is NaN"):
            sample(broken)


@pytest.mark.parametrize("broken", [[1.0, float("nan")], [float("-inf")] * 2, [0.0, float("inf")]])
def test_broken_logits_are_refused_at_temperature_0_too(broken):
    with pytest.raises(ValueError, match="logits are broken"):
        probs(torch.tensor([[1.0, 2.0], broken]), Sampling(temperature=0.0))
    assert probs(torch.tensor([[1.0, float("-inf")]]), Sampling(temperature=0.0)).tolist() == [[1.0, 0.0]]
