"""What a drafter may differ in beside its head: the states that confidences read, and a trained copy of the LM head."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

import fitting
from drafting import blocks_at, context_of, make_head, random_batch, random_ends, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.drafters import DFlash, DSpark
from draftlab.sampling import Sampling, probs
from draftlab.target import TargetEnds
from draftlab.training import load_drafter

G, ANCHORS = 4, (6, 4)
BLOCK = BlockSpec(G, 3)
IDS = torch.tensor([1, 4, 6, 9, 20])


def proposed_and_trained(drafter):
    """A proposal, and the logits and confidences of the training pass over the same blocks and tokens."""
    batch = random_batch(drafter.spec)
    context = context_of(batch, (0, 0), ANCHORS)
    proposal = drafter.propose(context, drafter.start(2, 30), Sampling(), torch.Generator().manual_seed(0))
    blocks = blocks_at(batch, drafter, [[anchor] for anchor in ANCHORS])
    previous = torch.cat([blocks.previous[:, 0, :1], proposal.tokens[:, :-1]], dim=1)
    output = drafter(batch, dataclasses.replace(blocks, previous=previous.unsqueeze(1)))
    logits = drafter.draft_logits(output.hidden[:, 0], previous)
    return proposal, logits, torch.sigmoid(output.confidence_logits[:, 0])


@pytest.mark.parametrize("confidence_input", ["normed", "unnormed"])
@pytest.mark.parametrize("head", ["domino", "markov", "none"])
@pytest.mark.parametrize("sample_from_anchor", [True, False], ids=["anchor-first", "1+N"])
def test_decoding_uses_the_logits_and_the_confidences_of_training(head, confidence_input, sample_from_anchor):
    block = BlockSpec(G, 3, sample_from_anchor=sample_from_anchor)
    drafter = tiny_drafter(head, block, confidence_input=confidence_input)
    proposal, logits, confidence = proposed_and_trained(drafter)
    torch.testing.assert_close(proposal.draft_probs, probs(logits, Sampling()), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(proposal.confidence, confidence.float(), rtol=1e-5, atol=1e-6)


def test_unnormed_confidences_read_the_states_before_the_final_norm_and_nothing_else_changes():
    normed, unnormed = (tiny_drafter(confidence_input=name) for name in ("normed", "unnormed"))
    batch = random_batch(normed.spec)
    blocks = blocks_at(batch, normed, [[3], [4]])
    seen = []
    unnormed.norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    one, other = normed(batch, blocks), unnormed(batch, blocks)
    assert torch.equal(one.hidden, other.hidden)
    expected = unnormed.confidence_logits(seen[0], blocks.previous)
    assert torch.equal(other.confidence_logits, expected)
    assert not torch.allclose(one.confidence_logits, other.confidence_logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence_input": "raw"}, r"drafter\.confidence_input must be one of normed, unnormed, got 'raw'"),
        ({"confidence_input": "unnormed", "confidence_head": False}, r"confidence_input=unnormed is of no use"),
    ],
)
def test_a_confidence_input_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DSpark(small_spec(), BLOCK, make_head("markov"), **options)


def with_trained_head(spec=None, **options):
    """A drafter that trains a copy of the LM head, not attached yet; everything else is random."""
    torch.manual_seed(3)
    return DSpark(spec or small_spec(), BLOCK, make_head("markov"), num_layers=1, train_head=True, **options).double()


def inputs(spec):
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(3, G, spec.hidden_size, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(0, spec.vocab_size, (3, G), generator=generator)


class TestTrainedHead:
    """A trained copy of the target's LM head."""

    @pytest.mark.parametrize("scaled", [False, True], ids=["plain", "bias, scale and cap"])
    @pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
    @pytest.mark.parametrize("order", ["vocabulary first", "ends first"])
    def test_it_starts_with_the_logits_of_the_frozen_head(self, scaled, reduced, order):
        spec, size = small_spec(), len(IDS) if reduced else None
        options = {"logit_scale": 0.5, "logit_softcap": 2.0, "head_bias": torch.randn(spec.vocab_size).double()}
        ends = random_ends(spec, **(options if scaled else {}))
        trained = with_trained_head(draft_vocab_size=size)
        frozen = DSpark(spec, BLOCK, make_head("markov"), num_layers=1, draft_vocab_size=size).double()
        for drafter in (trained, frozen):
            steps = [lambda drafter=drafter: drafter.attach(ends)]
            steps += [lambda drafter=drafter: drafter.set_draft_vocabulary(IDS)] if reduced else []
            for step in steps if order == "ends first" else reversed(steps):
                step()
        hidden, _ = inputs(spec)
        assert torch.equal(trained.base_logits(hidden), frozen.base_logits(hidden))
        assert trained.lm_head.shape == (size or spec.vocab_size, spec.hidden_size)

    def test_other_weights_start_as_they_do_with_the_frozen_head(self):
        trained = with_trained_head().state_dict()
        torch.manual_seed(3)
        frozen = DSpark(small_spec(), BLOCK, make_head("markov"), num_layers=1).double().state_dict()
        assert trained.keys() - frozen.keys() == {"lm_head"} and frozen.keys() <= trained.keys()
        assert all(torch.equal(trained[name], value) for name, value in frozen.items())

    def test_it_trains_and_the_tied_target_stays_untouched(self):
        """Case 14."""
        spec = small_spec()
        embedding = random_ends(spec).embedding.clone()
        drafter = with_trained_head(spec).attach(TargetEnds(embedding))
        before = embedding.clone()
        hidden, previous = inputs(spec)
        optimizer = torch.optim.SGD(drafter.parameters(), lr=0.1)
        torch.logsumexp(drafter.draft_logits(hidden, previous), -1).sum().backward()
        assert drafter.lm_head.grad.any()
        optimizer.step()
        assert not torch.equal(drafter.lm_head, before) and torch.equal(embedding, before)
        assert torch.equal(drafter.ends.embedding, before) and drafter.ends.tied
        assert drafter.lm_head.data_ptr() != embedding.data_ptr()

    def test_attaching_again_keeps_what_was_trained(self):
        drafter = with_trained_head().attach(random_ends(small_spec()))
        with torch.no_grad():
            drafter.lm_head.add_(1.0)
        trained = drafter.lm_head.detach().clone()
        drafter.attach(random_ends(small_spec())).to(torch.float64)
        assert torch.equal(drafter.lm_head, trained)

    @pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
    def test_a_loaded_head_is_not_overwritten_by_the_targets(self, reduced):
        options = {"draft_vocab_size": len(IDS)} if reduced else {}
        drafter, other = with_trained_head(**options), with_trained_head(**options)
        if reduced:
            drafter.set_draft_vocabulary(IDS)
        drafter.attach(random_ends(small_spec()))
        with torch.no_grad():
            drafter.lm_head.mul_(-1.5)
        other.load_state_dict(copy.deepcopy(drafter.state_dict()))
        if reduced:
            other.set_draft_vocabulary(IDS)  # a resumed run chooses the same tokens again
        other.attach(random_ends(small_spec()))
        hidden, previous = inputs(drafter.spec)
        assert torch.equal(other.draft_logits(hidden, previous), drafter.draft_logits(hidden, previous))

    def test_another_draft_vocabulary_takes_its_own_rows(self):
        drafter = with_trained_head(draft_vocab_size=len(IDS)).attach(random_ends(small_spec()))
        for ids in (IDS, IDS + 2):
            drafter.set_draft_vocabulary(ids)
            assert torch.equal(drafter.lm_head, drafter.ends.head[ids])

    def test_dflash_trains_one_too(self):
        drafter = DFlash(small_spec(), BLOCK, train_head=True).attach(random_ends(small_spec()))
        torch.testing.assert_close(drafter.lm_head.double(), drafter.ends.head, rtol=1e-6, atol=1e-6)

    def test_it_is_counted_without_memory_and_absent_by_default(self):
        with torch.device("meta"):
            drafter = with_trained_head()
            frozen = DSpark(small_spec(), BLOCK, make_head("markov"))
        assert drafter.lm_head.is_meta and "lm_head" in dict(drafter.named_parameters())
        assert frozen.lm_head is None and "lm_head" not in frozen.state_dict()

    def test_drafting_draws_from_its_law(self):
        drafter = tiny_drafter(train_head=True)
        with torch.no_grad():
            drafter.lm_head.mul_(0.5)
        proposal, logits, _ = proposed_and_trained(drafter)
        torch.testing.assert_close(proposal.draft_probs, probs(logits, Sampling()), rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("draft_vocab_size", [None, 40])
    def test_it_goes_through_training_and_a_checkpoint(self, tmp_path, draft_vocab_size):
        target = fitting.fitting_target()
        untouched = target.ends.head.clone()
        data = fitting.answers_data(target, fitting.write_answers(tmp_path))
        module = fitting.tiny_module(target, train_head=True, draft_vocab_size=draft_vocab_size)
        if draft_vocab_size:
            module.drafter.set_draft_vocabulary(torch.arange(0, 80, 2))
        start = module.drafter.lm_head.detach().clone()
        trainer = fitting.silent_trainer(tmp_path, max_steps=2)
        trainer.fit(module, data)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        assert not torch.equal(module.drafter.lm_head, start) and torch.equal(target.ends.head, untouched)
        fresh = fitting.tiny_module(target, train_head=True, draft_vocab_size=draft_vocab_size).drafter
        loaded = load_drafter(tmp_path / "last.ckpt", fresh).attach(target.ends)
        assert torch.equal(loaded.lm_head, module.drafter.lm_head)
        frozen = fitting.tiny_module(target, draft_vocab_size=draft_vocab_size).drafter
        with pytest.raises(ValueError, match="lm_head"):
            load_drafter(tmp_path / "last.ckpt", frozen)
