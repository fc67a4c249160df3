"""An SPS profile: sizes take turns, it goes on where it was killed, its tables are medians, nonsense is refused."""

from __future__ import annotations

import pandas as pd
import pytest

import tiny
from drafting import tiny_drafter
from draftlab.serving import profile as module
from draftlab.serving.profile import ProfileSettings, profile, tables

SETTINGS = {
    "tokens": (1, 2, 5),
    "rows": (1, 2),
    "contexts": (4, 8),
    "main_context": 8,
    "tokens_per_row": 2,
    "repeats": 2,
}


@pytest.fixture(scope="module")
def pair():
    target = tiny.tiny_target(spec={"mask_token_id": tiny.UNK})
    drafter = tiny_drafter(spec=target.spec)
    return target, drafter.float().attach(target.ends)


def test_every_size_is_timed_in_every_repeat_and_the_first_one_does_not_count(pair, tmp_path):
    frame = profile(*pair, ProfileSettings(**SETTINGS), tmp_path / "p", {"machine": "here"})
    assert len(frame) == 2 * 2 * (3 + 2 * 2) and set(frame["repeat"]) == {1, 2} and (frame["seconds"] > 0).all()
    assert set(frame[frame["part"] == "target"]["rows"]) == {1, 3}
    target, drafting = tables(frame, 8)
    rows = frame[(frame["part"] == "target") & (frame["context"] == 8) & (frame["tokens"] == 5)]
    assert target(5) == pytest.approx(1 / rows["seconds"].median())
    assert drafting.rows.tolist() == [1, 2] and drafting.block_size == pair[1].block.block_size
    for part, seconds in (("drafter", drafting.whole), ("drafter_one_token", drafting.one)):
        rows = frame[(frame["part"] == part) & (frame["context"] == 8) & (frame["rows"] == 2)]
        assert seconds[1] == pytest.approx(rows["seconds"].median())


def test_a_killed_profile_goes_on_and_a_whole_one_is_not_made_again(pair, tmp_path, monkeypatch):
    made = []

    def once(*arguments):
        made.append(arguments)
        if len(made) == 14:
            raise KeyboardInterrupt
        return 0.5

    monkeypatch.setattr(module, "_target_pass", once)
    settings, folder = ProfileSettings(**SETTINGS), tmp_path / "p"
    with pytest.raises(KeyboardInterrupt):
        profile(pair[0], None, settings, folder, {})
    profile(pair[0], None, settings, folder, {})
    assert len(made) == 14 + 6  # the first two repeats of 6 passes were whole, the third is begun again
    assert len(profile(pair[0], None, settings, folder, {})) == 12 and len(made) == 20
    with pytest.raises(ValueError, match="another machine"):
        profile(pair[0], None, settings, folder, {"machine": "there"})


def test_a_drafting_pass_is_timed_behind_one_of_the_target_as_in_a_step(pair, monkeypatch):
    """Right behind another drafting pass its weights would still lie in the caches, and drafting look half as dear."""
    target, drafter = pair
    order = []
    forward, propose = type(target).forward, type(drafter).propose
    monkeypatch.setattr(type(target), "forward", lambda *a, **o: order.append("target") or forward(*a, **o))
    monkeypatch.setattr(type(drafter), "propose", lambda *a, **o: order.append("draft") or propose(*a, **o))
    assert module._draft_pass(target, drafter, 2, 4) > 0
    assert order[-2:] == ["target", "draft"] and order.count("draft") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": (4,)}, "profile.tokens must be 2 or more"),
        ({"tokens": (4, 2)}, "ascending"),
        ({"tokens": (0, 2)}, "at least 1"),
        ({"rows": (1, 1)}, "profile.rows"),
        ({"contexts": ()}, "profile.contexts"),
        ({"main_context": 5}, "profile.main_context"),
        ({"repeats": 0}, "profile.repeats"),
        ({"tokens_per_row": 0}, "profile.tokens_per_row"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ProfileSettings(**{**SETTINGS, **changes})


def test_a_context_beyond_the_targets_positions_is_refused(pair):
    spec = pair[0].spec
    settings = ProfileSettings(**{**SETTINGS, "contexts": (8, spec.max_position)})
    with pytest.raises(ValueError, match="positions"):
        settings.check(spec, 4)


def test_a_pass_is_as_even_as_possible_over_as_few_rows_as_possible():
    assert module._lengths(9, 4) == [3, 3, 3] and module._lengths(1, 4) == [1] and module._lengths(10, 4) == [4, 3, 3]


def test_without_a_drafter_there_is_no_table_of_it():
    frame = pd.DataFrame(
        [("target", 1, 1, 8, 0.5), ("target", 2, 1, 8, 1.0)], columns=["part", "tokens", "rows", "context", "seconds"]
    )
    table, drafting = tables(frame, 8)
    assert table.batch_tokens.tolist() == [1, 2] and drafting is None
