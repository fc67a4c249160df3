"""FrozenTarget: parity with transformers for every family, the self-check, and staying out of the way of training."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import tiny
from draftlab.target import FrozenTarget, frozen
from draftlab.types import Batch

FAMILIES = [*tiny.FAMILIES, *tiny.NESTED]
IDS = (-1, 0, 2)


def tokens(batch: int = 2, length: int = 20) -> torch.Tensor:
    """Random ordinary tokens [B, T], longer than the tiny sliding windows."""
    return torch.randint(4, 64, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_raw_layer_outputs_and_logits_the_models_own(family):
    """hidden_states[i + 1] of transformers is the output of layer i; its last entry is final-normed."""
    target = tiny.tiny_target(family, IDS)
    output = target(tokens())
    theirs = target.model(tokens(), output_hidden_states=True)
    expected = torch.cat([theirs.hidden_states[i + 1] for i in IDS], dim=-1)
    torch.testing.assert_close(output.features, expected)
    torch.testing.assert_close(output.last_hidden, theirs.hidden_states[-1])
    torch.testing.assert_close(target.logits(output.last_hidden), theirs.logits)
    target.self_check(tokens())


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3", "gemma4_unified", "granite"])
def test_scaled_embeddings_are_what_enters_the_first_layer(family):
    target = tiny.tiny_target(family, IDS)
    assert target.spec.embedding_scale != 1
    torch.testing.assert_close(target.ends.embed(tokens()), target(tokens()).features[..., :32])


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "gemma4_unified", "gpt2", "opt"])
def test_a_row_reads_the_same_alone_and_padded_in_a_batch(family):
    target = tiny.tiny_target(family)
    ids = tokens()
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 9:] = False
    padded = target(ids.masked_fill(~mask, 2), attention_mask=mask)
    alone = target(ids[1:, :9])
    torch.testing.assert_close(padded.features[1:, :9], alone.features)
    torch.testing.assert_close(padded.last_hidden[1:, :9], alone.last_hidden)
    torch.testing.assert_close(padded.features[:1], target(ids[:1]).features)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2", "opt"])
def test_a_left_padded_row_reads_as_alone_when_its_mask_and_positions_say_so(family):
    target = tiny.tiny_target(family)
    ids = tokens()
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, :11] = False
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    padded = target(ids.masked_fill(~mask, 2), positions=positions, attention_mask=mask)
    torch.testing.assert_close(padded.last_hidden[1:, 11:], target(ids[1:, 11:]).last_hidden)


def test_reading_a_right_padded_batch_gives_every_row_its_own_features(target):
    ids = tokens()
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 9:] = False
    batch = target.read(Batch(input_ids=ids.masked_fill(~mask, 2), attention_mask=mask, loss_mask=mask))
    alone = target(ids[1:, :9])
    torch.testing.assert_close(batch.features[1:, :9], alone.features)
    torch.testing.assert_close(batch.last_hidden[1:, :9], alone.last_hidden)
    assert batch.features.isfinite().all() and batch.log_normalizer.isfinite().all()


def test_another_module_list_of_the_same_length_is_not_taken_for_the_layers():
    model = tiny.tiny_model()
    modules = model.model._modules
    model.model._modules = {"adapters": nn.ModuleList(nn.Identity() for _ in range(4)), **modules}
    target = FrozenTarget(model, tiny.tiny_spec(model))
    assert torch.equal(target(tokens()).features, tiny.tiny_target()(tokens()).features)


def test_the_forward_pass_computes_no_logits(target):
    called = []
    hook = target.model.lm_head.register_forward_hook(lambda *_: called.append(1))
    target(tokens())
    hook.remove()
    assert not called


def before_the_final_norm(target: FrozenTarget, ids: torch.Tensor) -> torch.Tensor:
    """Output of the last layer, which is what a hook on it would take for the last hidden state."""
    seen = []
    hook = target.model.model.layers[-1].register_forward_hook(lambda m, a, out: seen.append(out))
    target(ids)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "olmo2"])
def test_teacher_states_taken_before_the_final_norm_are_refused(family):
    """Case 1."""
    target = tiny.tiny_target(family)
    with pytest.raises(ValueError, match="after the final norm"):
        target.self_check(tokens(), before_the_final_norm(target, tokens()))


def test_stored_states_pass_the_self_check_in_full_and_half_precision(target):
    states = target(tokens()).last_hidden
    target.self_check(tokens(), states)
    target.self_check(tokens(), states.bfloat16())


def test_states_of_other_tokens_are_refused(target):
    with pytest.raises(ValueError, match="differs from the model's own logits"):
        target.self_check(tokens(), target(tokens().flip(1)).last_hidden)


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("gemma2", {"logit_softcap": 30.0}),
        ("cohere", {"logit_scale": 1.0}),
        ("gemma2", {"embedding_scale": 1.0}),
        ("llama", {"embedding_scale": 2.0}),
    ],
)
def test_ends_that_are_not_the_models_own_are_refused_by_name(family, wrong):
    target = tiny.tiny_target(family, spec=wrong)
    with pytest.raises(ValueError, match=rf"target\.{next(iter(wrong))}"):
        target.self_check(tokens())


def test_log_normalizer_is_the_logsumexp_of_full_logits_however_it_is_cut(target, monkeypatch):
    ids = tokens()
    mask = torch.ones_like(ids, dtype=torch.bool)
    batch = Batch(input_ids=ids, attention_mask=mask, loss_mask=mask)
    expected = torch.logsumexp(target.model(ids).logits, dim=-1)
    monkeypatch.setattr(frozen, "LOGIT_ELEMENTS", 64 * 7)  # 7 positions at a time: 40 does not divide
    read = target.read(batch)
    torch.testing.assert_close(read.log_normalizer, expected)
    assert read.features.shape == (2, 20, 96) and read.last_hidden.shape == (2, 20, 32)
    assert target.read(batch, log_normalizer=False).log_normalizer is None


def test_a_checkpoint_of_a_module_around_the_target_holds_no_frozen_weights():
    """Case 14: tied embeddings, nothing duplicated, save then load gives the same logits."""
    target = tiny.tiny_target("gemma2")
    module = nn.Module()
    module.target, module.drafter = target, nn.Linear(32, 32)
    before = target.model(tokens()).logits
    saved = module.state_dict()
    assert set(saved) == {"drafter.weight", "drafter.bias"}
    assert len(list(module.parameters())) == 2
    module.load_state_dict(saved, strict=True)
    assert (
        target.ends.tied and target.ends.embedding.data_ptr() == target.model.get_input_embeddings().weight.data_ptr()
    )
    assert torch.equal(target.model(tokens()).logits, before)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_moving_the_module_around_it_moves_the_target_and_keeps_the_ends_shared(family):
    module = nn.Module()
    module.target = tiny.tiny_target(family)
    module.ends = module.target.ends  # as a drafter holds them
    module.double()
    model = module.target.model
    assert module.target.dtype == torch.float64 and module.target(tokens()).features.dtype == torch.float64
    assert module.ends.embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert module.ends.head.data_ptr() == model.get_output_embeddings().weight.data_ptr()


def test_training_around_the_target_leaves_it_unchanged_and_its_features_can_be_trained_on():
    target = tiny.tiny_target()
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    drafter = nn.Linear(96, 32)
    optimizer = torch.optim.SGD(drafter.parameters(), lr=1.0)
    target.ends.logits(drafter(target(tokens()).features)).square().mean().backward()
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in target.model.state_dict().items())
    assert all(parameter.grad is None for parameter in target.model.parameters())


def test_the_target_stays_in_evaluation_mode():
    """GPT-2 has dropout; were it on, two readings would differ."""
    module = nn.Module()
    module.target = tiny.tiny_target("gpt2")
    module.train()
    assert torch.equal(module.target(tokens()).features, module.target(tokens()).features)


def test_layer_ids_beyond_the_real_model_are_refused():
    model = tiny.tiny_model(num_layers=2)
    spec = tiny.tiny_spec(tiny.tiny_model(num_layers=4), target_layer_ids=(0, 2))
    with pytest.raises(ValueError, match="do not fit a model of 2 layers"):
        FrozenTarget(model, spec)


def test_a_mask_id_that_only_the_models_own_files_call_an_end_token_is_refused():
    """Case 15: the spec names no end ids, so the check has to come again when they are known."""
    model = tiny.tiny_model()
    model.generation_config.eos_token_id = [7, tiny.MASK]
    spec = tiny.tiny_spec(model, eos_token_ids=())
    with pytest.raises(ValueError, match=r"target\.mask_token_id 3 is the end-of-turn token"):
        FrozenTarget(model, spec)


def test_an_encoder_decoder_model_is_refused(target):
    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    with pytest.raises(ValueError, match="decoder-only"):
        FrozenTarget(transformers.T5ForConditionalGeneration(config), target.spec)
