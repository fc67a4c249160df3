"""The checklist for a low accepted length: a sound run has no fault, and every fault that is put in is named (issue: low tau)."""

from __future__ import annotations

import json
import shlex
import shutil

import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

import tiny
from commands import run_script
from draftlab.data.prompts import Prompt
from draftlab.decode import findings
from draftlab.decode.diagnosis import Questions, diagnose, examine
from draftlab.decode.findings import FAULT, OK, WARN
from draftlab.decode.suites import Benchmark
from draftlab.drafters.backbone import BlockDrafter
from draftlab.drafters.chain import ChainDrafter
from draftlab.target import FrozenTarget, TargetOutput
from draftlab.training.checkpoint import best_checkpoint, newest_checkpoint
from readme_examples import ANSWERS, TINY

STEPS = (
    "trainer=laptop trainer.settings.max_steps=80 trainer.settings.val_check_interval=40 data.val_samples=6 data.batch_size=4 "
    "data.max_length=512 logger=csv trainer.warm_start.layers=false drafter.num_layers=1"
)
KINDS = {
    "dspark": "block=laptop drafter.draft_vocab_size=120",
    "eagle3": "drafter=eagle3 drafter.draft_vocab_size=null",
}
PROMPTS = tuple(
    Prompt(f"{i}", "chat", ({"role": "user", "content": text},)) for i, text in enumerate(("2+2?", "Hi!", "Why?"))
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny target, answers that it wrote, and a run of each kind, trained by the entry scripts."""
    folder = tmp_path_factory.mktemp("diagnosis")
    target = tiny.save_tiny_target(folder / "model")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DRAFTLAB_CACHE", str(folder / "cache"))
        answers = f"{TINY.format(target=target)} data=laptop data.path={folder / 'answers'}"
        prepare = f"python src/prepare.py {answers} {ANSWERS} count=24"
        run_script(shlex.split(prepare), folder, monkeypatch)
        for name, words in KINDS.items():
            train = f"python src/train.py {answers} {words} {STEPS} run_name={name}"
            run_script(shlex.split(train), folder, monkeypatch)
    return folder


@pytest.fixture
def run(place, tmp_path, monkeypatch):
    """A copy of the DSpark run, with a cache of features of its own."""
    shutil.copytree(place / "cache", tmp_path / "cache")
    monkeypatch.setenv("DRAFTLAB_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(place / "outputs" / "dspark", tmp_path / "run")


def questions(**changes):
    return Questions([Benchmark("asked", "chat", PROMPTS)], **{"max_new_tokens": 8, "device": "cpu"} | changes)


def verdicts(folder, **changes):
    return {finding.check: finding for finding in examine(folder, questions(**changes))}


def faults(found):
    return {check for check, finding in found.items() if finding.verdict == FAULT}


def edit_checkpoint(folder, change):
    path = best_checkpoint(folder)
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)


def edit_config(folder, **changes):
    path = folder / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    OmegaConf.save(config, path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_run_has_no_fault_and_every_row_is_there(place, kind, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(place / "cache"))
    found = verdicts(place / "outputs" / kind)
    assert faults(found) == set(), "\n".join(map(str, found.values()))
    for check in (
        *("block layout", "mask token", "target, head and layers", "answers of the target itself", "chat template"),
        *("thinking mode", "context length", "teacher states (final norm, scales, cap)"),
        *("stored features", "training against serving"),
    ):
        assert found[check].verdict == OK, str(found[check])
    assert ("draft vocabulary" in found) == (kind == "dspark")
    assert "training text against held-out text" in found and found["decoding against held-out text"].verdict == WARN


def test_the_layout_of_another_checkpoint_is_named(run):
    edit_checkpoint(run, lambda content: content["draftlab"].update(sample_from_anchor=False, block_size=7))
    edit_config(run, block__block_size=5)
    found = verdicts(run)
    assert faults(found) == {"block layout"}
    assert (found["block layout"].expected, found["block layout"].found) == (
        "block_size=5, sample_from_anchor=True",
        "block_size=7, sample_from_anchor=False",
    )


def test_another_mask_token_and_another_target_are_named(run):
    edit_checkpoint(run, lambda content: content["draftlab"].update(mask_token_id=101, target="other"))
    found = verdicts(run)
    assert {"mask token", "target, head and layers"} <= faults(found)
    assert found["mask token"].found == "mask_token_id=101" and found["target, head and layers"].found == "target=other"


def test_a_checkpoint_without_a_stamp_is_a_fault_and_weights_that_do_not_fit_end_the_list(run):
    def change(content):
        del content["draftlab"]
        content["state_dict"]["drafter.norm.weight"] = torch.ones(3)

    edit_checkpoint(run, change)
    found = verdicts(run)
    assert {"block layout", "mask token", "weights"} <= faults(found) and list(found)[-1] == "weights"


def test_a_mask_token_that_chats_use_is_a_warning(run):
    used = tiny.tiny_tokenizer().convert_tokens_to_ids("a")
    edit_config(run, target__mask_token_id=used)
    edit_checkpoint(run, lambda content: content["draftlab"].update(mask_token_id=used))
    found = verdicts(run)["mask token in the text"]
    assert found.verdict == WARN and "'a' nowhere" in found.expected and not found.found.startswith("0 ")


def test_another_template_is_named_and_another_thinking_mode_too(run, place, tmp_path):
    other = verdicts(run, thinking=True)
    assert faults(other) == {"thinking mode"} and "thinking=false" in other["thinking mode"].advice
    model = shutil.copytree(place / "model", tmp_path / "model")
    template = tiny.CHATML.replace("<|im_start|>assistant", "<|im_start|>model")
    assert template != tiny.CHATML
    tiny.tiny_tokenizer(chat_template=template).save_pretrained(model)
    edit_config(run, target__path=str(model))
    assert "chat template" in faults(verdicts(run))


def test_a_checkpoint_that_does_not_name_its_template_is_compared_with_the_answers(run, place, tmp_path):
    edit_checkpoint(run, lambda content: content.pop("text"))
    assert verdicts(run)["chat template"].verdict == OK
    answers = shutil.copytree(place / "answers", tmp_path / "answers")
    manifest = json.loads((answers / "manifest.json").read_text())
    manifest["identity"]["template"] = "0123"
    (answers / "manifest.json").write_text(json.dumps(manifest))
    edit_config(run, data__path=str(answers))
    assert verdicts(run)["chat template"].expected == "digest 0123"


def test_answers_of_another_target_are_named(run, place, tmp_path):
    answers = shutil.copytree(place / "answers", tmp_path / "answers")
    manifest = json.loads((answers / "manifest.json").read_text())
    manifest["identity"]["target"]["name"] = "qwen3_4b"
    (answers / "manifest.json").write_text(json.dumps(manifest))
    edit_config(run, data__path=str(answers))
    assert verdicts(run)["answers of the target itself"].found == "written by qwen3_4b"


def test_teacher_states_before_the_final_norm_end_the_list(run, monkeypatch):
    read = FrozenTarget.forward

    def unnormed(self, *args, **options):
        output = read(self, *args, **options)
        return TargetOutput(output.features, output.last_hidden * 0.5)

    monkeypatch.setattr(FrozenTarget, "forward", unnormed)
    found = verdicts(run)
    assert list(found)[-1] == "teacher states (final norm, scales, cap)" and faults(found) == {list(found)[-1]}
    assert "after the final norm" in found["teacher states (final norm, scales, cap)"].found


@pytest.mark.parametrize(("change", "message"), [(lambda value: value * 1.5, "apart"), (torch.neg, "apart")])
def test_stored_features_of_another_making_are_named(run, tmp_path, change, message):
    for path in (tmp_path / "cache" / "features").rglob("*.safetensors"):
        tensors = load_file(path)
        if tensors["features"].shape[1]:
            save_file(tensors | {"features": change(tensors["features"])}, path)
    found = verdicts(run)
    assert faults(found) == {"stored features"} and message in found["stored features"].found


def test_stored_last_states_that_are_not_the_targets_are_named(run, tmp_path):
    for path in (tmp_path / "cache" / "features").rglob("*.safetensors"):
        tensors = load_file(path)
        save_file(tensors | {"last_hidden": 0.5 * tensors["last_hidden"]}, path)
    assert "differs from the model's own logits" in verdicts(run)["stored features"].found


def test_a_decode_loop_that_places_blocks_one_too_far_is_named(run, monkeypatch):
    made = BlockDrafter.block_states

    def shifted(self, context, cache):
        states = made(self, context, cache)
        return tuple(value.roll(1, dims=1) for value in states)

    monkeypatch.setattr(BlockDrafter, "block_states", shifted)
    found = verdicts(run)["training against serving"]
    assert found.verdict == FAULT and "on average" in found.found


def test_a_chain_fed_with_another_state_in_decoding_is_named(place, monkeypatch):
    monkeypatch.setenv("DRAFTLAB_CACHE", str(place / "cache"))
    extend = ChainDrafter._extend

    def forgetful(self, context, cache):
        extend(self, context, cache)
        cache.states.mul_(0.0)

    monkeypatch.setattr(ChainDrafter, "_extend", forgetful)
    assert verdicts(place / "outputs" / "eagle3")["training against serving"].verdict == FAULT


def test_prompts_far_beyond_the_trained_length_are_named(run):
    longer = verdicts(run, max_new_tokens=200)["context length"]
    assert longer.verdict == WARN and longer.expected.endswith("tokens of training")
    beyond = verdicts(run, max_new_tokens=400)["context length"]
    assert beyond.verdict == FAULT and beyond.expected == "at most 256 positions"


def test_a_draft_vocabulary_of_other_answers_is_named(run, place):
    answers = [json.loads(line)["messages"][-1]["content"] for line in (place / "answers" / "responses.jsonl").open()]
    counts = torch.bincount(torch.tensor(tiny.tiny_tokenizer()("".join(answers))["input_ids"]), minlength=128)
    rarest = counts.argsort()[:120].sort().values  # without the eight tokens that these answers use most
    edit_checkpoint(run, lambda content: content["state_dict"].update({"drafter.draft_ids": rarest}))
    found = verdicts(run)
    assert faults(found) == {"draft vocabulary"} and "chosen on other answers" in found["draft vocabulary"].advice


def test_a_drafter_that_has_learned_nothing_is_named(run):
    def change(content):
        for name, value in content["state_dict"].items():
            if value.is_floating_point():
                value.mul_(0.0 if "norm" not in name else 1.0)
        content["state_dict"]["drafter.norm.weight"] *= 50.0

    edit_checkpoint(run, change)
    assert "training text against held-out text" in faults(verdicts(run))


def test_an_evaluation_far_below_the_held_out_text_is_a_warning(run):
    (run / "evaluation.json").write_text("{}")
    pd.DataFrame({"temperature": [1.0] * 4 + [0.0], "committed": [1, 1, 1, 1, 8]}).to_parquet(run / "rounds.parquet")
    found = verdicts(run)["decoding against held-out text"]
    assert found.verdict == WARN and found.found == "1.00 in the evaluation at T=1"


def test_answers_that_have_gone_cost_their_rows_only(run, tmp_path):
    edit_config(run, data__path=str(tmp_path / "gone"))
    found = verdicts(run)
    assert found["answers"].verdict == WARN and "no answers at" in found["answers"].found
    assert found["training against serving"].verdict == OK and "draft vocabulary" not in found


def test_the_script_prints_and_keeps_the_rows_and_ends_with_the_faults(run, tmp_path, monkeypatch, capsys):
    words = f"python src/evaluate.py run={run} diagnose=true limit=1 max_new_tokens=8 device=cpu"
    run_script(shlex.split(words), tmp_path, monkeypatch)
    kept = json.loads((run / "diagnosis.json").read_text())
    assert {row["verdict"] for row in kept} <= {OK, WARN} and not (run / "evaluation.json").exists()
    edit_checkpoint(run, lambda content: content["draftlab"].update(sample_from_anchor=False))
    with pytest.raises(AssertionError, match="ended with 1"):
        run_script(shlex.split(words), tmp_path, monkeypatch)
    output = capsys.readouterr()
    assert "checks found a fault: block layout" in output.err
    assert "fault  block layout\n         expected: sample_from_anchor=True" in output.out and "to do:" in output.out
    with pytest.raises(ValueError, match=r"1 of .* checks found a fault: block layout"):
        diagnose(run, questions())


def test_a_checkpoint_says_which_text_it_was_trained_on(place):
    text = torch.load(newest_checkpoint(place / "outputs" / "dspark"), weights_only=True)["text"]
    assert set(text) == {"tokenizer", "template", "max_length"} and text["max_length"] == 512


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (findings.coverage_finding(0.99, 0.99, 0.99, 10), OK),
        (findings.coverage_finding(0.94, 0.99, 0.94, 10), WARN),
        (findings.coverage_finding(0.99, 0.84, 0.99, 10), FAULT),
        (findings.coverage_finding(0.96, 0.96, 0.99, 10), FAULT),
        (findings.acceptance_finding((2.0, 0.6), (1.8, 0.55)), OK),
        (findings.acceptance_finding((2.0, 0.6), (1.3, 0.25)), WARN),
        (findings.acceptance_finding((float("nan"), 0.6), (float("nan"), 0.3)), WARN),
        (findings.acceptance_finding((1.1, 0.1), (1.1, 0.1)), FAULT),
        (findings.length_finding(100, 100, 4096), OK),
        (findings.length_finding(100, 101, 4096), WARN),
        (findings.length_finding(100, 201, None), FAULT),
        (findings.decoding_finding(1.6, 1.67), OK),
        (findings.decoding_finding(1.3, 1.67), WARN),
        (findings.decoding_finding(None, 1.67), WARN),
        (findings.writer_finding("a", ["a", None]), WARN),
        (findings.template_finding(None, {False: "x", True: "y"}), WARN),
        (findings.mismatch_finding([], 0.1), WARN),
        (findings.stored_finding(0.04, 0.05), OK),
    ],
    ids=lambda value: value if isinstance(value, str) else value.check,
)
def test_a_number_at_its_limit_is_judged_as_documented(finding, verdict):
    assert finding.verdict == verdict
    assert verdict == OK or finding.advice
