"""Decontamination finds what stands in evaluation prompts, as a slow twin does, and counts it by benchmark and kind."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest

from draftlab.data.decontaminate import BUILTIN, Decontaminator, EvaluationIndex
from draftlab.data.prompts import Prompt, builtin_prompts, jsonl_prompts, normalised

BENCHMARKS = os.environ.get("DRAFTLAB_BENCHMARKS")  # a folder of benchmark JSONL files
LONG = "A train leaves the station at nine and travels for three hours at sixty miles per hour before it stops"


def ask(text: str, prompt_id: str = "p", system: str | None = None) -> Prompt:
    messages = [{"role": "system", "content": system}] if system else []
    return Prompt(prompt_id, "chat", (*messages, {"role": "user", "content": text}))


def folder(path, **benchmarks):
    path.mkdir(exist_ok=True)
    for name, turns in benchmarks.items():
        lines = [
            {"id": str(index), "turns": [turn] if isinstance(turn, str) else turn} for index, turn in enumerate(turns)
        ]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def numbers(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice("abc") for _ in range(count))


@pytest.mark.parametrize("ngram", [1, 2, 3, 6, 7, 13])
def test_shared_runs_are_those_that_comparing_every_run_with_every_run_finds(ngram):
    """Three words only, so that seeds are often known where runs are not."""
    rng, hits = random.Random(ngram), 0
    for _ in range(150):
        known = [numbers(rng, rng.randrange(2 * ngram + 4)) for _ in range(3)]
        index = EvaluationIndex({"b": [[text] for text in known]}, ngram, common=100)
        part = rng.choice(known).split()[(start := rng.randrange(ngram)) : start + ngram + rng.randrange(-1, 2)]
        text = " ".join([numbers(rng, rng.randrange(2 * ngram)), *part, numbers(rng, rng.randrange(2 * ngram))]).strip()
        padded = f" {text} "
        runs = [words[i : i + ngram] for words in map(str.split, known) for i in range(len(words) - ngram + 1)]
        shared = any(f" {' '.join(run)} " in padded for run in runs)
        found = index.find([text])
        assert (found is not None) == (shared or normalised(text) in set(map(normalised, known)) - {""})
        hits += shared
    assert hits > 10, "the runs tried tell something"


def test_equality_ignores_case_spacing_and_a_closing_stop(tmp_path):
    clean = Decontaminator(folder(tmp_path / "b", short=["What is 2 + 2?", "Name a fruit."]))
    prompts = [
        ask("what  is 2 + 2", "a"),
        ask("What is 2 - 2?", "b"),
        ask("name a FRUIT", "c"),
        ask("Name a fruit you like"),
    ]
    kept, report = clean(prompts)
    assert kept == [prompts[1], prompts[3]]
    assert report["benchmarks"]["short"] == {"prompts": 2, "exact": 2, "ngram": 0, "examples": ["a", "c"]}


def test_a_run_of_thirteen_words_counts_and_twelve_do_not(tmp_path):
    clean = Decontaminator(folder(tmp_path / "b", trains=[LONG]))
    words = LONG.split()
    thirteen, twelve = " ".join(words[2:15]), " ".join(words[2:14])
    kept, report = clean([ask(f"Say: {thirteen}, now!"), ask(f"Say: {twelve}, now!", "kept")])
    assert [prompt.id for prompt in kept] == ["kept"] and report["benchmarks"]["trains"]["ngram"] == 1
    assert Decontaminator(str(tmp_path / "b"), ngram=12)([ask(f"Say: {twelve}, now!"), ask("Hi")])[1]["removed"] == 1


def test_every_message_is_looked_at_and_every_turn_is_known(tmp_path):
    clean = Decontaminator(folder(tmp_path / "b", two=[["First turn", "Then rewrite it in verse"]]))
    prompts = [ask("Then rewrite it in verse."), ask("Hello", system=f"{LONG}"), ask("Go on", system="first turn")]
    kept, _ = clean(prompts)
    assert kept == [prompts[1]]


def test_instructions_around_all_questions_of_a_benchmark_are_not_questions(tmp_path):
    """A question without the benchmark's instruction is found, another question with it is not."""
    suffix = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    questions = [f"Compute the root of {number * number}." for number in range(12)] + [LONG]
    clean = Decontaminator(folder(tmp_path / "b", maths=[question + suffix for question in questions]))
    kept, report = clean(
        [ask("Compute the root of 49", "a"), ask(f"What is the root of 10? {suffix}", "b"), ask(LONG, "c")]
    )
    assert [prompt.id for prompt in kept] == ["b"] and report["benchmarks"]["maths"]["exact"] == 2


def test_runs_that_many_evaluation_prompts_share_do_not_count(tmp_path):
    path = folder(tmp_path / "b", code=[f"Task {number}: {LONG}; then print {number}" for number in range(6)])
    prompt = ask(f"My own task. {LONG}")
    assert Decontaminator(path, common=6)([prompt, ask("Hi")])[1]["removed"] == 1
    assert Decontaminator(path, common=5)([prompt, ask("Hi")])[1]["removed"] == 0


def test_signs_of_scripts_without_spaces_are_words(tmp_path):
    text = "请用中文解释一下什么是机器学习以及它的应用"
    clean = Decontaminator(folder(tmp_path / "b", zh=[text]))
    assert clean([ask(f"你好。{text[2:16]}。"), ask("你好")])[1]["benchmarks"]["zh"]["ngram"] == 1


def test_a_prompt_counts_once_and_equality_comes_first(tmp_path):
    clean = Decontaminator(folder(tmp_path / "b", one=[LONG + " twice"], two=[LONG]))
    _, report = clean([ask(LONG), ask("Hi")])
    assert report["removed"] == 1
    assert {name: (counts["exact"], counts["ngram"]) for name, counts in report["benchmarks"].items()} == {
        "one": (0, 0),
        "two": (1, 0),
    }


def test_built_in_held_out_prompts_are_looked_for_by_equality_only():
    clean = Decontaminator(builtin_heldout=60)
    heldout, train = builtin_prompts(60, split="heldout"), builtin_prompts(300)
    kept, report = clean([*train, *heldout])
    assert kept == train and report["benchmarks"][BUILTIN]["exact"] == 60


def test_nothing_to_compare_with_keeps_everything_and_says_so(capsys):
    clean = Decontaminator()
    assert clean([ask("Hi")]) == ([ask("Hi")], None) and clean.identity == {}
    assert "not compared with evaluation prompts" in capsys.readouterr().out


def test_the_identity_tells_evaluation_prompts_and_settings_apart(tmp_path):
    one, two = folder(tmp_path / "a", x=["Q"]), folder(tmp_path / "b", x=["R"])
    cases = [
        Decontaminator(one),
        Decontaminator(two),
        Decontaminator(one, ngram=8),
        Decontaminator(one, builtin_heldout=3),
    ]
    assert len({json.dumps(case.identity) for case in cases}) == 4
    assert Decontaminator(one).identity == cases[0].identity


def test_nothing_left_is_refused(tmp_path):
    with pytest.raises(ValueError, match="every prompt stands in the evaluation prompts"):
        Decontaminator(folder(tmp_path / "b", x=["Q"]))([ask("Q")])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"turns": []}', "line 2: expected 'turns'"),
        ('{"turns": "Q"}', "line 2: expected 'turns'"),
        ('{"messages": [{"role": "assistant", "content": "A"}]}', "line 2: expected 'turns'"),
        ('{"turns": ["Q"', "line 2: not valid JSON"),
    ],
)
def test_a_malformed_evaluation_prompt_is_refused_with_its_number(tmp_path, line, why):
    (tmp_path / "x.jsonl").write_text(f'{{"messages": [{{"role": "user", "content": "Q"}}]}}\n{line}\n')
    with pytest.raises(ValueError, match=rf"x\.jsonl, {why}"):
        Decontaminator(str(tmp_path))


def test_bad_settings_and_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no \*\.jsonl in"):
        Decontaminator(str(tmp_path))
    with pytest.raises(ValueError, match="expected a folder of JSONL files"):
        Decontaminator(str(tmp_path / "none"))
    for options in ({"ngram": 0}, {"ngram": 2.5}, {"common": 0}, {"builtin_heldout": -1}):
        with pytest.raises(ValueError, match=r"decontaminate\.\w+ must be at least"):
            Decontaminator(**options)


@pytest.mark.skipif(not BENCHMARKS, reason="DRAFTLAB_BENCHMARKS names no folder of benchmark prompts")
def test_real_benchmarks_are_found_in_disguise_and_other_prompts_stay():
    """In capitals, without line breaks and without the instruction that math benchmarks end with."""
    clean = Decontaminator(BENCHMARKS)
    others, planted = builtin_prompts(300), []
    for path in sorted(Path(BENCHMARKS).glob("*.jsonl")):
        for index, prompt in enumerate(jsonl_prompts(path)[:20]):
            text = re.sub(r"\s*Please reason step by step, and put .*", "", prompt.messages[0]["content"]).upper()
            planted.append(ask(" ".join(text.split()), f"{path.stem}-{index}"))
    kept, report = clean([*others, *planted])
    assert kept == others and planted
    assert sum(counts["exact"] + counts["ngram"] for counts in report["benchmarks"].values()) == report["removed"]
