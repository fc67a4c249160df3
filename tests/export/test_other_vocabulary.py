"""A drafter and a target of different vocabularies: no export, no adoption, and the field is named."""

from __future__ import annotations

import shutil

import pytest

import tiny
from exporting import adopt, export, make_run


@pytest.mark.parametrize("format_name", ["deepspec", "speculators"])
def test_a_target_whose_vocabulary_changed_since_training_is_refused_on_export(format_name, target_folder, tmp_path):
    own = shutil.copytree(target_folder, tmp_path / "target")
    run = make_run(tmp_path / "run", own, "drafter=dspark", "head.rank=4", "drafter.draft_vocab_size=40")
    shutil.rmtree(own)
    tiny.save_tiny_target(own, vocab_size=160)
    with pytest.raises(ValueError, match=r"vocab_size: expected 160, found 128"):
        export(run, tmp_path / "out", format_name)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_for_another_vocabulary_is_not_adopted(target_folder, tmp_path):
    run = make_run(tmp_path / "run", target_folder, "drafter=dspark", "head.rank=4")
    other = tiny.save_tiny_target(tmp_path / "other", vocab_size=160)
    with pytest.raises(ValueError, match=r"vocab_size is 128, the target's is 160"):
        adopt(export(run, tmp_path / "out", "deepspec"), tmp_path / "again", other)
    assert not (tmp_path / "again").exists()
