"""Divergences against scipy over the whole vocabulary in float64, their gradients, and the ends of their range."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from draftlab.acceptance import accept_rate
from draftlab.losses import KL, LK, JensenShannon, NegLogAcceptance, ReverseKL, Slots, SoftCrossEntropy, TotalVariation

TERMS = {
    "soft_ce": SoftCrossEntropy(1.0),
    "tv": TotalVariation(1.0),
    "kl": KL(1.0),
    "reverse_kl": ReverseKL(1.0),
    "jsd": JensenShannon(1.0),
    "neg_log_acceptance": NegLogAcceptance(1.0),
    "lk": LK(1.0, eta=3.0),
}
DIVERGENCES = sorted(TERMS.keys() - {"soft_ce"})
V, IDS = 9, [0, 3, 4, 8]
SMALLEST = torch.finfo(torch.float32).tiny
menu = pytest.mark.parametrize("name", TERMS)
vocabulary = pytest.mark.parametrize("ids", [list(range(V)), IDS], ids=["whole", "reduced"])


def slots_of(logits, target_probs):
    log_draft_probs = torch.log_softmax(logits, -1)
    draft_probs = log_draft_probs.exp()
    rate = accept_rate(draft_probs, target_probs)
    return Slots(log_draft_probs, torch.zeros(len(logits)).long(), rate, None, target_probs, draft_probs)


def random_laws(ids, dtype=torch.float64, rows=5):
    """Draft logits [S, W] and the target's law over all V tokens [S, V]."""
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(rows, len(ids), generator=generator, dtype=torch.float64)
    law = torch.softmax(3 * torch.randn(rows, V, generator=generator, dtype=torch.float64), -1)
    return logits.to(dtype), law.to(dtype)


def twin(name, draft, target, ids):
    """The term for one slot from both laws over all V tokens, ``draft`` being 0 outside ``ids``."""
    rate = sum(min(d, t) for d, t in zip(draft, target, strict=True))
    forward = sum(rel_entr(target[v], draft[v]) for v in ids)
    if name == "soft_ce":
        return -sum(target[v] * math.log(draft[v]) for v in ids)
    if name == "tv":
        return sum(abs(d - t) for d, t in zip(draft, target, strict=True))
    if name == "kl":
        return forward
    if name == "reverse_kl":
        return rel_entr(draft, target).sum()
    if name == "jsd":
        return jensenshannon(draft, target) ** 2
    if name == "neg_log_acceptance":
        return -math.log(rate)
    share = math.exp(-3.0 * rate)
    return share * forward + (1 - share) * np.abs(draft - target).sum() / 2


@menu
@vocabulary
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["float64", "float32"])
def test_every_term_equals_its_twin_over_the_whole_vocabulary(name, ids, dtype, close):
    """Also the target's mass outside a reduced draft vocabulary: exact for all but KL, which leaves it out."""
    logits, law = random_laws(ids)
    values = TERMS[name](slots_of(logits.to(dtype), law[:, ids].to(dtype)))
    assert values.dtype == dtype
    for row, value in enumerate(values.tolist()):
        draft = np.zeros(V)
        draft[ids] = torch.softmax(logits[row], -1).numpy()
        assert value == pytest.approx(twin(name, draft, law[row].numpy(), ids), abs=close)


@pytest.mark.parametrize("name", sorted(TERMS.keys() - {"lk"}))
@vocabulary
def test_gradients_equal_finite_differences(name, ids):
    logits, law = random_laws(ids)
    target_probs = law[:, ids]
    assert torch.autograd.gradcheck(lambda x: TERMS[name](slots_of(x, target_probs)), logits.requires_grad_())


def gradient(term, logits, target_probs):
    logits = logits.clone().requires_grad_()
    term(slots_of(logits, target_probs)).sum().backward()
    return logits.grad


@vocabulary
def test_the_gradient_of_kl_is_that_of_the_soft_cross_entropy(ids):
    logits, law = random_laws(ids)
    target_probs = law[:, ids]
    mass = target_probs.sum(-1, keepdim=True)
    expected = mass * torch.softmax(logits, -1) - target_probs
    torch.testing.assert_close(gradient(KL(1.0), logits, target_probs), expected)
    torch.testing.assert_close(gradient(SoftCrossEntropy(1.0), logits, target_probs), expected)


@vocabulary
def test_the_gradient_of_minus_log_acceptance_is_that_of_total_variation_over_acceptance(ids):
    logits, law = random_laws(ids)
    target_probs = law[:, ids]
    rate = accept_rate(torch.softmax(logits, -1), target_probs).unsqueeze(-1)
    expected = gradient(TotalVariation(0.5), logits, target_probs) / 2 / rate
    torch.testing.assert_close(gradient(NegLogAcceptance(1.0), logits, target_probs), expected)


@vocabulary
def test_lk_blends_the_gradients_of_kl_and_total_variation_and_its_share_of_kl_is_not_pushed(ids):
    logits, law = random_laws(ids)
    target_probs = law[:, ids]
    share = torch.exp(-2.0 * accept_rate(torch.softmax(logits, -1), target_probs)).unsqueeze(-1)
    kl, tv = gradient(KL(1.0), logits, target_probs), gradient(TotalVariation(1.0), logits, target_probs) / 2
    torch.testing.assert_close(gradient(LK(1.0, eta=2.0), logits, target_probs), share * kl + (1 - share) * tv)


def test_lk_is_kl_at_eta_0_and_total_variation_at_a_large_one():
    logits, law = random_laws(range(V))
    slots = slots_of(logits, law)
    torch.testing.assert_close(LK(1.0, eta=0.0)(slots), KL(1.0)(slots))
    torch.testing.assert_close(LK(1.0, eta=1e4)(slots), TotalVariation(1.0)(slots) / 2)


@pytest.mark.parametrize("eta", [-1.0, float("nan"), float("inf")])
def test_an_eta_that_is_negative_or_not_finite_is_refused(eta):
    with pytest.raises(ValueError, match=r"loss\.terms\.lk\.eta"):
        LK(1.0, eta=eta)


@pytest.mark.parametrize("gap", [50.0, 1e4])
@menu
def test_disjoint_one_hot_laws_give_finite_values_and_gradients(name, gap):
    """Case 9, also where probabilities round to 0 in float32."""
    logits = torch.tensor([[gap, 0.0, 0.0], [0.0, 0.0, gap]])
    target_probs = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    value = TERMS[name](slots_of(logits, target_probs))
    far = {"tv": 2.0, "jsd": math.log(2.0), "reverse_kl": -math.log(SMALLEST)}
    far["neg_log_acceptance"] = min(gap, -math.log(SMALLEST))
    assert value.tolist() == pytest.approx([far.get(name, gap)] * 2, rel=1e-5)  # lk: all of it is KL
    assert gradient(TERMS[name], logits, target_probs).isfinite().all()


@pytest.mark.parametrize("logits", [[1e4, 0.0, 0.0], [0.3, -1.0, 2.0]], ids=["one-hot", "spread"])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_identical_laws_give_0_and_no_push(name, logits):
    """Case 9."""
    logits = torch.tensor([logits])
    target_probs = torch.softmax(logits, -1)
    assert TERMS[name](slots_of(logits, target_probs)).item() == pytest.approx(0.0, abs=1e-6)
    pushed = gradient(TERMS[name], logits, target_probs)
    assert pushed.isfinite().all()
    if name not in ("tv", "neg_log_acceptance", "lk"):  # those have a kink there
        assert pushed.abs().max() < 1e-6


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_target_without_any_mass_in_the_draft_vocabulary_stays_finite(name):
    logits, target_probs = torch.tensor([[1.0, -2.0]]), torch.zeros(1, 2)
    assert TERMS[name](slots_of(logits, target_probs)).isfinite().all()
    assert gradient(TERMS[name], logits, target_probs).isfinite().all()
