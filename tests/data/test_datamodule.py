"""The datamodule: disjoint seeded split, batches with exact features, counts of supervised training tokens, clear refusals."""

from __future__ import annotations

import json

import lightning as L
import pytest
import torch

import tiny
from draftlab.data.datamodule import DraftDataModule
from draftlab.data.files import digest
from draftlab.data.samples import Sample, split
from draftlab.types import Batch


@pytest.fixture(scope="module")
def frozen():
    return tiny.tiny_target(vocab_size=128)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Thirty answers to twenty prompts: ten of them were asked twice."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    lines = [
        {
            "id": f"s{i}",
            "domain": ("math", "code", "chat")[i % 3],
            "messages": [
                {"role": "user", "content": f"Question {i % 20}"},
                {"role": "assistant", "content": "ab" * (3 + i % 7)},
            ],
            "finish_reason": "length" if i % 5 == 0 else "stop",
        }
        for i in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))


def loaded(answers, frozen, tokenizer, **options) -> DraftDataModule:
    options = {"max_length": 128, "val_samples": 6, "feature_dtype": "float32"} | options
    return DraftDataModule(str(answers), **options).load(frozen.spec, tokenizer)


def prompts_of(data, indices) -> set[str]:
    return {data.samples[index].prompt for index in indices}


def test_the_split_is_disjoint_by_prompt_and_leaves_nothing_out(answers, frozen, tokenizer):
    data = loaded(answers, frozen, tokenizer)
    assert sorted(data.train_indices + data.val_indices) == list(range(30))
    assert not prompts_of(data, data.train_indices) & prompts_of(data, data.val_indices)
    assert 6 <= len(data.val_indices) <= 7
    assert loaded(answers, frozen, tokenizer, seed=1).val_indices != data.val_indices
    assert loaded(answers, frozen, tokenizer).val_indices == data.val_indices


def test_a_sample_that_is_added_later_moves_no_prompt_to_the_other_side(answers, frozen, tokenizer, tmp_path):
    before = loaded(answers, frozen, tokenizer)
    more = tmp_path / "more.jsonl"
    talk = [{"role": "user", "content": "New"}, {"role": "assistant", "content": "Hello"}]
    more.write_text(answers.read_text() + json.dumps({"id": "new", "messages": talk}) + "\n")
    after = loaded(more, frozen, tokenizer)
    moved = prompts_of(before, before.val_indices) ^ prompts_of(after, after.val_indices)
    assert len(moved) <= 2, "the new prompt and at most the one that it pushed out"


def sample(index: int, question: str, prompt: str | None = None) -> Sample:
    return Sample(f"s{index}", "chat", prompt or question, question, torch.zeros(2), torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_asks_the_same_is_on_one_side_and_every_sample_on_one(seed):
    """Twelve questions in up to three wordings each, shuffled as if they came from several files."""
    samples = [sample(i, f"q{i * 7 % 12}", f"q{i * 7 % 12} wording {i % 3}") for i in range(50)]
    train, held_out = split(samples, 9, seed)
    assert sorted(train + held_out) == list(range(50))
    assert not {samples[i].question for i in train} & {samples[i].question for i in held_out}
    assert 9 <= len(held_out) < 9 + 5  # at most the rest of one question more


def test_where_every_question_has_one_wording_the_hash_of_the_wording_alone_decides():
    """So splits made before questions were compared stay as they are."""
    samples = [sample(i, digest([i]), f"prompt {i}") for i in range(40)]
    ranked = sorted(range(40), key=lambda i: digest([3, f"prompt {i}"]))
    assert split(samples, 8, 3) == (sorted(ranked[8:]), sorted(ranked[:8]))


def test_wordings_that_differ_in_case_and_spacing_are_one_question_across_files(
    answers, frozen, tokenizer, tmp_path, cache
):
    again = tmp_path / "again.jsonl"
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    for line in lines:
        line["messages"][0]["content"] = line["messages"][0]["content"].upper() + " ."
        line["messages"].insert(0, {"role": "system", "content": "S"})
    again.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = loaded(answers, frozen, tokenizer, more_paths=[str(again)])
    questions = [{data.samples[i].question for i in side} for side in (data.train_indices, data.val_indices)]
    assert len(data.samples) == 60 and not questions[0] & questions[1] and len(questions[0] | questions[1]) == 20


def test_answers_of_several_files_are_read_together_and_split_by_prompt(answers, frozen, tokenizer, tmp_path, cache):
    """The second file answers ten of the first one's prompts again, and one of its own; a bad line of it is counted."""
    more = tmp_path / "more.jsonl"
    talks = [("New", "bb"), *((f"Question {i}", "ba" * 4) for i in range(10)), ("Bad", "")]
    lines = [
        {"id": f"s{i}", "messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for i, (q, a) in enumerate(talks)
    ]
    more.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = loaded(answers, frozen, tokenizer, more_paths=[str(more)], val_samples=12)
    assert data.counts.kept == 41 == len(data.samples) and data.counts.skipped == {"empty": 1}
    assert sorted(data.train_indices + data.val_indices) == list(range(41))
    assert not prompts_of(data, data.train_indices) & prompts_of(data, data.val_indices)
    data.compute_features(frozen)
    assert sum(len(batch.sample_ids) for batch in data.train_dataloader()) == len(data.train_indices)
    with pytest.raises(ValueError, match=r"data.more_paths is a list, as data.more_paths=\[a\]"):
        DraftDataModule(str(answers), more_paths="a")


def test_no_held_out_sample_is_a_choice_and_all_held_out_is_an_error(answers, frozen, tokenizer):
    data = loaded(answers, frozen, tokenizer, val_samples=0, features="online")
    assert data.val_indices == [] and data.val_dataloader() == []
    with pytest.raises(ValueError, match="leaves nothing to train on of 30 samples"):
        loaded(answers, frozen, tokenizer, val_samples=30)


def test_batches_hold_the_features_of_their_own_samples(answers, frozen, tokenizer, cache):
    data = loaded(answers, frozen, tokenizer)
    data.compute_features(frozen, log_normalizer=True)
    seen = []
    for batch in data.train_dataloader():
        assert isinstance(batch, Batch)
        alone = frozen.read(batch, log_normalizer=True)
        real = batch.attention_mask
        for name in ("features", "last_hidden", "log_normalizer"):
            got = getattr(batch, name)
            assert got.dtype == torch.float32
            known = real & got.isfinite() if name == "log_normalizer" else real
            torch.testing.assert_close(got[known], getattr(alone, name)[known], rtol=1e-4, atol=1e-4)
        seen += batch.sample_ids
    assert sorted(seen) == sorted(data.samples[index].id for index in data.train_indices)


def test_online_batches_come_without_features(answers, frozen, tokenizer):
    data = loaded(answers, frozen, tokenizer, features="online")
    data.compute_features(None)
    batch = next(iter(data.train_dataloader()))
    assert batch.features is None and batch.last_hidden is None
    assert batch.input_ids.dtype == torch.int64 and batch.attention_mask.dtype == batch.loss_mask.dtype == torch.bool
    assert set(batch.domains) <= {"math", "code", "chat"}
    assert not (batch.loss_mask & ~batch.attention_mask).any()


def test_token_counts_are_those_of_supervised_training_tokens(answers, frozen, tokenizer):
    data = loaded(answers, frozen, tokenizer)
    counts = data.token_counts()
    assert counts.shape == (frozen.spec.vocab_size,)
    letters = sum(2 * (3 + index % 7) for index in data.train_indices)
    ended = sum(index % 5 != 0 for index in data.train_indices)
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    assert counts[a] == counts[b] == letters // 2
    assert counts[tiny.IM_END] == ended and counts.sum() == letters + ended


def test_a_rank_without_a_sample_gets_a_batch_without_supervision(answers, frozen, tokenizer):
    """The last step of an epoch may have fewer samples than ranks; every rank must still take it (case 7)."""
    data = loaded(answers, frozen, tokenizer, features="online")
    empty = data.train_dataloader().dataset.make([])
    assert len(empty.input_ids) == 1 and not empty.loss_mask.any()


def test_loader_processes_make_the_same_batches(answers, frozen, tokenizer, cache):
    batches = []
    for workers in (0, 2):
        data = loaded(answers, frozen, tokenizer, num_workers=workers)
        data.compute_features(frozen)
        batches.append([(batch.sample_ids, batch.features.sum().item()) for batch in data.train_dataloader()])
    assert batches[0] == batches[1]


class Sums(L.LightningModule):
    """Notes what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[float] = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.features.double().sum().item())
        return self.weight * 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_training_resumes_exactly_in_the_middle_of_an_epoch(answers, frozen, tokenizer, cache, tmp_path):
    def fit(steps, resume=None):
        data = loaded(answers, frozen, tokenizer)
        data.compute_features(frozen)
        module = Sums()
        options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        trainer = L.Trainer(max_steps=steps, max_epochs=-1, limit_val_batches=0, default_root_dir=tmp_path, **options)
        trainer.fit(module, data, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        return module.seen

    whole = fit(10)
    assert fit(4) + fit(10, tmp_path / "4.ckpt") == whole


def test_loading_says_what_was_kept_and_what_was_skipped(answers, frozen, tokenizer, tmp_path, capsys):
    path = tmp_path / "some.jsonl"
    path.write_text(answers.read_text() + '{"messages": NaN}\n')
    loaded(path, frozen, tokenizer)
    assert "30 samples, 0 of them cut at max_length; skipped 1 (NaN)" in capsys.readouterr().out


def test_answers_of_another_target_are_pointed_out(answers, frozen, tokenizer, tmp_path, capsys):
    (tmp_path / "responses.jsonl").write_text(answers.read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({"identity": {"target": {"name": "other"}}}))
    loaded(tmp_path, frozen, tokenizer)
    assert "written by other" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "disk"}, "data.features must be one of online, memory, cache, stream, got 'disk'"),
        ({"feature_dtype": "int8"}, "data.feature_dtype must be one of"),
        ({"max_length": 1}, "data.max_length must be at least 2"),
        ({"batch_size": 0}, "data.batch_size must be at least 1"),
        ({"val_samples": -1}, "data.val_samples must be at least 0"),
        ({"expected": {"samples": 0}}, "data.expected.samples must be at least 1"),
    ],
)
def test_settings_outside_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DraftDataModule("x", **options)


def test_missing_steps_are_named(answers, frozen, tokenizer):
    with pytest.raises(ValueError, match=r"data\.path is not set"):
        DraftDataModule().load(frozen.spec, tokenizer)
    with pytest.raises(ValueError, match=r"target\.name"):
        DraftDataModule("outputs/laptop-None").load(frozen.spec, tokenizer)
    with pytest.raises(ValueError, match="call load"):
        DraftDataModule(str(answers)).train_dataloader()
    with pytest.raises(ValueError, match="needs compute_features"):
        loaded(answers, frozen, tokenizer).train_dataloader()
    with pytest.raises(ValueError, match=r"data\.prompts is not set"):
        DraftDataModule(str(answers)).read_prompts()
    with pytest.raises(ValueError, match="no chat template"):
        DraftDataModule(str(answers)).load(frozen.spec, tiny.tiny_tokenizer(chat_template=None))
