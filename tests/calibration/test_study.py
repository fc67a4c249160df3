"""What a study finds is what the rounds were made with: temperatures, the better score, the ceiling, drift and transfer."""

import numpy as np
import pandas as pd
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from draftlab.calibration import CONDITIONAL, SURVIVAL
from draftlab.calibration.fitting import ALL_POSITIONS, BEFORE, FIT, HELD_OUT
from draftlab.calibration.rounds import CONFIDENCE, DRAFT_TOP, EXPECTED
from draftlab.calibration.study import StudyRounds, make_study
from draftlab.calibration.transfer import OWN, POOLED, UNSCALED, halves
from made_rounds import made_rounds

IDENTITY = {"block_size": 3, "digest": "ab"}


def study(fit=None, held_out=None, drift=None, **options):
    fit = made_rounds(prompts=14, gamma=3, per_prompt=30) if fit is None else fit
    return make_study(StudyRounds(fit, held_out, drift or {}), 1.0, IDENTITY, "made", **options)


@pytest.fixture(scope="module")
def whole():
    """With held-out rounds, and rounds at 0.7 whose confidences are already right."""
    drift = {0.7: made_rounds(prompts=14, gamma=3, head=1.0, temperature=0.7, seed=2)}
    return study(held_out=made_rounds(prompts=14, gamma=3, seed=1), drift=drift)


def rows(table, **values):
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def test_head_baseline_and_ceiling_are_measured_on_both_parts(whole):
    assert whole.part == HELD_OUT and set(whole.rounds) == {CONFIDENCE, DRAFT_TOP, EXPECTED}
    measures = whole.measures
    assert set(zip(measures["source"], measures["part"], strict=True)) == {
        (source, part) for source in (CONFIDENCE, DRAFT_TOP, EXPECTED) for part in (FIT, HELD_OUT)
    }
    assert set(rows(measures, source=EXPECTED)["when"]) == {BEFORE}, "what outcomes are drawn with needs no scaling"
    assert {row["part"] for row in whole.calibration.measures} == {FIT, HELD_OUT}


def test_the_ceiling_is_the_roc_auc_of_the_chances_that_outcomes_were_drawn_with(whole):
    rounds = whole.rounds[EXPECTED]
    reached = rounds.accepted >= 1
    chances = torch.sigmoid(torch.tensor(rounds.logits[reached, 1]))
    exact = float(binary_auroc(chances, torch.tensor(rounds.accepted[reached] >= 2).long()))
    found = rows(whole.measures, source=EXPECTED, part=HELD_OUT, reading=CONDITIONAL, position=2)["roc_auc"].item()
    assert found == pytest.approx(exact, abs=3e-3)
    head = rows(whole.measures, source=CONFIDENCE, part=HELD_OUT, reading=CONDITIONAL, position=2)["roc_auc"]
    assert (head < found).all()


def test_the_score_with_less_noise_wins_on_the_same_rounds_and_the_difference_is_theirs(whole):
    pooled = rows(whole.differences, position=ALL_POSITIONS, reading=CONDITIONAL).set_index("measure")
    assert pooled.loc["roc_auc", "difference_low"] > 0 and pooled.loc["nll", "difference_high"] < 0
    values = [
        rows(whole.measures, source=source, part=HELD_OUT, when="after", reading=CONDITIONAL, position=1)["nll"].item()
        for source in (CONFIDENCE, DRAFT_TOP)
    ]
    first = rows(whole.differences, position=1, reading=CONDITIONAL, measure="nll")["difference"].item()
    assert first == pytest.approx(values[0] - values[1])
    assert pooled["count"].nunique() == 1 and pooled["count"].iloc[0] == sum(
        rows(whole.differences, position=k, reading=CONDITIONAL, measure="ece")["count"].item() for k in (1, 2, 3)
    )


def test_a_score_against_itself_differs_by_nothing(whole):
    same = made_rounds(prompts=10, gamma=3, per_prompt=30)
    same["draft_top"] = same["confidence"]
    table = study(fit=same).differences
    assert (table[["difference", "difference_low", "difference_high"]].fillna(0.0) == 0.0).all(axis=None)


def test_without_a_head_the_draft_law_is_calibrated():
    headless = made_rounds(prompts=14, gamma=3, per_prompt=40, top=0.5).assign(confidence=None)
    found = study(fit=headless, has_head=False)
    assert found.calibration.source == DRAFT_TOP and found.baseline is None and found.differences.empty
    assert found.part == FIT and set(found.rounds) == {DRAFT_TOP, EXPECTED}


def test_rounds_of_an_earlier_version_are_calibrated_without_baseline_and_ceiling_and_say_so():
    old = made_rounds(prompts=10, gamma=3, per_prompt=30).drop(columns=["draft_top", "expected"])
    found = study(fit=old)
    assert found.calibration.source == CONFIDENCE and found.baseline is None and set(found.rounds) == {CONFIDENCE}
    assert any("no draft_top" in note for note in found.notes) and any("no expected" in note for note in found.notes)
    with pytest.raises(ValueError, match=r"no draft_top for some proposed tokens; .* decode them again"):
        study(fit=old, has_head=False)


def test_drift_shows_what_the_temperatures_do_to_rounds_that_need_none(whole):
    ece = rows(whole.drift, sampling=0.7).set_index("fitted")["ece_survival"]
    assert ece["calibration.json"] > ece[UNSCALED], "confidences that were right are spoilt"
    assert ece[OWN] <= ece[UNSCALED] + 1e-9
    assert set(whole.drift["sampling"]) == {1.0, 0.7}


def test_transfer_has_every_pair_of_domains_the_unscaled_row_and_the_pooled_fit(whole):
    domains = ["chat", "code", "math"]
    assert list(dict.fromkeys(whole.transfer["fitted"])) == [UNSCALED, *domains, POOLED]
    assert list(dict.fromkeys(whole.transfer["tested"])) == [*domains, POOLED]
    table = whole.transfer.set_index(["fitted", "tested"])
    assert (table.loc[UNSCALED]["ece_survival"] > table.loc[POOLED]["ece_survival"]).all()
    assert (table["ece_survival_low"] <= table["ece_survival_high"]).all() and (table["ece_floor"] > 0).all()


def test_a_domain_too_small_for_a_fit_keeps_its_row_with_the_reason():
    made = made_rounds(prompts=20, gamma=3, per_prompt=30)
    few = made[(made["domain"] != "chat") | made["prompt_id"].isin(["chat-0", "chat-1", "chat-2"])]
    table = study(fit=few).transfer
    chat = rows(table, fitted="chat")
    assert chat["ece_survival"].isna().all() and chat["reason"].str.contains("a temperature needs 200").all()
    assert rows(table, fitted="math")["ece_survival"].notna().all()


def test_halves_share_no_prompt_and_lose_no_round():
    arrays = study().rounds[CONFIDENCE]
    first, second = halves(arrays)
    assert len(first) + len(second) == len(arrays)
    assert len(set(map(tuple, first.logits)) & set(map(tuple, second.logits))) == 0
    assert first.prompt.max() + 1 == second.prompt.max() + 1 == 21


def test_a_transfer_without_held_out_rounds_tests_on_prompts_that_the_fit_has_not_seen():
    found = study()
    assert found.part == FIT
    assert rows(found.transfer, fitted=POOLED, tested=POOLED)["rounds"].item() == 14 * 3 * 30 // 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.head(150), "150 rounds, but a temperature needs 200"),
        (lambda t: t.assign(confidence=[[float("nan")] * 3] * len(t)), "not finite"),
        (lambda t: t.assign(temperature=0.5), "no round was decoded at temperature 1; there are 0.5"),
    ],
)
def test_rounds_that_say_too_little_are_refused(spoil, message):
    with pytest.raises(ValueError, match=message):
        study(fit=spoil(made_rounds(prompts=14, gamma=3, per_prompt=30)))


def test_rounds_of_another_gamma_are_refused():
    with pytest.raises(ValueError, match="proposed 4 tokens, but the drafter has gamma 3: the rounds are of another"):
        study(fit=made_rounds(prompts=10, gamma=4))


def test_both_parts_have_both_readings_at_every_position(whole):
    found = whole.measures.groupby(["source", "part", "when"])[["reading", "position"]].apply(
        lambda t: set(zip(t["reading"], t["position"], strict=True))
    )
    assert all(pairs == {(r, k) for r in (SURVIVAL, CONDITIONAL) for k in (1, 2, 3)} for pairs in found)
    assert isinstance(found, pd.Series) and np.isfinite(whole.measures["ece_floor"]).all()
