"""Two ranks over gloo train as one, also when one of them has nothing to learn or nothing to validate."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fitting

SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import fitting
import torch

from draftlab.callbacks import AcceptanceCallback, ConfidenceCallback

folder, name = Path(sys.argv[2]), sys.argv[3]
target = fitting.fitting_target()
data = fitting.GivenBatches(
    fitting.answers_data(target, folder / "answers.jsonl"),
    by_rank=[[[0, 1], [2], [3, 4]], [[], [5, 6, 7], []]],  # rank 1 has no anchor at steps 1 and 3
    validation=[[[0, 1]], [[]]],
)
module = fitting.named_module(target, name)
callbacks = [AcceptanceCallback(), ConfidenceCallback()]
trainer = fitting.silent_trainer(folder, callbacks, max_steps=3, devices=2, strategy="ddp", enable_checkpointing=False)
trainer.fit(module, data)
if trainer.global_rank == 0:
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    torch.save({"weights": fitting.weights_of(module), "metrics": metrics}, folder / "two.pt")
"""


def two_ranks(folder, name):
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(Path(__file__).parents[1]), str(folder), name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "two.pt", weights_only=True)


@pytest.mark.parametrize(
    "name", ["dspark", *(pytest.param(name, marks=pytest.mark.slow) for name in ("confidence alone", *fitting.CHAINS))]
)
def test_two_ranks_train_as_one_also_when_one_has_no_anchor(tmp_path, name):
    """Cases 7 and 8: no hang in training or validation, no unused parameter."""
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    two = two_ranks(tmp_path, name)
    module = fitting.named_module(target, name)
    together = fitting.GivenBatches(data, [[[0, 1], [2, 5, 6, 7], [3, 4]]], validation=[[[0, 1]]])
    trainer = fitting.silent_trainer(tmp_path, max_steps=3)
    trainer.fit(module, together)
    for name, tensor in fitting.weights_of(module).items():
        torch.testing.assert_close(two["weights"][name], tensor, rtol=1e-3, atol=2e-5)
    assert abs(two["metrics"]["val/loss"] - float(trainer.callback_metrics["val/loss"])) < 1e-3
    assert two["metrics"]["val/accepted_length"] >= 1
