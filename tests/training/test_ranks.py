"""Two ranks over gloo train as one, also when one of them has nothing to learn or nothing to validate; with DDP and with FSDP2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fitting
from draftlab.training import read_checkpoint
from draftlab.training.checkpoint import load_drafter
from draftlab.training.resume import check_resume
from draftlab.training.sharding import sharded_strategy

SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import fitting
import lightning as L
import torch

from draftlab.callbacks import AcceptanceCallback, ConfidenceCallback, LatestCheckpoint
from draftlab.training import DurableCheckpointIO
from draftlab.training.sharding import sharded_strategy

folder, name, strategy = Path(sys.argv[2]), sys.argv[3], sys.argv[4]
steps, accumulate, stop, own_loader = map(int, sys.argv[5:9])
resume = sys.argv[9] if len(sys.argv) > 9 else None


class Stop(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.global_step == stop


target = fitting.fitting_target()
data = fitting.answers_data(target, folder / "answers.jsonl")
if not own_loader:
    data = fitting.GivenBatches(
        data,
        by_rank=[[[0, 1], [2], [3, 4]], [[], [5, 6, 7], []]],  # rank 1 has no anchor at steps 1 and 3
        validation=[[[0, 1]], [[]]],
    )
module = fitting.named_module(target, name)
callbacks = [AcceptanceCallback(), ConfidenceCallback(), LatestCheckpoint(str(folder / "run" / "checkpoints"), 1), Stop()]
trainer = fitting.silent_trainer(
    folder,
    callbacks,
    max_steps=steps,
    devices=2,
    accumulate_grad_batches=accumulate,
    strategy=sharded_strategy(2) if strategy == "fsdp" else strategy,
    plugins=[DurableCheckpointIO()],
)
trainer.fit(module, data, ckpt_path=resume, weights_only=True)
if trainer.global_rank == 0:
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    torch.save(metrics, folder / "metrics.pt")
"""

SLOW = pytest.mark.slow
CASES = [
    ("dspark", "ddp"),
    ("dspark", "fsdp"),
    *(pytest.param(name, "ddp", marks=SLOW) for name in ("confidence alone", *fitting.CHAINS)),
    *(pytest.param(name, "fsdp", marks=SLOW) for name in ("confidence alone", *fitting.CHAINS)),
]
TOGETHER = [[0, 1], [2, 5, 6, 7], [3, 4]]  # what both ranks have at each step


def two_ranks(folder, name, strategy, steps=3, accumulate=1, stop=None, resume=None):
    """Train on two ranks; weights and metrics of the end.

    ``stop`` takes the data's own loaders and ends early after that step (-1: does not), None the batches of SCRIPT.
    """
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    words = [
        Path(__file__).parents[1],
        folder,
        name,
        strategy,
        steps,
        accumulate,
        stop or -1,
        int(stop is not None),
        *([resume] if resume else []),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    module = fitting.named_module(fitting.fitting_target(), name)
    (path,) = (folder / "run" / "checkpoints").glob("step-*.ckpt")
    load_drafter(path, module.drafter)  # as evaluation does: whole weights whatever the strategy
    return fitting.weights_of(module), torch.load(folder / "metrics.pt", weights_only=True)


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_two_ranks_train_as_one_also_when_one_has_no_anchor(tmp_path, name, strategy):
    """Cases 7 and 8: no hang in training or validation, no unused parameter."""
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    weights, metrics = two_ranks(tmp_path, name, strategy)
    module = fitting.named_module(target, name)
    together = fitting.GivenBatches(data, [TOGETHER], validation=[[[0, 1]]])
    trainer = fitting.silent_trainer(tmp_path, max_steps=3)
    trainer.fit(module, together)
    for key, tensor in fitting.weights_of(module).items():
        torch.testing.assert_close(weights[key], tensor, rtol=1e-3, atol=2e-5)
    assert abs(metrics["val/loss"] - float(trainer.callback_metrics["val/loss"])) < 1e-3
    assert metrics["val/accepted_length"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_that_accumulate_train_as_one_big_batch(tmp_path, strategy):
    """Uneven numbers of supervised slots over ranks and micro-batches: the mean is global."""
    target = fitting.fitting_target()
    data = fitting.answers_data(target, fitting.write_answers(tmp_path))
    weights, _ = two_ranks(tmp_path, "dspark", strategy, steps=1, accumulate=3)
    module = fitting.named_module(target, "dspark")
    batch = fitting.GivenBatches(data, [[[0, 1, 2, 5, 6, 7, 3, 4]]])
    fitting.silent_trainer(tmp_path, max_steps=1).fit(module, batch)
    for key, tensor in fitting.weights_of(module).items():
        torch.testing.assert_close(weights[key], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("strategy", [pytest.param(name, marks=SLOW) for name in ("fsdp", "ddp")])
def test_two_ranks_resume_to_the_same_weights_and_other_numbers_are_refused(tmp_path, strategy):
    """In the middle of an epoch; the checkpoint is one file that one process can read, but not go on from."""
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    for folder in (through, stopped):
        folder.mkdir()
        fitting.write_answers(folder)
    expected, _ = two_ranks(through, "dspark", strategy, steps=4, stop=-1)
    two_ranks(stopped, "dspark", strategy, steps=4, stop=3)  # two batches an epoch
    checkpoint = stopped / "run" / "checkpoints" / "step-3.ckpt"
    assert checkpoint.is_file() and read_checkpoint(checkpoint)["world_size"] == 2
    drafter = fitting.named_module(fitting.fitting_target(), "dspark").drafter
    with pytest.raises(ValueError, match=r"written by 2 processes, this run has 1: .*devices × num_nodes to 2"):
        check_resume(drafter, checkpoint, world_size=1)
    check_resume(drafter, checkpoint, world_size=2)
    got, _ = two_ranks(stopped, "dspark", strategy, steps=4, stop=-1, resume=checkpoint)
    assert all(torch.equal(got[key], tensor) for key, tensor in expected.items())


def test_sharding_needs_a_number_of_devices():
    for devices in ("auto", -1, 0, [0, 1]):
        with pytest.raises(ValueError, match=r"needs trainer.settings.devices as a number"):
            sharded_strategy(devices)
