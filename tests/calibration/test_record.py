"""calibration.json: what engines read, refused for another drafter or with bad temperatures (case 20)."""

import json

import numpy as np
import pytest

from draftlab.calibration import Calibration

DRAFTER = {
    "drafter": "DSpark",
    "block_size": 2,
    "sample_from_anchor": True,
    "digest": "ab",
    "checkpoint": "best-8.ckpt",
}


def test_a_saved_calibration_has_the_keys_of_engines_and_reads_back(tmp_path):
    path = tmp_path / "calibration.json"
    made = Calibration((1.5, 0.5), "held-out", 300, (0.1, 0.2), (0.01, 0.02), DRAFTER)
    made.save(path)
    content = json.loads(path.read_text())
    assert content["temperatures"] == [1.5, 0.5] and content["num_samples"] == 300
    assert {"dataset", "ece_before", "ece_after"} <= set(content) and content["source"] == "confidence"
    again = Calibration.load(path).check(DRAFTER)
    assert again.temperatures == made.temperatures and again.drafter == DRAFTER


def test_a_file_of_an_engines_tool_is_read_too(tmp_path):
    path = tmp_path / "sts.json"
    path.write_text('{"temperatures": [1.2, 0.9], "dataset": "x", "num_samples": 5, "tool": "other"}')
    assert Calibration.load(path).check(DRAFTER).temperatures == (1.2, 0.9)


def test_temperatures_of_one_are_the_identity_and_others_scale_logits():
    logits = np.array([[0.3, -2.0]])
    plain = 1 / (1 + np.exp(-logits))
    assert Calibration.identity(2)(logits) == pytest.approx(plain)
    assert Calibration((2.0, 0.5))(logits) == pytest.approx(1 / (1 + np.exp(-logits / [2.0, 0.5])))


@pytest.mark.parametrize("bad", [(), (1.0, 0.0), (1.0, -2.0), (1.0, float("nan")), (1.0, float("inf")), "abc", None])
def test_bad_temperatures_are_refused(bad):
    with pytest.raises(ValueError, match="positive finite"):
        Calibration(bad)


def test_another_block_size_is_refused():
    with pytest.raises(ValueError, match="2 temperatures do not fit confidences of gamma 3"):
        Calibration.identity(2)(np.zeros((1, 3)))


@pytest.mark.parametrize(("key", "value"), [("block_size", 3), ("sample_from_anchor", False), ("digest", "cd")])
def test_the_calibration_of_another_drafter_is_refused_by_the_key_that_differs(key, value):
    with pytest.raises(ValueError, match=key):
        Calibration((1.0, 1.0), drafter=DRAFTER).check({**DRAFTER, key: value})


def test_a_copy_of_the_checkpoint_under_another_name_is_the_same_drafter():
    assert Calibration((1.0, 1.0), drafter=DRAFTER).check({**DRAFTER, "checkpoint": "last.ckpt"})


@pytest.mark.parametrize("content", ["[1]", "{}", '{"temperatures": [0]}', "nonsense"])
def test_a_file_that_is_no_calibration_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"calibration\.json"):
        Calibration.load(path)
