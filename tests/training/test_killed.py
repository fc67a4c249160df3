"""A training killed with SIGKILL in the middle of writing a checkpoint goes on to the weights of one that never was."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fitting
from draftlab.training import newest_checkpoint
from draftlab.training.checkpoint import load_drafter

SCRIPT = """
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import fitting
import torch

from draftlab.callbacks import LatestCheckpoint
from draftlab.training import DurableCheckpointIO, newest_checkpoint
from draftlab.training.run import fit

folder, killed_at = Path(sys.argv[2]), int(sys.argv[3])
saved = torch.save


def save(checkpoint, file):
    saved(checkpoint, file)
    if checkpoint["global_step"] == killed_at:
        file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)


torch.save = save
target = fitting.fitting_target()
data = fitting.answers_data(target, folder / "answers.jsonl", packing=512)
latest = LatestCheckpoint(str(folder / "checkpoints"), 1)
trainer = fitting.silent_trainer(folder, [latest], max_steps=6, plugins=[DurableCheckpointIO()])
checkpoint = newest_checkpoint(folder) if (folder / "checkpoints").exists() else None
fit(trainer, fitting.tiny_module(target, num_anchors=2), data, checkpoint)
"""


def train(folder, killed_at=-1):
    """Return code of a training of six steps in ``folder``, with a checkpoint every step."""
    folder.mkdir(exist_ok=True)
    fitting.write_answers(folder)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(Path(__file__).parents[1]), str(folder), str(killed_at)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, timeout=900, env=environment).returncode


def weights_in(folder):
    drafter = fitting.tiny_module(fitting.fitting_target(), num_anchors=2).drafter
    return fitting.weights_of(type("Module", (), {"drafter": load_drafter(newest_checkpoint(folder), drafter)}))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_kill_during_a_save_costs_the_steps_since_the_one_before_and_no_exactness(tmp_path):
    """Case 13; packed rows, killed in the middle of an epoch."""
    assert train(tmp_path / "through") == 0
    folder = tmp_path / "killed"
    assert train(folder, killed_at=3) == -signal.SIGKILL
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-2.ckpt", "step-3.ckpt.partial"] and newest_checkpoint(folder).name == "step-2.ckpt"
    assert train(folder) == 0
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-6.ckpt"], "nor a partial file"
    expected, got = weights_in(tmp_path / "through"), weights_in(folder)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
