"""Training order is a pure function of (seed, step, rank), and a resumed run loses and repeats nothing."""

from __future__ import annotations

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from draftlab.data.loaders import Batches, BatchPlan, ResumableLoader, finished_batches
from draftlab.types import Batch

LENGTHS = [5 + (7 * i) % 23 for i in range(29)]


def epoch_rows(plan: BatchPlan, epoch: int) -> list[list[int]]:
    return [plan.rows(epoch, index) for index in range(len(plan))]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_sample_occurs_exactly_once_an_epoch_over_all_ranks(world_size):
    plans = [BatchPlan(LENGTHS, 4, 0, world_size, rank, window=2) for rank in range(world_size)]
    assert len({len(plan) for plan in plans}) == 1, "ranks take the same number of steps"
    for epoch in (0, 1):
        rows = [row for plan in plans for batch in epoch_rows(plan, epoch) for row in batch]
        assert sorted(rows) == list(range(len(LENGTHS)))


def test_order_depends_on_seed_and_epoch_alone():
    plan = BatchPlan(LENGTHS, 4, seed=1)
    second = epoch_rows(plan, 1)
    assert epoch_rows(plan, 0) != second
    assert epoch_rows(BatchPlan(LENGTHS, 4, seed=1), 1) == second == epoch_rows(plan, 1), "whatever was asked before"
    assert epoch_rows(BatchPlan(LENGTHS, 4, seed=2), 1) != second


def test_without_seed_the_order_is_fixed_and_sorted_by_length():
    rows = [row for batch in epoch_rows(BatchPlan(LENGTHS, 4, seed=None), 3) for row in batch]
    assert [LENGTHS[row] for row in rows] == sorted(LENGTHS)


def test_sorting_inside_windows_saves_padding():
    lengths = torch.randint(10, 400, (512,), generator=torch.Generator().manual_seed(0)).tolist()

    def padded(window):
        return sum(
            len(rows) * max(lengths[row] for row in rows)
            for rows in epoch_rows(BatchPlan(lengths, 4, 0, window=window), 0)
        )

    assert padded(16) < 0.75 * padded(1)


class Recorder(L.LightningModule):
    """Trains one number and notes every sample that was trained on."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, tuple[str, ...]]] = []
        self.stop_at = stop_at

    def training_step(self, batch, batch_idx):
        if len(self.seen) == self.stop_at:
            raise KeyboardInterrupt
        self.seen.append((self.current_epoch, batch.sample_ids))
        return self.weight.sum() * batch.input_ids.float().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    """The loaders alone, without files."""

    def __init__(self, num_workers: int = 0) -> None:
        super().__init__()
        self.num_workers = num_workers

    def train_dataloader(self):
        batches = Batches(BatchPlan(LENGTHS, 4, seed=0), _make)
        return ResumableLoader(batches, lambda: finished_batches(self.trainer), self.num_workers)

    def val_dataloader(self):
        return ResumableLoader(Batches(BatchPlan(LENGTHS, 4, seed=None), _make), lambda: 0)


def _make(rows: list[int]) -> Batch:
    ids = torch.tensor(rows).unsqueeze(-1)
    return Batch(ids, ids >= 0, ids >= 0, sample_ids=tuple(map(str, rows)))


def fit(module, folder, max_steps, resume=None, num_workers=0, **options):
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1, save_last=True)
    trainer = L.Trainer(
        max_steps=max_steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving],
        default_root_dir=folder,
        **options,
    )
    trainer.fit(module, Data(num_workers), ckpt_path=resume)
    return module.seen


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return fit(Recorder(), tmp_path_factory.mktemp("whole"), 20)


def test_an_epoch_of_a_trainer_holds_every_sample_once(uninterrupted):
    """Eight batches of 29 samples, the last of them smaller."""
    for epoch in (0, 1):
        names = [name for at, batch in uninterrupted if at == epoch for name in batch]
        assert sorted(map(int, names)) == list(range(29))
    assert len(uninterrupted) == 20


@pytest.mark.parametrize(("stop", "num_workers"), [(3, 0), (7, 0), (8, 0), (9, 0), (16, 0), (3, 2)])
def test_a_resumed_run_sees_what_the_uninterrupted_one_saw(uninterrupted, tmp_path, stop, num_workers):
    """In the middle of an epoch, before and at its end; batches that workers fetched ahead are not lost."""
    first = fit(Recorder(), tmp_path, stop, num_workers=num_workers)
    second = fit(Recorder(), tmp_path, 20, resume=str(tmp_path / "last.ckpt"), num_workers=num_workers)
    assert first + second == uninterrupted


def test_every_checkpoint_resumes_exactly_also_with_validation_inside_the_epoch(uninterrupted, tmp_path):
    fit(Recorder(), tmp_path, 12, val_check_interval=3)
    for step in range(1, 12):
        seen = fit(Recorder(), tmp_path / "again", 12, resume=str(tmp_path / f"step={step}.ckpt"), val_check_interval=3)
        assert seen == uninterrupted[step:12], step


def test_a_longer_training_goes_on_from_the_end_of_a_shorter_one(uninterrupted, tmp_path):
    """A run that reached max_steps in the middle of an epoch, and its checkpoint was written after that."""
    for steps, resume in ((11, None), (20, tmp_path / "11.ckpt")):
        trainer = L.Trainer(
            max_steps=steps,
            max_epochs=-1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        module = Recorder()
        trainer.fit(module, Data(), ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
    assert [batch for _, batch in module.seen] == [batch for _, batch in uninterrupted[11:]]


def test_a_limit_on_batches_of_an_epoch_leaves_no_sample_out(tmp_path):
    seen = fit(Recorder(), tmp_path, 8, limit_train_batches=3)
    assert sorted(int(name) for _, batch in seen for name in batch) == list(range(29))


def test_a_loader_without_trainer_goes_on_from_its_state():
    def loader():
        return ResumableLoader(Batches(BatchPlan(LENGTHS, 4, seed=0), _make), lambda: None)

    resumed = loader()
    resumed.load_state_dict({"batches": 5})
    assert resumed.state_dict() == {"batches": 5}
    whole = [batch.sample_ids for batch in loader()]
    assert [batch.sample_ids for batch in resumed][:3] == whole[5:]


def test_an_interrupted_batch_is_trained_again(uninterrupted, tmp_path):
    """Ctrl-C inside the sixth step: it was handed out, but not finished."""
    module = Recorder(stop_at=5)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(module, tmp_path, 20)
    resumed = fit(Recorder(), tmp_path, 20, resume=str(tmp_path / "last.ckpt"))
    assert module.seen + resumed == uninterrupted
