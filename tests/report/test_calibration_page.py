"""The page of a calibration: whole, self-contained, names its readings, and shows what is there when parts are missing."""

import re

import pandas as pd
import pytest

from draftlab.calibration import CONDITIONAL, SURVIVAL
from draftlab.calibration.study import StudyRounds, make_study
from draftlab.report.calibration import print_study
from draftlab.report.calibration_figures import reliability_by_position
from draftlab.report.calibration_page import verdicts, write_calibration
from draftlab.report.reliability import position_bins
from made_rounds import made_rounds


def study_of(fit, held_out=None, gamma=3, **options):
    return make_study(StudyRounds(fit, held_out), 1.0, {"block_size": gamma, "digest": "a"}, "made", **options)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    study = study_of(made_rounds(prompts=12, gamma=3), made_rounds(prompts=12, gamma=3, seed=1))
    return folder, study, write_calibration(folder, study)


def test_page_tables_and_pictures_are_written_and_the_page_needs_nothing_else(written):
    folder, _, page = written
    assert page == folder / "calibration.html"
    tables = {path.stem for path in (folder / "tables").iterdir()}
    assert tables == {
        f"calibration_{name}" for name in ("measures", "differences", "transfer", "drift", "bins", "threshold")
    }
    pictures = {path.stem for path in (folder / "figures").iterdir()}
    assert pictures == {f"calibration_{name}" for name in (SURVIVAL, CONDITIONAL, "threshold")}
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 3 and not re.search(r'(src|href)="(?!data:)', text)
    for words in (
        "survival ECE before",
        "conditional ECE before",
        "floor",
        "ceiling c*",
        "92.5 %",
        "95.7 %",
        "tested on math",
    ):
        assert words in text


def test_the_verdict_names_the_winner_of_every_measure_with_its_difference(written):
    _, study, page = written
    lines = verdicts(study)
    assert len(lines) == 1 + 2 * 3 and "conditional ROC-AUC: the head wins" in lines[1]
    assert "conditional ROC-AUC: the head wins" in page.read_text(encoding="utf-8")


def test_the_verdict_turns_round_with_the_scores(written):
    made = made_rounds(prompts=12, gamma=3)
    turned = study_of(made.rename(columns={"confidence": "draft_top", "draft_top": "confidence"}))
    assert "the baseline wins" in verdicts(turned)[1]


def test_a_drafter_without_head_and_an_old_file_have_pages_too(tmp_path, capsys):
    made = made_rounds(prompts=12, gamma=3)
    headless = study_of(made.assign(confidence=None), has_head=False)
    text = write_calibration(tmp_path / "headless", headless).read_text(encoding="utf-8")
    assert "draft law&#39;s top probability" in text and "the head wins" not in text
    old = study_of(made.drop(columns=["draft_top", "expected"]))
    text = write_calibration(tmp_path / "old", old).read_text(encoding="utf-8")
    assert "no expected for some proposed tokens" in text
    print_study(old)
    assert "no draft_top" in capsys.readouterr().out


def test_bins_count_every_slot_and_their_error_is_the_tables(written):
    _, study, _ = written
    arrays = study.rounds["confidence"]
    bins = position_bins(study.conditional(), arrays.accepted, arrays.proposed, arrays.prompt)
    first = bins[(bins["reading"] == SURVIVAL) & (bins["position"] == 1)]
    assert first["count"].sum() == len(arrays)
    assert (first["count"] * first["observed"]).sum() == pytest.approx((arrays.accepted >= 1).sum())
    assert (first["observed_low"] <= first["observed"]).all() and (first["observed"] <= first["observed_high"]).all()


@pytest.mark.parametrize(("gamma", "shown"), [(1, [1]), (2, [1]), (3, [1, 3]), (6, [1, 3, 5]), (8, [1, 3, 5, 7])])
def test_diagrams_are_drawn_at_the_positions_of_the_paper_that_there_are(gamma, shown):
    rows = [
        {"reading": SURVIVAL, "when": when, "position": k, "bin": b, "count": 20, "predicted": b / 10, "observed": 0.4}
        for when in ("before", "after")
        for k in range(1, gamma + 1)
        for b in range(3)
    ]
    bins = pd.DataFrame(rows).assign(observed_low=0.3, observed_high=0.5)
    measures = bins[bins["bin"] == 0].assign(ece=0.1)
    figure = reliability_by_position(bins, measures, SURVIVAL)
    assert any("after STS: ECE 10.0%" in text.get_text() for text in figure.axes[0].texts)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [int(title.split()[1]) for title in titles if title] == shown
