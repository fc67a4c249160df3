"""Drafting that stops early: the target's law stays exactly, in every round and at every depth, and work is really left out."""

from __future__ import annotations

import pytest
import torch

import tiny
from draftlab.decode import cache
from draftlab.decode.exits import ExitPolicy, Habit
from draftlab.decode.loop import Decoder, DecodeSettings, plain_decode, speculative_decode
from draftlab.drafters.exits import LeaveOut
from draftlab.sampling import Sampling
from draftlab.types import Proposal
from lossless import SAMPLINGS, check
from pairs import tiny_pair

PROMPTS = [[1, 5], [4, 3, 1, 1, 7, 2], [6], [3, 2, 5], [7, 7, 1, 4], [5, 1]]
EXITS = {"num_layers": 3, "exits": (1, 2)}


def policy(survival=None, accepted=None, memory=0.0, rest=1):
    return ExitPolicy(survival, accepted, memory, rest)


def depths(answers, round_index=-1):
    return {answer.rounds[round_index].depth for answer in answers}


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    monkeypatch.setattr(cache, "GROWTH", 8)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("name", ["markov", "rnn", "none"])
def test_rows_of_a_batch_that_stop_at_different_depths_follow_the_target_law_exactly(name, sampling):
    target, drafter = tiny_pair(name, vocab_size=4, gamma=2, **EXITS)
    seen = set()
    for survival in (0.3, 0.6):
        seen |= {
            frozenset(depths(check(target, drafter, [[1], [2, 3, 1, 1]], sampling, 1, exit=policy(survival)))),
        }
    assert max(map(len, seen)) > 1, "rows of one batch must stop at different depths"


def test_every_depth_is_met_in_a_batch_that_follows_the_target_law_exactly():
    target, drafter = tiny_pair("markov", vocab_size=4, gamma=2, **EXITS)
    seen = set()
    for survival in (0.2, 0.4, 0.5, 0.7, 0.9, 1.0):
        seen |= depths(check(target, drafter, [[1], [2, 3, 1, 1]], Sampling(), 1, exit=policy(survival)))
    assert seen == {1, 2, 3}


@pytest.mark.parametrize("sampling", [SAMPLINGS["T=1"], SAMPLINGS["top_p"]], ids=["T=1", "top_p"])
@pytest.mark.parametrize("name", ["markov", "rnn"])
def test_a_second_round_after_blocks_of_unequal_depth_follows_the_target_law_exactly(name, sampling):
    target, drafter = tiny_pair(name, vocab_size=3, gamma=1, **EXITS)
    answers = check(target, drafter, [[1, 2], [2]], sampling, 2, exit=policy(0.5))
    assert len({tuple(counted.depth for counted in answer.rounds) for answer in answers}) > 1


@pytest.mark.parametrize("accepted", [1.0, 0.4])
@pytest.mark.parametrize("name", ["markov", "dflash"])
def test_requests_that_sit_out_after_a_bad_round_follow_the_target_law_exactly(name, accepted):
    """The running mean tells which tokens were accepted, hence about the answer so far; what comes is the target's all the same."""
    target, drafter = tiny_pair(name, vocab_size=3, gamma=1, num_layers=2)
    answers = check(target, drafter, [[2]], Sampling(), 3, exit=policy(accepted=accepted, memory=0.2))
    seen = {tuple(counted.depth for counted in answer.rounds) for answer in answers}
    assert {(2, 0, 2), (2, 2, 0), (2, 2, 2)} <= seen, "some sit out in the second round, some in the third, some never"


def test_rows_that_sit_out_beside_rows_that_stop_early_follow_the_target_law_exactly():
    target, drafter = tiny_pair("markov", vocab_size=3, gamma=1, **EXITS)
    answers = check(target, drafter, [[1, 2], [2]], Sampling(), 2, exit=policy(0.5, accepted=1.0))
    assert depths(answers) >= {0} and len(depths(answers)) > 2


def test_a_reduced_draft_vocabulary_keeps_the_law_at_every_depth():
    target, drafter = tiny_pair("markov", vocab_size=4, gamma=2, draft_ids=torch.tensor([1, 3]), **EXITS)
    answers = check(target, drafter, [[1], [2, 3, 1]], Sampling(), 1, exit=policy(0.5))
    assert len(depths(answers)) > 1


def test_a_decision_that_reads_the_drafted_tokens_is_caught():
    """Why the depth is known before x_1: going deeper where an exit's own draft looks bad keeps tokens of another law than the one
    that they were drawn from, as the global search of method 5 does."""
    target, drafter = tiny_pair("markov", vocab_size=3, gamma=2, **EXITS)
    honest = drafter.propose

    def again_if_it_looks_bad(context, cache, sampling, generator, leaving_out):
        shallow, deep = (honest(context, cache, sampling, generator, leaving_out=LeaveOut(s)) for s in (1.1, 0.0))
        bad = shallow.confidence[:, 1] < shallow.confidence[:, 1].median()  # it knows x_1

        def chosen(name):
            one, other = getattr(shallow, name), getattr(deep, name)
            return torch.where(bad.view(-1, *[1] * (one.dim() - 1)), other, one)

        return Proposal(
            chosen("tokens"),
            chosen("draft_probs"),
            None,
            chosen("confidence"),
            lengths=shallow.lengths,
            depth=chosen("depth"),
        )

    drafter.propose = again_if_it_looks_bad
    with pytest.raises(AssertionError, match="not close"):
        check(target, drafter, [[1]], Sampling(), 1, exit=policy(0.5), redraws=1)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_greedy_output_is_plain_greedy_output_whatever_is_left_out(batch_size):
    """Case 22."""
    target, drafter = tiny_pair("markov", vocab_size=8, gamma=3, **EXITS)
    plain = plain_decode(target, PROMPTS, DecodeSettings(20, SAMPLINGS["T=0"], (4,), batch_size))
    seen = set()
    for chosen in (policy(0.5), policy(1.0), policy(accepted=0.5, rest=2), policy(0.5, 0.5)):
        settings = DecodeSettings(20, SAMPLINGS["T=0"], (4,), batch_size, exit=chosen)
        answers = speculative_decode(target, drafter, PROMPTS, settings)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain]
        seen |= {counted.depth for answer in answers for counted in answer.rounds}
        for counted in (counted for answer in answers for counted in answer.rounds):
            assert (counted.proposed == 0) == (counted.depth == 0) and len(counted.confidence) == counted.proposed
    assert {0, 1, 3} <= seen


def test_a_row_goes_as_deep_in_a_crowded_batch_as_alone():
    target, drafter = tiny_pair("markov", vocab_size=8, gamma=3, **EXITS)
    runs = [
        speculative_decode(
            target, drafter, PROMPTS, DecodeSettings(20, SAMPLINGS["T=0"], (4,), size, exit=policy(0.5, 0.4, 0.5))
        )
        for size in (1, 4)
    ]
    for alone, crowded in zip(*runs, strict=True):
        assert [counted.depth for counted in alone.rounds] == [counted.depth for counted in crowded.rounds]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_with_the_policy_off_a_drafter_with_exits_decodes_as_the_plain_one(batch_size):
    from draftlab.drafters.exits import plain_state

    target, with_exits = tiny_pair("markov", vocab_size=8, gamma=3, **EXITS)
    _, plain = tiny_pair("markov", vocab_size=8, gamma=3, num_layers=3)
    plain.load_state_dict(plain_state(with_exits.state_dict()))
    settings = DecodeSettings(20, Sampling(), (4,), batch_size)
    runs = [
        speculative_decode(target, drafter, PROMPTS, settings, torch.Generator().manual_seed(3))
        for drafter in (with_exits, plain)
    ]
    assert runs[0] == runs[1]
    assert all(counted.depth is None for answer in runs[0] for counted in answer.rounds)


def test_layers_run_as_often_as_the_rounds_say():
    target, drafter = tiny_pair("markov", vocab_size=8, gamma=3, **EXITS)
    rows = []
    for layer in drafter.layers:
        layer.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    settings = DecodeSettings(20, Sampling(), (4,), 4, exit=policy(0.5, 0.6, 0.5))
    answers = speculative_decode(target, drafter, PROMPTS, settings, torch.Generator().manual_seed(0))
    counted = [each for answer in answers for each in answer.rounds]
    assert sum(rows) == sum(each.depth for each in counted) < 3 * len(counted)


def test_where_every_row_sits_out_the_target_reads_one_token_a_row():
    target, drafter = tiny_pair("markov", vocab_size=8, gamma=3, num_layers=1)
    widths, forward = [], target.forward
    target.forward = lambda ids, *args: widths.append(ids.shape[1]) or forward(ids, *args)
    settings = DecodeSettings(12, Sampling(), (), 1, exit=policy(accepted=9.0, memory=0.5, rest=3))
    Decoder(target, drafter, settings).run([[1, 5]], torch.Generator().manual_seed(0))
    assert widths[1:6] == [1, 1, 1, 4, 1], "three rounds of rest before each try"


def test_a_request_sits_out_until_its_rest_is_over_and_judges_by_its_own_rounds():
    rests = policy(accepted=0.5, memory=0.5, rest=2)
    habit, drafted = Habit(), []
    for accepted in (0, 0, 3, 0, 0, 0):  # of the rounds with a draft, one after the other
        while not habit.drafts(rests):
            habit.note(rests, 0, 0)
            drafted.append(0)
        drafted.append(1)
        habit.note(rests, 4, accepted)
    # Means: 1 -> 0.5 -> 0.25 (rests twice) -> 1.625 -> 0.81 -> 0.41 (rests twice) -> 0.2
    assert drafted == [1, 1, 0, 0, 1, 1, 1, 0, 0, 1]
    assert all(Habit(mean=0.0).drafts(off) for off in (policy(0.5), policy()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"survival": 0}, r"exit\.survival must be null \(off\) or a number above 0, at most 1, got 0"),
        ({"survival": 1.5}, r"exit\.survival"),
        ({"survival": float("nan")}, r"exit\.survival"),
        ({"survival": "low"}, r"exit\.survival .* got 'low'"),
        ({"accepted": -1}, r"exit\.accepted must be null"),
        ({"accepted": True}, r"exit\.accepted must be null"),
        ({"memory": 1.0}, r"exit\.memory must be at least 0 and below 1, got 1\.0"),
        ({"rest": 0}, r"exit\.rest must be at least 1 and whole"),
        ({"rest": 1.5}, r"exit\.rest"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        policy(**values)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("markov", {"survival": 0.5}, r"needs a drafter with early exits, and this one \(DSpark\) was trained without"),
        ("dflash", {"survival": 0.5}, r"needs a drafter with early exits, and this one \(DFlash\)"),
        ("eagle3", {"survival": 0.5}, r"needs a drafter with early exits, and this one \(Eagle3\)"),
        ("mtp", {"accepted": 0.5}, r"exit\.accepted=0\.5: MTP drafts all rows alike"),
    ],
)
def test_a_policy_that_the_drafter_cannot_follow_is_refused_before_anything_runs(name, values, message):
    target, drafter = tiny_pair(name, vocab_size=8, gamma=1)
    with pytest.raises(ValueError, match=message):
        Decoder(target, drafter, DecodeSettings(8, exit=policy(**values)))
    assert Decoder(target, None, DecodeSettings(8, exit=policy(**values))).run([[1, tiny.MASK]]), (
        "plain decoding has none"
    )
