"""Evaluation of a drafter: what it states (case 24), that counts add up, that a killed run loses nothing finished."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pytest
import torch

import tiny
from draftlab.data.chat import Chat
from draftlab.data.prompts import Prompt
from draftlab.decode import evaluation as evaluation_module
from draftlab.decode import records
from draftlab.decode.evaluation import Evaluation, EvaluationSettings, SpeedSettings
from draftlab.decode.loop import Decoder, DecodeSettings, plain_decode
from draftlab.decode.suites import Benchmark
from draftlab.sampling import Sampling
from scripted import ScriptedDrafter


@pytest.fixture(scope="module")
def big_target():
    return tiny.tiny_target(vocab_size=128)


def settings(**changes):
    speed = SpeedSettings(prompts=changes.pop("speed_prompts", 0), max_new_tokens=6, batch_size=1)
    values = {"temperatures": (1.0, 0.0), "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    values |= {"max_new_tokens": 10, "batch_size": 2, "seed": 0}
    return EvaluationSettings(**(values | changes), speed=speed)


def benchmarks():
    def prompts(name, texts):
        return tuple(Prompt(f"{name}-{i}", name, ({"role": "user", "content": t},)) for i, t in enumerate(texts))

    return [
        Benchmark("sums", "math", prompts("sums", ["1+1?", "How much is 12 times 3?", "2"])),
        Benchmark("talk", "chat", prompts("talk", ["Hello there", "x" * 300])),
    ]


def evaluation(target, tokenizer, folder, identity=None, **changes):
    table = 3 * torch.randn(3, 128, 128, generator=torch.Generator().manual_seed(0))
    drafter = ScriptedDrafter(table, confidence=0.5)
    return Evaluation(target, drafter, Chat(tokenizer), settings(**changes), folder, identity or {"checkpoint": "a"})


def test_rounds_outputs_and_counts_agree_with_each_other(big_target, tokenizer, tmp_path):
    evaluation(big_target, tokenizer, tmp_path, speed_prompts=2).run(benchmarks())
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    outputs = pd.read_json(tmp_path / "outputs.jsonl", lines=True)
    stated = json.loads((tmp_path / "evaluation.json").read_text())
    assert len(outputs) == 2 * 4 and set(outputs.finish_reason) <= {"stop", "length"}
    committed = rounds.groupby(["temperature", "prompt_id"]).committed.sum()
    for row in outputs.itertuples():
        total = 1 + int(committed.get((row.temperature, row.prompt_id), 0))
        assert row.num_tokens == total if row.finish_reason == "stop" else row.num_tokens == 10 <= total
    for column in ("confidence", "expected"):
        assert (rounds[column].map(len) == rounds.proposed).all()
    for count in stated["counts"]:
        mine = outputs[(outputs.temperature == count["temperature"]) & (outputs.benchmark == count["benchmark"])]
        assert count["prompts"] == len(mine) == count["stopped"] + count["truncated"]
        assert count["truncated"] == (mine.finish_reason == "length").sum()
        assert count["skipped_too_long"] == (1 if count["benchmark"] == "talk" else 0)
    assert [speed["temperature"] for speed in stated["speed"]] == [1.0, 0.0]
    assert stated["speed"][1]["identical_outputs"] == stated["speed"][1]["prompts"] == 2
    assert all(2 <= speed["rounds"] <= 2 * 5 and speed["draft_seconds"] > 0 for speed in stated["speed"])


def test_the_evaluation_states_everything_that_an_accepted_length_depends_on(big_target, tokenizer, tmp_path):
    """Case 24: bonus, temperature, thinking, prompts, and how many answers were stopped and truncated."""
    stated = evaluation(big_target, tokenizer, tmp_path).run(benchmarks(), command="python src/evaluate.py run=x")
    facts = stated["settings"]
    assert facts["temperatures"] == [1.0, 0.0] and facts["thinking"] is False and facts["prompts"] == 4
    assert "without the bonus" in facts["bonus"] and facts["gamma"] == 3 and facts["drafter"] == {"checkpoint": "a"}
    for name in ("top_k", "top_p", "min_p", "max_new_tokens", "batch_size", "seed", "target", "eos_token_ids"):
        assert name in facts
    assert stated["command"] == "python src/evaluate.py run=x" and stated["speed"] == []
    columns = {"temperature", "benchmark", "domain", "prompts", "stopped", "truncated"}
    assert all(columns <= count.keys() for count in stated["counts"])


def test_greedy_texts_are_those_of_plain_decoding(big_target, tokenizer, tmp_path):
    evaluation(big_target, tokenizer, tmp_path, temperatures=(0.0,)).run(benchmarks()[:1])
    chat = Chat(tokenizer)
    prompts = [chat.prompt_ids(list(prompt.messages)) for prompt in benchmarks()[0].prompts]
    greedy = DecodeSettings(max_new_tokens=10, sampling=Sampling(0.0), eos_token_ids=big_target.eos_token_ids)
    expected = [tokenizer.decode(g.tokens, skip_special_tokens=True) for g in plain_decode(big_target, prompts, greedy)]
    assert list(pd.read_json(tmp_path / "outputs.jsonl", lines=True).text) == expected


def test_a_killed_evaluation_goes_on_where_it_stopped_and_ends_as_if_uninterrupted(
    big_target, tokenizer, tmp_path, monkeypatch
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = evaluation(big_target, tokenizer, whole).run(benchmarks())
    runs = []

    class Killed(Decoder):
        def run(self, *args, **options):
            runs.append(self)
            if len(runs) == 3:
                raise KeyboardInterrupt
            return super().run(*args, **options)

    monkeypatch.setattr(evaluation_module, "Decoder", Killed)
    with pytest.raises(KeyboardInterrupt):
        evaluation(big_target, tokenizer, cut).run(benchmarks())
    assert len(list((cut / "evaluation.partial").glob("*.json"))) == 2 and not (cut / "evaluation.json").exists()
    assert evaluation(big_target, tokenizer, cut).run(benchmarks()) == expected
    assert len(runs) == 3 + 2, "two parts were finished; only the other two are decoded again"
    assert (cut / "outputs.jsonl").read_text() == (whole / "outputs.jsonl").read_text()
    assert pd.read_parquet(cut / "rounds.parquet").equals(pd.read_parquet(whole / "rounds.parquet"))
    assert not (cut / "evaluation.partial").exists()


def test_a_whole_evaluation_is_not_decoded_again(big_target, tokenizer, tmp_path, monkeypatch, capsys):
    expected = evaluation(big_target, tokenizer, tmp_path).run(benchmarks())
    monkeypatch.setattr(evaluation_module, "Decoder", None)
    assert evaluation(big_target, tokenizer, tmp_path).run(benchmarks()) == expected
    assert "nothing is decoded again" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"identity": {"checkpoint": "b"}}, {"top_p": 0.9}, {"temperatures": (1.0,)}])
def test_an_evaluation_with_other_settings_sets_the_earlier_one_aside(big_target, tokenizer, tmp_path, change, capsys):
    before = evaluation(big_target, tokenizer, tmp_path).run(benchmarks())
    (tmp_path / "report.html").write_text("the earlier report")
    rounds = (tmp_path / "rounds.parquet").read_bytes()
    after = evaluation(big_target, tokenizer, tmp_path, **change).run(benchmarks())
    assert after["key"] != before["key"] and not (tmp_path / "report.html").exists()
    assert json.loads((tmp_path / "earlier/1/evaluation.json").read_text()) == before
    assert (tmp_path / "earlier/1/rounds.parquet").read_bytes() == rounds
    assert (tmp_path / "earlier/1/report.html").read_text() == "the earlier report"
    assert "earlier/1" in capsys.readouterr().out.replace("\n", "")
    again = evaluation(big_target, tokenizer, tmp_path).run(benchmarks()[:1])
    assert again["settings"]["prompts"] == 3 and (tmp_path / "earlier/2/evaluation.json").exists()


def test_setting_aside_that_was_killed_half_way_loses_nothing(big_target, tokenizer, tmp_path):
    before = evaluation(big_target, tokenizer, tmp_path).run(benchmarks())
    rounds = (tmp_path / "rounds.parquet").read_bytes()
    (tmp_path / "earlier/1").mkdir(parents=True)
    (tmp_path / "rounds.parquet").rename(tmp_path / "earlier/1/rounds.parquet")
    assert evaluation(big_target, tokenizer, tmp_path).run(benchmarks()) == before, "decoded again: the rounds had gone"
    assert (tmp_path / "earlier/1/rounds.parquet").read_bytes() == rounds
    assert json.loads((tmp_path / "earlier/1/evaluation.json").read_text()) == before


def test_rounds_of_a_version_with_other_columns_are_decoded_again(big_target, tokenizer, tmp_path, monkeypatch):
    before = evaluation(big_target, tokenizer, tmp_path).run(benchmarks())
    fewer = pa.schema([field for field in records.ROUNDS if field.name != "expected"])
    monkeypatch.setattr(evaluation_module, "ROUNDS", fewer)
    assert evaluation(big_target, tokenizer, tmp_path).run(benchmarks())["key"] != before["key"]
    assert (tmp_path / "earlier/1/rounds.parquet").is_file()


@pytest.mark.parametrize("change", [{"identity": {"checkpoint": "b"}}, {"seed": 5}, {"max_new_tokens": 9}])
def test_parts_of_another_drafter_or_setting_are_not_taken_up(big_target, tokenizer, tmp_path, monkeypatch, change):
    first = evaluation(big_target, tokenizer, tmp_path, temperatures=(1.0,))
    monkeypatch.setattr(evaluation_module, "write_evaluation", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        first.run(benchmarks())
    monkeypatch.undo()
    decoded = []
    monkeypatch.setattr(evaluation_module, "Decoder", lambda *args: decoded.append(args) or Decoder(*args))
    evaluation(big_target, tokenizer, tmp_path, temperatures=(1.0,), **change).run(benchmarks())
    assert len(decoded) == 2


def test_prompts_that_never_fit_are_refused(big_target, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="every prompt is too long for the target's 256 positions"):
        evaluation(big_target, tokenizer, tmp_path, max_new_tokens=250).run(benchmarks())


def test_one_temperature_may_stand_alone():
    assert settings(temperatures=0.5).temperatures == (0.5,)


def test_impossible_settings_are_refused():
    for change, message in [
        ({"temperatures": ()}, "temperatures must be one or more"),
        ({"temperatures": (1.0, 1.0)}, "temperatures must be one or more different"),
        ({"temperatures": (-1.0,)}, "sampling.temperature"),
        ({"top_p": 0.0}, "sampling.top_p"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 1.5}, "batch_size must be at least 1 and whole"),
        ({"speed_prompts": -1}, "speed.prompts must be at least 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            settings(**change)
