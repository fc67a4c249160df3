"""A stream of features for the tests: its producer and its training, in this process or as programs that can be killed:

python tests/streamed.py produce FOLDER SECONDS          SECONDS: what a shard takes at least
python tests/streamed.py train FOLDER STEPS SECONDS      SECONDS: what a step takes at least
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import torch

import fitting
from draftlab.callbacks import LatestCheckpoint
from draftlab.data.datamodule import DraftDataModule
from draftlab.data.produce import Producer
from draftlab.data.stream import stream_of
from draftlab.data.window import Position
from draftlab.training import DurableCheckpointIO, newest_checkpoint
from draftlab.training.checkpoint import load_drafter
from draftlab.training.run import fit

OPTIONS = {
    **{"batch_size": 2, "val_samples": 2, "compute_dtype": "float32", "shard_tokens": 130},
    **{"window_gb": 2.2e-4, "producer_seconds": 60.0},
}
STEPS = 15  # of an epoch of 6 batches


def loaded(target, folder: Path, features: str = "stream", alone: bool = True, **options) -> DraftDataModule:
    """The answers in ``folder``; ``alone``: the target reads one conversation at a time, so that none rounds another's states."""
    options = {"features": features, "cache_dir": str(folder / features)} | OPTIONS | options
    data = DraftDataModule(str(folder / "answers.jsonl"), **options)
    data.cache = dataclasses.replace(data.cache, batch_tokens=1 if alone else 4096)
    return data.load(target.spec, fitting.tiny_tokenizer(fitting.VOCAB))


@contextlib.contextmanager
def producer(data):
    """A producer in a thread, for the block; what it raised, if anything, is in the list that is given.

    It has a target of its own, as a process would: a model that two threads use at once mixes their states up.
    """
    making, raised = Producer(fitting.fitting_target(), stream_of(data)), []

    def run() -> None:
        try:
            making.run()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        if not making.window.position().finished or making.window.position() == making._before:
            making.window.move(Position(0, 0, "the end of a test"))
        thread.join()


def trained(target, data, folder: Path, steps: int = STEPS, **options):
    """Weights after ``steps`` of training, or of what is left of them, with a checkpoint at every second step."""
    data.compute_features(target, log_normalizer=True)
    module = fitting.tiny_module(target, num_anchors=2)
    latest = LatestCheckpoint(str(folder / "checkpoints"), 2)
    options = {"plugins": [DurableCheckpointIO()], "max_steps": steps} | options
    trainer = fitting.silent_trainer(folder, [latest, *options.pop("callbacks", [])], **options)
    checkpoint = newest_checkpoint(folder) if list((folder / "checkpoints").glob("*.ckpt")) else None
    fit(trainer, module, data, checkpoint)
    return fitting.weights_of(module)


def weights_in(folder: Path):
    """Weights of the newest checkpoint."""
    drafter = fitting.tiny_module(fitting.fitting_target(), num_anchors=2).drafter
    return fitting.weights_of(type("Module", (), {"drafter": load_drafter(newest_checkpoint(folder), drafter)}))


def same(one, other) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def start(*words) -> subprocess.Popen:
    """This file as a program."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(process: subprocess.Popen, words: str, count: int = 1) -> None:
    """Wait until the program has said ``words`` so many times."""
    for line in process.stdout:
        count -= words in line
        if count <= 0:
            return
    raise AssertionError(f"the program ended without saying {words!r}")


def main() -> None:
    """Run one side."""
    side, folder, *numbers = sys.argv[1:]
    target, data = fitting.fitting_target(), None
    data = loaded(target, Path(folder))
    if side == "produce":
        make = Producer.make

        def slowly(self, number):
            print(f"making {number}", flush=True)
            time.sleep(float(numbers[0]))
            return make(self, number)

        Producer.make = slowly
        Producer(target, stream_of(data)).run()
        return
    compute = fitting.DrafterModule.training_step

    def slow_step(self, batch, index):
        print(f"step {self.global_step}", flush=True)
        time.sleep(float(numbers[1]))
        return compute(self, batch, index)

    fitting.DrafterModule.training_step = slow_step
    trained(target, data, Path(folder) / "run", int(numbers[0]))


if __name__ == "__main__":
    main()
