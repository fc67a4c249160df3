"""Early exits of a block drafter: what they add, what they leave alone, and that every depth states the law it drew from."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from drafting import FAMILIES, blocks_at, context_of, make_head, random_batch, rows_of, small_spec, tiny_drafter
from draftlab.blocks import BlockSpec
from draftlab.drafters import DSpark
from draftlab.drafters.exits import LeaveOut, plain_state
from draftlab.sampling import Sampling, probs

G = 4
BLOCK = BlockSpec(G, 3)
LENGTHS, ANCHORS = (14, 10, 12, 11), (8, 1, 5, 6)
GREEDY = Sampling(temperature=0.0)
options_of_confidence = pytest.mark.parametrize("confidence_input", ["normed", "unnormed"])
heads = pytest.mark.parametrize("head", ["markov", "rnn", "none"])


def pair(head="markov", exits=(1, 2), **options):
    """A drafter with exits and the plain drafter of the same weights."""
    with_exits = tiny_drafter(head, BLOCK, num_layers=3, exits=exits, **options)
    plain = tiny_drafter(head, BLOCK, num_layers=3, **options)
    plain.load_state_dict(plain_state(with_exits.state_dict()))
    return with_exits, plain


def cut(drafter, depth):
    """The plain drafter that the first ``depth`` layers and their exit make."""
    short = tiny_drafter("markov", BLOCK, num_layers=depth, confidence_input=drafter.confidence_input)
    state = drafter.state_dict()
    own = {name: state[name] for name in short.state_dict()}
    for name in ("norm.weight", "confidence_head.proj.weight", "confidence_head.proj.bias"):
        own[name] = state[f"exits.{depth}.{name}"]
    short.load_state_dict(own)
    return short


def first_survival(drafter, batch, depth, anchors=ANCHORS):
    """c_1 [B] of exit ``depth`` by the training pass."""
    output = drafter(batch, blocks_at(batch, drafter, [[anchor] for anchor in anchors]))
    return torch.sigmoid(output.exits[depth].confidence_logits[:, 0, 0].float())


def propose(drafter, batch, leaving_out=None, anchors=ANCHORS, sampling=GREEDY, cache=None, begins=None, **options):
    cache = cache or drafter.start(len(anchors), max_length=40)
    context = context_of(batch, begins or [0] * len(anchors), anchors)
    options |= {} if leaving_out is None else {"leaving_out": leaving_out}
    return drafter.propose(context, cache, sampling, torch.Generator().manual_seed(0), **options)


def between(values):
    """Thresholds that part the values: below all, between each two, above all."""
    ordered = values.sort().values
    return [0.0, *((ordered[1:] + ordered[:-1]) / 2).tolist(), 1.1]


@heads
def test_the_whole_depth_is_the_plain_drafter_bit_for_bit(head):
    with_exits, plain = pair(head)
    batch = random_batch(plain.spec)
    blocks = blocks_at(batch, plain, [[2, 5, 8], [1, 3, 6]])
    one, other = with_exits(batch, blocks), plain(batch, blocks)
    assert torch.equal(one.hidden, other.hidden) and torch.equal(one.confidence_logits, other.confidence_logits)
    assert list(one.exits) == [1, 2] and other.exits == {}


@options_of_confidence
@pytest.mark.parametrize("depth", [1, 2])
def test_an_exit_is_the_shorter_drafter_with_its_norm_and_confidence_head_bit_for_bit(depth, confidence_input):
    drafter, _ = pair(confidence_input=confidence_input)
    short = cut(drafter, depth)
    batch = random_batch(drafter.spec)
    blocks = blocks_at(batch, drafter, [[2, 5, 8], [1, 3, 6]])
    one, other = drafter(batch, blocks).exits[depth], short(batch, blocks)
    assert torch.equal(one.hidden, other.hidden) and torch.equal(one.confidence_logits, other.confidence_logits)


@heads
def test_without_a_policy_a_drafter_with_exits_drafts_as_the_plain_one(head):
    with_exits, plain = pair(head)
    batch = random_batch(plain.spec, LENGTHS)
    one, other = (propose(drafter, batch, sampling=Sampling()) for drafter in (with_exits, plain))
    for name in ("tokens", "draft_probs", "confidence"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert one.lengths is None and one.depth is None


def test_exits_add_their_own_tensors_and_leave_every_other_name_and_starting_value():
    torch.manual_seed(0)
    with_exits = DSpark(small_spec(), BLOCK, make_head("markov"), num_layers=3, exits=[1, 2])
    torch.manual_seed(0)
    plain = DSpark(small_spec(), BLOCK, make_head("markov"), num_layers=3).state_dict()
    state = with_exits.state_dict()
    assert set(state) - set(plain) == {
        f"exits.{depth}.{name}"
        for depth in (1, 2)
        for name in ("norm.weight", "confidence_head.proj.weight", "confidence_head.proj.bias")
    }
    assert plain_state(state).keys() == plain.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.items())


@options_of_confidence
def test_every_row_drafts_as_the_drafter_of_the_depth_where_it_stops(confidence_input):
    drafter, plain = pair(confidence_input=confidence_input)
    batch = random_batch(drafter.spec, LENGTHS)
    by_depth = {depth: propose(cut(drafter, depth), batch) for depth in (1, 2)} | {3: propose(plain, batch)}
    first = {depth: first_survival(drafter, batch, depth) for depth in (1, 2)}
    seen = set()
    for survival in between(torch.cat(list(first.values()))):
        proposal = propose(drafter, batch, LeaveOut(survival))
        expected = torch.where(first[1] < survival, 1, torch.where(first[2] < survival, 2, 3))
        assert torch.equal(proposal.depth, expected) and proposal.lengths.tolist() == [G] * 4
        seen.add(tuple(sorted(set(expected.tolist()))))
        for row, depth in enumerate(expected.tolist()):
            assert torch.equal(proposal.tokens[row], by_depth[depth].tokens[row])
            torch.testing.assert_close(proposal.confidence[row], by_depth[depth].confidence[row])
    assert {(3,), (1,)} < seen and any(len(depths) > 1 for depths in seen), "rows must stop at different depths, too"


@heads
def test_draft_probs_are_those_of_the_exit_taken(head):
    """Case 25: the logits of the training pass at that depth, teacher-forced with what was drawn."""
    drafter, _ = pair(head)
    batch = random_batch(drafter.spec, LENGTHS)
    survival = float(first_survival(drafter, batch, 1).detach().median()) + 1e-6
    proposal = propose(drafter, batch, LeaveOut(survival), sampling=Sampling(0.7))
    blocks = blocks_at(batch, drafter, [[anchor] for anchor in ANCHORS])
    previous = torch.cat([blocks.input_ids[:, 0, :1], proposal.tokens[:, :-1]], dim=1)
    output = drafter(batch, dataclasses.replace(blocks, previous=previous.unsqueeze(1)))
    assert len(set(proposal.depth.tolist())) > 1
    for row, depth in enumerate(proposal.depth.tolist()):
        taken = output.exits.get(depth, output)
        logits = drafter.draft_logits(taken.hidden[row], previous[row, None])[0]
        torch.testing.assert_close(proposal.draft_probs[row], probs(logits, Sampling(0.7)), rtol=1e-5, atol=1e-7)
        confidence = torch.sigmoid(taken.confidence_logits[row, 0]).float()
        torch.testing.assert_close(proposal.confidence[row], confidence, rtol=1e-5, atol=1e-6)


def test_where_a_row_stops_does_not_depend_on_the_draws():
    drafter, _ = pair()
    batch = random_batch(drafter.spec, LENGTHS)
    survival = float(first_survival(drafter, batch, 1).detach().median()) + 1e-6
    context = context_of(batch, [0] * 4, ANCHORS)
    proposals = [
        drafter.propose(
            context,
            drafter.start(4, 40),
            Sampling(2.0),
            torch.Generator().manual_seed(seed),
            leaving_out=LeaveOut(survival),
        )
        for seed in range(5)
    ]
    assert len({tuple(p.tokens.flatten().tolist()) for p in proposals}) == 5
    assert len({tuple(p.depth.tolist()) for p in proposals}) == 1


def test_a_row_that_stopped_or_sat_out_leaves_nothing_missing_in_the_cache():
    """Context keys and values come from H_ctx in every layer, so the next block may go deeper."""
    drafter, plain = pair()
    batch = random_batch(drafter.spec, (14, 13, 14, 14))
    cache = drafter.start(4, max_length=20)
    rounds = [(3, 1, 5, 2), (4, 5, 7, 3), (8, 6, 8, 5), (9, 7, 9, 9)]
    first = first_survival(drafter, batch, 1, rounds[0])
    some = torch.tensor([True, False, True, False])
    policies = [LeaveOut(float(first.detach().median())), LeaveOut(0.0, some), LeaveOut(1.1, ~some), None]
    begins = [0] * 4
    for anchors, policy in zip(rounds, policies, strict=True):
        proposal = propose(drafter, batch, policy, anchors, cache=cache, begins=begins)
        begins = list(anchors)
    at_once = propose(plain, batch, anchors=rounds[-1])
    assert torch.equal(proposal.tokens, at_once.tokens)
    torch.testing.assert_close(proposal.confidence, at_once.confidence)


@pytest.mark.parametrize("drawn", [[0, 2], [3], [1, 2, 3]])
def test_rows_that_sit_out_have_no_tokens_and_do_not_disturb_the_others(drawn):
    drafter, plain = pair()
    batch = random_batch(drafter.spec, LENGTHS)
    drafts = torch.zeros(4, dtype=torch.bool).index_fill(0, torch.tensor(drawn), True)
    proposal = propose(drafter, batch, LeaveOut(0.0, drafts))
    alone = propose(plain, rows_of(batch, drawn), anchors=[ANCHORS[row] for row in drawn])
    assert torch.equal(proposal.lengths, G * drafts) and torch.equal(proposal.depth, 3 * drafts)
    assert torch.equal(proposal.tokens[drafts], alone.tokens)
    torch.testing.assert_close(proposal.draft_probs[drafts], alone.draft_probs)
    torch.testing.assert_close(proposal.confidence[drafts], alone.confidence)


def test_where_all_rows_sit_out_there_is_no_block_at_all():
    drafter, _ = pair()
    batch = random_batch(drafter.spec, LENGTHS)
    ran = []
    drafter.layers[0].register_forward_hook(lambda *_: ran.append(1))
    proposal = propose(drafter, batch, LeaveOut(0.5, torch.zeros(4, dtype=torch.bool)))
    assert proposal.tokens.shape == (4, 0) and proposal.draft_probs.shape == (4, 0, drafter.spec.vocab_size)
    assert proposal.confidence.shape == (4, 0) and not ran
    assert proposal.lengths.tolist() == proposal.depth.tolist() == [0] * 4


def test_layers_run_for_the_rows_that_go_on_and_for_no_other():
    """The depth that is reported is the work that was done."""
    drafter, _ = pair()
    batch = random_batch(drafter.spec, LENGTHS)
    rows = []
    for layer in drafter.layers:
        layer.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    for survival in between(torch.cat([first_survival(drafter, batch, depth) for depth in (1, 2)]).detach()):
        rows.clear()
        proposal = propose(drafter, batch, LeaveOut(survival, torch.tensor([True, True, False, True])))
        assert sum(rows) == int(proposal.depth.sum()) and rows[0] == 3


@pytest.mark.parametrize("layout", [True, False], ids=["anchor-first", "1+N"])
def test_fewer_tokens_are_the_beginning_of_the_same_block_at_every_depth(layout):
    drafter = tiny_drafter("markov", BlockSpec(G, 3, sample_from_anchor=layout), num_layers=3, exits=(1, 2))
    batch = random_batch(drafter.spec, LENGTHS)
    survival = float(first_survival(drafter, batch, 1).detach().median()) + 1e-6
    whole, part = (propose(drafter, batch, LeaveOut(survival), num_tokens=count) for count in (None, 2))
    assert len(set(whole.depth.tolist())) > 1
    assert torch.equal(part.tokens, whole.tokens[:, :2]) and part.lengths.tolist() == [2] * 4


def test_the_weights_of_every_exit_train():
    drafter, _ = pair()
    batch = random_batch(drafter.spec)
    output = drafter(batch, blocks_at(batch, drafter, [[2, 5, 8], [1, 3, 6]]))
    sum(exit.hidden.square().sum() + exit.confidence_logits.sum() for exit in output.exits.values()).backward()
    trained = {name for name, parameter in drafter.named_parameters() if parameter.grad is not None}
    assert {name for name, _ in drafter.named_parameters() if name.startswith("exits.")} <= trained
    assert not any(name.startswith("layers.2.") for name in trained), "an exit knows nothing of the layers above it"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exits": [3]}, r"drafter\.exits must lie in 1\.\.2, since the drafter has 3 layers .*got \[3\]"),
        ({"exits": [0, 1]}, r"drafter\.exits must lie in 1\.\.2"),
        ({"exits": [2, 1]}, r"drafter\.exits must be whole numbers of layers in ascending order, got \[2, 1\]"),
        ({"exits": [1, 1]}, r"ascending order, got \[1, 1\]"),
        ({"exits": [1.5]}, r"must be whole numbers"),
        ({"exits": [True]}, r"must be whole numbers"),
        ({"exits": 1}, r"drafter\.exits must be a list of layers, as in \[1, 2\], got 1"),
        ({"exits": [1], "confidence_head": False}, r"drafter\.exits=\[1\] needs a confidence head"),
    ],
)
def test_exits_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DSpark(small_spec(), BLOCK, make_head("markov"), num_layers=3, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_without_exits_refuses_them(family):
    with pytest.raises(ValueError, match=r"drafter\.exits.* use drafter=dspark_exits"):
        FAMILIES[family](small_spec(), BlockSpec(1 if family == "mtp" else G, 3), exits=[1])
