"""A checkpoint is written whole or not at all, in its own folder, whatever becomes of the temporary one."""

import tempfile

import pytest
import torch

import fitting
from draftlab.callbacks import LatestCheckpoint
from draftlab.training import DurableCheckpointIO, newest_checkpoint


def test_a_training_needs_no_temporary_folder(tmp_path, monkeypatch):
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    latest = LatestCheckpoint(str(tmp_path / "run" / "checkpoints"), 1)
    trainer = fitting.silent_trainer(tmp_path / "run", [latest], max_steps=2, plugins=[DurableCheckpointIO()])
    module = fitting.tiny_module(target, num_anchors=2)
    for name in ("mkstemp", "mkdtemp", "NamedTemporaryFile"):
        monkeypatch.setattr(tempfile, name, lambda *args, **options: pytest.fail("the temporary folder was used"))
    trainer.fit(module, data)
    path = newest_checkpoint(tmp_path / "run")
    assert path.name == "step-2.ckpt" and [other.name for other in path.parent.iterdir()] == [path.name]
    assert torch.load(path, weights_only=True)["global_step"] == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_earlier_checkpoint_and_no_other_file(tmp_path, monkeypatch, error):
    path, writer = tmp_path / "step-1.ckpt", DurableCheckpointIO()
    writer.save_checkpoint({"value": torch.ones(3)}, path)

    def cut_short(checkpoint, file):
        file.write(b"half")
        raise error

    monkeypatch.setattr(torch, "save", cut_short)
    with pytest.raises(type(error)):
        writer.save_checkpoint({"value": torch.zeros(3)}, path)
    assert torch.load(path, weights_only=True)["value"].tolist() == [1, 1, 1]
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
