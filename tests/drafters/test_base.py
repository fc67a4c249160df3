"""What a drafter is apart from its mathematics: names, sizes, ends, draft vocabulary, and what it refuses."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from drafting import RANK, blocks_at, context_of, make_head, random_batch, random_ends, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.drafters import DFlash, DSpark
from draftlab.heads import MarkovHead, RNNHead
from draftlab.sampling import Sampling

CONF = Path(__file__).parents[2] / "conf"
LAYER = {
    "self_attn.q_proj.weight": (24, 12),
    "self_attn.k_proj.weight": (12, 12),
    "self_attn.v_proj.weight": (12, 12),
    "self_attn.o_proj.weight": (12, 24),
    "self_attn.q_norm.weight": (6,),
    "self_attn.k_norm.weight": (6,),
    "mlp.gate_proj.weight": (20, 12),
    "mlp.up_proj.weight": (20, 12),
    "mlp.down_proj.weight": (12, 20),
    "input_layernorm.weight": (12,),
    "post_attention_layernorm.weight": (12,),
}
BACKBONE = {"fc.weight": (12, 24), "hidden_norm.weight": (12,), "norm.weight": (12,)}


def shapes_of(drafter):
    return {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}


def test_a_checkpoint_has_the_names_and_shapes_of_released_ones_and_nothing_of_the_target():
    """Case 14: neither tied nor untied ends are stored."""
    layers = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
    assert shapes_of(tiny_drafter("dflash")) == BACKBONE | layers
    head = {
        "markov_head.markov_w1.weight": (23, RANK),
        "markov_head.markov_w2.weight": (23, RANK),
        "confidence_head.proj.weight": (1, 12 + RANK),
        "confidence_head.proj.bias": (1,),
    }
    assert shapes_of(tiny_drafter("markov")) == BACKBONE | layers | head
    alone = {"confidence_head.proj.weight": (1, 12), "confidence_head.proj.bias": (1,)}
    assert shapes_of(tiny_drafter("none")) == BACKBONE | layers | alone


def test_saving_and_loading_gives_the_same_logits_and_leaves_the_targets_ends_as_they_were():
    """Case 14, with tied ends, through a file."""
    drafter, other = tiny_drafter("rnn"), tiny_drafter("rnn", seed=5)
    ends = random_ends(drafter.spec)
    before = ends.embedding.clone()
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, [[3], [4]])
    other.load_state_dict(copy.deepcopy(drafter.state_dict()))
    outputs = []
    for one in (drafter.attach(ends), other.attach(ends)):
        hidden = one(batch, blocks).hidden.flatten(0, 1)
        outputs.append(one.draft_logits(hidden, blocks.previous.flatten(0, 1)))
    assert torch.equal(*outputs) and torch.equal(ends.embedding, before)
    assert not {"ends", "embedding", "head"} & {name for name, _ in drafter.named_modules()}


def test_a_cast_of_the_drafter_does_not_cast_the_target():
    drafter = tiny_drafter(dtype=torch.float64)
    ends = drafter.ends
    drafter.to(torch.bfloat16)
    assert drafter.fc.weight.dtype == torch.bfloat16 and ends.embedding.dtype == torch.float64
    batch = random_batch(drafter.spec)
    proposal = drafter.propose(context_of(batch, (0, 0), (5, 4)), drafter.start(2, 20), Sampling())
    assert proposal.draft_probs.isfinite().all()


@pytest.mark.parametrize("drafter", ["dspark", "dspark_parallel", "dflash"])
@pytest.mark.parametrize("head", ["markov", "gated", "rnn", "domino", "none"])
def test_configurations_build_without_weights_or_are_refused(drafter, head):
    """On the meta device, as a plan does; ``drafter=dflash`` takes no head but none."""
    file = OmegaConf.load(CONF / "drafter" / f"{drafter}.yaml")
    node = file.get("drafter") or OmegaConf.load(CONF / "drafter" / "dspark.yaml").drafter
    make_head = instantiate(OmegaConf.load(CONF / "head" / f"{head}.yaml"))
    block = instantiate(
        OmegaConf.create({"block": OmegaConf.load(CONF / "block" / "block7.yaml"), "trainer": {"num_anchors": 9}}).block
    )
    with torch.device("meta"):
        build = partial(instantiate(node), spec=small_spec(), block=block, head=make_head)
        if drafter == "dflash" and head != "none":
            with pytest.raises(ValueError, match=r"drafter=dflash .* takes head=none, got \w+Head; use drafter=dspark"):
                build()
            return
        built = build()
    assert len(built.layers) == 5 and built.block.decay_gamma == 7
    assert all(parameter.is_meta for parameter in built.parameters())


FOLLOWS = "${block.block_size}"


EXTENDING = [file for file in sorted((CONF / "block").glob("*.yaml")) if file.stem != "ttt7"]


@pytest.mark.parametrize("file", EXTENDING, ids=lambda file: file.stem)
def test_block_configurations_extend_the_papers_block(file):
    """The decay follows the block size unless a file fixes it."""
    base = OmegaConf.load(CONF / "block" / "block7.yaml")
    own = OmegaConf.load(file)
    own.pop("defaults", None)
    merged = {"block": OmegaConf.merge(base, own, {"block_size": 4}), "trainer": {"num_anchors": 9}}
    block = instantiate(OmegaConf.create(merged).block)
    assert block.num_anchors == 9
    fixed = OmegaConf.to_container(own).get("decay_gamma", FOLLOWS)
    assert block.block_size == 4 and block.decay_gamma == (4 if fixed == FOLLOWS else fixed)
    assert block.num_inputs == (5 if file.stem == "block7_one_plus_n" else 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, r"drafter\.num_layers must be at least 1, got 0"),
        ({"draft_vocab_size": 24}, r"drafter\.draft_vocab_size must lie in 1\.\.23, .* got 24"),
        ({"draft_vocab_size": 0}, r"drafter\.draft_vocab_size must lie in 1\.\.23, .* got 0"),
        ({"num_heads": 5}, r"drafter\.num_heads \(5\) must be a multiple of drafter\.num_kv_heads \(2\)"),
        ({"num_kv_heads": 0}, r"drafter\.num_kv_heads must be at least 1"),
        ({"head_dim": 5}, r"drafter\.head_dim must be even"),
        ({"num_head": 4}, r"unknown drafter setting num_head; layer sizes are num_heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        DSpark(small_spec(), BlockSpec(4, 3), make_head("markov"), **options)


def test_dflash_has_no_confidence_and_dspark_may_leave_it_out():
    assert not DFlash(small_spec(), BlockSpec(4, 3)).has_confidence
    assert DSpark(small_spec(), BlockSpec(4, 3), make_head("rnn")).has_confidence
    assert not DSpark(small_spec(), BlockSpec(4, 3), make_head("rnn"), confidence_head=False).has_confidence


def test_layer_sizes_default_to_the_targets():
    spec = small_spec()
    sizes = DSpark(spec, BlockSpec(4, 3), make_head("none"), num_layers=1, intermediate_size=8).sizes
    assert (sizes.num_heads, sizes.num_kv_heads, sizes.head_dim) == (spec.num_heads, spec.num_kv_heads, spec.head_dim)
    assert sizes.intermediate_size == 8


def test_ends_of_another_target_are_refused():
    drafter = tiny_drafter()
    with pytest.raises(
        ValueError, match=r"vocabulary and hidden size \(23, 12\), but the ends to attach have \(24, 12\)"
    ):
        drafter.attach(random_ends(small_spec(vocab_size=24)))


def test_drafting_without_a_target_says_what_to_do():
    drafter = DSpark(small_spec(), BlockSpec(4, 3), partial(MarkovHead, rank=2))
    batch = random_batch(drafter.spec, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"call attach\(target\.ends\)"):
        drafter(batch, blocks_at(batch, drafter, [[3], [4]]))


class TestDraftVocabulary:
    """A reduced draft vocabulary of five tokens."""

    ids = torch.tensor([1, 4, 6, 9, 20])

    def drafter(self):
        return tiny_drafter(draft_vocab_size=5)

    def test_logits_are_the_columns_of_the_whole_vocabulary(self):
        drafter = self.drafter()
        drafter.set_draft_vocabulary(self.ids)
        hidden, previous = torch.randn(3, 4, 12).double(), torch.randint(0, 23, (3, 4))
        logits = drafter.draft_logits(hidden, previous)
        base = (hidden @ drafter.ends.head.T)[..., self.ids]
        torch.testing.assert_close(logits, base + drafter.markov_head.bias(hidden, previous))

    def test_it_must_be_set_before_use(self):
        drafter = self.drafter()
        with pytest.raises(ValueError, match=r"draft vocabulary is not set yet; call set_draft_vocabulary"):
            drafter.draft_logits(torch.randn(1, 4, 12).double(), torch.zeros(1, 4).long())

    def test_it_travels_with_the_checkpoint_and_replaces_an_older_one(self):
        """The ends keep the rows of the last selection; loading must not leave stale ones."""
        drafter, other = self.drafter(), self.drafter()
        drafter.set_draft_vocabulary(self.ids)
        other.set_draft_vocabulary(self.ids + 2)
        hidden, previous = torch.randn(1, 4, 12).double(), torch.zeros(1, 4).long()
        assert not torch.equal(other.draft_logits(hidden, previous), drafter.draft_logits(hidden, previous))
        other.load_state_dict(drafter.state_dict())
        assert torch.equal(other.draft_ids, self.ids)
        assert torch.equal(other.draft_logits(hidden, previous), drafter.draft_logits(hidden, previous))

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ([1, 4, 6], r"must have 5 ids"),
            ([4, 1, 6, 9, 20], r"distinct, ascending and within 0\.\.22"),
            ([1, 1, 6, 9, 20], r"distinct, ascending"),
            ([1, 4, 6, 9, 23], r"distinct, ascending and within 0\.\.22"),
            ([-1, 4, 6, 9, 20], r"distinct, ascending and within 0\.\.22"),
        ],
    )
    def test_wrong_ids_are_refused(self, ids, message):
        with pytest.raises(ValueError, match=message):
            self.drafter().set_draft_vocabulary(ids)

    def test_a_drafter_over_the_whole_vocabulary_has_none(self):
        drafter = tiny_drafter(draft_vocab_size=23)
        assert drafter.draft_ids is None and "draft_ids" not in drafter.state_dict()
        with pytest.raises(ValueError, match=r"set drafter\.draft_vocab_size to reduce it"):
            drafter.set_draft_vocabulary(torch.arange(23))

    def test_any_token_can_be_the_previous_one(self):
        drafter = DSpark(small_spec(), BlockSpec(4, 3), partial(RNNHead, rank=3), draft_vocab_size=5)
        assert drafter.markov_head.markov_w1.weight.shape == (23, 3)
        assert drafter.markov_head.markov_w2.weight.shape == (5, 3)
